"""What survives a restart of the gateway: its sessions, their histories, and when tokens were last used.

Whoever has something to keep says so and goes on: it is queued. One task writes what has come together, in one
transaction, in a thread. What is queued is on disk a moment later, and at the end.

A disk that is full, slow or broken is nobody else's concern. What can't be written waits, within a bound, and is tried
again. Past the bound histories are given up: nothing more of them is written, and what is on disk of them is erased
when that works again, so that a history on disk never has a gap. Sessions themselves are few and small, and are always
written in the end. A file that is damaged is put aside and a new one begun.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio

from acp_gateway.database import (
    Connect,
    Database,
    Entry,
    StoredJournal,
    StoredSession,
    TokenUse,
    is_damage,
    is_passing,
    put_aside,
    read_token_uses,
)
from acp_gateway.errors import ConfigError

__all__ = ["Entry", "Storage", "StoredJournal", "StoredSession", "TokenUse", "read_token_uses"]

_log = logging.getLogger(__name__)

GATHERING: Final = 0.05
"""Seconds between the first that is queued and writing: what a crash may lose. A stream of messages costs some twenty
transactions a second then, each of which takes a millisecond."""

RETRY: Final = 10.0
"""Seconds until something that failed is tried again."""

FAREWELL: Final = 5.0
"""Seconds to write the rest at the end. A disk that takes longer hangs, and must not keep the gateway from ending."""

QUEUE: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written, besides one whole history: three seconds of the fastest stream of messages."""

LATE: Final = 4 * 1024 * 1024
"""Bytes queued by which the thread should have taken them. It may be starved: a busy thread that lets go of the
interpreter's lock only for moments, in epoll, has it back before another one has woken up."""

STEP: Final = 256 * 1024
"""Bytes between two times that the lock is handed over then: some dozens a second with the fastest stream, of which a
batch needs about twenty."""

HANDOVER: Final = 0.0002
"""Seconds to let go of the lock for, so that a waiting thread wakes up in time: several times what that takes."""

TOKEN_INTERVAL: Final = 3600.0
"""Seconds between two times that a token's use is written: who looks for tokens that nobody uses thinks in days."""

_OVERHEAD: Final = 128
"""Bytes that count for each thing queued besides its messages."""

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

_DAY: Final = 86400.0

_FAILURES: Final = (sqlite3.Error, OSError, ConfigError, UnicodeDecodeError)
"""What the world can do to the file. Anything else is our mistake, which is logged with its traceback."""


@dataclass(frozen=True, slots=True)
class _TurnEnded:
    key: int


@dataclass(frozen=True, slots=True)
class _Replaced:
    key: int
    journal: StoredJournal
    size: int


@dataclass(frozen=True, slots=True)
class _JournalForgotten:
    key: int


@dataclass(frozen=True, slots=True)
class _Forgotten:
    key: int


# The first is a message of a history, of which there are thousands for each of the others: key, message, state.
_Operation = tuple[int, bytes, str | None] | _TurnEnded | _Replaced | _JournalForgotten | _Forgotten


@dataclass(slots=True)
class _Batch:
    """What goes to the disk together: the sessions and uses as they are at last, and the rest in order after them."""

    sessions: dict[int, StoredSession]
    uses: dict[str, TokenUse]
    operations: list[_Operation]

    def __bool__(self) -> bool:
        return bool(self.sessions or self.uses or self.operations)


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
        # What is queued; bytes of it and of what is being written; and of the latter alone.
        self._queue = _Batch({}, {}, [])
        self._size = 0
        self._size_underway = 0
        self._bound = QUEUE + journal_limit
        # How many bytes have to be queued until the thread is helped, or histories are given up.
        self._mark = min(LATE, self._bound)
        # The histories that are asked for, first come, first served, until what is queued is written for that.
        self._readings: dict[int, _Reading] = {}
        self._erased = False  # ... something that may still be found in the write-ahead log.
        self._wake = trio.Event()
        # Whether the writer waits for that, and what it waits in otherwise, if it does.
        self._asleep = False
        self._rest: trio.CancelScope | None = None
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
            self.replace(key, StoredJournal(epoch, position=0, truncated=False))

    def append(self, key: int, message: bytes, state: str | None = None) -> None:
        """Add a message to a session's history, with the kind of state that it tells, if any."""
        # For each message that an agent sends.
        if key in self._journals:
            self._queue.operations.append((key, message, state))
            self._size += len(message) + _OVERHEAD
            if self._asleep or self._size > self._mark:
                self._queued()

    def turn_ended(self, key: int) -> None:
        """A turn ended after the last message of a session's history."""
        if key in self._journals:
            self._add(_TurnEnded(key))

    def replace(self, key: int, journal: StoredJournal) -> None:
        """Keep this history of a session that is kept, in place of what there is, if any."""
        session = self._sessions.get(key)
        if session is None or not self._journal or self._over:
            return
        if session.epoch != journal.epoch:
            self._put(replace(session, epoch=journal.epoch))
        self._journals.add(key)
        size = sum(len(entry.message) + _OVERHEAD for entries in (journal.states, journal.entries) for entry in entries)
        self._add(_Replaced(key, journal, size))

    def forget_journal(self, key: int) -> None:
        """Erase a session's history. Until it is replaced, none is kept."""
        if key in self._journals:
            self._journals.remove(key)
            self._add(_JournalForgotten(key))

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        if self._sessions.pop(key, None) is not None:
            self._journals.discard(key)
            self._queue.sessions.pop(key, None)
            self._add(_Forgotten(key))

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

    def _add(self, operation: _Operation) -> None:
        if not self._over:
            self._queue.operations.append(operation)
            self._size += _size(operation)
            self._queued()

    def _queued(self) -> None:
        """Wake up the writer, help the thread where much waits, and give up histories where too much does."""
        if self._size > self._mark:
            self._mark = min(self._size + STEP, self._bound)
            time.sleep(HANDOVER)
        if self._size > self._bound:
            contents = (tuple, _TurnEnded, _Replaced)
            self._give_up({_key(operation) for operation in self._queue.operations if isinstance(operation, contents)})
            text = f"{self._path}: more is to be written than can be; the histories of the sessions in use are given up"
            self._report("slow", text)
        if self._asleep:
            self._asleep = False
            self._wake.set()

    def _give_up(self, keys: set[int]) -> None:
        """Keep no history of these sessions any more, until it is replaced; erase what is on disk."""
        self._journals -= keys
        erasures = (_JournalForgotten, _Forgotten)
        operations = self._queue.operations
        kept = [operation for operation in operations if _key(operation) not in keys or isinstance(operation, erasures)]
        kept += map(_JournalForgotten, keys)
        self._queue.operations = kept
        self._size = self._size_underway + sum(map(_size, kept))

    def _hurry(self) -> None:
        """Have the writer begin at once."""
        if self._rest is not None:
            self._rest.cancel()
        self._mark = self._size
        self._queued()

    # What the writer does.

    async def _write_until_stopped(self, farewell: trio.CancelScope) -> None:
        with farewell:
            while True:
                if self._queue or self._readings or self._erased:
                    await self._rest_for(GATHERING)
                    if not await self._work():
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
            written = await self._try_to_write()
        else:
            # Who asks from now on wants what is queued by then.
            reading = self._readings.pop(key)
            try:
                written = await self._try_to_write()
                if not self._stopping and (written or not self._waits(key)):
                    reading.journal = await self._read(key)
            finally:
                reading.done.set()
        self._mark = min(self._size + LATE, self._bound)
        return written

    async def _try_to_write(self) -> bool:
        try:
            await self._write_queue()
        except Exception as error:  # Whatever it is: what can't be written troubles nobody.
            await self._fail(error)
            return False
        return True

    async def _write_queue(self) -> None:
        if self._database is None:
            self._database = await self._in_thread(self._connect)
            if self._database.is_new and self._known:
                self._begin_anew()
            self._known = True
        batch, self._queue = self._queue, _Batch({}, {}, [])
        self._size_underway = self._size
        try:
            erased = bool(batch) and await self._in_thread(_write, self._database, batch)
        except Exception:
            later = self._queue
            self._queue = _Batch(
                batch.sessions | later.sessions, batch.uses | later.uses, batch.operations + later.operations
            )
            self._size_underway = 0
            raise
        self._size -= self._size_underway
        self._size_underway = 0
        if batch:
            self._succeeded()
        self._erased = self._erased or erased
        if self._erased:
            await self._in_thread(self._database.tidy)
            self._erased = False

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
        return any(_key(operation) == key for operation in self._queue.operations)

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
        """Everything on disk was lost: write again what is known here, which is all but the histories."""
        whole = {operation.key for operation in self._queue.operations if isinstance(operation, _Replaced)}
        self._give_up(self._journals - whole)
        self._queue.sessions = dict(self._sessions)
        self._queue.uses = dict(self._uses)

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
        if "slow" in self._problems and not any(isinstance(each, _JournalForgotten) for each in self._queue.operations):
            del self._problems["slow"]
            _log.info("%s: what was to be written is written", self._path)

    async def _in_thread(self, function: Callable[[Unpack[_Arguments]], _Result], *args: *_Arguments) -> _Result:
        # Given up only where it hangs at the end; the limiter keeps others out even then.
        return await trio.to_thread.run_sync(function, *args, limiter=self._limiter, abandon_on_cancel=True)


def _write(file: Database, batch: _Batch) -> bool:
    """Write a batch, all of it or nothing; whether something was erased. Blocks; raises sqlite3.Error."""
    # The last messages of each history, which go together.
    runs: dict[int, list[tuple[bytes, str | None]]] = {}
    erased = False
    with file.transaction():
        for session in batch.sessions.values():
            file.put_session(session)
        for token_id, use in batch.uses.items():
            file.put_token_use(token_id, use)
        for operation in batch.operations:
            match operation:
                case (key, message, state):
                    runs.setdefault(key, []).append((message, state))
                case _TurnEnded(key):
                    file.append(key, runs.pop(key, []), ends_turn=True)
                case _Replaced(key, journal):
                    runs.pop(key, None)
                    file.replace_journal(key, journal)
                case _JournalForgotten(key):
                    runs.pop(key, None)
                    file.forget_journal(key)
                    erased = True
                case _Forgotten(key):
                    runs.pop(key, None)
                    file.forget(key)
                    erased = True
        for key, run in runs.items():
            file.append(key, run)
    return erased


def _key(operation: _Operation) -> int:
    return operation[0] if isinstance(operation, tuple) else operation.key


def _size(operation: _Operation) -> int:
    """What an operation counts for, in bytes."""
    match operation:
        case (_, message, _):
            return len(message) + _OVERHEAD
        case _Replaced(size=size):
            return size + _OVERHEAD
        case _:
            return _OVERHEAD


def _reason(error: Exception) -> str:
    """What happened, in one line for a person."""
    if not isinstance(error, _FAILURES):
        return " ".join(f"unexpected {type(error).__name__}: {error}".split())
    if isinstance(error, UnicodeDecodeError):
        return "database disk image is malformed"  # SQLite's words for what could not be decoded.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
