"""The write queue: nothing is lost, it is bounded, and no history gets a gap."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.storage import write_queue as write_queue_module
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession, TokenUse
from acp_gateway.gateway.storage.write_queue import OVERHEAD, PER_MESSAGE, Change, WriteBatch, WriteQueue

LIMIT = 100_000

LARGE = b"x" * (LIMIT * 5 // 4)
"""More than may wait of one history, with what counts for it besides."""


class Histories:
    """Histories in memory."""

    def __init__(self, *keys: int) -> None:
        self.journals = {key: Journal(LIMIT, "e1") for key in keys}

    def has(self, key: int) -> bool:
        return key in self.journals

    def snapshot(self, key: int) -> tuple[StoredJournal, int]:
        journal = self.journals[key]
        runs = [StoredRun(*run) for run in journal.runs()]
        return StoredJournal(
            journal.epoch, journal.position, journal.truncated, journal.states_set_aside(), runs
        ), journal.size


def session(key: int, **changes: str) -> StoredSession:
    known = StoredSession(key, "demo", f"sess-{key}", "ada", "/src", None, None, 1.0, 1.0, "e1")
    return replace(known, **changes)  # type: ignore[arg-type] # only texts are changed


def empty(epoch: str = "e1") -> StoredJournal:
    return StoredJournal(epoch, 0, False)


@pytest.fixture
def backlog() -> WriteQueue:
    """One with the sessions 1 to 3, whose histories are on disk and empty."""
    backlog = WriteQueue(LIMIT)
    backlog.restore(map(session, (1, 2, 3)), (1, 2, 3))
    return backlog


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> WriteQueue:
    """The same, in which no more may wait than one whole history."""
    monkeypatch.setattr(write_queue_module, "QUEUE", 0)
    backlog = WriteQueue(LIMIT)
    backlog.restore(map(session, (1, 2, 3)), (1, 2, 3))
    return backlog


def take(backlog: WriteQueue, first: int | None = None) -> WriteBatch:
    """Return the batch that is written next."""
    with backlog.taken(first) as batch:
        return batch


def tell(backlog: WriteQueue, histories: Histories, key: int, *messages: bytes) -> None:
    """Messages are written down in memory, and told."""
    histories.journals[key].extend(messages)
    backlog.extend(key, messages)


def in_memory(backlog: WriteQueue, *keys: int) -> Histories:
    """These histories are in memory."""
    backlog.live_histories = histories = Histories(*keys)
    return histories


def test_what_is_queued_is_taken_once(backlog: WriteQueue) -> None:
    backlog.put_session(session(1, title="changed"))
    backlog.put_use("0a", TokenUse(1.0))
    backlog.extend(1, [b"one"], "plan")
    backlog.end_turn(1)
    assert backlog.waits(1)
    batch = take(backlog)
    assert (batch.sessions, batch.uses) == ({1: session(1, title="changed")}, {"0a": TokenUse(1.0)})
    assert batch.changes[1].runs == [StoredRun([b"one"], {0: "plan"}, ends_turn=True)]
    assert not backlog
    assert not backlog.waits(1)
    assert not take(backlog)


def test_what_could_not_be_written_is_queued_before_what_came_later(backlog: WriteQueue) -> None:
    def fail() -> None:
        with backlog.taken():
            backlog.extend(1, [b"two"])
            raise ZeroDivisionError

    backlog.extend(1, [b"one"])
    with pytest.raises(ZeroDivisionError):
        fail()
    assert take(backlog).changes[1].runs == [StoredRun([b"one", b"two"])]


def test_of_a_history_that_is_not_kept_nothing_is_queued(backlog: WriteQueue) -> None:
    backlog.extend(4, [b"one"])
    backlog.end_turn(4)
    backlog.replace(4, empty(), 0)
    backlog.finish_journal(4)
    backlog.forget_journal(4)
    backlog.forget(4)
    assert not backlog


def test_a_history_that_is_erased_is_kept_again_once_it_is_replaced(backlog: WriteQueue) -> None:
    backlog.forget_journal(1)
    assert not backlog.keeps(1)
    backlog.replace(1, empty(), 0)
    assert backlog.keeps(1)
    change = take(backlog).changes[1]
    assert (change.erases, change.whole) == (True, empty())


def test_a_session_that_is_erased_leaves_nothing_queued_of_it(backlog: WriteQueue) -> None:
    backlog.put_session(session(1, title="changed"))
    backlog.extend(1, [b"one"])
    backlog.forget(1)
    batch = take(backlog)
    assert batch.sessions == {}
    assert (batch.changes[1].forgets, batch.changes[1].runs) == (True, [])
    assert set(backlog.sessions) == {2, 3}


def test_a_session_that_is_erased_before_it_was_written_leaves_nothing_queued(backlog: WriteQueue) -> None:
    backlog.put_session(session(4))
    backlog.replace(4, empty(), 0)
    backlog.forget(4)
    assert not backlog
    assert backlog.size == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_is_erased_while_it_is_being_written_is_erased_on_disk(
    *, backlog: WriteQueue, fails: bool
) -> None:
    backlog.put_session(session(4))
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), backlog.taken():
        backlog.forget(4)
        if fails:
            raise ZeroDivisionError
    assert take(backlog).changes[4].forgets
    assert not backlog


def test_a_session_that_was_written_is_erased_on_disk_once(backlog: WriteQueue) -> None:
    backlog.put_session(session(4))
    take(backlog)
    backlog.forget(4)
    assert take(backlog).changes[4].forgets
    backlog.forget(4)
    assert not backlog


def test_a_session_that_was_not_written_again_since_the_file_was_lost_leaves_nothing_queued(
    backlog: WriteQueue,
) -> None:
    in_memory(backlog, 1, 2, 3)
    backlog.requeue_all({})
    for key in (1, 2, 3):
        backlog.forget(key)
    assert not backlog
    assert not backlog.lacks_histories


def test_the_epoch_of_a_history_is_its_sessions(backlog: WriteQueue) -> None:
    backlog.replace(1, empty("e2"), 0)
    assert backlog.sessions[1] == session(1, epoch="e2")
    assert take(backlog).sessions == {1: session(1, epoch="e2")}


def test_after_the_end_nothing_is_taken(backlog: WriteQueue) -> None:
    in_memory(backlog, 1)
    backlog.extend(1, [LARGE])
    backlog.close()
    backlog.put_session(session(1, title="changed"))
    backlog.extend(1, [b"one"])
    backlog.replace(2, empty(), 0)
    backlog.finish_journal(1)
    backlog.forget(3)
    batch = take(backlog)
    assert (batch.sessions, set(batch.changes)) == ({}, {1})
    assert not backlog.keeps(2)


# Renewing.


def test_of_a_history_no_more_is_queued_than_it_may_hold(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1)
    for _ in range(1000):
        tell(backlog, histories, 1, b"x" * 1000)
        assert backlog.size < LIMIT * 3 / 2
    assert backlog._queue.renewed
    batch = take(backlog)
    assert batch.changes[1].whole == histories.snapshot(1)[0]
    assert not backlog._queue.renewed


def test_a_history_that_is_renewed_is_written_as_it_is_when_its_turn_comes(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1)
    tell(backlog, histories, 1, LARGE)
    tell(backlog, histories, 1, b"later")
    change = take(backlog).changes[1]
    assert change.whole is not None
    assert change.whole.runs == [StoredRun([b"later"])]
    assert change.runs == []


def test_renew_queues_what_is_in_memory_of_a_history_that_is_kept(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1, 2)
    histories.journals[1].append(b"only in memory")
    before = backlog.revision(1)
    backlog.renew(1)
    assert backlog.revision(1) != before
    backlog.forget_journal(2)
    backlog.renew(2)
    changes = take(backlog).changes
    assert changes[1].whole == histories.snapshot(1)[0]
    assert not changes[1].unrelated
    assert changes[2].whole is None


def test_a_history_that_is_not_in_memory_waits_as_it_is(backlog: WriteQueue) -> None:
    backlog.extend(1, [LARGE])
    assert take(backlog).changes[1].runs == [StoredRun([LARGE])]


def test_a_history_that_is_renewed_goes_on_from_what_is_on_disk(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1)
    tell(backlog, histories, 1, LARGE)
    assert not take(backlog).changes[1].unrelated


def test_a_history_that_is_renewed_leaves_nothing_of_the_one_that_it_replaced(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1)
    backlog.replace(1, empty(), 0)
    tell(backlog, histories, 1, LARGE)
    assert take(backlog).changes[1].unrelated


def test_a_history_with_another_name_in_memory_leaves_nothing_of_what_is_on_disk(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1)
    histories.journals[1] = Journal(LIMIT, "e2")
    tell(backlog, histories, 1, LARGE)
    batch = take(backlog)
    assert batch.changes[1].unrelated
    assert batch.sessions == {1: session(1, epoch="e2")}


def test_a_history_goes_under_its_old_name_until_it_is_renewed(narrow: WriteQueue) -> None:
    histories = in_memory(narrow, 1, 2)
    for key in (1, 2):
        histories.journals[key] = Journal(LIMIT, "e2")
        narrow.replace(key, empty("e2"), 0)
        narrow.put_session(session(key, epoch="e2", title="changed"))
        tell(narrow, histories, key, *[b"x" * (LIMIT // 2)] * 3)
    for _ in range(2):
        batch = take(narrow)
        assert batch.sessions.keys() == batch.changes.keys()
    assert not narrow


def test_of_many_histories_in_memory_so_many_are_taken_together_as_may_wait(narrow: WriteQueue) -> None:
    histories = in_memory(narrow, 1, 2, 3)
    for key in (1, 2, 3):
        tell(narrow, histories, key, LARGE, b"end")
    batches = [take(narrow, first) for first in (None, 3, None)]
    assert [list(batch.changes) for batch in batches] == [[1], [3], [2]]
    assert all(batch.size < 2 * LIMIT for batch in batches)


def test_what_leaves_memory_is_taken_from_there_before(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1)
    tell(backlog, histories, 1, LARGE, b"last words")
    had, _ = histories.snapshot(1)
    backlog.finish_journal(1)
    histories.journals.clear()
    assert take(backlog).changes[1].whole == had


def test_where_the_file_is_lost_all_that_is_known_is_queued(backlog: WriteQueue) -> None:
    in_memory(backlog, 1)
    backlog.replace(2, empty(), 0)
    backlog.requeue_all({"0a": TokenUse(1.0)})
    assert [backlog.keeps(key) for key in (1, 2, 3)] == [True, True, False]
    batch = take(backlog)
    assert batch.sessions == {key: session(key) for key in (1, 2, 3)}
    assert batch.uses == {"0a": TokenUse(1.0)}
    assert batch.whole == {1, 2}
    assert batch.changes[3].erases


def test_a_lost_file_is_made_up_for_once_each_history_is_written_again_or_erased(narrow: WriteQueue) -> None:
    histories = in_memory(narrow, 1, 2, 3)
    for key in (1, 2, 3):
        tell(narrow, histories, key, b"x" * (LIMIT // 4))
    take(narrow)
    narrow.requeue_all({})
    with narrow.taken():
        narrow.finish_journal(2)
        del histories.journals[2]
        narrow.forget(3)
    assert not narrow._queue.renewed
    assert narrow.lacks_histories
    tell(narrow, histories, 1, b"more")
    assert set(take(narrow).changes) == {1, 2}
    assert not narrow.lacks_histories


# The bound.


def test_erasing_takes_no_room_from_what_is_to_be_written(narrow: WriteQueue) -> None:
    narrow.restore(map(session, range(1000)), range(1000))
    for key in range(1, 1000):
        (narrow.forget if key % 2 else narrow.forget_journal)(key)
    assert narrow.size == 0
    narrow.extend(0, [b"x" * (LIMIT - 1000)])
    assert narrow.keeps(0)


def test_past_the_bound_histories_in_memory_are_renewed_and_others_given_up(narrow: WriteQueue) -> None:
    histories = in_memory(narrow, 1, 2)
    for key in (1, 2):
        tell(narrow, histories, key, b"x" * (LIMIT // 3))
    narrow.extend(3, [b"x" * (LIMIT // 3)])
    assert narrow._queue.renewed
    assert all(map(narrow.keeps, (1, 2, 3)))
    assert not narrow.has_given_up
    narrow.extend(3, [b"x" * LIMIT])
    assert [narrow.keeps(key) for key in (1, 2, 3)] == [True, True, False]
    assert narrow.has_given_up
    assert narrow.size < 1000


def test_a_history_is_given_up_until_that_is_written(narrow: WriteQueue) -> None:
    def fail() -> None:
        with narrow.taken():
            raise ZeroDivisionError

    narrow.extend(1, [b"x" * 2 * LIMIT])
    assert narrow.has_given_up
    with pytest.raises(ZeroDivisionError):
        fail()
    assert narrow.has_given_up
    assert take(narrow).changes[1].erases
    assert not narrow.has_given_up


def test_a_history_that_is_given_up_while_a_batch_is_written_is_so_until_the_next_one_is(narrow: WriteQueue) -> None:
    with narrow.taken():
        narrow.extend(1, [b"x" * 2 * LIMIT])
    assert narrow.has_given_up
    take(narrow)
    assert not narrow.has_given_up


def test_what_is_being_written_waits_as_well(narrow: WriteQueue) -> None:
    histories = in_memory(narrow, 1)
    tell(narrow, histories, 1, b"x" * (LIMIT * 3 // 4))
    with narrow.taken():
        tell(narrow, histories, 1, b"y" * (LIMIT // 2))
        assert narrow._queue.renewed
    tell(narrow, histories, 1, b"z" * (LIMIT // 2))
    assert take(narrow).changes[1].whole == histories.snapshot(1)[0]


def test_what_leaves_memory_is_not_to_be_taken_from_there_again(narrow: WriteQueue) -> None:
    histories = in_memory(narrow, 1, 2)
    tell(narrow, histories, 1, *[b"x" * (LIMIT * 3 // 5)] * 3)
    tell(narrow, histories, 2, b"y" * (LIMIT // 2))
    narrow.finish_journal(1)
    del histories.journals[1]
    assert narrow._queue.renewed
    assert take(narrow).whole == {1, 2}


# What was read of a history, and is so still.


def test_whatever_is_told_of_a_history_makes_another_state_of_it(backlog: WriteQueue) -> None:
    seen = {backlog.revision(1)}
    steps: list[Callable[[], object]] = [
        lambda: backlog.extend(1, [b"one"]),
        lambda: backlog.end_turn(1),
        lambda: backlog.replace(1, empty(), 0),
        lambda: backlog.put_session(session(1, epoch="e2")),
        lambda: backlog.forget_journal(1),
        lambda: backlog.replace(1, empty(), 0),
    ]
    for step in steps:
        step()
        seen.add(backlog.revision(1))
    assert len(seen) == 7
    backlog.forget(1)
    assert backlog.revision(1) is None


def test_what_is_told_of_others_or_written_leaves_a_history_as_it_is(backlog: WriteQueue) -> None:
    histories = in_memory(backlog, 1)
    tell(backlog, histories, 1, LARGE, b"end")
    before = backlog.revision(1)
    backlog.extend(2, [b"one"])
    backlog.put_session(session(1, title="changed"))
    take(backlog)
    assert backlog.revision(1) == before


# Batches

SESSION = StoredSession(7, "demo", "s", "ada", "/src", None, None, 1.5, 2.5, "e1")


def added(*messages: bytes, state: str | None = None, ends_turn: bool = False) -> Change:
    """These are added."""
    change = Change()
    change.extend(messages, state)
    if ends_turn:
        change.end_turn()
    return change


def journal(*messages: bytes) -> StoredJournal:
    """A history that nothing is missing of."""
    return StoredJournal("e1", len(messages), False, [], [StoredRun(list(messages))])


# What is to be done to one history.


def test_messages_of_one_turn_are_together() -> None:
    change = added(b"one", b"two")
    change.extend([b"three"], "plan")
    change.end_turn()
    change.extend([b"four"], None)
    assert change.runs == [StoredRun([b"one", b"two", b"three"], {2: "plan"}, ends_turn=True), StoredRun([b"four"])]


def test_a_message_counts_for_more_than_its_bytes() -> None:
    change = Change()
    assert change.extend([b"12345"], None) == 5 + PER_MESSAGE + OVERHEAD
    assert change.extend([b"1", b"2"], None) == 2 + 2 * PER_MESSAGE
    assert change.extend([b"1"], "plan") == 1 + PER_MESSAGE + OVERHEAD
    assert change.size == OVERHEAD + change.new == 3 * OVERHEAD + 4 * PER_MESSAGE + 8


def test_a_turn_that_ends_before_there_is_anything_is_that_of_what_is_on_disk() -> None:
    change = Change()
    change.end_turn()
    change.extend([b"one"], None)
    assert change.runs == [StoredRun(ends_turn=True), StoredRun([b"one"])]


def test_what_comes_for_a_history_that_is_renewed_is_in_memory_alone() -> None:
    change = added(b"one").renewed()
    assert change.extend([b"two"], "plan") == 0
    change.end_turn()
    assert (change.runs, change.size) == ([], OVERHEAD)


def test_a_history_that_takes_the_place_of_what_was_to_be_done_is_followed_by_what_comes() -> None:
    change = added(b"old").replaced(journal(b"one"), 3, unrelated=True)
    change.extend([b"two"], None)
    assert (change.whole, change.runs) == (journal(b"one"), [StoredRun([b"two"])])


def test_another_history_stays_another_one_whatever_is_written_of_it() -> None:
    change = Change().replaced(journal(b"one"), 3, unrelated=True)
    assert change.renewed().unrelated
    assert change.renewed().replaced(journal(b"one"), 3, unrelated=False).unrelated
    assert change.followed_by(Change(renews=True)).unrelated
    assert not added(b"one").renewed().replaced(journal(b"one"), 3, unrelated=False).unrelated


def test_what_is_erased_is_so_whatever_comes_instead() -> None:
    change = Change(erases=True)
    assert change.renewed().erases
    assert change.replaced(journal(), 0, unrelated=True).erases
    assert change.followed_by(Change(renews=True)).erases


@pytest.mark.parametrize(
    ("ends_turn", "runs"),
    [
        (False, [StoredRun([b"one", b"two"], {1: "plan"}, ends_turn=True), StoredRun([b"three"])]),
        (
            True,
            [
                StoredRun([b"one"], ends_turn=True),
                StoredRun([b"two"], {0: "plan"}, ends_turn=True),
                StoredRun([b"three"]),
            ],
        ),
    ],
)
def test_what_failed_goes_on_with_what_came_later(ends_turn: bool, runs: list[StoredRun]) -> None:
    failed = added(b"one", ends_turn=ends_turn)
    later = added(b"two", state="plan", ends_turn=True)
    later.extend([b"three"], None)
    new = failed.new + later.new
    both = failed.followed_by(later)
    assert (both.runs, both.new) == (runs, new)


def test_what_starts_over_later_takes_the_place_of_what_failed() -> None:
    both = added(b"one").followed_by(Change().replaced(journal(b"two"), 3, unrelated=True))
    assert (both.whole, both.runs) == (journal(b"two"), [])


# What goes together.


def test_a_batch_counts_for_what_is_in_it() -> None:
    batch = WriteBatch()
    batch.extend(1, [b"one"], None)
    batch.extend(2, [b"two"] * 9, "plan")
    batch.change(3).end_turn()
    assert batch.size == sum(change.size for change in batch.changes.values()) > 0
    batch.put(2, batch.change(2).renewed())
    batch.pop(1)
    assert batch.size == sum(change.size for change in batch.changes.values())
    batch.pop(2)
    batch.pop(3)
    assert batch.size == 0


def test_a_batch_tells_what_it_does_to_histories() -> None:
    batch = WriteBatch()
    batch.extend(1, [b"one"], None)
    batch.put(2, Change(renews=True))
    batch.put(3, Change().replaced(journal(b"one"), 3, unrelated=True))
    assert (batch.renewed, batch.whole, batch.contents, batch.erases) == ([2], {2, 3}, {1, 3}, False)
    batch.put(4, Change(erases=True))
    assert batch.erases


def test_of_two_batches_the_later_counts_where_they_speak_of_the_same() -> None:
    first = WriteBatch({7: SESSION}, {"0a": TokenUse(1.0)}, {})
    first.extend(7, [b"one"], None)
    first.extend(8, [b"eight"], None)
    later = WriteBatch({}, {"0a": TokenUse(2.0)}, {})
    later.extend(7, [b"two"], None)
    later.extend(9, [b"nine"], None)
    both = first.followed_by(later)
    assert (both.sessions, both.uses) == ({7: SESSION}, {"0a": TokenUse(2.0)})
    assert {key: change.runs for key, change in both.changes.items()} == {
        7: [StoredRun([b"one", b"two"])],
        8: [StoredRun([b"eight"])],
        9: [StoredRun([b"nine"])],
    }
    assert both.size == sum(change.size for change in both.changes.values())
