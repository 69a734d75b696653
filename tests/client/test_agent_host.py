"""The laptop's port for windows of VS Code: through real gateways, from a window's handshake to its end."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.uri import WebSocketURI

from acp_gateway.client.agent_host import host_of, listen, serve_windows, url_of
from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports.forwarding import at_node, port_of
from acp_gateway.config.addresses import parse_target
from acp_gateway.errors import CannotListen, UsageError
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import closed_on_error
from acp_gateway.transports.websocket.client import UpgradeRefused, connect_websocket
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream
from tests.kit.machines import SIZE, control, node_config, save_token, two_nodes_and_a_front
from tests.kit.serving import serving

INITIALIZE = {
    "channel": "ahp-root://",
    "protocolVersions": ["1.0.0", "0.9.0"],
    "clientId": "c1",
    "initialSubscriptions": ["ahp-root://"],
}


def destination(url: str, token_file: Path, **more: Any) -> Destination:
    return host_of(control(url, token_file, control=False, **more))


class Port:
    """The port of this machine, what it has reported, and what it is asked for."""

    def __init__(self, listener: trio.SocketListener, reports: list[str]) -> None:
        self.reports = reports
        self._port = port_of(listener)
        self._query = url_of(listener, "s3cret").partition("?")[2]

    @asynccontextmanager
    async def window(self, query: str | None = None, **headers: str) -> AsyncIterator[WebSocketStream]:
        """A window that has connected."""
        uri = WebSocketURI(False, "127.0.0.1", self._port, "/", self._query if query is None else query)
        stream = await connect_tcp("127.0.0.1", self._port)
        async with closed_on_error(stream):
            websocket = await connect_websocket(stream, uri, headers, max_message_size=SIZE, timing=Timing())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(websocket.run)
            yield websocket
            await websocket.aclose()
            nursery.cancel_scope.cancel()

    async def refused(self, query: str | None = None) -> UpgradeRefused:
        """The refusal of a window."""
        with pytest.raises(UpgradeRefused) as caught:
            async with self.window(query):
                pass
        return caught.value


@asynccontextmanager
async def listening(place: Callable[[], Destination]) -> AsyncIterator[Port]:
    reports: list[str] = []
    async with trio.open_nursery() as nursery, await listen(0, "box") as listener:
        nursery.start_soon(serve_windows, listener, place, "s3cret", reports.append)
        with trio.fail_after(30):
            yield Port(listener, reports)
        nursery.cancel_scope.cancel()


async def ask(window: WebSocketStream, number: int, method: str, params: dict[str, Any]) -> Any:
    await window.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
    while True:
        answer = json.loads(await window.receive())
        if answer.get("id") == number:
            return answer["result"]


async def greet(window: WebSocketStream) -> None:
    """Check that there is an agent host at the other end."""
    assert (await ask(window, 1, "initialize", INITIALIZE))["serverInfo"]["name"] == "acp-gateway"
    assert await ask(window, 2, "ping", {"channel": "ahp-root://"}) is None


async def test_a_window_with_the_token_of_the_port_reaches_the_gateway_with_that_of_the_laptop(tmp_path: Path) -> None:
    async with serving(node_config(tmp_path / "box")) as (url,):
        place = destination(url, tmp_path / "box/node.token")
        async with listening(lambda: place) as port:
            # The renderer of VS Code has an origin, and offers an extension that is not taken.
            async with port.window(Origin="vscode-file://vscode-app") as window:
                await greet(window)
            for query in ("", "tkn=", "tkn=S3cret", "tkn=s3cret&tkn=s3cret", "TKN=s3cret"):
                error = await port.refused(query)
                assert (error.status, "each start prints another one" in error.text) == (403, True), query
        assert port.reports == []


async def test_a_window_reaches_nodes_through_their_door(tmp_path: Path) -> None:
    async with two_nodes_and_a_front(tmp_path) as (_, websocket):
        save_token(tmp_path / "front", "token")
        door = control(websocket, tmp_path / "front/token", control=False)
        for place in (host_of(at_node(door, "gpu1")), host_of(replace(door, agent="gpu2/memory"))):
            async with listening(partial(copy, place)) as port, port.window() as window:
                await greet(window)


async def test_the_end_of_the_connection_to_the_gateway_ends_that_of_the_window(tmp_path: Path) -> None:
    config = node_config(tmp_path / "box")
    place: list[Destination] = []
    async with listening(lambda: place[-1]) as port:
        async with serving(config) as (url,):
            place.append(destination(url, tmp_path / "box/node.token"))
            async with port.window() as window:
                await greet(window)
                store = TokenStore(tmp_path / "box")
                store.revoke(store.tokens()[0].id)
                with trio.fail_after(2):
                    async for _ in window:
                        pass  # What it is told besides.
                assert (window.close_code, window.close_text[:17]) == (1001, "the connection to")
            # It goes on dialling, and a person sees why.
            assert (await port.refused()).status == 401
        assert (await port.refused()).status == 503
        assert "no valid token" in port.reports[0]
        # After the repair, the same port works.
        save_token(tmp_path / "box")
        async with serving(config) as (url,):
            place.append(destination(url, tmp_path / "box/node.token"))
            async with port.window() as window:
                await greet(window)


async def test_an_agent_host_is_reached_over_websockets_beside_the_endpoint() -> None:
    door = Destination(parse_target("wss://box/here/acp"), None, None, None, None, SIZE)
    place = host_of(replace(door, others=(parse_target("ssh://box"), parse_target("ws://127.0.0.1:80"))))
    assert [each.path for each in place.addresses] == ["/here/ahp", "/ahp"]
    assert [each.path for each in host_of(at_node(door, "gpu2")).addresses] == ["/here/nodes/gpu2/ahp"]
    with pytest.raises(UsageError, match="an agent host is reached over wss:// or ws:// only"):
        host_of(replace(door, address=parse_target("ssh://box")))


async def test_a_port_that_is_taken_is_told_with_the_next_command() -> None:
    async with await listen(0, "box") as listener:
        with pytest.raises(CannotListen, match="`acp-gateway connect box --ahp --port 0` takes a free one"):
            await listen(port_of(listener), "box")


async def test_an_older_gateway_is_named_as_such(tmp_path: Path) -> None:
    config = node_config(tmp_path / "box")
    config = replace(config, listen=(replace(config.listen[0], serves=("acp",)),))
    async with serving(config) as (url,):
        place = destination(url, tmp_path / "box/node.token")
        async with listening(lambda: place) as port:
            assert (await port.refused()).status == 503
        assert "/ahp" in port.reports[0]
