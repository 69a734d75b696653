"""The state of a session, and what leads from one to another."""

from typing import Any

import pytest

from acp_gateway.dialects.ahp.session_tree import UNTITLED, SessionTree, changes_between, status_bits
from tests.dialects.ahp.folding import CHAT, CONFIG, URI, a_summary


@pytest.mark.parametrize(
    ("status", "is_read", "is_archived", "bits"),
    [
        ("completed", False, False, 1),
        ("exited", True, False, 33),
        ("error", False, False, 2),
        ("running", True, False, 40),
        ("initializing", False, False, 8),
        ("waiting", True, True, 120),
    ],
)
def test_a_status_is_bits(status: str, is_read: bool, is_archived: bool, bits: int) -> None:
    assert status_bits(status, is_read=is_read, is_archived=is_archived) == bits


def test_a_summary_names_the_session_its_chat_and_its_folder() -> None:
    assert a_summary(title=None, created=1_000, modified=2_500, directories=["/srv/a b"]) == {
        "resource": URI,
        "provider": "demo",
        "title": UNTITLED,
        "status": 1,
        "createdAt": "1970-01-01T00:00:01.000Z",
        "modifiedAt": "1970-01-01T00:00:02.500Z",
        "workingDirectories": ["file:///srv/a%20b"],
        "defaultChat": CHAT,
    }


def test_the_time_alone_is_not_told() -> None:
    assert changes_between(a_summary(), a_summary(modified=5)) == {}
    assert changes_between(a_summary(), a_summary(modified=5, status=8)).keys() == {"status", "modifiedAt"}


@pytest.mark.parametrize(
    ("now", "values", "types"),
    [
        ({}, {"mode": "ask"}, []),
        ({"modified": 9}, {}, []),
        ({"title": "other"}, {}, ["session/titleChanged", "session/chatUpdated"]),
        ({"status": 8}, {}, ["session/chatUpdated"]),
        ({"status": 33}, {}, ["session/isReadChanged", "session/chatUpdated"]),
        ({"status": 65}, {}, ["session/isArchivedChanged", "session/chatUpdated"]),
        ({}, {"mode": "code", "unknown": "x"}, ["session/configChanged"]),
    ],
)
def test_differences_are_told_once_and_lead_to_the_new_state(
    now: dict[str, Any], values: dict[str, str], types: list[str]
) -> None:
    tree = SessionTree(a_summary(), CONFIG)
    told = list(tree.differences(a_summary(**now), values))
    assert [action["type"] for action in told] == types
    for action in told:
        assert tree.apply(action)
    assert list(tree.differences(a_summary(**now), values)) == []


def test_clients_and_needs_are_there_once() -> None:
    tree = SessionTree(a_summary(), CONFIG)
    before = {**tree.state}
    for tools in ([], ["a"]):
        assert tree.apply({"type": "session/activeClientSet", "activeClient": {"clientId": "c", "tools": tools}})
        assert tree.apply({"type": "session/inputNeededSet", "request": {"id": "r", "tools": tools}})
    assert tree.state["activeClients"] == [{"clientId": "c", "tools": ["a"]}]
    assert tree.state["inputNeeded"] == [{"id": "r", "tools": ["a"]}]
    assert tree.apply({"type": "session/activeClientRemoved", "clientId": "c"})
    assert tree.apply({"type": "session/inputNeededRemoved", "id": "r"})
    assert tree.state == before
    assert not tree.apply({"type": "session/creationFailed"})
