"""A TCP proxy that cuts event streams, and WebSockets, when a test says so."""

import re

import trio

from tests.end_to_end.faulty_proxy import reset

PIECE = 65536

_STREAM = re.compile(rb"GET /acp\S* HTTP/1\.1\r\n")
_SESSION = re.compile(rb"(?i)\r\nacp-session-id: *([^\r\n]+)\r\n")


class CuttingProxy:
    """A proxy in front of a port of loopback; `run` runs it."""

    def __init__(self, port: int) -> None:
        self.port = 0
        """Its address, while it runs."""
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
        async with (
            client,
            await trio.open_tcp_stream("127.0.0.1", self._gateway) as gateway,
            trio.open_nursery() as nursery,
        ):
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
