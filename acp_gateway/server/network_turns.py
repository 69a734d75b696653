"""The unauthenticated connections of one network: those whose handshake is under way, and those that wait for a turn.

At most `handshakes_per_address` handshakes are under way. A connection asks for its turn with the first bytes that it
sends, and gets one in the order of asking: when another has ended, or has become idle and is evicted. So a network that
opens connections again and again, and never finishes one, delays its other connections by seconds and keeps none out.
As many connections as there are turns may wait; beyond that one is evicted, the oldest without a byte, else the newest.
"""

from collections.abc import Callable

import trio

from acp_gateway.server.pending import PendingConnection


class NetworkTurns:
    """The connections of one network, and which of them have their turn."""

    def __init__(self) -> None:
        self.connections: dict[PendingConnection, None] = {}
        """All of them, in the order of arrival."""
        self._active: set[PendingConnection] = set()
        # The first in line holds the lock.
        self._line = trio.StrictFIFOLock()
        self._ended = trio.lowlevel.ParkingLot()

    def add(self, connection: PendingConnection, limit: int) -> PendingConnection | None:
        """Add a connection; return the one that is to be evicted then, if more than `limit` wait for a turn."""
        self.connections[connection] = None
        if not connection.limited or len(self.connections) - len(self._active) <= limit:
            return None
        waiting = (each for each in self.connections if each not in self._active)
        return min(waiting, key=lambda each: (1, -each.number) if each.steps else (0, each.number))

    def remove(self, connection: PendingConnection) -> bool:
        """Remove a connection; return False if it is not here any more."""
        if connection not in self.connections:
            return False
        del self.connections[connection]
        self._active.discard(connection)
        self._ended.unpark_all()
        return True

    def note_step(self) -> None:
        """Note that a connection has made a step: the time when one is idle may be earlier."""
        self._ended.unpark_all()

    def first_idle(self, now: float) -> PendingConnection | None:
        """Return the oldest idle connection that has its turn; None if none is idle."""
        idle = (connection for connection in self._active if now >= connection.idle_at)
        return min(idle, key=lambda connection: connection.number, default=None)

    async def take(
        self, connection: PendingConnection, limit: Callable[[], int], evict: Callable[[PendingConnection], None]
    ) -> None:
        """Wait for the turn of a connection; one that is not here any more needs none.

        At most `limit` have one at a time; `evict` removes an idle one.
        """
        if connection not in self.connections or connection in self._active:
            return
        async with self._line:
            while connection in self.connections and len(self._active) >= limit():
                idle = self.first_idle(trio.current_time())
                if idle is not None:
                    evict(idle)
                    continue
                with trio.move_on_at(min(active.idle_at for active in self._active)):
                    await self._ended.park()
            if connection in self.connections:
                self._active.add(connection)
