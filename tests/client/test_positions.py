"""An editor's positions in its sessions: marks, and the updates after them."""

import json
from typing import Any

import pytest

from acp_gateway.client.positions import Positions, updated_session
from acp_gateway.protocol.link_messages import acknowledgement


def notification(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


def update(session: str = "s") -> bytes:
    return notification("session/update", sessionId=session, update={"sessionUpdate": "plan"})


def mark(**positions: tuple[str, int]) -> bytes:
    return acknowledgement(7, positions)


@pytest.fixture
def positions() -> Positions:
    """An editor that has seen five updates of a session."""
    positions = Positions()
    positions.apply_mark(mark(s=("e", 5)))
    return positions


def test_what_was_never_marked_is_unknown() -> None:
    positions = Positions()
    positions.delivered([update()])
    assert positions.at("s") is None


def test_a_position_is_the_last_mark_and_the_updates_behind_it(positions: Positions) -> None:
    positions.delivered([update(), update("other"), update()])
    assert positions.at("s") == ("e", 7)
    positions.delivered([update()])
    assert positions.at("s") == ("e", 8)
    assert positions.at("other") is None


def test_updates_before_the_first_mark_do_not_count() -> None:
    positions = Positions()
    positions.delivered([update()])
    positions.apply_mark(mark(s=("e", 5)))
    assert positions.at("s") == ("e", 5)


def test_a_mark_replaces_what_was_counted(positions: Positions) -> None:
    positions.delivered([update()])
    assert positions.apply_mark(mark(s=("f", 1))) == {"s": ("f", 1)}
    assert positions.at("s") == ("f", 1)


def test_a_mark_for_one_session_leaves_the_others_where_they_are(positions: Positions) -> None:
    positions.delivered([update(), update("t")])
    positions.apply_mark(mark(t=("g", 1)))
    positions.delivered([update("t"), update()])
    assert (positions.at("s"), positions.at("t")) == (("e", 7), ("g", 2))


def test_a_session_that_was_forgotten_is_unknown_until_the_next_mark(positions: Positions) -> None:
    positions.delivered([update()])
    positions.forget("s")
    positions.forget("never known")
    assert positions.at("s") is None
    positions.apply_mark(mark(s=("e", 9)))
    assert positions.at("s") == ("e", 9)


# Loading


def test_a_session_that_is_loaded_is_unknown_until_the_next_mark(positions: Positions) -> None:
    positions.load_requested("s")
    positions.delivered([update()])
    positions.load_ended("s")
    assert positions.at("s") is None


def test_the_mark_behind_the_history_counts(positions: Positions) -> None:
    positions.load_requested("s")
    positions.delivered([update()])
    positions.apply_mark(mark(s=("e", 6)))
    assert positions.at("s") is None
    positions.load_ended("s")
    positions.delivered([update()])
    assert positions.at("s") == ("e", 7)


def test_a_mark_that_a_load_has_crossed_says_nothing_about_the_history_behind_it(positions: Positions) -> None:
    positions.load_requested("s")
    positions.apply_mark(mark(s=("e", 6)))
    positions.delivered([update(), update()])
    positions.load_ended("s")
    positions.delivered([update()])
    assert positions.at("s") is None


def test_a_session_that_is_loaded_twice_is_loaded_when_both_are_answered(positions: Positions) -> None:
    positions.load_requested("s")
    positions.load_requested("s")
    positions.apply_mark(mark(s=("e", 6)))
    positions.load_ended("s")
    assert positions.at("s") is None
    positions.delivered([update()])
    positions.load_ended("s")
    assert positions.at("s") is None


def test_other_sessions_go_on_while_one_is_loaded(positions: Positions) -> None:
    positions.load_requested("t")
    positions.delivered([update(), update("t")])
    positions.load_ended("t")
    assert positions.at("s") == ("e", 6)


# Spellings


@pytest.mark.parametrize(
    "spelling",
    [
        b'{"method":"session/update","params":{"x":{"id":4},"sessionId":"s"}}',
        b'{"params":{"sessionId":"\\u0073"},"method":"session\\/update"}',
        b'{"method":"session/update","params":{"sessionId":"t","sessionId":"s","x":"\\ud83d"}}',
        b'{"method":"session/update","params":{"sessionId":"s","x":%b}}' % (b"[" * 500 + b"]" * 500),
        b'{"method":"session/update","params":{"sessionId":"s","x":%b}}' % (b"1" * 5000),
        '{"method":"session/update","params":{"sessionId":"s","x":"\u2028ü"}}'.encode(),
    ],
)
def test_an_update_counts_however_it_is_spelled(positions: Positions, spelling: bytes) -> None:
    assert updated_session(spelling) == "s"
    positions.delivered([spelling])
    assert positions.at("s") == ("e", 6)


@pytest.mark.parametrize(
    "other",
    [
        notification("_session/update", sessionId="s"),
        notification("session/update", sessionId=7),
        b'{"method":"session/update","params":["s"]}',
        b'{"method":"session/update"}',
        b'"session/update"',
        b'{"method":"session/update","params":{"sessionId":"s"}',
        b'{"method":"x","params":{"sessionId":"s","x":%b}}' % (b"1" * 5000),
    ],
)
def test_what_is_not_an_update_does_not_count(positions: Positions, other: bytes) -> None:
    assert updated_session(other) is None
    positions.delivered([other, update()])
    assert positions.at("s") == ("e", 6)


def test_a_session_whose_id_holds_a_lone_surrogate_is_another(positions: Positions) -> None:
    positions.delivered([update("\udc00s")])
    assert positions.at("s") == ("e", 5)


@pytest.mark.parametrize(
    "text",
    [
        b"not JSON",
        b"[]",
        b'{"params":{}}',
        b'{"params":{"positions":[]}}',
        b'{"params":{"positions":{"s":7}}}',
        b'{"params":{"positions":{"s":{"epoch":"e"}}}}',
        b'{"params":{"positions":{"s":{"epoch":7,"position":7}}}}',
        b'{"params":{"positions":{"s":{"epoch":"f","position":"7"}}}}',
    ],
)
def test_a_mark_that_cannot_be_parsed_changes_no_position(positions: Positions, text: bytes) -> None:
    positions.delivered([update()])
    assert positions.apply_mark(text) == {}
    positions.delivered([update()])
    assert positions.at("s") == ("e", 7)
