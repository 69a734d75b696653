"""The interface between messages and I/O: `MessageStream`, and the `ByteStream` below it.

A `MessageStream` moves whole messages in batches, because what costs time is a task's wake-up and not a message: what
one read brought is handed over as one list, and what one list holds is written at once. Sending is two steps.
`send_nowait` never waits: it writes what the peer takes at this moment and keeps the rest, in order. `drain` waits
until little enough is left. So the code that decides what to send needs no `await` and no lock, and backpressure is
one line at the end of a batch.

What cannot be written at once is written by `run`, which every owner of a stream runs beside its pump; it also keeps
the link alive where the transport has a way to. A stream owns no task of its own. An owner of many streams gives each
a `TaskSpawner` instead (`use_spawner`), to start a task when there is something to write, and calls `tick` when due.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from math import inf
from typing import Any, Final, Protocol, Self

import trio

from acp_gateway.transports.timers import TaskSpawner

READ_SIZE: Final = 65536
"""Bytes asked of the kernel at once; larger reads gain nothing, 16 KiB ones cost 1.4 times as much."""

WRITE_SIZE: Final = 262144
"""Bytes offered to the kernel at once when it did not take everything at first."""

TURN: Final = 65536
READ_COST: Final = TURN // 16
"""Bytes that may be read without a wait before other tasks get their turn, and how many a read counts for besides what
it brings: one busy peer must not starve the rest, and what is done about that many takes a third of a millisecond."""


SLOWEST_PEER: Final = 4096
"""Bytes a second at which a message may come for as long as it takes, whatever `message_timeout` is."""


class CloseReason(enum.Enum):
    """Reason for closing a stream, for transports that can tell the peer."""

    NORMAL = enum.auto()
    GOING_AWAY = enum.auto()
    POLICY = enum.auto()
    TOO_LARGE = enum.auto()
    AGENT_GONE = enum.auto()


class Stalled(trio.BrokenResourceError):
    """The peer took no byte for longer than it may."""


class MessageTooLarge(trio.BrokenResourceError):
    """The peer sent more than a message may hold; the stream can't go on behind it."""


class Flooded(trio.BrokenResourceError):
    """The peer keeps sending bytes or frames that hold no message."""


class Unfinished(trio.BrokenResourceError):
    """The peer has begun a message and does not finish it in time."""


class Charge(Protocol):
    """Charges a peer for what it has sent, and returns the seconds for which it is not to be read; raises `Flooded`."""

    def __call__(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """`size` in bytes, `seconds` of the event loop's time; `frames` had no message in them."""


def free(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:  # noqa: ARG001
    """Charge nothing."""
    return 0.0


class ByteStream(ABC):
    """Bytes both ways. Errors are Trio's: `BrokenResourceError` (lost), `ClosedResourceError` (closed on this side)."""

    __slots__ = ()

    committed: int = 0
    """Bytes of a write, at most, that may be on their way though it was refused or cancelled: a TLS record."""

    @abstractmethod
    async def receive_some(self) -> bytes:
        """Wait for bytes: at least one, at most `READ_SIZE`; empty at the peer's end. Cancelling loses nothing."""

    @abstractmethod
    def send_nowait(self, data: memoryview) -> int:
        """Write what can be written without waiting and return how many bytes that was, 0 or more."""

    @abstractmethod
    async def send_some(self, data: memoryview) -> int:
        """Wait until at least one byte is written and return how many were.

        Bytes once refused are offered again, the same first and no fewer: TLS demands it. Cancelling loses nothing.
        """

    @abstractmethod
    async def send_eof(self) -> None:
        """Tell the peer that nothing more comes, where the transport can. Reading goes on; over TLS it ends too."""

    async def finish(self) -> None:
        """Tell the peer that nothing more comes, and where closing now could take back what it has not received yet,
        wait until it has ended as well. What it still sends is discarded."""
        await self.send_eof()

    @abstractmethod
    async def aclose(self) -> None:
        """Close at once and give every waiting task `ClosedResourceError`. May be repeated."""


class TrioBytes(ByteStream):
    """Any Trio stream as a `ByteStream`: for what is no socket of ours, and for tests."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._closed = False
        self._cut_off = False

    async def receive_some(self) -> bytes:
        return bytes(await self._stream.receive_some(READ_SIZE))

    def send_nowait(self, data: memoryview) -> int:
        if self._closed:
            raise trio.ClosedResourceError
        if self._cut_off:
            raise trio.BrokenResourceError("a write was cancelled in the middle")
        return 0

    async def send_some(self, data: memoryview) -> int:
        self.send_nowait(data)
        await trio.lowlevel.checkpoint_if_cancelled()
        part = data[:READ_SIZE]
        try:
            await self._stream.send_all(part)
        except trio.Cancelled:
            # Trio doesn't tell how much of it has left.
            self._cut_off = True
            raise
        return len(part)

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        self._closed = True
        await trio.aclose_forcefully(self._stream)


class MessageStream(ABC):
    """Whole messages both ways, as bytes, in batches; the order is kept in each direction.

    Errors are Trio's: `EndOfChannel` when the peer has ended the stream, `BrokenResourceError` when it was lost or
    violated its framing, `ClosedResourceError` when it was closed on this side. Receiving and sending may go on in
    two tasks at once; two tasks must not receive at once.
    """

    __slots__ = (
        "_left",
        "accepts_unterminated_line",
        "charge",
        "last_received_at",
        "message_timeout",
        "uncharged_bytes",
        "uncharged_frames",
    )

    def __init__(self) -> None:
        self.last_received_at = 0.0
        """When bytes last came, in seconds of Trio's clock, where the transport can tell: parts of a message count."""
        self.accepts_unterminated_line = True
        """True if a last line without its end counts as a message. It must not where the peer would send it again."""
        self.charge: Charge | None = None
        """Charges the peer for what comes without a message. For all that comes with messages, their receiver does."""
        self.uncharged_bytes = 0
        self.uncharged_frames = 0
        """Bytes that have come and were not charged yet, and frames without a message (pings, fragments, blank
        lines), where the transport can tell."""
        self.message_timeout = inf
        """Seconds within which a message that has begun must be complete, but see `SLOWEST_PEER`."""
        # What `receive` did not hand out yet of its batch, the last message first.
        self._left: list[bytes] | None = None

    def receive_batch(self) -> Coroutine[Any, Any, list[bytes]]:
        """Wait for messages and return those that are there, at least one. Cancelling loses nothing."""
        # No coroutine of its own, which would be one more for each stream that is waited for.
        return self._receive_left() if self._left else self._receive_batch()

    async def _receive_left(self) -> list[bytes]:
        left, self._left = self._left or [], None
        return left[::-1]

    async def receive(self) -> bytes:
        """Wait for one message. Cancelling loses nothing."""
        left = self._left = self._left or (await self._receive_batch())[::-1]
        return left.pop()

    def __aiter__(self) -> Self:
        """Batches until the peer ends the stream."""
        return self

    async def __anext__(self) -> list[bytes]:
        try:
            return await self.receive_batch()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def send_batch(self, messages: Sequence[bytes]) -> None:
        """Send messages and wait until they are written. Cancelled, it leaves them to be written by `run`."""
        self.send_nowait(messages)
        await self.drain()

    async def send(self, message: bytes) -> None:
        """Send one message, as `send_batch`."""
        await self.send_batch([message])

    async def pay(self) -> None:
        """Charge the peer for what came without a message, and read no more for as long as that takes.

        After frames without a message other tasks get their turn. Raises `Flooded`. Cancelling loses nothing.
        """
        size, frames = self.take_uncharged()
        if self.charge is not None:
            pause = self.charge(size=size, frames=frames)
            if pause or frames:
                await trio.sleep(pause)

    def take_uncharged(self) -> tuple[int, int]:
        """Return the bytes and the frames without a message that are to be charged to the peer now."""
        uncharged = self.uncharged_bytes, self.uncharged_frames
        self.uncharged_bytes = self.uncharged_frames = 0
        return uncharged

    def limit(self, max_message_size: int, size_setting: str) -> None:  # noqa: B027  # Not all have one.
        """Set another limit for the messages that come from now on, where the transport has one.

        Errors name `size_setting`.
        """

    def abandon(self) -> None:  # noqa: B027  # Not all have messages that begin.
        """Drop the message that has begun, and receive no more: the stream is about to be closed."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of a message that has begun and is not complete, and of what was read behind the last one."""
        return 0

    def begun(self, size: int) -> bytes:
        """Return the first bytes of the message that has begun, so many at most. Not all transports tell."""
        return b""

    @property
    def ended_politely(self) -> bool:
        """True if the peer has said that it ends the stream because it wants nothing more. Not all transports tell."""
        return False

    @abstractmethod
    async def _receive_batch(self) -> list[bytes]:
        """As `receive_batch`, from the transport."""

    @abstractmethod
    def send_nowait(self, messages: Sequence[bytes]) -> None:
        """Send messages without waiting: what the peer doesn't take now is kept and counts in `pending_bytes`."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Bytes handed over and not yet taken by the peer."""

    @abstractmethod
    async def drain(self, below: int = 0) -> None:
        """Wait until `pending_bytes` is at most `below`. Cancelling loses nothing."""

    @abstractmethod
    async def run(self) -> None:
        """Write what could not be written at once and keep the link alive, until cancelled, lost or closed.

        Never raises because of the peer: a loss shows in the task that receives, once what came before it is read.
        """

    @abstractmethod
    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        """Do the work of `run` in spawned tasks whenever there is some, until this is called with None.

        `tick` is to be called meanwhile.
        """

    def tick(self, now: float) -> float:
        """Keep the link alive, where the transport has a way to; returns when this is to be called again.

        Called first when a spawner was given, with the current time.
        """
        return inf

    @abstractmethod
    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        """Write what is pending, say goodbye with `reason` where the transport can, and close.

        Tasks that wait get `ClosedResourceError`. Bounded in time; cancelled or repeated, it closes at once.
        """

    async def abort(self) -> None:
        """Close at once, without a close frame and without waiting for anything."""
        with trio.CancelScope() as now:
            now.cancel()
            await self.aclose()


def memory_message_stream_pair() -> tuple[MessageStream, MessageStream]:
    """Return two connected streams in memory. `pending_bytes` of one is what the other has not received."""
    here, there = _MemoryStream(), _MemoryStream()
    here.peer, there.peer = there, here
    return here, there


class _MemoryStream(MessageStream):
    peer: "_MemoryStream"

    def __init__(self) -> None:
        super().__init__()
        self.inbox: list[bytes] = []
        self.size = 0
        self.changed = trio.lowlevel.ParkingLot()
        self.closed = False
        self.close_reason: CloseReason | None = None

    async def _receive_batch(self) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        while not self.inbox and not self.closed:
            if self.peer.closed:
                raise trio.EndOfChannel
            await self.changed.park()
        if self.closed:
            raise trio.ClosedResourceError
        self.uncharged_bytes += self.size
        batch, self.inbox, self.size = self.inbox, [], 0
        self.peer.changed.unpark_all()
        return batch

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        if self.peer.closed:
            raise trio.BrokenResourceError("the peer has closed")
        self.peer.inbox.extend(messages)
        self.peer.size += sum(map(len, messages))
        self.peer.changed.unpark_all()

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
            await self.changed.park()

    async def run(self) -> None:
        while not (self.closed or self.peer.closed):
            await self.changed.park()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        pass  # What is pending only waits for the peer to receive it.

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        if not self.closed:
            self.closed = True
            self.close_reason = reason
            self.changed.unpark_all()
            self.peer.changed.unpark_all()
        await trio.lowlevel.checkpoint()


def is_utf8(message: bytes) -> bool:
    """Return whether a message may travel as text."""
    if message.isascii():
        return True
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
