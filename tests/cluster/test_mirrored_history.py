"""Journals made of mirrored histories."""

import json
from typing import Any

import pytest

from acp_gateway.cluster.mirrored_history import TURN_CANCELLED, adopted_journal, to_journal
from acp_gateway.cluster.store import MirroredJournal
from acp_gateway.protocol.gaps import gap

LIMIT = 10_000


def update(kind: str, session: str = "s", **members: Any) -> bytes:
    params = {"sessionId": session, "update": {"sessionUpdate": kind, **members}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode()


def said(text: str, kind: str = "agent_message_chunk") -> bytes:
    return update(kind, content={"type": "text", "text": text})


def asked(text: str) -> bytes:
    return said(text, "user_message_chunk")


def mirrored(*messages: bytes, complete: bool = True) -> MirroredJournal:
    return MirroredJournal("j", 0, [(number, message) for number, message in enumerate(messages)], 1, complete=complete)


def test_journal_has_the_messages_with_their_times() -> None:
    journal = to_journal(mirrored(asked("a"), said("b")), "s", LIMIT, "e")
    assert (journal.epoch, journal.replay()) == ("e", [asked("a"), said("b")])
    assert journal.times(0, 2) == [0, 1]
    assert not journal.truncated


def test_journal_without_its_beginning_is_truncated() -> None:
    assert to_journal(mirrored(said("b"), complete=False), "s", LIMIT, "e").truncated


def test_journal_has_the_states_of_the_session_itself() -> None:
    modes = [update("current_mode_update", currentModeId=mode) for mode in ("one", "two")]
    other = update("current_mode_update", "sub-agent", currentModeId="three")
    journal = to_journal(mirrored(modes[0], modes[1], other), "s", LIMIT, "e")
    assert journal.states() == [modes[1]]


def test_turns_of_the_journal_begin_with_prompts() -> None:
    messages = [asked("a"), asked("b"), said("c"), asked("d"), said("e")]
    journal = to_journal(mirrored(*messages), "s", LIMIT, "e")
    assert [turn.messages for turn in journal.runs()] == [messages[:3], messages[3:]]


@pytest.mark.parametrize("strange", [b"nonsense", b'{"jsonrpc":"2.0","id":1,"method":"session/request_permission"}'])
def test_journal_has_nothing_but_updates(strange: bytes) -> None:
    assert to_journal(mirrored(strange, said("a")), "s", LIMIT, "e").replay() == [said("a")]


def test_adopted_journal_ends_the_turn_that_was_running() -> None:
    journal = adopted_journal(mirrored(asked("a"), said("b")), "s", LIMIT, "e", in_turn=True)
    assert journal is not None
    assert journal.replay() == [asked("a"), said("b"), gap("s", TURN_CANCELLED)]
    assert journal.running() == []


def test_adopted_journal_without_a_turn_gets_no_line() -> None:
    journal = adopted_journal(mirrored(asked("a"), said("b")), "s", LIMIT, "e", in_turn=False)
    assert journal is not None
    assert journal.replay() == [asked("a"), said("b")]
    assert journal.running() == []


def test_adopted_journal_of_an_empty_mirror_is_none() -> None:
    assert adopted_journal(mirrored(), "s", LIMIT, "e", in_turn=True) is None
