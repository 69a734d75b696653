"""The calls of one connection: those of a lane are served in their order, others beside each other."""

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

CallT = TypeVar("CallT", bound=Hashable)


class CallLanes(Generic[CallT]):
    """The calls that are not finished.

    Args:
        serve: serves a call to its end.
        start: starts a task that ends with the connection.
        finished: called after each call.
    """

    def __init__(
        self,
        serve: Callable[[CallT], Awaitable[None]],
        start: Callable[[Callable[[Hashable], Awaitable[None]], Any], object],
        finished: Callable[[], None],
    ) -> None:
        self.size = 0
        """Bytes of the calls: prompts may be large, and wait while their session is opened again."""
        self._serve = serve
        self._start = start
        self._finished = finished
        # With their sizes; the first of each lane is being served.
        self._lanes: dict[Hashable, deque[tuple[CallT, int]]] = {}

    def __iter__(self) -> Iterator[CallT]:
        return (call for lane in self._lanes.values() for call, _ in lane)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def of(self, lane: Hashable) -> list[CallT]:
        """Return the calls of a lane."""
        return [call for call, _ in self._lanes.get(lane, ())]

    def add(self, call: CallT, lane: Hashable, size: int) -> None:
        """Serve a call of so many bytes after the others of its lane."""
        self.size += size
        waiting = self._lanes.setdefault(lane, deque())
        waiting.append((call, size))
        if len(waiting) == 1:
            self._start(self._work, lane)

    async def _work(self, lane: Hashable) -> None:
        waiting = self._lanes[lane]
        while waiting:
            await self._serve(waiting[0][0])
            self.size -= waiting.popleft()[1]
            self._finished()
        del self._lanes[lane]
