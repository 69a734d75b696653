"""TCP connections over a network that is bad on purpose, in the virtual time of Trio's clock.

A connection has two lanes. Bytes arrive in order: late by the line's delay and jitter, at its rate, and later still
where a segment is lost and sent again. What a lane carries does not arrive while it is dead, which no end is told. Each
end tells, as Linux does, which bytes the other system has confirmed.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

import trio

from acp_gateway.transports.path_state import PathState, Route
from acp_gateway.transports.streams import READ_SIZE, ByteStream

SEGMENT: Final = 1448
"""Bytes of a segment, where segments can be lost or take a while."""

MIN_RETRANSMISSION: Final = 0.2
"""Seconds until a lost segment is sent again at least, besides the round trip; as in Linux."""

MAX_RETRANSMISSION: Final = 120.0
"""Seconds between two times that a segment is sent at most."""

ROUTE: Final = Route("192.0.2.1", ("198.51.100.1", 7443))


@dataclass
class Line:
    """One direction of the network, which all connections share."""

    chance: random.Random
    delay: float = 0.0
    """Seconds that each segment takes."""
    jitter: float = 0.0
    """Seconds that it takes longer, at most."""
    loss: float = 0.0
    """Probability that a segment is lost."""
    rate: float = 0.0
    """Bytes per second; 0 for no limit."""
    buffer: int = 262144
    """Bytes of a connection that the system keeps until they are confirmed."""
    free_at: float = 0.0
    """Time at which all that was sent has left."""

    def arrival(self, now: float, size: int, round_trip: float) -> float:
        """Return the time at which a segment arrives that is sent now."""
        if self.rate:
            now = self.free_at = max(now, self.free_at) + size / self.rate
        late = self.delay + self.jitter * self.chance.random()
        again = round_trip + MIN_RETRANSMISSION
        while self.loss and self.chance.random() < self.loss:
            late += again
            again = min(2 * again, MAX_RETRANSMISSION)
        return now + late


class Lane:
    """One direction of a connection. `run` carries what was written."""

    reverse: "Lane"

    def __init__(self, line: Line) -> None:
        self.line = line
        self.inbox = bytearray()
        self.ended = False
        """True once the writer has closed it, and the reader has been told."""
        self.unread = trio.lowlevel.ParkingLot()
        self.dead_since = inf
        self.quiet_until = -inf
        """Time at which it carries again after it was dead."""
        # Segments on their way with their times of arrival, the empty one being the end; and delivered ones with the
        # times and sizes of their confirmations.
        self._segments: deque[tuple[float, bytes]] = deque()
        self._confirmations: deque[tuple[float, int]] = deque()
        self._written = self._confirmed = 0
        self._last_arrival = 0.0
        self._sent: int | None = None
        self.moved = trio.lowlevel.ParkingLot()
        """Tasks that wait for any change."""

    def write(self, data: bytes | memoryview) -> int:
        """Take what there is room for, and return the number of its bytes."""
        now = trio.current_time()
        taken = bytes(data[: max(self.line.buffer - self._written + self.confirmed, 0)])
        size = SEGMENT if self.line.loss or self.line.rate else READ_SIZE
        for start in range(0, len(taken), size):
            self._put(now, taken[start : start + size])
        self._written += len(taken)
        return len(taken)

    def end(self) -> None:
        """Tell the reader, behind all that was written, that nothing more comes."""
        self._put(trio.current_time(), b"")

    def _put(self, now: float, segment: bytes) -> None:
        at = self.line.arrival(now, len(segment), self.line.delay + self.reverse.line.delay)
        self._last_arrival = max(at, self._last_arrival)
        self._segments.append((self._last_arrival, segment))
        self.moved.unpark_all()

    async def run(self) -> None:
        """Deliver until the end."""
        while True:
            while not self._segments or self.dead_since < inf:
                await self.moved.park()
            at = max(self._segments[0][0], self.quiet_until)
            await trio.sleep_until(at)
            if self.dead_since < inf:
                continue
            _, segment = self._segments.popleft()
            if segment:
                self.inbox += segment
                self._confirmations.append((trio.current_time() + self.reverse.line.delay, len(segment)))
            else:
                self.ended = True
            self.unread.unpark_all()
            self.moved.unpark_all()
            if self.ended:
                return

    @property
    def confirmed(self) -> int:
        """Bytes that the reader's system has confirmed."""
        now = trio.current_time()
        if now >= self.reverse.quiet_until:
            while self._confirmations and self._confirmations[0][0] <= now:
                if self._confirmations[0][0] >= self.reverse.dead_since:
                    break
                self._confirmed += self._confirmations.popleft()[1]
        return self._confirmed

    @property
    def written(self) -> int:
        """Bytes that the writer's system has taken."""
        return self._written

    @property
    def unconfirmed(self) -> int:
        """Bytes that were written and not confirmed."""
        return self._written - self.confirmed

    @property
    def in_flight(self) -> bool:
        """True if bytes were sent that are not confirmed: without a way, the system keeps what is written."""
        return (self._written if self._sent is None else self._sent) > self.confirmed

    def keep(self) -> None:
        """Send nothing of what is written from now on, until `revive`: the system knows no way."""
        self._sent = self._written

    async def wait_for_room(self) -> None:
        """Wait until there may be more room."""
        due = inf
        if self._confirmations and self.reverse.dead_since == inf:
            due = max(self._confirmations[0][0], self.reverse.quiet_until)
        with trio.move_on_at(due):
            await self.moved.park()

    def die(self) -> None:
        """Deliver nothing any more."""
        self.dead_since = min(self.dead_since, trio.current_time())

    def revive(self) -> None:
        """Deliver again, from the next time on that the system sends the first segment again."""
        now = trio.current_time()
        self._sent = None
        if self.dead_since < inf:
            pause = min(now - self.dead_since, MAX_RETRANSMISSION)
            self.quiet_until = now + pause * self.line.chance.random()
            self.dead_since = inf
            self.moved.unpark_all()
            self.reverse.moved.unpark_all()


class End(ByteStream):
    """One end of a connection."""

    __slots__ = ("_closed", "_connection", "_network", "_sink", "_source")

    def __init__(self, network: "Network", connection: "Connection", source: Lane, sink: Lane) -> None:
        self._network = network
        self._connection = connection
        self._source = source
        self._sink = sink
        self._closed = False

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._closed and not self._source.inbox and not self._source.ended:
            await self._source.unread.park()
        await self._network.may_read(self._connection.up is self._source)
        if self._closed:
            raise trio.ClosedResourceError
        data = bytes(self._source.inbox[:READ_SIZE])
        del self._source.inbox[:READ_SIZE]
        return data

    def send_nowait(self, data: memoryview) -> int:
        if self._closed:
            raise trio.ClosedResourceError
        if self._source.ended:
            raise trio.BrokenResourceError("the peer has closed the connection")
        return self._sink.write(data)

    async def send_some(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not (count := self.send_nowait(data)):
            await self._sink.wait_for_room()
        return count

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._sink.end()
            self._source.unread.unpark_all()
            self._connection.closed()
        await trio.lowlevel.checkpoint()

    @property
    def unconfirmed_bytes(self) -> int:
        return self._sink.unconfirmed

    @property
    def path(self) -> PathState:
        return PathState(self._sink.confirmed, self._sink.in_flight, self._sink.unconfirmed > 0)

    @property
    def route(self) -> Route:
        return ROUTE._replace(local=self._network.source)


class Connection:
    """The two lanes of a connection. `run` carries them."""

    def __init__(self, up: Line, down: Line) -> None:
        self.up, self.down = Lane(up), Lane(down)
        self.up.reverse, self.down.reverse = self.down, self.up
        self._open = 2
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Carry until both ends are closed."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.up.run)
                nursery.start_soon(self.down.run)

    def closed(self) -> None:
        """Note that an end was closed."""
        self._open -= 1
        if not self._open:
            self._scope.cancel()

    def die(self, *, up: bool = True, down: bool = True) -> None:
        """Have one direction or both carry nothing any more."""
        if up:
            self.up.die()
        if down:
            self.down.die()

    def revive(self) -> None:
        """Have both directions carry again."""
        self.up.revive()
        self.down.revive()


@dataclass
class Network:
    """The way from a client to a server. `run` carries its connections.

    Args:
        serve: serves one connection, and closes it.
        chance: decides what is late and what is lost.
    """

    serve: Callable[[End], Awaitable[None]]
    chance: random.Random
    source: str = ROUTE.local
    """Address of the client."""
    handshake: int = 2
    """Round trips until a connection can be used: TCP and TLS."""
    times: list[float] = field(default_factory=list)
    """Times at which connections were begun."""
    up_bytes: int = 0
    """Bytes that the client has written over connections that have ended."""

    def __post_init__(self) -> None:
        self.up, self.down = Line(self.chance), Line(self.chance)
        self.away = self.stopped = False
        self._stopped = trio.lowlevel.ParkingLot()
        self._connections: list[Connection] = []
        self._back = trio.Event()
        self._nursery: trio.Nursery | None = None

    @property
    def begun(self) -> int:
        """Number of connections that were begun so far."""
        return len(self.times)

    @property
    def round_trip(self) -> float:
        """Seconds of a round trip without jitter."""
        return self.up.delay + self.down.delay

    def set(self, *, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0, rate: float = 0.0) -> None:
        """Set what both directions are like; only that to the server has the rate."""
        for line in (self.up, self.down):
            line.delay, line.jitter, line.loss = delay, jitter, loss
        self.up.rate = rate

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def connect(self) -> End:
        """Return the client's end of a new connection."""
        assert self._nursery is not None
        self.times.append(trio.current_time())
        for _ in range(self.handshake):
            for line in (self.up, self.down):
                while self.away:
                    await self._wait_until_back()
                await trio.sleep_until(line.arrival(trio.current_time(), 0, self.round_trip))
        connection = Connection(self.up, self.down)
        self._connections.append(connection)
        self._nursery.start_soon(self._carry, connection)
        self._nursery.start_soon(self.serve, End(self, connection, connection.up, connection.down))
        return End(self, connection, connection.down, connection.up)

    async def may_read(self, server: bool) -> None:  # noqa: FBT001
        """Wait while the server, if it is that which reads, is stopped."""
        while server and self.stopped:
            await self._stopped.park()

    def stop_server(self) -> None:
        """Have the server's system take what comes, and the server read nothing."""
        self.stopped = True

    def continue_server(self) -> None:
        """Have the server read again."""
        self.stopped = False
        self._stopped.unpark_all()

    async def _carry(self, connection: Connection) -> None:
        await connection.run()
        self._connections.remove(connection)
        self.up_bytes += connection.up.written

    async def _wait_until_back(self) -> None:
        """Wait until the first segment that is sent when the network is back: after 1 s, 3 s, 7 s and so on."""
        began, pause = trio.current_time(), 1.0
        await self._back.wait()
        while began + pause < trio.current_time():
            pause = 2 * pause + 1.0
        await trio.sleep_until(began + pause)

    def kill(self, *, up: bool = True, down: bool = True) -> None:
        """Let all present connections die."""
        for connection in self._connections:
            connection.die(up=up, down=down)

    def cut(self) -> None:
        """Let both ends of all present connections notice that these have ended."""
        for connection in self._connections:
            for lane in (connection.up, connection.down):
                lane.ended = True
                lane.unread.unpark_all()
            connection.die()

    def leave(self) -> None:
        """Carry nothing until `come_back`, and let no connection be made."""
        self.away = True
        self._back = trio.Event()
        self.kill()
        for connection in self._connections:
            connection.up.keep()

    def go_on(self) -> None:
        """Let the present connections carry again."""
        for connection in self._connections:
            connection.revive()

    def come_back(self, *, revive: bool) -> None:
        """Carry again, also the connections from before with `revive`: the client has the same address."""
        self.away = False
        self._back.set()
        if revive:
            self.go_on()
