"""Which histories are removed or cut when their disk space is used up, that of all or of one identity. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Kept:
    """A history on disk."""

    key: int
    owner: str
    """The identity for whose limit the session counts."""
    size: int
    """Bytes of its messages."""
    used: float
    """The session's last use, in seconds since 1970."""
    live: bool
    """True if an agent process has the session. Its history may be cut, and is never removed."""


class Reduction(NamedTuple):
    """Changes that bring the histories within the limits."""

    removed: list[int]
    """Keys of the histories to remove."""
    cut: dict[int, int]
    """Bytes to which a history is to be cut, by key."""


def reduce(histories: Iterable[Kept], limit: float, limit_per_identity: float) -> Reduction:
    """Return the changes after which both limits are met.

    The least recently used histories are removed first. When an identity has live sessions only, its largest history
    is halved, again and again. An identity above its own limit loses its own histories before those of others are
    touched; beyond the limit for all, histories are cut at the identity that holds most.
    """
    left = {history.key: history for history in histories}
    owned = Counter[str]()
    for history in left.values():
        owned[history.owner] += history.size
    oldest = sorted((history for history in left.values() if not history.live), key=lambda history: history.used)
    removed: list[int] = []

    def remove(history: Kept) -> None:
        owned[history.owner] -= history.size
        removed.append(history.key)
        del left[history.key]

    for history in oldest:
        if owned[history.owner] > limit_per_identity:
            remove(history)
    total = owned.total()
    for history in oldest:
        if total > limit and history.key in left:
            total -= history.size
            remove(history)
    sizes: dict[str, dict[int, int]] = {}
    for history in left.values():
        sizes.setdefault(history.owner, {})[history.key] = history.size
    cut: dict[int, int] = {}

    def halve_largest(owner: str) -> None:
        key = max(sizes[owner], key=sizes[owner].__getitem__)
        half = sizes[owner][key] // 2
        owned[owner] -= sizes[owner][key] - half
        sizes[owner][key] = cut[key] = half

    for owner in sizes:
        while owned[owner] > limit_per_identity:
            halve_largest(owner)
    while owned.total() > limit:
        halve_largest(max(owned, key=owned.__getitem__))
    return Reduction(removed, cut)
