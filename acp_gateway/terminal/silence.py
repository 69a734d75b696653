"""Measures the silence of a working agent, and tells when it is worth a word; the page has the same rule."""

from typing import Final

FIRST: Final = 60.0
"""Seconds without an update from which on a working agent's silence is worth a word."""

UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))
"""Units of a length of time with their seconds, the largest first."""


class Silence:
    """The time since the agent's last word. It is due to be told after `FIRST` seconds, and at each doubling."""

    def __init__(self) -> None:
        self._since = 0.0
        self._next = FIRST

    @property
    def due(self) -> float:
        """Time from which on it is to be told."""
        return self._since + self._next

    def end(self, now: float) -> None:
        """Begin again: the agent has said something, or it could not before."""
        self._since, self._next = now, FIRST

    def words(self, now: float) -> str:
        """Return for how long the agent has said nothing; empty if that is not long."""
        seconds = now - self._since
        if seconds < FIRST:
            return ""
        length = next(f"{seconds // size:.0f} {unit}" for unit, size in UNITS if seconds >= size)
        return f"no word from the agent for {length}"

    def note_told(self, now: float) -> None:
        """Note that the line was written, and wait twice as long for the next one."""
        while self.due <= now:
            self._next *= 2
