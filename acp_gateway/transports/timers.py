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

Beat: TypeAlias = Callable[[float], float]
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

    __slots__ = ("_at_work", "_nursery", "appointments")

    def __init__(self, nursery: trio.Nursery) -> None:
        # Nursery of the tasks; None after `dismiss`.
        self._nursery: trio.Nursery | None = nursery
        # The calls that are running.
        self._at_work: tuple[tuple[object, ...], ...] = ()
        self.appointments: tuple[Timer, ...] = ()
        """Timers that end with it. Tuples: empty ones take no room."""

    def call(self, work: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
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
    def dismissed(self) -> bool:
        """True after `dismiss`."""
        return self._nursery is None

    def dismiss(self) -> None:
        """Cancel the tasks and start no more. May be repeated."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            self._nursery = None
            for appointment in self.appointments:
                appointment.cancel()


class Timer:
    """A callback and when it is due. Made by a `TimerQueue`."""

    __slots__ = ("_number", "beat", "due", "helpers")

    def __init__(self, beat: Beat, due: float, helpers: TaskSpawner, number: int) -> None:
        self.beat: Beat | None = beat
        self.due = due
        self.helpers: TaskSpawner | None = helpers
        # Of two that are due at the same time, which goes first.
        self._number = number

    def __lt__(self, other: "Timer") -> bool:
        return (self.due, self._number) < (other.due, other._number)

    def cancel(self) -> None:
        """Call it no more. May be repeated."""
        # The queue drops it only when it would have been due, but what the callback holds may be large.
        self.beat = self.helpers = None


class TimerQueue:
    """Calls timers when they are due: a heap, and one task for all of them, `run`."""

    def __init__(self) -> None:
        # A heap.
        self._appointments: list[Timer] = []
        # Size at which cancelled timers are dropped.
        self._many = MANY
        self._made = 0
        self._earlier = Signal()

    def keep(self, beat: Beat, helpers: TaskSpawner) -> None:
        """Call `beat` now and whenever it says, until the spawner is dismissed. Its errors are raised in a task."""
        due = beat(trio.current_time())
        if due == inf or helpers.dismissed:
            return
        self._made += 1
        appointment = Timer(beat, due, helpers, self._made)
        helpers.appointments += (appointment,)
        if len(self._appointments) >= self._many:
            self._appointments = [kept for kept in self._appointments if kept.beat is not None]
            heapify(self._appointments)
            self._many = max(MANY, 2 * len(self._appointments))
        heappush(self._appointments, appointment)
        if self._appointments[0] is appointment:
            self._earlier.notify()

    async def run(self) -> None:
        """Call the timers that are due, until cancelled."""
        while True:
            now, done = trio.current_time(), 0
            while self._appointments and self._appointments[0].due <= now:
                first = heappop(self._appointments)
                first.due = _keep(first, now)
                if first.due < inf:
                    heappush(self._appointments, first)
                done += 1
                if done % MANY == 0:
                    await trio.lowlevel.checkpoint()
            due = self._appointments[0].due if self._appointments else inf
            with trio.move_on_at(due):
                await self._earlier.wait()


def _keep(appointment: Timer, now: float) -> float:
    beat, helpers = appointment.beat, appointment.helpers
    if beat is None or helpers is None:
        return inf
    try:
        return beat(now)
    except Exception as error:
        # A bug ends the connection that it shows in and no other.
        helpers.call(_raise, error)
        return inf


async def _raise(error: Exception) -> None:
    raise error
