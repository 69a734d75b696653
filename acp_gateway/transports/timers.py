"""Timers and on-demand tasks for many connections, without a waiting task for each.

A task that waits takes two kilobytes, and so does a nursery around it, almost: a few per connection would be most of
what an idle one costs. So an idle connection has one task, which reads. `TaskSpawner` starts another one when there is
something to do, and a `TimerQueue` holds the timers of all connections.
"""

from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, TypeAlias, TypeVarTuple, Unpack

import trio

Args = TypeVarTuple("Args")

TimerCallback: TypeAlias = Callable[[float], float]
"""Callback of a timer: given the current time, it returns when it is due again; infinite is never."""


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
    """Starts tasks on demand; each ends when its work is done."""

    __slots__ = ("_at_work", "_nursery", "timers")

    def __init__(self, nursery: trio.Nursery) -> None:
        # Nursery of the tasks; None after `cancel`.
        self._nursery: trio.Nursery | None = nursery
        # The calls that are running.
        self._at_work: tuple[tuple[object, ...], ...] = ()
        self.timers: tuple[Timer, ...] = ()
        """Timers that end with it. Tuples: empty ones take no room."""

    def spawn(self, work: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """Start `work(*args)` unless an identical call is running; that one sees the new work too."""
        if self._nursery is not None and (work, *args) not in self._at_work:
            self._at_work += ((work, *args),)
            self._nursery.start_soon(self._do, work, args)

    async def _do(self, work: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        try:
            await work(*args)
        finally:
            # Nothing happens between its last look at what there is to do and this.
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
    """A callback and when it is due. Made by a `TimerQueue`."""

    __slots__ = ("_number", "callback", "due", "spawner")

    def __init__(self, callback: TimerCallback, due: float, spawner: TaskSpawner, number: int) -> None:
        self.callback: TimerCallback | None = callback
        self.due = due
        self.spawner: TaskSpawner | None = spawner
        # Of two that are due at the same time, which goes first.
        self._number = number

    def __lt__(self, other: "Timer") -> bool:
        return (self.due, self._number) < (other.due, other._number)

    def cancel(self) -> None:
        """Call it no more. May be repeated."""
        # The queue drops it only when it would have been due, but what the callback holds may be large.
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
        """Call `callback` now and whenever it says, until the spawner is cancelled. Its errors are raised in a task."""
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
        # A bug ends the connection that it shows in and no other.
        spawner.spawn(_raise, error)
        return inf


async def _raise(error: Exception) -> None:
    raise error
