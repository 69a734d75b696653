"""A thread for blocking work that can wait: the kernel prefers all others to it.

Where as many threads want to run as there are processors, the loop and the agents come first. Trio's own threads are
shared with other work, and without privileges a thread can't raise its priority again.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Final, TypeVar, TypeVarTuple, Unpack

import outcome
import trio

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
