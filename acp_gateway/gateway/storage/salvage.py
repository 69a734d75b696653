"""Reads what can be read of a damaged database file into a new one.

Each table is read in the order of its rows up to the first that can't be read, then from its end. A history keeps its
last messages without a gap, under another epoch: no position that a client knows proves anything any more.
"""

import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from acp_gateway.core.turns.ends import TurnEnd
from acp_gateway.core.turns.times import decode_times
from acp_gateway.gateway.storage.corruption import Corruption, as_number, as_text, as_text_or_none, as_time
from acp_gateway.gateway.storage.database import (
    PROMPT_COLUMNS,
    SESSION_COLUMNS,
    Database,
    decode_text,
    prompt_of,
    session_of,
)
from acp_gateway.gateway.storage.histories import read_end, unpack
from acp_gateway.gateway.storage.records import (
    SpentBy,
    StoredJournal,
    StoredPrompt,
    StoredRun,
    StoredSession,
    TokenUse,
)
from acp_gateway.gateway.storage.spending import rows_of
from acp_gateway.versions.carried import stored

MOST_ROWS: Final = 1_000_000
"""Maximum rows of a table that are read: a second's work."""

MOST_BYTES: Final = 256 * 1024 * 1024
"""Maximum bytes of histories that are read, those of the last used sessions first: some seconds' work, in which the
gateway does not start."""

_FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """Numbers of what was read."""

    sessions: int = 0
    histories: int = 0


class _Piece(NamedTuple):
    """A piece of a history, without its messages."""

    row: int
    first: int
    length: int
    size: int
    ends_turn: bool


@dataclass(slots=True)
class _Part:
    """A part of a history without a gap."""

    start: int = 0
    """The position before its first message."""
    end: int = 0
    size: int = 0
    """Bytes of its messages."""
    runs: list[StoredRun] = field(default_factory=list)


def salvage(old: Path, new: Database, make_epoch: Callable[[], str] = lambda: secrets.token_hex(8)) -> Salvaged:
    """Write what can be read of the file `old` into `new`, which is empty; nothing if that fails. Blocks.

    Args:
        old: the damaged file, which is not changed.
        new: the new file.
        make_epoch: returns a new epoch for each history.
    """
    try:
        with closing(_open(old)) as connection, new.transaction():
            return _copy(_OldFile(connection), new, make_epoch)
    except (*_FAILURES, OSError):
        return Salvaged()


def _open(path: Path) -> sqlite3.Connection:
    log = path.with_name(f"{path.name}-wal")
    # Without a log no other file has to be made beside it.
    how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
    connection.text_factory = decode_text
    # SQLite refuses a file that has lost its end otherwise.
    connection.execute("PRAGMA writable_schema = ON")
    return connection


def _copy(old: "_OldFile", new: Database, make_epoch: Callable[[], str]) -> Salvaged:
    for token_id, use in old.token_uses():
        new.put_token_use(token_id, use)
    for by, amounts in old.spent():
        new.spending.add(by, amounts)
    lengths, pieces, states, ends = old.lengths(), old.pieces(), old.states(), old.ends()
    sessions = sorted(old.sessions(), key=lambda session: session.used, reverse=True)
    left, histories = MOST_BYTES, 0
    for session in sessions:
        epoch, length = make_epoch(), lengths.get(session.key)
        part = _Part() if length is None else old.last_part(pieces.get(session.key, []), left)
        left -= part.size
        is_cut = length is not None and length != part.end
        # One that may lack its end counts as cut off while it was open: the client that opens it again is told.
        new.put_session(replace(session, epoch=epoch, former=(), open=session.open or is_cut))
        if part.runs or length == 0:
            aside = [state[1:] for state in sorted(states.get(session.key, [])) if state[0] < part.start]
            its_ends = sorted(end for end in ends.get(session.key, []) if part.start <= end.position <= part.end)
            journal = StoredJournal(epoch, part.end, part.start > 0, aside, part.runs, ends=its_ends)
            new.histories.replace(session.key, journal)
            histories += 1
    for prompt in old.prompts():
        new.put_prompt(prompt)
    return Salvaged(len(sessions), histories)


class _OldFile:
    """The damaged file, opened to be read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # Files of earlier versions lack some columns.
        self._session_columns = self._columns("session")
        self._times = "times" if "times" in self._columns("piece") else "NULL"

    def token_uses(self) -> Iterator[tuple[str, TokenUse]]:
        """Return the last uses of tokens by their ids."""
        for token_id, last_used, granted_by in self._rows("token", "id, last_used, granted_by"):
            with suppress(Corruption):
                yield as_text(token_id), TokenUse(as_time(last_used), as_text_or_none(granted_by))

    def spent(self) -> Iterator[tuple[SpentBy, dict[str, int]]]:
        """Return what was spent."""
        return rows_of(self._rows("spent", "day, agent, session, owner, unit, amount"))

    def sessions(self) -> list[StoredSession]:
        """Return the sessions, without the positions of their histories."""
        known = self._session_columns | {"0"}
        found = []
        for row in self._rows("session", ", ".join(name if name in known else "NULL" for name in SESSION_COLUMNS)):
            with suppress(Corruption):
                found.append(session_of(row))
        return found

    def lengths(self) -> dict[int, object]:
        """Return the position of each history that was kept, by the key of its session."""
        return {key: position for key, position in self._rows("journal", "session, position") if isinstance(key, int)}

    def pieces(self) -> dict[int, list[_Piece]]:
        """Return the pieces of each history in order, by the key of its session."""
        found: dict[int, list[_Piece]] = {}
        for row in self._rows("piece", "session, rowid, first, count, size, ends_turn"):
            with suppress(Corruption):
                key, number, first, length, size = map(as_number, row[:5])
                found.setdefault(key, []).append(_Piece(number, first, length, size, bool(row[5])))
        for pieces in found.values():
            pieces.sort(key=lambda piece: piece.first)
        return found

    def states(self) -> dict[int, list[tuple[int, bytes, str]]]:
        """Return what was put aside of each history, by the key of its session: positions, messages and kinds."""
        found: dict[int, list[tuple[int, bytes, str]]] = {}
        for key, number, message, kind in self._rows("state", "session, number, message, kind"):
            if isinstance(key, int) and isinstance(message, bytes):
                with suppress(Corruption):
                    found.setdefault(key, []).append((as_number(number), message, as_text(kind)))
        return found

    def ends(self) -> dict[int, list[TurnEnd]]:
        """Return the ends of turns of each history, by the key of its session."""
        found: dict[int, list[TurnEnd]] = {}
        for key, *row in self._rows("turn_end", "session, position, nth, outcome, time"):
            end = read_end(*row)
            if isinstance(key, int) and end is not None:
                found.setdefault(key, []).append(end)
        return found

    def prompts(self) -> Iterator[StoredPrompt]:
        """Return the prompts that wait."""
        for row in self._rows("prompt", PROMPT_COLUMNS):
            with suppress(Corruption):
                prompt = prompt_of(row)
                if _is_json(prompt.text):
                    yield prompt

    def last_part(self, pieces: Sequence[_Piece], most: int) -> _Part:
        """Return the last messages of a history that can be read and have no gap, of at most so many bytes."""
        part = _Part()
        for piece in reversed(pieces):
            if part.runs and piece.first + piece.length != part.start:
                break
            run = self._read(piece) if part.size + piece.size <= most else None
            if run is None and part.runs:
                break
            if run is None:
                continue  # The end is lost.
            if not part.runs:
                part.end = piece.first + piece.length
            elif not run.ends_turn:
                run.join(part.runs.pop(0))
            part.runs.insert(0, run)
            part.start, part.size = piece.first, part.size + piece.size
        return part

    def _read(self, piece: _Piece) -> StoredRun | None:
        """Return the messages of a piece; None if they can't be read, or are others than it says."""
        try:
            query = f"SELECT outline, messages, {self._times} FROM piece WHERE rowid = ?"  # noqa: S608 - our own names
            row = self._connection.execute(query, (piece.row,)).fetchone()
        except _FAILURES:
            return None
        run = StoredRun() if row is None else unpack(row[0], row[1])
        if not run.messages or (len(run.messages), sum(map(len, run.messages))) != (piece.length, piece.size):
            return None
        if not all(map(_is_json, map(stored, run.messages))):
            return None  # A page that was lost in part ends in zeros.
        run.times = decode_times(row[2], len(run.messages))
        run.ends_turn = piece.ends_turn
        return run

    def _columns(self, table: str) -> set[str]:
        try:
            query = f"SELECT name FROM pragma_table_info('{table}')"  # noqa: S608 - our own names
            return {str(name) for (name,) in self._connection.execute(query).fetchall()}
        except _FAILURES:
            return set()

    def _rows(self, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
        """Return the rows of a table that can be read, each once: from its beginning, then from its end."""
        reached: int | None = None
        for order in ("ASC", "DESC"):
            try:
                query = f"SELECT rowid, {columns} FROM {table} ORDER BY rowid {order} LIMIT ?"  # noqa: S608 - our own names
                for row_id, *row in self._connection.execute(query, (MOST_ROWS,)):
                    if order == "DESC" and reached is not None and row_id <= reached:
                        return
                    reached = row_id if order == "ASC" else reached
                    yield tuple(row)
                return
            except _FAILURES:
                pass


def _is_json(message: bytes) -> bool:
    try:
        msgspec.json.decode(message, type=msgspec.Raw)
        message.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
