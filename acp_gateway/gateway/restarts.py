"""When an agent that has ended may be started again: after a second at first, then ever later, and not too often."""

import math
from collections import deque
from typing import Final

WINDOW: Final = 600.0
"""Seconds in which an agent may end `max_restarts` times: what crashes once a day is worth a new start each time."""

LONGEST_BACKOFF: Final = 30.0
"""Seconds that a request waits at most for the new start of an agent that keeps ending."""


class TooOften(Exception):
    """The agent has ended too often to be started again now.

    Attributes:
        retry_after: whole seconds after which it may be.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Restarts:
    """The ends of one agent, and what they mean for its next start. Times are seconds of a clock that never goes back.

    Args:
        limit: how often it may end within `WINDOW`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # When it ended within the window, and why it did so last.
        self._ends: deque[float] = deque()
        self._last = ""

    def ended(self, now: float, why: str) -> None:
        """The agent has ended, and nobody had asked for that."""
        self._ends.append(now)
        self._last = why

    def next_start(self, now: float) -> float:
        """When the agent may be started, which may be past: one second after its first end, then twice as long.

        Raises `TooOften`.
        """
        while self._ends and self._ends[0] <= now - WINDOW:
            self._ends.popleft()
        if not self._ends:
            return now
        if len(self._ends) > self._limit:
            pause = math.ceil(self._ends[0] + WINDOW - now)
            raise TooOften(
                f"{self._last}; it has ended {len(self._ends)} times within {WINDOW / 60:g} min "
                f"(max_restarts is {self._limit}) and may be started again in {pause} s",
                pause,
            )
        return self._ends[-1] + min(2.0 ** (len(self._ends) - 1), LONGEST_BACKOFF)
