"""The file `search.db`: an index of the words of histories, by FTS5 of SQLite, and the time that a search may take.

A row of the index has the number of its session above the position of its text, so that a search finds sessions without
reading the texts.
"""

import itertools
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from acp_gateway.gateway.search.texts import (
    SHORTEST_BEGINNING,
    Snippet,
    joined,
    match_of,
    separated,
    snippet_of,
    snippets_of,
    spellings_of,
    storable,
    texts_of,
)
from acp_gateway.gateway.storage.corruption import Corruption
from acp_gateway.gateway.storage.sqlite_files import files_of, transaction
from acp_gateway.gateway.storage.state_folder import check_state_file

# Without the prefix, a beginning of hundreds of words takes ten times as long.
_TEXTS: Final = (
    "CREATE VIRTUAL TABLE doc USING fts5(text, parts UNINDEXED, "
    f"tokenize = 'unicode61 remove_diacritics 2', prefix = {SHORTEST_BEGINNING})"
)
_SESSIONS: Final = "CREATE TABLE session (number INTEGER PRIMARY KEY, key INTEGER UNIQUE, epoch TEXT, position INTEGER)"

_APPLICATION: Final = 0x41435073
"""SQLite's application id of the file, "ACPs"."""

_VERSION: Final = 3

_BITS: Final = 32
"""Bits of a position in a row's number."""

_POSITIONS: Final = 1 << _BITS

_SECURE_DELETE: Final = (3, 42, 0)
"""The version of SQLite whose index keeps nothing of what is deleted. An earlier one is told to write it again."""

END: Final = 2000
"""Characters of the end of a session's last text that are returned at most."""

TIME_LIMIT: Final = 5.0
"""Seconds after which a search is given up."""

_STEPS: Final = 100_000
"""Steps of SQLite between two looks at the clock."""


class Place(NamedTuple):
    """The part of a history that is in the index."""

    epoch: str
    position: int


class Found(NamedTuple):
    """A session in which something was found."""

    key: int
    texts: int
    """Number of texts with all words."""
    snippet: Snippet
    """A part of the last of them."""


def remove_files(path: Path) -> None:
    """Remove the file, with what SQLite has beside it. Raises OSError."""
    for file in files_of(path):
        file.unlink(missing_ok=True)


class SearchIndex:
    """The open file. All methods block, and may raise `sqlite3.Error`; one thread at a time may call them.

    Args:
        path: the file, created if it is missing, readable by its user alone.

    Raises `sqlite3.OperationalError` where SQLite lacks FTS5; `ConfigError` if the file is a link, or another user's;
    OSError.
    """

    def __init__(self, path: Path) -> None:
        files = files_of(path)
        for file in files:
            check_state_file(file)
        path.touch(0o600)
        for file in files:
            if file.exists():
                file.chmod(0o600)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._set_up()
        except BaseException:
            self._connection.close()
            raise
        rows = self._connection.execute("SELECT key, number FROM session").fetchall()
        self._numbers: dict[int, int] = dict(rows)

    def _set_up(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA secure_delete = ON").fetchall()
        execute("PRAGMA synchronous = NORMAL")
        if execute("PRAGMA application_id").fetchone()[0] == _APPLICATION:
            if execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                raise sqlite3.DatabaseError("it was written by another version")
        else:
            execute("PRAGMA auto_vacuum = INCREMENTAL")
            execute("PRAGMA journal_mode = WAL").fetchall()
            with transaction(self._connection):
                execute(_TEXTS)
                execute(_SESSIONS)
                if sqlite3.sqlite_version_info >= _SECURE_DELETE:
                    execute("INSERT INTO doc(doc, rank) VALUES ('secure-delete', 1)")
                execute(f"PRAGMA application_id = {_APPLICATION}")
                execute(f"PRAGMA user_version = {_VERSION}")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def places(self) -> dict[int, Place]:
        """Return the part of each history that is in the index, by the key of its session."""
        rows = self._connection.execute("SELECT key, epoch, position FROM session").fetchall()
        return {key: Place(epoch, position) for key, epoch, position in rows}

    def add(
        self,
        key: int,
        epoch: str,
        messages: Sequence[bytes],
        begin: int,
        start: int,
        *,
        is_new: bool,
        is_complete: bool,
        ends: Sequence[tuple[int, str]] = (),
    ) -> Place:
        """Add the texts of updates to those of a session; return the part that is in the index now.

        Args:
            key: the session's.
            epoch: the epoch of the positions.
            messages: whole updates.
            begin: the position before the first.
            start: the position before the first that the history still has: earlier texts are removed.
            is_new: remove all earlier texts.
            is_complete: False if a message at the end may go on.
            ends: the words of the ends of turns, as `texts_of` takes them.
        """
        texts, end = texts_of(messages, begin, is_complete=is_complete, ends=ends)
        execute = self._connection.execute
        with transaction(self._connection):
            if key not in self._numbers:
                number = execute("INSERT INTO session (key) VALUES (?)", (key,)).lastrowid
                assert number is not None, "a row was inserted"
            else:
                number = self._numbers[key]
                self._delete(number, _POSITIONS if is_new else start)
            first = number << _BITS
            rows = [(first + parts[0][1], separated(storable(text)), json.dumps(parts)) for text, parts in texts]
            self._connection.executemany("INSERT INTO doc (rowid, text, parts) VALUES (?, ?, ?)", rows)
            execute("UPDATE session SET epoch = ?, position = ? WHERE number = ?", (storable(epoch), end, number))
        self._numbers[key] = number
        return Place(epoch, end)

    def _delete(self, number: int, before: int) -> None:
        first = number << _BITS
        self._connection.execute("DELETE FROM doc WHERE rowid >= ? AND rowid < ?", (first, first + before))

    def size(self) -> int:
        """Return the bytes of the file that are used."""
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def forget(self, keys: Iterable[int], *, rewrite: bool = False) -> None:
        """Erase the texts of sessions; with `rewrite`, also the room that they leave within pages, in minutes."""
        known = [key for key in keys if key in self._numbers]
        if not known:
            return
        execute = self._connection.execute
        with transaction(self._connection):
            for key in known:
                self._delete(self._numbers[key], _POSITIONS)
                execute("DELETE FROM session WHERE key = ?", (key,))
        for key in known:
            del self._numbers[key]
        if rewrite or sqlite3.sqlite_version_info < _SECURE_DELETE:
            execute("INSERT INTO doc(doc) VALUES ('optimize')")
        self._connection.executescript("PRAGMA incremental_vacuum")
        execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _decoded(text: str) -> Any:
    """Return a value that was written as JSON. Raises `Corruption`."""
    try:
        return json.loads(text)
    except ValueError:
        raise Corruption("database disk image is malformed") from None


class SearchReader:
    """The file as searches read it, also while it is written.

    All methods block, and may raise `sqlite3.Error`; one thread at a time may call them.

    Args:
        path: the file, which is there.
        now: returns seconds of any clock.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._deadline = 0.0
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def find(self, words: str, ranks: Mapping[int, int], limit: int) -> list[Found]:
        """Return the first sessions by rank in which all words are found.

        Args:
            words: a search for which `match_of` returns something.
            ranks: the rank of each session that may be found, by its key.
            limit: maximum number of sessions.

        Raises TimeoutError after `TIME_LIMIT` seconds.
        """
        self._deadline = self._now() + TIME_LIMIT
        # In one row: between two rows this thread would wait for the interpreter's lock.
        rows = self._read(
            "SELECT json_group_array(json_array(key, count, last)) FROM "
            "(SELECT rowid >> ? AS found, count(*) AS count, max(rowid) AS last FROM doc "
            "WHERE doc MATCH ? GROUP BY found) JOIN session ON number = found",
            (_BITS, match_of(words)),
        )
        found = [one for one in _decoded(rows[0][0]) if one[0] in ranks]
        found.sort(key=lambda one: ranks[one[0]])
        read = ((key, count, self._text(row)) for key, count, row in found[:limit])
        return [Found(key, count, snippet_of(*text, words)) for key, count, text in read if text is not None]

    def find_in(self, wanted: str, key: int, before: int | None, limit: int) -> tuple[list[Snippet], bool]:
        """Return snippets of the last messages and tool calls of a session in which a text is, also within a word, the
        last one first, and True if there are more. With `before`, they lie before that position. Raises as `find`."""
        self._deadline = self._now() + TIME_LIMIT
        numbers = self._read("SELECT number FROM session WHERE key = ?", (key,))
        if not numbers:
            return [], False
        first = numbers[0][0] << _BITS
        end = _POSITIONS if before is None else min(before, _POSITIONS)
        # What has all words may have them elsewhere: the snippets tell.
        words = [[f"%{_escaped(one)}%" for one in spellings] for spellings in spellings_of(wanted)]
        likes = " AND ".join("(" + " OR ".join([r"text LIKE ? ESCAPE '\'"] * len(each)) + ")" for each in words)
        where = f"FROM doc WHERE rowid >= ? AND rowid < ? AND {likes}"
        bounds = first, first + end, *itertools.chain(*words)
        rows = self._read(f"SELECT json_group_array(rowid) {where}", bounds)
        found: list[Snippet] = []
        for row in sorted(_decoded(rows[0][0]), reverse=True):
            text = self._text(row)
            if text is not None:
                found += [one for one in reversed(snippets_of(*text, wanted)) if one.position < end]
            if len(found) > limit:
                break
        return found[:limit], len(found) > limit

    def last(self, keys: Iterable[int]) -> dict[int, str]:
        """Return the end of the last text of each of these sessions that has one, by key. Raises as `find`."""
        self._deadline = self._now() + TIME_LIMIT
        ends: dict[int, str] = {}
        query = "SELECT substr(text, ?) FROM doc WHERE rowid >= ? AND rowid < ? ORDER BY rowid DESC LIMIT 1"
        for key in keys:
            for (number,) in self._read("SELECT number FROM session WHERE key = ?", (key,)):
                first = number << _BITS
                for (text,) in self._read(query, (-END, first, first + _POSITIONS)):
                    ends[key] = joined(text)
        return ends

    def _text(self, row: int) -> tuple[str, list[tuple[int, int]]] | None:
        """Return a text with its parts; None if it was erased since it was found."""
        for text, parts in self._read("SELECT text, parts FROM doc WHERE rowid = ?", (row,)):
            return joined(text), _decoded(parts)
        return None

    def _read(self, query: str, values: tuple[object, ...]) -> list[Any]:
        # Looking for words in the texts that were read takes time as well.
        if self._now() > self._deadline:
            raise TimeoutError
        self._connection.set_progress_handler(lambda: self._now() > self._deadline, _STEPS)
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise TimeoutError from None
            raise
        finally:
            self._connection.set_progress_handler(None, 0)


def _escaped(text: str) -> str:
    """Return a text in which `LIKE` takes no character for another."""
    return re.sub(r"[\\%_]", r"\\\g<0>", text)


def open_index(path: Path) -> SearchIndex:
    """Open the index, in place of a file that can't be read. Raises as `SearchIndex`."""
    try:
        return SearchIndex(path)
    except sqlite3.DatabaseError as error:
        if "no such module" in str(error):
            with suppress(OSError):
                remove_files(path)
            raise
    remove_files(path)
    return SearchIndex(path)
