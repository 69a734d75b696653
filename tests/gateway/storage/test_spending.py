"""Costs of sessions on disk: sums by day, session, agent and identity, and what is kept of them."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.errors import Busy
from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.records import SpentBy
from acp_gateway.gateway.storage.salvage import salvage
from acp_gateway.gateway.storage.spending import DAYS, MOST_ROWS, MOST_SUMS, Wanted, day_of, read_sums
from tests.gateway.storage.stores import LIMIT, NOON, SESSION
from tests.gateway.storage.test_database import change

TODAY = "2026-01-01"
TOMORROW = "2026-01-02"
FIRST = SpentBy(TODAY, "demo", "sess-1", "ada")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    database = Database(path, LIMIT)
    yield database
    database.close()


def add(database: Database, by: SpentBy, **amounts: int) -> None:
    with database.transaction():
        database.spending.add(by, amounts)


def test_amounts_add_up_by_what_is_asked_for_and_never_across_units(path: Path, database: Database) -> None:
    add(database, FIRST, USD=5, tokens=10)
    add(database, FIRST, USD=2, EUR=1)
    add(database, FIRST._replace(day="2025-12-31", session_id="sess-2"), USD=100)
    add(database, FIRST._replace(agent="other", owner="bob\ud800"), tokens=7)
    expected: dict[Any, dict[str, dict[str, int]]] = {
        "day": {TODAY: {"USD": 7, "EUR": 1, "tokens": 17}, "2025-12-31": {"USD": 100}},
        "session": {"sess-1": {"USD": 7, "EUR": 1, "tokens": 17}, "sess-2": {"USD": 100}},
        "agent": {"demo": {"USD": 107, "EUR": 1, "tokens": 10}, "other": {"tokens": 7}},
    }
    for by, sums in expected.items():
        found = read_sums(path, Wanted(by))
        assert (found.sums, found.total, found.more) == (sums, {"USD": 107, "EUR": 1, "tokens": 17}, 0)
    assert read_sums(path, Wanted("identity", TODAY, "ada")).sums == {"ada": {"USD": 7, "EUR": 1, "tokens": 10}}
    assert read_sums(path, Wanted("agent", agents=["other"])).sums == {"other": {"tokens": 7}}
    assert read_sums(path, Wanted("agent", agents=[])).sums == {}
    assert database.spending.on_day(TODAY)["ada"] == {"USD": 7, "EUR": 1, "tokens": 10}


def test_sums_beyond_the_limit_are_left_out_and_counted(path: Path, database: Database) -> None:
    with database.transaction():
        for number in range(MOST_SUMS + 2):
            database.spending.add(FIRST._replace(session_id=f"s{number}"), {"tokens": number + 1})
    found = read_sums(path, Wanted("session"))
    assert (len(found.sums), found.more, "s1" in found.sums, f"s{MOST_SUMS}" in found.sums) == (
        MOST_SUMS,
        2,
        False,
        True,
    )
    assert found.total["tokens"] == sum(range(MOST_SUMS + 3))


def test_days_that_are_too_old_or_too_many_go_once_a_day(path: Path, database: Database) -> None:
    days = ["2024-11-01", "2025-12-30", "2025-12-31", TODAY]
    for day in days:
        add(database, FIRST._replace(day=day), USD=1)
    database.spending.prune(TODAY)
    assert list(read_sums(path, Wanted()).sums) == days[:0:-1]
    add(database, FIRST._replace(day="2024-11-01"), USD=1)
    database.spending.prune(TODAY)
    assert len(read_sums(path, Wanted()).sums) == 4
    database.spending.prune("2026-01-02", most=2)
    assert list(read_sums(path, Wanted()).sums) == days[:1:-1]
    database.spending.prune("2026-01-03", most=0)
    assert read_sums(path, Wanted()).sums == {}
    assert DAYS > 365


def test_too_many_sessions_of_one_day_are_added_up_without_their_names(path: Path, database: Database) -> None:
    for number in range(3):
        add(database, FIRST._replace(session_id=f"s{number}"), USD=1, tokens=2)
    database.spending.prune(TODAY, most=6)
    assert len(read_sums(path, Wanted("session")).sums) == 3
    database.spending.prune(TODAY, most=0)
    assert len(read_sums(path, Wanted("session")).sums) == 3
    add(database, FIRST, **{f"U{number}": 1 for number in range(MOST_ROWS // 4)})
    for expected in (3, 4):
        database.spending.prune(TODAY, most=0)
        amounts = read_sums(path, Wanted("session")).sums
        assert (list(amounts), amounts[""]["USD"], amounts[""]["tokens"]) == ([""], expected, 2 * expected)
        add(database, FIRST, USD=1, tokens=2)
        database.spending.prune(TOMORROW)


def test_amounts_beyond_the_integers_of_the_file_are_told_as_the_most(path: Path, database: Database) -> None:
    for number in range(3):
        add(database, FIRST._replace(session_id=f"s{number}"), tokens=2**62)
    assert read_sums(path, Wanted()).sums == {TODAY: {"tokens": 9 * 10**15}}
    assert database.spending.on_day(TODAY)["ada"]["tokens"] == 9 * 10**15


def test_a_file_from_before_costs_were_kept_gets_a_place_for_them(path: Path) -> None:
    database = Database(path, LIMIT)
    with database.transaction():
        database.put_session(SESSION)
    database.close()
    change(path, "DROP TABLE spent", "ALTER TABLE session DROP COLUMN meter", "PRAGMA user_version = 6")
    with pytest.raises(Busy, match="can't be read now"):
        read_sums(path, Wanted())
    database = Database(path, LIMIT)
    assert database.sessions() == [SESSION]
    metered = replace(SESSION, meter="{}")
    with database.transaction():
        database.put_session(metered)
    add(database, FIRST, USD=1)
    assert (database.sessions(), read_sums(path, Wanted("agent")).sums) == ([metered], {"demo": {"USD": 1}})
    database.close()


def test_a_damaged_file_keeps_the_costs_that_can_be_read(path: Path, tmp_path: Path) -> None:
    database = Database(path, LIMIT)
    add(database, FIRST, USD=1, tokens=2)
    add(database, FIRST._replace(day="yesterday"), USD=1)
    database.close()
    change(path, "UPDATE spent SET amount = 'x' WHERE unit = 'tokens'")
    new = Database(tmp_path / "new.db", LIMIT)
    salvage(path, new)
    assert read_sums(tmp_path / "new.db", Wanted()).sums == {TODAY: Counter(USD=1)}
    new.close()


def test_a_day_is_that_of_the_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert day_of(NOON) == TODAY


def test_what_is_in_the_file_and_no_amount_is_left_out(path: Path, database: Database) -> None:
    add(database, FIRST, USD=1, tokens=2)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE spent SET amount = -1 WHERE unit = 'USD'")
    other.close()
    assert read_sums(path, Wanted()).sums == {TODAY: {"tokens": 2}}
