"""Wakes the task that writes: soon after a change, in batches as `WriteDelay` says, or at once.

The delay lets more changes share a transaction, which takes about a millisecond. A gateway that is killed loses the
changes that are not committed: those of one delay, and those that came during the write.

Here is also which histories are removed or cut when their disk space is used up, of all or of one identity.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Final

import trio

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


class WriteSchedule:
    """The waiting of the writing task.

    The task calls `sleep`, `gather`, `rest` and `working`; `queued` and `hurry` wake it.

    Args:
        delay: how long changes may wait.
        pause: sleeps for a number of seconds.
    """

    def __init__(self, delay: WriteDelay, pause: Callable[[float], Awaitable[None]]) -> None:
        self._delay = delay
        self._pause = pause
        self._wake = trio.Event()
        # True while the task waits for `_wake`; the scope in which it waits otherwise.
        self._asleep = False
        self._rest: trio.CancelScope | None = None
        # The same, while it gathers changes for a batch.
        self._gathering: trio.CancelScope | None = None
        # Seconds that the last batch took.
        self._took = 0.0

    def queued(self, size: int) -> None:
        """Wake the task after a change, or end its gathering if it has gathered enough; `size` bytes are queued."""
        if self._asleep:
            self._delay.queued(trio.current_time())
            self._wake_up()
        elif self._gathering is not None and self._delay.is_full(size):
            self._gathering.cancel()

    def hurry(self) -> None:
        """Make the task begin at once."""
        if self._rest is not None:
            self._rest.cancel()
        self._wake_up()

    def _wake_up(self) -> None:
        self._asleep = False
        self._wake.set()

    async def sleep(self) -> None:
        """Wait for the next change."""
        self._delay.taken()
        self._wake = trio.Event()
        self._asleep = True
        await self._wake.wait()

    async def gather(self, size: int) -> None:
        """Wait for more changes to write in the same batch; `size` bytes are queued."""
        seconds = self._delay.seconds(trio.current_time(), self._took, size)
        if seconds:
            with trio.CancelScope() as self._gathering:
                await self.rest(seconds)
            self._gathering = None

    async def rest(self, seconds: float) -> None:
        """Sleep, unless hurried."""
        with trio.CancelScope() as self._rest:
            await self._pause(seconds)
        self._rest = None

    @contextmanager
    def working(self) -> Iterator[None]:
        """Measure a batch, which is written in the block."""
        began = trio.current_time()
        # Changes during this write are the oldest of the next batch.
        self._delay.taken()
        self._delay.queued(began)
        yield
        self._took = trio.current_time() - began
