"""Memory of the C library: a large block is used again while messages come, and goes back to the system soon after.

glibc gets each block above a threshold from the system, which clears it page by page: of a megabyte that takes a
quarter of a millisecond, ten times as long as copying one, and a message is in several blocks on its way. A smaller
block is a part of the heap, where the next one takes its place. But a heap gives back only its end by itself: after a
large message, its memory would stay for as long as anything lies behind it.

So large messages lie in the heap as well, and a task gives back all of its free pages.
"""

import ctypes
import logging
import time
from collections.abc import Callable
from typing import Final

import trio

log = logging.getLogger(__name__)

LARGEST: Final = 32 * 1024 * 1024
"""Bytes of the largest block in the heap: more glibc does not take."""

FREE_END: Final = 64 * 1024 * 1024
"""Bytes at the end of the heap that are given back at once: more than a few large messages leave there."""

INTERVAL: Final = 2.0
"""Seconds between two looks. To give back a hundred megabytes takes ten milliseconds, in a thread."""

LEAST_WORK: Final = 0.02
"""Seconds of processor time since the last look below which there is nothing to give back."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt`, from `malloc.h`."""


def keep_blocks(mallopt: Callable[[int, int], int] | None = None) -> None:
    """Let large blocks lie in the heap; without glibc, do nothing.

    Args:
        mallopt: the function of the C library, if it is not this process's own.
    """
    if mallopt is None:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, size in ((_MMAP_THRESHOLD, LARGEST), (_TRIM_THRESHOLD, FREE_END)):
        if not mallopt(parameter, size):
            log.debug("the C library does not take parameter %d of mallopt", parameter)


def trimmer() -> Callable[[], object] | None:
    """Return a function that gives back the free pages of the heap, and blocks; None without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(0)


async def give_back_memory(trim: Callable[[], object], work: Callable[[], float] = time.process_time) -> None:
    """Give back free memory while the process works, until cancelled.

    Args:
        trim: gives it back, and blocks.
        work: returns the seconds of processor time that the process has taken.
    """
    before = 0.0
    while True:
        await trio.sleep(INTERVAL)
        if work() - before >= LEAST_WORK:
            await trio.to_thread.run_sync(trim, abandon_on_cancel=True)
            before = work()
