"""Keeps the index of the histories, and searches it, in threads.

A change of a session is noted at once and written a moment later, from the history in memory or on disk; the writing of
histories waits for none of this. A turn is written at its end, or once its session is searched. The file is opened when
there is something for it. Histories that are not in the index yet, all of them at first, are added one after the other,
the latest first.
"""

import logging
import math
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.ends import words_of
from acp_gateway.errors import Busy, UsageError
from acp_gateway.gateway.search.index import (
    Found,
    Place,
    SearchIndex,
    SearchReader,
    open_index,
    remove_files,
)
from acp_gateway.gateway.search.texts import Snippet, match_of, spellings_of
from acp_gateway.gateway.sessions.session_changes import SessionChanges, Subscription
from acp_gateway.gateway.storage.archive import StoredArchive
from acp_gateway.gateway.storage.corruption import is_corruption
from acp_gateway.gateway.storage.writer import FAILURES, WorkerThread
from acp_gateway.printable import counted
from acp_gateway.transports.timers import Signal

_log = logging.getLogger(__name__)

GATHERING: Final = 1.0
"""Seconds from a change to its writing, so that a turn's end and what comes with it are one."""

PAUSE: Final = 0.05
"""Seconds between two histories, for other work of the disk."""

RETRY_DELAY: Final = 60.0
"""Seconds from a failure of the file or the disk to the next attempt: what is missing by then is added in the end."""

ERASED: Final = 16
"""Fraction of the sessions whose texts are erased at a time: the whole index is written again then."""

MOST_FOUND: Final = 50
"""Maximum sessions, or texts of a session, in the result of a search: more words find less."""

_Result = TypeVar("_Result")


class FoundSession(NamedTuple):
    """A session in which something was found."""

    session: Session
    found: Found


class SearchService:
    """The search in histories.

    Args:
        path: the file of the index.
        archive: the histories, after `restore`.
        changes: tells changes of sessions.
        journal_limit: bytes of one history.
        history_limit: bytes of all, and of the file. Beyond it the least recently used sessions leave the file.
        enabled: False if no histories are on disk: there is no index then, and an earlier one is removed.
        pause: sleeps for a number of seconds.
    """

    def __init__(
        self,
        path: Path,
        archive: StoredArchive,
        changes: SessionChanges,
        journal_limit: int,
        history_limit: float = math.inf,
        *,
        enabled: bool,
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._path = path
        self._archive = archive
        self._changes = changes
        self._journal_limit = journal_limit
        self._history_limit = history_limit
        self._pause = pause
        self._was_there = path.exists()
        self._enabled = enabled
        self.problem: str | None = None
        """The reason why nothing can be searched, in one line; None if it can."""
        if not enabled:
            self.problem = 'histories are kept in memory only (journal_storage = "memory"), and can\'t be searched'
        self._thread = WorkerThread("search index")
        self._index: SearchIndex | None = None
        self._reader: SearchReader | None = None
        self._reading = trio.CapacityLimiter(1)
        self._opening = trio.Lock()
        # What the index has, and the keys of the sessions that it is of.
        self._places: dict[int, Place] = {}
        self._keys: dict[Session, int] = {}
        # The part of each history that was on disk at the start.
        self._restored: dict[Session, Place] = {}
        self._has_begun = False
        self._logged: str | None = None
        # What a search met in a damaged file, until that is removed.
        self._damage: Exception | None = None
        # The sessions whose history may have changed, those to look at first last.
        self._waiting: dict[Session, None] = {}
        self._signal = Signal()

    @property
    def is_complete(self) -> bool:
        """True if no history waits to be added."""
        return not self._waiting

    async def run(self) -> None:
        """Keep the index until cancelled. It never fails: `problem` says why nothing can be searched."""
        try:
            if not self._enabled:
                if self._was_there:
                    await trio.to_thread.run_sync(remove_files, self._path)
                return
            with self._changes.subscribe(signal=self._signal) as changes:
                while True:
                    try:
                        await self._follow(changes)
                    except Exception as error:  # Whatever it is: this is a task beside all agents, which go on.
                        await self._fail(error)
                        if _is_final(error):
                            return
                    await self._pause(RETRY_DELAY)
        finally:
            with trio.CancelScope(shield=True):
                await self._close()

    async def _follow(self, changes: Subscription) -> None:
        """Bring the index up to date, and keep it so. Raises any of `FAILURES`: a further call goes on.

        It does so after a bug as well, without the history in which that has shown.
        """
        await self._begin()
        self.problem = None
        while True:
            if not self._waiting:
                await self._erase(key for session, key in self._keys.items() if not self._archive.holds(session))
                while not self._waiting and not any(changes.changed) and self._damage is None:
                    await self._signal.wait()
                await self._pause(GATHERING)
            if self._damage is not None:
                raise self._damage
            changed = changes.take()
            self._waiting |= dict.fromkeys(session for session in changed.sessions if not session.turns)
            await self._forget(changed.removed)
            if self._waiting:
                session, _ = self._waiting.popitem()
                try:
                    await self._add(session)
                except FAILURES:
                    self._waiting[session] = None
                    raise
                self._logged = None
            await self._pause(PAUSE)

    async def _fail(self, error: Exception) -> None:
        """Close the file, and remove it if it is damaged."""
        self.problem = f"histories can't be searched: {_reason(error)}"
        if self.problem != self._logged:
            self._logged = self.problem
            _log.warning("%s: %s", self._path, self.problem, exc_info=None if isinstance(error, FAILURES) else error)
        async with self._opening:
            await self._close_file()
            self._damage = None
            if is_corruption(error):
                with suppress(OSError):
                    await trio.to_thread.run_sync(remove_files, self._path)

    async def _open(self) -> SearchIndex:
        """Open the file, if it is not open. Raises any of `FAILURES`."""
        async with self._opening:
            if self._index is None:
                index = await self._thread.call(open_index, self._path)
                try:
                    self._places = await self._thread.call(index.places)
                    self._reader = await trio.to_thread.run_sync(SearchReader, self._path)
                except FAILURES:
                    await self._thread.call(index.close)
                    raise
                self._index, self._was_there = index, True
        return self._index

    async def _close(self) -> None:
        if self.problem is None:
            self.problem = "the gateway is stopping"
        await self._close_file()
        self._thread.end()

    async def _close_file(self) -> None:
        async with self._reading:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        index, self._index = self._index, None
        if index is not None:
            with suppress(sqlite3.Error):
                await self._thread.call(index.close)

    async def _begin(self) -> None:
        """Forget sessions that do not exist any more, and note those that are not in the index as they are on disk."""
        if not self._has_begun:
            self._has_begun = True
            stored = self._archive.stored_places()
            self._keys = {session: key for session, (key, _, _) in stored.items()}
            self._restored = {session: Place(epoch, position) for session, (_, epoch, position) in stored.items()}
        if not self._keys and not self._was_there:
            return
        await self._open()
        await self._erase(self._places.keys() - self._keys.values())
        for session, key in self._keys.items():
            if key not in self._places or self._places[key] != self._restored.get(session):
                self._waiting[session] = None

    async def _forget(self, sessions: Iterable[Session]) -> None:
        gone = list(sessions)
        for session in gone:
            self._waiting.pop(session, None)
            self._restored.pop(session, None)
        await self._erase([self._keys.pop(session) for session in gone if session in self._keys])

    async def _erase(self, keys: Iterable[int]) -> None:
        known = [key for key in keys if key in self._places]
        if known and self._index is not None:
            for key in known:
                del self._places[key]
            await self._thread.call(self._index.forget, known)

    async def _add(self, session: Session) -> None:
        """Bring the index up to the end of a session's history."""
        key = self._archive.key_of(session)
        if key is None or not self._archive.holds(session):
            return
        self._keys[session] = key
        journal, place = session.journal, self._places.get(key)
        if not journal.epoch:
            read = await self._archive.read(session, self._journal_limit)
            if read is None:
                return
            journal = read
        known = None if place is None else journal.shared_with(place.epoch, place.position)
        is_new = place is None or known != place.position
        begin = journal.start if place is None or is_new else max(place.position, journal.start)
        if place == Place(journal.epoch, journal.position) or (place is None and not journal.position):
            return
        ends = [(end.position, words_of(end.outcome)) for end in journal.ends((begin + 1, 0))]
        index = await self._open()
        if await self._thread.call(index.size) > self._history_limit and not await self._make_room(index, session):
            return
        add = partial(
            index.add,
            key,
            journal.epoch,
            journal.messages(begin, journal.position),
            begin,
            journal.start,
            is_new=is_new,
            is_complete=not session.turns,
            ends=ends,
        )
        self._places[key] = await self._thread.call(add)

    async def _make_room(self, index: SearchIndex, session: Session) -> bool:
        """Erase the texts of sessions that were used before this one; return False if there are none to erase.

        Those that wait and were used before it are passed over then.
        """
        used = _last_use(session)
        older = [it for it, key in self._keys.items() if key in self._places and _last_use(it) < used]
        older = sorted(older, key=_last_use)[: len(self._places) // ERASED + 1]
        left_out = older or [session, *(it for it in self._waiting if _last_use(it) <= used)]
        many = counted(len(left_out), "session")
        _log.warning("%s: history_limit: there is no room for the texts of %s, not used lately", self._path, many)
        for one in left_out:
            self._waiting.pop(one, None)
        keys = [self._keys[one] for one in older]
        for key in keys:
            del self._places[key]
        await self._thread.call(partial(index.forget, keys, rewrite=True))
        return bool(older)

    # Searches

    async def find(self, sessions: Sequence[Session], words: str, limit: int = MOST_FOUND) -> list[FoundSession]:
        """Return the sessions, of these, in which all words are found, the last used first.

        Raises `UsageError` if nothing can be searched, or for no word, and `Busy` if it takes too long. Cancelling has
        no effect.
        """
        self._check(words)
        self._note_running(sessions)
        by_key = {key: session for session in sessions if (key := self._archive.key_of(session)) is not None}
        latest = sorted(by_key, key=lambda key: by_key[key].active_at or 0, reverse=True)
        ranks = {key: rank for rank, key in enumerate(latest)}
        found = await self._call(lambda reader: reader.find(words, ranks, min(limit, MOST_FOUND)))
        return [FoundSession(by_key[one.key], one) for one in found if self._archive.holds(by_key[one.key])]

    async def find_in(
        self, session: Session, wanted: str, before: int | None = None, limit: int = MOST_FOUND
    ) -> tuple[list[Snippet], bool]:
        """Return the last messages and tool calls of a session in which a text is, also within a word, the last one
        first, and True if there are more. With `before`, they lie before that position. Raises as `find`."""
        if not spellings_of(wanted):
            raise UsageError("a search needs a text")
        if self.problem is not None:
            raise UsageError(self.problem)
        key = self._archive.key_of(session)
        self._note_running([session])
        if key is None or not self._archive.holds(session):
            return [], False
        return await self._call(lambda reader: reader.find_in(wanted, key, before, min(limit, MOST_FOUND)))

    async def last(self, sessions: Sequence[Session]) -> dict[Session, str]:
        """Return the end of the last text of each session that has one.

        Raises as `find`, but for the words.
        """
        keys = {session: key for session in sessions if (key := self._archive.key_of(session)) is not None}
        if self.problem is not None or not keys:
            return {}
        ends = await self._call(lambda reader: reader.last(keys.values()))
        return {session: ends[key] for session, key in keys.items() if key in ends and self._archive.holds(session)}

    def _check(self, words: str) -> None:
        if match_of(words) is None:
            raise UsageError("a search needs a word of letters or digits")
        if self.problem is not None:
            raise UsageError(self.problem)

    def _note_running(self, sessions: Iterable[Session]) -> None:
        """Note sessions with a turn, which is written at its end otherwise."""
        self._waiting |= dict.fromkeys(session for session in sessions if session.turns)
        self._signal.notify()

    async def _call(self, search: Callable[[SearchReader], _Result]) -> _Result:
        try:
            await self._open()
        except FAILURES as error:
            raise UsageError(f"histories can't be searched: {_reason(error)}") from None
        async with self._reading:
            reader = self._reader
            if reader is None:
                raise UsageError(self.problem or "histories can't be searched")
            try:
                return await trio.to_thread.run_sync(search, reader)
            except TimeoutError:
                raise Busy("this search takes too long; more, or longer, words are faster") from None
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if is_corruption(error):
                    self._damage = error
                    self._signal.notify()
                raise Busy(f"the index can't be read now: {_reason(error)}") from None


def _last_use(session: Session) -> int:
    return session.active_at or 0


def _is_final(error: Exception) -> bool:
    """Return True if another attempt is pointless."""
    return "no such module" in str(error)


def _reason(error: Exception) -> str:
    if _is_final(error):
        return "the SQLite of this Python has no FTS5"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
