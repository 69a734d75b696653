"""The seam between messages and I/O: what a stream of messages is, and the stream of bytes below it.

A `MessageStream` moves whole messages in batches, because what costs time is a task's wake-up and not a message: what
one read brought is handed over as one list, and what one list holds is written at once. Sending is two steps.
`send_nowait` never waits: it writes what the peer takes at this moment and keeps the rest, in order. `drain` waits
until little enough is left. So whoever decides what to send needs no `await` and no lock, and backpressure is one
line at the end of a batch.

What cannot be written at once is written by `run`, which every owner of a stream runs beside its pump; it also keeps
the link alive where the transport has a way to. A stream owns no task of its own.
"""

import enum
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import trio

READ_SIZE: Final = 65536
"""Bytes asked of the kernel at once; larger reads gain nothing, 16 KiB ones cost 1.4 times as much."""

WRITE_SIZE: Final = 262144
"""Bytes offered to the kernel at once when it did not take everything at first."""


class CloseReason(enum.Enum):
    """Why a stream is closed, for transports that can tell the peer."""

    NORMAL = enum.auto()
    GOING_AWAY = enum.auto()
    POLICY = enum.auto()
    TOO_LARGE = enum.auto()
    AGENT_GONE = enum.auto()


class Stalled(trio.BrokenResourceError):
    """The peer took no byte for longer than it may."""


class MessageTooLarge(trio.BrokenResourceError):
    """The peer sent more than a message may hold; the stream can't go on behind it."""


class ByteStream(ABC):
    """Bytes both ways. Errors are Trio's: `BrokenResourceError` (lost), `ClosedResourceError` (closed on this side)."""

    @abstractmethod
    async def receive_some(self) -> bytes:
        """Wait for bytes: at least one, at most `READ_SIZE`; empty at the peer's end. Cancelling loses nothing."""

    @abstractmethod
    def send_nowait(self, data: memoryview) -> int:
        """Write what can be written without waiting and return how many bytes that was, 0 or more."""

    @abstractmethod
    async def send_some(self, data: memoryview) -> int:
        """Wait until at least one byte is written and return how many were.

        Bytes once refused are offered again, the same first: TLS demands it.
        """

    @abstractmethod
    async def send_eof(self) -> None:
        """Tell the peer that nothing more comes, where the transport can; reading goes on."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close at once and give every waiting task `ClosedResourceError`. May be repeated."""


class TrioBytes(ByteStream):
    """Any Trio stream as a `ByteStream`: for what is no socket of ours, and for tests."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._closed = False

    async def receive_some(self) -> bytes:
        return bytes(await self._stream.receive_some(READ_SIZE))

    def send_nowait(self, data: memoryview) -> int:
        if self._closed:
            raise trio.ClosedResourceError
        return 0

    async def send_some(self, data: memoryview) -> int:
        part = data[:READ_SIZE]
        await self._stream.send_all(part)
        return len(part)

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        self._closed = True
        await trio.aclose_forcefully(self._stream)


class ByteWriter:
    """The bytes on their way to one peer: written at once where the kernel takes them, else kept, in order."""

    def __init__(self, stream: ByteStream, *, stall_timeout: float = float("inf")) -> None:
        self._stream = stream
        # Seconds without progress after which the peer counts as stalled.
        self._stall_timeout = stall_timeout
        # What is being written: a chunk as it was handed over, and how much of it is gone.
        self._head: bytes = b""
        self._sent = 0
        # What comes after it.
        self._chunks: deque[bytes] = deque()
        # Bytes not written yet, of the head and the rest together.
        self.pending = 0
        # One task writes at a time; the others wait here for progress.
        self._writing = False
        self._progress = trio.lowlevel.ParkingLot()
        # `run` waits here for something to write.
        self._unwritten = trio.lowlevel.ParkingLot()
        # Why nothing can be written any more.
        self._error: str | None = None

    def write(self, data: bytes) -> None:
        """Write, or keep what can't be written now. Raises `BrokenResourceError` or `ClosedResourceError`."""
        if self._error is not None:
            raise trio.BrokenResourceError(self._error)
        if not data:
            return
        if self.pending:
            self._chunks.append(data)
            self.pending += len(data)
            return
        try:
            sent = self._stream.send_nowait(memoryview(data))
        except trio.BrokenResourceError as error:
            self._error = str(error)
            raise
        if sent == len(data):
            return
        self._head, self._sent = data, sent
        self.pending = len(data) - sent
        self._unwritten.unpark_all()

    async def drain(self, below: int = 0) -> None:
        """Wait until at most `below` bytes are left, writing them if nobody else is.

        Raises `Stalled` where the peer takes nothing for too long, else as `write`. Cancelling loses nothing.
        """
        while self.pending > below:
            if self._error is not None:
                raise trio.BrokenResourceError(self._error)
            if self._writing:
                await self._progress.park()
                continue
            self._writing = True
            try:
                await self._write_some()
            except trio.BrokenResourceError as error:
                self._error = str(error)
                raise
            finally:
                self._writing = False
                self._progress.unpark_all()

    async def run(self) -> None:
        """Write whatever `write` had to keep, until cancelled or broken."""
        while True:
            if not self.pending:
                await self._unwritten.park()
            await self.drain()

    def abandon(self, boundary: Callable[[bytes, int], int]) -> None:
        """Forget what has not begun to leave; `boundary(chunk, sent)` says where what has begun ends in its chunk.

        After a stall: the little that is left can be followed by a goodbye, should the peer wake up.
        """
        self._error = None
        if self.pending:
            self._head = self._head[: boundary(self._head, self._sent)]
            self._chunks.clear()
            self.pending = len(self._head) - self._sent

    async def _write_some(self) -> None:
        if self._sent == len(self._head):
            self._head, self._sent = self._next_chunk(), 0
        with trio.move_on_after(self._stall_timeout) as patience:
            sent = await self._stream.send_some(memoryview(self._head)[self._sent :])
            self._sent += sent
            self.pending -= sent
        if patience.cancelled_caught:
            raise Stalled(f"the peer took nothing for {self._stall_timeout:g} s")

    def _next_chunk(self) -> bytes:
        chunks = [self._chunks.popleft()]
        size = len(chunks[0])
        while self._chunks and size + len(self._chunks[0]) <= WRITE_SIZE:
            chunks.append(self._chunks.popleft())
            size += len(chunks[-1])
        return b"".join(chunks)


class MessageStream(ABC):
    """Whole messages both ways, as bytes, in batches; the order is kept in each direction.

    Errors are Trio's: `EndOfChannel` when the peer has ended the stream, `BrokenResourceError` when it was lost or
    violated its framing, `ClosedResourceError` when it was closed on this side. Receiving and sending may go on in
    two tasks at once; two tasks must not receive at once.
    """

    def __init__(self) -> None:
        # What `receive` did not hand out yet of its batch.
        self._left: deque[bytes] = deque()

    async def receive_batch(self) -> list[bytes]:
        """Wait for messages and return those that are there, at least one. Cancelling loses nothing."""
        if self._left:
            batch = list(self._left)
            self._left.clear()
            return batch
        return await self._receive_batch()

    async def receive(self) -> bytes:
        """Wait for one message. Cancelling loses nothing."""
        if not self._left:
            self._left.extend(await self._receive_batch())
        return self._left.popleft()

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        """Batches until the peer ends the stream."""
        while True:
            try:
                batch = await self.receive_batch()
            except trio.EndOfChannel:
                return
            yield batch

    async def send_batch(self, messages: Sequence[bytes]) -> None:
        """Send messages and wait until they are written. Cancelled, it leaves them to be written by `run`."""
        self.send_nowait(messages)
        await self.drain()

    async def send(self, message: bytes) -> None:
        """Send one message, as `send_batch`."""
        await self.send_batch([message])

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
        """Write what could not be written at once and keep the link alive, until cancelled or the stream is broken.

        Never raises because of the peer: a loss shows where somebody receives.
        """

    @abstractmethod
    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        """Write what is pending, say goodbye with `reason` where the transport can, and close.

        Bounded in time; cancelled, it closes at once. May be repeated.
        """


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
        while not self.inbox:
            if self.closed:
                raise trio.ClosedResourceError
            if self.peer.closed:
                raise trio.EndOfChannel
            await self.changed.park()
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
        await trio.sleep_forever()

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        if not self.closed:
            self.closed = True
            self.close_reason = reason
            self.changed.unpark_all()
            self.peer.changed.unpark_all()
        await trio.lowlevel.checkpoint()


def is_utf8(message: bytes) -> bool:
    """Whether a message may travel as text."""
    if message.isascii():
        return True
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
