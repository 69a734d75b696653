"""Editors of version 1 of the protocol with an agent that speaks version 2 alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import RunningGateway, prepare, start_gateway

AGENT = str(Path(__file__).parent.parent / "agents" / "new_agent.py")


class Editor:
    """An editor that uses the shim, and notes what it is told."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.last = 0
        self.told: list[Any] = []

    def send(self, **members: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        self.last += 1
        self.send(id=self.last, method=method, params=params)
        return self.last

    def hear(self) -> Any:
        assert self.process.stdout is not None
        message = json.loads(self.process.stdout.readline())
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


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    (tmp_path / "sessions").mkdir()
    command = json.dumps([sys.executable, AGENT, str(tmp_path / "sessions")])
    running = start_gateway(tmp_path, prepare(tmp_path, f"[agents.new]\ncommand = {command}\n"))
    yield running
    running.stop()


@pytest.fixture
def editors(gateway: RunningGateway) -> Iterator[list[Editor]]:
    """Two initialized editors of one person."""
    opened = [Editor(gateway.connect_command("tcp")) for _ in range(2)]
    for editor in opened:
        answer = editor.call("initialize", protocolVersion=1, clientCapabilities={})
        assert answer["protocolVersion"] == 1
        assert answer["agentInfo"]["name"] == "new"
    yield opened
    for editor in opened:
        editor.close()


def test_a_turn_is_over_when_the_agent_says_so_and_others_see_it(editors: list[Editor], tmp_path: Path) -> None:
    ann, bob = editors
    session = ann.call("session/new", cwd=str(tmp_path), mcpServers=[])["sessionId"]
    bob.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
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


def test_a_permission_of_version_2_is_decided_by_a_client_of_version_1(editors: list[Editor], tmp_path: Path) -> None:
    ann, _ = editors
    session = ann.call("session/new", cwd=str(tmp_path), mcpServers=[])["sessionId"]
    running = ann.prompt(session, "ask")
    while (asked := ann.hear()).get("method") != "session/request_permission":
        pass
    assert asked["params"]["toolCall"]["title"] == "Run it?"
    ann.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
    assert ann.end(running)["stopReason"] == "end_turn"
    assert ann.texts == ["decided yes"]


def test_what_an_agent_says_after_its_turn_is_shown(editors: list[Editor], tmp_path: Path) -> None:
    ann, _ = editors
    session = ann.call("session/new", cwd=str(tmp_path), mcpServers=[])["sessionId"]
    assert ann.end(ann.prompt(session, "late"))["stopReason"] == "end_turn"
    while len(ann.texts) < 2:
        ann.hear()
    assert ann.texts == ["you said late", "and another thing"]


def test_after_its_agent_was_killed_a_session_goes_on_with_its_history(
    gateway: RunningGateway, editors: list[Editor], tmp_path: Path
) -> None:
    ann, bob = editors
    session = ann.call("session/new", cwd=str(tmp_path), mcpServers=[])["sessionId"]
    ann.end(ann.prompt(session, "one"))
    pid = int(gateway.read_log_until("agent new started with pid").rstrip().split()[-1])
    os.kill(pid, signal.SIGKILL)
    gateway.read_log_until("agent new was ended by SIGKILL")
    assert ann.end(ann.prompt(session, "two"))["stopReason"] == "end_turn"
    assert ann.texts == ["you said one", "you said two"]
    bob.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
    assert bob.texts == ["you said one", "you said two"]
