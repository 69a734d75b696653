"""The storage as the gateway sees it: sessions, histories, prompts and the uses of tokens, which outlive a restart.

Callers never wait: changes are queued (`write_queue`), and one task commits them in batches from a worker thread
(write-behind). Queued changes are on disk a moment later, and at the end.
"""

import logging
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from acp_gateway.config.options import GatewaySection
from acp_gateway.gateway.storage.database import Connect, Database
from acp_gateway.gateway.storage.history_limits import Kept, Reduction, reduce
from acp_gateway.gateway.storage.records import SpentBy, StoredJournal, StoredPrompt, StoredSession, TokenUse
from acp_gateway.gateway.storage.spending import Sums, Wanted, day_of, read_sums
from acp_gateway.gateway.storage.write_queue import LiveHistories, WriteQueue
from acp_gateway.gateway.storage.writer import Writer, cut, write
from acp_gateway.printable import counted

_log = logging.getLogger(__name__)

GATHERING: Final = 0.05
"""Seconds from the first queued change to the write, so that more changes share a transaction, which takes about a
millisecond: twenty transactions a second for a stream of messages."""

MAX_GATHERING: Final = 0.25
"""Maximum of the same after a slow batch, in seconds: the delay is as long as that batch took."""

RETRY: Final = 10.0
"""Seconds until a failed write is retried."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds to write the rest at the end. A disk that takes longer hangs, and must not delay the gateway's end."""

LITTLE: Final = 1024 * 1024
"""Queued bytes that are written with low priority: some milliseconds' work. With more, histories in memory might lose
what is not written before a busy machine lets that thread work."""

READINGS: Final = 3
"""Attempts to read a history that continues during each of them."""

TOKEN_INTERVAL: Final = 3600.0
"""Seconds between two writes of a token's last use: a search for unused tokens is a matter of days."""

_DAY: Final = 86400.0


# Reasons to end a wait of the writing task, in rising order; each wait has the least that ends it.

_CHANGE: Final = 1
_MUCH: Final = 2
"""`write_behind_limit` bytes are queued."""
_URGENT: Final = 3
"""A caller waits, or the storage is stopping."""
_NEVER: Final = 4


class _Reading:
    """A history that one or more callers wait for."""

    def __init__(self, key: int) -> None:
        self.key = key
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
        settings: what is kept, how much of it and how long; without histories on disk, earlier ones are erased.
        account_of: returns the identity for whose limit that of a session counts.
        now: returns the time, in seconds since 1970.
        connect: opens the file.
        pause: sleeps for a number of seconds.
    """

    def __init__(
        self,
        path: Path,
        settings: GatewaySection,
        *,
        account_of: Callable[[str], str] = str,
        now: Callable[[], float] = time.time,
        connect: Connect = sqlite3.connect,
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._path = path
        self._journal = settings.journal_storage == "disk"
        self._retention = settings.retention_days * _DAY
        self._now = now
        self._writer = Writer(path, settings.journal_limit, now, connect)
        self._queue = WriteQueue(settings.journal_limit)
        self._history_limits = settings.history_limit, settings.history_limit_per_identity
        self._account_of = account_of
        # The keys of the sessions whose history on disk lacks its beginning.
        self._truncated: set[int] = set()
        # Bytes that may be written before all histories are added up again.
        self._until_added_up = 0.0
        self._write_delay = settings.write_delay
        self._write_behind_limit = settings.write_behind_limit
        self._pause = pause
        # The wait of the writing task: what ends it at least, and how.
        self._wakes = _NEVER
        self._wait = trio.CancelScope()
        # The last uses of tokens, and the same as last written.
        self._uses: dict[str, TokenUse] = {}
        self._written_uses: dict[str, TokenUse] = {}
        self.spent_before: dict[str, Counter[str]] = {}
        """Amounts that were spent on the day of the start before `open`, by owner."""
        # Admits one reader of these at a time: a disk that does not answer occupies one thread.
        self._sums_limiter = trio.CapacityLimiter(1)
        self._last_key = 0
        # The histories to read, in order of the requests; what is queued is written first.
        self._readings: dict[int, _Reading] = {}
        # Those who wait for changes of prompts to be on disk; and for whom a write has failed.
        self._awaiting: list[trio.Event] = []
        self._failed: list[trio.Event] = []
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
            stored, sizes, prompts = self._writer.load(self._load)
        except Exception as error:  # Agents can be used without what was stored, so any failure is only noted.
            self._writer.note_failure(error)
            return []
        self._written_uses = dict(self._uses)
        if not self._journal:
            stored = [replace(session, position=0) for session in stored]
        self._queue.restore(stored, sizes, prompts)
        for prompt in prompts:
            if not self._journal or prompt.session not in self._queue.sessions:
                self._queue.drop_prompt(prompt.key)
        self._last_key = max(self._queue.sessions, default=0)
        for key in self.expired():
            self.forget(key)
        wanted = self._queue.sessions.keys() if self._journal else set()
        self._queue.give_up(sizes.keys() - wanted)
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
                    self._wake(_URGENT)
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
        """Store a session that is new or has changed. A new one gets an empty history, or that in memory.

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
            self.replace(session.key)

    def spend(self, key: int, by: SpentBy, amounts: Mapping[str, int]) -> None:
        """Store amounts that a session has spent, in addition to those of that day."""
        self._queue.spend(key, by, amounts)
        self._queued()

    def grow(self, key: int, size: int) -> None:
        """Store messages of so many bytes that were appended to a history in memory, or the end of its turn."""
        self._queue.grow(key, size)
        self._queued()

    def replace(self, key: int) -> None:
        """Store the history in memory of a known session in place of the stored one, if any."""
        if self._journal:
            self._queue.replace(key)
            self._queued()

    def finish_journal(self, key: int) -> None:
        """Finish storing a history that is about to leave the memory, or to be cut there; the stored one stays."""
        self._queue.leave(key)
        self._queued()

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        self._queue.forget(key)
        self._queued()

    def prompts(self) -> list[StoredPrompt]:
        """Return the prompts that wait."""
        return list(self._queue.prompts.values())

    def put_prompt(self, prompt: StoredPrompt) -> bool:
        """Store a prompt that waits, or a change of it; return False if none is stored, as no history is."""
        if self._journal:
            self._queue.put_prompt(prompt)
            self._queued()
        return self._journal

    def send_prompt(self, key: str) -> bool:
        """Store that the agent may have a prompt; return True if it may at once, as nothing of it is on disk."""
        is_at_once = self._queue.send_prompt(key)
        self._queued()
        return is_at_once

    def drop_prompt(self, key: str) -> None:
        """Erase a prompt."""
        self._queue.drop_prompt(key)
        self._queued()

    async def prompts_written(self) -> None:
        """Wait until all changes of prompts up to now are on disk, however long that cannot be written.

        Waits for `run`, and does not return after its end. Cancelling has no effect on the storage.
        """
        written = trio.Event()
        if self._queue.waits_for_prompts:
            self._awaiting.append(written)
            self._wake(_URGENT)
        else:
            written.set()
        await written.wait()

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
        # The clock may have been set back.
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

    async def read_sums(self, wanted: Wanted) -> Sums:
        """Return sums of what was spent, as far as it is written. Raises `Busy`. Cancelling abandons the read."""
        return await trio.to_thread.run_sync(
            read_sums, self._path, wanted, abandon_on_cancel=True, limiter=self._sums_limiter
        )

    async def read_journal(self, key: int) -> StoredJournal | None:
        """Return a session's history as of now, with all queued changes.

        None if none is stored, if it cannot be read now, or if it continues in memory during the read, where it is
        newer then. None too if it is not in memory and was replaced during each of `READINGS` attempts. Parallel calls
        for the same history may return the same object. Waits for `run`, and returns when that ends. Cancelling has no
        effect on the storage.
        """
        for _ in range(READINGS):
            if not self._queue.keeps(key) or self._stopping:
                break
            reading = self._readings.setdefault(key, _Reading(key))
            self._wake(_URGENT)
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
        if self._wakes == _CHANGE and self._queue:
            self._wake(_CHANGE)
        elif self._wakes == _MUCH and self._queue.new >= self._write_behind_limit:
            self._wake(_MUCH)

    # The writing task

    def _wake(self, reason: int) -> None:
        if reason >= self._wakes:
            self._wakes = _NEVER
            self._wait.cancel()

    async def _sleep(self, seconds: float, until: int) -> None:
        """Wait for some seconds, or until there is such a reason to go on."""
        with trio.CancelScope() as self._wait:
            self._wakes = until
            await self._pause(seconds)
        self._wakes = _NEVER

    async def _write_until_stopped(self, disconnect: trio.CancelScope) -> None:
        took = 0.0
        with disconnect:
            while True:
                waited_for = self._readings or self._awaiting
                if self._queue or waited_for or self._erased or (self._writer.fails and not self._stopping):
                    # Without gathering, a fast stream would keep a second processor busy with writing, and be slower,
                    # though most of it is soon cut off again. What came during the last batch has waited since then.
                    delay = min(max(GATHERING, took), MAX_GATHERING, self._write_delay - took)
                    if not self._is_urgent and self._queue.new < self._write_behind_limit and delay > 0:
                        await self._sleep(delay, _MUCH)
                    began = trio.current_time()
                    written = await self._work()
                    took = trio.current_time() - began
                    if not written and self._stopping:
                        break
                    if not written and not self._is_urgent:
                        await self._sleep(RETRY, _URGENT)
                elif self._stopping:
                    break
                else:
                    took = 0.0
                    await self._sleep(math.inf, _CHANGE)
            await self._writer.close()

    @property
    def _is_urgent(self) -> bool:
        """True while a caller waits, or the storage is stopping."""
        return bool(self._readings or self._awaiting) or self._stopping

    async def _work(self) -> bool:
        """Write what is queued, then read one requested history; return False if the write failed.

        One history at a time, so that neither new changes nor the memory wait for all of them.
        """
        self._writer.is_urgent = self._is_urgent or self._queue.new + self._queue.held > LITTLE
        reading = next(iter(self._readings.values()), None)
        if reading is not None:
            # Later requests want the changes queued by then.
            del self._readings[reading.key]
            reading.revision = self._queue.revision(reading.key)
        awaiting, self._awaiting, self._failed = [*self._failed, *self._awaiting], [], []
        try:
            try:
                await self._write_queue(None if reading is None else reading.key)
                for written_event in awaiting:
                    written_event.set()
            except Exception as error:  # Any failure: clients must not notice a disk that cannot be written.
                self._failed = awaiting
                await self._writer.fail(error)
            written = not self._writer.fails
            if reading is not None and not self._stopping and not self._queue.waits(reading.key):
                reading.journal = await self._read(reading.key)
        finally:
            if reading is not None:
                reading.done.set()
        return written

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
                self._truncated = self._truncated - batch.erased - batch.histories.keys() | truncated
        self._erased = self._erased or batch.erases
        if batch:
            await self._keep_within_limits(database, batch.size)
        if self._erased:
            await self._writer.call(database.tidy)
            self._erased = False
        if database.no_room is None:
            self._writer.note_success(is_complete=not self._queue.lacks_histories, is_slow=self._queue.has_given_up)

    async def _keep_within_limits(self, database: Database, written: int) -> None:
        """Remove or cut histories beyond `history_limit`, once enough bytes were written since the last time."""
        self._until_added_up -= written
        if self._until_added_up > 0:
            return
        reduction = self._beyond_limits(await self._writer.call(database.histories.sizes))
        self._remove(reduction.removed)
        if reduction.cut:
            await self._writer.call(cut, database, reduction.cut)
            self._truncated |= reduction.cut.keys()
            self._erased = True
            many = counted(len(reduction.cut), "live session")
            _log.warning("%s: history_limit: histories are cut, of %s", self._path, many)
        self._until_added_up = min(self._history_limits) / 64

    def _beyond_limits(self, sizes: Mapping[int, int]) -> Reduction:
        """Return the changes that bring histories of these sizes within `history_limit`."""
        accounts = {owner: self._account_of(owner) for owner in {it.owner for it in self._queue.sessions.values()}}
        busy = self._readings.keys()
        histories = [
            Kept(key, accounts[it.owner], sizes[key], it.used, self._queue.is_in_memory(key) or key in busy)
            for key, it in self._queue.sessions.items()
            if key in sizes and self._queue.keeps(key)
        ]
        return reduce(histories, *self._history_limits)

    def _remove(self, keys: list[int]) -> None:
        """Remove the histories of these sessions, because of `history_limit`."""
        if keys:
            many = counted(len(keys), "session")
            _log.warning("%s: history_limit: histories are removed, of %s", self._path, many)
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

    def _load(self, file: Database) -> tuple[list[StoredSession], dict[int, int], list[StoredPrompt]]:
        """Read the sessions, the size of each history by the key of its session, and the prompts that wait. Blocks;
        raises anything."""
        stored, sizes, uses = file.sessions(), file.histories.sizes(), file.token_uses()
        self._truncated = file.histories.truncated()
        self._uses = uses
        self.spent_before = file.spending.on_day(day_of(self._now()))
        return stored, sizes, file.prompts()
