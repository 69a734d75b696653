"""`acp-gateway watch` in a terminal and in a pipe, as a person would run it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.security.private_file import login_name
from examples.demo_web_agent import BEFORE, FILE
from tests.end_to_end.fake_ssh import make_fake_ssh
from tests.end_to_end.playing import Editor, ask, editor, playing_gateway, said, tool
from tests.end_to_end.switch import Switch
from tests.end_to_end.terminals import terminal
from tests.kit.running import ENVIRONMENT, PROGRAM, RunningGateway, lines_of, prepare, start_gateway
from tests.kit.updates import HOSTILE, plan

USER = login_name(os.geteuid())

ROOT = Path(__file__).parents[2]

EDIT = {"content": [{"type": "diff", "path": "/shop.py", "oldText": "a\n", "newText": "b\n"}]}


def content(text: str) -> list[dict[str, Any]]:
    """Return the content of a tool call: a diff, and output."""
    return [
        {"type": "diff", "path": text, "oldText": text, "newText": f"{text}\n{text}"},
        {"type": "content", "content": {"type": "text", "text": text}},
    ]


PLAYS = {
    "work": [
        said("I look.", "agent_thought_chunk"),
        said("First the tests.\n"),
        tool("t1", title="Read tests", status="completed"),
        tool("t2", title="Edit shop.py", **EDIT),
        ask("t2", "Edit shop.py"),
        said(" Done \x1b]0;title\x07."),
    ],
    "hostile": [
        step
        for number, text in enumerate(HOSTILE.values())
        for step in (
            said(text),
            said(text, "agent_thought_chunk"),
            tool(f"h{number}", title=text, status="failed", content=content(text), locations=[{"path": text}]),
            {"update": plan((text, text))},
        )
    ],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with playing_gateway(tmp_path_factory.mktemp("gateway"), PLAYS) as running:
        yield running


@pytest.fixture
def working(gateway: RunningGateway) -> Iterator[tuple[Editor, str]]:
    """An editor with a session, which ends with the test."""
    with editor(gateway) as made:
        session = made.new_session()
        made.prompt(session, "hello")
        yield made, session
        made.call("session/delete", sessionId=session)


def address(gateway: RunningGateway, transport: str = "tcp") -> list[str | Path]:
    trust = ["--pin", gateway.pin] if transport in ("wss", "tcp+tls") else []
    return [gateway.urls[transport], "--token-file", gateway.token_file, *trust]


def watch_in_pipe(gateway: RunningGateway, *options: str) -> subprocess.Popen[bytes]:
    command = [*PROGRAM, "watch", *map(str, address(gateway)), *options]
    return subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


HISTORY = ["> hello", "", "hello"]

BEFORE_THE_ANSWER = [
    *("> work", "", "~ I look.", "", "First the tests.", "● Read tests", "○ Edit shop.py"),
    *("    /shop.py +1 -1", "    - a", "    + b"),
    *("? May the agent do this: Edit shop.py", "  [y] Allow   [2] Always allow   [n] Reject"),
]


@pytest.mark.parametrize("transport", ["wss", "tcp+tls", "unix"])
def test_the_only_live_session_is_shown_and_its_question_answered_by_a_key(
    gateway: RunningGateway, working: tuple[Editor, str], transport: str
) -> None:
    made, session = working
    with terminal("watch", *address(gateway, transport)) as watching:
        watching.until(lambda: watching.lines == HISTORY)
        turn = made.begin_prompt(session, "work")
        watching.until_shown("[n] Reject")
        assert watching.lines == [*HISTORY, "", *BEFORE_THE_ANSWER]
        watching.press_until_shown("n", "has decided")
        assert made.result(turn)["stopReason"] == "end_turn"
        watching.until_shown("has ended")
        assert [line for line in watching.lines if line.strip("n") or not line][-4:] == [
            *(f"-- {USER} has decided: Reject", "", "decided: no Done \\x1b]0;title\\x07.", "-- the turn has ended")
        ]
        watching.type("\x03")
        assert watching.end() == 0
        assert watching.screen.title == ""


def test_one_of_several_sessions_is_chosen_from_a_list(gateway: RunningGateway, working: tuple[Editor, str]) -> None:
    made, _ = working
    other = made.new_session()
    made.prompt(other, "another one")
    with terminal("watch", *address(gateway)) as watching:
        watching.until_shown("Which one")
        (row,) = [line for line in watching.lines if "hello" in line]
        assert row.split()[1:3] == ["hello", "play"]
        watching.type(f"{row.split()[0]}\r")
        watching.until_shown("> hello")
        watching.type("\x03")
        assert watching.end() == 0
    done = watch_in_pipe(gateway)
    assert done.communicate(timeout=60)[0] == b""
    assert done.returncode == 2
    made.call("session/delete", sessionId=other)


def test_a_pipe_gets_plain_text_and_no_questions(gateway: RunningGateway, working: tuple[Editor, str]) -> None:
    made, session = working
    with watch_in_pipe(gateway, session) as watching, terminal("watch", *address(gateway)) as deciding:
        lines = lines_of(watching)
        written = [next(lines).decode()]
        deciding.until_shown("hello")
        turn = made.begin_prompt(session, "work")
        deciding.until_shown("[n] Reject")
        deciding.press_until_shown("y", "has decided")
        made.result(turn)
        for line in lines:
            written.append(line.decode())
            if "has ended" in written[-1]:
                break
        watching.terminate()
        assert watching.wait(60) == 0
    assert written[:4] == ["> hello", "", "hello", ""]
    assert "? May the agent do this: Edit shop.py" not in written
    assert f"-- {USER} has decided: yes" in written
    assert all(line.isprintable() for line in written)


def test_json_has_a_line_for_each_update_and_event(gateway: RunningGateway, working: tuple[Editor, str]) -> None:
    made, session = working
    with watch_in_pipe(gateway, session, "--json") as watching:
        lines = map(json.loads, lines_of(watching))
        types = []
        for line in lines:
            types.append(line["type"])
            if line["type"] == "opened":
                made.prompt(session, "again")
            elif line["type"] == "turn_ended" and "opened" in types:
                assert line["stopReason"] == "end_turn"
                break
        watching.terminate()
        assert watching.wait(60) == 0
    assert types == [
        *["update"] * 2,
        "turn_ended",
        "opened",
        *(["update", "turn_started"] if types[4] == "update" else ["turn_started", "update"]),
        "update",
        "turn_ended",
    ]


def test_the_end_of_the_session_ends_it(gateway: RunningGateway, working: tuple[Editor, str]) -> None:
    made, _ = working
    session = made.new_session()
    with watch_in_pipe(gateway, session) as watching:
        lines = lines_of(watching)
        made.prompt(session, "hello")
        while next(lines) != b"-- the turn has ended":
            made.prompt(session, "hello")
        made.call("session/delete", sessionId=session)
        assert list(lines)[-1] == b"-- the session was deleted"
        assert watching.wait(60) == 0


def test_a_session_that_does_not_exist_is_an_error_with_the_exit_code_of_connect(gateway: RunningGateway) -> None:
    done = watch_in_pipe(gateway, "nonexistent")
    assert done.communicate(timeout=60)[0] == b""
    assert done.returncode == 4


def test_a_cut_connection_comes_back_and_nothing_is_missing(
    gateway: RunningGateway, working: tuple[Editor, str]
) -> None:
    made, session = working
    address, _, port = gateway.urls["tcp"].rpartition(":")
    with Switch(int(port)).running() as switch:
        url = f"{address}:{switch.port}"
        with terminal("watch", url, session, "--token-file", gateway.token_file) as watching:
            watching.until(lambda: watching.lines == HISTORY)
            switch.cut()
            watching.until_shown("-- the connection was lost; connecting again")
            made.prompt(session, "later")
            switch.mend()
            watching.until_shown("-- the turn has ended")
            assert watching.lines[4].startswith("-- connected again after ")
            assert watching.lines[5:] == ["", "> later", "", "later", "-- the turn has ended"]


def test_a_host_over_ssh_is_watched_as_any_other(
    gateway: RunningGateway, working: tuple[Editor, str], tmp_path: Path
) -> None:
    fake = make_fake_ssh(tmp_path / "ssh")
    config = fake.home / ".config/acp-gateway/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(gateway.config.read_text())
    hosts = tmp_path / "laptop/acp-gateway/hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text(f'[hosts.box]\nurl = "ssh://ann@box{gateway.urls["unix"].removeprefix("unix://")}"\n')
    with terminal("watch", "box", PATH=fake.path, XDG_CONFIG_HOME=str(tmp_path / "laptop")) as watching:
        watching.until(lambda: watching.lines == HISTORY)
        watching.type("\x03")
        assert watching.end() == 0


def test_a_guest_watches_its_session(gateway: RunningGateway, working: tuple[Editor, str]) -> None:
    made, session = working
    other = made.new_session()
    token = gateway.save_token("share", session, "--observe", "--token")
    with terminal("watch", gateway.urls["tcp"], "--token-file", token) as watching:
        watching.until(lambda: watching.lines == HISTORY)
        turn = made.begin_prompt(session, "work")
        watching.until_shown("○ Edit shop.py")
        made.call("session/delete", sessionId=other)
        made.call("session/delete", sessionId=session)
        assert made.result(turn)["stopReason"] == "cancelled"
        assert watching.end() == 0
        assert watching.lines[-1] == "-- the session was deleted"


def test_an_agent_of_version_2_shows_its_plans_its_changes_and_its_terminal(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / FILE).write_text(BEFORE)
    command = [sys.executable, "-m", "examples.demo_web_agent", "--protocol", "2", "--delay", "0"]
    agents = f"[agents.lively]\ncommand = {json.dumps(command)}\nenv = {{ PYTHONPATH = {json.dumps(str(ROOT))} }}\n"
    pin = prepare(tmp_path, f"{agents}[workspaces.shop]\nroot = {json.dumps(str(shop))}\n")
    gateway = start_gateway(tmp_path, pin)
    with editor(gateway) as made:
        session = made.new_session(str(shop))
        with terminal("watch", *address(gateway), columns=400, rows=90) as watching:
            turn = made.begin_prompt(session, "Correct it")
            watching.until_shown("[n] Reject")
            watching.press_until_shown("y", "has decided")
            assert made.result(turn)["stopReason"] == "end_turn"
            watching.until_shown("has ended")
            # A key that was pressed again, after the question was decided, is echoed.
            lines = [line for line in watching.lines if line.strip("y")]
            watching.type("\x03")
            assert watching.end() == 0
    at = lines.index(f"    {shop}/old_basket.py deleted")
    assert lines[at - 1 : at + 2] == [
        f"    {shop}/test_basket.py moved from {shop}/test.py",
        f"    {shop}/old_basket.py deleted",
        f"    {shop}/basket.png added (binary)",
    ]
    at = lines.index("● python -m pytest test_basket.py exit code 0")
    assert "collected 4 items" in lines[at - 3]
    assert "4 passed" in lines[at - 1]
    # It may have joined in the middle of the turn.
    assert [line for line in lines if line.startswith("Plan")][-4:] == [
        *("Plan notes 0/1", "Plan work 2/3", "Plan work 3/3", "Plan notes was removed")
    ]
    assert gateway.stop() == 0
