"""One request to a program behind a preview, and its response, both passed on in parts."""

from typing import Final

import h11
import trio

from acp_gateway.errors import ProtocolError
from acp_gateway.printable import printable
from acp_gateway.transports.http.client import MAX_INTERIM, PARTS_AT_ONCE, SWITCHING
from acp_gateway.transports.streams import ByteStream, send_all

HEAD_SIZE: Final = 131072
"""Maximum bytes of a response's head: programs set many and long cookies."""


class ProgramConnection:
    """A connection to a program, for one request.

    Args:
        stream: the connection.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_SIZE)
        self._parts = 0

    async def send_head(self, method: str, target: str, fields: list[tuple[str, str]], size: int | None) -> None:
        """Send the head of a request with a body of so many bytes; None if only its end will tell.

        This and the methods below raise what the stream raises, and `ProtocolError` for what is not HTTP.
        """
        length = [("Transfer-Encoding", "chunked")] if size is None else [("Content-Length", str(size))] if size else []
        encoded = [(name.encode("ascii"), value.encode("latin-1")) for name, value in (*fields, *length)]
        await self._send(h11.Request(method=method, target=target, headers=encoded))

    async def send_part(self, data: bytes) -> None:
        """Send a part of the body."""
        await self._send(h11.Data(data=data))

    async def send_end(self) -> None:
        """Send the end of the body."""
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        try:
            data = self._h11.send(event)
        except h11.LocalProtocolError as error:
            raise ProtocolError(str(error)) from None
        await send_all(self._stream, data or b"")

    async def receive_head(self) -> tuple[int, list[tuple[str, str]]]:
        """Wait for the head of the response, and return its status and headers."""
        for _ in range(MAX_INTERIM):
            event = await self._next_event()
            is_last = isinstance(event, h11.Response)
            if isinstance(event, h11.InformationalResponse):
                is_last = event.status_code == SWITCHING
            elif not is_last:
                raise ProtocolError("the program has closed the connection without an answer")
            if is_last:
                assert isinstance(event, h11.Response | h11.InformationalResponse)
                if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                    # One reader would take another body for it than the next one (RFC 9112, 6.3).
                    raise ProtocolError("the program sends a response with two lengths")
                fields = [(name.decode("ascii"), value.decode("latin-1")) for name, value in event.headers.raw_items()]
                return event.status_code, fields
        raise ProtocolError(f"the program sends more than {MAX_INTERIM} responses before the last one")

    async def receive_part(self) -> bytes:
        """Wait for a part of the body and return it; empty at its end."""
        self._parts += 1
        if self._parts % PARTS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        event = await self._next_event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    @property
    def behind(self) -> bytes:
        """Bytes that came behind the response which has changed the protocol."""
        return bytes(self._h11.trailing_data[0])

    async def _next_event(self) -> object:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise ProtocolError(f"the program does not speak HTTP/1.1: {printable(str(error))}") from None
            if event is not h11.NEED_DATA:
                return event
            self._h11.receive_data(await self._stream.receive_some())
