"""The shim as a client over Streamable HTTP: of the Python SDK's server, and of a gateway, which has WebSockets."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from acp_gateway.client.http_pool import Endpoint
from acp_gateway.client.http_stream import HttpClientStream
from acp_gateway.config.addresses import parse_target
from acp_gateway.protocol.gaps import MAY_BE_MISSING
from acp_gateway.transports.sockets import SocketBytes, connect_tcp
from tests.end_to_end.running import ENVIRONMENT, PROGRAM, RunningGateway

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def sdk_server(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the SDK's server; yield its process and its port."""
    command = [sys.executable, "-m", "tests.end_to_end.sdk_http_server", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


class Editor:
    """An editor's side of a running `connect`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.updates: list[str] = []
        self._asked = 0

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next message that is no update; permissions are given."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("method") == "session/update":
                self.updates.append(message["params"]["update"]["content"]["text"])
            elif message.get("method") == "session/request_permission":
                outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
                self.send(id=message["id"], result=outcome)
            else:
                return message
        raise AssertionError("the shim has ended")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Make a request, and return its response."""
        self._asked += 1
        self.send(id=self._asked, method=method, params=params)
        response = self.receive()
        assert response["id"] == self._asked
        return response

    def new_session(self) -> str:
        session: str = self.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        return session

    def prompt(self, session: str, text: str) -> dict[str, Any]:
        return self.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])


@contextmanager
def connected(*arguments: str | Path) -> Iterator[Editor]:
    """An editor whose agent is `connect` with these arguments, after `initialize`."""
    command = [*PROGRAM, "connect", *map(str, arguments)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        # A read has no time limit of its own: its program is ended instead.
        limit = threading.Timer(120, process.kill)
        limit.start()
        try:
            editor = Editor(process)
            assert "result" in editor.ask("initialize", protocolVersion=1)
            yield editor
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            limit.cancel()
            process.kill()


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
        editor.send(
            id="turn",
            method="session/prompt",
            params={"sessionId": session, "prompt": [{"type": "text", "text": "wait"}]},
        )
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
            assert second.stdout.readline() == f"loaded {session}\n"
            another = editor.new_session()
            assert editor.prompt(another, "stream 2")["result"]["stopReason"] == "end_turn"
            # What was missed between them is unknown to any server that is no gateway.
            assert editor.updates == ["0", MAY_BE_MISSING, "0", "1"]


def test_a_gateway_is_used_over_a_websocket_by_an_https_target(gateway: RunningGateway, tmp_path: Path) -> None:
    log = tmp_path / "log"
    url = gateway.urls["wss"].replace("wss://", "https://")
    arguments: list[str | Path] = [
        "--token-file",
        gateway.token_file,
        "--pin",
        gateway.pin,
        "--agent",
        "sdk",
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

    async def connect() -> SocketBytes:
        connections.append(await connect_tcp(address.host, address.port))
        return connections[-1]

    endpoint = Endpoint.at(address, "agent=sdk", {"Authorization": f"Bearer {gateway.token}"})
    stream = HttpClientStream(endpoint, connect, max_message_size=10_000_000, size_setting="the limit")

    async def ask(number: int, method: str, **params: Any) -> tuple[Any, list[str]]:
        """Return the response to a request and the texts of the updates before it; cut all connections meanwhile."""
        await stream.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        texts = []
        while "id" not in (message := json.loads(await stream.receive())):
            texts.append(message["params"]["update"]["content"]["text"])
            if len(texts) % 500 == 0:
                for connection in connections:
                    await connection.aclose()
        assert message["id"] == number
        return message["result"], texts

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            await ask(0, "initialize", protocolVersion=1)
            session = (await ask(1, "session/new", cwd="/", mcpServers=[]))[0]["sessionId"]
            prompt = [{"type": "text", "text": "stream 2000"}]
            assert (await ask(2, "session/prompt", sessionId=session, prompt=prompt))[1] == [*map(str, range(2000))]
            await stream.aclose()
    assert len(connections) > 4
