"""Timers and on-demand tasks for many connections, without a waiting task for each.

A waiting task takes two kilobytes, and a nursery almost as much: a few per connection would be most of the memory of an
idle one. So an idle connection has one task, which reads. `TaskSpawner` starts another one when there is work, and a
`TimerQueue` holds the timers of all connections.
"""

from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, TypeAlias, TypeVarTuple, Unpack

import trio

Args = TypeVarTuple("Args")

TimerCallback: TypeAlias = Callable[[float], float]
"""Callback of a timer: takes the current time, and returns the time of the next call; infinite is never."""


MANY: Final = 64
"""Timers that run in one go before other tasks get their turn, and that may be kept after they were cancelled."""


class Signal:
    """Wakes the waiting tasks. Unlike Trio's events it takes next to no memory while no task waits."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: trio.Event | None = None

    async def wait(self) -> None:
        """Wait for the next `notify`. Cancelling loses nothing."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()

    def notify(self) -> None:
        """Wake all tasks that wait at this moment."""
        event, self._event = self._event, None
        if event is not None:
            event.set()


class TaskSpawner:
    """Starts tasks on demand; each ends with its work."""

    __slots__ = ("_at_work", "_nursery", "timers")

    def __init__(self, nursery: trio.Nursery) -> None:
        # Nursery of the tasks; None after `cancel`.
        self._nursery: trio.Nursery | None = nursery
        # The calls that are running.
        self._at_work: tuple[tuple[object, ...], ...] = ()
        self.timers: tuple[Timer, ...] = ()
        """Timers that end with it. A tuple, because empty ones take no memory."""

    def spawn(self, work: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """Start `work(*args)` unless an identical call is running; that one sees the new work too."""
        if self._nursery is not None and (work, *args) not in self._at_work:
            self._at_work += ((work, *args),)
            self._nursery.start_soon(self._do, work, args)

    async def _do(self, work: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        try:
            await work(*args)
        finally:
            # There is no checkpoint between the last look for work and this, so no work is missed.
            self._at_work = tuple(job for job in self._at_work if job != (work, *args))

    @property
    def cancelled(self) -> bool:
        """True after `cancel`."""
        return self._nursery is None

    def cancel(self) -> None:
        """Cancel the tasks and start no more. May be repeated."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            self._nursery = None
            for timer in self.timers:
                timer.cancel()


class Timer:
    """A callback and the time of its next call. Made by a `TimerQueue`."""

    __slots__ = ("_number", "callback", "due", "spawner")

    def __init__(self, callback: TimerCallback, due: float, spawner: TaskSpawner, number: int) -> None:
        self.callback: TimerCallback | None = callback
        self.due = due
        self.spawner: TaskSpawner | None = spawner
        # Order of timers that are due at the same time.
        self._number = number

    def __lt__(self, other: "Timer") -> bool:
        return (self.due, self._number) < (other.due, other._number)

    def cancel(self) -> None:
        """Stop the timer. May be repeated."""
        # The queue keeps the timer until it would have been due, but the callback may hold large objects.
        self.callback = self.spawner = None


class TimerQueue:
    """Calls timers when they are due: a heap, and one task for all of them, `run`."""

    def __init__(self) -> None:
        # A heap.
        self._timers: list[Timer] = []
        # Size at which cancelled timers are dropped.
        self._many = MANY
        self._made = 0
        self._earlier = Signal()

    def schedule(self, callback: TimerCallback, spawner: TaskSpawner) -> None:
        """Call `callback` now and at each time that it returns, until the spawner is cancelled.

        Its errors are raised in a task of the spawner.
        """
        due = callback(trio.current_time())
        if due == inf or spawner.cancelled:
            return
        self._made += 1
        timer = Timer(callback, due, spawner, self._made)
        spawner.timers += (timer,)
        if len(self._timers) >= self._many:
            self._timers = [kept for kept in self._timers if kept.callback is not None]
            heapify(self._timers)
            self._many = max(MANY, 2 * len(self._timers))
        heappush(self._timers, timer)
        if self._timers[0] is timer:
            self._earlier.notify()

    async def run(self) -> None:
        """Call the timers that are due, until cancelled."""
        while True:
            now, done = trio.current_time(), 0
            while self._timers and self._timers[0].due <= now:
                first = heappop(self._timers)
                first.due = _call(first, now)
                if first.due < inf:
                    heappush(self._timers, first)
                done += 1
                if done % MANY == 0:
                    await trio.lowlevel.checkpoint()
            due = self._timers[0].due if self._timers else inf
            with trio.move_on_at(due):
                await self._earlier.wait()


def _call(timer: Timer, now: float) -> float:
    callback, spawner = timer.callback, timer.spawner
    if callback is None or spawner is None:
        return inf
    try:
        return callback(now)
    except Exception as error:
        # A bug ends its own connection and no other.
        spawner.spawn(_raise, error)
        return inf


async def _raise(error: Exception) -> None:
    raise error
