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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from acp_gateway.errors import ConfigError

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

_LARGEST: Final = 2**62
"""What a number in the file is below: keys are microseconds since 1970, and whatever is added still fits a column."""

_LATEST: Final = 253_402_300_800.0
"""What a time in the file is below, in seconds since 1970: the year 10000, which can't be told as a date."""

_TABLES: Final = (
    """
    CREATE TABLE session (
        key INTEGER PRIMARY KEY, agent TEXT NOT NULL, session_id TEXT NOT NULL, owner TEXT NOT NULL, cwd TEXT,
        title TEXT, updated_at TEXT, created REAL NOT NULL, used REAL NOT NULL, epoch TEXT NOT NULL
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

Connect = Callable[..., sqlite3.Connection]
"""`sqlite3.connect`, or something that takes the same."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What is known of a session that no agent process has."""

    key: int
    agent: str
    session_id: str
    owner: str
    """An identity."""
    cwd: str | None
    title: str | None
    updated_at: str | None
    created: float
    """Seconds since 1970."""
    used: float
    """Seconds since 1970."""
    epoch: str
    """Of its history."""
    position: int = 0
    """How many messages its history ever had; 0 where none is kept."""


class Entry(NamedTuple):
    """A message of a history."""

    message: bytes
    state: str | None = None
    """The kind of update, if it is one of which only the last counts."""
    ends_turn: bool = False
    """Whether a turn ended after it."""


@dataclass(frozen=True, slots=True)
class StoredJournal:
    """A session's history."""

    epoch: str
    position: int
    """How many messages it ever had."""
    truncated: bool
    """Whether something is missing that told no state."""
    states: Sequence[Entry] = ()
    """From before `entries`: the last message that was cut off of each kind of state, in order."""
    entries: Sequence[Entry] = ()
    """The last messages, in order and without a gap: the last of them is the one at `position`."""


@dataclass(frozen=True, slots=True)
class TokenUse:
    """When a token was last presented."""

    last_used: float
    """Seconds since 1970."""
    granted_by: str | None = None
    """Whose session it turned out to be for, if it is for one alone."""


@dataclass(slots=True)
class _Extent:
    """The row of a history."""

    position: int
    size: int
    truncated: bool


class Damaged(sqlite3.DatabaseError):
    """What is in the file is nothing that was ever written there."""


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
        ConfigError: it belongs to another program or to a newer version of this one, and was not touched.
    """

    def __init__(self, path: Path, journal_limit: int, connect: Connect = sqlite3.connect) -> None:
        self._path = path
        self._limit = journal_limit
        self._piece = min(_PIECE, journal_limit // 16)
        # The rows of the histories that were written to, as they are within the transaction.
        self._extents: dict[int, _Extent] = {}
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
            "coalesce(position, 0) FROM session LEFT JOIN journal ON session = key ORDER BY created, key"
        )
        return [_session(*row) for row in rows.fetchall()]

    def journals(self) -> set[int]:
        """The keys of the sessions whose history is kept."""
        return {_number(key) for (key,) in self._connection.execute("SELECT session FROM journal").fetchall()}

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
            "(key, agent, session_id, owner, cwd, title, updated_at, created, used, epoch) VALUES (?, "
            + "CAST(? AS TEXT), " * 6
            + "?, ?, ?)",
            (session.key, *texts, updated_at, session.created, session.used, session.epoch),
        )

    def put_token_use(self, token_id: str, use: TokenUse) -> None:
        """Note when a token was last used."""
        self._connection.execute(
            "INSERT OR REPLACE INTO token VALUES (?, ?, ?)", (token_id, use.last_used, use.granted_by)
        )

    def append(self, key: int, entries: Sequence[tuple[bytes, str | None]], *, ends_turn: bool = False) -> None:
        """Add messages to a history, each with the kind of state that it tells, if any; where none is kept, nothing.

        With `ends_turn` a turn ended after the last of them, or, of none, after what is there already.
        """
        extent = self._extent(key)
        if extent is None:
            return
        if ends_turn and not entries:
            self._connection.execute(
                "UPDATE piece SET ends_turn = 1 WHERE session = ? "
                "AND first = (SELECT max(first) FROM piece WHERE session = ?)",
                (key, key),
            )
            return
        self._add(key, extent, entries, ends_turn=ends_turn)
        self._fit(key, extent)

    def replace_journal(self, key: int, journal: StoredJournal) -> None:
        """Keep this history of a session, in place of what there is. Its epoch is the session's."""
        self.forget_journal(key)
        count = len(journal.entries)
        extent = _Extent(
            journal.position - count, sum(len(entry.message) for entry in journal.states), journal.truncated
        )
        self._connection.execute("INSERT INTO journal VALUES (?, 0, 0, 0)", (key,))
        self._extents[key] = extent
        before = extent.position - len(journal.states)
        for number, (message, state, _) in enumerate(journal.states, before):
            self._connection.execute("INSERT INTO state VALUES (?, ?, ?, ?)", (key, state, number, message))
        turn: list[tuple[bytes, str | None]] = []
        for message, state, ends_turn in journal.entries:
            turn.append((message, state))
            if ends_turn:
                self._add(key, extent, turn, ends_turn=True)
                turn = []
        self._add(key, extent, turn, ends_turn=False)
        self._fit(key, extent)

    def read_journal(self, key: int) -> StoredJournal | None:
        """A session's history; None where none is kept, or where what is stored does not fit together."""
        row = self._connection.execute(
            "SELECT epoch, position, truncated FROM session JOIN journal ON session = key WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        epoch, position, truncated = row
        if not isinstance(epoch, str) or not _is_number(position):
            return None
        aside = self._connection.execute("SELECT message, kind FROM state WHERE session = ? ORDER BY number", (key,))
        states = [Entry(message, kind) for message, kind in aside.fetchall()]
        if not all(isinstance(message, bytes) and isinstance(kind, str) for message, kind, _ in states):
            return None
        pieces = self._connection.execute(
            "SELECT first, ends_turn, outline, messages FROM piece WHERE session = ? ORDER BY first", (key,)
        ).fetchall()
        entries: list[Entry] = []
        reached = position
        for first, ends_turn, outline, messages in pieces:
            unpacked = _unpack(outline, messages)
            if not unpacked or not _is_number(first) or (entries and first != reached):
                return None
            reached = first + len(unpacked)
            if ends_turn:
                unpacked[-1] = unpacked[-1]._replace(ends_turn=True)
            entries += unpacked
        if reached != position:
            return None
        return StoredJournal(epoch, position, bool(truncated), states, entries)

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

    def _value(self, query: str) -> Any:
        return self._connection.execute(query).fetchone()[0]

    def _extent(self, key: int) -> _Extent | None:
        extent = self._extents.get(key)
        if extent is None:
            query = "SELECT position, size, truncated FROM journal WHERE session = ?"
            row = self._connection.execute(query, (key,)).fetchone()
            if row is not None:
                position, size, truncated = row
                extent = self._extents[key] = _Extent(_number(position), _number(size), bool(truncated))
        return extent

    def _add(self, key: int, extent: _Extent, entries: Sequence[tuple[bytes, str | None]], *, ends_turn: bool) -> None:
        """Add messages that one turn ends behind, or none."""
        pieces = list(_split(entries, self._piece))
        for number, piece in enumerate(pieces, 1):
            size = sum(len(message) for message, _ in piece)
            self._connection.execute(
                "INSERT INTO piece VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key,
                    extent.position,
                    len(piece),
                    size,
                    sum(state is None for _, state in piece),
                    ends_turn and number == len(pieces),
                    msgspec.json.encode([(len(message), state) for message, state in piece]),
                    b"".join([message for message, _ in piece]),
                ),
            )
            extent.position += len(piece)
            extent.size += size

    def _fit(self, key: int, extent: _Extent) -> None:
        """Note how far a history goes, after it was cut where it is a quarter too large."""
        if extent.size > self._limit * 5 // 4:
            self._cut(key, extent)
        self._connection.execute(
            "UPDATE journal SET position = ?, size = ?, truncated = ? WHERE session = ?",
            (extent.position, extent.size, extent.truncated, key),
        )

    def _cut(self, key: int, extent: _Extent) -> None:
        """Cut off whole turns, then the beginning of the running one, until what is left is within the limit."""
        query = "SELECT kind, length(message) FROM state WHERE session = ?"
        aside = {kind: _number(length) for kind, length in self._connection.execute(query, (key,)).fetchall()}
        pieces = self._connection.execute(
            "SELECT first, count, size, talk, ends_turn FROM piece WHERE session = ? ORDER BY first", (key,)
        ).fetchall()
        last_end = max((index for index, piece in enumerate(pieces) if piece[-1]), default=-1)
        at_end = True
        rest = 0
        for index, (*numbers, ends_turn) in enumerate(pieces):
            if extent.size <= self._limit and (at_end or index > last_end):
                break
            first, count, size, talk = map(_number, numbers)
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
        entries = _unpack(*row)
        last = {state: number for number, (_, state, _) in enumerate(entries) if state is not None}
        return [(first + number, state, entries[number].message) for state, number in last.items()]


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
    target = path.with_name(f"{path.name}.damaged-{moment}")
    # The log first: a new file must never meet the log of the old one.
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        try:
            part.rename(target.with_name(target.name + suffix))
        except FileNotFoundError:
            pass
    return target


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


def _make_private(path: Path) -> None:
    """Create the file where there is none; nobody else may read it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
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
) -> StoredSession:
    return StoredSession(
        _number(key),
        _text(agent),
        _text(session_id),
        _text(owner),
        _text_or_none(cwd),
        _text_or_none(title),
        _text_or_none(updated_at),
        _time(created),
        _time(used),
        _text(epoch),
        _number(position),
    )


def _token_uses(connection: sqlite3.Connection) -> dict[str, TokenUse]:
    rows = connection.execute("SELECT id, last_used, granted_by FROM token").fetchall()
    return {
        _text(token_id): TokenUse(_time(last_used), _text_or_none(granted_by))
        for token_id, last_used, granted_by in rows
    }


# A damaged file can have anything in any column, whatever type the column was declared with.


def _is_number(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _LARGEST


def _number(value: object) -> int:
    if not isinstance(value, int) or not _is_number(value):
        raise Damaged("there is something else where a number should be")
    return value


def _time(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise Damaged("there is something else where a time should be")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Damaged("there is something else where a text should be")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _split(entries: Sequence[tuple[bytes, str | None]], limit: int) -> Iterator[Sequence[tuple[bytes, str | None]]]:
    """The messages in order, so many together as are within the limit in bytes, or one that is not."""
    start = size = 0
    for end, (message, _) in enumerate(entries):
        if end > start and size + len(message) > limit:
            yield entries[start:end]
            start, size = end, 0
        size += len(message)
    if entries:
        yield entries[start:]


def _unpack(outline: object, messages: object) -> list[Entry]:
    """The messages of a piece; none where the two do not fit together."""
    if not isinstance(outline, bytes) or not isinstance(messages, bytes):
        return []
    try:
        shape = msgspec.json.decode(outline, type=list[tuple[int, str | None]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if any(length < 0 for length, _ in shape) or sum(length for length, _ in shape) != len(messages):
        return []
    entries = []
    at = 0
    for length, state in shape:
        entries.append(Entry(messages[at : at + length], state))
        at += length
    return entries
