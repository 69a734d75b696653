"""Which histories go where all of them together take too much of the disk, or those of one identity do."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """A history on the disk."""

    key: int
    owner: str
    """An identity."""
    size: int
    """Bytes of its messages."""
    used: float
    """When its session was last used, in seconds since 1970."""
    live: bool
    """Whether an agent process has the session: its history stays, within `journal_limit`."""


def to_remove(histories: Iterable[Kept], limit: float, limit_per_identity: float) -> list[int]:
    """Return the keys of those that go, the longest unused first, until what stays is within both limits.

    An identity that is above its own limit loses its own ones before anybody else loses any.
    """
    found = list(histories)
    sizes = Counter[str]()
    for history in found:
        sizes[history.owner] += history.size
    removed = []
    oldest = sorted((history for history in found if not history.live), key=lambda history: history.used)
    for history in oldest:
        if sizes[history.owner] > limit_per_identity:
            sizes[history.owner] -= history.size
            removed.append(history.key)
    total, gone = sizes.total(), set(removed)
    for history in oldest:
        if total > limit and history.key not in gone:
            total -= history.size
            removed.append(history.key)
    return removed
