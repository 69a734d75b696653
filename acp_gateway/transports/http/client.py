"""A client's side of HTTP/1.1: one request after the other over a connection, and the heads of responses.

h11 parses and frames.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import h11
import trio

from acp_gateway.errors import ProtocolError
from acp_gateway.printable import printable
from acp_gateway.transports.streams import ByteStream, send_all

HEAD_SIZE: Final = 65536
"""Maximum bytes of a response's head."""

MAX_INTERIM: Final = 16
"""Maximum interim responses (1xx) before a response: servers send one or two."""

PARTS_AT_ONCE: Final = 64
"""Parts of a body after which other tasks get their turn: one read may bring ten thousand."""

SWITCHING: Final = 101
"""The status with which a connection begins to speak another protocol."""

REDIRECTS: Final = 300
"""The least status that is not a success."""


class Request(NamedTuple):
    """A request to an endpoint."""

    method: str
    headers: Mapping[str, str]
    body: bytes = b""
    sent: Callable[[], None] = lambda: None
    """Called when all of it is written."""
    idempotent: bool = False
    """True if the server may handle it twice without harm."""
    more: Sequence[tuple[str, str]] = ()
    """Further headers, in which a name may be repeated."""


class Head(NamedTuple):
    """The head of a response."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case. Of a repeated header the last counts."""
    cookies: tuple[str, ...]
    """Values of all `Set-Cookie` headers."""

    @property
    def encoding(self) -> str:
        """The encoding of the body, which each request forbids; "" for none."""
        named = self.headers.get("content-encoding", "").strip()
        return "" if named.lower() == "identity" else named


class Reply(NamedTuple):
    """A response with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """The first line of the body, for an error; of a redirect, the place to which it leads."""
        lines = self.body.decode(errors="replace").strip().splitlines()
        place = self.headers.get("location", "") if REDIRECTS <= self.status < 400 else ""
        if place:
            return f"a redirect to {printable(place, size=200)}, which is not followed"
        return printable(lines[0] if lines else "without a reason", size=200)

    def pause(self, usual: float, longest: float) -> float:
        """Return the seconds to wait before a request is repeated, by `Retry-After`."""
        asked = self.headers.get("retry-after", "")
        return min(float(asked), longest) if asked.isascii() and asked.isdigit() else usual


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
        # Parts of bodies that were read.
        self._parts = 0

    async def send(self, target: str, request: Request) -> Head:
        """Send a request to a path and return the head of its response.

        A response that comes before all of it is written, a refusal, is read as well. Raises `ProtocolError` if what
        comes is not HTTP, and what the stream raises. Cancelled or failed, the connection is to be closed.

        With the status 101, which only a request with `Upgrade` may get, the connection speaks another protocol.
        """
        fields = {"Host": self._host, **request.headers}
        if request.body or request.method == "POST":
            fields["Content-Length"] = str(len(request.body))
        all_fields = (*fields.items(), *request.more)
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in all_fields]
        head = h11.Request(method=request.method, target=target, headers=encoded)
        parts = [self._h11.send(event) or b"" for event in (head, h11.Data(data=request.body), h11.EndOfMessage())]
        failure: trio.BrokenResourceError | None = None
        try:
            await send_all(self._stream, b"".join(parts))
            request.sent()
        except trio.BrokenResourceError as error:
            failure = error
        try:
            interim = 0
            while isinstance(event := await self._next_event(), h11.InformationalResponse):
                if event.status_code == SWITCHING:
                    break
                interim += 1
                if interim > MAX_INTERIM:
                    raise ProtocolError(f"the server there sends more than {MAX_INTERIM} responses before the last one")
        except trio.BrokenResourceError:
            if failure is not None:
                raise failure from None
            raise
        if not isinstance(event, h11.Response | h11.InformationalResponse):
            raise trio.BrokenResourceError("the server closed the connection without an answer")
        answer = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
        answered = dict(answer)
        if "content-length" in answered and "transfer-encoding" in answered:
            # One reader would take another body for it than the next one (RFC 9112, 6.3).
            raise ProtocolError("the server there sends a response with two lengths")
        self._framed = "content-length" in answered or "transfer-encoding" in answered
        return Head(event.status_code, answered, tuple(value for name, value in answer if name == "set-cookie"))

    @property
    def behind(self) -> bytes:
        """Bytes that came behind the response which has changed the protocol."""
        return self._h11.trailing_data[0]

    async def read(self) -> bytes:
        """Wait for a part of the body and return it; return b"" at the end of the body.

        Raises `BrokenResourceError` if the connection is lost before the end, also if that can't be told.
        """
        self._parts += 1
        if self._parts % PARTS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        event = await self._next_event()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if not self._framed:
            raise trio.BrokenResourceError("the server closed the connection")
        return b""

    async def read_all(self, limit: int) -> bytes:
        """Return the whole body, or what is more than `limit` bytes of it."""
        body = bytearray()
        try:
            while len(body) <= limit and (part := await self.read()):
                body += part
        except trio.BrokenResourceError:
            if self._framed:
                raise
        return bytes(body)

    def start_next(self) -> bool:
        """Prepare for another request; return False if none may follow."""
        if not self._framed or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

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
