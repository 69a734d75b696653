"""Files that are no good: what tells that one is, and how it is put out of the way."""

import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

_LARGEST: Final = 2**62
"""What a number in the file is below: keys are microseconds since 1970, and whatever is added still fits a column."""

_LATEST: Final = 253_402_300_800.0
"""What a time in the file is below, in seconds since 1970: the year 10000, which can't be told as a date."""


PUT_ASIDE: Final = 3
"""Damaged files that are kept for somebody to look at, the newest: a disk that damages files again and again must not
be filled by them."""


class Damaged(sqlite3.DatabaseError):
    """What is in the file is nothing that was ever written there."""


def is_damage(error: Exception) -> bool:
    """Whether the file is no database, or not any more; trying again is of no use then."""
    if isinstance(error, Damaged | UnicodeDecodeError):
        return True
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_passing(error: Exception) -> bool:
    """Whether the open file is as good as before: it is only that the disk is full, or somebody else is writing."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def put_aside(path: Path, now: float) -> Path:
    """Rename a damaged file, with what belongs to it; its new name.

    Args:
        path: the file, which nobody may have open.
        now: the time, in seconds since 1970.

    Raises OSError.
    """
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{path.name}.damaged-{moment}"
    # Behind all of that moment: the first of them may be gone already, and the newest are what is kept.
    taken = [_age_in_name(file.name)[1] for file in path.parent.glob(f"{name}*")]
    targets = (
        path.with_name(name if number == 1 else f"{name}-{number}") for number in count(max(taken, default=0) + 1)
    )
    target = next(target for target in targets if not any(part.exists() for part in _parts(target)))
    for part, place in zip(_parts(path), _parts(target), strict=True):
        try:
            part.rename(place)
        except FileNotFoundError:
            pass
    _forget_oldest(path)
    return target


def _forget_oldest(path: Path) -> None:
    """Remove what was put aside before the newest ones. What can't be removed stays."""
    files = [file for file in path.parent.glob(f"{path.name}.damaged-*") if not file.name.endswith(("-wal", "-shm"))]
    files.sort(key=lambda file: _age_in_name(file.name))
    for file in files[:-PUT_ASIDE]:
        for part in _parts(file):
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _age_in_name(name: str) -> tuple[str, int]:
    """The moment in the name of a file that was put aside, and its number among those of that moment."""
    moment, _, number = name.removesuffix("-wal").removesuffix("-shm").rpartition(".damaged-")[2].partition("-")
    return moment, int(number) if number.isdigit() else 1


def _parts(path: Path) -> list[Path]:
    """A file with what belongs to it; the log first: a new file must never meet the log of the old one."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "")]


# A damaged file can have anything in any column, whatever type the column was declared with. Where it is something else
# than these say, they raise `Damaged`.


def is_number(value: object) -> bool:
    """Whether it is a number that can have been written there."""
    return isinstance(value, int) and 0 <= value < _LARGEST


def as_number(value: object) -> int:
    """A key, a position or a size."""
    if not isinstance(value, int) or not is_number(value):
        raise Damaged("there is something else where a number should be")
    return value


def as_time(value: object) -> float:
    """Seconds since 1970."""
    if not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise Damaged("there is something else where a time should be")
    return float(value)


def as_text(value: object) -> str:
    """A text."""
    if not isinstance(value, str):
        raise Damaged("there is something else where a text should be")
    return value


def as_text_or_none(value: object) -> str | None:
    """A text, or None where there is none."""
    return None if value is None else as_text(value)
