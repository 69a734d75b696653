"""Lists of sessions by their changes."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.core.sessions.archive import NO_ARCHIVE
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.sessions import told_list
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.gateway.sessions.told_list import READ_ALL, ToldList


def row(session: str, owner: str = "me", **members: Any) -> dict[str, Any]:
    return {"sessionId": session, "agent": "a", "owner": owner, **members}


def listed(*rows: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"sessions": [*rows], **members}


def test_first_list_is_whole_and_each_later_one_has_what_is_another_alone() -> None:
    told = ToldList(None)
    assert told.changes(listed(row("1"), row("1", "you"), more=2)) == listed(row("1"), row("1", "you"), more=2)
    assert told.changes(listed(row("1"), row("1", "you"))) == {"changed": [], "removed": []}
    assert told.changes(listed(row("1", title="t"), row("2"), more=1)) == {
        "changed": [row("1", title="t"), row("2")],
        "removed": [["a", "1", "you"]],
        "more": 1,
    }


def test_list_is_whole_while_two_sessions_in_it_have_one_key() -> None:
    told = ToldList(None)
    twice = listed(row("?"), row("?"))
    for answer in (listed(row("1")), twice, twice, listed(row("1"))):
        told.changes(answer)
        assert ToldList(None).changes(answer) == answer
    assert told.changes(twice) == twice
    # A connection that was told it whole has no list to change.
    assert told.changes(listed(row("1"))) == listed(row("1"))
    assert told.changes(listed(row("1"))) == {"changed": [], "removed": []}


def test_list_is_whole_where_its_changes_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_list, "MAX_SIZE", 200)
    told = ToldList(None)
    told.changes(listed(*(row("x" * 20 + str(number)) for number in range(10))))
    assert told.changes(listed(row("1"))) == listed(row("1"))


def test_rights_are_told_once_and_when_they_are_others() -> None:
    told = ToldList(None)
    assert told.access({"role": "observer"}) == {"access": {"role": "observer"}}
    assert told.access({"role": "observer"}) == {}
    assert told.access({"role": "controller"}) == {"access": {"role": "controller"}}


async def test_list_is_not_read_again_until_something_changes(mock_clock: MockClock) -> None:
    changes = SessionChanges(NO_ARCHIVE)
    told = ToldList(lambda: changes.version)
    assert told.has_changed("s")
    told.changes(listed(row("1"), more=3))
    assert not told.has_changed("s")
    assert told.nothing() == {"changed": [], "removed": [], "more": 3}
    changes.note_change(Session("a", "1", "me", Journal(1000)))
    assert told.has_changed("s")
    assert not told.has_changed("s")
    assert told.has_changed("other")
    assert not told.has_changed("other")
    mock_clock.jump(READ_ALL)
    assert told.has_changed("other")
    await trio.lowlevel.checkpoint()
