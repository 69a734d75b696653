"""Statements of sessions about files, for several readers."""

import gc
from typing import Any

import pytest

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.dialects.tap import file_events
from acp_gateway.dialects.tap.file_events import FileEvents, SharedFileEvents
from acp_gateway.dialects.tap.files import FileFinder, Seen
from acp_gateway.gateway.viewing.session_feed import PIECE_COUNT
from acp_gateway.protocol.methods import Audience
from tests.dialects.tap.test_files import call, chunk, request, update


def session_of(*messages: bytes, limit: int = 1 << 20) -> Session:
    session = Session("agent", "s", "me", Journal(limit, "epoch"))
    session.cwd = "/src"
    say(session, *messages)
    return session


def say(session: Session, *messages: bytes) -> None:
    session.journal.extend(messages, 5)


def reads(*paths: str) -> bytes:
    return call("read", locations=[{"path": f"/src/{path}"} for path in paths])


def read_all(events: FileEvents, session: Session) -> None:
    while events.read_some(session.journal.position):
        pass


def paths(events: FileEvents, number: int = 0) -> list[str]:
    return [touch.path for event in events.since(number) for touch in event.seen.touches]


def test_messages_are_read_once_however_many_readers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read, count = FileFinder.read, 0

    def counting(self: FileFinder, message: bytes) -> Seen:
        nonlocal count
        count += 1
        return read(self, message)

    monkeypatch.setattr(FileFinder, "read", counting)
    session, shared = session_of(reads("a"), reads("b")), SharedFileEvents()
    first, second = shared.of(session, ()), shared.of(session, ())
    read_all(first, session)
    say(session, reads("c"))
    read_all(second, session)
    assert count == 3
    assert paths(first) == paths(second) == ["a", "b", "c"]
    assert paths(first, 2) == ["c"]


def test_events_end_with_their_last_reader() -> None:
    session, other, shared = session_of(reads("a")), session_of(), SharedFileEvents()
    events = [shared.of(session, ()), shared.of(session, ()), shared.of(other, ())]
    assert len(shared) == 2
    del events[0], events[-1]
    gc.collect()
    assert (len(shared), shared.of(session, ()) is events[0]) == (1, True)


def test_other_ignored_directories_are_for_new_readers() -> None:
    session, shared = session_of(reads("out/a", "b")), SharedFileEvents()
    first, second = shared.of(session, ()), shared.of(session, ["out"])
    for events in (first, second):
        read_all(events, session)
    assert (paths(first), paths(second)) == (["out/a", "b"], ["b"])
    assert shared.of(session, ["out"]) is second


def test_messages_without_a_statement_are_not_events_and_end_a_prompt() -> None:
    text = update("agent_message_chunk", content={"type": "text", "text": "x"})
    prompt = chunk(type="text", text="hello")
    session = session_of(text, prompt, prompt, text, prompt, text)
    events = FileEvents(session, ())
    read_all(events, session)
    assert [(event.seen.begins_turn, event.time) for event in events.since(0)] == [(True, 5), (True, 5)]


def test_a_journal_is_read_and_handed_out_in_pieces_and_up_to_a_position() -> None:
    session = session_of(*[reads(f"{number}") for number in range(2 * PIECE_COUNT)])
    events = FileEvents(session, ())
    assert events.read_some(1)
    assert (events.end, events.read_some(1)) == (1, False)
    assert events.read_some(session.journal.position)
    assert events.end == 1 + PIECE_COUNT
    read_all(events, session)
    assert len(events.since(0)) == PIECE_COUNT
    assert len(events.since(events.end - 1)) == 1
    large = reads("x" * 100_000)
    say(session, large, large)
    assert events.read_some(session.journal.position)
    assert events.read_some(session.journal.position)


def test_a_session_without_a_history_has_no_events() -> None:
    assert not FileEvents(Session("agent", "s", "me", Journal(1000)), ()).read_some(100)


def test_what_was_cut_off_before_it_was_read_is_lost() -> None:
    session = session_of(reads("a"), limit=400)
    events = FileEvents(session, ())
    session.journal.turn_ended()
    say(session, reads("b" * 300))
    session.journal.turn_ended()
    say(session, reads("c"))
    assert session.journal.start > 0
    read_all(events, session)
    assert "a" not in paths(events)
    assert paths(events)[-1] == "c"


@pytest.mark.parametrize("continues", [True, False])
def test_another_history_starts_over_and_one_that_goes_on_does_not(continues: bool) -> None:
    session = session_of(reads("a"))
    events = FileEvents(session, ())
    read_all(events, session)
    if continues:
        session.journal.rename("next")
    else:
        session.journal = Journal(1 << 20, "next")
        session.cwd = "/other"
    say(session, call("read", locations=[{"path": "/other/b"}]))
    read_all(events, session)
    assert paths(events) == (["a", "/other/b"] if continues else ["b"])
    assert events.history == (0 if continues else 1)


def test_what_is_kept_is_bounded_and_turns_are_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_events, "KEPT", 20)
    prompts = [(chunk(type="text", text="x"), reads(f"{number}")) for number in range(50)]
    session = session_of(*[message for pair in prompts for message in pair])
    events = FileEvents(session, ())
    for position in range(101):
        events.read_some(position)
        assert events.end - events.first <= 20
    assert events.end == 100
    assert events.turns_before + sum(event.seen.begins_turn for event in events.since(0)) == 50
    assert paths(events)[-1] == "49"
    # A reader that was before what is kept goes on with it.
    assert events.since(3) == events.since(0) == events.since(events.first)
    # One message may say more than that.
    say(session, reads(*map(str, range(100, 150))))
    read_all(events, session)
    assert len(paths(events)) == 50


def test_permission_requests_are_looked_into_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_events, "REFUSABLE", 2)
    session = session_of()
    events = FileEvents(session, ())

    def asked(key: str, path: Any) -> AgentRequest:
        call = {"kind": "edit", "locations": [{"path": path}]}
        message = request("session/request_permission", sessionId="s", toolCall=call, options=[])
        found = AgentRequest(message, Audience.CONTROLLERS, session, 0.0)
        found.key = key
        return found

    first = events.refusable(asked("1", "/src/a"))
    assert first.touches == (("a", "write"),)
    assert events.refusable(asked("1", "/src/other")) is first
    for key in ("2", "3"):
        events.refusable(asked(key, "/src/b"))
    assert events.refusable(asked("1", "/src/c")) is not first
