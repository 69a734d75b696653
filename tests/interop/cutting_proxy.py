"""A TCP proxy that cuts event streams, and WebSockets, when a test says so."""

import queue
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import trio

from tests.kit.faulty_proxy import reset

PIECE = 65536

_STREAM = re.compile(rb"GET /(?:acp|ahp)\S* HTTP/1\.1\r\n")
_SESSION = re.compile(rb"(?i)\r\nacp-session-id: *([^\r\n]+)\r\n")


class CuttingProxy:
    """A proxy in front of a port of loopback; `run` runs it."""

    def __init__(self, port: int) -> None:
        self.port = 0
        """Its address, while it runs."""
        self.refuses = False
        """True while it resets new connections."""
        self._gateway = port
        # What is being read over connections: a session's stream by its name, the connection's or a WebSocket by "".
        self._streams: dict[trio.SocketStream, tuple[str, trio.SocketStream]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, [listener])

    def cut(self, stream: str = "") -> None:
        """Reset the connection of a session's stream; without a name that of the connection's stream or WebSocket.

        The side of the gateway is closed in due form, which confirms all that was relayed: it can go on behind that.
        """
        found = [client for client, (name, _) in self._streams.items() if name == stream]
        assert found, self._streams
        for client in found:
            _, gateway = self._streams.pop(client)
            reset(client)
            gateway.socket.close()

    async def _serve(self, client: trio.SocketStream) -> None:
        if self.refuses:
            reset(client)
            return
        try:
            gateway = await trio.open_tcp_stream("127.0.0.1", self._gateway)
        except OSError:
            # The gateway is stopped.
            reset(client)
            return
        async with client, gateway, trio.open_nursery() as nursery:
            nursery.start_soon(self._relay, client, gateway, nursery.cancel_scope)
            nursery.start_soon(self._relay, gateway, client, nursery.cancel_scope)
        self._streams.pop(client, None)

    async def _relay(self, source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some(PIECE):
                if _STREAM.match(data):
                    found = _SESSION.search(data)
                    self._streams[source] = (found[1].decode() if found else "", sink)
                await sink.send_all(data)
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            both.cancel()


class Line:
    """The way of a laptop to its gateway, through a proxy in another thread."""

    def __init__(self, proxy: CuttingProxy, token: trio.lowlevel.TrioToken) -> None:
        self._proxy = proxy
        self._token = token

    @property
    def port(self) -> int:
        return self._proxy.port

    def cut(self) -> None:
        """Reset the connection, and each further one until `mend`."""
        self._proxy.refuses = True
        trio.from_thread.run_sync(self._proxy.cut, trio_token=self._token)

    def mend(self) -> None:
        """Let connections through again."""
        self._proxy.refuses = False


@contextmanager
def open_line(port: int) -> Iterator[Line]:
    """Run a proxy in front of a port of loopback until the block ends."""
    ready = queue.SimpleQueue[tuple[Line, trio.CancelScope]]()

    async def run() -> None:
        proxy = CuttingProxy(port)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.run)
            ready.put((Line(proxy, trio.lowlevel.current_trio_token()), nursery.cancel_scope))

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(trio.run, run)
        line, scope = ready.get(timeout=60)
        try:
            yield line
        finally:
            line._token.run_sync_soon(scope.cancel)
            done.result()
