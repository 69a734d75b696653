"""A TCP proxy that does to connections what networks do, and the same again for the same seed.

Each connection gets a fate before it is made: which fault it ends with, after how many bytes in which direction, and
which of the pieces that pass before are late. All of that is drawn from the seed and the fate's number. What a run adds
is only which direction is the first to reach its number of bytes. If a connection ends without its fault, because of a
peer's timeout on a busy machine, the next one gets that fate.
"""

import enum
import heapq
import itertools
import math
import random
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

PIECE = 4096
"""Bytes that are passed on at once, at most."""


class Fault(enum.Enum):
    """Ways in which a connection ends."""

    RESET = "both sides are reset"
    CLOSE = "both sides are closed in due form"
    STALL = "nothing passes any more, both sides stay open; at last the client's is reset"
    CLIENT_LOST = "the client's side is reset, the gateway's stays open and silent"
    GATEWAY_LOST = "the gateway's side is reset, the client's stays open and silent, and is reset at last"
    DEAF = "what the client sends is swallowed; at last both sides are reset"
    MUTE = "what the gateway sends is swallowed; at last both sides are reset"


QUICK = (Fault.RESET, Fault.CLOSE, Fault.CLIENT_LOST)
"""Faults that the client notices at once."""

SLOW = (Fault.STALL, Fault.GATEWAY_LOST, Fault.DEAF, Fault.MUTE)
"""Faults that it notices when the proxy's timeout ends, or its own."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The fault of one connection."""

    fault: Fault
    after: dict[str, int]
    """Bytes that pass in each direction, `up` and `down`; the first to reach its number brings the fault."""
    seed: str
    """Of what is late."""


class FaultyProxy:
    """A proxy in front of a port of loopback; `run` runs it.

    Args:
        port: where the gateway is.
        seed: what all is drawn from.
        cuts: so many connections end with a fault, those after them without.
        size: bytes after which the fault comes, in each direction: between these two.
        faults: what happens, each as often as it is in here.
        timeout: seconds until a connection is cut on which nothing comes through any more.
    """

    def __init__(
        self,
        port: int,
        *,
        seed: int,
        cuts: int,
        size: tuple[int, int],
        faults: Sequence[Fault] = (*QUICK * 6, *SLOW),
        timeout: float = 0.2,
    ) -> None:
        self.seed = seed
        self.port = 0
        """Its address, while it runs."""
        self.happened: list[Fault] = []
        """The faults so far."""
        self.cuts_before = b""
        """Connections are reset before the line of a gateway that has this; empty for none."""
        self._gateway = port
        self._cuts = cuts
        self._size = size
        self._faults = faults
        self._timeout = timeout
        # Numbers of fates: of further ones, and of those whose connections have ended without their faults.
        self._numbers = itertools.count()
        self._unused: list[int] = []
        self._open = 0
        self._relays: set[trio.CancelScope] = set()
        self._change = trio.lowlevel.ParkingLot()

    def fate(self, number: int) -> Fate | None:
        """Return the fault of this number, counted from 0; None for no fault."""
        if number >= self._cuts:
            return None
        chance = _chance(f"{self.seed}/{number}")
        fault = chance.choice(self._faults)
        return Fate(fault, {way: chance.randint(*self._size) for way in ("up", "down")}, f"{self.seed}/{number}/late")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, [listener])

    def cut(self) -> None:
        """Reset all that is connected."""
        for scope in self._relays:
            scope.cancel()

    async def all_closed(self, but: int = 0) -> None:
        """Wait until no more than so many connections are open on either side."""
        while self._open > but:
            await self._change.park()

    async def reached(self, cuts: int) -> None:
        """Wait until so many faults have happened."""
        while len(self.happened) < cuts:
            await self._change.park()

    async def _serve(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._relays.add(scope)
            try:
                await self._relay_for(client)
            finally:
                self._relays.discard(scope)

    async def _relay_for(self, client: trio.SocketStream) -> None:
        self._open += 1
        number = heapq.heappop(self._unused) if self._unused else next(self._numbers)
        struck = False
        try:
            async with client, await trio.open_tcp_stream("127.0.0.1", self._gateway) as gateway:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                gateway.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                connection = _Connection(client, gateway, self.fate(number), self._timeout, self._end_of)
                try:
                    await connection.run(self._happen)
                finally:
                    struck = connection.struck
        except OSError:
            pass  # The gateway isn't there.
        finally:
            if not struck:
                heapq.heappush(self._unused, number)
            self._open -= 1
            self._change.unpark_all()

    def _end_of(self, piece: bytes) -> int | None:
        """Return the bytes of a gateway's piece after which the connection is cut; None to go on."""
        at = piece.find(self.cuts_before) if self.cuts_before else -1
        return None if at < 0 else piece.rfind(b"\n", 0, at) + 1

    def _happen(self, fault: Fault) -> None:
        self.happened.append(fault)
        self._change.unpark_all()


def _chance(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 # It is meant to be the same again.


class _Connection:
    def __init__(
        self,
        client: trio.SocketStream,
        gateway: trio.SocketStream,
        fate: Fate | None,
        timeout: float,
        end_of: Callable[[bytes], int | None],
    ) -> None:
        self._client = client
        self._gateway = gateway
        self._fate = fate
        self._timeout = timeout
        self._end_of = end_of
        self.struck = False
        """True once the fault has begun."""
        # The direction in which nothing comes through any more, where the other one goes on.
        self._swallowed = ""

    async def run(self, happen: Callable[[Fault], None]) -> None:
        """Relay until the fault, or until one side is lost or both are done; then do what the fault says."""
        async with trio.open_nursery() as relays:
            relays.start_soon(self._relay, "up", self._client, self._gateway, relays.cancel_scope)
            relays.start_soon(self._relay, "down", self._gateway, self._client, relays.cancel_scope)
        if self._fate is not None and self.struck:
            happen(self._fate.fault)
            await self._strike(self._fate.fault)
        reset(self._client)
        reset(self._gateway)

    async def _relay(
        self, way: str, source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        late = _chance(f"{self._fate.seed}/{way}") if self._fate else None
        left = self._fate.after[way] if self._fate else PIECE
        try:
            while piece := await source.receive_some(min(PIECE, left or PIECE)):
                if way == self._swallowed:
                    continue
                if late is not None and late.random() < 0.02:
                    await trio.sleep(late.uniform(0.001, 0.004))
                end = self._end_of(piece) if way == "down" else None
                await sink.send_all(piece[:end])
                if end is not None:
                    both.cancel()
                    return
                if self._fate is None or self.struck:
                    continue
                left -= len(piece)
                if left == 0:
                    self.struck = True
                    self._swallowed = {Fault.DEAF: "up", Fault.MUTE: "down"}.get(self._fate.fault, "")
                    both.deadline = trio.current_time() + self._timeout if self._swallowed else -math.inf
                    if not self._swallowed:
                        return
            await sink.send_eof()
        except trio.BrokenResourceError:
            both.cancel()  # What the other side has not got is lost with this one.

    async def _strike(self, fault: Fault) -> None:
        match fault:
            case Fault.CLOSE:
                with trio.move_on_after(self._timeout):
                    async with trio.open_nursery() as nursery:
                        for side in (self._client, self._gateway):
                            nursery.start_soon(finish, side)
            case Fault.CLIENT_LOST:
                reset(self._client)
                await swallow(self._gateway)
            case Fault.GATEWAY_LOST:
                reset(self._gateway)
                with trio.move_on_after(self._timeout):
                    await swallow(self._client)
            case Fault.STALL:
                with trio.move_on_after(self._timeout):
                    await swallow(self._client)
                reset(self._client)
                await swallow(self._gateway)


async def swallow(stream: trio.SocketStream) -> None:
    """Read and forget, until the other end is closed or lost."""
    try:
        async for _ in stream:
            pass
    except trio.BrokenResourceError:
        pass


async def finish(stream: trio.SocketStream) -> None:
    """Close in due form, as far as the other end takes part in that."""
    try:
        await stream.send_eof()
    except trio.BrokenResourceError:
        return
    await swallow(stream)


def reset(stream: trio.SocketStream) -> None:
    """Close a socket such that the other end is told that everything is lost."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()
