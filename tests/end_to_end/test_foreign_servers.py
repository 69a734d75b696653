"""The shim as the client of ACP servers other than gateways: the Python SDK's own, with a token of its form or none."""

import asyncio
import http
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import acp
import pytest
from acp.http.server import AcpServer
from acp.ws.server import handle_asgi_websocket
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.end_to_end.sdk_agent import DirectedAgent
from tests.end_to_end.test_sdk import RecordingClient
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK


@asynccontextmanager
async def sdk_server(token: str | None) -> AsyncIterator[str]:
    """Run the SDK's server, which accepts this token, or clients without one; yield its address."""
    server = AcpServer(cast("Any", lambda _: DirectedAgent()))

    async def check(connection: ServerConnection, request: Request) -> Response | None:
        shown = request.headers.get("Authorization")
        if shown != (None if token is None else f"Bearer {token}"):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "who are you?\n")
        return None

    async def run(connection: ServerConnection) -> None:
        messages: list[dict[str, Any]] = [{"type": "websocket.connect"}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            try:
                return {"type": "websocket.receive", "text": await connection.recv()}
            except ConnectionClosed:
                return {"type": "websocket.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "websocket.send":
                await connection.send(message["text"])

        await handle_asgi_websocket(server, {}, receive, send)

    async with serve(run, "127.0.0.1", 0, process_request=check) as listening:
        (sock,) = listening.sockets
        yield f"ws://127.0.0.1:{sock.getsockname()[1]}/acp"


def converse(tmp_path: Path, token: str | None, section: str, arguments: Sequence[str] = ("server",)) -> list[str]:
    """Have a conversation by `connect` with the server as `[hosts.server]` and more options; what the agent said."""
    client = RecordingClient()

    async def talk() -> None:
        async with asyncio.timeout(60), sdk_server(token) as url:
            folder = tmp_path / "acp-gateway"
            folder.mkdir()
            (folder / "hosts.toml").write_text(f'[hosts.server]\nurl = "{url}"\n{section}')
            command = [*PROGRAM, "connect", *(word.replace("URL", url) for word in arguments)]
            # Of a token for another gateway nothing may be said.
            environment = ENVIRONMENT | {"XDG_CONFIG_HOME": str(tmp_path)}
            async with acp.stdio.spawn_agent_process(cast("Any", client), *command, env=environment) as (
                connection,
                process,
            ):
                await connection.initialize(protocol_version=1)
                session = await connection.new_session(cwd=str(WORK), mcp_servers=[])
                for prompt in ("stream 100", "permission"):
                    await connection.prompt(prompt=[acp.text_block(prompt)], session_id=session.session_id)
            assert process.returncode == 0

    asyncio.run(talk())
    return client.chunks


SAID = [*map(str, range(100)), "yes"]


def test_an_sdks_server_is_used_with_a_token_of_its_own_form(tmp_path: Path) -> None:
    token = f"sk-{secrets.token_urlsafe(40)}=="
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{token}\n")
    assert converse(tmp_path, token, f'token_file = "{path}"\n') == SAID


@pytest.mark.parametrize(
    ("section", "arguments"), [('token = "none"\n', ["server"]), ("", ["server"]), ("", ["URL"])], ids=str
)
def test_an_sdks_server_is_used_without_a_token(tmp_path: Path, section: str, arguments: list[str]) -> None:
    assert converse(tmp_path, None, section, arguments) == SAID
