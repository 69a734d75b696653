"""Pairs of connected streams in memory: for clients and callers inside the process, and for tests."""

from collections.abc import Callable, Sequence

import trio

from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import TaskSpawner


def memory_message_stream_pair() -> tuple[MaintainedStream, MaintainedStream]:
    """Return two connected streams in memory. `pending_bytes` of one is what the other has not received."""
    here, there = _MemoryStream(), _MemoryStream()
    here.peer, there.peer = there, here
    return here, there


class _MemoryStream(MaintainedStream):
    transport = "memory"

    peer: "_MemoryStream"

    def __init__(self) -> None:
        super().__init__()
        self.inbox: list[bytes] = []
        self.size = 0
        # The tasks that wait for messages, for the peer to receive some, and for the end of one of the two.
        self.arrived = trio.lowlevel.ParkingLot()
        self.received = trio.lowlevel.ParkingLot()
        self.ending = trio.lowlevel.ParkingLot()
        self.closed = False
        self.close_reason: CloseReason | None = None

    async def _receive_batch(self) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        while not self.inbox and not self.closed:
            if self.peer.closed:
                raise trio.EndOfChannel
            await self.arrived.park()
        if self.closed:
            raise trio.ClosedResourceError
        self.meter.size += self.size
        batch, self.inbox, self.size = self.inbox, [], 0
        self.peer.received.unpark_all()
        return batch

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        if self.peer.closed:
            raise trio.BrokenResourceError("the peer has closed")
        self.peer.inbox.extend(messages)
        self.peer.size += sum(map(len, messages))
        self.peer.arrived.unpark_all()

    @property
    def pending_bytes(self) -> int:
        return self.peer.size

    async def drain(self, below: int = 0) -> None:
        await trio.lowlevel.checkpoint()
        while self.pending_bytes > below:
            if self.closed:
                raise trio.ClosedResourceError
            if self.peer.closed:
                raise trio.BrokenResourceError("the peer has closed")
            await self.received.park()

    async def run(self) -> None:
        while not (self.closed or self.peer.closed):
            await self.ending.park()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        pass  # Pending messages wait for the peer alone.

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        if not self.closed:
            self.closed = True
            self.close_reason = reason
            for waiting in (self.arrived, self.received, self.ending):
                waiting.unpark_all()
            for waiting in (self.peer.arrived, self.peer.received, self.peer.ending):
                waiting.unpark_all()
        await trio.lowlevel.checkpoint()


class DirectStream(_MemoryStream):
    """A stream whose messages are taken at once; what it receives comes from its `peer`.

    Args:
        take: takes each message. It must not raise, nor use the stream.
        ended: called when the stream is closed.
    """

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        super().__init__()
        self.peer = _MemoryStream()
        self.peer.peer = self
        self._take, self._ended = take, ended
        self._is_handling = False
        self._handled = trio.lowlevel.ParkingLot()

    async def _receive_batch(self) -> list[bytes]:
        batch = await super()._receive_batch()
        self._is_handling = True
        return batch

    def note_handled(self) -> None:
        self._is_handling = False
        self._handled.unpark_all()

    async def wait_handled(self) -> None:
        """Wait until all messages of the other end are handled, or the stream is closed."""
        while (self.inbox or self._is_handling) and not (self.closed or self.peer.closed):
            await self._handled.park()

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        for text in messages:
            if self.closed or self.peer.closed:
                raise trio.BrokenResourceError("the peer has closed")
            self._take(text)

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        await super().aclose(reason, text)
        self.note_handled()
        self._ended()
