"""A gateway whose agent plays what a test says, and an editor that sends it prompts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.running import AGENTS, ENVIRONMENT, WORK, RunningGateway, lines_of, prepare, start_gateway

PLAYING_AGENT = AGENTS.parent / "agents" / "playing_agent.py"

MODES = {
    "currentModeId": "code",
    "availableModes": [{"id": "code", "name": "Code"}, {"id": "plan", "name": "Plan first"}],
}

OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "always", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


def said(text: str, kind: str = "agent_message_chunk") -> dict[str, Any]:
    """Return the step that sends a chunk of text."""
    return {"update": {"sessionUpdate": kind, "content": {"type": "text", "text": text}}}


def tool(tool_id: str, **members: object) -> dict[str, Any]:
    """Return the step that sends a tool call."""
    return {"update": {"sessionUpdate": "tool_call", "toolCallId": tool_id, **members}}


def ask(tool_id: str, title: str, **members: object) -> dict[str, Any]:
    """Return the step that asks for permission."""
    return {"ask": {"toolCall": {"toolCallId": tool_id, "title": title, **members}, "options": OPTIONS}}


@contextmanager
def playing_gateway(
    directory: Path, plays: dict[str, Any], *, more: str = "", steers: bool = False
) -> Iterator[RunningGateway]:
    """A gateway in `directory` with an agent `play` for these plays. `more` is further configuration."""
    (directory / "plays.json").write_text(json.dumps({"new": {"modes": MODES}, "plays": plays, "steers": steers}))
    command = [sys.executable, "-I", "-S", str(PLAYING_AGENT), str(directory / "plays.json")]
    pin = prepare(directory, f"[agents.play]\ncommand = {json.dumps(command)}\n{more}", more='default_agent = "play"')
    running = start_gateway(directory, pin)
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "Traceback" not in "".join(running.log)


class Editor:
    """An editor's end of `connect`: calls that wait for their answers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lines = lines_of(process)
        self._calls = 0

    def kill(self) -> None:
        """Kill the shim, without a word to the gateway."""
        self._process.kill()
        self._process.wait()

    def notify(self, method: str, **params: object) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def hears(self, method: str) -> Any:
        """Wait for a message of this method."""
        return next(message for message in map(json.loads, self._lines) if message.get("method") == method)

    def begin(self, method: str, **params: object) -> int:
        """Send a request, and return its id."""
        self._calls += 1
        self._send({"id": self._calls, "method": method, "params": params})
        return self._calls

    def _send(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def result(self, call: int) -> Any:
        """Wait for the result of a request."""
        for line in self._lines:
            message = json.loads(line)
            if message.get("id") == call and "method" not in message:
                return message["result"]
        raise AssertionError("the end")

    def until(self, call: int) -> list[Any]:
        """Wait for the response to a request, and return the messages before it."""
        heard: list[Any] = []
        for message in map(json.loads, self._lines):
            if message.get("id") == call and "method" not in message:
                return heard
            heard.append(message)
        raise AssertionError("the end")

    def respond(self, request: object, **result: object) -> None:
        """Answer a request of the agent."""
        self._send({"id": request, "result": result})

    def call(self, method: str, **params: object) -> Any:
        """Send a request, and wait for its result."""
        return self.result(self.begin(method, **params))

    def new_session(self, cwd: str = str(WORK)) -> str:
        """Open a session, and return its id."""
        session: str = self.call("session/new", cwd=cwd, mcpServers=[])["sessionId"]
        return session

    def begin_prompt(self, session: str, text: str) -> int:
        """Send a prompt, and return the id of the request."""
        return self.begin("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def prompt(self, session: str, text: str) -> str:
        """Send a prompt, and return the reason for the end of its turn."""
        reason: str = self.result(self.begin_prompt(session, text))["stopReason"]
        return reason


@contextmanager
def editor(gateway: RunningGateway, **capabilities: object) -> Iterator[Editor]:
    """An initialized editor with these capabilities."""
    command = gateway.connect_command("tcp")
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            made = Editor(process)
            made.call("initialize", protocolVersion=1, clientCapabilities=capabilities)
            yield made
        finally:
            process.kill()
