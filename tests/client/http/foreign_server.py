"""A server of Streamable HTTP that is not a gateway, in memory: it does what a test tells it."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import trio
import trio.testing

from acp_gateway.client.http.connections import Endpoint
from acp_gateway.client.http.stream import HttpClientStream
from acp_gateway.errors import Unreachable
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.streams import ByteStream, TrioBytes

ENDPOINT = Endpoint("server.example", "/acp", {"Authorization": "Bearer secret"}, tls=True)

ACCEPTED = Response(202)

END, CUT = b"END", b"CUT"
"""Instead of bytes of an event stream: it ends properly, or is cut off."""


class Received(NamedTuple):
    """A request that the server has received."""

    method: str
    headers: Mapping[str, str]
    message: Any = None

    @property
    def name(self) -> str:
        """The method of the message, or what else it is."""
        return "" if self.message is None else self.message.get("method", "response")


@dataclass
class ForeignServer:
    """Answers `initialize`, accepts all else, and sends what it is given as events."""

    nursery: trio.Nursery
    requests: list[Received] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)
    """Responses to the next requests that `answers_to` selects, instead of the usual ones."""
    answers_to: Callable[[Received], bool] = lambda _: True
    held: dict[str, trio.Event] = field(default_factory=dict)
    """By method: the `POST` is answered once this is set."""
    unknown_sessions: bool = False
    """True if streams of sessions do not exist."""
    connections: int = 0
    down: bool = False
    _streams: dict[str | None, tuple[trio.MemorySendChannel[bytes], trio.MemoryReceiveChannel[bytes]]] = field(
        default_factory=dict
    )
    changed: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    async def connect(self) -> ByteStream:
        """Open a connection as the client does."""
        if self.down:
            raise Unreachable("the server is down")
        here, there = trio.testing.memory_stream_pair()
        self.connections += 1
        self.nursery.start_soon(self._serve, TrioBytes(there))
        return TrioBytes(here)

    async def seen(self, *names: str) -> None:
        """Wait until messages with just these methods have come, besides `initialize`."""
        while [one.name for one in self.posts if one.name != "initialize"] != list(names):
            await self.changed.park()

    async def opened(self, count: int) -> None:
        """Wait until streams were asked for that often."""
        while len(self.gets) < count:
            await self.changed.park()

    async def ended(self) -> None:
        """Wait until the connection was ended."""
        while all(one.method != "DELETE" for one in self.requests):
            await self.changed.park()

    @property
    def posts(self) -> list[Received]:
        return [one for one in self.requests if one.method == "POST"]

    @property
    def gets(self) -> list[Received]:
        return [one for one in self.requests if one.method == "GET"]

    def send(self, data: bytes, session: str | None = None) -> None:
        """Send bytes in a stream, once it is open."""
        self._stream(session)[0].send_nowait(data)

    def event(self, message: Any, session: str | None = None) -> None:
        """Send a message as an event."""
        self.send(b"data: %b\n\n" % json.dumps(message).encode(), session)

    def _stream(self, session: str | None) -> tuple[trio.MemorySendChannel[bytes], trio.MemoryReceiveChannel[bytes]]:
        if session not in self._streams:
            self._streams[session] = trio.open_memory_channel[bytes](1000)
        return self._streams[session]

    async def _serve(self, stream: TrioBytes) -> None:
        http = HttpConnection(stream)
        try:
            again = True
            while again and (request := await http.receive_request()):
                again = await self._answer(http, request, await http.receive_body(10_000_000))
            await http.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.aclose()

    async def _answer(self, http: HttpConnection, request: Request, body: bytes) -> bool:
        message = json.loads(body) if body else None
        headers = {name.lower(): value for name, value in request.headers.raw_items()}
        received = Received(request.method, headers, message)
        self.requests.append(received)
        self.changed.unpark_all()
        if self.answers and self.answers_to(received):
            return await http.respond(self.answers.pop(0))
        if request.method == "GET":
            session = request.headers.get("Acp-Session-Id")
            if session is not None and self.unknown_sessions:
                return await http.respond(Response.of_text(404, "no such session"))
            return await self._events(http, session)
        if received.name == "initialize":
            assert isinstance(message, dict)
            response = {"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": 1}}
            headers = {"Acp-Connection-Id": "c1", "Set-Cookie": "node=7; Path=/; Secure"}
            return await http.respond(Response(200, json.dumps(response).encode(), headers))
        if received.name in self.held:
            await self.held[received.name].wait()
        return await http.respond(ACCEPTED)

    async def _events(self, http: HttpConnection, session: str | None) -> bool:
        await http.start(200, {"Content-Type": "text/event-stream"})
        data = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_left, http, nursery.cancel_scope)
            async for data in self._stream(session)[1].clone():
                if data in (CUT, END):
                    break
                await http.send(data)
            nursery.cancel_scope.cancel()
        if data == END:
            return await http.end()
        await http.stream.aclose()
        return False

    async def _until_left(self, http: HttpConnection, scope: trio.CancelScope) -> None:
        await http.wait_left()
        scope.cancel()


@asynccontextmanager
async def foreign_server() -> AsyncIterator[ForeignServer]:
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            yield ForeignServer(nursery)
            nursery.cancel_scope.cancel()


def message(method: str, number: int | None = None, **params: Any) -> bytes:
    """A message of the editor."""
    ids = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", **ids, "method": method, "params": params}).encode()


@asynccontextmanager
async def running(server: ForeignServer, max_message_size: int = 100_000) -> AsyncIterator[HttpClientStream]:
    """A stream to the server that is being run."""
    stream = HttpClientStream(ENDPOINT, server.connect, max_message_size=max_message_size, size_setting="the limit")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        yield stream
        await stream.aclose()


@asynccontextmanager
async def initialized(server: ForeignServer, max_message_size: int = 100_000) -> AsyncIterator[HttpClientStream]:
    """The same after `initialize`, with the connection's stream open."""
    async with running(server, max_message_size) as stream:
        await stream.send(message("initialize", 0))
        assert json.loads(await stream.receive())["result"] == {"protocolVersion": 1}
        await server.opened(1)
        yield stream
