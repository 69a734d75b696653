"""The state of a running gateway, as its own user is told it over the control socket."""

import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway import __version__
from acp_gateway.client.local import LocalGateway
from acp_gateway.config.load import AgentSection
from acp_gateway.errors import Forbidden, ProtocolError
from acp_gateway.gateway.storage.state_folder import CONTROL_SOCKET
from acp_gateway.server import authentication
from acp_gateway.server.status import measure_memory
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import connect_unix
from tests.kit.doubles import INITIALIZE, TIMEOUT, Editor, encode, make_config, python
from tests.kit.serving import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the own user is known by the kernel")

OPEN: dict[str, Any] = {"cwd": "/", "mcpServers": []}

AGENT = python("""
import json, sys
for line in sys.stdin:
    answer = {"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": {"protocolVersion": 1, "sessionId": "s"}}
    print(json.dumps(answer), flush=True)
""")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def connect(path: Path, **params: object) -> Editor:
    """A client of a unix socket that has sent its hello."""
    lines = LineStream(await connect_unix(str(path)), max_message_size=1 << 20)
    await lines.send(encode({"id": "h", "method": "_acp-gateway/hello", "params": params}))
    return Editor(lines)


async def test_status_has_listeners_agents_clients_and_memory(state_dir: Path) -> None:
    gateway = LocalGateway(state_dir)
    agents = {"mine": AgentSection(command=AGENT)}
    async with serving(make_config(state_dir, f"unix://{state_dir}/socket", agents=agents)) as urls:
        idle = await gateway.status(time_limit=TIMEOUT)
        assert idle["agents"] == [
            {"name": "mine", "pid": None, "memory": None}
            | {"sessions": 0, "turns": 0, "connected": 0, "away": 0, "waiting": 0}
        ]
        editor = await connect(state_dir / "socket")
        await editor.receive()
        await editor.request("initialize", INITIALIZE)
        assert "result" in await editor.request("session/new", OPEN)
        status = await gateway.status(time_limit=TIMEOUT)
        # Stored or not.
        known = {name: await gateway.knows(name, time_limit=TIMEOUT) for name in ("s", "other")}
        await editor.stream.aclose()
    assert known == {"s": True, "other": False}
    (agent,) = status["agents"]
    assert (agent["name"], agent["sessions"], agent["turns"], agent["connected"]) == ("mine", 1, 0, 1)
    assert agent["pid"] not in (None, os.getpid())
    assert agent["memory"] > 1 << 20
    assert status["memory"] > 1 << 20
    assert (status["version"], status["pid"], status["listeners"]) == (__version__, os.getpid(), urls)
    assert (status["connected"], status["away"], status["waiting"], status["problems"]) == (1, 0, 0, [])
    assert (status["config"], status["stateDir"]) == (None, str(state_dir))
    assert 0 <= status["uptime"] < TIMEOUT


async def test_the_control_socket_is_for_its_user_and_goes_with_the_gateway(state_dir: Path) -> None:
    path = state_dir / CONTROL_SOCKET
    async with serving(make_config(state_dir, "tcp://127.0.0.1:0")) as urls:
        assert len(urls) == 1
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_the_control_socket_has_no_clients_of_agents(state_dir: Path) -> None:
    async with serving(make_config(state_dir, "tcp://127.0.0.1:0")):
        client = await connect(state_dir / CONTROL_SOCKET)
        refused = await client.receive()
        await client.stream.aclose()
    assert refused["error"]["message"] == "this socket has control connections only"


async def test_an_agent_may_not_ask(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "belongs_to_agent", lambda *_: True)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    async with serving(make_config(state_dir, "tcp://127.0.0.1:0")):
        with pytest.raises(Forbidden, match="an agent can't let itself in"):
            await LocalGateway(state_dir).status(time_limit=TIMEOUT)


async def test_a_gateway_without_a_control_socket_serves_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state_dir = tmp_path / ("x" * 100)
    async with serving(make_config(state_dir, "tcp://127.0.0.1:0")) as urls:
        assert len(urls) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("won't find this gateway: cannot listen on unix://" in warning for warning in warnings)


async def test_reload_over_the_control_socket_reads_the_files_again(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(make_config(state_dir, "tcp://127.0.0.1:0")):
        assert (await LocalGateway(state_dir).reload(time_limit=TIMEOUT))["problems"] == []
        assert "acp-gateway reload: reading the configuration, tokens and certificates again" in caplog.messages
        (state_dir / "tokens.json").write_text("{")
        (state_dir / "tokens.json").chmod(0o600)
        (problem,) = (await LocalGateway(state_dir).reload(time_limit=TIMEOUT))["problems"]
    assert "tokens.json" in problem


async def test_an_answer_that_is_not_an_object_is_an_error(tmp_path: Path) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(b'{"jsonrpc":"2.0","id":0,"result":{}}\n{"jsonrpc":"2.0","id":1,"result":7}\n')
        await stream.receive_some()

    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(tmp_path / CONTROL_SOCKET))
    listening.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answer, [trio.SocketListener(listening)])
        with pytest.raises(ProtocolError, match="not understood"):
            await LocalGateway(tmp_path).status(time_limit=TIMEOUT)
        nursery.cancel_scope.cancel()


def test_the_memory_of_an_agent_is_that_of_its_process_session(tmp_path: Path) -> None:
    for pid, session, pages in ((10, 10, 3), (11, 10, 4), (20, 1, 5), (30, 30, 6)):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", "1", "1", str(session), *["0"] * 15, "7", "0", str(pages)]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) {' '.join(fields)}\n")
    page = os.sysconf("SC_PAGE_SIZE")
    assert measure_memory({10, 20, 40}, tmp_path) == {10: 7 * page, 20: 5 * page}
