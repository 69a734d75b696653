"""Detection of a corrupt file, and its new place."""

import sqlite3
from pathlib import Path

import pytest

from acp_gateway.gateway.storage.corruption import (
    PUT_ASIDE,
    Corruption,
    as_number,
    as_text,
    as_text_or_none,
    as_time,
    is_corruption,
    is_transient,
    put_aside,
)

NOON = 1_767_268_800.0
"""2026-01-01, 12:00 UTC."""


def failed(code: int) -> sqlite3.Error:
    """Return the error that SQLite raises with this code."""
    error = sqlite3.OperationalError("failed")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        failed(sqlite3.SQLITE_CORRUPT),
        failed(sqlite3.SQLITE_CORRUPT_VTAB),
        failed(sqlite3.SQLITE_NOTADB),
        Corruption("a number"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"),
    ],
)
def test_a_file_that_is_not_a_database_is_damaged_and_stays_so(error: Exception) -> None:
    assert is_corruption(error)
    assert not is_transient(error)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED])
def test_a_file_that_can_not_be_written_now_is_as_good_as_before(code: int) -> None:
    assert is_transient(failed(code))
    assert not is_corruption(failed(code))


@pytest.mark.parametrize("error", [failed(sqlite3.SQLITE_IOERR), PermissionError("no"), ZeroDivisionError()])
def test_what_may_get_better_when_the_file_is_opened_again_is_neither(error: Exception) -> None:
    assert not is_corruption(error)
    assert not is_transient(error)


def test_a_locked_file_is_not_a_damage() -> None:
    assert not is_corruption(sqlite3.OperationalError("database is locked"))


def test_a_damaged_file_is_put_aside_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"file")
    path.with_name("sessions.db-wal").write_bytes(b"log")
    assert put_aside(path, NOON) == path.with_name("sessions.db.damaged-20260101T120000Z")
    assert {part.name: part.read_bytes() for part in path.parent.iterdir()} == {
        "sessions.db.damaged-20260101T120000Z": b"file",
        "sessions.db.damaged-20260101T120000Z-wal": b"log",
    }


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_a_damaged_file_takes_the_place_of_none_that_was_put_aside_before(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "sessions.db"
    for number in (1, 2, 3):
        part = path.with_name(path.name + suffix)
        part.write_bytes(b"%d" % number)
        put_aside(path, NOON)
    assert {part.name: part.read_bytes() for part in path.parent.iterdir()} == {
        f"sessions.db.damaged-20260101T120000Z{suffix}": b"1",
        f"sessions.db.damaged-20260101T120000Z-2{suffix}": b"2",
        f"sessions.db.damaged-20260101T120000Z-3{suffix}": b"3",
    }


def test_what_is_in_a_column_is_taken_as_it_is() -> None:
    assert (as_number(7), as_text("a"), as_text_or_none("a"), as_text_or_none(None)) == (7, "a", "a", None)
    assert isinstance(as_time(7), float)


@pytest.mark.parametrize("value", ["7", 7.0, None, -1, 2**62, b"7"])
def test_something_else_than_a_number_is_damage(value: object) -> None:
    with pytest.raises(Corruption, match="where a number should be"):
        as_number(value)


@pytest.mark.parametrize("value", ["7", None, -1.0, float("inf"), float("nan"), 253_402_300_800.0])
def test_something_else_than_a_time_is_damage(value: object) -> None:
    with pytest.raises(Corruption, match="where a time should be"):
        as_time(value)


@pytest.mark.parametrize("value", [7, b"a"])
def test_something_else_than_a_text_is_damage(value: object) -> None:
    for take in (as_text, as_text_or_none):
        with pytest.raises(Corruption, match="where a text should be"):
            take(value)
    with pytest.raises(Corruption):
        as_text(None)


def test_only_the_newest_of_what_was_put_aside_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    for number in range(PUT_ASIDE + 9):
        path.write_text(str(number))
        (tmp_path / "sessions.db-wal").write_text(str(number))
        put_aside(path, 1_000_000.0 + number // 12)
    assert {file.read_text() for file in tmp_path.iterdir()} == {str(number) for number in range(9, PUT_ASIDE + 9)}
    assert len(list(tmp_path.iterdir())) == 2 * PUT_ASIDE
