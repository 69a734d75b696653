"""Sessions in a list."""

from datetime import UTC, datetime
from typing import Any

import pytest

from acp_gateway.terminal.rendering import Style
from acp_gateway.terminal.session_lines import age_of, by_use, joinable, ordered, session_line, tell_apart, with_words
from tests.kit.updates import HOSTILE, plain_text


def session(name: str, **members: object) -> dict[str, Any]:
    described = {"sessionId": name, "agent": "demo", "cwd": "/srv/shop", "title": f"Title {name}", "live": True}
    return described | {"turn": False, "waiting": []} | members


NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)

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


def test_of_each_kind_the_last_used_is_first() -> None:
    def used(name: str, hour: int | None, **members: object) -> dict[str, Any]:
        return session(name, updatedAt=None if hour is None else f"2026-11-24T{hour:02}:00:00Z", **members)

    sessions = [
        used("live-9", 9),
        used("live-11", 11),
        used("live-?", None),
        used("asks-1", 1, waiting=[{}]),
        used("asks-2", 2, waiting=[{}]),
        used("away-12", 12, **AWAY),
        used("past-12", 12, live=False, cwd=None),
        session("asks-bad", waiting=[{}], updatedAt="0001-01-01T00:00:00"),
    ]
    assert [one["sessionId"] for one in by_use(sessions)] == [
        *("asks-2", "asks-1", "asks-bad", "live-11", "live-9", "live-?", "away-12", "past-12")
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [("", ["a", "b"]), ("shop", ["a", "b"]), ("TITLE a", ["a"]), ("title nosuch", []), ("other b", ["b"])],
)
def test_sessions_are_found_by_the_words_that_they_have(text: str, found: list[str]) -> None:
    sessions = [session("a"), session("b", agent="other", title=None)]
    assert [one["sessionId"] for one in with_words(sessions, text)] == found


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
    assert plain_text([session_line(session("s", **members))]) == line


def test_sessions_of_one_title_are_told_apart_by_age_and_the_end_of_their_ids() -> None:
    def made(name: str, title: str | None, updated: str | None = None) -> dict[str, Any]:
        return session(name, title=title, updatedAt=updated)

    alike = [made("a-1234", "Fix", "2026-11-24T11:57:00Z"), made("b-5678", "Fix"), made("c", "Other")]
    assert tell_apart(alike, NOW) == {"a-1234": "3 min 1234", "b-5678": "5678"}
    assert tell_apart([made("x-abcd", None), made("y-abcd", None)], NOW) == {"x-abcd": "x-abcd", "y-abcd": "y-abcd"}
    assert tell_apart([made("z\x1b", "T"), made("1", "T")], NOW) == {"z\x1b": "z\\x1b", "1": "1"}
    assert plain_text([session_line(alike[0], mark="3 min 1234")]) == "● 3 min 1234 Fix  demo shop\n"


def test_sessions_of_one_title_are_told_apart_by_their_ids_on_their_machines() -> None:
    places = [("gpu1/s1", "gpu1/demo"), ("gpu1/s2", "gpu1/demo"), ("gpu2/s1", "gpu2/demo"), ("a/s1", "demo")]
    sessions = [{"sessionId": name, "agent": agent, "title": "Fix"} for name, agent in places]
    assert tell_apart(sessions, NOW) == {"gpu1/s1": "s1", "gpu1/s2": "s2", "gpu2/s1": "s1", "a/s1": "a/s1"}


@pytest.mark.parametrize(
    ("updated", "age"),
    [
        ("2026-11-24T12:00:01Z", "now"),
        ("2026-11-24T11:59:01Z", "now"),
        ("2026-11-24T11:59:00Z", "1 min"),
        ("2026-11-24T13:00:00+03:00", "2 h"),
        ("2026-11-21T11:00:00Z", "3 d"),
        ("2026-11-21T11:00:00", ""),
        ("yesterday", ""),
        (None, ""),
    ],
)
def test_the_age_is_that_of_the_last_message(updated: str | None, age: str) -> None:
    assert age_of(session("s", updatedAt=updated), NOW) == age


def test_the_session_that_is_shown_is_marked() -> None:
    assert session_line(session("s"), is_open=True)[1].style is Style.TOOL
    assert session_line(session("s"))[1].style is Style.PLAIN


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_titles_and_folders_stay_in_their_line(text: str) -> None:
    assert plain_text([session_line(session("s", title=text, agent=text, cwd=f"/{text}"))])[:-1].isprintable()
