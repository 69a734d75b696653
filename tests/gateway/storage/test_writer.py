"""Writing a batch, as a whole or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.histories import HistoryTables
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession, TokenUse
from acp_gateway.gateway.storage.write_queue import Change, WriteBatch
from acp_gateway.gateway.storage.writer import write

LIMIT = 100_000

SESSION = StoredSession(7, "demo", "s", "ada", "/src", None, None, 1.5, 2.5, "e1")


def journal(*messages: bytes) -> StoredJournal:
    """A history that nothing is missing of."""
    return StoredJournal("e1", len(messages), False, [], [StoredRun(list(messages))])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "sessions.db", LIMIT)
    yield database
    database.close()


def test_a_batch_is_written_and_lets_go_of_its_messages(database: Database) -> None:
    batch = WriteBatch({7: SESSION}, {"0a": TokenUse(1.0)})
    batch.put(7, Change().replaced(journal(b"one"), 3, unrelated=True))
    batch.extend(7, [b"two"] * 5000, None)
    write(database, batch)
    assert database.histories.read(7) == journal(b"one", *[b"two"] * 5000)
    assert database.token_uses() == {"0a": TokenUse(1.0)}
    change = batch.changes[7]
    assert change.whole is not None
    assert [run.messages for run in (*change.whole.runs, *change.runs)] == [[], []]


def test_a_batch_that_fails_leaves_nothing_and_stays_as_it_is(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divide(*args: object) -> None:
        raise ZeroDivisionError

    batch = WriteBatch({7: SESSION})
    batch.put(7, Change().replaced(journal(b"one"), 3, unrelated=True))
    batch.extend(7, [b"two"], None)
    with monkeypatch.context() as patch:
        patch.setattr(HistoryTables, "append", divide)
        with pytest.raises(ZeroDivisionError):
            write(database, batch)
    assert database.sessions() == []
    write(database, batch)
    assert database.histories.read(7) == journal(b"one", b"two")


@pytest.mark.parametrize(("unrelated", "messages"), [(False, [b"one", b"two", b"three"]), (True, [b"two", b"three"])])
def test_what_the_disk_has_from_before_stays_unless_it_is_of_another_history(
    database: Database, unrelated: bool, messages: list[bytes]
) -> None:
    batch = WriteBatch({7: SESSION})
    batch.put(7, Change().replaced(journal(b"one", b"two"), 6, unrelated=True))
    write(database, batch)
    batch = WriteBatch()
    batch.put(
        7, Change().replaced(StoredJournal("e1", 3, True, [], [StoredRun([b"two", b"three"])]), 8, unrelated=unrelated)
    )
    write(database, batch)
    assert database.histories.read(7) == StoredJournal("e1", 3, unrelated, [], [StoredRun(messages)])


def test_what_is_erased_is_so_before_anything_else(database: Database) -> None:
    batch = WriteBatch({7: SESSION})
    batch.put(7, Change().replaced(journal(b"one"), 3, unrelated=True))
    write(database, batch)
    batch = WriteBatch()
    batch.put(
        7,
        Change(erases=True).replaced(
            StoredJournal("e1", 2, True, [], [StoredRun([b"one", b"two"])]), 6, unrelated=False
        ),
    )
    write(database, batch)
    stored = database.histories.read(7)
    assert stored is not None
    assert stored.truncated


def test_a_session_is_forgotten_with_its_history(database: Database) -> None:
    batch = WriteBatch({7: SESSION})
    batch.put(7, Change().replaced(journal(b"one"), 3, unrelated=True))
    write(database, batch)
    batch = WriteBatch()
    batch.put(7, Change(forgets=True))
    write(database, batch)
    assert (database.sessions(), database.histories.sizes()) == ([], {})
