"""Tells that the time of day was set or the machine has slept, without looking at a clock.

The kernel of Linux tells it by a timer for a time that never comes, which it cancels then.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from typing import Final

import trio

_CLOCK_REALTIME: Final = 0
_ABSOLUTE_CANCELLED_ON_SET: Final = 3
_NEVER: Final = 2**31 - 1
"""Seconds since 1970. A timer that has expired is cancelled as well."""


def open_timer() -> int | None:
    """Return a descriptor that can be read once after each such change; None where the system has none."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    descriptor: int = libc.timerfd_create(_CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    interval_and_time = (ctypes.c_long * 4)(0, 0, _NEVER, 0)
    if libc.timerfd_settime(descriptor, _ABSOLUTE_CANCELLED_ON_SET, interval_and_time, None) < 0:
        os.close(descriptor)
        return None
    return descriptor


async def watch_clock(
    changed: Callable[[], None],
    opened: Callable[[], int | None] = open_timer,
    *,
    task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `changed` at each change until cancelled; return at once where the system does not tell.

    `task_status` gets whether it does.
    """
    descriptor = opened()
    task_status.started(descriptor is not None)
    if descriptor is None:
        return
    try:
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            try:
                os.read(descriptor, 8)
            except OSError as error:
                if error.errno not in (errno.ECANCELED, errno.EAGAIN):
                    raise
            changed()
    finally:
        os.close(descriptor)
