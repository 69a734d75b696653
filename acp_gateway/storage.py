"""What survives a restart of the gateway: its sessions, their histories, and when tokens were last used.

Whoever has something to keep says so and goes on: it is queued. One task writes what has come together, in one
transaction, in a thread. What is queued is on disk a moment later, and at the end.

A disk that is full, slow or broken is nobody else's concern. What can't be written waits, within a bound, and is tried
again. Where more of a history is queued than it may hold, or past the bound, none of it is any more: what is in memory
of it takes the place of what is on disk, as it is when its turn comes. What is lost by this would have been cut off
again anyway. A history that is not in memory any more is given up past the bound: nothing more of it is written, and
what is on disk is erased when that works again. So a history on disk never has a gap.

Sessions themselves are few and small, and are always written in the end. A file that is damaged is put aside and a new
one begun.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar, TypeVarTuple, Unpack

import trio

from acp_gateway.database import (
    Connect,
    Database,
    Run,
    StoredJournal,
    StoredSession,
    TokenUse,
    is_damage,
    is_passing,
    put_aside,
    read_token_uses,
)
from acp_gateway.errors import ConfigError

__all__ = ["Run", "Storage", "StoredJournal", "StoredSession", "TokenUse", "read_token_uses"]

_log = logging.getLogger(__name__)

GATHERING: Final = 0.05
"""Seconds between the first that is queued and writing: what a crash may lose. A stream of messages costs some twenty
transactions a second then, each of which takes a millisecond."""

LONGEST_GATHERING: Final = 0.25
"""The same after a batch that took long: as long as that took, up to this."""

RETRY: Final = 10.0
"""Seconds until something that failed is tried again."""

FAREWELL: Final = 5.0
"""Seconds to write the rest at the end. A disk that takes longer hangs, and must not keep the gateway from ending."""

QUEUE: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written, besides one whole history: a tenth of a second of the fastest stream."""

TOKEN_INTERVAL: Final = 3600.0
"""Seconds between two times that a token's use is written: who looks for tokens that nobody uses thinks in days."""

_PER_MESSAGE: Final = 64
"""Bytes that count for a message besides its own: what Python needs for it, and its places in lists. It is counted as
if nobody else had it, though most are in the histories in memory as well: those may be gone before it is written."""

_AT_ONCE: Final = 4096
"""Messages that are let go of in one step, which takes some tenths of a millisecond."""

_OVERHEAD: Final = 256
"""Bytes that count for each turn, each state, and each thing queued besides messages: small objects, a few of each."""

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_DAY: Final = 86400.0

_FAILURES: Final = (sqlite3.Error, OSError, ConfigError, UnicodeDecodeError)
"""What the world can do to the file. Anything else is our mistake, which is logged with its traceback."""


@dataclass(slots=True)
class _Change:
    """What is to be done to the history of a session on disk, in this order."""

    forgets: bool = False
    """It is erased with its session."""
    erases: bool = False
    renews: bool = False
    """What is in memory of it by then takes its place, and whatever is added until then is there as well."""
    whole: StoredJournal | None = None
    """This takes its place."""
    runs: list[Run] = field(default_factory=list)
    """These are added."""
    size: int = _OVERHEAD
    """Bytes that it counts for."""
    new: int = 0
    """Those of `runs`."""

    def extend(self, messages: Sequence[bytes], state: str | None) -> int:
        """Add messages, each of which tells this state, if any; for how many bytes they count."""
        if self.renews:
            return 0
        size = sum(map(len, messages)) + _PER_MESSAGE * len(messages)
        if state is not None:
            size += _OVERHEAD
        if not self.runs or self.runs[-1].ends_turn:
            self.runs.append(Run())
            size += _OVERHEAD
        self.runs[-1].extend(messages, state)
        self.size += size
        self.new += size
        return size

    def end_turn(self) -> None:
        """A turn ended after the last message, queued or on disk."""
        if self.renews:
            return
        if not self.runs:
            self.runs.append(Run())
        self.runs[-1].ends_turn = True

    def followed_by(self, later: "_Change") -> "_Change":
        """Both, as one."""
        if later.forgets or later.erases or later.renews or later.whole is not None:
            later.erases |= self.erases
            return later
        rest = later.runs
        if rest and self.runs and not self.runs[-1].ends_turn:
            self.runs[-1].join(rest[0])
            rest = rest[1:]
        self.runs += rest
        self.size += later.size
        self.new += later.new
        return self


@dataclass(slots=True)
class _Batch:
    """What goes to the disk together: the sessions and uses as they are at last, and then what is new of histories."""

    sessions: dict[int, StoredSession] = field(default_factory=dict)
    uses: dict[str, TokenUse] = field(default_factory=dict)
    changes: dict[int, _Change] = field(default_factory=dict)
    """By the key of the session: those of different sessions have nothing to do with one another."""
    size: int = 0
    """Bytes that the changes count for."""

    def __bool__(self) -> bool:
        return bool(self.sessions or self.uses or self.changes)

    @property
    def renewed(self) -> list[int]:
        """The keys of those whose histories are replaced by what is in memory of them."""
        return [key for key, change in self.changes.items() if change.renews]

    def change(self, key: int) -> _Change:
        """What is to be done to a history, for more of it."""
        change = self.changes.get(key)
        if change is None:
            change = self.changes[key] = _Change()
            self.size += change.size
        return change

    def put(self, key: int, change: _Change) -> None:
        """Do this to a history, and nothing of what was to be done before."""
        former = self.changes.get(key)
        self.size += change.size - (0 if former is None else former.size)
        self.changes[key] = change

    def pop(self, key: int) -> _Change:
        """What was to be done to a history, and not here any more."""
        change = self.changes.pop(key)
        self.size -= change.size
        return change

    def followed_by(self, later: "_Batch") -> "_Batch":
        """Both, as one."""
        changes = dict(self.changes)
        for key, change in later.changes.items():
            changes[key] = changes[key].followed_by(change) if key in changes else change
        size = sum(change.size for change in changes.values())
        return _Batch(self.sessions | later.sessions, self.uses | later.uses, changes, size)


class Memory(Protocol):
    """What has histories in memory, by the keys of their sessions: all that the storage was told to add is there."""

    def has(self, key: int) -> bool:
        """Whether it has this one."""

    def snapshot(self, key: int) -> tuple[StoredJournal, int]:
        """One that it has as it is now, for the storage alone, and the bytes of its messages."""


class _Reading:
    """Somebody waits for a history, or several do."""

    def __init__(self) -> None:
        self.journal: StoredJournal | None = None
        self.done = trio.Event()


class Storage:
    """The file, and what is to be written to it.

    All but `open`, `run` and `read_journal` never wait and never raise; they may be called before `run` and after it,
    when they do nothing.

    Args:
        path: the file.
        journal: whether histories are kept. Where not, those from before are erased.
        retention_days: for how many days a session is kept that nobody uses.
        journal_limit: bytes of one session's history.
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
        self.memory: Memory | None = None
        """What has the histories of the sessions that live, if anything has."""
        # Open while `run` runs, but for the time between a failure and the next attempt.
        self._database: Database | None = None
        # Whether the file was found to be damaged and is not put aside yet.
        self._damaged = False
        # Whether it was open before, so that an empty one means that everything was lost.
        self._known = False
        # What is not kept and why, by the kind of problem.
        self._problems: dict[str, str] = {}
        # All sessions that are kept, and of which of them the history is.
        self._sessions: dict[int, StoredSession] = {}
        self._journals: set[int] = set()
        # When tokens were last used, and how that was last written.
        self._uses: dict[str, TokenUse] = {}
        self._written_uses: dict[str, TokenUse] = {}
        self._last_key = 0
        # What is queued, and for how many bytes that counts which is being written.
        self._queue = _Batch()
        self._size_underway = 0
        self._bound = QUEUE + journal_limit
        # How many bytes may be new of one history: a quarter more than it may hold, as on disk.
        self._most_new = journal_limit * 5 // 4
        # The histories that are asked for, first come, first served, until what is queued is written for that.
        self._readings: dict[int, _Reading] = {}
        self._erased = False  # ... something that may still be found in the write-ahead log.
        self._wake = trio.Event()
        # Whether the writer waits for that, and what it waits in otherwise, if it does.
        self._asleep = False
        self._rest: trio.CancelScope | None = None
        # Seconds that it took to write the last time.
        self._took = 0.0
        self._stopping = False
        self._over = False
        self._limiter = trio.CapacityLimiter(1)

    @property
    def problem(self) -> str | None:
        """What is not kept and why, in one line for a person; None while all is well."""
        return "; ".join(self._problems.values()) or None

    def open(self) -> list[StoredSession]:
        """Take over what was stored before; the sessions, in the order of their creation.

        For the start, once, before `run`: blocks. Where the file can't be used, `problem` says so, and `run` goes on
        trying to write what comes. Sessions that nobody has used for too long are forgotten.
        """
        try:
            try:
                stored = self._load()
            except Exception as error:
                if not is_damage(error):
                    raise
                self._damaged = True
                stored = self._load()
        except Exception as error:  # Whatever it is: agents can be used without what was stored.
            self._note_failure(error)
            return []
        self._known = True
        self._written_uses = dict(self._uses)
        self._sessions = {session.key: session for session in stored}
        self._last_key = max(self._sessions, default=0)
        for key in self.expired():
            self.forget(key)
        for key in self._journals - self._sessions.keys():
            self.forget_journal(key)
        if not self._journal:
            for key in list(self._journals):
                self.forget_journal(key)
                self._sessions[key] = replace(self._sessions[key], position=0)
        return list(self._sessions.values())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is queued, until cancelled; then write the rest, within `FAREWELL` seconds, and close the file."""
        farewell = trio.CancelScope(shield=True)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_until_stopped, farewell)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._stopping = True
                    for reading in self._readings.values():
                        reading.done.set()
                    self._readings.clear()
                    farewell.deadline = trio.current_time() + FAREWELL
                    self._hurry()
        finally:
            self._over = True
            self._journals.clear()
            if farewell.cancelled_caught:
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
    ) -> None:
        """Keep a session, or what has changed of it. A new one has an empty history from now on.

        Of one that is kept, another `epoch` means that the same history goes on under another name. An empty one leaves
        the name as it is: whoever has no history in memory knows none.
        """
        known = self._sessions.get(key)
        if known is not None and not epoch:
            epoch = known.epoch
        session = StoredSession(key, agent, session_id, owner, cwd, title, updated_at, created, used, epoch)
        if session == known:
            return
        self._put(session)
        if known is None:
            self.replace(key, StoredJournal(epoch, position=0, truncated=False), size=0)

    def append(self, key: int, message: bytes, state: str | None = None) -> None:
        """Add a message to a session's history, with the kind of state that it tells, if any."""
        if key in self._journals:
            self._extend(key, (message,), state)

    def extend(self, key: int, messages: Sequence[bytes]) -> None:
        """Add messages that tell no state to a session's history."""
        if key in self._journals:
            self._extend(key, messages, None)

    def turn_ended(self, key: int) -> None:
        """A turn ended after the last message of a session's history."""
        if key in self._journals:
            self._queue.change(key).end_turn()
            self._queued()

    def replace(self, key: int, journal: StoredJournal, size: int) -> None:
        """Keep this history of a session that is kept, in place of what there is, if any.

        Args:
            key: the session's.
            journal: the history, for the storage alone: it is taken apart once it is written.
            size: bytes of its messages.
        """
        self._replace(key, journal, size)
        self._queued()

    def settle(self, key: int) -> None:
        """A session's history won't be in memory any more, and what is kept of it stays."""
        change = self._queue.changes.get(key)
        if change is not None and change.renews:
            self._take_from_memory(key)
            self._queued(leaving=key)

    def forget_journal(self, key: int) -> None:
        """Erase a session's history. Until it is replaced, none is kept."""
        if key in self._journals:
            self._journals.remove(key)
            self._queue.put(key, _Change(erases=True))
            self._queued()

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        if self._sessions.pop(key, None) is not None and not self._over:
            self._journals.discard(key)
            self._queue.sessions.pop(key, None)
            self._queue.put(key, _Change(forgets=True))
            self._queued()

    def expired(self) -> list[int]:
        """The keys of the sessions that nobody has used for too long."""
        earliest = self._now() - self._retention
        return [session.key for session in self._sessions.values() if session.used < earliest]

    def token_used(self, token_id: str, granted_by: str | None = None) -> None:
        """A token was presented now; `granted_by` tells whose session it is for, once that is known."""
        before = self._uses.get(token_id)
        if granted_by is None and before is not None:
            granted_by = before.granted_by
        use = self._uses[token_id] = TokenUse(self._now(), granted_by)
        written = self._written_uses.get(token_id, TokenUse(-math.inf))
        if abs(use.last_used - written.last_used) >= TOKEN_INTERVAL or granted_by != written.granted_by:
            self._written_uses[token_id] = self._queue.uses[token_id] = use
            self._queued()

    def token_uses(self) -> dict[str, TokenUse]:
        """When each token was last used, by its id."""
        return dict(self._uses)

    def keeps_journal(self, key: int) -> bool:
        """Whether a session's history is kept: it was not forgotten, nor given up because it could not be written."""
        return key in self._journals

    async def read_journal(self, key: int) -> StoredJournal | None:
        """A session's history with all that was queued before; None where none is kept or it can't be read now.

        Who asks for the same one at the same time may get the same object. Waits for `run`, and ends with it.
        Cancelling it changes nothing.
        """
        if key not in self._journals or self._stopping:
            await trio.lowlevel.checkpoint()
            return None
        reading = self._readings.setdefault(key, _Reading())
        self._hurry()
        await reading.done.wait()
        return reading.journal

    # What the callers do.

    def _put(self, session: StoredSession) -> None:
        if not self._over:
            self._sessions[session.key] = self._queue.sessions[session.key] = session
            self._queued()

    def _extend(self, key: int, messages: Sequence[bytes], state: str | None) -> None:
        change = self._queue.change(key)
        self._queue.size += change.extend(messages, state)
        if change.new > self._most_new:
            self._renew(key)
        self._queued()

    def _replace(self, key: int, journal: StoredJournal, size: int) -> None:
        session = self._sessions.get(key)
        if session is None or not self._journal or self._over:
            return
        if session.epoch != journal.epoch:
            self._put(replace(session, epoch=journal.epoch))
        self._journals.add(key)
        former = self._queue.change(key)
        size += _PER_MESSAGE * sum(len(run.messages) for run in journal.runs)
        size += _OVERHEAD * (1 + len(journal.states) + sum(1 + len(run.states) for run in journal.runs))
        self._queue.put(key, _Change(former.forgets, former.erases, whole=journal, size=size))

    def _renew(self, key: int) -> None:
        """Have a history replaced by what is in memory of it, if anything is, in place of what is queued."""
        if self.memory is not None and self.memory.has(key):
            former = self._queue.change(key)
            self._queue.put(key, _Change(former.forgets, former.erases, renews=True))

    def _take_from_memory(self, key: int) -> None:
        assert self.memory is not None
        self._replace(key, *self.memory.snapshot(key))

    def _queued(self, leaving: int | None = None) -> None:
        """Wake up the writer, and don't let too much wait. What is `leaving` is in memory for this moment only."""
        if self._queue.size + self._size_underway > self._bound:
            for key in self._contents() - {leaving}:
                self._renew(key)
            # The batch in hand may be that much by itself: then what comes meanwhile is in memory alone.
            lost = self._contents()
            if lost and self._queue.size + self._size_underway > self._bound:
                self._give_up(lost)
                text = "more is to be written than can be; the histories of sessions that have ended are given up"
                self._report("slow", f"{self._path}: {text}")
        if self._asleep:
            self._asleep = False
            self._wake.set()

    def _contents(self) -> set[int]:
        """The keys of the histories of which something is queued."""
        return {key for key, change in self._queue.changes.items() if change.whole or change.runs}

    def _give_up(self, keys: set[int]) -> None:
        """Keep no history of these sessions any more, until it is replaced; erase what is on disk."""
        self._journals -= keys
        for key in keys:
            self._queue.put(key, _Change(erases=True))

    def _hurry(self) -> None:
        """Have the writer begin at once."""
        if self._rest is not None:
            self._rest.cancel()
        self._queued()

    # What the writer does.

    async def _write_until_stopped(self, farewell: trio.CancelScope) -> None:
        with farewell:
            while True:
                if self._queue or self._readings or self._erased:
                    # A stream that keeps a processor busy would otherwise keep another one busy with being written,
                    # and be slower for it, though most of it is soon cut off again.
                    await self._rest_for(min(max(GATHERING, self._took), LONGEST_GATHERING))
                    began = trio.current_time()
                    written = await self._work()
                    self._took = trio.current_time() - began
                    if not written:
                        if self._stopping:
                            break
                        await self._rest_for(RETRY)
                elif self._stopping:
                    break
                else:
                    self._wake = trio.Event()
                    self._asleep = True
                    await self._wake.wait()
            await self._let_go()

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
            try:
                written = await self._try_to_write(key)
                if not self._stopping and (written or not self._waits(key)):
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
            self._database = await self._in_thread(self._connect)
            if self._database.is_new and self._known:
                self._begin_anew()
            self._known = True
        batch = self._take(first)
        self._size_underway = batch.size
        try:
            erased = bool(batch) and await self._in_thread(_write, self._database, batch)
        except Exception:
            self._queue = batch.followed_by(self._queue)
            raise
        finally:
            self._size_underway = 0
        if batch:
            self._succeeded()
        self._erased = self._erased or erased
        if self._erased:
            await self._in_thread(self._database.tidy)
            self._erased = False

    def _take(self, first: int | None) -> _Batch:
        """What is queued, with what is in memory of so many histories as may wait together; the others stay queued.

        That of `first` is among them: somebody wants to read it.
        """
        taken = False
        for key in sorted(self._queue.renewed, key=lambda key: key != first):
            # One at least; and what comes while this is being written is to have room as well.
            if taken and self._queue.size > QUEUE:
                break
            taken = True
            self._take_from_memory(key)
        batch, self._queue = self._queue, _Batch()
        for key in batch.renewed:
            self._queue.put(key, batch.pop(key))
            # Its epoch is the new history's: on disk is the old one until then.
            if key in batch.sessions:
                self._queue.sessions[key] = batch.sessions.pop(key)
        return batch

    async def _read(self, key: int) -> StoredJournal | None:
        if self._database is None or key not in self._journals:
            return None
        try:
            journal = await self._in_thread(self._database.read_journal, key)
        except Exception as error:  # Whatever it is: it is this history that can't be read.
            await self._fail(error)
            return None
        if self._waits(key):
            return journal if key in self._journals else None
        if journal is None and key in self._journals:
            _log.error("%s: the history of a session does not fit together, and is given up", self._path)
            self._give_up({key})
        return journal

    def _waits(self, key: int) -> bool:
        """Whether something of a session's history is queued."""
        return key in self._queue.changes

    async def _fail(self, error: Exception) -> None:
        self._note_failure(error)
        self._damaged = self._damaged or is_damage(error)
        if not is_passing(error):
            await self._let_go()

    async def _let_go(self) -> None:
        file, self._database = self._database, None
        if file is not None:
            try:
                await self._in_thread(file.close)
            except Exception:  # Whatever it is: this is where failures end.
                _log.exception("%s can't be closed", self._path)

    def _load(self) -> list[StoredSession]:
        """Read what there is, in an open file; the sessions. Blocks; raises any of `_FAILURES`."""
        file = self._connect()
        try:
            stored, journals, uses = file.sessions(), file.journals(), file.token_uses()
        finally:
            # Until `run`, which may never come.
            file.close()
        self._journals, self._uses = journals, uses
        return stored

    def _connect(self) -> Database:
        """Open the file, or a new one if it is damaged. Blocks; raises any of `_FAILURES`."""
        if not self._damaged:
            try:
                return Database(self._path, self._journal_limit, self._connect_to)
            except Exception as error:
                if not is_damage(error):
                    raise
                self._damaged = True
        aside = put_aside(self._path, self._now())
        self._damaged = False
        text = f"{self._path} was damaged and a new one is begun; what is left of the old one is {aside}"
        self._report("damage", text)
        return Database(self._path, self._journal_limit, self._connect_to)

    def _begin_anew(self) -> None:
        """Everything on disk was lost: write again what is known here, all but the histories that are not in memory."""
        for key in self._journals - self._whole():
            self._renew(key)
        self._give_up(self._journals - self._whole())
        self._queue.sessions = dict(self._sessions)
        self._queue.uses = dict(self._uses)

    def _whole(self) -> set[int]:
        """The keys of the histories that are written from their beginning."""
        return {key for key, change in self._queue.changes.items() if change.renews or change.whole is not None}

    def _note_failure(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, ConfigError) else f"{self._path}: {_reason(error)}"
        mistake = None if isinstance(error, _FAILURES) else error
        if self._damaged and isinstance(error, OSError):
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
        if "slow" in self._problems and not any(change.erases for change in self._queue.changes.values()):
            del self._problems["slow"]
            _log.info("%s: what was to be written is written", self._path)

    async def _in_thread(self, function: Callable[[Unpack[_Arguments]], _Result], *args: *_Arguments) -> _Result:
        # Given up only where it hangs at the end; the limiter keeps others out even then.
        return await trio.to_thread.run_sync(function, *args, limiter=self._limiter, abandon_on_cancel=True)


def _write(file: Database, batch: _Batch) -> bool:
    """Write a batch, all of it or nothing; whether something was erased. Blocks; raises sqlite3.Error."""
    with file.transaction():
        for session in batch.sessions.values():
            file.put_session(session)
        for token_id, use in batch.uses.items():
            file.put_token_use(token_id, use)
        for key, change in batch.changes.items():
            if change.forgets:
                file.forget(key)
            elif change.erases:
                file.forget_journal(key)
            if change.whole is not None:
                file.replace_journal(key, change.whole)
            if change.runs:
                file.append(key, change.runs)
    for change in batch.changes.values():
        for run in (*(change.whole.runs if change.whole is not None else ()), *change.runs):
            _free(run.messages)
    return any(change.forgets or change.erases for change in batch.changes.values())


def _free(messages: list[bytes]) -> None:
    """Let go of messages, some at a time: all at once would take milliseconds, and the interpreter's lock with them."""
    while messages:
        del messages[-_AT_ONCE:]


def _reason(error: Exception) -> str:
    """What happened, in one line for a person."""
    if not isinstance(error, _FAILURES):
        return " ".join(f"unexpected {type(error).__name__}: {error}".split())
    if isinstance(error, UnicodeDecodeError):
        return "database disk image is malformed"  # SQLite's words for what could not be decoded.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
