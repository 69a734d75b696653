"""What outlives the gateway, as tables of an SQLite file: sessions, their histories, when tokens were last used.

A history is stored in pieces of many messages, and not a row for each: whoever steps through rows waits for the
interpreter's lock at every one, which a busy gateway gives up late. A piece never goes beyond the end of a turn, so
that cutting off whole turns means to remove whole pieces.

As in memory, a history that gets too large loses its beginning, and the last message of each kind of state that was
cut off is put aside. It is cut when it is a quarter too large, so that this happens once for many messages; whoever
reads it may have to cut a little more.

What is erased is overwritten (`secure_delete`), and gone from the write-ahead log as well after `tidy`.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.storage.damage import Damaged, as_number, as_text, as_text_or_none, as_time, is_number
from acp_gateway.gateway.storage.pieces import outline, split, unpack
from acp_gateway.gateway.storage.records import Run, StoredJournal, StoredSession, TokenUse
from acp_gateway.gateway.storage.state_folder import check_state_file

_APPLICATION: Final = 0x41435067
"""What SQLite files of this program say they are, "ACPg"."""

_VERSION: Final = 1
"""Of the tables."""

_BUSY: Final = 5.0
"""Seconds to wait while another process has the file locked. The command line locks it for milliseconds."""

_PIECE: Final = 1024 * 1024
"""Bytes of messages in one piece of a history, at most, but for a longer message: thousands of messages, so that the
fewer steps are taken for each the more of them come. A sixteenth of a history, where that is less: where the beginning
of a turn is cut off, it is cut off piece by piece."""

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


@dataclass(slots=True)
class _Extent:
    """The row of a history."""

    position: int
    size: int
    truncated: bool


class Database:
    """The file, opened. Everything here blocks, and may raise sqlite3.Error; one thread at a time may be in here.

    Where the file is damaged, everything may raise UnicodeDecodeError as well: what SQLite says then can quote the
    damaged part, and sqlite3 fails to decode it.

    Args:
        path: the file. It is created with its directory where it does not exist, for nobody else to read.
        journal_limit: bytes of one session's history.
        connect: what opens it.

    Raises:
        sqlite3.Error: SQLite can't use it; `is_damage` tells whether it ever will.
        OSError: nobody can.
        ConfigError: it belongs to another program or to a newer version of this one, and was not touched; or it is a
            link, or another user's.
    """

    def __init__(self, path: Path, journal_limit: int, connect: Connect = sqlite3.connect) -> None:
        self._path = path
        self._limit = journal_limit
        self._piece = min(_PIECE, journal_limit // 16)
        # The rows of the histories that were written to, as they are within the transaction.
        self._extents: dict[int, _Extent] = {}
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-shm"):
            # SQLite follows links, and there is no option that has it not do so.
            check_state_file(path.with_name(path.name + suffix))
        _make_private(path)
        # Trio's threads take turns; SQLite gives the files beside it the same mode and owner.
        self._connection = connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY)
        try:
            self._connection.text_factory = _decode_text
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
            self._extents.clear()
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

    def sizes(self) -> dict[int, int]:
        """Bytes of the messages of each history that is kept, by the keys of their sessions."""
        rows = self._connection.execute("SELECT session, size FROM journal").fetchall()
        return {as_number(key): as_number(size) for key, size in rows}

    def truncated(self) -> set[int]:
        """Return the keys of the sessions whose history lacks its beginning."""
        rows = self._connection.execute("SELECT session FROM journal WHERE truncated").fetchall()
        return {as_number(key) for (key,) in rows}

    def is_truncated(self, key: int) -> bool:
        """Return whether a session's history is kept and lacks its beginning."""
        extent = self._extent(key)
        return extent is not None and extent.truncated

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

    def append(self, key: int, runs: Sequence[Run]) -> None:
        """Add messages to a history; where none is kept, nothing."""
        extent = self._extent(key)
        if extent is not None:
            self._add(key, extent, runs)

    def replace_journal(self, key: int, journal: StoredJournal) -> None:
        """Keep this history of a session, in place of what there is. Its epoch is the session's."""
        self.forget_journal(key)
        count = sum(len(run.messages) for run in journal.runs)
        size = sum(len(message) for message, _ in journal.states)
        extent = self._extents[key] = _Extent(journal.position - count, size, journal.truncated)
        self._connection.execute("INSERT INTO journal VALUES (?, 0, 0, 0)", (key,))
        for number, (message, state) in enumerate(journal.states, extent.position - len(journal.states)):
            self._connection.execute("INSERT INTO state VALUES (?, ?, ?, ?)", (key, state, number, message))
        self._add(key, extent, journal.runs)

    def renew_journal(self, key: int, journal: StoredJournal) -> None:
        """Keep this history of a session, which what there is was once, if anything is.

        What it does not have any more stays, where nothing is missing between the two.
        """
        extent = self._extent(key)
        news = None if extent is None else journal.after(extent.position)
        if extent is None or news is None:
            self.replace_journal(key, journal)
        else:
            self._add(key, extent, news)

    def cut_journal(self, key: int, size: int) -> None:
        """Remove the beginning of a history, so that at most `size` bytes of messages are left.

        The last message of each kind of state stays, even if it is larger.
        """
        extent = self._extent(key)
        if extent is not None:
            self._cut(key, extent, size, within_turn=True)
            self._note_extent(key, extent)

    def read_journal(self, key: int) -> StoredJournal | None:
        """A session's history; None where none is kept, or where what is stored does not fit together."""
        row = self._connection.execute(
            "SELECT epoch, position, truncated, former FROM session JOIN journal ON session = key WHERE key = ?",
            (key,),
        ).fetchone()
        if row is None:
            return None
        epoch, position, truncated, former = row
        if not isinstance(epoch, str) or not is_number(position):
            return None
        aside = self._connection.execute("SELECT message, kind FROM state WHERE session = ? ORDER BY number", (key,))
        states = aside.fetchall()
        if not all(isinstance(message, bytes) and isinstance(kind, str) for message, kind in states):
            return None
        pieces = self._connection.execute(
            "SELECT first, ends_turn, outline, messages FROM piece WHERE session = ? ORDER BY first", (key,)
        ).fetchall()
        runs: list[Run] = []
        reached = position
        for first, ends_turn, outlined, messages in pieces:
            run = unpack(outlined, messages)
            if not run.messages or not is_number(first) or (runs and first != reached):
                return None
            reached = first + len(run.messages)
            run.ends_turn = bool(ends_turn)
            if runs and not runs[-1].ends_turn:
                runs[-1].join(run)
            else:
                runs.append(run)
        if reached != position:
            return None
        return StoredJournal(epoch, position, bool(truncated), states, runs, _former(former))

    def forget_journal(self, key: int) -> None:
        """Erase a session's history; none is kept from now on."""
        self._extents.pop(key, None)
        for table in ("journal", "piece", "state"):
            self._connection.execute(f"DELETE FROM {table} WHERE session = ?", (key,))  # noqa: S608 - our own names

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        self.forget_journal(key)
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

    def _extent(self, key: int) -> _Extent | None:
        extent = self._extents.get(key)
        if extent is None:
            query = "SELECT position, size, truncated FROM journal WHERE session = ?"
            row = self._connection.execute(query, (key,)).fetchone()
            if row is not None:
                position, size, truncated = row
                extent = self._extents[key] = _Extent(as_number(position), as_number(size), bool(truncated))
        return extent

    def _add(self, key: int, extent: _Extent, runs: Sequence[Run]) -> None:
        """Add messages, cut off what is too much then, and note how far the history goes."""
        # For each message of each agent, and the interpreter's lock is wanted elsewhere: no step of a loop is one
        # message's.
        lengths = [list(map(len, run.messages)) for run in runs]
        # Before, so that SQLite writes the new where the old was, and does not have to write that it was erased.
        # A turn that is running ends with these, maybe: what is then cut off is all of it or nothing.
        self._fit(key, extent, sum(map(sum, lengths)), within_turn=not any(run.ends_turn for run in runs))
        for run, each in zip(runs, lengths, strict=True):
            if run.messages:
                self._insert(key, extent, run, each)
            elif run.ends_turn:
                self._connection.execute(
                    "UPDATE piece SET ends_turn = 1 WHERE session = ? "
                    "AND first = (SELECT max(first) FROM piece WHERE session = ?)",
                    (key, key),
                )
        self._fit(key, extent)
        self._note_extent(key, extent)

    def _note_extent(self, key: int, extent: _Extent) -> None:
        self._connection.execute(
            "UPDATE journal SET position = ?, size = ?, truncated = ? WHERE session = ?",
            (extent.position, extent.size, extent.truncated, key),
        )

    def _insert(self, key: int, extent: _Extent, run: Run, lengths: list[int]) -> None:
        """Add messages of these lengths, in pieces."""
        kinds: list[str | None] = [None] * len(lengths)
        for index, state in run.states.items():
            kinds[index] = state
        for start, end in split(lengths, self._piece):
            its_lengths, its_kinds = lengths[start:end], kinds[start:end]
            count, size, talk = end - start, sum(its_lengths), its_kinds.count(None)
            self._connection.execute(
                "INSERT INTO piece VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key,
                    extent.position,
                    count,
                    size,
                    talk,
                    run.ends_turn and end == len(lengths),
                    outline(its_lengths, its_kinds),
                    b"".join(run.messages[start:end]),
                ),
            )
            extent.position += count
            extent.size += size

    def _fit(self, key: int, extent: _Extent, coming: int = 0, *, within_turn: bool = True) -> None:
        """Cut a history that is a quarter too large with what is coming, which are so many bytes."""
        if extent.size + coming > self._limit * 5 // 4:
            self._cut(key, extent, self._limit - coming, within_turn=within_turn)

    def _cut(self, key: int, extent: _Extent, limit: int, *, within_turn: bool) -> None:
        """Cut off whole turns, then the beginning of the running one, until what is left is within the limit."""
        query = "SELECT kind, length(message) FROM state WHERE session = ?"
        aside = {kind: as_number(length) for kind, length in self._connection.execute(query, (key,)).fetchall()}
        pieces = self._connection.execute(
            "SELECT first, count, size, talk, ends_turn FROM piece WHERE session = ? ORDER BY first", (key,)
        ).fetchall()
        last_end = max((index for index, piece in enumerate(pieces) if piece[-1]), default=-1)
        at_end = True
        rest = 0
        for index, (*numbers, ends_turn) in enumerate(pieces):
            if (extent.size <= limit and (at_end or index > last_end)) or (index > last_end and not within_turn):
                break
            first, count, size, talk = map(as_number, numbers)
            at_end = bool(ends_turn)
            extent.size -= size
            extent.truncated = extent.truncated or talk > 0
            if talk < count:
                for number, kind, message in self._states(key, first):
                    extent.size += len(message) - aside.get(kind, 0)
                    aside[kind] = len(message)
                    self._connection.execute(
                        "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)", (key, kind, number, message)
                    )
            rest = first + count
        self._connection.execute("DELETE FROM piece WHERE session = ? AND first < ?", (key, rest))

    def _states(self, key: int, first: int) -> Iterable[tuple[int, str, bytes]]:
        """The last message of each kind of state in a piece: its position, the kind and the message."""
        query = "SELECT outline, messages FROM piece WHERE session = ? AND first = ?"
        row = self._connection.execute(query, (key, first)).fetchone()
        if row is None:
            raise Damaged("a piece of a history is listed and can't be found")
        run = unpack(*row)
        last = {state: index for index, state in run.states.items()}
        return [(first + index, state, run.messages[index]) for state, index in last.items()]


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
    except (sqlite3.Error, UnicodeDecodeError, Damaged):
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
        _former(former),
    )


def _former_text(session: StoredSession) -> str | None:
    """The epochs that a history had before, as they are stored."""
    return msgspec.json.encode(session.former).decode() if session.former else None


def _former(text: object) -> tuple[tuple[str, int], ...]:
    """The epochs that a history had before. Where that is damaged it is none: nobody's place is proven by it."""
    if not isinstance(text, str):
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[tuple[str, int], ...])
    except (msgspec.DecodeError, UnicodeError):
        return ()


def _token_uses(connection: sqlite3.Connection) -> dict[str, TokenUse]:
    rows = connection.execute("SELECT id, last_used, granted_by FROM token").fetchall()
    return {
        as_text(token_id): TokenUse(as_time(last_used), as_text_or_none(granted_by))
        for token_id, last_used, granted_by in rows
    }
