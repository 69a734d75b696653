"""The histories in an open file: appended to, cut, read.

A history is stored in pieces of many messages, not in a row for each: a reader that steps through rows waits for the
interpreter's lock at each of them, and a busy gateway releases it late. A piece has an outline, a JSON list with the
length and the kind of state of each message. It never extends beyond the end of a turn, so that whole turns are removed
by removing whole pieces.

As in memory, a history that is too large loses its beginning, and the last message of each kind of state in it is put
aside. It is cut when it is a sixteenth too large, so that this happens once for many messages; a reader may have to cut
a little more. What is cut off is overwritten, mostly by what comes with the same write: cutting more at once would
write it to the disk twice.
"""

import sqlite3
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import methodcaller
from typing import Final, cast

import msgspec

from acp_gateway.core.turns.ends import TurnEnd, decode_outcome, encode_outcome
from acp_gateway.core.turns.times import decode_times
from acp_gateway.gateway.storage.corruption import Corruption, as_number, is_number
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun
from acp_gateway.protocol.text.pairs import Entry, has_pairs
from acp_gateway.versions.carried import restored, stored

_PIECE: Final = 1024 * 1024
"""Bytes of messages in one piece of a history, at most, but for a longer message: thousands of messages, so that the
fewer steps are taken for each the more of them come. A sixteenth of a history, where that is less: where the beginning
of a turn is cut off, it is cut off piece by piece."""


@dataclass(slots=True)
class _Extent:
    """A row of the table of histories."""

    position: int
    size: int
    truncated: bool


class HistoryTables:
    """The tables with histories. Methods block, and may raise `sqlite3.Error`.

    Args:
        connection: the open file.
        journal_limit: bytes of one session's history.
    """

    def __init__(self, connection: sqlite3.Connection, journal_limit: int) -> None:
        self._connection = connection
        self._limit = journal_limit
        self._piece = min(_PIECE, journal_limit // 16)
        # The rows of the histories that were written to, as they are within the transaction.
        self._extents: dict[int, _Extent] = {}

    def roll_back(self) -> None:
        """Forget what was read and changed within a transaction that failed."""
        self._extents.clear()

    def sizes(self) -> dict[int, int]:
        """Return the bytes of each history's messages, by the key of its session."""
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

    def replace(self, key: int, journal: StoredJournal) -> None:
        """Store this history of a session, in place of any other. Its epoch is the session's."""
        self.forget(key)
        count = sum(len(run.messages) for run in journal.runs)
        states = [(stored(message), state) for message, state in journal.states]
        size = sum(len(message) for message, _ in states)
        extent = self._extents[key] = _Extent(journal.position - count, size, journal.truncated)
        self._connection.execute("INSERT INTO journal VALUES (?, 0, 0, 0)", (key,))
        for number, (message, state) in enumerate(states, extent.position - len(states)):
            self._connection.execute("INSERT INTO state VALUES (?, ?, ?, ?)", (key, state, number, message))
        self._add(key, extent, journal.runs, journal.ends, carries=journal.carries)

    def renew(self, key: int, journal: StoredJournal) -> None:
        """Store this history of a session; the stored one, if any, is an earlier state of it.

        The beginning that only the stored one has stays, if nothing is missing between the two.
        """
        extent = self._extent(key)
        news = None if extent is None else journal.after(extent.position)
        if extent is None or news is None:
            self.replace(key, journal)
        else:
            ends = [end for end in journal.ends if end.position >= extent.position]
            self._add(key, extent, news, ends, carries=journal.carries)

    def cut(self, key: int, size: int) -> None:
        """Remove the beginning of a history, so that at most `size` bytes of messages are left.

        The last message of each kind of state stays, even if it is larger.
        """
        extent = self._extent(key)
        if extent is not None:
            self._cut(key, extent, size, within_turn=True)
            self._note_extent(key, extent)

    def read(self, key: int) -> StoredJournal | None:
        """Return a session's history; None if none is stored, or if its parts do not fit together."""
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
        states = [(restored(message), kind) for message, kind in states]
        pieces = self._connection.execute(
            "SELECT first, ends_turn, outline, times, messages FROM piece WHERE session = ? ORDER BY first", (key,)
        ).fetchall()
        runs: list[StoredRun] = []
        reached = position
        for first, ends_turn, outlined, times, messages in pieces:
            run = unpack(outlined, messages)
            if any(map(_is_array, run.messages)):
                run.messages = [restored(stored(message)) for message in run.messages]
            run.times = decode_times(times, len(run.messages))
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
        return StoredJournal(
            epoch, position, bool(truncated), states, runs, decode_former(former), self._ends(key, position)
        )

    def forget(self, key: int) -> None:
        """Erase a session's history; none is stored until `replace`."""
        self._extents.pop(key, None)
        for table in ("journal", "piece", "state", "turn_end"):
            self._connection.execute(f"DELETE FROM {table} WHERE session = ?", (key,))  # noqa: S608 - our own names

    def _ends(self, key: int, position: int) -> tuple[TurnEnd, ...]:
        """Return the ends of turns up to a position; one that can't be read is left out."""
        query = "SELECT position, nth, outcome, time FROM turn_end WHERE session = ? ORDER BY position, nth"
        found = (read_end(*row) for row in self._connection.execute(query, (key,)).fetchall())
        return tuple(end for end in found if end is not None and end.position <= position)

    def _extent(self, key: int) -> _Extent | None:
        extent = self._extents.get(key)
        if extent is None:
            query = "SELECT position, size, truncated FROM journal WHERE session = ?"
            row = self._connection.execute(query, (key,)).fetchone()
            if row is not None:
                position, size, truncated = row
                extent = self._extents[key] = _Extent(as_number(position), as_number(size), bool(truncated))
        return extent

    def _add(
        self, key: int, extent: _Extent, runs: Sequence[StoredRun], ends: Sequence[TurnEnd], *, carries: bool
    ) -> None:
        """Append messages and ends of turns, cut the history if it is too large then, and update its row."""
        # For each message of each agent, and the interpreter's lock is wanted elsewhere: no step of a loop is one
        # message's.
        if carries:
            runs = [_as_stored(run) if has_pairs(run.messages) else run for run in runs]
        lengths = [list(map(len, run.messages)) for run in runs]
        # Before, so that SQLite writes the new where the old was, and does not have to write that it was erased.
        # A turn that is running ends with these, maybe: what is then cut off is all of it or nothing.
        coming = sum(map(sum, lengths)) + sum(end.size for end in ends)
        self._fit(key, extent, coming, within_turn=not any(run.ends_turn for run in runs))
        for run, each in zip(runs, lengths, strict=True):
            if run.messages:
                self._insert(key, extent, run, each)
            elif run.ends_turn:
                self._connection.execute(
                    "UPDATE piece SET ends_turn = 1 WHERE session = ? "
                    "AND first = (SELECT max(first) FROM piece WHERE session = ?)",
                    (key, key),
                )
        for end in ends:
            # What is known already is a part of what comes.
            added = self._connection.execute(
                "INSERT OR IGNORE INTO turn_end VALUES (?, ?, ?, ?, ?, ?)",
                (key, end.position, end.nth, encode_outcome(end.outcome), end.time, end.size),
            )
            extent.size += end.size * added.rowcount
        self._fit(key, extent)
        self._note_extent(key, extent)

    def _note_extent(self, key: int, extent: _Extent) -> None:
        self._connection.execute(
            "UPDATE journal SET position = ?, size = ?, truncated = ? WHERE session = ?",
            (extent.position, extent.size, extent.truncated, key),
        )

    def _insert(self, key: int, extent: _Extent, run: StoredRun, lengths: list[int]) -> None:
        """Insert messages of these lengths, in pieces."""
        kinds: list[str | None] = [None] * len(lengths)
        for index, state in run.states.items():
            kinds[index] = state
        for start, end in split(lengths, self._piece):
            its_lengths, its_kinds = lengths[start:end], kinds[start:end]
            count, size, talk = end - start, sum(its_lengths), its_kinds.count(None)
            self._connection.execute(
                "INSERT INTO piece (session, first, count, size, talk, ends_turn, outline, times, messages) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key,
                    extent.position,
                    count,
                    size,
                    talk,
                    run.ends_turn and end == len(lengths),
                    outline(its_lengths, its_kinds),
                    run.times.part(start, end).encode(),
                    b"".join(cast("list[bytes]", run.messages[start:end])),
                ),
            )
            extent.position += count
            extent.size += size

    def _fit(self, key: int, extent: _Extent, coming: int = 0, *, within_turn: bool = True) -> None:
        """Cut a history that is a sixteenth too large, with `coming` bytes that are about to be added."""
        if extent.size + coming > self._limit * 17 // 16:
            self._cut(key, extent, self._limit - coming, within_turn=within_turn)

    def _cut(self, key: int, extent: _Extent, limit: int, *, within_turn: bool) -> None:
        """Cut off whole turns, then the beginning of the running one, until what is left is within the limit."""
        query = "SELECT kind, length(message) FROM state WHERE session = ?"
        aside = {kind: as_number(length) for kind, length in self._connection.execute(query, (key,)).fetchall()}
        pieces = self._connection.execute(
            "SELECT first, count, size, talk, ends_turn FROM piece WHERE session = ? ORDER BY first", (key,)
        ).fetchall()
        query = "SELECT position, size FROM turn_end WHERE session = ? ORDER BY position"
        ends = deque((as_number(at), as_number(size)) for at, size in self._connection.execute(query, (key,)))
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
            while ends and ends[0][0] <= rest:
                extent.size -= ends.popleft()[1]
        self._connection.execute("DELETE FROM piece WHERE session = ? AND first < ?", (key, rest))
        if not pieces and extent.size > limit:
            rest = extent.position
        extent.size -= sum(size for position, size in ends if position <= rest)
        self._connection.execute("DELETE FROM turn_end WHERE session = ? AND position <= ?", (key, rest))

    def _states(self, key: int, first: int) -> Iterable[tuple[int, str, bytes]]:
        """Return position, kind and text of the last message of each kind of state in a piece."""
        query = "SELECT outline, messages FROM piece WHERE session = ? AND first = ?"
        row = self._connection.execute(query, (key, first)).fetchone()
        if row is None:
            raise Corruption("a piece of a history is listed and can't be found")
        run = unpack(*row)
        last = {state: index for index, state in run.states.items()}
        return [(first + index, state, stored(run.messages[index])) for state, index in last.items()]


def _as_stored(run: StoredRun) -> StoredRun:
    """Return a run with its messages as they stand on disk."""
    messages: list[Entry] = [*map(stored, run.messages)]
    return StoredRun(messages, run.states, run.ends_turn, run.times)


def split(lengths: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of pieces: as many messages as fit into the limit, or one larger message."""
    ends = list(accumulate(lengths, initial=0))
    start = 0
    while start < len(lengths):
        end = max(start + 1, bisect_right(ends, ends[start] + limit) - 1)
        yield start, end
        start = end


def outline(lengths: Sequence[int], kinds: Sequence[str | None]) -> bytes:
    """Return the outline of at least one message, of these lengths and kinds of state; None for no state."""
    if kinds.count(None) < len(kinds):
        return msgspec.json.encode(list(zip(lengths, kinds, strict=True)))
    # The same text, without thousands of objects for the garbage collector.
    return b"[[%b,null]]" % msgspec.json.encode(lengths)[1:-1].replace(b",", b",null],[")


# In place of `restored`, for many messages.
_is_array: Final = methodcaller("startswith", b"[")


def unpack(outlined: object, messages: object) -> StoredRun:
    """Return the messages of a piece with this outline; none if the two do not fit together."""
    if not isinstance(outlined, bytes) or not isinstance(messages, bytes):
        return StoredRun()
    states: dict[int, str] = {}
    try:
        if b'"' in outlined:
            shape = msgspec.json.decode(outlined, type=list[tuple[int, str | None]])
            lengths = [length for length, _ in shape]
            states = {index: state for index, (_, state) in enumerate(shape) if state is not None}
        else:
            lengths = msgspec.json.decode(b"[%b]" % outlined[2:-7].replace(b",null],[", b","), type=list[int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return StoredRun()
    if min(lengths, default=0) < 0 or sum(lengths) != len(messages):
        return StoredRun()
    ends = accumulate(lengths, initial=0)
    return StoredRun([messages[start:end] for start, end in pairwise(ends)], states)


def read_end(position: object, nth: object, stored: object, time: object) -> TurnEnd | None:
    """Return the end of a turn from a row; None if the row is corrupt."""
    outcome = decode_outcome(stored)
    if outcome is None or not (is_number(position) and is_number(nth)):
        return None
    return TurnEnd(as_number(position), as_number(nth), outcome, as_number(time) if is_number(time) else None)


def decode_former(text: object) -> tuple[tuple[str, int], ...]:
    """Return the earlier epochs of a history; none if they are corrupt, so that they prove no position."""
    if not isinstance(text, str):
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[tuple[str, int], ...])
    except (msgspec.DecodeError, UnicodeError):
        return ()
