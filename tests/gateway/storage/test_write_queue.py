"""The write queue: nothing is lost, it is bounded, and no history gets a gap."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.storage import write_queue as write_queue_module
from acp_gateway.gateway.storage.records import SpentBy, StoredJournal, StoredRun, StoredSession, TokenUse
from acp_gateway.gateway.storage.write_queue import PER_MESSAGE, WriteBatch, WriteQueue
from acp_gateway.protocol.text.pairs import Entry, Pair, texts_of
from tests.gateway.storage.stores import LIMIT, PROMPT, SESSION, snapshot

BY = SpentBy("2026-01-01", "demo", "sess-1", "ada")


class Told:
    """A queue with the sessions 1 to 3, whose histories are empty on disk and in memory."""

    def __init__(self) -> None:
        self.queue = WriteQueue(LIMIT)
        self.queue.restore(map(session, (1, 2, 3)), (1, 2, 3))
        self.journals = {key: Journal(LIMIT, "e1") for key in (1, 2, 3)}
        self.queue.live_histories = self

    def has(self, key: int) -> bool:
        return key in self.journals

    def snapshot(self, key: int, epoch: str, position: int) -> StoredJournal:
        return snapshot(self.journals[key], epoch, position)

    def grow(self, key: int, *messages: Entry) -> None:
        self.journals[key].extend(messages)
        self.queue.grow(key, sum(map(len, messages)))

    def end(self, key: int) -> None:
        self.queue.leave(key)
        del self.journals[key]

    def take(self, first: int | None = None) -> WriteBatch:
        """Return the batch that is written next."""
        with self.queue.taken(first) as batch:
            return batch

    def fail(self, then: Callable[[], object] = int) -> None:
        """A batch fails, and this is done before."""

        def write() -> None:
            with self.queue.taken():
                then()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write()


def session(key: int, **changes: str) -> StoredSession:
    return replace(SESSION, key=key, session_id=f"sess-{key}", **changes)  # type: ignore[arg-type] # only texts


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Told:
    """One in which no more may wait than one whole history."""
    monkeypatch.setattr(write_queue_module, "QUEUE", 0)
    return Told()


def messages(batch: WriteBatch, key: int) -> list[bytes]:
    return [message for part in batch.histories[key] for run in part.runs for message in texts_of(run.messages)]


@pytest.mark.parametrize(("carries", "size"), [(False, 2 * (2 + PER_MESSAGE)), (True, 2 * (2 + PER_MESSAGE) + 9)])
def test_a_batch_counts_what_messages_carry(told: Told, carries: bool, size: int) -> None:
    told.journals[1].carries = carries
    told.grow(1, b"{}", Pair(b"{}", b'{"new":1}') if carries else b"{}")
    assert told.take().size == size


def test_what_is_queued_is_taken_once(told: Told) -> None:
    assert not told.queue
    told.queue.put_session(session(1, title="changed"))
    told.queue.put_use("0a", TokenUse(1.0))
    told.grow(1, b"one", b"two")
    assert told.queue.waits(1)
    assert told.queue.new == 6
    batch = told.take()
    assert (batch.sessions, batch.uses, batch.erased) == (
        {1: session(1, title="changed")},
        {"0a": TokenUse(1.0)},
        set(),
    )
    assert batch.histories == {1: [StoredJournal("e1", 2, False, [], [StoredRun([b"one", b"two"])])]}
    assert batch.size == 6 + 2 * PER_MESSAGE
    assert not batch.erases
    assert (bool(told.queue), told.queue.waits(1), told.queue.new) == (False, False, 0)
    assert not told.take()


def test_anything_that_is_to_be_written_is_queued(told: Told) -> None:
    steps: list[Callable[[], object]] = [
        lambda: told.queue.put_session(session(1, title="changed")),
        lambda: told.queue.put_use("0a", TokenUse(1.0)),
        lambda: told.grow(1, b"one"),
        lambda: told.queue.give_up({2}),
        lambda: told.queue.spend(1, BY, {"USD": 1}),
    ]
    for step in steps:
        assert not told.queue
        step()
        assert told.queue
        told.fail(lambda: told.queue.give_up({3}))
        # It is erased for another reason than a full queue.
        assert not told.queue.has_given_up
        assert told.take()
        assert not told.queue.has_given_up


def test_a_batch_has_what_came_after_the_last_that_was_written(told: Told) -> None:
    told.grow(1, b"one")
    told.take()
    told.grow(1, b"two")
    told.fail(lambda: told.grow(1, b"three"))
    assert messages(told.take(), 1) == [b"two", b"three"]
    told.journals[1].turn_ended()
    told.queue.grow(1, 0)
    assert told.take().histories[1][0].runs == [StoredRun([], ends_turn=True)]


def test_what_fails_is_queued_again_but_for_what_came_later(told: Told) -> None:
    told.queue.put_session(session(1, title="old"))
    told.queue.put_use("0a", TokenUse(1.0))
    told.queue.put_use("0b", TokenUse(1.0))
    told.queue.give_up({2})

    def change() -> None:
        told.queue.put_session(session(1, title="new"))
        told.queue.put_use("0a", TokenUse(2.0))

    told.fail(change)
    batch = told.take()
    assert batch.sessions == {1: session(1, title="new")}
    assert batch.uses == {"0a": TokenUse(2.0), "0b": TokenUse(1.0)}
    assert batch.erased == {2}
    assert batch.erases


def test_a_new_session_that_was_not_written_is_still_new(told: Told) -> None:
    told.queue.put_session(session(9))
    told.fail(lambda: told.queue.put_session(session(9, title="new")))
    assert told.take().opened == {9}
    told.queue.put_session(session(9, title="newer"))
    assert told.take().opened == set()


def test_of_a_history_that_is_not_kept_nothing_is_queued(told: Told) -> None:
    told.journals[4] = Journal(LIMIT, "e1")
    told.grow(4, b"one")
    told.queue.replace(4)
    told.queue.leave(4)
    told.queue.forget(4)
    assert not told.queue


def test_a_history_that_is_given_up_is_erased_and_kept_again_once_it_is_replaced(told: Told) -> None:
    told.grow(1, b"one")
    told.queue.give_up({1})
    told.grow(1, b"two")
    assert not told.queue.keeps(1)
    told.queue.replace(1)
    batch = told.take()
    assert (batch.erased, messages(batch, 1)) == ({1}, [b"one", b"two"])


def test_a_session_that_is_erased_leaves_nothing_queued_but_that(told: Told) -> None:
    told.queue.put_session(session(1, title="changed"))
    told.grow(1, b"one")
    told.queue.leave(1)
    told.queue.forget(1)
    assert told.queue.held == 0
    batch = told.take()
    assert (batch.sessions, batch.histories, batch.erased, batch.erases) == ({1: None}, {}, set(), True)
    assert set(told.queue.sessions) == {2, 3}
    told.queue.forget(1)
    assert not told.queue


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_is_erased_while_it_is_being_written_is_erased_after_that(told: Told, fails: bool) -> None:
    told.grow(1, b"one")
    told.queue.put_session(session(1, title="changed"))
    if fails:
        told.fail(lambda: told.queue.forget(1))
    else:
        with told.queue.taken():
            told.queue.forget(1)
    batch = told.take()
    assert (batch.sessions, batch.histories) == ({1: None}, {})


def test_the_epoch_of_a_history_is_its_sessions(told: Told) -> None:
    told.journals[1] = Journal(LIMIT, "e2")
    told.queue.replace(1)
    batch = told.take()
    assert batch.sessions == {1: session(1, epoch="e2")}
    assert batch.erased == {1}
    # The queue was not told of this one.
    told.journals[1] = Journal(LIMIT, "e3")
    told.grow(1, b"one")
    batch = told.take()
    assert batch.sessions == {1: session(1, epoch="e3")}
    assert batch.erased == {1}


def test_after_the_end_no_history_is_taken(told: Told) -> None:
    told.queue.close()
    told.grow(1, b"one")
    told.queue.replace(2)
    told.end(1)
    told.queue.forget(3)
    assert not told.queue
    assert not told.queue.keeps(1)


def test_of_many_histories_so_many_are_taken_together_as_fit_with_their_sessions(narrow: Told) -> None:
    for key in (1, 2, 3):
        narrow.queue.put_session(session(key, title="changed"))
        narrow.grow(key, b"x" * LIMIT)
    narrow.queue.replace(2)
    batches = [narrow.take(first) for first in (None, 3)]
    # Those that have waited longer come first.
    narrow.grow(1, b"x")
    batches.append(narrow.take())
    assert [list(batch.histories) for batch in batches] == [[1], [3], [2]]
    assert [set(batch.sessions) for batch in batches] == [{1}, {3}, {2}]
    assert [batch.erased for batch in batches] == [set(), set(), {2}]


def test_where_the_file_is_lost_all_that_is_known_is_queued(told: Told) -> None:
    told.grow(1, b"one")
    told.take()
    told.grow(2, b"ended after the last batch")
    told.end(2)
    del told.journals[3]
    told.queue.put_session(session(4))
    told.queue.replace(4)
    told.queue.requeue_all({"0a": TokenUse(1.0)})
    assert [told.queue.keeps(key) for key in (1, 2, 3, 4)] == [True, False, False, True]
    assert told.queue.lacks_histories
    batch = told.take()
    assert batch.sessions == {key: session(key) for key in (1, 2, 3, 4)}
    assert batch.uses == {"0a": TokenUse(1.0)}
    assert messages(batch, 1) == [b"one"]
    assert batch.histories.keys() == {1, 4}
    assert batch.erased == {2, 3}
    assert not told.queue.lacks_histories


# What is no longer in memory


def test_what_leaves_memory_waits_after_what_is_being_written(told: Told) -> None:
    told.grow(1, b"one")

    def end() -> None:
        told.grow(1, b"two")
        told.end(1)

    told.fail(end)
    assert told.queue.held > 0
    parts = told.take().histories[1]
    assert [part.position for part in parts] == [1, 2]
    # It continues the stored one wherever that ends.
    assert parts[-1].after(1) == [StoredRun([b"two"])]
    assert told.queue.held == 0


def test_what_has_left_memory_and_failed_waits_again(told: Told) -> None:
    told.grow(1, b"one")
    told.end(1)
    held = told.queue.held
    told.fail()
    assert told.queue.held == held
    assert messages(told.take(), 1) == [b"one"]
    assert told.queue.held == 0


def test_nothing_waits_of_a_history_that_leaves_memory_and_is_on_disk(told: Told) -> None:
    told.grow(1, b"one")
    told.take()
    told.end(1)
    assert not told.queue
    assert told.queue.keeps(1)


def test_what_is_to_be_cut_in_memory_waits_before_what_comes(told: Told) -> None:
    told.grow(1, b"one")
    for message in (b"two", b"three"):
        told.queue.leave(1)
        told.journals[1].shrink(0)
        told.grow(1, message)
    assert messages(told.take(), 1) == [b"one", b"two", b"three"]


def test_past_the_bound_a_history_that_has_left_memory_is_given_up_until_it_is_erased(narrow: Told) -> None:
    for key in (1, 2):
        narrow.grow(key, b"x" * (LIMIT // 2))
        narrow.end(key)
    assert narrow.queue.has_given_up
    assert narrow.queue.held < LIMIT
    narrow.fail()
    assert narrow.queue.has_given_up
    batch = narrow.take()
    assert (set(batch.histories), batch.erased) == ({1}, {2})
    assert [narrow.queue.keeps(key) for key in (1, 2)] == [True, False]
    assert not narrow.queue.has_given_up


def test_past_the_bound_a_history_that_is_cut_in_memory_is_replaced_with_what_is_there(narrow: Told) -> None:
    for _ in range(2):
        narrow.grow(1, b"x" * (LIMIT // 2), b"y")
        narrow.queue.leave(1)
        narrow.journals[1].shrink(1)
    batch = narrow.take()
    assert (batch.erased, messages(batch, 1)) == ({1}, [b"y"])
    assert narrow.queue.keeps(1)


def test_what_is_being_written_counts_for_the_bound(narrow: Told) -> None:
    narrow.grow(1, b"x" * (LIMIT // 2))
    with narrow.queue.taken():
        narrow.grow(1, b"x" * (LIMIT // 2))
        narrow.end(1)
        assert narrow.queue.has_given_up
    assert narrow.take().erased == {1}


def test_a_history_that_has_grown_and_is_nowhere_is_given_up(told: Told) -> None:
    told.grow(1, b"one")
    del told.journals[1]
    assert told.take().erased == {1}
    assert not told.queue.keeps(1)


# What was read of a history, and is so still.


def test_whatever_is_told_of_a_history_makes_another_state_of_it(told: Told) -> None:
    seen = {told.queue.revision(1)}
    steps: list[Callable[[], object]] = [
        lambda: told.grow(1, b"one"),
        lambda: told.queue.grow(1, 0),
        lambda: told.queue.replace(1),
        lambda: told.queue.put_session(session(1, epoch="e2")),
        lambda: told.queue.give_up({1}),
        lambda: told.queue.replace(1),
    ]
    for step in steps:
        step()
        seen.add(told.queue.revision(1))
    assert len(seen) == 7
    told.queue.forget(1)
    assert told.queue.revision(1) is None


def test_what_is_told_of_others_or_written_leaves_a_history_as_it_is(told: Told) -> None:
    told.grow(1, b"one")
    before = told.queue.revision(1)
    told.grow(2, b"one")
    told.queue.put_session(session(1, title="changed"))
    told.queue.leave(1)
    told.take()
    assert told.queue.revision(1) == before


def test_what_was_spent_is_added_once_after_a_batch_has_failed(told: Told) -> None:
    told.queue.spend(1, BY, {"USD": 1, "tokens": 2})
    told.fail(lambda: told.queue.spend(1, BY, {"USD": 4}))
    assert told.take().spent == {1: {BY: {"USD": 5, "tokens": 2}}}
    assert not told.take()


def test_what_was_spent_waits_with_the_session_whose_history_waits(narrow: Told) -> None:
    for key in (1, 2):
        narrow.grow(key, b"one")
        narrow.queue.put_session(session(key, meter="{}"))
        narrow.queue.spend(key, BY, {"USD": key})
    for key in (1, 2):
        batch = narrow.take()
        assert (list(batch.sessions), batch.spent) == ([key], {key: {BY: {"USD": key}}})


def test_a_prompt_that_is_not_on_disk_is_sent_at_once_and_never_written(told: Told) -> None:
    told.queue.put_prompt(PROMPT)
    assert told.queue.waits_for_prompts
    assert told.queue.send_prompt("k")
    assert not told.queue.waits_for_prompts
    assert not told.take()
    assert told.queue.send_prompt("none")


def test_a_prompt_on_disk_is_marked_there_before_it_is_sent_and_erased_afterwards(told: Told) -> None:
    told.queue.put_prompt(PROMPT)
    assert told.take().prompts == {"k": PROMPT}
    assert not told.queue.send_prompt("k")
    assert told.take().prompts == {"k": replace(PROMPT, sent=True)}
    told.queue.drop_prompt("k")
    batch = told.take()
    assert (batch.prompts, batch.erases) == ({"k": None}, True)
    assert told.queue.send_prompt("k")


def test_while_a_prompt_is_written_it_counts_as_written_and_not_after_that_has_failed(told: Told) -> None:
    told.queue.put_prompt(PROMPT)
    marks: list[bool] = []
    told.fail(lambda: marks.append(told.queue.send_prompt("k")))
    assert marks == [False]
    assert told.queue.waits_for_prompts
    assert told.take().prompts == {"k": replace(PROMPT, sent=True)}
    told.queue.put_prompt(other := replace(PROMPT, key="l"))
    told.fail()
    assert told.queue.send_prompt("l")
    assert other.key not in told.take().prompts


def test_prompts_are_erased_with_their_session_and_written_again_into_another_file(told: Told) -> None:
    told.queue.put_prompt(PROMPT)
    told.queue.put_prompt(replace(PROMPT, key="l", session=2))
    told.take()
    told.queue.requeue_all({})
    assert told.take().prompts.keys() == {"k", "l"}
    told.queue.forget(1)
    assert (told.take().prompts, list(told.queue.prompts)) == ({"k": None}, ["l"])
