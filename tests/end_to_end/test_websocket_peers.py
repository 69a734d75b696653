"""An independent WebSocket implementation, straight to the gateway: the upgrade and everything around it."""

import http.client
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
import trio_websocket
from trio_websocket import WebSocketConnection, open_websocket_url

from tests.kit.running import RunningGateway

INITIALIZE = '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'


UPGRADE = (
    *(("Connection", "Upgrade"), ("Upgrade", "websocket")),
    *(("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")),
)


def endpoint(gateway: RunningGateway, transport: str = "ws", *, agent: str = "raw") -> str:
    return f"{gateway.urls[transport]}?agent={agent}"


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"Authorization", b"Bearer " + token.encode())]


def trusting(gateway: RunningGateway) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=gateway.directory / "cert.pem")


@pytest.mark.parametrize("transport", ["ws", "wss"])
async def test_trio_websocket_talks_to_an_agent(gateway: RunningGateway, transport: str) -> None:
    context = trusting(gateway) if transport == "wss" else None
    with trio.fail_after(60):
        async with connected(
            endpoint(gateway, transport), ssl_context=context, extra_headers=bearer(gateway.token)
        ) as websocket:
            await websocket.send_message(INITIALIZE)
            assert json.loads(await websocket.get_message())["id"] == 0
            text = "é\u2028" * 10_000
            line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "raw/echo", "params": {"text": text}})
            await websocket.send_message(line)
            assert json.loads(json.loads(await websocket.get_message())["result"]["line"])["params"]["text"] == text


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[WebSocketConnection]:
    async with open_websocket_url(url, **options) as websocket:
        try:
            yield websocket
        finally:
            # The library leaves the socket open where the server has closed the connection.
            await websocket.aclose()
            await websocket._stream.aclose()


def status_of(url: str, headers: list[tuple[str, str]]) -> int:
    """The HTTP status of an upgrade."""
    place = urlsplit(url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    try:
        connection.putrequest("GET", f"{place.path}?{place.query}")
        for name, value in [*UPGRADE, *headers]:
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_library_under_test_is_not_the_one_that_tests() -> None:
    assert "websockets" not in (trio_websocket.__file__ or "")
