"""Sessions in a list."""

from typing import Any

import pytest

from acp_gateway.terminal.rendering import Style
from acp_gateway.terminal.session_lines import joinable, ordered, session_line
from tests.terminal.updates import HOSTILE, plain_text


def session(name: str, **members: object) -> dict[str, Any]:
    described = {"sessionId": name, "agent": "demo", "cwd": "/srv/shop", "title": f"Title {name}", "live": True}
    return described | {"turn": False, "waiting": []} | members


AWAY = {"unreachableSince": "2026-11-23T17:00:00Z"}


def test_sessions_with_questions_come_first_then_live_ones_then_the_latest() -> None:
    sessions = [
        session("past-1", live=False),
        session("past-2", live=False),
        session("live-1"),
        session("asks", waiting=[{}]),
        session("live-2", turn=True),
        session("away", waiting=[{}], **AWAY),
        session("?", cwd=None, waiting=[{}]),
    ]
    assert [one["sessionId"] for one in ordered(sessions)] == ["asks", "away", "live-2", "live-1", "past-2", "past-1"]


def test_each_session_that_can_be_joined_is_listed_once() -> None:
    sessions = [session("s"), session("t", cwd=None), session("past", cwd=None, live=False), session("s", turn=True)]
    assert joinable(sessions) == [session("s", turn=True), session("past", cwd=None, live=False)]


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"waiting": [{}], "turn": True}, "? Title s  demo shop\n"),
        ({"turn": True}, "◐ Title s  demo shop\n"),
        ({}, "● Title s  demo shop\n"),
        ({"live": False, "cwd": None}, "○ Title s  demo\n"),
        ({"title": None, "cwd": "/"}, "● (no title)  demo\n"),
        ({"agent": "gpu1/demo"}, "● gpu1: Title s  demo shop\n"),
        ({"agent": "gpu1/demo", "live": False}, "○ gpu1: Title s  demo shop\n"),
        ({"agent": "gpu1/demo", "turn": True, **AWAY}, "◌ gpu1 away: Title s  demo shop\n"),
    ],
)
def test_a_session_is_a_line_with_its_state(members: dict[str, Any], line: str) -> None:
    described = session("s", **members)
    assert plain_text([session_line(described)]) == line


def test_the_session_that_is_shown_is_marked() -> None:
    assert session_line(session("s"), is_open=True)[1].style is Style.TOOL
    assert session_line(session("s"))[1].style is Style.PLAIN


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_titles_and_folders_stay_in_their_line(text: str) -> None:
    line = plain_text([session_line(session("s", title=text, agent=text, cwd=f"/{text}"))])
    assert line[:-1].isprintable()
