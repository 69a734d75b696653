"""What the gateway does to its own process: no core dumps, nobody who reads its memory, room for many connections.

Tokens pass through the memory of `serve`, and the agents that it runs are processes of the same user. Linux lets such
processes look at each other (`ptrace`, `/proc/PID/mem`), and writes core dumps to where that user may read them, unless
a process asks for neither. Root can do both all the same; and whoever is that user has its files.

Limits are inherited. What is changed here is for the gateway alone: agents and hooks get back what it was started
with, because programs that wait with `select()` break when they get a descriptor above 1024, and whether an agent's
crashes are kept is its user's business.
"""

import ctypes
import logging
import resource
import sys
from typing import Final

log = logging.getLogger(__name__)

MAX_DESCRIPTORS: Final = 1 << 20
"""How many descriptors are asked for at most, where the system has no bound of its own. What the kernel gives one
process by default, and far more than `max_connections` needs."""

_PR_SET_DUMPABLE: Final = 4

# The soft limits that this process was started with, of those that were changed.
_inherited: dict[int, int] = {}


def harden() -> None:
    """Do all of it, once, before the first secret is read. What the system does not allow is logged and no obstacle."""
    _set(resource.RLIMIT_CORE, 0)
    if sys.platform != "linux":
        # Elsewhere no child could be given its limit back.
        return
    soft, hard = map(_finite, resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft < min(hard, MAX_DESCRIPTORS):
        _set(resource.RLIMIT_NOFILE, min(hard, MAX_DESCRIPTORS))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("other processes of this user may read the gateway's memory: prctl: error %d", ctypes.get_errno())


def inherited_limits() -> dict[int, int]:
    """The soft limits that a child has to have, by the number of the resource; none where nothing was changed."""
    return dict(_inherited)


def give_limits_back(pid: int) -> None:
    """Give a child that runs already, and knows nothing of it, the soft limits of `inherited_limits`."""
    if sys.platform != "linux":
        return
    for number, soft in _inherited.items():
        try:
            resource.prlimit(pid, number, (soft, resource.prlimit(pid, number)[1]))
        except OSError as error:
            # One that has become another user's, or none that is there any more.
            log.debug("process %d keeps the gateway's limit %d: %s", pid, number, error.strerror)


def _finite(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _set(number: int, soft: int) -> None:
    before, hard = resource.getrlimit(number)
    if before == soft:
        return
    try:
        resource.setrlimit(number, (soft, hard))
    except (OSError, ValueError) as error:
        log.warning("cannot change the limit %d of this process to %d: %s", number, soft, error)
        return
    _inherited.setdefault(number, before)
