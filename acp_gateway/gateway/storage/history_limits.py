"""Limits on the disk space of all histories, and of those of one identity: which are removed, and which are cut."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heapreplace


@dataclass(frozen=True, slots=True)
class Kept:
    """A history on disk."""

    key: int
    owner: str
    """The identity that the session belongs to."""
    size: int
    """Bytes of its messages."""
    used: float
    """The session's last use, in seconds since 1970."""
    live: bool
    """True if an agent process has the session. Its history may be cut, and is never removed."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Changes that bring the histories within the limits."""

    removed: list[int] = field(default_factory=list)
    """Keys of the histories to remove."""
    cut: dict[int, int] = field(default_factory=dict)
    """Bytes to which a history is to be cut, by key."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.cut)


def reduce(histories: Iterable[Kept], limit: float, limit_per_identity: float) -> Reduction:
    """Return the changes after which both limits are met.

    The least recently used histories are removed first. When an identity has live sessions only, its largest history
    is halved, again and again. An identity above its own limit loses its own histories before those of others are
    touched; beyond the limit for all, histories are cut at the identity that holds most.
    """
    found = list(histories)
    sizes = Counter[str]()
    for history in found:
        sizes[history.owner] += history.size
    reduction = Reduction()
    oldest = sorted((history for history in found if not history.live), key=lambda history: history.used)
    for history in oldest:
        if sizes[history.owner] > limit_per_identity:
            sizes[history.owner] -= history.size
            reduction.removed.append(history.key)
    total, gone = sizes.total(), set(reduction.removed)
    for history in oldest:
        if total > limit and history.key not in gone:
            total -= history.size
            sizes[history.owner] -= history.size
            reduction.removed.append(history.key)
    live: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for history in found:
        if history.live:
            live[history.owner].append((-history.size, history.key))
    for owner, largest_first in live.items():
        heapify(largest_first)
        while sizes[owner] > limit_per_identity:
            sizes[owner] -= _halve(largest_first, reduction)
    while sizes.total() > limit:
        owner = max(sizes, key=lambda owner: sizes[owner])
        sizes[owner] -= _halve(live[owner], reduction)
    return reduction


def _halve(largest_first: list[tuple[int, int]], reduction: Reduction) -> int:
    """Halve the largest history in the heap; return by how many bytes it became smaller."""
    negative, key = largest_first[0]
    left = -negative // 2
    heapreplace(largest_first, (-left, key))
    reduction.cut[key] = left
    return -negative - left
