"""The client's side of one HTTP/1.1 connection: one request after the other, each with its response.

h11 parses and frames. Only a client of servers that do not speak WebSocket imports this.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import h11
import trio

from acp_gateway.errors import ProtocolError
from acp_gateway.printable import printable
from acp_gateway.transports.streams import ByteStream
from acp_gateway.transports.websocket.stream import send_all

HEAD_SIZE: Final = 65536
"""Maximum bytes of a response's head."""


class Head(NamedTuple):
    """The head of a response."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case. Of a repeated header the last counts."""
    cookies: tuple[str, ...]
    """Values of all `Set-Cookie` headers."""


class HttpClientConnection:
    """Sends requests over a stream, and reads their responses to the end before the next one.

    Args:
        stream: the connection.
        host: the value of the `Host` header.
    """

    def __init__(self, stream: ByteStream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_SIZE)
        # True if the end of the body can be told from the loss of the connection.
        self._framed = False

    async def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        sent: Callable[[], None] = lambda: None,
    ) -> Head:
        """Send a request and return the head of its response; `sent` is called when all of it is written.

        A response that comes before that, a refusal, is read as well. Raises `ProtocolError` if what comes is not HTTP,
        and what the stream raises. Cancelled or failed, the connection is to be closed.
        """
        fields = {"Host": self._host, **headers}
        if body or method == "POST":
            fields["Content-Length"] = str(len(body))
        head = self._h11.send(h11.Request(method=method, target=target, headers=list(fields.items()))) or b""
        data = (self._h11.send(h11.Data(data=body)) or b"") + (self._h11.send(h11.EndOfMessage()) or b"")
        failure: trio.BrokenResourceError | None = None
        try:
            await send_all(self._stream, head + data)
            sent()
        except trio.BrokenResourceError as error:
            failure = error
        try:
            event = await self._next_event()
            while isinstance(event, h11.InformationalResponse):
                event = await self._next_event()
        except trio.BrokenResourceError:
            if failure is not None:
                raise failure from None
            raise
        if not isinstance(event, h11.Response):
            raise trio.BrokenResourceError("the server closed the connection without an answer")
        answer = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        self._framed = "content-length" in answer or "transfer-encoding" in answer
        cookies = [value.decode("latin-1") for name, value in event.headers if name == b"set-cookie"]
        return Head(event.status_code, answer, tuple(cookies))

    async def read(self) -> bytes:
        """Wait for a part of the body and return it; return b"" at the end of the body.

        Raises `BrokenResourceError` if the connection is lost before the end, also if that can't be told.
        """
        event = await self._next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if not self._framed:
            raise trio.BrokenResourceError("the server closed the connection")
        return b""

    async def read_all(self, limit: int) -> bytes:
        """Return the whole body, or what is more than `limit` bytes of it."""
        parts: list[bytes] = []
        size = 0
        try:
            while size <= limit and (part := await self.read()):
                parts.append(part)
                size += len(part)
        except trio.BrokenResourceError:
            if self._framed:
                raise
        return b"".join(parts)

    @property
    def reusable(self) -> bool:
        """True if another request may follow."""
        return self._framed and self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    def start_next(self) -> None:
        """Prepare for another request on a connection that is `reusable`."""
        self._h11.start_next_cycle()

    async def aclose(self) -> None:
        """Close the connection at once. May be repeated."""
        await self._stream.aclose()

    async def _next_event(self) -> object:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                if self._h11.trailing_data[1]:
                    raise trio.BrokenResourceError("the connection was lost in the middle of a response") from None
                raise ProtocolError(f"the server there does not speak HTTP/1.1: {printable(str(error))}") from None
            if event is not h11.NEED_DATA:
                return event
            self._h11.receive_data(await self._stream.receive_some())
