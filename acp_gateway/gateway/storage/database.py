"""The SQLite file `sessions.db`: sessions, histories (`histories`), costs (`spending`), prompts, uses of tokens.

Erased data is overwritten (`secure_delete`), and gone from the write-ahead log as well after `tidy`.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.storage.corruption import (
    Corruption,
    as_number,
    as_text,
    as_text_or_none,
    as_time,
    is_about_sharing,
)
from acp_gateway.gateway.storage.histories import HistoryTables, decode_former
from acp_gateway.gateway.storage.records import StoredPrompt, StoredSession, TokenUse
from acp_gateway.gateway.storage.spending import SPENT, SpendingTable
from acp_gateway.gateway.storage.sqlite_files import files_of, transaction
from acp_gateway.gateway.storage.state_folder import check_state_file

_APPLICATION: Final = 0x41435067
"""SQLite's application id of the file, "ACPg"."""

_VERSION: Final = 8
"""Version of the file. Those of earlier versions get the columns and the tables that they lack. Since 5, a stored
message may have the one that it was made of beside it (`versions.carried`), which earlier programs would take for a
part of its text. Since 6, there are ends of turns, which earlier programs would not erase. Since 7, there is what
sessions have cost, and since 8 prompts that wait, which earlier programs would not erase."""

_BUSY: Final = 5.0
"""Seconds to wait while another process has the file locked. The command line locks it for milliseconds."""

_LOG: Final = 8 * 1024 * 1024
"""Bytes of the write-ahead log that are kept on disk: twice its usual size. A large batch exceeds it for a moment."""

_TURN_ENDS: Final = """
    CREATE TABLE IF NOT EXISTS turn_end (
        session INTEGER NOT NULL, position INTEGER NOT NULL, nth INTEGER NOT NULL, outcome BLOB NOT NULL,
        time INTEGER, size INTEGER NOT NULL, PRIMARY KEY (session, position, nth)
    )
    """
"""The table of the ends of turns, as `core.turns.ends` has them, with the bytes that each counts for."""

_PROMPTS: Final = """
    CREATE TABLE IF NOT EXISTS prompt (
        key TEXT PRIMARY KEY, session INTEGER NOT NULL, at INTEGER, due INTEGER, auto INTEGER NOT NULL,
        sent INTEGER NOT NULL, identity TEXT NOT NULL, sender TEXT NOT NULL, is_new INTEGER NOT NULL, text BLOB NOT NULL
    )
    """
"""The table of the prompts that wait."""

_TABLES: Final = (
    """
    CREATE TABLE session (
        key INTEGER PRIMARY KEY, agent TEXT NOT NULL, session_id TEXT NOT NULL, owner TEXT NOT NULL, cwd TEXT,
        title TEXT, updated_at TEXT, created REAL NOT NULL, used REAL NOT NULL, epoch TEXT NOT NULL,
        former TEXT, open INTEGER, active INTEGER, archived INTEGER,
        named INTEGER, agent_id TEXT, meter TEXT
    )
    """,
    # Of a session whose history is kept: how many messages it ever had, and the bytes of those that are stored.
    """
    CREATE TABLE journal (
        session INTEGER PRIMARY KEY, position INTEGER NOT NULL, size INTEGER NOT NULL, truncated INTEGER NOT NULL
    )
    """,
    # `first` is the position before its first message, `talk` how many of its messages tell no state, `outline` the
    # length and the kind of state of each, `times` when they came (`core.times`). SQLite passes over the messages, and
    # what is behind them, where they aren't asked for.
    """
    CREATE TABLE piece (
        session INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL,
        talk INTEGER NOT NULL, ends_turn INTEGER NOT NULL, outline BLOB NOT NULL, messages BLOB NOT NULL,
        times BLOB, PRIMARY KEY (session, first)
    )
    """,
    # What was put aside; `number` is the position before it.
    """
    CREATE TABLE state (
        session INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL, message BLOB NOT NULL,
        PRIMARY KEY (session, kind)
    )
    """,
    _TURN_ENDS,
    SPENT,
    "CREATE TABLE token (id TEXT PRIMARY KEY, last_used REAL NOT NULL, granted_by TEXT)",
    _PROMPTS,
)

_LATER: Final = (
    ("session", "former", "TEXT"),
    ("session", "open", "INTEGER"),
    ("session", "active", "INTEGER"),
    ("session", "archived", "INTEGER"),
    ("session", "named", "INTEGER"),
    ("session", "agent_id", "TEXT"),
    ("session", "meter", "TEXT"),
    ("piece", "times", "BLOB"),
)
"""Columns that files of earlier versions don't have: table, name and type. What such a version has written has NULL
there, and counts as unknown."""

SESSION_COLUMNS: Final = (
    *("key", "agent", "session_id", "owner", "cwd", "title", "updated_at", "created", "used", "epoch"),
    # The position of its history is in another table.
    *("0", "former", "open", "active", "archived", "named", "agent_id", "meter"),
)
"""Columns of a session as `session_of` takes them."""

PROMPT_COLUMNS: Final = "key, session, at, due, auto, sent, identity, sender, is_new, text"
"""Columns of a prompt as `prompt_of` takes them."""

_PLACES: Final = ", ".join("?" * len(PROMPT_COLUMNS.split(", ")))

Connect = Callable[..., sqlite3.Connection]
"""`sqlite3.connect`, or something that takes the same."""


class Database:
    """The open file. All methods block and may raise sqlite3.Error; one thread at a time may call them.

    If the file is corrupt, all may raise UnicodeDecodeError as well: SQLite's message can quote the corrupt part, which
    sqlite3 fails to decode.

    Args:
        path: the file. It is created with its folder if missing, readable by its user alone.
        journal_limit: bytes of one session's history.
        connect: opens it.

    Raises:
        sqlite3.Error: SQLite cannot use it; `is_corruption` tells if a retry is pointless.
        OSError: the file or its folder is not accessible.
        ConfigError: it belongs to another program or to a newer version of this one, and was not touched; or it is a
            link, or another user's.
    """

    def __init__(self, path: Path, journal_limit: int, connect: Connect = sqlite3.connect) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in files_of(path):
            # SQLite follows links, and there is no option that has it not do so.
            check_state_file(file)
        is_created = not path.exists()
        _make_private(path)
        self.no_room: sqlite3.OperationalError | None = None
        """Error of SQLite if it could make no file beside this one to share it with other processes, else None. The
        file can be read all the same, and other processes are kept off."""
        try:
            try:
                self._open(connect, journal_limit)
            except sqlite3.OperationalError as error:
                if not is_about_sharing(error):
                    raise
                self.no_room = error
                self._open(connect, journal_limit)
        except BaseException:
            if is_created and path.stat().st_size == 0:
                path.unlink()  # For want of space; at the next start it would be one that was emptied.
            raise

    def _open(self, connect: Connect, journal_limit: int) -> None:
        # Trio's threads take turns; SQLite gives the files beside it the same mode and owner.
        self._connection = connect(self._path, isolation_level=None, check_same_thread=False, timeout=_BUSY)
        try:
            if self.no_room is not None:
                self._connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            self._connection.text_factory = decode_text
            self.histories = HistoryTables(self._connection, journal_limit)
            """The tables with histories."""
            self.spending = SpendingTable(self._connection)
            """The table with what was spent."""
            self.is_new = self._check_version()
            """True if the file was empty."""
            self._set_up()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the file. Committed transactions are in it."""
        self._connection.close()

    @contextmanager
    def transaction(self, *, synced: bool = False) -> Iterator[None]:
        """Commit all that is written in the block, or roll it back if the block raises.

        `synced` has the disk confirm it, so that it survives a loss of power.
        """
        if synced:
            self._connection.execute("PRAGMA synchronous = FULL")
        try:
            with transaction(self._connection):
                yield
        except BaseException:
            self.histories.roll_back()
            raise
        finally:
            if synced:
                self._connection.execute("PRAGMA synchronous = NORMAL")

    def sessions(self) -> list[StoredSession]:
        """Return all sessions, in the order of their creation."""
        columns = ", ".join("coalesce(position, 0)" if name == "0" else name for name in SESSION_COLUMNS)
        rows = self._connection.execute(
            f"SELECT {columns} FROM session LEFT JOIN journal ON session = key ORDER BY created, key"  # noqa: S608 - ours
        )
        return [session_of(row) for row in rows.fetchall()]

    def token_uses(self) -> dict[str, TokenUse]:
        """Return the last use of each token, by its id."""
        return _token_uses(self._connection)

    def put_session(self, session: StoredSession) -> None:
        """Add a session or change it; its history, and so its position, stays."""
        # Not as str: sqlite3 refuses lone surrogates, which agents and editors can send.
        texts = [
            None if text is None else text.encode("utf-8", "surrogatepass")
            for text in (
                *(session.agent, session.session_id, session.owner, session.cwd, session.title),
                *(session.updated_at, session.agent_id),
            )
        ]
        self._connection.execute(
            "INSERT OR REPLACE INTO session "
            "(key, agent, session_id, owner, cwd, title, updated_at, created, used, epoch, former, open, active, "
            "archived, named, meter, agent_id) "
            "VALUES (?, " + "CAST(? AS TEXT), " * 6 + "?, ?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS TEXT))",
            (
                *(session.key, *texts[:-1], session.created, session.used, session.epoch),
                *(_former_text(session), session.open, session.active, session.archived, session.named),
                *(session.meter, texts[-1]),
            ),
        )

    def put_token_use(self, token_id: str, use: TokenUse) -> None:
        """Store the last use of a token."""
        self._connection.execute(
            "INSERT OR REPLACE INTO token VALUES (?, ?, ?)", (token_id, use.last_used, use.granted_by)
        )

    def prompts(self) -> list[StoredPrompt]:
        """Return the prompts that wait, in the order of their arrival."""
        rows = self._connection.execute(f"SELECT {PROMPT_COLUMNS} FROM prompt ORDER BY at, rowid")  # noqa: S608 - ours
        return list(map(prompt_of, rows.fetchall()))

    def put_prompt(self, prompt: StoredPrompt) -> None:
        """Store a prompt that waits, or a change of it."""
        values = (getattr(prompt, name) for name in PROMPT_COLUMNS.split(", "))
        self._connection.execute(f"INSERT OR REPLACE INTO prompt ({PROMPT_COLUMNS}) VALUES ({_PLACES})", tuple(values))  # noqa: S608 - ours

    def drop_prompt(self, key: str) -> None:
        """Erase a prompt."""
        self._connection.execute("DELETE FROM prompt WHERE key = ?", (key,))

    def forget(self, key: int) -> None:
        """Erase a session with its history and its prompts."""
        self.histories.forget(key)
        self._connection.execute("DELETE FROM prompt WHERE session = ?", (key,))
        self._connection.execute("DELETE FROM session WHERE key = ?", (key,))

    def tidy(self) -> None:
        """Return free pages to the file system, and leave no erased data in the write-ahead log.

        Where another process reads at this moment, the log stays as it is, until the next time or until the file is
        closed.
        """
        # `execute` would take one step, which is one page.
        self._connection.executescript("PRAGMA incremental_vacuum")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _check_version(self) -> bool:
        """Return True if the file is empty. Raises ConfigError if it belongs to another program."""
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
        elif self._value("PRAGMA user_version") < _VERSION:
            self._migrate()

    def _migrate(self) -> None:
        """Add what files of earlier versions lack, in one transaction; histories are not rewritten."""
        with self.transaction():
            for table, name, kind in _LATER:
                query = f"SELECT count(*) FROM pragma_table_info('{table}') WHERE name = '{name}'"  # noqa: S608
                if not self._value(query):
                    self._connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
            self._connection.execute(_TURN_ENDS)
            self._connection.execute(SPENT)
            self._connection.execute(_PROMPTS)
            self._connection.execute(f"PRAGMA user_version = {_VERSION}")

    def _value(self, query: str) -> Any:
        return self._connection.execute(query).fetchone()[0]


def read_token_uses(path: Path) -> dict[str, TokenUse]:
    """Return the last use of each token, by its id, also while a gateway runs; empty if the file cannot be read."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY)
        try:
            return _token_uses(connection)
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError):
        return {}


def read_session_ids(path: Path) -> set[str] | None:
    """Return the ids of all sessions, also while a gateway runs; None if the file cannot be read."""
    if not path.exists():
        return set()
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY)
        try:
            connection.text_factory = decode_text
            return {as_text(session_id) for (session_id,) in connection.execute("SELECT session_id FROM session")}
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError, Corruption):
        return None


def _make_private(path: Path) -> None:
    """Create the file if it is missing, and let only its user read it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if stat.S_IMODE(os.fstat(file).st_mode) != 0o600:
            os.fchmod(file, 0o600)
    finally:
        os.close(file)


def decode_text(text: bytes) -> str:
    """Return a text of the file."""
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace")  # Never written by the gateway; one wrong name must not cost all others.


def session_of(row: Sequence[object]) -> StoredSession:
    """Return a session from a row. Raises `Corruption`."""
    key, agent, session_id, owner, cwd, title, updated_at, created, used, *rest = row
    epoch, position, former, is_open, active, archived, named, agent_id, meter = rest
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
        bool(is_open),
        None if active is None else as_number(active),
        bool(archived),
        bool(named),
        as_text_or_none(agent_id),
        as_text_or_none(meter),
    )


def prompt_of(row: Sequence[object]) -> StoredPrompt:
    """Return a prompt from a row. Raises `Corruption`."""
    key, session, at, due, auto, sent, identity, sender, is_new, text = row
    if not isinstance(text, bytes):
        raise Corruption("there is something else where a prompt should be")
    return StoredPrompt(
        as_text(key),
        as_number(session),
        None if at is None else as_number(at),
        None if due is None else as_number(due),
        bool(auto),
        bool(sent),
        as_text(identity),
        as_text(sender),
        bool(is_new),
        text,
    )


def _former_text(session: StoredSession) -> str | None:
    """Return the earlier epochs of a history, as stored."""
    return msgspec.json.encode(session.former).decode() if session.former else None


def _token_uses(connection: sqlite3.Connection) -> dict[str, TokenUse]:
    rows = connection.execute("SELECT id, last_used, granted_by FROM token").fetchall()
    return {
        as_text(token_id): TokenUse(as_time(last_used), as_text_or_none(granted_by))
        for token_id, last_used, granted_by in rows
    }
