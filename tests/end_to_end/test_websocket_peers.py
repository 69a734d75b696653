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
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from tests.end_to_end.running import RunningGateway, run_program

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
            said = json.loads(await websocket.get_message())["result"]["line"]
            assert json.loads(said)["params"]["text"] == text


async def test_the_token_may_stand_among_the_subprotocols_and_is_not_echoed(gateway: RunningGateway) -> None:
    with trio.fail_after(60):
        async with connected(endpoint(gateway), subprotocols=["acp.v1", f"acp.bearer.{gateway.token}"]) as websocket:
            assert websocket.subprotocol == "acp.v1"
            await websocket.send_message(INITIALIZE)
            assert "result" in json.loads(await websocket.get_message())


async def test_every_connection_gets_an_id_of_its_own(gateway: RunningGateway) -> None:
    ids = set()
    with trio.fail_after(60):
        for _ in range(3):
            async with connected(endpoint(gateway), extra_headers=bearer(gateway.token)) as websocket:
                headers = {name.lower(): value for name, value in websocket.handshake_headers}
                ids.add(headers[b"acp-connection-id"])
    assert len(ids) == 3


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


def test_upgrades_are_refused_for_what_is_wrong_with_them(gateway: RunningGateway) -> None:
    url, token = endpoint(gateway), gateway.token
    right = ("Authorization", f"Bearer {token}")
    assert status_of(url, []) == 401
    assert status_of(url, [("Authorization", "Bearer")]) == 401
    assert status_of(url, [("Authorization", "Bearer ")]) == 401
    assert status_of(url, [("Authorization", f"Basic {token}")]) == 401
    assert status_of(url, [("Authorization", f"Bearer {token[:-1]}_")]) == 401
    assert status_of(f"{url}&token={token}", []) == 401
    assert status_of(url, [right, right]) == 400
    assert status_of(url, [right, ("Origin", "http://localhost:3000")]) == 403
    assert status_of(url, [right, ("Sec-WebSocket-Protocol", "something.else")]) == 400
    assert status_of(url, [("Sec-WebSocket-Protocol", f"acp.bearer.{token}")]) == 401
    assert status_of(endpoint(gateway, agent="unknown"), [right]) == 404
    assert status_of(url.replace("/acp", "/other"), [right]) == 404
    assert status_of(url, [right]) == 101


async def test_a_token_for_one_agent_does_not_open_another(gateway: RunningGateway) -> None:
    token = run_program(
        *("token", "create", "--config", gateway.config, "--label", "narrow", "--identity", "bo", "--agent", "raw")
    ).strip()
    assert status_of(endpoint(gateway, agent="sdk"), [("Authorization", f"Bearer {token}")]) == 403
    with trio.fail_after(60):
        async with connected(gateway.urls["ws"], extra_headers=bearer(token)) as websocket:
            await websocket.send_message(INITIALIZE)
            assert "line" in json.loads(await websocket.get_message())["result"]


async def test_a_revoked_token_closes_the_connection_that_uses_it(gateway: RunningGateway) -> None:
    token = run_program("token", "create", "--config", gateway.config, "--label", "to be revoked").strip()
    rows = run_program("token", "list", "--plain", "--config", gateway.config).splitlines()
    (token_id,) = [row.split()[0] for row in rows if "to be revoked" in row]
    with trio.fail_after(60):
        async with connected(endpoint(gateway), extra_headers=bearer(token)) as websocket:
            await websocket.send_message(INITIALIZE)
            await websocket.get_message()
            await trio.to_thread.run_sync(run_program, "token", "revoke", token_id, "--config", str(gateway.config))
            with pytest.raises(ConnectionClosed) as caught:
                await websocket.get_message()
    assert caught.value.reason is not None
    assert caught.value.reason.code == 1008
    assert status_of(endpoint(gateway), [("Authorization", f"Bearer {token}")]) == 401


async def test_binary_messages_are_ignored(gateway: RunningGateway) -> None:
    with trio.fail_after(60):
        async with connected(endpoint(gateway), extra_headers=bearer(gateway.token)) as websocket:
            await websocket.send_message(b"\x00\xff")
            await websocket.send_message(INITIALIZE)
            assert json.loads(await websocket.get_message())["id"] == 0


def test_healthz_answers_without_a_token_and_any_other_path_is_404(gateway: RunningGateway) -> None:
    place = urlsplit(gateway.urls["ws"])
    answers = {}
    for path in ("/healthz", "/", "/acp/", "/metrics"):
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        connection.request("GET", path)
        answers[path] = connection.getresponse().status
        connection.close()
    assert answers == {"/healthz": 200, "/": 200, "/acp/": 404, "/metrics": 404}


def test_the_library_under_test_is_not_the_one_that_tests() -> None:
    assert "websockets" not in (trio_websocket.__file__ or "")
