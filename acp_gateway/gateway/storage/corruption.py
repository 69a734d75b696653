"""Corruption of the database file: how it is detected, and how the file is put aside."""

import sqlite3
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

from acp_gateway.gateway.storage.sqlite_files import files_of

_MAX_NUMBER: Final = 2**62
"""Upper bound of numbers in the file: keys are microseconds since 1970, and sums still fit a column."""

_LATEST: Final = 253_402_300_800.0
"""Upper bound of times in the file, in seconds since 1970: the year 10000, which `datetime` cannot represent."""


PUT_ASIDE: Final = 3
"""Number of corrupt files that are kept for inspection, the newest: a disk that damages files again and again must not
be filled by them."""


class Corruption(sqlite3.DatabaseError):
    """The file contains values that were never written to it."""


def is_corruption(error: Exception) -> bool:
    """Return True if the file is not, or no longer, a database, so that a retry is pointless."""
    if isinstance(error, Corruption | UnicodeDecodeError):
        return True
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_transient(error: Exception) -> bool:
    """Return True if the open file is still usable: the disk is full, or another process is writing."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def is_emptied(path: Path) -> bool:
    """Return True for a file without content: a new one gets its tables at once, so that this one was emptied."""
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def is_about_sharing(error: Exception) -> bool:
    """Return True if SQLite could not make the file beside the database that processes need to share it."""
    return getattr(error, "sqlite_errorcode", 0) in (
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
    )


def put_aside(path: Path, now: float) -> Path:
    """Rename a corrupt file together with its write-ahead log; return the new name.

    Args:
        path: the file, which must not be open in any process.
        now: the time, in seconds since 1970.

    Raises OSError.
    """
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{path.name}.damaged-{moment}"
    # Numbered after all files of the same second: the first of these may be removed already, and the newest are kept.
    taken = [_age_in_name(file.name)[1] for file in path.parent.glob(f"{name}*")]
    targets = (
        path.with_name(name if number == 1 else f"{name}-{number}") for number in count(max(taken, default=0) + 1)
    )
    target = next(target for target in targets if not any(part.exists() for part in files_of(target)))
    for part, place in zip(files_of(path), files_of(target), strict=True):
        try:
            part.rename(place)
        except FileNotFoundError:
            pass
    _forget_oldest(path)
    return target


def _forget_oldest(path: Path) -> None:
    """Remove all but the newest files that were put aside. A file that cannot be removed stays."""
    files = [file for file in path.parent.glob(f"{path.name}.damaged-*") if not file.name.endswith(("-wal", "-shm"))]
    files.sort(key=lambda file: _age_in_name(file.name))
    for file in files[:-PUT_ASIDE]:
        for part in files_of(file):
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _age_in_name(name: str) -> tuple[str, int]:
    """Return the time in the name of a file that was put aside, and its number among the files of that time."""
    moment, _, number = name.removesuffix("-wal").removesuffix("-shm").rpartition(".damaged-")[2].partition("-")
    return moment, int(number) if number.isdigit() else 1


# In a corrupt file any column can hold any value, whatever its declared type. These functions raise `Corruption` for a
# value of another type.


def is_number(value: object) -> bool:
    """Return True if the value is a number that the gateway may have written."""
    return isinstance(value, int) and 0 <= value < _MAX_NUMBER


def as_number(value: object) -> int:
    """Return a key, a position or a size."""
    if not isinstance(value, int) or not is_number(value):
        raise Corruption("there is something else where a number should be")
    return value


def as_time(value: object) -> float:
    """Return a time in seconds since 1970."""
    if not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise Corruption("there is something else where a time should be")
    return float(value)


def as_text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise Corruption("there is something else where a text should be")
    return value


def as_text_or_none(value: object) -> str | None:
    """Return a text, or None."""
    return None if value is None else as_text(value)
