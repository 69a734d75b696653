"""The SQLite file `sessions.db`: sessions, their histories (`histories`), and the last use of each token.

Erased data is overwritten (`secure_delete`), and gone from the write-ahead log as well after `tidy`.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.storage.corruption import Corruption, as_number, as_text, as_text_or_none, as_time
from acp_gateway.gateway.storage.histories import HistoryTables, decode_former
from acp_gateway.gateway.storage.records import StoredSession, TokenUse
from acp_gateway.gateway.storage.state_folder import check_state_file

_APPLICATION: Final = 0x41435067
"""What SQLite files of this program say they are, "ACPg"."""

_VERSION: Final = 1
"""Of the tables."""

_BUSY: Final = 5.0
"""Seconds to wait while another process has the file locked. The command line locks it for milliseconds."""

_LOG: Final = 8 * 1024 * 1024
"""Bytes of the write-ahead log that stay on disk for the next time: twice what SQLite lets it grow to in quiet times.
One large batch makes it larger for a moment."""

_TABLES: Final = (
    """
    CREATE TABLE session (
        key INTEGER PRIMARY KEY, agent TEXT NOT NULL, session_id TEXT NOT NULL, owner TEXT NOT NULL, cwd TEXT,
        title TEXT, updated_at TEXT, created REAL NOT NULL, used REAL NOT NULL, epoch TEXT NOT NULL,
        former TEXT
    )
    """,
    # Of a session whose history is kept: how many messages it ever had, and the bytes of those that are stored.
    """
    CREATE TABLE journal (
        session INTEGER PRIMARY KEY, position INTEGER NOT NULL, size INTEGER NOT NULL, truncated INTEGER NOT NULL
    )
    """,
    # `first` is the position before its first message, `talk` how many of its messages tell no state, `outline` the
    # length and the kind of state of each. The messages come last: SQLite passes over them where they aren't asked for.
    """
    CREATE TABLE piece (
        session INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,
        talk INTEGER NOT NULL, ends_turn INTEGER NOT NULL, outline BLOB NOT NULL, messages BLOB NOT NULL,
        PRIMARY KEY (session, first)
    )
    """,
    # What was put aside; `number` is the position before it.
    """
    CREATE TABLE state (
        session INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL, message BLOB NOT NULL,
        PRIMARY KEY (session, kind)
    )
    """,
    "CREATE TABLE token (id TEXT PRIMARY KEY, last_used REAL NOT NULL, granted_by TEXT)",
)

_LATER: Final = (("session", "former", "TEXT"),)
"""Columns that files of earlier versions don't have: table, name and type. What such a version writes has NULL there,
so that what it has written and this one could take for older does not count."""

Connect = Callable[..., sqlite3.Connection]
"""`sqlite3.connect`, or something that takes the same."""


class Database:
    """The file, opened. Everything here blocks, and may raise sqlite3.Error; one thread at a time may be in here.

    Where the file is damaged, everything may raise UnicodeDecodeError as well: what SQLite says then can quote the
    damaged part, and sqlite3 fails to decode it.

    Args:
        path: the file. It is created with its directory where it does not exist, for nobody else to read.
        journal_limit: bytes of one session's history.
        connect: what opens it.

    Raises:
        sqlite3.Error: SQLite can't use it; `is_corruption` tells whether it ever will.
        OSError: nobody can.
        ConfigError: it belongs to another program or to a newer version of this one, and was not touched; or it is a
            link, or another user's.
    """

    def __init__(self, path: Path, journal_limit: int, connect: Connect = sqlite3.connect) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-shm"):
            # SQLite follows links, and there is no option that has it not do so.
            check_state_file(path.with_name(path.name + suffix))
        _make_private(path)
        # Trio's threads take turns; SQLite gives the files beside it the same mode and owner.
        self._connection = connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY)
        try:
            self._connection.text_factory = _decode_text
            self.histories = HistoryTables(self._connection, journal_limit)
            """The tables with histories."""
            self.is_new = self._check_version()
            """Whether there was nothing in it."""
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the file. What was committed is in it."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside is on disk afterwards, or nothing of it."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self.histories.roll_back()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def sessions(self) -> list[StoredSession]:
        """All of them, in the order of their creation."""
        rows = self._connection.execute(
            "SELECT key, agent, session_id, owner, cwd, title, updated_at, created, used, epoch, "
            "coalesce(position, 0), former FROM session LEFT JOIN journal ON session = key ORDER BY created, key"
        )
        return [_session(*row) for row in rows.fetchall()]

    def token_uses(self) -> dict[str, TokenUse]:
        """When each token was last used, by its id."""
        return _token_uses(self._connection)

    def put_session(self, session: StoredSession) -> None:
        """Add a session or change it; its history, and so its position, is a matter of its own."""
        # Not as str, which sqlite3 refuses where there is half a character in it: agents and editors can send those.
        texts = [
            None if text is None else text.encode("utf-8", "surrogatepass")
            for text in (session.agent, session.session_id, session.owner, session.cwd, session.title)
        ]
        updated_at = None if session.updated_at is None else session.updated_at.encode("utf-8", "surrogatepass")
        self._connection.execute(
            "INSERT OR REPLACE INTO session "
            "(key, agent, session_id, owner, cwd, title, updated_at, created, used, epoch, former) VALUES (?, "
            + "CAST(? AS TEXT), " * 6
            + "?, ?, ?, ?)",
            (session.key, *texts, updated_at, session.created, session.used, session.epoch, _former_text(session)),
        )

    def put_token_use(self, token_id: str, use: TokenUse) -> None:
        """Note when a token was last used."""
        self._connection.execute(
            "INSERT OR REPLACE INTO token VALUES (?, ?, ?)", (token_id, use.last_used, use.granted_by)
        )

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        self.histories.forget(key)
        self._connection.execute("DELETE FROM session WHERE key = ?", (key,))

    def tidy(self) -> None:
        """Give back what erasing made free, and leave nothing of it in the write-ahead log.

        Where another process reads at this moment, the log stays as it is, until the next time or until the file is
        closed.
        """
        # `execute` would take one step, which is one page.
        self._connection.executescript("PRAGMA incremental_vacuum")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _check_version(self) -> bool:
        """Whether the file is empty. Raises ConfigError where it is not for this program."""
        if not self._value("SELECT count(*) FROM sqlite_master"):
            return True
        if self._value("PRAGMA application_id") != _APPLICATION:
            raise ConfigError("is another program's database; move it away", file=str(self._path))
        version = self._value("PRAGMA user_version")
        if version > _VERSION:
            message = f"was written by a newer acp-gateway (version {version} of the file); update this one"
            raise ConfigError(message, file=str(self._path))
        return False

    def _set_up(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA secure_delete = ON").fetchall()
        execute("PRAGMA synchronous = NORMAL")
        if self.is_new:
            execute("PRAGMA auto_vacuum = INCREMENTAL")  # Only before the first table.
        execute("PRAGMA journal_mode = WAL").fetchall()
        execute(f"PRAGMA journal_size_limit = {_LOG}").fetchall()
        if self.is_new:
            with self.transaction():
                for statement in _TABLES:
                    execute(statement)
                execute(f"PRAGMA application_id = {_APPLICATION}")
                execute(f"PRAGMA user_version = {_VERSION}")
        for table, name, kind in _LATER:
            if not self._value(f"SELECT count(*) FROM pragma_table_info('{table}') WHERE name = '{name}'"):  # noqa: S608
                execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def _value(self, query: str) -> Any:
        return self._connection.execute(query).fetchone()[0]


def read_token_uses(path: Path) -> dict[str, TokenUse]:
    """When each token was last used, by its id, while a gateway may be writing; none where that can't be read."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY)
        try:
            return _token_uses(connection)
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError):
        return {}


def read_session_ids(path: Path) -> set[str] | None:
    """The ids of all sessions, live ones included, while a gateway may be writing; None where that can't be read."""
    if not path.exists():
        return set()
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY)
        try:
            connection.text_factory = _decode_text
            return {as_text(session_id) for (session_id,) in connection.execute("SELECT session_id FROM session")}
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError, Corruption):
        return None


def _make_private(path: Path) -> None:
    """Create the file where there is none; nobody else may read it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if stat.S_IMODE(os.fstat(file).st_mode) != 0o600:
            os.fchmod(file, 0o600)
    finally:
        os.close(file)


def _decode_text(text: bytes) -> str:
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace")  # Written by nobody here; one wrong name is not worth all the others.


def _session(
    key: object,
    agent: object,
    session_id: object,
    owner: object,
    cwd: object,
    title: object,
    updated_at: object,
    created: object,
    used: object,
    epoch: object,
    position: object,
    former: object,
) -> StoredSession:
    return StoredSession(
        as_number(key),
        as_text(agent),
        as_text(session_id),
        as_text(owner),
        as_text_or_none(cwd),
        as_text_or_none(title),
        as_text_or_none(updated_at),
        as_time(created),
        as_time(used),
        as_text(epoch),
        as_number(position),
        decode_former(former),
    )


def _former_text(session: StoredSession) -> str | None:
    """The epochs that a history had before, as they are stored."""
    return msgspec.json.encode(session.former).decode() if session.former else None


def _token_uses(connection: sqlite3.Connection) -> dict[str, TokenUse]:
    rows = connection.execute("SELECT id, last_used, granted_by FROM token").fetchall()
    return {
        as_text(token_id): TokenUse(as_time(last_used), as_text_or_none(granted_by))
        for token_id, last_used, granted_by in rows
    }
