"""Writing: the open database file in a worker thread, and a batch in one transaction.

A full, slow or broken disk is never the concern of clients: what cannot be written stays queued and is tried again.

The kernel prefers all other threads to this one. Where as many threads want to run as there are processors, the loop
and the agents come first. Trio's own threads are shared with other work, and without privileges a thread can't raise
its priority again.
"""

import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final, TypeVar, TypeVarTuple, Unpack

import outcome
import trio

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.storage.corruption import (
    Corruption,
    is_about_sharing,
    is_corruption,
    is_emptied,
    is_transient,
    put_aside,
)
from acp_gateway.gateway.storage.database import Connect, Database
from acp_gateway.gateway.storage.salvage import Salvaged, salvage
from acp_gateway.gateway.storage.write_queue import WriteBatch
from acp_gateway.printable import counted
from acp_gateway.protocol.text.pairs import Entry

_log = logging.getLogger(__name__)

NICE: Final = 10
"""Niceness of the thread: it gets a tenth of a processor that another thread wants as well. With a higher one, a busy
machine would delay its work by many seconds, and other work with it, because it has the interpreter's lock at times."""

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")


class WorkerThread:
    """Calls functions one after the other, in a thread of its own.

    The thread begins with the first call, and does not keep the process alive.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] | None = None
        self.limiter = trio.CapacityLimiter(1)
        """Admits one call at a time. An abandoned call keeps others out until it has returned."""

    async def call_urgently(self, function: Callable[[Unpack[_Arguments]], _Result], *args: *_Arguments) -> _Result:
        """Call a function as `call` does, in a thread of usual priority."""
        return await trio.to_thread.run_sync(function, *args, limiter=self.limiter, abandon_on_cancel=True)

    async def call(self, function: Callable[[Unpack[_Arguments]], _Result], *args: *_Arguments) -> _Result:
        """Call a function in the thread, and return its result. Raises what it raises.

        Cancelling abandons a call that is under way: its result is dropped.
        """
        borrower = object()
        await self.limiter.acquire_on_behalf_of(borrower)
        token, task = trio.lowlevel.current_trio_token(), trio.lowlevel.current_task()
        abandoned = False

        def deliver(result: outcome.Outcome[_Result]) -> None:
            self.limiter.release_on_behalf_of(borrower)
            if not abandoned:
                trio.lowlevel.reschedule(task, result)

        def work() -> None:
            result = outcome.capture(function, *args)
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(deliver, result)

        def abandon(_raise_cancel: Callable[[], object]) -> trio.lowlevel.Abort:
            nonlocal abandoned
            abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED

        if self._calls is None:
            self._calls = SimpleQueue()
            Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
        self._calls.put(work)
        result: _Result = await trio.lowlevel.wait_task_rescheduled(abandon)
        return result

    def end(self) -> None:
        """End the thread after the calls that are under way; a later call begins another one."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    if sys.platform == "linux":
        # Of this thread alone; elsewhere it would be that of the process. If it is forbidden, the work is done as well.
        with suppress(OSError):
            os.nice(NICE)
    while call := calls.get():
        call()
        # While it waits for the next call, the thread keeps nothing of this one.
        del call


_AT_ONCE: Final = 4096
"""Messages that are released in one step, which takes some tenths of a millisecond."""


FAILURES: Final = (sqlite3.Error, OSError, ConfigError, UnicodeDecodeError)
"""Errors of the file and the disk. Any other exception is a bug, which is logged with its traceback."""


class Writer:
    """The open file and its worker thread.

    A corrupt file is put aside and a new one is begun, at the start of the gateway with what can be read of it.
    Failures are logged once and listed in `problem`.

    Args:
        path: the file.
        journal_limit: bytes of one session's history.
        now: returns the time, in seconds since 1970.
        connect: opens the file.
    """

    def __init__(self, path: Path, journal_limit: int, now: Callable[[], float], connect: Connect) -> None:
        self._path = path
        self._journal_limit = journal_limit
        self._now = now
        self._connect_to = connect
        self.database: Database | None = None
        """The open file; None before `open`, and between a failure and the next attempt."""
        self.thread = WorkerThread("storage")
        """Reads and writes the file."""
        self.is_urgent = False
        """True while the work must not wait for other programs."""
        # True if the file was found to be corrupt and is not put aside yet.
        self._corrupt = False
        # Texts by the kind of problem.
        self._problems: dict[str, str] = {}

    @property
    def fails(self) -> bool:
        """True from a failure on until a write succeeds."""
        return "failure" in self._problems

    @property
    def problem(self) -> str | None:
        """Current failures, in one line; None while there are none."""
        return "; ".join(self._problems.values()) or None

    def load(self, read: Callable[[Database], _Result]) -> _Result:
        """Open the file for `read` alone, and return its result. A corrupt file is put aside, and a new one read.

        Blocks; raises any error of `read` and of opening.
        """
        try:
            if is_emptied(self._path):
                raise Corruption("it is empty")
            return self._load(read)
        except Exception as error:
            if not is_corruption(error):
                raise
            self._corrupt = True
            aside = put_aside(self._path, self._now())

            def read_salvaged(file: Database) -> _Result:
                self._note_put_aside(aside, salvage(aside, file))
                return read(file)

            return self._load(read_salvaged)

    def _load(self, read: Callable[[Database], _Result]) -> _Result:
        file = self._connect()
        try:
            return read(file)
        finally:
            # The writing task may never start.
            file.close()
            if file.no_room is not None:
                self.note_failure(file.no_room)

    async def open(self) -> Database:
        """Open the file; a new one if it is corrupt. Raises any of `FAILURES`."""
        database = self.database = await self._open()
        if database.no_room is not None:
            self.note_failure(database.no_room)
        return database

    async def _open(self) -> Database:
        if not self._corrupt:
            try:
                return await self.call(self._connect)
            except Exception as error:
                if not is_corruption(error):
                    raise
                self._corrupt = True
        self._note_put_aside(await self.call(put_aside, self._path, self._now()))
        return await self.call(self._connect)

    async def fail(self, error: Exception) -> None:
        """Note a failure, and close the file unless it is still usable."""
        self.note_failure(error)
        self._corrupt = self._corrupt or is_corruption(error)
        if not is_transient(error):
            await self.close()

    async def close(self) -> None:
        """Close the file, if it is open, and end the thread. Errors are logged."""
        file, self.database = self.database, None
        if file is not None:
            try:
                await self.call(file.close)
            except Exception:  # Whatever it is: this is where failures end.
                _log.exception("%s can't be closed", self._path)
        self.thread.end()

    def _connect(self) -> Database:
        """Open the file. Blocks; raises any of `FAILURES`."""
        return Database(self._path, self._journal_limit, self._connect_to)

    def _note_put_aside(self, aside: Path, salvaged: Salvaged | None = None) -> None:
        self._corrupt = False
        found = "damaged"
        if is_emptied(aside):
            found = "empty, so that the sessions that it had are not known any more,"
        text = f"{self._path} was {found} and a new one is begun; what is left of the old one is {aside}"
        if salvaged is not None and salvaged.sessions:
            text += f"; {counted(salvaged.sessions, 'session')} and the histories of {salvaged.histories} could be read"
        self.report("damage", text)

    def note_failure(self, error: Exception) -> None:
        """Log a failure, and add it to `problem`."""
        reason = str(error) if isinstance(error, ConfigError) else f"{self._path}: {_reason(error)}"
        mistake = None if isinstance(error, FAILURES) else error
        if self._corrupt and isinstance(error, OSError):
            reason += " (it is damaged, and can't be put aside)"
        text = f"{reason}; until it can be written again, a restart loses changes of sessions"
        self.report("failure", text, mistake)

    def report(self, kind: str, text: str, mistake: Exception | None = None) -> None:
        """Log a problem unless it is known already, and add it to `problem`. A mistake is logged with its traceback."""
        if self._problems.get(kind) != text:
            self._problems[kind] = text
            _log.error("%s", text, exc_info=mistake)

    def note_success(self, *, is_complete: bool, is_slow: bool) -> None:
        """Remove the problems that are over after a batch was written.

        Args:
            is_complete: all histories in memory are in the file, though it may have been replaced.
            is_slow: histories were given up because too much was queued, and are not erased yet.
        """
        if self._problems.pop("failure", None) is not None:
            _log.info("%s can be written again", self._path)
        if "damage" in self._problems and is_complete:
            del self._problems["damage"]
            _log.info("%s: the known sessions are stored in the new file", self._path)
        if "slow" in self._problems and not is_slow:
            del self._problems["slow"]
            _log.info("%s: the waiting changes are written", self._path)

    async def call(self, function: Callable[[Unpack[_Arguments]], _Result], *args: *_Arguments) -> _Result:
        """Call a function in the worker thread, and return its result; abandon it when cancelled."""
        call = self.thread.call_urgently if self.is_urgent else self.thread.call
        return await call(function, *args)


def write(file: Database, batch: WriteBatch) -> set[int]:
    """Write a batch in one transaction; return the keys in it of histories that lack their beginning.

    Of a session whose first record is lost, the owner would be unknown, so that nothing could open it again.

    Blocks. Raises sqlite3.Error, after which the batch is unchanged.
    """
    with file.transaction(synced=bool(batch.opened or batch.prompts)):
        for key, session in batch.sessions.items():
            if session is None:
                file.forget(key)
            else:
                file.put_session(session)
        for spent in batch.spent.values():
            for by, amounts in spent.items():
                file.spending.add(by, amounts)
                file.spending.prune(by.day)
        for token_id, use in batch.uses.items():
            file.put_token_use(token_id, use)
        for name, prompt in batch.prompts.items():
            if prompt is None:
                file.drop_prompt(name)
            else:
                file.put_prompt(prompt)
        for key in batch.erased:
            file.histories.forget(key)
        for key, parts in batch.histories.items():
            for part in parts:
                file.histories.renew(key, part)
    for parts in batch.histories.values():
        for part in parts:
            for run in part.runs:
                _free(run.messages)
    return {key for key in batch.histories if file.histories.is_truncated(key)}


def cut(file: Database, sizes: Mapping[int, int]) -> None:
    """Cut histories to these sizes in bytes, by key, in one transaction. Blocks; raises sqlite3.Error."""
    with file.transaction():
        for key, size in sizes.items():
            file.histories.cut(key, size)


def _free(messages: list[Entry]) -> None:
    """Release messages in steps: all at once would hold the interpreter's lock for milliseconds."""
    while messages:
        del messages[-_AT_ONCE:]


def _reason(error: Exception) -> str:
    """Return the reason of a failure, in one line."""
    if not isinstance(error, FAILURES):
        return " ".join(f"unexpected {type(error).__name__}: {error}".split())
    if isinstance(error, UnicodeDecodeError):
        return "database disk image is malformed"  # SQLite's words for what could not be decoded.
    if is_about_sharing(error):
        return "database or disk is full"  # SQLite's words for any other write to it.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
