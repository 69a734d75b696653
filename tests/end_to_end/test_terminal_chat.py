"""`acp-gateway chat` in a terminal, as a person would use it."""

import re
from collections.abc import Iterator

import pytest

from tests.end_to_end.playing import ask, editor, playing_gateway, said, tool
from tests.end_to_end.terminals import Terminal, terminal
from tests.kit.running import RunningGateway
from tests.kit.updates import HOSTILE, plan

PLAYS = {
    "work": [
        said("I look at \x1b]0;title\x07."),
        tool("t", title="Run make", rawInput={"command": "make test"}),
        ask("t", "Run make", rawInput={"command": "make test"}),
    ],
    "wait": [{"wait": True}],
    "hostile": [
        step
        for number, text in enumerate(HOSTILE.values())
        for step in (said(text), tool(f"h{number}", title=text, status=text), {"update": plan((text, text))})
    ],
}

F3, F4, F10, ESC, DOWN = "\x1bOR", "\x1bOS", "\x1b[21~", "\x1b", "\x1b[B"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with playing_gateway(tmp_path_factory.mktemp("gateway"), PLAYS) as running:
        yield running


def chat(gateway: RunningGateway, *options: str) -> list[str]:
    return ["chat", gateway.urls["wss"], "--token-file", str(gateway.token_file), "--pin", gateway.pin, *options]


def parts(running: Terminal) -> list[str]:
    """Return the lines of the transcript and below it."""
    return [line[33:].rstrip() for line in running.lines[1:-1]]


def test_a_new_session_a_permission_a_mode_and_a_cancelled_turn(gateway: RunningGateway) -> None:
    with terminal(*chat(gateway), columns=100, rows=30) as running:
        running.until_shown("0 sessions")
        running.type(F3)
        running.until_shown("New session")
        running.type("\r")
        running.until(lambda: running.lines[0].endswith("ready · Code"))
        running.type("work\r")
        running.until_shown("[n] Reject")
        assert [line for line in parts(running) if line] == [
            *("> work", "I look at \\x1b]0;title\\x07.", "○ Run make"),
            f"┌{'─' * 65}┐",
            f"│{'? May the agent do this: Run make':<65}│",
            f"│{'    $ make test':<65}│",
            f"│{'  [y] Allow   [2] Always allow   [n] Reject':<65}│",
            f"└{'─' * 65}┘",
            ">",
        ]
        running.press_until_shown("y", "has decided")
        running.until_shown("the turn has ended")
        # Of the same key, more may have been pressed.
        running.type("\x7f" * 100)
        running.type(F4)
        running.until_shown("Plan first")
        running.type(f"{DOWN}\r")
        running.until_shown("mode: plan")
        running.type("wait\r")
        running.until(lambda: "working" in running.lines[0])
        running.type(ESC)
        running.until_shown("the turn has ended: cancelled")
        assert running.screen.title == ""
        running.type(F10)
        assert running.end() == 0
        # The screen that was there before is back.
        assert "\x1b[?1049l" in running.output.decode()


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_colours_are_left_out_with_no_color(variables: dict[str, str], coloured: bool, gateway: RunningGateway) -> None:
    with terminal(*chat(gateway), columns=100, rows=30, **variables) as running:
        running.until_shown("Enter opens one")
        running.type(F3)
        running.until_shown("New session")
        running.type("\r")
        running.until(lambda: running.lines[0].endswith("ready · Code"))
        running.type(F10)
        assert running.end() == 0
    numbers = {number for found in re.findall(rb"\x1b\[([0-9;]*)m", running.output) for number in found.split(b";")}
    colours = {number for number in numbers if re.fullmatch(rb"[349][0-8]|10[0-7]", number)}
    # The bar at the top stands out all the same.
    assert (bool(colours), b"7" in numbers) == (coloured, not coloured)


def test_a_terminal_without_a_cursor_is_refused(gateway: RunningGateway) -> None:
    with terminal(*chat(gateway), TERM="dumb") as running:
        assert running.end() == 2
        assert b"TERM is dumb; `acp-gateway watch` needs none" in b" ".join(running.output.split())
        assert b"\x1b" not in running.output


def test_a_session_is_shared_with_an_editor(gateway: RunningGateway) -> None:
    with editor(gateway) as made:
        session = made.new_session()
        made.prompt(session, "from the editor")
        with terminal(*chat(gateway, session), columns=60) as running:
            running.until(lambda: sum("from the editor" in line for line in running.lines[1:]) == 2)
            made.prompt(session, "and more")
            running.until(lambda: sum("and more" in line for line in running.lines[1:]) == 2)
            running.type("from the terminal\r")
            running.until(lambda: sum("from the terminal" in line for line in running.lines[1:]) == 2)
            running.type("\x03")
            assert running.end() == 0


def test_a_refused_token_is_an_error_after_the_screen_is_restored(gateway: RunningGateway) -> None:
    token = gateway.directory / "wrong"
    token.touch(0o600)
    token.write_text(f"acpgw_{'a' * 43}")
    command = ["chat", gateway.urls["tcp"], "--token-file", str(token)]
    with terminal(*command) as running:
        assert running.end() in (3, 4)
        assert any(line.startswith("acp-gateway: ") for line in running.lines)


def test_hostile_texts_reach_the_terminal_as_text(gateway: RunningGateway) -> None:
    with editor(gateway) as made:
        session = made.new_session()
        with terminal(*chat(gateway, session), columns=60, rows=50) as running:
            running.until_shown("· ready")
            made.prompt(session, "hostile")
            running.until_shown("-- the turn has ended")
            running.type(F10)
            assert running.end() == 0
    # Colours, places of the cursor, modes that are asked, set and reset: no titles, no links, no clipboard.
    sequences = re.findall(r"\x1b(\[[?>0-9;]*\$?[A-Za-z@]|.)", running.output.decode())
    assert {one for one in sequences if not re.fullmatch(r"\[[?>0-9;]*([mHKJABCDhl@]|\$p)|[()78=>]", one)} == set()
    assert "\x9b" not in running.output.decode()
    assert running.screen.title == ""
