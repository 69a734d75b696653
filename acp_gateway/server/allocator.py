"""Has the C library give memory back to the system as soon as it is free.

glibc takes what is smaller than a threshold from its heap, and raises that threshold to the size of the largest block
that was freed, up to 32 MiB. A heap gives back only its end: after one large message, the memory of later ones would
stay with the process for as long as anything lies behind them.

Both thresholds are fixed here, before the first client comes. Smaller blocks still share the heap.

A large message that is received grows in one block (`ChunkBuffer`).
"""

import ctypes
import logging
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

OWN_BLOCK: Final = 512 * 1024
"""Bytes from which a block of memory is one of its own, which the system gets back when it is freed. To make one takes
a tenth of a millisecond for each MiB, as much as copying it."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt`, from `malloc.h`."""


def give_back_memory(mallopt: Callable[[int, int], int] | None = None) -> None:
    """Set fixed thresholds; without glibc, do nothing.

    Args:
        mallopt: the function of the C library, if it is not this process's own.
    """
    if mallopt is None:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        if not mallopt(parameter, OWN_BLOCK):
            log.debug("the C library does not take parameter %d of mallopt", parameter)
