"""A gateway as a program, with an agent that plays what a test says, and pages that are signed in."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.kit.running import ENVIRONMENT, RunningGateway, lines_of, prepare, run_program, start_gateway
from tests.web.browser.conftest import WIDE, NewPage
from tests.web.browser.end_to_end.loopback_proxy import LoopbackProxy

if TYPE_CHECKING:
    from playwright.sync_api import Page

AGENT = Path(__file__).parents[3] / "agents" / "playing_agent.py"

JOURNAL_LIMIT = 64 << 20
"""Enough for 100,000 updates."""

Message = dict[str, Any]
Step = dict[str, Any]


class PageGateway:
    """A running gateway, and what its agent plays.

    Args:
        directory: has its configuration.
        nodes: the sections of its nodes.
        resumes: the agent opens sessions again after its end.
    """

    def __init__(self, directory: Path, nodes: str = "", *, resumes: bool = False) -> None:
        self.folder = directory / "shop"
        self.folder.mkdir()
        self._script = directory / "script.json"
        self._played: Message = {"new": {}, "plays": {}, "resumes": resumes}
        self.play({})
        command = json.dumps([sys.executable, str(AGENT), str(self._script)])
        agents = f'[agents.player]\ncommand = {command}\n\n[workspaces.shop]\nroot = "{self.folder}"\n{nodes}'
        pin = prepare(directory, agents, more=f"journal_limit = {JOURNAL_LIMIT}")
        self.running: RunningGateway = start_gateway(directory, pin)

    def kill(self) -> None:
        """End its process at once."""
        process = self.running.process
        process.kill()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()

    def start(self) -> None:
        """Start another process, which listens at other ports."""
        self.running = start_gateway(self.running.directory, self.running.pin)

    @property
    def port(self) -> int:
        """The port for pages, without TLS."""
        port = urlsplit(self.running.urls["ws"]).port
        assert port is not None
        return port

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def identity(self) -> str:
        """The identity of the token, and of browsers that it signs in."""
        with self.client() as client:
            return str(client.result("gateway/info")["identity"])

    def play(self, plays: dict[str, list[Step]], **new: Any) -> None:
        """Add to what the agent plays; `new` are members of the result of `session/new` from now on."""
        self._played["plays"] |= plays
        self._played["new"] = new or self._played["new"]
        # The agent may read it now.
        written = self._script.with_suffix(".new")
        written.write_text(json.dumps(self._played))
        written.replace(self._script)

    def code(self, *options: str, token_file: Path | None = None) -> str:
        """Make a code that signs a browser in, bound to a token."""
        there = ("--target", self.running.urls["ws"], "--token-file", token_file or self.running.token_file)
        link = run_program("open", *options, *there).strip()
        return link.partition("#")[2]

    def session(self, title: str = "A session", **members: Any) -> str:
        """Begin a session; return its id."""
        with self.client() as client:
            session: str = client.result("session/new", **{"cwd": str(self.folder), "title": title} | members)[
                "sessionId"
            ]
            return session

    @contextmanager
    def client(self) -> Iterator["Client"]:
        """Open `/ws` with the token."""
        address = self.running.urls["ws"].removesuffix("/acp") + "/ws"
        headers = {"Authorization": f"Bearer {self.running.token}"}
        with connect(address, additional_headers=headers, max_size=None, proxy=None, open_timeout=60) as websocket:
            yield Client(websocket)


class Client:
    """A program that uses `/ws`."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._socket = websocket
        self._ids = itertools.count(1)
        self._told: list[Message] = []

    def ask(self, method: str, **params: Any) -> Message:
        """Send a request, and return its response."""
        number = next(self._ids)
        self._socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        while "method" in (message := json.loads(self._socket.recv(timeout=60))):
            self._told.append(message)
        assert message["id"] == number
        return dict(message)

    def result(self, method: str, **params: Any) -> Any:
        """Send a request, and return its result."""
        response = self.ask(method, **params)
        assert "result" in response, response
        return response["result"]

    def until_told(self, method: str, **members: Any) -> Message:
        """Wait for a notification with these params, and return them."""
        while True:
            for message in self._told:
                params: Message = message["params"]
                if message["method"] == method and members.items() <= params.items():
                    self._told.remove(message)
                    return params
            self._told.append(json.loads(self._socket.recv(timeout=60)))

    def prompt(self, session: str, text: str) -> None:
        """Send a prompt, and wait until its turn has ended."""
        self.result("session/get", sessionId=session, limit=1)
        self.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
        self.until_told("session/status_changed", sessionId=session, status="completed")

    def history(self, session: str) -> list[Message]:
        """Return the updates of a session."""
        updates: list[Message] = self.result("session/get", sessionId=session)["updates"]
        return updates


class Editor:
    """An editor with `acp-gateway connect`."""

    def __init__(self, running: RunningGateway) -> None:
        command = running.connect_command("ws")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)
        self._lines = lines_of(self.process)
        self._ids = itertools.count(1)

    def send(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self.process.stdin.flush()

    def until(self, **members: Any) -> Message:
        """Read until a message with these members, and return it."""
        for line in self._lines:
            message: Message = json.loads(line)
            if members.items() <= message.items():
                return message
        raise AssertionError(f"the editor's connection has ended without {members}")

    def ask(self, method: str, **params: Any) -> Message:
        """Send a request, and return its response."""
        number = next(self._ids)
        self.send({"id": number, "method": method, "params": params})
        return self.until(id=number)

    def join(self, session: str, folder: Path) -> None:
        """Open a session that exists."""
        self.ask("initialize", protocolVersion=1, clientCapabilities={})
        response = self.ask("session/load", sessionId=session, cwd=str(folder), mcpServers=[])
        assert "result" in response, response

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


class SignIn(Protocol):
    def __call__(
        self,
        path: str = "",
        *,
        url: str = "",
        code: str = "",
        size: tuple[int, int] = WIDE,
        touch: bool = False,
        dark: bool = False,
    ) -> "Page": ...


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageGateway]:
    gateway = PageGateway(tmp_path_factory.mktemp("gateway"))
    yield gateway
    assert gateway.running.stop() == 0, "".join(gateway.running.log)
    assert "Traceback" not in "".join(gateway.running.log), "".join(gateway.running.log)


@pytest.fixture
def sign_in(gateway: PageGateway, new_page: NewPage) -> SignIn:
    """Sign a new browser in by a code, with a path such as `/s/SESSION`; `url` is another address of the gateway."""

    def sign_in(
        path: str = "",
        *,
        url: str = "",
        code: str = "",
        size: tuple[int, int] = WIDE,
        touch: bool = False,
        dark: bool = False,
    ) -> "Page":
        page = new_page(size=size, touch=touch, dark=dark)
        page.goto(f"{url or gateway.url}#{code or gateway.code()}{path}")
        return page

    return sign_in


@pytest.fixture
def editor(gateway: PageGateway) -> Iterator[Editor]:
    editor = Editor(gateway.running)
    yield editor
    editor.close()


@pytest.fixture
def proxy(gateway: PageGateway) -> Iterator[LoopbackProxy]:
    proxy = LoopbackProxy(gateway.port)
    yield proxy
    proxy.close()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Things that a test opens, and that are closed at its end."""
    with ExitStack() as stack:
        yield stack
