"""Trio's clock that jumps when no task is ready, in tests: it waits for threads, which take real time.

Otherwise it would jump to the next timeout in the milliseconds in which a thread works.
"""

import time
from typing import Any, Final

import pytest
import trio.testing

from acp_gateway.gateway.storage.writer import WorkerThread

PAUSE: Final = 0.0005
"""Seconds of real time until a clock that has not jumped may do so."""

PAUSES: Final = 20_000
"""So many at most in a row, since a thread may wait for what this clock has to bring."""


def wait_for_threads() -> None:
    """Let all such clocks wait for the threads of Trio, and for each `WorkerThread`."""
    call, jump = WorkerThread.call, vars(trio.testing.MockClock)["_autojump"]
    calls = pauses = 0

    async def call_and_count(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        try:
            return await call(*arguments)
        finally:
            calls -= 1

    def jump_or_wait(clock: trio.testing.MockClock) -> None:
        nonlocal pauses
        if (calls or trio.testing.active_thread_count()) and pauses < PAUSES:
            pauses += 1
            time.sleep(PAUSE)
        else:
            pauses = 0
            jump(clock)

    patch = pytest.MonkeyPatch()
    patch.setattr(WorkerThread, "call", call_and_count)
    patch.setattr(trio.testing.MockClock, "_autojump", jump_or_wait)
