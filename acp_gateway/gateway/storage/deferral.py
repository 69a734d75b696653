"""Defers the writing of histories that another gateway has on its disk as well: those of the sessions of nodes.

They are written when a turn has ended, before they leave the memory, and otherwise `delay` seconds after a change. A
history that has grown by more than `MUCH` is written from memory then, without what has been cut off again. So the
work of the disk for a running turn is bounded, however fast its messages come.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

MUCH: Final = 1024 * 1024
"""Bytes by which a history grows before it is written from memory: that takes a step for each message in memory, as
appending takes one for each that is new."""


class Histories(Protocol):
    """Writes histories, by the keys of their sessions."""

    def append(self, key: int, message: bytes, state: str | None = None, time: int | None = None) -> None:
        """Append a message of this time, with the kind of state that it tells, if any."""

    def extend(self, key: int, messages: Sequence[bytes], time: int | None = None) -> None:
        """Append messages of this time."""

    def renew(self, key: int) -> None:
        """Write a history as it is in memory."""


class _Growth:
    """The messages by which a history has grown since it was last written."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[tuple[Sequence[bytes], str | None, int | None]] = []
        """In order, with the kind of state and the time of each; only the first `MUCH` bytes."""
        self.size = 0

    def add(self, messages: Sequence[bytes], state: str | None, time: int | None) -> None:
        if self.size <= MUCH:
            self.size += sum(map(len, messages))
            self.parts.append((messages, state, time))
            if self.size > MUCH:
                self.parts.clear()


class Deferral:
    """The histories that have grown since they were last written.

    Args:
        histories: writes them.
        delay: maximum seconds that a change waits.
        pause: sleeps for a number of seconds.
    """

    def __init__(
        self, histories: Histories, delay: float, pause: Callable[[float], Awaitable[None]] = trio.sleep
    ) -> None:
        self._histories = histories
        self._delay = delay
        self._pause = pause
        self._grown: dict[int, _Growth] = {}
        self._changed = trio.Event()

    def add(self, key: int, messages: Sequence[bytes], state: str | None, time: int | None) -> None:
        """Note messages that were appended to a history in memory, each of this kind of state, if any.

        The caller must not change `messages` afterwards.
        """
        growth = self._grown.get(key)
        if growth is None:
            growth = self._grown[key] = _Growth()
            self._changed.set()
        growth.add(messages, state, time)

    def discard(self, key: int) -> None:
        """Forget that a history has grown: it is erased, or written as a whole."""
        self._grown.pop(key, None)

    def write(self, key: int) -> None:
        """Write a history now if it has grown."""
        growth = self._grown.pop(key, None)
        if growth is None:
            return
        if growth.size > MUCH:
            self._histories.renew(key)
        for messages, state, time in growth.parts:
            if state is None:
                self._histories.extend(key, messages, time)
            else:
                self._histories.append(key, messages[0], state, time)

    async def run(self) -> None:
        """Write histories that have waited for `delay`, until cancelled."""
        while True:
            await self._changed.wait()
            await self._pause(self._delay)
            self._changed = trio.Event()
            for key in list(self._grown):
                self.write(key)
