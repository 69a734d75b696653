"""Transactions of SQLite, and the files that a database consists of."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def files_of(path: Path) -> list[Path]:
    """Return the files of a database, the logs first: a new file must never meet the log of the old one."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "")]


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all that is written in the block, or roll it back if the block raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
