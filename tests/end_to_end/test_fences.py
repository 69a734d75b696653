"""Agents in fences, started by a gateway: what they reach, and what people are told."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.fence import bubblewrap, landlock
from tests.kit.running import PROGRAM, RunningGateway, prepare, run_program, start_gateway

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fences are Linux's")

MEANS = [
    pytest.param("landlock", marks=pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")),
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bubblewrap.find() is None, reason="bubblewrap is not there")),
]
REACHING = (sys.executable, str(Path(__file__).parent.parent / "agents" / "reaching_agent.py"))


class Fenced:
    """A gateway whose agent is fenced, with folders around it."""

    def __init__(self, root: Path, by: str, *, options: str = "", command: Sequence[str] = REACHING) -> None:
        self.root = root
        for name in ("gateway", "work", "other", "readonly", "home"):
            (root / name).mkdir(exist_ok=True)
        (root / "other/file").write_text("secret")
        (root / "readonly/file").write_text("shown")
        self.by, self.options, self.command = by, options, command
        self.pin = prepare(root / "gateway", self.sections("work", "readonly"))
        self.gateway: RunningGateway | None = None

    def sections(self, *workspaces: str) -> str:
        access = {"readonly": '\naccess = "read"'}
        folders = "".join(
            f'[workspaces.{name}]\nroot = "{self.root / name}"{access.get(name, "")}\n' for name in workspaces
        )
        return f'{folders}[agents.a]\ncommand = {json.dumps([*self.command])}\nfence = "{self.by}"\n{self.options}'

    def start(self) -> RunningGateway:
        self.gateway = start_gateway(self.root / "gateway", self.pin)
        return self.gateway

    def editor(self, *options: str) -> "Editor":
        assert self.gateway is not None
        return Editor(self.gateway.connect_command("tcp", *options))


class Editor:
    """An editor that uses the shim."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.last = 0
        self.told: list[str] = []
        self.initialized = self.request("initialize", {"protocolVersion": 1})

    def request(self, method: str, params: Any) -> Any:
        """Send a request, and return its result or its error. What comes before is kept; a permission is given."""
        assert self.process.stdout is not None
        self.last += 1
        self.send({"id": self.last, "method": method, "params": params})
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("method") == "session/request_permission":
                allowed = next(each for each in message["params"]["options"] if each["kind"] == "allow_once")
                outcome = {"outcome": "selected", "optionId": allowed["optionId"]}
                self.send({"id": message["id"], "result": {"outcome": outcome}})
            elif message.get("id") == self.last and "method" not in message:
                return message.get("result", message.get("error"))
            else:
                self.told.append(line.decode())
        raise AssertionError("the shim has ended")

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def open(self, folder: Path) -> Any:
        return self.request("session/new", {"cwd": str(folder), "mcpServers": []})

    def prompt(self, session: str, text: str) -> str:
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        return str(self.request("session/prompt", prompt)["_meta"]["result"])

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(params=MEANS)
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stack() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for each in reversed(opened):
        each()


def test_a_fenced_agent_works_in_its_workspaces_and_nowhere_else(by: str, tmp_path: Path, stack: list[Any]) -> None:
    fenced = Fenced(tmp_path, by)
    gateway = fenced.start()
    stack.append(gateway.stop)
    editor = fenced.editor()
    stack.append(editor.close)
    session = editor.open(tmp_path / "work")["sessionId"]
    assert editor.prompt(session, f"write {tmp_path}/work/new") == "7"
    assert (tmp_path / "work/new").read_text() == "written"
    assert editor.prompt(session, f"read {tmp_path}/readonly/file") == "shown"
    temporary = editor.prompt(session, "tell TMPDIR")
    assert editor.prompt(session, f"write {temporary}/new") == "7"
    assert not os.path.exists("/tmp/new")
    (tmp_path / "work/below").mkdir()
    assert editor.prompt(session, f"move {tmp_path}/work/new\n{tmp_path}/work/below/new") == "moved"
    for text in (
        f"write {tmp_path}/readonly/file",
        f"read {tmp_path}/other/file",
        f"write {tmp_path}/other/new",
        f"read {tmp_path}/gateway/config.toml",
        f"read {tmp_path}/gateway/state/tokens.json",
    ):
        assert editor.prompt(session, text) in (
            "Permission denied",
            "No such file or directory",
            "Read-only file system",
        ), text
    (agent,) = json.loads(run_program("status", "--config", gateway.config, "--json"))["agents"]
    assert agent["fence"] == by
    assert [listed["fence"] for listed in gateway.sessions()] == [by]
    audit = (tmp_path / "gateway/state/audit.jsonl").read_text().splitlines()
    (started,) = [event for line in audit if (event := json.loads(line))["event"] == "agent_started"]
    assert started["fence"] == by


def test_a_workspace_that_is_new_is_opened_by_a_restart_of_the_agent(by: str, tmp_path: Path, stack: list[Any]) -> None:
    fenced = Fenced(tmp_path, by)
    gateway = fenced.start()
    stack.append(gateway.stop)
    editor = fenced.editor()
    stack.append(editor.close)
    first = editor.open(tmp_path / "work")["sessionId"]
    config = gateway.config
    before = fenced.sections("work", "readonly")
    config.write_text(config.read_text().replace(before, fenced.sections("work", "readonly", "other")))
    gateway.process.send_signal(signal.SIGHUP)
    gateway.read_log_until("workspaces.other: new")
    # Nothing is open, so the agent was restarted at once, or is by the next request.
    answer = editor.open(tmp_path / "other")
    while "sessionId" not in answer:
        assert answer["data"]["reason"] == "outside_fence"
        gateway.read_log_until("agent a is stopped")
        answer = editor.open(tmp_path / "other")
    assert editor.prompt(answer["sessionId"], f"read {tmp_path}/other/file") == "secret"
    assert first != answer["sessionId"]


def test_people_on_one_gateway_have_homes_of_their_own(by: str, tmp_path: Path, stack: list[Any]) -> None:
    gateway = Fenced(tmp_path, by, options="homes = true\n").start()
    stack.append(gateway.stop)
    homes = {}
    for name in ("ann", "bob"):
        token = gateway.save_token("token", "create", "--label", name, "--identity", name)
        editor = Editor([*PROGRAM, "connect", gateway.urls["tcp"], "--token-file", str(token)])
        stack.append(editor.close)
        session = editor.open(tmp_path / "work")["sessionId"]
        homes[name] = editor.prompt(session, "tell HOME")
        assert editor.prompt(session, f"write {homes[name]}/login") == "7"
        for home in [home for other, home in homes.items() if other != name]:
            assert editor.prompt(session, f"read {home}/login") in ("Permission denied", "No such file or directory")
    assert homes["ann"] == str(tmp_path / "gateway/state/homes/ann")


def test_an_agent_that_its_fence_ends_names_the_option(by: str, tmp_path: Path, stack: list[Any]) -> None:
    fenced = Fenced(tmp_path, by, command=[sys.executable, "-c", f"open('{tmp_path}/other/file')"])
    stack.append(fenced.start().stop)
    editor = fenced.editor()
    stack.append(editor.close)
    message = editor.initialized["message"]
    assert f"its fence refuses {tmp_path}/other/file: add it to readable of [agents.a]" in message


def test_doctor_tries_an_agent_and_names_the_option_for_what_its_fence_refuses(by: str, tmp_path: Path) -> None:
    script = f"import os, sys; os.listdir('{tmp_path}/work'); open('{tmp_path}/other/file')"
    done = doctor(Fenced(tmp_path, by, command=[sys.executable, "-c", script]))
    assert f"a, fenced by {by}, does not answer initialize" in done
    assert f'if a may use that: readable = ["{tmp_path}/other/file"]' in done


def test_doctor_tells_that_a_fenced_agent_answers(by: str, tmp_path: Path) -> None:
    assert f"a, fenced by {by}, answers initialize and answers session/new" in doctor(Fenced(tmp_path, by))


def doctor(fenced: Fenced) -> str:
    """Return what `doctor --agent` prints for the agent of a configuration."""
    config = str(fenced.root / "gateway/config.toml")
    command = [*PROGRAM, "doctor", "--config", config, "--agent", "a"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr
