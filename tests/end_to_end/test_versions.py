"""Editors of both versions of the protocol with agents that speak version 1 or version 2 alone."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from acp_gateway.protocol.gaps import MAY_BE_MISSING
from examples.demo_web_agent import BEFORE, FILE
from tests.kit.proxies import Headers, Proxy
from tests.kit.running import AGENTS, WORK, RunningGateway, lines_of, prepare, start_gateway, until_there

AGENT = str(Path(__file__).parent.parent / "agents" / "new_agent.py")
ROOT = Path(__file__).parents[2]
OLD_AGENT = str(AGENTS / "remembering_agent.py")


class Editor:
    """An editor that uses the shim, and notes what it is told."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.last = 0
        self.told: list[Any] = []
        self._lines = lines_of(self.process)

    def send(self, **members: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        self.last += 1
        self.send(id=self.last, method=method, params=params)
        return self.last

    def hear(self) -> Any:
        message = json.loads(next(self._lines))
        if message.get("method") == "session/update":
            self.told.append(message["params"]["update"])
        return message

    def end(self, number: int) -> Any:
        """Wait for the response to a request; return its result or its error."""
        while True:
            message = self.hear()
            if message.get("id") == number and "method" not in message:
                return message.get("result", message.get("error"))

    def call(self, method: str, **params: Any) -> Any:
        return self.end(self.begin(method, **params))

    def prompt(self, session: str, words: str) -> int:
        return self.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": words}])

    @property
    def texts(self) -> list[str]:
        return [update["content"]["text"] for update in self.told if update["sessionUpdate"] == "agent_message_chunk"]

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "sessions").mkdir()
    command = json.dumps([sys.executable, AGENT, str(folder / "sessions")])
    running = start_gateway(folder, prepare(folder, f"[agents.new]\ncommand = {command}\n"))
    yield running
    running.stop()


@pytest.fixture
def editors(gateway: RunningGateway) -> Iterator[list[Editor]]:
    """Two initialized editors of one person."""
    opened = [Editor(gateway.connect_command("tcp")) for _ in range(2)]
    for editor in opened:
        answer = editor.call("initialize", protocolVersion=1, clientCapabilities={})
        assert (answer["protocolVersion"], answer["agentInfo"]["name"]) == (1, "new")
    yield opened
    for editor in opened:
        editor.close()


def test_a_turn_is_over_when_the_agent_says_so_and_others_see_it(editors: list[Editor], tmp_path: Path) -> None:
    ann, bob = editors
    session = ann.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"]
    bob.call("session/load", sessionId=session, cwd=str(WORK), mcpServers=[])
    running = ann.prompt(session, "wait")
    # It has accepted that prompt at once; another one waits for its turn all the same.
    while not bob.told:
        bob.hear()
    waiting = bob.prompt(session, "hello")
    ann.send(method="$/cancel_request", params={"requestId": running})
    assert "stopReason" in ann.end(running)
    assert bob.end(waiting)["stopReason"] == "end_turn"
    assert bob.texts == ["you said hello"]
    while not ann.texts:
        ann.hear()
    assert ann.texts == ["you said hello"]


def test_an_editor_of_version_2_gets_what_an_agent_behind_another_gateway_says(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    folder = tmp_path / "front"
    folder.mkdir()
    node = f'[nodes.box]\nurl = "{gateway.urls["ws"]}"\ntoken_file = "{gateway.token_file}"\n'
    front = start_gateway(folder, prepare(folder, node, more='default_agent = "box/new"'))
    try:
        until_there(front, "box")
        ann = Editor(front.connect_command("tcp"))
        info = {"name": "ann", "version": "1"}
        assert ann.call("initialize", protocolVersion=2, info=info, capabilities={})["protocolVersion"] == 2
        session = ann.call("session/new", cwd=str(WORK))["sessionId"]
        assert ann.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "edit"}]) == {}
        while not ann.told or "stopReason" not in ann.told[-1]:
            ann.hear()
        kept = [
            json.loads(line)["update"] for line in (gateway.directory / "sessions" / session).read_text().splitlines()
        ]
        assert [update for update in ann.told if update["sessionUpdate"] != "state_update"] == kept
        assert [update["state"] for update in ann.told if "state" in update] == ["running", "idle"]
        ann.close()
    finally:
        front.stop()


def test_a_permission_of_version_2_is_decided_by_a_client_of_version_1(editors: list[Editor], tmp_path: Path) -> None:
    ann, _ = editors
    running = ann.prompt(ann.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"], "ask")
    while (asked := ann.hear()).get("method") != "session/request_permission":
        pass
    assert asked["params"]["toolCall"]["title"] == "Run it?"
    ann.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
    assert ann.end(running)["stopReason"] == "end_turn"
    assert ann.texts == ["decided yes"]


def test_what_an_agent_says_after_its_turn_is_shown(editors: list[Editor], tmp_path: Path) -> None:
    ann, _ = editors
    session = ann.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"]
    assert ann.end(ann.prompt(session, "late"))["stopReason"] == "end_turn"
    while len(ann.texts) < 2:
        ann.hear()
    assert ann.texts == ["you said late", "and another thing"]


def test_after_its_agent_was_killed_a_session_goes_on_with_its_history(
    gateway: RunningGateway, editors: list[Editor], tmp_path: Path
) -> None:
    ann, bob = editors
    session = ann.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"]
    ann.end(ann.prompt(session, "one"))
    os.kill(gateway.read_agent_pid("new"), signal.SIGKILL)
    gateway.read_log_until("agent new was ended by SIGKILL")
    answer = ann.end(ann.prompt(session, "two"))
    if "code" in answer:
        # It was on its way to the process that had just ended.
        answer = ann.end(ann.prompt(session, "two"))
    assert answer["stopReason"] == "end_turn"
    assert ann.texts == ["you said one", "you said two"]
    bob.call("session/load", sessionId=session, cwd=str(WORK), mcpServers=[])
    assert bob.texts == ["you said one", "you said two"]


# Editors of version 2


class NewEditor(Editor):
    """An editor of version 2."""

    def introduce(self) -> None:
        info = {"name": "editor", "version": "1"}
        answer = self.call("initialize", protocolVersion=2, info=info, capabilities={})
        assert answer["protocolVersion"] == 2
        assert "capabilities" in answer

    def until(self, state: str) -> Any:
        """Wait for a state that was not told before, and return it."""
        while True:
            update = self.hear().get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "state_update" and update["state"] == state:
                return update

    @property
    def texts(self) -> list[str]:
        """Return what the agent has said, in whole messages or in chunks."""
        contents = (one.get("content") for one in self.told if one["sessionUpdate"].startswith("agent_message"))
        blocks = (content if isinstance(content, list) else [content] for content in contents)
        return [block["text"] for block, *_ in blocks]


@pytest.fixture(params=["old", "new"])
def agent(request: pytest.FixtureRequest) -> str:
    """Version of the agent, which speaks no other one."""
    return str(request.param)


@pytest.fixture
def mixed(tmp_path: Path, agent: str) -> Iterator[RunningGateway]:
    (tmp_path / "sessions").mkdir()
    command = json.dumps([sys.executable, AGENT if agent == "new" else OLD_AGENT, str(tmp_path / "sessions")])
    running = start_gateway(tmp_path, prepare(tmp_path, f"[agents.it]\ncommand = {command}\n"))
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def new_editor(mixed: RunningGateway) -> Iterator[NewEditor]:
    editor = NewEditor(mixed.connect_command("unix"))
    editor.introduce()
    yield editor
    editor.close()


def said(agent: str, words: str) -> str:
    return f"you said {words}" if agent == "new" else words


def test_an_editor_of_version_2_gets_its_turns(new_editor: NewEditor, agent: str, tmp_path: Path) -> None:
    session = new_editor.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"]
    assert "stopReason" not in new_editor.end(new_editor.prompt(session, "one"))
    assert new_editor.until("idle")["stopReason"] == "end_turn"
    assert new_editor.texts == [said(agent, "one")]
    new_editor.end(new_editor.prompt(session, "wait"))
    new_editor.until("running")
    new_editor.send(method="session/cancel", params={"sessionId": session})
    assert new_editor.until("idle")["stopReason"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_turn_of_version_2_that_a_restart_has_cut_off_ends_with_a_reason(
    mixed: RunningGateway, new_editor: NewEditor, agent: str, tmp_path: Path, number: signal.Signals
) -> None:
    session = new_editor.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"]
    new_editor.end(new_editor.prompt(session, "one"))
    new_editor.until("idle")
    new_editor.end(new_editor.prompt(session, "wait"))
    new_editor.until("running")
    mixed.process.send_signal(number)
    mixed.process.communicate(timeout=60)
    restarted = start_gateway(tmp_path, mixed.pin)
    try:
        end = new_editor.until("idle")
        assert (end["stopReason"], end["error"]["data"]["reason"]) == ("error", "gateway_restarted")
        assert end["error"]["message"] == "the gateway was restarted, and this turn was ended"
        assert "error" not in new_editor.end(new_editor.prompt(session, "two"))
        assert new_editor.until("idle")["stopReason"] == "end_turn"
        texts = [text for text in new_editor.texts if text != MAY_BE_MISSING]
        assert texts == [said(agent, "one"), said(agent, "two")]
    finally:
        restarted.stop()


def test_editors_of_both_versions_share_a_session(
    mixed: RunningGateway, new_editor: NewEditor, agent: str, tmp_path: Path
) -> None:
    old = Editor(mixed.connect_command("tcp"))
    assert old.call("initialize", protocolVersion=1, clientCapabilities={})["protocolVersion"] == 1
    session = new_editor.call("session/new", cwd=str(WORK), mcpServers=[])["sessionId"]
    old.call("session/load", sessionId=session, cwd=str(WORK), mcpServers=[])
    new_editor.end(new_editor.prompt(session, "one"))
    new_editor.until("idle")
    assert old.end(old.prompt(session, "two"))["stopReason"] == "end_turn"
    new_editor.until("idle")
    expected = [said(agent, "one"), said(agent, "two")]
    assert (new_editor.texts, old.texts) == (expected, expected)
    old.close()


def test_an_editor_of_version_2_gets_all_of_an_agent_of_version_2(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / FILE).write_text(BEFORE)
    command = [sys.executable, "-m", "examples.demo_web_agent", "--protocol", "2", "--delay", "0"]
    agents = f"[agents.lively]\ncommand = {json.dumps(command)}\nenv = {{ PYTHONPATH = {json.dumps(str(ROOT))} }}\n"
    running = start_gateway(tmp_path, prepare(tmp_path, f"{agents}[workspaces.shop]\nroot = {json.dumps(str(shop))}\n"))
    editor = Editor(running.connect_command("tcp"))
    told: list[Any] = editor.told
    try:
        info = {"name": "editor", "version": "1"}
        assert editor.call("initialize", protocolVersion=2, capabilities={}, info=info)["protocolVersion"] == 2
        session = editor.call("session/new", cwd=str(shop))["sessionId"]
        editor.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "Correct it"}])
        while not (told and told[-1].get("state") == "idle"):
            asked = editor.hear()
            if asked.get("method") == "session/request_permission":
                changed = asked["params"]["subject"]["toolCall"]["content"]
                editor.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "allow"}})
    finally:
        editor.close()
        running.stop()
    assert [change["operation"] for item in changed for change in item["changes"]] == [
        "modify",
        "move",
        "delete",
        "add",
    ]
    states = [update["state"] for update in told if update["sessionUpdate"] == "state_update"]
    assert states == ["running", "requires_action", "running", "idle"]
    assert {update["plan"]["planId"] for update in told if update["sessionUpdate"] == "plan_update"} == {
        "work",
        "notes",
    }
    terminal = [update for update in told if update["sessionUpdate"] == "terminal_update"][-1]
    assert terminal["exitStatus"] == {"exitCode": 0}
    chunks = [update for update in told if update["sessionUpdate"] == "terminal_output_chunk"]
    assert b"4 passed" in b"".join(b64decode(chunk["data"]) for chunk in chunks)


class RawEditor(NewEditor):
    """An editor of version 2 that notes what it gets, with the ids of its requests and the agent's left out."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self.lines: list[str] = []

    def hear(self) -> Any:
        line = next(self._lines)
        text = line.decode() if isinstance(line, bytes) else line
        self.lines.append(re.sub(r'"id": ?("q[0-9]+"|[0-9]+)', '"id": #', text.rstrip("\n")))
        message = json.loads(line)
        if message.get("method") == "session/update":
            self.told.append(message["params"]["update"])
        return message

    def converse(self) -> list[str]:
        """Hold the conversation that is compared; return what came after `initialize` and `session/new`."""
        self.introduce()
        session = self.call("session/new", cwd=str(WORK))["sessionId"]
        self.lines.clear()
        for words in ("one", "edit", "ask", "late"):
            self.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": words}])
            while (message := self.hear()).get("params", {}).get("update", {}).get("state") != "idle":
                if message.get("method") == "session/request_permission":
                    self.send(id=message["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        while "and another thing" not in self.lines[-1]:
            self.hear()
        return self.lines


@pytest.fixture(scope="module")
def without_gateway(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The conversation of an editor that starts the agent itself."""
    editor = RawEditor([sys.executable, AGENT, str(tmp_path_factory.mktemp("alone"))])
    lines = editor.converse()
    editor.close()
    assert len(lines) > 20
    return lines


TRANSPORTS = ("unix", "tcp", "wss", "http")
SCOPES = ("connection", "identity", "shared")


@pytest.fixture(scope="module")
def scopes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with an agent for each transport and scope."""
    folder = tmp_path_factory.mktemp("scopes")
    agents = ""
    for scope, transport in itertools.product(SCOPES, TRANSPORTS):
        sessions = folder / f"{scope}-{transport}"
        sessions.mkdir()
        command = json.dumps([sys.executable, AGENT, str(sessions)])
        agents += f'[agents.{scope}-{transport}]\ncommand = {command}\nscope = "{scope}"\n'
    running = start_gateway(folder, prepare(folder, agents, more='default_agent = "shared-tcp"'))
    yield running
    running.stop()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("transport", TRANSPORTS[:3])
def test_a_conversation_of_version_2_is_the_same_bytes_as_without_the_gateway(
    without_gateway: list[str], scopes: RunningGateway, scope: str, transport: str
) -> None:
    editor = RawEditor(scopes.connect_command(transport, "--agent", f"{scope}-{transport}"))
    assert editor.converse() == without_gateway
    editor.close()


def _without_websocket(headers: Headers, _: str) -> tuple[str, Headers]:
    """Return a request's headers as a proxy passes them on that knows no WebSocket."""
    left_out = ("connection", "upgrade")
    kept = {name: value for name, value in headers.items() if name not in left_out}
    return "1.1", {name: value for name, value in kept.items() if not name.startswith("sec-websocket-")}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_conversation_of_version_2_is_the_same_bytes_over_streamable_http(
    without_gateway: list[str], scopes: RunningGateway, tmp_path: Path, scope: str
) -> None:
    port = urlsplit(scopes.urls["ws"]).port
    assert port is not None
    proxy = Proxy(("127.0.0.1", port), scopes.directory, _without_websocket)
    try:
        proxied = replace(scopes, urls={"wss": f"https://127.0.0.1:{proxy.port}/acp"})
        log = tmp_path / "shim.log"
        editor = RawEditor(proxied.connect_command("wss", "--agent", f"{scope}-http", "--log-file", str(log)))
        assert editor.converse() == without_gateway
        editor.close()
        assert "using Streamable HTTP" in log.read_text()
    finally:
        proxy.stop()
