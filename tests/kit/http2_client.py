"""A client of HTTP/2 over any stream of bytes, by h2."""

from collections.abc import Sequence
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)

from acp_gateway.security.tls import client_context
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import ByteStream, send_all
from tests.kit.http_client import Reply

Pairs = Sequence[tuple[str, str]]


class Http2Client:
    """One connection. What is sent is not checked here, so that unsound requests can be sent."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.h2 = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding="latin-1",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.slow: set[int] = set()
        """Requests whose data is received and not acknowledged."""
        self.replies: dict[int, Reply] = {}
        self.interim: list[int] = []
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goaway: tuple[int, str] | None = None
        """The code and the text with which the server has ended the connection."""
        self.h2.initiate_connection()

    async def flush(self) -> None:
        await send_all(self.stream, self.h2.data_to_send())

    async def begin(self, method: str, path: str, *more: tuple[str, str], ends: bool = True, host: str = "h") -> int:
        """Send the head of a request; return its number."""
        fields = [(":method", method), (":scheme", "https"), (":authority", host), (":path", path), *more]
        return await self.send_head(fields, ends=ends)

    async def send_head(self, fields: Pairs, *, ends: bool = True) -> int:
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, fields, end_stream=ends)
        await self.flush()
        return number

    async def send(self, number: int, data: bytes, *, ends: bool = False) -> None:
        """Send a part of a body, as far as its window goes."""
        for start in range(0, len(data), 16384):
            while number not in self.resets and self.h2.local_flow_control_window(number) < len(
                data[start : start + 16384]
            ):
                assert await self.receive()
            if number in self.resets:
                return
            self.h2.send_data(number, data[start : start + 16384])
            await self.flush()
        if ends:
            self.h2.end_stream(number)
            await self.flush()

    async def ask(self, method: str, path: str, *more: tuple[str, str], body: bytes = b"", host: str = "h") -> Reply:
        """Send a request, and return the response with its whole body."""
        number = await self.begin(method, path, *more, ends=not body, host=host)
        if body:
            await self.send(number, body, ends=True)
        return await self.reply(number)

    async def head(self, number: int) -> Reply:
        """The head of the response to a request."""
        while number not in self.replies:
            assert number not in self.resets, self.resets
            assert await self.receive(), self.goaway
        return self.replies[number]

    async def reply(self, number: int) -> Reply:
        """The whole response to a request."""
        while number not in self.ended:
            assert number not in self.resets, self.resets
            assert await self.receive(), self.goaway
        return self.replies[number]

    async def receive(self) -> bool:
        """Receive what is there; False at the end."""
        data = await self.stream.receive_some()
        for event in self.h2.receive_data(data):
            self._note(event)
        await self.flush()
        return bool(data)

    async def receive_all(self) -> None:
        """Receive up to the end of the connection."""
        while await self.receive():
            pass

    def _note(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            fields = dict(map(_texts, event.headers))
            self.replies[event.stream_id] = Reply(int(fields.pop(":status")), fields)
        elif isinstance(event, InformationalResponseReceived):
            self.interim.append(event.stream_id)
        elif isinstance(event, DataReceived):
            self.replies[event.stream_id].body += event.data
            if event.stream_id not in self.slow:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, StreamReset):
            self.resets[event.stream_id] = int(event.error_code)
        elif isinstance(event, ConnectionTerminated):
            self.goaway = int(event.error_code or 0), (event.additional_data or b"").decode()


def _texts(field: tuple[object, object]) -> tuple[str, str]:
    name, value = field
    assert isinstance(name, str)
    assert isinstance(value, str)
    return name, value


async def connect_http2(port: int, certificate: Path) -> Http2Client:
    """A connection to a listener with TLS, whose certificate is in this folder."""
    context = client_context(ca=certificate / "cert.pem", pin=None)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return Http2Client(await connect_tcp("127.0.0.1", port, context))
