"""Sessions and histories that are read of a damaged file into a new one."""

import os
import random
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.turns.ends import TurnEnd
from acp_gateway.gateway.storage import salvage as module
from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.records import StoredJournal, StoredPrompt, StoredRun, StoredSession, TokenUse
from acp_gateway.gateway.storage.salvage import Salvaged, salvage
from tests.fuzz.effort import effort
from tests.gateway.storage.stores import PROMPT

LIMIT = 1_000_000

PIECES = 4
"""Turns of a history, each of a piece of its own."""


def session(key: int, **changes: object) -> StoredSession:
    fields = {"title": f"Title {key}", "updated_at": None, "created": float(key), "used": float(key), "epoch": "e1"}
    return StoredSession(key, "demo", f"sess-{key}", "ada", "/src", **(fields | changes))  # type: ignore[arg-type]


def prompt(key: int) -> StoredPrompt:
    return replace(PROMPT, key=f"k{key}", session=key, text=b'"%d"' % key)


def messages(key: int, turn: int) -> list[bytes]:
    return [b'"%b"' % (b"%d.%d.%d " % (key, turn, number) * 200) for number in range(3)]


def journal(key: int) -> StoredJournal:
    runs = [StoredRun([*messages(key, turn)], {0: "mode"}, ends_turn=True) for turn in range(PIECES)]
    for run in runs:
        run.times.begin(0, 1_700_000_000_000)
    return StoredJournal("e1", 3 * PIECES, truncated=False, runs=runs, ends=ends_of(range(1, PIECES + 1)))


def ends_of(turns: Iterable[int]) -> tuple[TurnEnd, ...]:
    return tuple(TurnEnd(3 * turn, 1, TurnOutcome(f"turn {turn}"), turn) for turn in turns)


def make(path: Path, sessions: int = 20) -> bytes:
    """Return a file with sessions that have histories."""
    with closing(Database(path, LIMIT)) as database, database.transaction():
        for key in range(1, sessions + 1):
            database.put_session(session(key))
            database.histories.replace(key, journal(key))
            database.put_token_use(f"{key:08x}", TokenUse(5.0))
            database.put_prompt(prompt(key))
    return path.read_bytes()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    make(tmp_path / "old.db")
    return tmp_path / "old.db"


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "new.db", LIMIT)) as database:
        yield database


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def run(old: Path, new: Database) -> Salvaged:
    numbers = count(1)
    return salvage(old, new, lambda: f"new{next(numbers)}")


def check(new: Database) -> None:
    """Assert that all sessions and histories in a new file are parts of the ones that were made."""
    for found in new.sessions():
        history = new.histories.read(found.key)
        if history is None:
            continue
        assert history.position == found.position
        assert history.epoch.startswith("new")
        all_of_it = [message for run in journal(found.key).runs for message in run.messages]
        kept = [message for run in history.runs for message in run.messages]
        start = history.position - len(kept)
        assert kept == all_of_it[start : history.position]
        assert history.truncated is (start > 0)


def test_a_whole_file_is_read_whole(old: Path, new: Database) -> None:
    assert run(old, new) == Salvaged(20, 20)
    check(new)
    assert {found.key: found.title for found in new.sessions()} == {key: f"Title {key}" for key in range(1, 21)}
    history = new.histories.read(7)
    assert history is not None
    assert (history.runs, history.ends) == (journal(7).runs, journal(7).ends)
    assert len(new.token_uses()) == 20
    assert sorted(new.prompts(), key=lambda it: it.session) == list(map(prompt, range(1, 21)))


def test_a_file_in_whose_log_the_end_is_is_read_with_it(tmp_path: Path, new: Database) -> None:
    with closing(Database(tmp_path / "old.db", LIMIT)) as database, database.transaction():
        database.put_session(session(1))
    with closing(Database(tmp_path / "old.db", LIMIT)) as database:
        with database.transaction():
            database.put_session(session(2))
        assert run(tmp_path / "old.db", new) == Salvaged(2, 0)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.95])
def test_of_a_file_that_lost_its_end_the_rest_is_read(old: Path, new: Database, share: float) -> None:
    os.truncate(old, int(old.stat().st_size * share))
    salvaged = run(old, new)
    check(new)
    assert salvaged.sessions >= 10
    assert salvaged.histories >= 13 * share


def test_a_history_that_lost_its_end_goes_up_to_there_and_counts_as_cut_off(old: Path, new: Database) -> None:
    change(old, "DELETE FROM piece WHERE session = 3 AND first = 9")
    run(old, new)
    check(new)
    assert {found.key: (found.position, found.open) for found in new.sessions()}[3] == (9, True)
    assert {found.key: (found.position, found.open) for found in new.sessions()}[4] == (12, False)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE piece SET messages = x'00' WHERE session = 3 AND first = 3",
        "UPDATE piece SET count = 'x' WHERE session = 3 AND first = 3",
        "UPDATE piece SET outline = '[' WHERE session = 3 AND first = 3",
        "UPDATE piece SET messages = CAST(replace(messages, '3.1.2', x'0000000000') AS BLOB) WHERE first = 3",
        "DELETE FROM piece WHERE session = 3 AND first = 3",
    ],
)
def test_a_history_with_a_gap_begins_behind_it(old: Path, new: Database, damage: str) -> None:
    change(old, damage)
    run(old, new)
    check(new)
    history = new.histories.read(3)
    assert history is not None
    assert [run.messages for run in history.runs] == [messages(3, turn) for turn in (2, 3)]
    assert history.truncated


def test_a_history_that_was_not_kept_or_is_lost_is_not_there(old: Path, new: Database) -> None:
    for table in ("journal", "piece"):
        change(old, f"DELETE FROM {table} WHERE session = 3")  # noqa: S608
    change(old, "DELETE FROM piece WHERE session = 4")
    assert run(old, new) == Salvaged(20, 18)
    assert (new.histories.read(3), new.histories.read(4)) == (None, None)


def test_what_was_put_aside_of_a_history_stays_before_it(old: Path, new: Database) -> None:
    change(old, "DELETE FROM piece WHERE session = 3 AND first < 6")
    change(old, "INSERT INTO state VALUES (3, 'mode', 4, x'61')")
    change(old, "INSERT INTO state VALUES (3, 'plan', 7, x'62')")
    run(old, new)
    history = new.histories.read(3)
    assert history is not None
    assert history.states == [(b"a", "mode")]


def test_rows_with_something_else_in_a_column_are_left_out(old: Path, new: Database) -> None:
    change(old, "UPDATE session SET owner = x'00' WHERE key = 3")
    change(old, "UPDATE token SET last_used = 'x' WHERE id = '00000003'")
    assert run(old, new) == Salvaged(19, 19)
    assert len(new.token_uses()) == 19


def test_the_bytes_of_all_histories_are_bounded_and_the_last_used_come_first(
    old: Path, new: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "MOST_BYTES", 2 * sum(len(message) for run in journal(20).runs for message in run.messages)
    )
    assert run(old, new).sessions == 20
    check(new)
    assert new.histories.read(20) is not None
    assert new.histories.read(1) is None


def test_the_rows_of_a_table_are_bounded(old: Path, new: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 5)
    assert run(old, new).sessions == 5


def test_a_file_of_an_earlier_version_is_read(old: Path, new: Database) -> None:
    for table, name in (("session", "archived"), ("session", "active"), ("piece", "times")):
        change(old, f"ALTER TABLE {table} DROP COLUMN {name}")
    assert run(old, new) == Salvaged(20, 20)
    check(new)


@pytest.mark.parametrize("content", [b"", b"no database at all, " * 500])
def test_nothing_is_read_of_another_file(tmp_path: Path, new: Database, content: bytes) -> None:
    (tmp_path / "old.db").write_bytes(content)
    assert run(tmp_path / "old.db", new) == Salvaged()
    assert run(tmp_path / "absent.db", new) == Salvaged()
    assert sorted(path.name for path in tmp_path.glob("*old*")) == ["old.db"]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("salvage") / "old.db", sessions=5)


@effort(60)
@given(seed=st.integers(0, 2**32), share=st.floats(0.1, 1))
def test_whatever_is_damaged_the_new_file_can_be_used(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, seed: int, share: float
) -> None:
    chance = random.Random(seed)  # noqa: S311 - only to damage a file.
    folder = tmp_path_factory.mktemp("salvage")
    damaged = bytearray(content[: int(len(content) * share)])
    for _ in range(chance.choice((0, 1, 10, 100))):
        at = chance.randrange(len(damaged))
        damaged[at : at + chance.choice((1, 50, 4096))] = chance.randbytes(1)
    (folder / "old.db").write_bytes(damaged)
    with closing(Database(folder / "new.db", LIMIT)) as new:
        salvaged = run(folder / "old.db", new)
        assert len(new.sessions()) == salvaged.sessions
        for key in new.histories.sizes():
            journal = new.histories.read(key)
            assert journal is not None
            with new.transaction():
                more = StoredJournal(journal.epoch, journal.position + 1, False, [], [StoredRun([b"more"])])
                new.histories.renew(key, more)
