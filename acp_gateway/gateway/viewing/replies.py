"""The responses that wait for one client to read."""

from collections import deque
from collections.abc import Callable

from acp_gateway.transports.timers import Signal


class Replies:
    """The responses of one connection, the first one first.

    Args:
        memory_grew: called with the number of bytes that are kept in addition.
        news: notified of each.
    """

    def __init__(self, memory_grew: Callable[[int], None], news: Signal) -> None:
        self.size = 0
        """Bytes."""
        self._waiting: deque[bytes] = deque()
        self._memory_grew = memory_grew
        self._news = news
        # Bytes that the memory limit was not told of.
        self._new = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, text: bytes) -> None:
        """Add a response."""
        self._waiting.append(text)
        self.size += len(text)
        self._new += len(text)
        self._news.notify()

    def note(self) -> None:
        """Tell the memory limit of new ones. Not as part of `add`, which a hub may call in a decision."""
        size, self._new = self._new, 0
        self._memory_grew(size)

    def take(self, most: int) -> list[bytes]:
        """Return and forget the next ones, up to the first with which they have so many bytes."""
        texts: list[bytes] = []
        size = 0
        while self._waiting and size < most:
            texts.append(self._waiting.popleft())
            size += len(texts[-1])
        self.size -= size
        return texts
