"""The storage as the gateway sees it: sessions, their histories and the uses of tokens, which outlive a restart.

Callers never wait: changes are queued (`write_queue`), and one task commits them in batches from a worker thread
(write-behind). Queued changes are on disk a moment later, and at the end.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from acp_gateway.gateway.storage.database import Connect, Database
from acp_gateway.gateway.storage.records import StoredJournal, StoredSession, TokenUse
from acp_gateway.gateway.storage.write_queue import LiveHistories, WriteQueue
from acp_gateway.gateway.storage.write_schedule import Kept, Reduction, WriteDelay, WriteSchedule, reduce
from acp_gateway.gateway.storage.writer import Writer, cut, write

_log = logging.getLogger(__name__)

RETRY: Final = 10.0
"""Seconds until a failed write is retried."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds to write the rest at the end. A disk that takes longer hangs, and must not delay the gateway's end."""

LITTLE: Final = 1024 * 1024
"""Queued bytes that are written with low priority: some milliseconds' work. With more, the queue might be full
before a busy machine lets that thread work, and histories would be given up."""

READINGS: Final = 3
"""Attempts to read a history that continues during each of them."""

TOKEN_INTERVAL: Final = 3600.0
"""Seconds between two writes of a token's last use: a search for unused tokens is a matter of days."""

_DAY: Final = 86400.0


class _Reading:
    """A history that one or more callers wait for."""

    def __init__(self) -> None:
        self.journal: StoredJournal | None = None
        self.revision: int | None = None
        """The revision of the history that was read."""
        self.done = trio.Event()


class Storage:
    """The database and its write queue.

    Only `open`, `run` and `read_journal` wait or raise. Changes made before `run` are queued for it; changes made after
    it are ignored.

    Args:
        path: the file.
        journal: keep histories. If False, earlier ones are erased.
        retention_days: days after which an unused session is forgotten.
        journal_limit: bytes of one session's history.
        history_limit: bytes of all histories; the least recently used are removed first, those of live sessions cut.
        history_limit_per_identity: the same of one identity.
        write_delay: maximum seconds that a change waits to be written.
        write_behind_limit: bytes of queued changes, beyond which they are written at once.
        now: returns the time, in seconds since 1970.
        connect: opens the file.
        pause: sleeps for a number of seconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        journal: bool,
        retention_days: float,
        journal_limit: int,
        history_limit: float = math.inf,
        history_limit_per_identity: float = math.inf,
        write_delay: float = 0.5,
        write_behind_limit: int = 8 * 1024 * 1024,
        now: Callable[[], float] = time.time,
        connect: Connect = sqlite3.connect,
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._path = path
        self._journal = journal
        self._retention = retention_days * _DAY
        self._now = now
        self._writer = Writer(path, journal_limit, now, connect)
        # Changes that are not on disk yet.
        self._queue = WriteQueue(journal_limit)
        self._history_limits = history_limit, history_limit_per_identity
        # The keys of the sessions whose history on disk lacks its beginning.
        self._truncated: set[int] = set()
        # Bytes that may be written before all histories are added up again.
        self._until_added_up = 0.0
        self._schedule = WriteSchedule(WriteDelay(write_delay, write_behind_limit), pause)
        # The last uses of tokens, and the same as last written.
        self._uses: dict[str, TokenUse] = {}
        self._written_uses: dict[str, TokenUse] = {}
        self._last_key = 0
        # The histories to read, in order of the requests; what is queued is written first.
        self._readings: dict[int, _Reading] = {}
        # True while erased data may still be in the write-ahead log.
        self._erased = False
        self._stopping = False

    def rely_on(self, histories: LiveHistories) -> None:
        """Set the source of the histories of live sessions."""
        self._queue.live_histories = histories

    @property
    def problem(self) -> str | None:
        """Current failures of the storage, in one line; None while there are none.

        A corrupt file is a problem until everything known of sessions is stored in the new one; the log names it.
        """
        return self._writer.problem

    def open(self) -> list[StoredSession]:
        """Load what was stored; return the sessions in the order of their creation.

        Called once, before `run`. Blocks. If the file is unusable, `problem` says so, and `run` keeps trying to write.
        Sessions unused for `retention_days` are forgotten.
        """
        try:
            stored, sizes = self._writer.load(self._load)
        except Exception as error:  # Agents can be used without what was stored, so any failure is only noted.
            self._writer.note_failure(error)
            return []
        self._written_uses = dict(self._uses)
        if not self._journal:
            stored = [replace(session, position=0) for session in stored]
        self._queue.restore(stored, sizes)
        self._last_key = max(self._queue.sessions, default=0)
        for key in self.expired():
            self.forget(key)
        wanted = self._queue.sessions.keys() if self._journal else ()
        for key in sizes.keys() - wanted:
            self.forget_journal(key)
        # No session is live yet, so that nothing is cut.
        self._remove(self._beyond_limits(sizes).removed)
        return list(self._queue.sessions.values())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is queued until cancelled; then write the rest, within `CLOSE_TIMEOUT` seconds; close the file."""
        disconnect = trio.CancelScope(shield=True)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_until_stopped, disconnect)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._stopping = True
                    for reading in self._readings.values():
                        reading.done.set()
                    self._readings.clear()
                    disconnect.deadline = trio.current_time() + CLOSE_TIMEOUT
                    self._schedule.hurry()
        finally:
            self._queue.close()
            if disconnect.cancelled_caught:
                _log.error("%s: not all could be written within %d seconds", self._path, CLOSE_TIMEOUT)

    def new_key(self) -> int:
        """Return a key that no other session has or had.

        It is made from the time, so that it differs from those in a file that could not be read.
        """
        self._last_key = max(self._last_key + 1, int(self._now() * 1e6))
        return self._last_key

    def keep(self, session: StoredSession) -> None:
        """Store a session that is new or has changed. A new one gets an empty history.

        One that is not open any more is stored together with the last messages of its history, or after them.

        Of one that is kept, another `epoch` means that the same history goes on under another name. An empty one
        keeps the epoch and the earlier ones: a caller without the history in memory knows none.
        """
        known = self._queue.sessions.get(session.key)
        if known is not None and not session.epoch:
            session = replace(session, epoch=known.epoch, former=known.former)
        if session == known:
            return
        self._queue.put_session(session)
        self._queued()
        if known is None:
            self.replace(session.key, StoredJournal(session.epoch, position=0, truncated=False), size=0)

    def append(self, key: int, message: bytes, state: str | None = None, time: int | None = None) -> None:
        """Add a message of this time in milliseconds since 1970, with the kind of state that it tells, if any."""
        self._queue.extend(key, (message,), state, time)
        self._queued()

    def extend(self, key: int, messages: Sequence[bytes], time: int | None = None) -> None:
        """Add messages of this time that tell no state to a session's history."""
        self._queue.extend(key, messages, None, time)
        self._queued()

    def turn_ended(self, key: int) -> None:
        """Store the end of a turn, after the last message of a session's history."""
        self._queue.end_turn(key)
        self._queued()

    def replace(self, key: int, journal: StoredJournal, size: int) -> None:
        """Store this history of a known session, in place of the stored one, if any.

        Args:
            key: the session's.
            journal: the history. The storage owns it from now on, and takes it apart after the write.
            size: bytes of its messages.
        """
        if self._journal:
            self._queue.replace(key, journal, size)
            self._queued()

    def renew(self, key: int) -> None:
        """Store a session's history as it is in memory at the time of the write."""
        self._queue.renew(key)
        self._queued()

    def finish_journal(self, key: int) -> None:
        """Finish storing a history that is about to leave the memory; the stored one stays."""
        self._queue.finish_journal(key)
        self._queued()

    def forget_journal(self, key: int) -> None:
        """Erase a session's history; none is stored until `replace`."""
        self._queue.forget_journal(key)
        self._queued()

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        self._queue.forget(key)
        self._queued()

    def expired(self) -> list[int]:
        """Return the keys of the sessions that were unused for `retention_days`."""
        earliest = self._now() - self._retention
        return [session.key for session in self._queue.sessions.values() if session.used < earliest]

    def token_used(self, token_id: str, granted_by: str | None = None) -> None:
        """Note a use of a token now; `granted_by` is the owner of the session it is bound to, once that is known."""
        before = self._uses.get(token_id)
        if granted_by is None and before is not None:
            granted_by = before.granted_by
        use = self._uses[token_id] = TokenUse(self._now(), granted_by)
        written = self._written_uses.get(token_id, TokenUse(-math.inf))
        if abs(use.last_used - written.last_used) >= TOKEN_INTERVAL or granted_by != written.granted_by:
            self._written_uses[token_id] = use
            self._queue.put_use(token_id, use)
            self._queued()

    def token_uses(self) -> dict[str, TokenUse]:
        """Return the last use of each token, by its id."""
        return dict(self._uses)

    def keeps_journal(self, key: int) -> bool:
        """Return True if a session's history is stored: neither forgotten nor given up because a write failed."""
        return self._queue.keeps(key)

    def has_cut_journal(self, key: int) -> bool:
        """Return whether a session's history is on disk without its beginning."""
        return key in self._truncated and self._queue.keeps(key)

    async def read_journal(self, key: int) -> StoredJournal | None:
        """Return a session's history as of now, with all queued changes.

        None if none is stored, if it cannot be read now, or if it continues in memory during the read, where it is
        newer then. None too if it is not in memory and was extended during each of `READINGS` attempts. Parallel calls
        for the same history may return the same object. Waits for `run`, and returns when that ends. Cancelling has no
        effect on the storage.
        """
        for _ in range(READINGS):
            if not self._queue.keeps(key) or self._stopping:
                break
            reading = self._readings.setdefault(key, _Reading())
            self._schedule.hurry()
            await reading.done.wait()
            if reading.revision == self._queue.revision(key):
                return reading.journal
            if self._queue.is_in_memory(key):
                break
        await trio.lowlevel.checkpoint()
        return None

    def _queued(self) -> None:
        """Wake up the writing task, if anything is queued."""
        if self._queue.has_given_up:
            text = "more is to be written than can be; the histories of sessions that have ended are given up"
            self._writer.report("slow", f"{self._path}: {text}")
        # Without histories, messages arrive all the time and nothing is queued.
        if self._queue:
            self._schedule.queued(self._queue.size)

    # The writing task

    async def _write_until_stopped(self, disconnect: trio.CancelScope) -> None:
        with disconnect:
            while True:
                if self._queue or self._readings or self._erased or (self._writer.fails and not self._stopping):
                    # Without gathering, a fast stream would keep a second processor busy with writing, and be slower,
                    # though most of it is soon cut off again.
                    if not self._is_urgent:
                        await self._schedule.gather(self._queue.size)
                    with self._schedule.working():
                        written = await self._work()
                    if not written:
                        if self._stopping:
                            break
                        if not self._is_urgent:
                            await self._schedule.rest(RETRY)
                elif self._stopping:
                    break
                else:
                    await self._schedule.sleep()
            await self._writer.close()

    @property
    def _is_urgent(self) -> bool:
        """True while a caller waits for a history, or the storage is stopping."""
        return bool(self._readings) or self._stopping

    async def _work(self) -> bool:
        """Write what is queued, then read one requested history; return False if the write failed.

        One history at a time, so that neither new changes nor the memory wait for all of them.
        """
        self._writer.is_urgent = self._is_urgent or self._queue.size > LITTLE
        key = next(iter(self._readings), None)
        if key is None:
            written = await self._try_to_write(key)
        else:
            # Later requests want the changes queued by then.
            reading = self._readings.pop(key)
            reading.revision = self._queue.revision(key)
            try:
                written = await self._try_to_write(key)
                if not self._stopping and (written or not self._queue.waits(key)):
                    reading.journal = await self._read(key)
            finally:
                reading.done.set()
        return written

    async def _try_to_write(self, first: int | None) -> bool:
        try:
            await self._write_queue(first)
        except Exception as error:  # Any failure: clients must not notice a disk that cannot be written.
            await self._writer.fail(error)
        return not self._writer.fails

    async def _write_queue(self, first: int | None) -> None:
        database = self._writer.database
        if database is not None and database.no_room is not None and not self._is_urgent:
            # There may be room by now.
            await self._writer.close()
            database = None
        if database is None:
            database = await self._writer.open()
            if database.is_new:
                self._queue.requeue_all(self._uses)
        with self._queue.taken(first) as batch:
            if batch:
                truncated = await self._writer.call(write, database, batch)
                self._truncated = self._truncated.difference(batch.changes) | truncated
        if batch:
            await self._keep_within_limits(database, batch.size)
        self._erased = self._erased or batch.erases
        if self._erased:
            await self._writer.call(database.tidy)
            self._erased = False
        if database.no_room is None:
            self._writer.note_success(is_complete=not self._queue.lacks_histories, is_slow=self._queue.has_given_up)

    async def _keep_within_limits(self, database: Database, written: int) -> None:
        """Remove or cut histories beyond `history_limit`, once enough bytes were written since the last time."""
        self._until_added_up -= written
        if self._until_added_up > 0 or math.isinf(min(self._history_limits)):
            return
        reduction = self._beyond_limits(await self._writer.call(database.histories.sizes))
        self._remove(reduction.removed)
        if reduction.cut:
            await self._writer.call(cut, database, reduction.cut)
            self._truncated |= reduction.cut.keys()
            self._erased = True
            _log.warning("%s: history_limit: the histories of %d live sessions are cut", self._path, len(reduction.cut))
        self._until_added_up = min(self._history_limits) / 64

    def _beyond_limits(self, sizes: Mapping[int, int]) -> Reduction:
        """Return the changes that bring histories of these sizes within `history_limit`."""
        histories = [
            Kept(key, session.owner, sizes[key], session.used, self._queue.is_in_memory(key) or key in self._readings)
            for key, session in self._queue.sessions.items()
            if key in sizes and self._queue.keeps(key)
        ]
        return reduce(histories, *self._history_limits)

    def _remove(self, keys: list[int]) -> None:
        """Remove the histories of these sessions, because of `history_limit`."""
        if keys:
            _log.warning("%s: history_limit: the histories of %d sessions are removed", self._path, len(keys))
            self._queue.give_up(set(keys))
            self._queued()

    async def _read(self, key: int) -> StoredJournal | None:
        database = self._writer.database
        if database is None or not self._queue.keeps(key):
            return None
        try:
            journal = await self._writer.call(database.histories.read, key)
        except Exception as error:  # Any failure concerns this history alone.
            await self._writer.fail(error)
            return None
        if not self._queue.keeps(key):
            return None
        if journal is not None:
            # Another epoch of it may not be written yet.
            session = self._queue.sessions[key]
            return replace(journal, epoch=session.epoch, former=session.former)
        if not self._queue.waits(key):
            _log.error("%s: the history of a session does not fit together, and is given up", self._path)
            self._queue.give_up({key})
        return None

    def _load(self, file: Database) -> tuple[list[StoredSession], dict[int, int]]:
        """Read the sessions, and the size of each history by the key of its session. Blocks; raises anything."""
        stored, sizes, uses = file.sessions(), file.histories.sizes(), file.token_uses()
        self._truncated = file.histories.truncated()
        self._uses = uses
        return stored, sizes
