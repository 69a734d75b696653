"""What goes to the disk together, and what becomes of it where that fails."""

import pytest

from acp_gateway.gateway.storage.batches import OVERHEAD, PER_MESSAGE, Batch, Change
from acp_gateway.gateway.storage.records import Run, StoredJournal, StoredSession, TokenUse

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
    return StoredJournal("e1", len(messages), False, [], [Run(list(messages))])


# What is to be done to one history.


def test_messages_of_one_turn_are_together() -> None:
    change = added(b"one", b"two")
    change.extend([b"three"], "plan")
    change.end_turn()
    change.extend([b"four"], None)
    assert change.runs == [Run([b"one", b"two", b"three"], {2: "plan"}, ends_turn=True), Run([b"four"])]


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
    assert change.runs == [Run(ends_turn=True), Run([b"one"])]


def test_what_comes_for_a_history_that_is_renewed_is_in_memory_alone() -> None:
    change = added(b"one").renewed()
    assert change.extend([b"two"], "plan") == 0
    change.end_turn()
    assert (change.runs, change.size) == ([], OVERHEAD)


def test_a_history_that_takes_the_place_of_what_was_to_be_done_is_followed_by_what_comes() -> None:
    change = added(b"old").replaced(journal(b"one"), 3, anew=True)
    change.extend([b"two"], None)
    assert (change.whole, change.runs) == (journal(b"one"), [Run([b"two"])])


def test_another_history_stays_another_one_whatever_is_written_of_it() -> None:
    change = Change().replaced(journal(b"one"), 3, anew=True)
    assert change.renewed().anew
    assert change.renewed().replaced(journal(b"one"), 3, anew=False).anew
    assert change.followed_by(Change(renews=True)).anew
    assert not added(b"one").renewed().replaced(journal(b"one"), 3, anew=False).anew


def test_what_is_erased_is_so_whatever_comes_instead() -> None:
    change = Change(erases=True)
    assert change.renewed().erases
    assert change.replaced(journal(), 0, anew=True).erases
    assert change.followed_by(Change(renews=True)).erases


@pytest.mark.parametrize(
    ("ends_turn", "runs"),
    [
        (False, [Run([b"one", b"two"], {1: "plan"}, ends_turn=True), Run([b"three"])]),
        (True, [Run([b"one"], ends_turn=True), Run([b"two"], {0: "plan"}, ends_turn=True), Run([b"three"])]),
    ],
)
def test_what_failed_goes_on_with_what_came_meanwhile(ends_turn: bool, runs: list[Run]) -> None:
    failed = added(b"one", ends_turn=ends_turn)
    meanwhile = added(b"two", state="plan", ends_turn=True)
    meanwhile.extend([b"three"], None)
    new = failed.new + meanwhile.new
    both = failed.followed_by(meanwhile)
    assert (both.runs, both.new) == (runs, new)


def test_what_begins_anew_meanwhile_takes_the_place_of_what_failed() -> None:
    both = added(b"one").followed_by(Change().replaced(journal(b"two"), 3, anew=True))
    assert (both.whole, both.runs) == (journal(b"two"), [])


# What goes together.


def test_a_batch_counts_for_what_is_in_it() -> None:
    batch = Batch()
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
    batch = Batch()
    batch.extend(1, [b"one"], None)
    batch.put(2, Change(renews=True))
    batch.put(3, Change().replaced(journal(b"one"), 3, anew=True))
    assert (batch.renewed, batch.whole, batch.contents, batch.erases) == ([2], {2, 3}, {1, 3}, False)
    batch.put(4, Change(erases=True))
    assert batch.erases


def test_of_two_batches_the_later_counts_where_they_speak_of_the_same() -> None:
    first = Batch({7: SESSION}, {"0a": TokenUse(1.0)}, {})
    first.extend(7, [b"one"], None)
    first.extend(8, [b"eight"], None)
    later = Batch({}, {"0a": TokenUse(2.0)}, {})
    later.extend(7, [b"two"], None)
    later.extend(9, [b"nine"], None)
    both = first.followed_by(later)
    assert (both.sessions, both.uses) == ({7: SESSION}, {"0a": TokenUse(2.0)})
    assert {key: change.runs for key, change in both.changes.items()} == {
        7: [Run([b"one", b"two"])],
        8: [Run([b"eight"])],
        9: [Run([b"nine"])],
    }
    assert both.size == sum(change.size for change in both.changes.values())
