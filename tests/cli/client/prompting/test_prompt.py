"""The command `prompt`: its arguments, what it prints, and its exit codes. As a program: end_to_end/test_prompt.py."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.cli.client.prompting import prompt as module
from acp_gateway.cli.client.prompting import sent_prompt
from acp_gateway.cli.client.prompting.sent_prompt import SentPrompt
from acp_gateway.client import control
from acp_gateway.client.dialing import Destination
from acp_gateway.errors import Forbidden, GatewayError, ProtocolError, Unreachable
from acp_gateway.terminal.content import Option
from acp_gateway.terminal.dialogue import Answered, Asked, Event, Failed, Opened, Question, TurnStarted, Updated
from tests.kit.doubles import run_command as run
from tests.kit.updates import said

GATEWAY = "tcp://127.0.0.1:7"
AGENT = ("--agent", "demo")
OPENED = Opened("s", (), "")
ASKED = Asked(Question(7, {"title": "Run make"}, (Option("a", "Allow", "allow_once"),)))


class Play:
    """The events of a prompt, in place of a gateway."""

    def __init__(self) -> None:
        self.events: list[list[Event]] = [[OPENED], [TurnStarted("me"), Updated(said("It is \x1b done."), "")]]
        self.number: int | None = None
        self.texts: list[str] = []
        self.folders: list[str] = []
        self.destinations: list[Destination] = []
        self.timeouts: list[float] = []
        self.keeps_prompts = False
        self.output: list[bytes] = []

    async def follow(
        self, sent: SentPrompt, destination: Callable[[], Destination], *_: object, timeout: float
    ) -> int | None:
        await trio.lowlevel.checkpoint()
        self.destinations.append(destination())
        self.folders.append(sent.dialogue.cwd)
        self.timeouts.append(timeout)
        self.texts.append(sent._text)
        sent.dialogue.session, sent.dialogue.keeps_prompts = "s", self.keeps_prompts
        for events in self.events:
            sent.receive(events)
        self.output += sent.dialogue.output
        return self.number


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    made = Play()
    monkeypatch.setattr(sent_prompt, "follow_prompt", made.follow)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return made


def test_without_wait_stdout_has_the_id_of_the_session_and_a_node_s_is_in_it(play: Play) -> None:
    done = run("prompt", GATEWAY, "go", *AGENT)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "s\n", "")
    assert run("prompt", GATEWAY, "go", "--agent", "gpu/demo").stdout == "gpu/s\n"
    assert run("prompt", GATEWAY, "go", "--session", "gpu/s").stdout == "gpu/s\n"
    assert play.texts == ["go"] * 3
    assert [(one.agent, one.session) for one in play.destinations[1:]] == [("gpu/demo", None), (None, "gpu/s")]


def test_with_wait_stdout_has_the_answer_as_it_is_and_stderr_the_rest(play: Play) -> None:
    play.events.append([Answered("end_turn")])
    done = run("prompt", GATEWAY, "go", *AGENT, "--wait")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "It is \x1b done.\n", "acp-gateway: session s\n")


WATCH = f"`acp-gateway watch {GATEWAY} s`"


@pytest.mark.parametrize(
    ("events", "number", "code", "answer", "words"),
    [
        ([Answered("cancelled")], None, 12, "It is \x1b done.\n", "the turn was stopped"),
        ([Failed("session/prompt", "no credit", -32603)], None, 8, "", "the turn has failed: no credit"),
        ([Failed("session/prompt", "9 wait", -32600)], None, 4, "", "the prompt was refused: 9 wait"),
        ([ASKED], None, 13, "", f"took more than 9 s: the agent waits for an answer: Run make; {WATCH} shows"),
        ([], None, 124, "", f"took more than 9 s: the prompt stays in session s, and the agent goes on: {WATCH}"),
        ([], signal.SIGINT, 130, "", f"waiting: the prompt stays in session s, and the agent goes on: {WATCH}"),
        ([], signal.SIGTERM, 143, "", "no longer waiting"),
    ],
)
def test_each_other_end_has_an_exit_code_and_one_line(
    play: Play, events: list[Event], number: int | None, code: int, answer: str, words: str
) -> None:
    play.events.append(events)
    play.number = number
    done = run("prompt", GATEWAY, "go", *AGENT, "--wait", "--timeout", "9")
    assert (done.exit_code, done.stdout, play.timeouts) == (code, answer, [9.0])
    assert done.stderr.startswith("acp-gateway: session s\nacp-gateway: ")
    assert words in done.stderr.splitlines()[-1]


def test_a_prompt_for_later_tells_the_time_on_stderr_and_the_clock_of_this_machine_to_the_gateway(play: Play) -> None:
    kept = Answered("cancelled", is_kept=True, due="2026-12-01T00:30:00Z")
    play.keeps_prompts, play.events = True, [[OPENED], [kept]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "IST-5:30")
        time.tzset()
        done = run("prompt", GATEWAY, "go", *AGENT, "--at", "06:00", "--auto")
    time.tzset()
    assert (done.exit_code, done.stdout) == (0, "s\n")
    assert done.stderr == "acp-gateway: it is to be sent at 2026-12-01 06:00\n"
    (message,) = [json.loads(text) for text in play.output if b"session/prompt" in text]
    assert message["params"]["_meta"]["acp-gateway"]["queue"] == {"at": "06:00", "offset": 330, "auto": True}


def test_a_session_that_does_not_open_in_time_is_unreachable_and_a_refusal_prints_no_id(play: Play) -> None:
    play.events = []
    done = run("prompt", GATEWAY, "go", *AGENT, "--wait", "--timeout", "9")
    assert (done.exit_code, done.stdout) == (Unreachable.exit_code, "")
    assert done.stderr.endswith("took more than 9 s: the prompt was not sent\n")
    play.events = [[OPENED], [Failed("session/prompt", "9 wait", -32600)]]
    assert run("prompt", GATEWAY, "go", *AGENT).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is no prompt"),
        ([GATEWAY], "there is no prompt"),
        (["box"], "there is no prompt"),
        ([GATEWAY, " "], "the prompt is empty"),
        ([GATEWAY, "go", "--timeout", "9"], "--timeout is for --wait"),
        ([GATEWAY, "go", "--at", "06:00", "--wait"], "--wait is for a prompt that is sent now"),
        ([GATEWAY, "go", "--auto"], "--auto is for --at"),
        ([GATEWAY, "go", "--session", "s", "--new"], "are for a new session"),
        ([GATEWAY, "go", "--session", "s", "--cwd", "/"], "are for a new session"),
        ([GATEWAY, "go", "--session", "s", *AGENT], "are for a new session"),
        ([GATEWAY, "go", "--session", ""], "no session has the id"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    play: Play, tmp_path: Path, arguments: list[str], words: str
) -> None:
    _write_hosts(tmp_path)
    done = run("prompt", *arguments)
    assert (done.exit_code, words in done.stderr, play.texts) == (2, True, []), done.output


def _write_hosts(directory: Path) -> None:
    (directory / "acp-gateway").mkdir()
    hosts = f'[hosts.box]\nurl = "{GATEWAY}"\nagent = "demo"\nmaps = {{ "{directory}/here" = "/srv/there" }}\n'
    (directory / "acp-gateway/hosts.toml").write_text(hosts)


def test_the_host_may_be_left_out_and_the_folder_is_that_of_its_path_maps(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_hosts(tmp_path)
    (tmp_path / "here/sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here/sub")
    play.events.append([ASKED])
    done = run("prompt", "go", "--wait", "--timeout", "9")
    assert "`acp-gateway watch s`" in done.stderr
    for cwd in "..", "/srv/other", str(tmp_path / "here"):
        run("prompt", "box", "go", "--cwd", cwd)
    assert play.folders == ["/srv/there/sub", "/srv/there", "/srv/other", "/srv/there"]


def test_the_prompt_comes_from_stdin_and_that_is_bounded_text(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("prompt", GATEWAY, "-", *AGENT, input="Fix ä\nthat\n\n").exit_code == 0
    assert play.texts == ["Fix ä\nthat"]
    monkeypatch.setattr(module, "PROMPT_SIZE", 3)
    assert "more than 3 bytes" in run("prompt", GATEWAY, "-", *AGENT, input="four").stderr
    assert "the prompt is empty" in run("prompt", GATEWAY, "-", *AGENT, input="\n").stderr


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ({"defaultAgent": "gpu/demo"}, "gpu/s"),
        ({"defaultAgent": "demo"}, "s"),
        (ProtocolError("it is another server"), "s"),
        (Forbidden("no control connections"), "s"),
    ],
)
def test_a_session_of_the_default_agent_has_the_name_of_its_node(
    play: Play, monkeypatch: pytest.MonkeyPatch, answer: dict[str, str] | GatewayError, name: str
) -> None:
    async def request(*_: object, **__: object) -> Any:
        await trio.lowlevel.checkpoint()
        if isinstance(answer, GatewayError):
            raise answer
        return answer

    monkeypatch.setattr(control, "request", request)
    assert run("prompt", GATEWAY, "go").stdout == f"{name}\n"
