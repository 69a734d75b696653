"""Write-behind: the delay before queued changes are written, so that more of them share a transaction. Reads no clock.

A transaction takes about a millisecond. A gateway that is killed loses the changes that are not committed: those of one
delay, and those that came during the write.
"""

from typing import Final

GATHERING: Final = 0.05
"""Seconds from the first queued change to the write: twenty transactions a second for a stream of messages."""

MAX_GATHERING: Final = 0.25
"""Maximum of the same after a slow batch, in seconds: the delay is as long as that batch took."""


class WriteDelay:
    """Delay of the next write.

    Args:
        max_age: maximum seconds that a change is queued.
        max_bytes: bytes of queued changes that are written without a delay.
    """

    def __init__(self, max_age: float, max_bytes: int) -> None:
        self._max_age = max_age
        self._max_bytes = max_bytes
        # Time of the oldest change that is not being written.
        self._oldest: float | None = None

    def queued(self, now: float) -> None:
        """Note that a change was queued."""
        if self._oldest is None:
            self._oldest = now

    def taken(self) -> None:
        """Note that all queued changes are being written."""
        self._oldest = None

    def is_full(self, size: int) -> bool:
        """Return whether `size` queued bytes are to be written without a delay."""
        return size >= self._max_bytes

    def seconds(self, now: float, took: float, size: int) -> float:
        """Return the seconds until the next write, after a batch of `took` seconds and with `size` bytes queued."""
        if self.is_full(size):
            return 0.0
        gathering = min(max(GATHERING, took), MAX_GATHERING)
        if self._oldest is None:
            return min(gathering, self._max_age)
        return max(0.0, min(gathering, self._oldest + self._max_age - now))
