"""Connections for the tests of transports: in memory with little room, over sockets and pipes, with TLS."""

import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import trio
from websockets.uri import WebSocketURI

from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.layers import TlsBytes, start_tls_inside
from acp_gateway.transports.pipes import FileBytes, ThreadBytes
from acp_gateway.transports.sockets import SocketBytes, start_tls
from acp_gateway.transports.streams import READ_SIZE, ByteStream, MessageStream
from acp_gateway.transports.websocket.client import connect_websocket
from acp_gateway.transports.websocket.server import upgrade_to_tunnel
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream
from acp_gateway.transports.websocket.tunnel import Tunnel, connect_tunnel
from tests.kit.accepting import Accept, Respond, accept_websocket
from tests.transports.conftest import Tls

MIB = 1024 * 1024

NEVER = Timing(ping_interval=math.inf, ping_timeout=math.inf, stall_timeout=math.inf)
"""No ping and no deadline: nothing in such a test depends on time."""

URI = WebSocketURI(False, "localhost", 80, "/acp", "")


class MemoryBytes(ByteStream):
    """One end of a connection in memory that has room for a few bytes on their way, as a socket has."""

    def __init__(self, room: int) -> None:
        self.room = room
        """Bytes from the other end that fit in before they are read; may be changed by the test."""
        self.inbox = bytearray()
        self.written: list[bytes] = []
        """The bytes written from here, a piece for each write that took something."""
        self.ended = False
        self.closed = False
        self.peer: MemoryBytes
        self._changed = trio.lowlevel.ParkingLot()
        self._finishing = False

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.inbox:
            if self.closed or self._finishing:
                raise trio.ClosedResourceError
            if self.peer.ended:
                return b""
            await self._changed.park()
        data = bytes(self.inbox[:READ_SIZE])
        del self.inbox[: len(data)]
        self.peer.wake()
        return data

    def send_nowait(self, data: memoryview) -> int:
        if self.closed or self.ended:
            raise trio.ClosedResourceError
        if self.peer.closed:
            raise trio.BrokenResourceError("broken pipe")
        taken = bytes(data[: max(0, self.peer.room - len(self.peer.inbox))])
        if taken:
            self.written.append(taken)
            self.peer.inbox += taken
            self.peer.wake()
        return len(taken)

    async def send_some(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while not (sent := self.send_nowait(data)):
            await self._changed.park()
        return sent

    async def send_eof(self) -> None:
        self.ended = True
        self.peer.wake()
        await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        await self.send_eof()
        self._finishing = True
        self.wake()
        await trio.lowlevel.checkpoint()
        while not self.peer.ended:
            self.inbox.clear()
            self.peer.wake()
            await self._changed.park()
            if self.closed:
                raise trio.ClosedResourceError

    async def aclose(self) -> None:
        self.closed = self.ended = True
        self.wake()
        self.peer.wake()
        await trio.lowlevel.checkpoint()

    def wake(self) -> None:
        """Wake the tasks that wait here."""
        self._changed.unpark_all()


def memory_wire(room: int = 65536) -> tuple[MemoryBytes, MemoryBytes]:
    """Two ends in memory."""
    here, there = MemoryBytes(room), MemoryBytes(room)
    here.peer, there.peer = there, here
    return here, there


class Script(ByteStream):
    """A peer that sends these chunks and ends, and takes nothing."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return next(self._chunks, b"")

    def send_nowait(self, data: memoryview) -> int:
        return 0

    async def send_some(self, data: memoryview) -> int:
        await trio.sleep_forever()
        raise AssertionError

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets with small buffers, non-blocking."""
    here, there = socket.socketpair()
    for sock in (here, there):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    return here, there


def socket_wire() -> tuple[SocketBytes, SocketBytes]:
    """The two ends of a socket pair."""
    here, there = socket_pair()
    return SocketBytes(here), SocketBytes(there)


async def tls_wire(tls: Tls) -> tuple[SocketBytes, SocketBytes]:
    """A client and a server with TLS on a socket pair."""
    here, there = socket_pair()
    ends: dict[str, SocketBytes] = {}

    async def client() -> None:
        ends["client"] = await start_tls(here, tls.client, server_hostname="localhost")

    async def server() -> None:
        ends["server"] = await start_tls(there, tls.server, server_side=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client)
        nursery.start_soon(server)
    return ends["client"], ends["server"]


def pipe_wire() -> tuple[FileBytes, FileBytes]:
    """Two pipes, one each way."""
    read_here, write_there = os.pipe()
    read_there, write_here = os.pipe()
    return FileBytes(read_here, write_here), FileBytes(read_there, write_there)


class ThreadEnd(ThreadBytes):
    """A process at the end of two pipes: its end closes them."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        super().__init__(read_fd, write_fd)
        self._open: dict[int, Any] = {read_fd: self._reading, write_fd: self._writing}

    async def aclose(self) -> None:
        # Not under a thread that is about to use it: its number may be another file's by then.
        for descriptor in [descriptor for descriptor, calls in self._open.items() if not calls._under_way]:
            del self._open[descriptor]
            os.close(descriptor)
        await super().aclose()

    @property
    def open(self) -> bool:
        """Return whether a thread reads or writes, so that not all could be closed."""
        return bool(self._open)


def thread_wire() -> tuple[ThreadEnd, ThreadEnd]:
    """Two pipes that are read and written in threads."""
    read_here, write_there = os.pipe()
    read_there, write_here = os.pipe()
    return ThreadEnd(read_here, write_here), ThreadEnd(read_there, write_there)


def accept_all(request: Request) -> Accept | Respond:
    """Accept every request."""
    return Accept({"Acp-Connection-Id": "c1"})


async def upgrade(
    client: ByteStream,
    server: ByteStream,
    *,
    timing: Timing = NEVER,
    max_message_size: int = 64 * MIB,
    decide: Callable[[Request], Accept | Respond] = accept_all,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[WebSocketStream, WebSocketStream]:
    """A WebSocket over two ends: the client's stream and the server's. The client asks with these headers."""
    ends: list[WebSocketStream | None] = []

    async def accept() -> None:
        ends.append(await accept_websocket(server, decide, max_message_size=max_message_size, timing=timing))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        connected = await connect_websocket(client, URI, headers, max_message_size=max_message_size, timing=timing)
    (accepted,) = ends
    assert accepted is not None
    return connected, accepted


async def tunnel_over(client: ByteStream, server: ByteStream) -> tuple[Tunnel, Tunnel]:
    """A tunnel over two ends: the client's and the server's."""
    ends: list[Tunnel | Response] = []

    async def accept() -> None:
        http = HttpConnection(server)
        request = await http.receive_request()
        assert request is not None
        ends.append(await upgrade_to_tunnel(http, request, {}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        connected = await connect_tunnel(client, URI, {})
    (accepted,) = ends
    assert isinstance(accepted, Tunnel)
    return connected, accepted


async def tls_inside(client: ByteStream, server: ByteStream, tls: Tls) -> tuple[TlsBytes, TlsBytes]:
    """TLS inside two ends: the client's and the server's."""
    ends: dict[str, TlsBytes] = {}

    async def accept() -> None:
        ends["server"] = await start_tls_inside(server, tls.server, server_side=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        ends["client"] = await start_tls_inside(client, tls.client, server_hostname="localhost")
    return ends["client"], ends["server"]


class Charged:
    """Adds up what is charged; pauses for so many seconds, once."""

    def __init__(self, pause: float = 0.0) -> None:
        self.size = self.frames = 0
        self.seconds = 0.0
        self._pause = pause

    def __call__(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        self.size += size
        self.frames += frames
        self.seconds += seconds
        pause, self._pause = self._pause, 0.0
        return pause


async def close_at_once(*streams: MessageStream | ByteStream) -> None:
    """Close without any goodbye, as a cancelled task does."""
    for stream in streams:
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.aclose()


async def close_all(*streams: MessageStream) -> None:
    """Close politely, all at the same time, as different processes do."""
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.aclose)


async def collect(stream: MessageStream, count: int) -> list[bytes]:
    """This many messages."""
    messages: list[bytes] = []
    while len(messages) < count:
        messages += await stream.receive_batch()
    return messages


def fill(stream: MessageStream, message: bytes = b"x" * 10_000) -> int:
    """Send the same message until the stream has to keep some of it; returns how often it was sent."""
    sent = 0
    while not stream.pending_bytes:
        stream.send_nowait([message])
        sent += 1
    return sent
