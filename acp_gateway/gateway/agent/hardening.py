"""Hardening of the gateway's process: no core dumps, no access to its memory, descriptors for many connections.

Tokens pass through the memory of `serve`, and its agents are processes of the same user. Linux lets such processes
inspect each other (`ptrace`, `/proc/PID/mem`), and writes core dumps to where that user may read them, unless a process
forbids both. Root can do both anyway, and processes of that user can read its files.

Limits are inherited. Agents and hooks get the original limits back, because programs that wait with `select()` break
with a descriptor above 1024, and core dumps of an agent are its user's decision.
"""

import ctypes
import logging
import resource
import sys
from typing import Final

log = logging.getLogger(__name__)

MAX_DESCRIPTORS: Final = 1 << 20
"""Maximum number of descriptors to ask for, where the system has no limit. The kernel's default for one process, and
far more than `max_connections` needs."""

_PR_SET_DUMPABLE: Final = 4

# The soft limits that this process was started with, of those that were changed.
_inherited: dict[int, int] = {}


def harden() -> None:
    """Harden this process, once, before the first secret is read. Steps that the system refuses are logged."""
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
    """Return the soft limits that a child must have, by resource number; empty if none was changed."""
    return dict(_inherited)


def give_limits_back(pid: int) -> None:
    """Set the soft limits of `inherited_limits` in a running child."""
    if sys.platform != "linux":
        return
    for number, soft in _inherited.items():
        try:
            resource.prlimit(pid, number, (soft, resource.prlimit(pid, number)[1]))
        except OSError as error:
            # The child has become another user's, or has ended.
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
