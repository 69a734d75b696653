"""What survives a restart of the gateway: its sessions, their histories, and when tokens were last used.

Whoever has something to keep says so and goes on: it is queued, as `backlog` has it. One task writes what has come
together, in one transaction, in a thread. What is queued is on disk a moment later, and at the end.

A disk that is full, slow or broken is nobody else's concern. What can't be written waits, within a bound, and is tried
again. A file that is damaged is put aside and a new one begun.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.storage.corruption import is_corruption, is_transient, put_aside
from acp_gateway.gateway.storage.database import Connect, Database
from acp_gateway.gateway.storage.history_limits import Kept, Reduction, reduce
from acp_gateway.gateway.storage.records import StoredJournal, StoredSession, TokenUse
from acp_gateway.gateway.storage.write_delay import WriteDelay
from acp_gateway.gateway.storage.write_queue import Memory, WriteQueue
from acp_gateway.gateway.storage.writer import cut, write

_log = logging.getLogger(__name__)

RETRY: Final = 10.0
"""Seconds until something that failed is tried again."""

FAREWELL: Final = 5.0
"""Seconds to write the rest at the end. A disk that takes longer hangs, and must not keep the gateway from ending."""

READINGS: Final = 3
"""How often a history is read for who asks, when it goes on each time before that is done."""

TOKEN_INTERVAL: Final = 3600.0
"""Seconds between two times that a token's use is written: who looks for tokens that nobody uses thinks in days."""

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_DAY: Final = 86400.0

_FAILURES: Final = (sqlite3.Error, OSError, ConfigError, UnicodeDecodeError)
"""What the world can do to the file. Anything else is our mistake, which is logged with its traceback."""


class _Reading:
    """Somebody waits for a history, or several do."""

    def __init__(self) -> None:
        self.journal: StoredJournal | None = None
        self.revision: int | None = None
        """Which state of it that is."""
        self.done = trio.Event()


class Storage:
    """The file, and what is to be written to it.

    All but `open`, `run` and `read_journal` never wait and never raise. What they are told before `run` is queued for
    it; after it, nothing is taken any more.

    Args:
        path: the file.
        journal: whether histories are kept. Where not, those from before are erased.
        retention_days: for how many days a session is kept that nobody uses.
        journal_limit: bytes of one session's history.
        history_limit: bytes of all histories; the least recently used are removed first, those of live sessions cut.
        history_limit_per_identity: the same of one identity.
        write_delay: seconds that something may wait to be written.
        write_behind_limit: bytes that may, before they are written at once.
        now: says the time, in seconds since 1970.
        connect: what opens the file.
        pause: waits for so many seconds.
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
        self._journal_limit = journal_limit
        self._now = now
        self._connect_to = connect
        self._pause = pause
        # Open while `run` runs, but for the time between a failure and the next attempt.
        self._database: Database | None = None
        # Whether the file was found to be damaged and is not put aside yet.
        self._corrupt = False
        # What is not kept and why, by the kind of problem.
        self._problems: dict[str, str] = {}
        # What is to be on disk and is not yet.
        self._queue = WriteQueue(journal_limit)
        self._history_limits = history_limit, history_limit_per_identity
        # The keys of the sessions whose history on disk lacks its beginning.
        self._truncated: set[int] = set()
        # Bytes that may be written before all histories are added up again.
        self._until_added_up = 0.0
        self._delay = WriteDelay(write_delay, write_behind_limit)
        # When tokens were last used, and how that was last written.
        self._uses: dict[str, TokenUse] = {}
        self._written_uses: dict[str, TokenUse] = {}
        self._last_key = 0
        # The histories that are asked for, first come, first served, until what is queued is written for that.
        self._readings: dict[int, _Reading] = {}
        self._erased = False  # ... something that may still be found in the write-ahead log.
        self._wake = trio.Event()
        # Whether the writer waits for that, and what it waits in otherwise, if it does.
        self._asleep = False
        self._rest: trio.CancelScope | None = None
        # The same, while more may come that is written with what is queued.
        self._gathering: trio.CancelScope | None = None
        # Seconds that it took to write the last time.
        self._took = 0.0
        self._stopping = False
        self._limiter = trio.CapacityLimiter(1)

    def rely_on(self, memory: Memory) -> None:
        """Ask this for the histories of the sessions that live."""
        self._queue.memory = memory

    @property
    def problem(self) -> str | None:
        """What is not kept and why, in one line for a person; None while all is well.

        A file that was damaged is a problem until what is known of sessions is stored in the new one; the log has it.
        """
        return "; ".join(self._problems.values()) or None

    def open(self) -> list[StoredSession]:
        """Take over what was stored before; the sessions, in the order of their creation.

        For the start, once, before `run`: blocks. Where the file can't be used, `problem` says so, and `run` goes on
        trying to write what comes. Sessions that nobody has used for too long are forgotten.
        """
        try:
            try:
                stored, sizes = self._load()
            except Exception as error:
                if not is_corruption(error):
                    raise
                self._corrupt = True
                self._note_put_aside(put_aside(self._path, self._now()))
                stored, sizes = self._load()
        except Exception as error:  # Whatever it is: agents can be used without what was stored.
            self._note_failure(error)
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
        """Write what is queued, until cancelled; then write the rest, within `FAREWELL` seconds, and close the file."""
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
                    disconnect.deadline = trio.current_time() + FAREWELL
                    self._hurry()
        finally:
            self._queue.close()
            if disconnect.cancelled_caught:
                _log.error("%s: not all could be written within %d seconds", self._path, FAREWELL)

    def new_key(self) -> int:
        """A key for a session, which no other session has or had.

        It is made from the time, so that it is none either of those in a file that could not be read.
        """
        self._last_key = max(self._last_key + 1, int(self._now() * 1e6))
        return self._last_key

    def keep(
        self,
        key: int,
        *,
        agent: str,
        session_id: str,
        owner: str,
        cwd: str | None,
        title: str | None,
        updated_at: str | None,
        created: float,
        used: float,
        epoch: str,
        former: tuple[tuple[str, int], ...] = (),
    ) -> None:
        """Keep a session, or what has changed of it. A new one has an empty history from now on.

        Of one that is kept, another `epoch` means that the same history goes on under another name. An empty one leaves
        the name as it is, and what it was called before: whoever has no history in memory knows none.
        """
        known = self._queue.sessions.get(key)
        if known is not None and not epoch:
            epoch, former = known.epoch, known.former
        about = key, agent, session_id, owner, cwd, title, updated_at, created, used, epoch
        session = StoredSession(*about, former=former)
        if session == known:
            return
        self._queue.put_session(session)
        self._queued()
        if known is None:
            self.replace(key, StoredJournal(epoch, position=0, truncated=False), size=0)

    def append(self, key: int, message: bytes, state: str | None = None) -> None:
        """Add a message to a session's history, with the kind of state that it tells, if any."""
        self._queue.extend(key, (message,), state)
        self._queued()

    def extend(self, key: int, messages: Sequence[bytes]) -> None:
        """Add messages that tell no state to a session's history."""
        self._queue.extend(key, messages)
        self._queued()

    def turn_ended(self, key: int) -> None:
        """A turn ended after the last message of a session's history."""
        self._queue.end_turn(key)
        self._queued()

    def replace(self, key: int, journal: StoredJournal, size: int) -> None:
        """Keep this history of a session that is kept, in place of what there is, if any.

        Args:
            key: the session's.
            journal: the history, for the storage alone: it is taken apart once it is written.
            size: bytes of its messages.
        """
        if self._journal:
            self._queue.replace(key, journal, size)
            self._queued()

    def settle(self, key: int) -> None:
        """A session's history won't be in memory any more, and what is kept of it stays."""
        self._queue.settle(key)
        self._queued()

    def forget_journal(self, key: int) -> None:
        """Erase a session's history. Until it is replaced, none is kept."""
        self._queue.forget_journal(key)
        self._queued()

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        self._queue.forget(key)
        self._queued()

    def expired(self) -> list[int]:
        """The keys of the sessions that nobody has used for too long."""
        earliest = self._now() - self._retention
        return [session.key for session in self._queue.sessions.values() if session.used < earliest]

    def token_used(self, token_id: str, granted_by: str | None = None) -> None:
        """A token was presented now; `granted_by` tells whose session it is for, once that is known."""
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
        """When each token was last used, by its id."""
        return dict(self._uses)

    def keeps_journal(self, key: int) -> bool:
        """Whether a session's history is kept: it was not forgotten, nor given up because it could not be written."""
        return self._queue.keeps(key)

    def has_cut_journal(self, key: int) -> bool:
        """Return whether a session's history is on disk without its beginning."""
        return key in self._truncated and self._queue.keeps(key)

    async def read_journal(self, key: int) -> StoredJournal | None:
        """A session's history as it is when this returns, with all that was queued before.

        None where none is kept, where it can't be read now, or where it goes on in memory while it is being read: what
        is there is newer then. None too where one that is not in memory goes on so fast that there was more of it each
        time before it was read, a few times. Who asks for the same one at the same time may get the same object. Waits
        for `run`, and ends with it. Cancelling it changes nothing.
        """
        for _ in range(READINGS):
            if not self._queue.keeps(key) or self._stopping:
                break
            reading = self._readings.setdefault(key, _Reading())
            self._hurry()
            await reading.done.wait()
            if reading.revision == self._queue.revision(key):
                return reading.journal
            if self._queue.is_in_memory(key):
                break
        await trio.lowlevel.checkpoint()
        return None

    def _queued(self) -> None:
        """Wake up the writer, if there is anything to write."""
        if self._queue.has_given_up:
            text = "more is to be written than can be; the histories of sessions that have ended are given up"
            self._report("slow", f"{self._path}: {text}")
        # Where no histories are kept, messages come all the time of which nothing is queued.
        if not self._queue:
            return
        if self._asleep:
            self._delay.queued(trio.current_time())
            self._wake_up()
        elif self._gathering is not None and self._delay.is_full(self._queue.size):
            self._gathering.cancel()

    def _hurry(self) -> None:
        """Have the writer begin at once."""
        if self._rest is not None:
            self._rest.cancel()
        self._wake_up()

    def _wake_up(self) -> None:
        self._asleep = False
        self._wake.set()

    # What the writer does.

    async def _write_until_stopped(self, disconnect: trio.CancelScope) -> None:
        with disconnect:
            while True:
                if self._queue or self._readings or self._erased:
                    # A stream that keeps a processor busy would otherwise keep another one busy with being written,
                    # and be slower for it, though most of it is soon cut off again.
                    await self._gather()
                    began = trio.current_time()
                    # What comes while this is being written is the oldest of the next batch.
                    self._delay.taken()
                    self._delay.queued(began)
                    written = await self._work()
                    self._took = trio.current_time() - began
                    if not written:
                        if self._stopping:
                            break
                        await self._rest_for(RETRY)
                elif self._stopping:
                    break
                else:
                    self._delay.taken()
                    self._wake = trio.Event()
                    self._asleep = True
                    await self._wake.wait()
            await self._let_go()

    async def _gather(self) -> None:
        """Wait for more that is written together with what is queued."""
        seconds = self._delay.seconds(trio.current_time(), self._took, self._queue.size)
        if seconds:
            with trio.CancelScope() as self._gathering:
                await self._rest_for(seconds)
            self._gathering = None

    async def _rest_for(self, seconds: float) -> None:
        """Wait, unless somebody waits for the writer."""
        if not self._readings and not self._stopping:
            with trio.CancelScope() as self._rest:
                await self._pause(seconds)
            self._rest = None

    async def _work(self) -> bool:
        """Write what is queued, then read a history that was asked for before; False where not all could be written.

        One history, so that neither what comes meanwhile nor the memory waits for all that are asked for.
        """
        key = next(iter(self._readings), None)
        if key is None:
            written = await self._try_to_write(key)
        else:
            # Who asks from now on wants what is queued by then.
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
        except Exception as error:  # Whatever it is: what can't be written troubles nobody.
            await self._fail(error)
            return False
        return True

    async def _write_queue(self, first: int | None) -> None:
        if self._database is None:
            self._database = await self._open_or_begin_anew()
            if self._database.is_new:
                self._queue.begin_anew(self._uses)
        with self._queue.taken(first) as batch:
            if batch:
                truncated = await self._in_thread(write, self._database, batch)
                self._truncated = self._truncated.difference(batch.changes) | truncated
        if batch:
            self._succeeded()
            await self._keep_within_limits(batch.size)
        self._erased = self._erased or batch.erases
        if self._erased:
            await self._in_thread(self._database.tidy)
            self._erased = False

    async def _keep_within_limits(self, written: int) -> None:
        """Remove or cut histories beyond `history_limit`, once enough bytes were written since the last time."""
        self._until_added_up -= written
        if self._until_added_up > 0 or self._database is None or math.isinf(min(self._history_limits)):
            return
        reduction = self._beyond_limits(await self._in_thread(self._database.histories.sizes))
        self._remove(reduction.removed)
        if reduction.cut:
            await self._in_thread(cut, self._database, reduction.cut)
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

    async def _open_or_begin_anew(self) -> Database:
        """The file, opened; a new one if it is damaged. Raises any of `_FAILURES`."""
        if not self._corrupt:
            try:
                return await self._in_thread(self._connect)
            except Exception as error:
                if not is_corruption(error):
                    raise
                self._corrupt = True
        self._note_put_aside(await self._in_thread(put_aside, self._path, self._now()))
        return await self._in_thread(self._connect)

    async def _read(self, key: int) -> StoredJournal | None:
        if self._database is None or not self._queue.keeps(key):
            return None
        try:
            journal = await self._in_thread(self._database.histories.read, key)
        except Exception as error:  # Whatever it is: it is this history that can't be read.
            await self._fail(error)
            return None
        if not self._queue.keeps(key):
            return None
        if journal is not None:
            # A new name of it may not have been written yet.
            session = self._queue.sessions[key]
            return replace(journal, epoch=session.epoch, former=session.former)
        if not self._queue.waits(key):
            _log.error("%s: the history of a session does not fit together, and is given up", self._path)
            self._queue.give_up({key})
        return None

    async def _fail(self, error: Exception) -> None:
        self._note_failure(error)
        self._corrupt = self._corrupt or is_corruption(error)
        if not is_transient(error):
            await self._let_go()

    async def _let_go(self) -> None:
        file, self._database = self._database, None
        if file is not None:
            try:
                await self._in_thread(file.close)
            except Exception:  # Whatever it is: this is where failures end.
                _log.exception("%s can't be closed", self._path)

    def _load(self) -> tuple[list[StoredSession], dict[int, int]]:
        """Read the sessions, and the size of each history by the key of its session. Blocks; raises anything."""
        file = self._connect()
        try:
            stored, sizes, uses, self._truncated = (
                file.sessions(),
                file.histories.sizes(),
                file.token_uses(),
                file.histories.truncated(),
            )
        finally:
            # Until `run`, which may never come.
            file.close()
        self._uses = uses
        return stored, sizes

    def _connect(self) -> Database:
        """Open the file. Blocks; raises any of `_FAILURES`."""
        return Database(self._path, self._journal_limit, self._connect_to)

    def _note_put_aside(self, aside: Path) -> None:
        self._corrupt = False
        text = f"{self._path} was damaged and a new one is begun; what is left of the old one is {aside}"
        self._report("damage", text)

    def _note_failure(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, ConfigError) else f"{self._path}: {_reason(error)}"
        mistake = None if isinstance(error, _FAILURES) else error
        if self._corrupt and isinstance(error, OSError):
            reason += " (it is damaged, and can't be put aside)"
        text = f"{reason}; what is new of sessions does not outlive a restart until that is over"
        self._report("failure", text, mistake)

    def _report(self, kind: str, text: str, mistake: Exception | None = None) -> None:
        if self._problems.get(kind) != text:
            self._problems[kind] = text
            _log.error("%s", text, exc_info=mistake)

    def _succeeded(self) -> None:
        if self._problems.pop("failure", None) is not None:
            _log.info("%s can be written again", self._path)
        if "damage" in self._problems and not self._queue.begins_anew:
            del self._problems["damage"]
            _log.info("%s: what is known of sessions is stored in the new file", self._path)
        if "slow" in self._problems and not self._queue.has_given_up:
            del self._problems["slow"]
            _log.info("%s: what was to be written is written", self._path)

    async def _in_thread(self, function: Callable[[Unpack[_Arguments]], _Result], *args: *_Arguments) -> _Result:
        # Given up only where it hangs at the end; the limiter keeps others out even then.
        return await trio.to_thread.run_sync(function, *args, limiter=self._limiter, abandon_on_cancel=True)


def _reason(error: Exception) -> str:
    """What happened, in one line for a person."""
    if not isinstance(error, _FAILURES):
        return " ".join(f"unexpected {type(error).__name__}: {error}".split())
    if isinstance(error, UnicodeDecodeError):
        return "database disk image is malformed"  # SQLite's words for what could not be decoded.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
