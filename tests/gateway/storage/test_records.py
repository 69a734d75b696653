"""Histories as values: how they grow, and what of one is news to who has a part of it."""

import pytest

from acp_gateway.core.turns.times import Times
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun

JOURNAL = StoredJournal(
    "e1",
    16,
    True,
    [(b"mode", "mode")],
    [
        StoredRun([b"11", b"12", b"13"], {1: "plan", 2: "mode"}, ends_turn=True),
        StoredRun([b"14"], {}, ends_turn=True),
        StoredRun([b"15", b"16"], {0: "plan"}),
    ],
)
"""One with the messages 11 to 16."""


def test_runs_of_one_turn_are_joined() -> None:
    run = StoredRun([b"one"], {0: "mode"})
    run.join(StoredRun([b"two", b"three"], {1: "plan"}, ends_turn=True))
    assert run == StoredRun([b"one", b"two", b"three"], {0: "mode", 2: "plan"}, ends_turn=True)


@pytest.mark.parametrize(
    ("position", "news"),
    [
        (10, JOURNAL.runs),
        (11, [StoredRun([b"12", b"13"], {0: "plan", 1: "mode"}, ends_turn=True), *JOURNAL.runs[1:]]),
        (12, [StoredRun([b"13"], {0: "mode"}, ends_turn=True), *JOURNAL.runs[1:]]),
        (13, [StoredRun(ends_turn=True), *JOURNAL.runs[1:]]),
        (14, [StoredRun(ends_turn=True), JOURNAL.runs[2]]),
        (15, [StoredRun([b"16"])]),
        (16, []),
    ],
)
def test_what_is_news_to_who_has_a_part_of_a_history(position: int, news: list[StoredRun]) -> None:
    assert JOURNAL.after(position) == news


@pytest.mark.parametrize("position", [0, 9, 17])
def test_nothing_is_known_to_be_news_where_there_may_be_a_gap(position: int) -> None:
    assert JOURNAL.after(position) is None


def test_what_is_news_leaves_a_history_as_it_is() -> None:
    journal = StoredJournal("e1", 2, False, [], [StoredRun([b"one", b"two"], {0: "mode"})])
    news = journal.after(1)
    assert news is not None
    news[0].messages.append(b"three")
    news[0].states[0] = "plan"
    assert journal.runs == [StoredRun([b"one", b"two"], {0: "mode"})]


@pytest.mark.parametrize("position", [0, 7])
def test_of_a_history_that_holds_nothing_there_is_no_news_to_who_has_all(position: int) -> None:
    assert StoredJournal("e1", position, position > 0).after(position) == []


def test_messages_keep_their_times_when_runs_are_joined_or_taken_apart() -> None:
    run = StoredRun([b"one", b"two", b"three"], times=Times([(0, 5), (2, 6)]))
    run.join(StoredRun([b"four", b"five"], times=Times([(1, 7)])))
    assert run.times.of(0, 5) == [5, 5, 6, None, 7]
    rest = StoredJournal("e1", 5, False, [], [run]).after(2)
    assert rest is not None
    assert [(part.messages, part.times.of(0, 3)) for part in rest] == [([b"three", b"four", b"five"], [6, None, 7])]
