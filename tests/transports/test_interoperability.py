"""Our two ends of a WebSocket against those of others: `websockets` with Trio and with threads, and `trio-websocket`.

Over real TCP on loopback, and over memory where time plays a part.
"""

import math
import socket
import ssl
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
import trio_websocket
import websockets.sync.client
import websockets.sync.server
import websockets.trio.client
import websockets.trio.server
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.uri import WebSocketURI

from acp_gateway.transports.http.server import Request
from acp_gateway.transports.sockets import SocketBytes, connect_tcp, start_tls, take_socket
from acp_gateway.transports.streams import ByteStream, CloseReason, TrioBytes
from acp_gateway.transports.websocket.client import UpgradeRefused, connect_websocket
from acp_gateway.transports.websocket.frames import FRAME_SIZE
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream
from tests.kit.accepting import Accept, Respond, accept_websocket
from tests.kit.wires import MIB, NEVER, URI, accept_all, close_at_once
from tests.transports.conftest import Tls

LIMIT = 32 * MIB

SIZES = [0, 1, 125, 126, 65_535, 65_536, MIB, FRAME_SIZE + 1]

QUIET: dict[str, Any] = {"ping_interval": None, "ping_timeout": None, "open_timeout": None, "close_timeout": None}
"""Settings that keep `websockets` from depending on time."""


# Theirs


class Theirs(ABC):
    """A connection of another library."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @abstractmethod
    async def send(self, message: str | bytes) -> None: ...

    @abstractmethod
    async def receive(self) -> str: ...

    @abstractmethod
    async def close(self, code: int, reason: str) -> None: ...

    @abstractmethod
    async def closed(self) -> tuple[int, str]:
        """Receive up to the goodbye and return its code and reason."""

    @abstractmethod
    async def ping(self) -> None:
        """Ping and wait for the pong."""


class WithTrio(Theirs):
    """`websockets.trio`."""

    async def send(self, message: str | bytes) -> None:
        await self.connection.send(message)

    async def receive(self) -> str:
        text: str = await self.connection.recv()
        return text

    async def close(self, code: int, reason: str) -> None:
        await self.connection.aclose(code, reason)

    async def closed(self) -> tuple[int, str]:
        with pytest.raises(ConnectionClosed):
            await self.connection.recv()
        return self.connection.close_code, self.connection.close_reason

    async def ping(self) -> None:
        await (await self.connection.ping()).wait()


class WithThreads(Theirs):
    """`websockets.sync`."""

    async def send(self, message: str | bytes) -> None:
        await trio.to_thread.run_sync(self.connection.send, message)

    async def receive(self) -> str:
        text: str = await trio.to_thread.run_sync(self.connection.recv)
        return text

    async def close(self, code: int, reason: str) -> None:
        await trio.to_thread.run_sync(self.connection.close, code, reason)

    async def closed(self) -> tuple[int, str]:
        with pytest.raises(ConnectionClosed):
            await self.receive()
        return self.connection.close_code, self.connection.close_reason

    async def ping(self) -> None:
        await trio.to_thread.run_sync(self.connection.ping().wait)


class TrioWebsocket(Theirs):
    """`trio_websocket`."""

    async def send(self, message: str | bytes) -> None:
        await self.connection.send_message(message)

    async def receive(self) -> str:
        text: str = await self.connection.get_message()
        return text

    async def close(self, code: int, reason: str) -> None:
        await self.connection.aclose(code, reason)

    async def closed(self) -> tuple[int, str]:
        with pytest.raises(trio_websocket.ConnectionClosed) as closed:
            await self.connection.get_message()
        assert closed.value.reason is not None
        return closed.value.reason.code, closed.value.reason.reason or ""

    async def ping(self) -> None:
        await self.connection.ping()


@asynccontextmanager
async def in_threads(open_manager: Callable[[], Any]) -> AsyncIterator[Any]:
    """Enter and leave a context manager that blocks."""
    manager = await trio.to_thread.run_sync(open_manager)
    entered = await trio.to_thread.run_sync(manager.__enter__)
    try:
        yield entered
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(manager.__exit__, None, None, None)


# Their clients, connected to a port


@asynccontextmanager
async def client_with_trio(port: int, context: ssl.SSLContext | None, **options: Any) -> AsyncIterator[Theirs]:
    async with websockets.trio.client.connect(
        f"{'wss' if context else 'ws'}://localhost:{port}/acp",
        stream=await trio.open_tcp_stream("127.0.0.1", port),
        ssl=context,
        max_size=LIMIT,
        proxy=None,
        **QUIET,
        **options,
    ) as connection:
        yield WithTrio(connection)


@asynccontextmanager
async def client_with_threads(port: int, context: ssl.SSLContext | None, **options: Any) -> AsyncIterator[Theirs]:
    connect = partial(
        websockets.sync.client.connect,
        f"{'wss' if context else 'ws'}://localhost:{port}/acp",
        sock=socket.create_connection(("127.0.0.1", port)),
        ssl=context,
        max_size=LIMIT,
        proxy=None,
        **QUIET,
        **options,
    )
    async with in_threads(connect) as connection:
        yield WithThreads(connection)


@asynccontextmanager
async def client_of_trio_websocket(port: int, context: ssl.SSLContext | None, **options: Any) -> AsyncIterator[Theirs]:
    stream: Any = await trio.open_tcp_stream("127.0.0.1", port)
    if context is not None:
        stream = trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)
    async with trio.open_nursery() as nursery:
        try:
            connection = await trio_websocket.wrap_client_stream(
                nursery, stream, "localhost", "/acp", max_message_size=LIMIT, **options
            )
            yield TrioWebsocket(connection)
            await connection.aclose()
        finally:
            # It leaves a stream open that the server closes first.
            await trio.aclose_forcefully(stream)


Client = Callable[..., AbstractAsyncContextManager[Theirs]]

CLIENTS: list[Client] = [client_with_trio, client_with_threads, client_of_trio_websocket]


@asynccontextmanager
async def our_server(
    context: ssl.SSLContext | None,
    serve: Callable[[WebSocketStream], Awaitable[None]],
    *,
    decide: Callable[[Request], Accept | Respond] = accept_all,
    max_message_size: int = LIMIT,
) -> AsyncIterator[int]:
    """Our server on a port of loopback; what it accepts goes to `serve`."""

    async def handle(stream: trio.SocketStream) -> None:
        sock = take_socket(stream)
        end = SocketBytes(sock) if context is None else await start_tls(sock, context, server_side=True)
        websocket = await accept_websocket(end, decide, max_message_size=max_message_size, timing=NEVER)
        if websocket is not None:
            await serve(websocket)

    async with trio.open_nursery() as handlers, trio.open_nursery() as nursery:
        serve_tcp = partial(trio.serve_tcp, host="127.0.0.1", handler_nursery=handlers)
        (listener,) = await nursery.start(serve_tcp, handle, 0)
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def echo(stream: WebSocketStream) -> None:
    """Send everything back, up to the end."""
    async for batch in stream:
        await stream.send_batch(batch)
    await stream.aclose()


# Their servers, on a port


Handler = Callable[[Theirs], Awaitable[None]]


@asynccontextmanager
async def server_with_trio(context: ssl.SSLContext | None, handle: Handler) -> AsyncIterator[int]:
    async def serve(connection: Any) -> None:
        await handle(WithTrio(connection))

    async with trio.open_nursery() as nursery:
        server = await nursery.start(
            partial(websockets.trio.server.serve, serve, 0, host="127.0.0.1", ssl=context, max_size=LIMIT, **QUIET)
        )
        yield server.listeners[0].socket.getsockname()[1]
        await server.aclose()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def server_with_threads(context: ssl.SSLContext | None, handle: Handler) -> AsyncIterator[int]:
    token = trio.lowlevel.current_trio_token()

    def serve(connection: Any) -> None:
        trio.from_thread.run(handle, WithThreads(connection), trio_token=token)

    listener = socket.create_server(("127.0.0.1", 0))
    server = websockets.sync.server.serve(serve, sock=listener, ssl=context, max_size=LIMIT, **QUIET)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.socket.getsockname()[1]
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.shutdown)
            await trio.to_thread.run_sync(thread.join)


@asynccontextmanager
async def server_of_trio_websocket(context: ssl.SSLContext | None, handle: Handler) -> AsyncIterator[int]:
    async def serve(request: Any) -> None:
        connection = await request.accept()
        await handle(TrioWebsocket(connection))
        await connection.aclose()

    async with trio.open_nursery() as nursery:
        server = await nursery.start(
            partial(trio_websocket.serve_websocket, serve, "127.0.0.1", 0, context, max_message_size=LIMIT)
        )
        yield server.port
        nursery.cancel_scope.cancel()


Server = Callable[[ssl.SSLContext | None, Handler], AbstractAsyncContextManager[int]]

SERVERS: list[Server] = [server_with_trio, server_with_threads, server_of_trio_websocket]


@asynccontextmanager
async def our_client(port: int, context: ssl.SSLContext | None) -> AsyncIterator[WebSocketStream]:
    """Our client, connected to a port."""
    end = await connect_tcp("127.0.0.1", port)
    if context is not None:
        end = await start_tls(end._sock, context, server_hostname="localhost")
    stream: ByteStream | WebSocketStream = end
    try:
        uri = WebSocketURI(context is not None, "localhost", port, "/acp", "")
        stream = await connect_websocket(end, uri, {}, max_message_size=LIMIT, timing=NEVER)
        yield stream
    finally:
        await close_at_once(stream)


Contexts = tuple[ssl.SSLContext | None, ssl.SSLContext | None]


@pytest.fixture(params=["plain", "tls"])
def contexts(request: pytest.FixtureRequest, tls: Tls) -> Contexts:
    """The server's and the client's."""
    peers = {request.node.callspec.params.get(role) for role in ("client", "server")}
    if request.param == "tls" and sys.version_info < (3, 13) and peers & {client_with_threads, server_with_threads}:
        pytest.skip("before Python 3.13 a thread may not read a TLS connection while another one writes to it")
    return (tls.server, tls.client) if request.param == "tls" else (None, None)


their_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
their_server = pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.__name__)


def text_of(size: int) -> str:
    """A text of so many bytes, with characters of several."""
    return ("é😀\u2028x" * (size // 10 + 1)).encode()[:size].decode(errors="ignore")


# Their clients and our server


@their_client
async def test_their_client_gets_back_what_it_sends(contexts: Contexts, client: Client) -> None:
    async with our_server(contexts[0], echo) as port, client(port, contexts[1]) as theirs:
        for size in SIZES if contexts[0] is None else SIZES[:-1]:
            await theirs.send(text_of(size))
            assert await theirs.receive() == text_of(size)


@their_client
async def test_their_client_gets_a_row_of_messages_in_order(client: Client) -> None:
    async def count(stream: WebSocketStream) -> None:
        stream.send_nowait([b"%d" % number for number in range(1000)])
        await echo(stream)

    async with our_server(None, count) as port, client(port, None) as theirs:
        assert [await theirs.receive() for _ in range(1000)] == [str(number) for number in range(1000)]


@their_client
async def test_binary_messages_of_their_client_are_ignored(client: Client) -> None:
    async with our_server(None, echo) as port, client(port, None) as theirs:
        await theirs.send(b"\xff" * 100_000)
        await theirs.send("text")
        assert await theirs.receive() == "text"


@their_client
async def test_our_server_learns_why_their_client_closes(contexts: Contexts, client: Client) -> None:
    ends: list[tuple[int | None, str]] = []

    async def serve(stream: WebSocketStream) -> None:
        await echo(stream)
        ends.append((stream.close_code, stream.close_text))

    async with our_server(contexts[0], serve) as port, client(port, contexts[1]) as theirs:
        await theirs.close(4000, "I've had enough")
    assert ends == [(4000, "I've had enough")]


@their_client
async def test_their_client_learns_why_our_server_closes(contexts: Contexts, client: Client) -> None:
    async def serve(stream: WebSocketStream) -> None:
        stream.send_nowait([b"last words"])
        await stream.aclose(CloseReason.AGENT_GONE, "the agent has ended")

    async with our_server(contexts[0], serve) as port, client(port, contexts[1]) as theirs:
        assert await theirs.receive() == "last words"
        assert await theirs.closed() == (1011, "the agent has ended")


@their_client
async def test_their_client_gets_the_error_for_a_message_that_is_too_large(client: Client) -> None:
    async def serve(stream: WebSocketStream) -> None:
        with pytest.raises(trio.BrokenResourceError, match="max_message_size"):
            await echo(stream)
        await stream.aclose()

    async with our_server(None, serve, max_message_size=1000) as port, client(port, None) as theirs:
        await theirs.send("x" * 1001)
        code, reason = await theirs.closed()
    assert code == 1009
    assert reason == "a message is larger than max_message_size (1000 bytes) allows"


@their_client
async def test_their_client_gets_its_pongs(client: Client) -> None:
    async with our_server(None, echo) as port, client(port, None) as theirs:
        await theirs.ping()


@pytest.mark.parametrize("client", [client_with_trio, client_with_threads])
async def test_their_fragments_become_one_message(client: Client) -> None:
    async with our_server(None, echo) as port, client(port, None) as theirs:
        pieces: Any = iter(["one, ", "", "two, ", "é" * 100_000])
        if isinstance(theirs, WithTrio):

            async def fragments() -> AsyncIterator[str]:
                for piece in pieces:
                    yield piece

            await theirs.connection.send(fragments())
        else:
            await theirs.send(pieces)
        assert await theirs.receive() == "one, two, " + "é" * 100_000


@their_client
async def test_their_client_chooses_our_subprotocol(client: Client) -> None:
    options = {"subprotocols": ["acp.v1", "acp.bearer.t"]}
    async with our_server(None, echo) as port, client(port, None, **options) as theirs:
        assert theirs.connection.subprotocol == "acp.v1"


@pytest.mark.parametrize("client", [client_with_trio, client_with_threads])
async def test_their_client_gets_the_status_of_a_refusal(client: Client) -> None:
    def decide(request: Request) -> Respond:
        return Respond(401, "a token is needed")

    async with our_server(None, echo, decide=decide) as port:
        with pytest.raises(InvalidStatus) as refused:
            async with client(port, None):
                pass
    assert refused.value.response.status_code == 401
    assert refused.value.response.body == b"a token is needed\n"


# Their servers and our client


async def echo_theirs(theirs: Theirs) -> None:
    """Send everything back, up to the end."""
    try:
        while True:
            await theirs.send(await theirs.receive())
    except (ConnectionClosed, trio_websocket.ConnectionClosed):
        pass


@their_server
async def test_our_client_gets_back_what_it_sends(contexts: Contexts, server: Server) -> None:
    async with server(contexts[0], echo_theirs) as port, our_client(port, contexts[1]) as ours:
        for size in SIZES if contexts[0] is None else SIZES[:-1]:
            message = text_of(size).encode()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.send, message)
                assert await ours.receive() == message
        await ours.aclose()


@their_server
async def test_their_server_learns_why_our_client_closes(contexts: Contexts, server: Server) -> None:
    ends: list[tuple[int, str]] = []

    async def handle(theirs: Theirs) -> None:
        assert await theirs.receive() == "last words"
        ends.append(await theirs.closed())

    async with server(contexts[0], handle) as port, our_client(port, contexts[1]) as ours:
        ours.send_nowait([b"last words"])
        await ours.aclose(CloseReason.GOING_AWAY, "the editor is gone")
    assert ends == [(1001, "the editor is gone")]


@their_server
async def test_our_client_learns_why_their_server_closes(contexts: Contexts, server: Server) -> None:
    async def handle(theirs: Theirs) -> None:
        await theirs.send("last words")
        await theirs.close(1011, "the agent has ended")

    async with server(contexts[0], handle) as port, our_client(port, contexts[1]) as ours:
        assert [message async for batch in ours for message in batch] == [b"last words"]
        assert (ours.close_code, ours.close_text) == (1011, "the agent has ended")
        await ours.aclose()


@their_server
async def test_their_server_gets_its_pongs(server: Server) -> None:
    async def handle(theirs: Theirs) -> None:
        await theirs.ping()
        await theirs.send("ponged")

    async with server(None, handle) as port, our_client(port, None) as ours:
        assert [message async for batch in ours for message in batch] == [b"ponged"]
        await ours.aclose()


async def test_our_client_gets_the_status_of_a_refusal() -> None:
    async def refuse(connection: Any, request: Any) -> Any:
        return connection.respond(403, "not you\n")

    async def never(connection: Any) -> None:
        raise AssertionError

    async with trio.open_nursery() as nursery:
        server = await nursery.start(
            partial(websockets.trio.server.serve, never, 0, host="127.0.0.1", process_request=refuse, **QUIET)
        )
        with pytest.raises(UpgradeRefused, match="HTTP 403 instead of opening a WebSocket: not you"):
            async with our_client(server.listeners[0].socket.getsockname()[1], None):
                pass
        await server.aclose()
        nursery.cancel_scope.cancel()


# Time, over memory


async def test_their_client_answers_our_servers_pings(autojump_clock: trio.testing.MockClock) -> None:
    here, there = trio.testing.memory_stream_pair()
    timing = Timing(ping_interval=20, ping_timeout=20, stall_timeout=math.inf)

    async def serve() -> None:
        stream = await accept_websocket(TrioBytes(there), accept_all, max_message_size=MIB, timing=timing)
        assert stream is not None
        async with trio.open_nursery() as running:
            running.start_soon(stream.run)
            async for batch in stream:
                stream.send_nowait(batch)
            running.cancel_scope.cancel()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        stream: Any = here
        theirs = TrioWebsocket(await trio_websocket.wrap_client_stream(nursery, stream, "localhost", "/acp"))
        await trio.sleep(1000)
        await theirs.send("still there?")
        assert await theirs.receive() == "still there?"
        await theirs.close(1000, "")


async def test_their_server_answers_our_clients_pings(autojump_clock: trio.testing.MockClock) -> None:
    here, there = trio.testing.memory_stream_pair()
    timing = Timing(ping_interval=20, ping_timeout=20, stall_timeout=math.inf)

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            connection = await (await trio_websocket.wrap_server_stream(nursery, there)).accept()
            await echo_theirs(TrioWebsocket(connection))
            await connection.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        ours = await connect_websocket(TrioBytes(here), URI, {}, max_message_size=MIB, timing=timing)
        async with trio.open_nursery() as running:
            running.start_soon(ours.run)
            with trio.move_on_after(1000):
                await ours.receive()
            ours.send_nowait([b"still there?"])
            assert await ours.receive() == b"still there?"
            running.cancel_scope.cancel()
        await ours.aclose()
