"""The time within which a gateway has looked at the directory of its cluster. Pure: times in, decision out.

A running gateway looks at the directory every few seconds, whether it answers or not. One that was paused, with its
process or its machine, has not: another node may have adopted its sessions meanwhile. So after a pause it asks before
it passes anything on.
"""

import time

Times = tuple[float, ...]
"""The times of several clocks, each in seconds, in the same order."""


class Lease:
    """The time of the last look at the directory.

    Args:
        ttl: seconds after which others may take this node for dead.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._looked: Times | None = None

    def looked(self, began: Times) -> None:
        """Note a look at the directory that began at this time, and that found the sessions still here."""
        self._looked = began

    def failed(self, began: Times, now: Times) -> None:
        """Note an attempt that has failed: the gateway goes on alone. One in which it was paused does not count."""
        if not self._is_long(began, now):
            self._looked = now

    def lapsed(self, now: Times) -> bool:
        """Return whether the gateway has to look at the directory before it goes on."""
        return self._looked is None or self._is_long(self._looked, now)

    def _is_long(self, began: Times, now: Times) -> bool:
        """Return whether any clock tells that others may take this node for dead.

        A clock that was set back tells nothing, and one that was set forward costs a look.
        """
        return any(after - before >= self._ttl for before, after in zip(began, now, strict=True))


def read_clocks() -> Times:
    """Return the time of a clock that goes on while the machine sleeps, and the time of day.

    Where a virtual machine was suspended, only the latter may show it.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic() if boot_time is None else time.clock_gettime(boot_time)), time.time()
