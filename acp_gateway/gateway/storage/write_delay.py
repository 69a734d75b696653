"""Write-behind: how long what is queued may wait for more to be written with it. No clock is read here.

A transaction costs about a millisecond, so that many messages are written in one. A gateway that is killed loses what
is not committed: what was queued during one delay, and what came while that was being written.
"""

from typing import Final

GATHERING: Final = 0.05
"""Seconds between the first that is queued and writing. A stream of messages costs some twenty transactions a second
then, each of which takes a millisecond."""

MAX_GATHERING: Final = 0.25
"""The same after a batch that took long: as long as that took, up to this."""


class WriteDelay:
    """When to write.

    Args:
        max_age: seconds after which the oldest that is queued is written at once.
        max_bytes: bytes queued at which all of it is.
    """

    def __init__(self, max_age: float, max_bytes: int) -> None:
        self._max_age = max_age
        self._max_bytes = max_bytes
        # When the oldest was queued that is not being written.
        self._oldest: float | None = None

    def queued(self, now: float) -> None:
        """Note that something was queued."""
        if self._oldest is None:
            self._oldest = now

    def taken(self) -> None:
        """Note that all that is queued is being written now."""
        self._oldest = None

    def is_full(self, size: int) -> bool:
        """Return whether so many bytes are to be written at once."""
        return size >= self._max_bytes

    def seconds(self, now: float, took: float, size: int) -> float:
        """Return how long to gather more: after a batch that took so long, with so many bytes queued."""
        if self.is_full(size):
            return 0.0
        gathering = min(max(GATHERING, took), MAX_GATHERING)
        if self._oldest is None:
            return min(gathering, self._max_age)
        return max(0.0, min(gathering, self._oldest + self._max_age - now))
