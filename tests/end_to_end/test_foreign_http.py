"""The shim as a client over Streamable HTTP: of the Python SDK's server, and of a gateway, which has WebSockets."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.http.connections import Endpoint
from acp_gateway.client.http.stream import HttpClientStream
from acp_gateway.config.addresses import parse_target
from acp_gateway.protocol.gaps import MAY_BE_MISSING
from acp_gateway.transports.sockets import SocketBytes, connect_tcp
from tests.kit.foreign_http import connected, refusing_server, sdk_server
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK, RunningGateway


def test_the_sdks_http_server_is_used_with_its_cookie_its_streams_and_permissions(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with sdk_server() as (_, port), connected(f"http://127.0.0.1:{port}/acp", "--log-file", log) as editor:
        session = editor.new_session()
        assert editor.prompt(session, "stream 1000")["result"]["stopReason"] == "end_turn"
        assert editor.prompt(session, "permission")["result"]["stopReason"] == "end_turn"
        assert editor.updates == [*map(str, range(1000)), "yes"]
    assert "using Streamable HTTP" in log.read_text()
    assert "which doesn't resume links" in log.read_text()


def test_a_cancel_reaches_the_sdks_http_server_during_a_turn() -> None:
    with sdk_server() as (_, port), connected(f"http://127.0.0.1:{port}/acp") as editor:
        session = editor.new_session()
        editor.begin_prompt(session, "wait")
        editor.receive_updates(1)
        editor.send(method="session/cancel", params={"sessionId": session})
        assert editor.receive()["result"]["stopReason"] == "cancelled"


def test_after_a_kill_of_the_sdks_http_server_sessions_are_loaded_again() -> None:
    with sdk_server() as (first, port), connected(f"http://127.0.0.1:{port}/acp") as editor:
        session = editor.new_session()
        editor.prompt(session, "stream 1")
        first.kill()
        first.wait()
        with sdk_server(port) as (second, _):
            assert second.stdout is not None
            lines = [second.stdout.readline() for _ in range(2)]
            assert lines == ["a client with a cookie\n", f"loaded {session}\n"]
            assert editor.prompt(editor.new_session(), "stream 2")["result"]["stopReason"] == "end_turn"
            # What was missed between them is unknown to any server that is not a gateway.
            assert editor.updates == ["0", MAY_BE_MISSING, "0", "1"]


def test_a_turn_of_the_sdks_http_server_is_answered_after_a_kill_and_refused_in_the_loaded_session() -> None:
    with sdk_server() as (first, port), connected(f"http://127.0.0.1:{port}/acp") as editor:
        session = editor.new_session()
        editor.begin_prompt(session, "wait")
        editor.receive_updates(1)
        first.kill()
        first.wait()
        with sdk_server(port):
            assert editor.receive()["result"]["stopReason"] == "cancelled"
            # The server itself accepts no prompt in a session that was loaded.
            error = editor.prompt(session, "stream 1")["error"]["message"]
            assert error.startswith(f"the server does not know the session {session}: HTTP 404")
            assert editor.prompt(editor.new_session(), "stream 1")["result"]["stopReason"] == "end_turn"


@pytest.mark.parametrize(("status", "code"), [(401, 7), (403, 7), (404, 7), (502, 6)])
def test_connect_exits_by_the_status_with_which_a_foreign_server_refuses_initialize(status: int, code: int) -> None:
    with refusing_server(status) as port:
        done = subprocess.run(
            [*PROGRAM, "connect", f"http://127.0.0.1:{port}/acp"],
            env=ENVIRONMENT,
            input=b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n',
            capture_output=True,
            timeout=60,
        )
    assert done.returncode == code
    assert f"HTTP {status} (not here)" in json.loads(done.stdout)["error"]["message"]
    assert f"HTTP {status} (not here)" in done.stderr.decode()


def test_a_gateway_is_used_over_a_websocket_by_an_https_target(gateway: RunningGateway, tmp_path: Path) -> None:
    log = tmp_path / "log"
    url = gateway.urls["wss"].replace("wss://", "https://")
    arguments: list[str | Path] = [
        "--token-file",
        gateway.token_file,
        "--pin",
        gateway.pin,
        "--agent",
        "directed",
        "--log-file",
        log,
    ]
    with connected(url, *arguments) as editor:
        assert editor.prompt(editor.new_session(), "stream 2")["result"]["stopReason"] == "end_turn"
        assert editor.updates == ["0", "1"]
    assert ", link " in log.read_text()


async def test_a_gateways_own_streams_that_are_cut_go_on_without_a_loss(gateway: RunningGateway) -> None:
    address = parse_target(gateway.urls["ws"])
    connections: list[SocketBytes] = []
    connected_again = trio.Event()

    async def connect() -> SocketBytes:
        connections.append(await connect_tcp(address.host, address.port))
        connected_again.set()
        return connections[-1]

    endpoint = Endpoint.at(address, "agent=directed", {"Authorization": f"Bearer {gateway.token}"})
    stream = HttpClientStream(endpoint, connect, max_message_size=10_000_000, size_setting="the limit")

    async def ask(number: int, method: str, **params: Any) -> tuple[Any, list[str]]:
        """Return the response to a request and the texts of the updates before it; cut all connections between them.

        After each cut it waits for a new connection: updates that came before the cut may be all there are.
        """
        nonlocal connected_again
        await stream.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        texts = []
        while "id" not in (message := json.loads(await stream.receive())):
            texts.append(message["params"]["update"]["content"]["text"])
            if len(texts) % 1000 == 0:
                connected_again = trio.Event()
                for connection in connections:
                    await connection.aclose()
                await connected_again.wait()
        assert message["id"] == number
        return message["result"], texts

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            await ask(0, "initialize", protocolVersion=1)
            session = (await ask(1, "session/new", cwd=str(WORK), mcpServers=[]))[0]["sessionId"]
            prompt = [{"type": "text", "text": "stream 2000"}]
            assert (await ask(2, "session/prompt", sessionId=session, prompt=prompt))[1] == [*map(str, range(2000))]
            await stream.aclose()
