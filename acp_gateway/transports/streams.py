"""The interface between messages and I/O: `MessageStream`, and the `ByteStream` below it.

A `MessageStream` moves whole messages in batches, because waking up a task costs more than a message: all messages of
one read are returned as one list, and all messages of one list are written at once. Sending has two steps.
`send_nowait` never waits: it writes what the peer takes at once and keeps the rest, in order. `drain` waits until
little enough is left. So the code that decides what to send needs no `await` and no lock, and backpressure is one line
at the end of a batch.

The upkeep of a connection and its limits are in `maintained`.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import trio

from acp_gateway.transports.path_state import PathState, Route

READ_SIZE: Final = 65536
"""Bytes asked of the kernel at once; larger reads gain nothing, 16 KiB ones cost 1.4 times as much."""

PLAIN_READ_SIZE: Final = READ_SIZE - 16
"""Bytes asked of a plain socket at once: with the header of a frame, they fill whole records of TLS."""

WRITE_SIZE: Final = 1024 * 1024
"""Bytes offered to the kernel at once: to copy them takes it a fifth of a millisecond."""

TURN: Final = 262144
READ_COST: Final = TURN // 16
"""Bytes that may be read without a wait before other tasks get their turn, and bytes that each read counts for besides
its data: one busy peer must not starve the rest. Where they are messages, the receiver gives turns by the time that
these take; of one that has only begun, to read that many takes a tenth of a millisecond."""

MAX_FRUITLESS: Final = 2
"""Reads in a row that had to wait, for little, after which a stream waits before it reads: a peer that writes little
now and then has nothing more behind what was just read. One that streams has."""

PROBE_EVERY: Final = 16
"""Reads in a row; the first `MAX_FRUITLESS` are tried before they wait, whatever the earlier ones have found."""

LITTLE: Final = 4096
"""Bytes below which a read has found little."""


class CloseReason(enum.Enum):
    """Reason for closing a stream, for transports that can tell the peer."""

    NORMAL = enum.auto()
    GOING_AWAY = enum.auto()
    POLICY = enum.auto()
    TOO_LARGE = enum.auto()
    AGENT_GONE = enum.auto()


class Stalled(trio.BrokenResourceError):
    """The peer took no byte within the stall timeout."""


class MessageTooLarge(trio.BrokenResourceError):
    """The peer sent a message above the limit; the stream can't continue after it."""


class MessageSkipped(MessageTooLarge):
    """The peer sent a message above the limit, which is left out; the stream goes on.

    Args:
        text: names the size and the limit.
        size: bytes of the message.
        begun: its first bytes.
        ended: its last bytes.
    """

    def __init__(self, text: str, size: int, begun: bytes, ended: bytes) -> None:
        super().__init__(text)
        self.size = size
        self.begun = begun
        self.ended = ended


class Flooded(trio.BrokenResourceError):
    """The peer keeps sending bytes or frames without messages."""


class Unfinished(trio.BrokenResourceError):
    """The peer has not finished a message in time."""


class ByteStream(ABC):
    """Bytes both ways. Errors are Trio's: `BrokenResourceError` (lost), `ClosedResourceError` (closed on this side)."""

    __slots__ = ()

    committed: int = 0
    """Maximum bytes of a refused or cancelled write that may be sent all the same: a TLS record."""

    @abstractmethod
    async def receive_some(self) -> bytes:
        """Wait for bytes: at least one, at most `READ_SIZE`; empty at the peer's end. Cancelling loses nothing."""

    @abstractmethod
    def send_nowait(self, data: memoryview) -> int:
        """Write what can be written without waiting, and return the number of its bytes, 0 or more."""

    @abstractmethod
    async def send_some(self, data: memoryview) -> int:
        """Wait until at least one byte is written, and return the number of written bytes.

        The caller offers refused bytes again, the same first and no fewer, as TLS demands. Cancelling loses nothing.
        """

    @abstractmethod
    async def send_eof(self) -> None:
        """Close the writing side, where the transport can. Reading goes on; over TLS it ends too."""

    def count_unconfirmed(self) -> None:  # noqa: B027  # Not all can tell.
        """Have `unconfirmed_bytes` tell of what is written from now on."""

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes that were written and that the peer's system has not confirmed, where that can be told; else 0."""
        return 0

    @property
    def path(self) -> PathState | None:
        """State of the connection in the system, where it tells."""
        return None

    @property
    def route(self) -> Route | None:
        """Addresses of the connection, where it has some."""
        return None

    def reset_when_closed(self, reset: bool) -> None:  # noqa: B027, FBT001  # Only sockets can.
        """Have the system drop, when this is closed, what the peer has not received, instead of sending it again."""

    async def finish(self) -> None:
        """Close the writing side. If closing now could destroy data in flight, also wait until the peer has closed its
        side, and discard what it still sends."""
        await self.send_eof()

    @abstractmethod
    async def aclose(self) -> None:
        """Close at once, and raise `ClosedResourceError` in every waiting task. May be repeated."""


class TrioBytes(ByteStream):
    """Any Trio stream as a `ByteStream`, for pipes of subprocesses and for tests."""

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
            # Trio doesn't tell how much of it was sent.
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
        """Wait for messages and return all that are there, at least one. Cancelling loses nothing."""
        # Not a coroutine itself, which would be one more for each waiting stream.
        return self._receive_left() if self._left else self._receive_batch()

    @abstractmethod
    async def _receive_batch(self) -> list[bytes]:
        """As `receive_batch`, from the transport."""

    @abstractmethod
    def send_nowait(self, messages: Sequence[bytes]) -> None:
        """Send messages without waiting: the rest that the peer does not take now is kept as `pending_bytes`."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Bytes that were sent and that the peer has not taken yet."""

    @abstractmethod
    async def drain(self, below: int = 0) -> None:
        """Wait until `pending_bytes` is at most `below`. Cancelling loses nothing."""

    @abstractmethod
    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        """Write pending messages, send the reason where the transport can, and close.

        Waiting tasks get `ClosedResourceError`. Bounded in time; when cancelled or repeated, it closes at once.
        """

    # Derived from these

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
        """Send messages and wait until they are written. Cancelling leaves them pending."""
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


@asynccontextmanager
async def closed_on_error(stream: ByteStream) -> AsyncIterator[None]:
    """Close a stream if the block raises or is cancelled."""
    try:
        yield
    except BaseException:
        await stream.aclose()
        raise


async def send_all(stream: ByteStream, data: bytes) -> None:
    """Write bytes that belong to no message stream. Raises what the stream raises; cancelled, a part may be written."""
    view = memoryview(data)
    while view:
        view = view[await stream.send_some(view) :]
