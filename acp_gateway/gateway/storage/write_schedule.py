"""Wakes the task that writes: soon after a change, in batches as `WriteDelay` says, or at once."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from acp_gateway.gateway.storage.write_delay import WriteDelay


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
