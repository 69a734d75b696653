"""The interface between messages and I/O: `MessageStream`, and the `ByteStream` below it.

A `MessageStream` moves whole messages in batches, because what costs time is a task's wake-up and not a message: what
one read brought is handed over as one list, and what one list holds is written at once. Sending is two steps.
`send_nowait` never waits: it writes what the peer takes at this moment and keeps the rest, in order. `drain` waits
until little enough is left. So the code that decides what to send needs no `await` and no lock, and backpressure is
one line at the end of a batch.

What the owner of a connection does besides moving messages is in `maintained`.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Self

import trio

READ_SIZE: Final = 65536
"""Bytes asked of the kernel at once; larger reads gain nothing, 16 KiB ones cost 1.4 times as much."""

WRITE_SIZE: Final = 262144
"""Bytes offered to the kernel at once when it did not take everything at first."""

TURN: Final = 65536
READ_COST: Final = TURN // 16
"""Bytes that may be read without a wait before other tasks get their turn, and how many a read counts for besides what
it brings: one busy peer must not starve the rest, and what is done about that many takes a third of a millisecond."""


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

    It has five verbs: `receive_batch`, `send_nowait`, `pending_bytes`, `drain`, `aclose`; the other methods follow from
    them.

    Errors are Trio's: `EndOfChannel` when the peer has ended the stream, `BrokenResourceError` when it was lost or
    violated its framing, `ClosedResourceError` when it was closed on this side. Receiving and sending may go on in
    two tasks at once; two tasks must not receive at once.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        # What `receive` did not hand out yet of its batch, the last message first.
        self._left: list[bytes] | None = None

    def receive_batch(self) -> Coroutine[Any, Any, list[bytes]]:
        """Wait for messages and return those that are there, at least one. Cancelling loses nothing."""
        # No coroutine of its own, which would be one more for each stream that is waited for.
        return self._receive_left() if self._left else self._receive_batch()

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
    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        """Write what is pending, tell the peer the reason where the transport can, and close.

        Tasks that wait get `ClosedResourceError`. Bounded in time; cancelled or repeated, it closes at once.
        """

    # What follows from these

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
        """Send messages and wait until they are written. Cancelled, it leaves them pending."""
        self.send_nowait(messages)
        await self.drain()

    async def send(self, message: bytes) -> None:
        """Send one message, as `send_batch`."""
        await self.send_batch([message])

    async def abort(self) -> None:
        """Close at once, without a close frame and without waiting for anything."""
        with trio.CancelScope() as now:
            now.cancel()
            await self.aclose()


def is_utf8(message: bytes) -> bool:
    """Return whether a message may travel as text."""
    if message.isascii():
        return True
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
