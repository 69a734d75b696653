"""Programs that connect to agents: each one's short conversation through the gateway.

npm and PyPI have some. The others are applications for the browser, the phone or Obsidian, which no registry has: what
they send is repeated here, as their sources have it.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from tests.interop.conftest import port_of
from tests.interop.sdk_clients import INSTALLED, PROGRAMS, ROOT, node_version
from tests.kit.free_ports import free_port
from tests.kit.running import AGENTS, ENVIRONMENT, WORK, RunningGateway, prepare, start_gateway

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no listener is for the gateway's own user"),
]

TIMEOUT = 120.0

APPLICATION = "tauri://localhost"
"""Origin of the pages of an application that is made with Tauri, for desktops and phones."""

ENVIRONMENTS = INSTALLED / "programs-pypi"
"""Folder into which `make interop` installs programs from PyPI, each in an environment of its own."""


class Ports(NamedTuple):
    """Ports of listeners."""

    wss: int
    ws: int
    pages: int
    """For pages with a token."""
    own: int
    """For programs of the gateway's own user, without a token."""


@pytest.fixture(scope="module")
def ports() -> Ports:
    return Ports(free_port(), free_port(), free_port(), free_port())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, ports: Ports) -> Iterator[RunningGateway]:
    directory = tmp_path_factory.mktemp("programs")
    (directory / "sessions").mkdir()
    command = json.dumps([sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "sessions")])
    pages = f'serves = ["acp"]\nallowed_origins = ["{APPLICATION}"]\n'
    more = (
        f'[[listen]]\nurl = "ws://127.0.0.1:{ports.pages}"\n{pages}'
        f'[[listen]]\nurl = "ws://127.0.0.1:{ports.own}"\n{pages}local_user = true\npath = "/message?agent=memory"\n'
    )
    agents = f'[agents.memory]\ncommand = {command}\n[workspaces.here]\nroot = "{WORK}"\n{more}'
    pin = prepare(directory, agents, ports={"wss": ports.wss, "ws": ports.ws})
    running = start_gateway(directory, pin)
    try:
        for port in ports:
            if not any(f":{port}" in line for line in running.log):
                running.read_log_until(f":{port}")
        running.urls |= {name: f"{name}://127.0.0.1:{getattr(ports, name)}/acp" for name in ("wss", "ws")}
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def said_by(command: Sequence[str | Path], gateway: RunningGateway, directory: Path) -> str:
    """Run a program to its end, and return the last line that it prints."""
    ran = subprocess.run(
        [*map(str, command)],
        env=ENVIRONMENT | {"HOME": str(directory), "TOKEN": gateway.token, "PYTHONPATH": str(ROOT)},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip().rpartition("\n")[2]


def from_npm(program: str, package: str) -> list[str | Path]:
    """Return the beginning of the command that runs a program from npm; skip the test if it is not there."""
    node = shutil.which("node")
    if node is None or not (PROGRAMS / "node_modules" / package).is_dir():
        pytest.skip(f"{package} is not installed: make interop does that")
    options = ["--experimental-websocket"] if program == "use-acp" and node_version() < 22 else []
    return [node, "--no-warnings", *options, Path(__file__).with_name("npm_programs.mjs"), program, PROGRAMS]


def from_pypi(program: str) -> list[str | Path]:
    """Return the beginning of the command that runs a program from PyPI; skip the test if it is not there."""
    python = ENVIRONMENTS / program / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{program} is not installed: make interop does that, with Python 3.12 or newer")
    return [python, Path(__file__).with_name("python_programs.py"), program]


@pytest.mark.parametrize(
    ("program", "package"), [("acp-ai-provider", "@mcpc-tech/acp-ai-provider"), ("acp-factory", "acp-factory")]
)
def test_a_library_from_npm_that_starts_its_agent_starts_connect(
    program: str, package: str, gateway: RunningGateway, tmp_path: Path
) -> None:
    command = [*from_npm(program, package), WORK, *gateway.connect_command("wss")]
    assert said_by(command, gateway, tmp_path) == "yes"


def test_use_acp_which_has_no_token_connects_at_the_port_of_the_gateways_own_user(
    gateway: RunningGateway, ports: Ports, tmp_path: Path
) -> None:
    command = [*from_npm("use-acp", "use-acp"), WORK, f"ws://127.0.0.1:{ports.own}/message"]
    assert said_by(command, gateway, tmp_path) == "yes"


@pytest.mark.parametrize("scheme", ["ws", "http"])
@pytest.mark.parametrize("cwd", ["", str(WORK)])
def test_ag2_connects_with_a_token_also_without_a_cwd(
    scheme: str, cwd: str, gateway: RunningGateway, tmp_path: Path
) -> None:
    address = f"{scheme}://127.0.0.1:{port_of(gateway)}/acp"
    assert said_by([*from_pypi("ag2"), cwd, address], gateway, tmp_path) == "yes"


def test_acpremote_connects_with_a_token(gateway: RunningGateway, tmp_path: Path) -> None:
    address = f"ws://127.0.0.1:{port_of(gateway)}/acp"
    assert said_by([*from_pypi("acpremote"), WORK, address], gateway, tmp_path) == "yes"


def test_acp_client_from_pypi_starts_connect(gateway: RunningGateway, tmp_path: Path) -> None:
    command = [*from_pypi("acp-client"), WORK, *gateway.connect_command("wss")]
    assert said_by(command, gateway, tmp_path) == "yes"


class Replay:
    """Messages of a program that is repeated here; permissions get its answer."""

    def __init__(self, send: Callable[[str], object], receive: Callable[[], str | bytes], outcome: object) -> None:
        self._send = send
        self._receive = receive
        self._outcome = outcome
        self._requests = 0
        self.said = ""

    def ask(self, method: str, params: object) -> dict[str, Any]:
        """Send a request, and return its result."""
        number, self._requests = self._requests, self._requests + 1
        self._tell({"id": number, "method": method, "params": params})
        while "method" in (message := json.loads(self._receive())):
            if message["method"] == "session/request_permission":
                self._tell({"id": message["id"], "result": {"outcome": self._outcome}})
            elif message["params"]["update"]["sessionUpdate"] == "agent_message_chunk":
                self.said += message["params"]["update"]["content"]["text"]
        assert message["id"] == number
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result

    def _tell(self, message: dict[str, object]) -> None:
        self._send(json.dumps({"jsonrpc": "2.0"} | message))

    def converse(self, initialize: dict[str, object], cwd: str) -> str:
        """Begin, open a session and send a prompt; return the session."""
        assert self.ask("initialize", {"protocolVersion": 1} | initialize)["protocolVersion"] == 1
        session: str = self.ask("session/new", {"cwd": cwd, "mcpServers": []})["sessionId"]
        self.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "ask"}]})
        return session


GRANTED = {"outcome": "selected", "optionId": "yes"}


def open_page(address: str, protocols: Sequence[str] = (), origin: str = APPLICATION) -> ClientConnection:
    """Open a WebSocket as a page does, which can send no header of its own."""
    offered = [Subprotocol(each) for each in protocols] or None
    return connect(address, subprotocols=offered, origin=Origin(origin), proxy=None, open_timeout=TIMEOUT)


def test_acp_ui_connects_with_its_token_in_a_subprotocol_and_loads_its_session_later(
    gateway: RunningGateway, ports: Ports
) -> None:
    address, protocols = f"ws://127.0.0.1:{ports.pages}/acp", ("acp.v1", f"bearer.{gateway.token}")
    info = {"name": "acp-ui", "title": "ACP UI", "version": "0.1.0"}
    hello = {"clientCapabilities": {"fs": {"readTextFile": True, "writeTextFile": True}}, "clientInfo": info}
    with open_page(address, protocols) as page:
        # A browser ends a connection for which none of the protocols was chosen.
        assert page.subprotocol == "acp.v1"
        replay = Replay(page.send, page.recv, GRANTED)
        session = replay.converse(hello, str(WORK))
        assert replay.said == "yes"
    with open_page(address, protocols) as page:
        replay = Replay(page.send, page.recv, GRANTED)
        replay.ask("initialize", {"protocolVersion": 1} | hello)
        replay.ask("session/load", {"sessionId": session, "cwd": str(WORK), "mcpServers": []})
        assert replay.said == "yes"
    with pytest.raises(InvalidStatus, match="401"):
        open_page(address, ("acp.v1", "bearer.wrong"))
    with pytest.raises(InvalidStatus, match="403"):
        open_page(address, protocols, "https://evil.example")


def test_thunderbolt_which_has_no_token_and_no_cwd_connects_at_the_port_of_the_gateways_own_user(
    gateway: RunningGateway, ports: Ports
) -> None:
    hello = {
        "clientInfo": {"name": "thunderbolt", "version": "0.2.0"},
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    }
    with open_page(f"ws://127.0.0.1:{ports.own}/message") as page:
        # It cancels each question by itself.
        replay = Replay(page.send, page.recv, {"outcome": "cancelled"})
        replay.converse(hello, ".")
        assert replay.said == "cancelled"


def test_agent_client_for_obsidian_starts_connect_in_the_folder_of_its_notes(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    hello = {
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": True},
        "clientInfo": {"name": "obsidian-agent-client", "title": "Agent Client for Obsidian", "version": "0.10.0"},
    }
    command = gateway.connect_command("wss")
    with subprocess.Popen(
        command, cwd=WORK, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin

        def send(message: str) -> None:
            stdin.write(f"{message}\n")
            stdin.flush()

        replay = Replay(send, process.stdout.readline, GRANTED)
        replay.converse(hello, str(WORK))
        assert replay.said == "yes"
        stdin.close()
        assert process.wait(TIMEOUT) == 0
