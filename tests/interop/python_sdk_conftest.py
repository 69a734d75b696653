"""Takes the place of `tests/http/conftest.py` in the Python SDK's own tests: they meet a real gateway.

The tests make an agent and a server of the SDK's for it. Here the server is the gateway at `GATEWAY_URL`, by the token
in `GATEWAY_TOKEN`: `AcpServer` sends requests, the ASGI app is an address. The agent is the tests' own all the same:
the gateway starts a relay to the unix socket `AGENT_SOCKET`, where this module serves it.

Tests that need no server, or look into the SDK's, are skipped; those where the gateway answers differently on purpose
must fail. A test that is in no list is an error: a new version of the SDK has brought it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import acp.http.asgi
import acp.http.client
import acp.http.server
import acp.ws.client
import acp.ws.server
import httpx
import pytest
from acp.core import AgentSideConnection
from websockets.asyncio.client import connect

URL = os.environ["GATEWAY_URL"]
HEADERS = {"Authorization": f"Bearer {os.environ['GATEWAY_TOKEN']}"}
AGENT_SOCKET = os.environ["AGENT_SOCKET"]

PATIENCE = 5
"""Factor by which the tests' sleeps are longer: theirs are for a server in the same process."""

WITHOUT_SERVER = ("test_cookies.py", "test_http_client.py", "test_protocol.py", "test_sse.py", "test_ws_cookies.py")
"""Files that test the SDK's client and its helpers."""

SKIPPED = {
    "test_client_transport_send_receive_text_frames": "tests the client",
    "test_client_transport_receive_returns_none_on_close": "tests the client",
    "test_client_transport_ignores_binary_frames": "tests the client",
    "test_http_client_surfaces_eof_when_connection_stream_ends": "tests the client",
    "test_outbound_stream_does_not_drop_beyond_capacity": "tests a class of the SDK's server",
    "test_outbound_stream_push_blocks_when_full": "tests a class of the SDK's server",
    "test_open_stream_emits_keepalive_when_idle": "sets the interval of the SDK's server",
    "test_initialize_timeout_cleans_up_connection": "sets the timeout of the SDK's server",
}

DIFFERENT = {
    "test_session_scoped_missing_session_header_returns_400": "params.sessionId names the session as well",
    "test_get_validation_errors": "a session's stream may be opened before the session is known",
}

SAME = {
    "test_batch_returns_501",
    *("test_post_wrong_content_type_returns_415", "test_initialize_creates_connection_and_returns_id"),
    *("test_missing_connection_id_returns_400", "test_unknown_connection_id_returns_404"),
    *("test_session_new_result_on_connection_stream", "test_prompt_streams_notification_on_session_stream"),
    *("test_delete_terminates_connection", "test_delete_missing_connection_id_returns_400"),
    *("test_http_loopback_initialize_and_new_session", "test_http_loopback_prompt_streams_and_permission"),
    *("test_ws_loopback_prompt_streams_and_permission", "test_asgi_websocket_handshake_returns_connection_id"),
    "test_asgi_websocket_full_flow",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in WITHOUT_SERVER:
            item.add_marker(pytest.mark.skip(reason="tests the client"))
        elif item.name in SKIPPED:
            item.add_marker(pytest.mark.skip(reason=SKIPPED[item.name]))
        elif item.name in DIFFERENT:
            item.add_marker(pytest.mark.xfail(reason=DIFFERENT[item.name], strict=True))
        elif item.name not in SAME:
            raise pytest.UsageError(f"the test {item.name} is in no list")


@dataclass
class Result:
    """A response, as the SDK's server returns it."""

    status: int
    headers: httpx.Headers
    body: Any = None


class Gateway:
    """Takes the place of `acp.http.server.AcpServer`."""

    def __init__(self, agent_factory: Callable[[Any], Any]) -> None:
        self._agent_factory = agent_factory
        self._agents: asyncio.Server | None = None
        self._client = httpx.AsyncClient(headers=HEADERS, timeout=None)  # noqa: S113 # The tests' own timeouts hold.
        self._connections: list[str] = []

    async def start(self) -> None:
        """Serve the agent, if that is not done yet."""
        if self._agents is None:
            self._agents = await asyncio.start_unix_server(
                lambda reader, writer: AgentSideConnection(self._agent_factory, writer, reader) and None, AGENT_SOCKET
            )

    async def handle_post(
        self, message: Any, *, content_type: str | None, connection_id: str | None, session_id: str | None
    ) -> Result:
        await self.start()
        headers = _headers(connection_id, session_id) | ({} if content_type is None else {"Content-Type": content_type})
        content = httpx.Request("POST", URL, json=message).content
        response = await self._client.post(URL, content=content, headers=headers)
        if (connection := response.headers.get("Acp-Connection-Id")) is not None:
            self._connections.append(connection)
        is_json = response.headers.get("Content-Type") == "application/json"
        return Result(response.status_code, response.headers, response.json() if is_json else None)

    def validate_stream(self, *, connection_id: str | None, session_id: str | None) -> Result | None:
        headers = HEADERS | _headers(connection_id, session_id)
        with httpx.stream("GET", URL, headers=headers) as response:
            return None if response.status_code == 200 else Result(response.status_code, response.headers)

    async def open_stream(self, *, connection_id: str, session_id: str | None) -> AsyncIterator[bytes]:
        headers = _headers(connection_id, session_id)
        async with self._client.stream("GET", URL, headers=headers) as response:
            assert response.status_code == 200
            async for frame in response.aiter_bytes():
                yield frame

    async def handle_delete(self, *, connection_id: str | None) -> Result:
        response = await self._client.delete(URL, headers=_headers(connection_id, None))
        return Result(response.status_code, response.headers)

    async def close(self) -> None:
        for connection in self._connections:
            await self.handle_delete(connection_id=connection)
        await self._client.aclose()
        if self._agents is not None:
            self._agents.close()
            os.unlink(AGENT_SOCKET)


def _headers(connection_id: str | None, session_id: str | None) -> dict[str, str]:
    headers = {"Acp-Connection-Id": connection_id, "Acp-Session-Id": session_id}
    return {name: value for name, value in headers.items() if value is not None}


async def serve_websocket(server: Gateway, scope: Any, receive: Any, send: Any) -> None:
    """Take the place of `acp.ws.server.handle_asgi_websocket`: relay between ASGI's messages and the gateway."""
    await server.start()
    assert (await receive())["type"] == "websocket.connect"
    async with connect(URL.replace("http", "ws", 1), additional_headers=HEADERS) as websocket:
        assert websocket.response is not None
        headers = [(name.lower().encode(), value.encode()) for name, value in websocket.response.headers.raw_items()]
        await send({"type": "websocket.accept", "headers": headers})

        async def relay_from_gateway() -> None:
            async for text in websocket:
                await send({"type": "websocket.send", "text": text})

        relay = asyncio.create_task(relay_from_gateway())
        while (message := await receive())["type"] == "websocket.receive":
            await websocket.send(message["text"])
        relay.cancel()


@dataclass
class RunningServer:
    """A server, as the SDK's tests know it."""

    http_url: str = URL
    ws_url: str = URL.replace("http", "ws", 1)


@pytest.fixture
async def serve_asgi() -> AsyncIterator[Callable[[Gateway], Any]]:
    """Serve the agent of an app."""
    apps: list[Gateway] = []

    async def start(app: Gateway) -> RunningServer:
        apps.append(app)
        await app.start()
        return RunningServer()

    yield start
    for app in apps:
        await app.close()


_sleep = asyncio.sleep


async def sleep_longer(delay: float, result: Any = None) -> Any:
    return await _sleep(delay * PATIENCE, result)


# Before the tests' modules import them.
for _module, _name, _replacement in (
    (acp.http.server, "AcpServer", Gateway),
    (acp.http.asgi, "create_asgi_app", Gateway),
    (acp.ws.server, "handle_asgi_websocket", serve_websocket),
    (acp.http.client, "create_http_stream", partial(acp.http.client.create_http_stream, headers=HEADERS)),
    (acp.ws.client, "create_websocket_stream", partial(acp.ws.client.create_websocket_stream, headers=HEADERS)),
    (asyncio, "sleep", sleep_longer),
):
    setattr(_module, _name, _replacement)
