"""Messages framed in a stream of bytes: the sending and closing that lines and WebSockets share.

`ByteWriter` writes. What the kernel takes at once is written at once, in the task that sends; the rest is kept and
written by one task at a time: a spawned task while the stream has a spawner, else the task that drains. So the spawned
task alone notices a stalled peer, and can send a close frame before other tasks get the error.

A stream ends once, with one error: the writer keeps it and raises it in each task that waits or comes later.
"""

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Final, TypeAlias

import trio

from acp_gateway.transports.maintained import SLOWEST_PEER, MaintainedStream
from acp_gateway.transports.path_state import PathState, Route
from acp_gateway.transports.streams import WRITE_SIZE, ByteStream, CloseReason, Stalled, Unfinished
from acp_gateway.transports.timers import Signal, TaskSpawner

CLOSE_TIMEOUT: Final = 5.0
"""Seconds in which a closing stream waits for the peer to read pending bytes and to close its own side."""

LAST_READ_TIMEOUT: Final = 1.0
"""Seconds without a byte after which a stream that can't be written to is not read any more either."""

WRITES_PER_CHECKPOINT: Final = 16
"""Maximum writes in a row before other tasks get their turn."""

SMALL_PIECE: Final = 1024
"""Bytes below which a piece of a message is joined with its neighbours at once."""

MAX_REMEMBERED: Final = 1024 * 1024
"""Bytes of an encoded batch at most that is remembered for others that get the same: nothing large is kept for ever."""

Failure: TypeAlias = trio.BrokenResourceError | trio.ClosedResourceError
"""Error that ended a stream: lost, or closed on this side."""


class ChunkBuffer:
    """The beginning of a message that comes in pieces, which are joined once.

    Small pieces grow together: those of a peer that sends byte by byte would take forty times their size.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self.size = 0
        """Bytes of all pieces together."""

    def add(self, piece: bytes) -> None:
        """Append a piece."""
        self.size += len(piece)
        if len(piece) >= SMALL_PIECE:
            self._pieces.append(piece)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def begun(self, size: int) -> bytes:
        """Return the first bytes, at most `size`."""
        return b"".join(self._pieces)[:size]

    def ended(self, size: int) -> bytes:
        """Return the last bytes, at most `size`."""
        return b"".join(self._pieces)[-size:]

    def take(self) -> bytes:
        """Return everything so far, and start an empty buffer."""
        whole = b"".join(self._pieces)
        self._pieces, self.size = [], 0
        return whole


class CachedEncoder:
    """Encodes batches of messages, and the same batch for many peers in a row only once."""

    def __init__(self, encode: Callable[[Sequence[bytes]], bytes]) -> None:
        self._encode = encode
        self._messages: Sequence[bytes] = ()
        self._encoded = b""

    def __call__(self, messages: Sequence[bytes]) -> bytes:
        """Return the messages, encoded."""
        # Comparing is fast: mostly it is the same object, or it holds the same objects, or the first one differs.
        if messages is self._messages or messages == self._messages:
            return self._encoded
        if len(messages) == 1 and not isinstance(messages, tuple):
            # It is for one peer alone.
            return self._encode(messages)
        encoded = self._encode(messages)
        if len(encoded) <= MAX_REMEMBERED:
            # The caller may change its own list.
            self._messages = messages if isinstance(messages, tuple) else list(messages)
            self._encoded = encoded
        return encoded


class ByteWriter:
    """Writes bytes to one peer: at once where the kernel takes them; the rest is kept, in order."""

    __slots__ = (
        "_chunks",
        "_head",
        "_progress",
        "_sent",
        "_stall_timeout",
        "_stream",
        "_writes",
        "_writing",
        "failure",
        "in_background",
        "pending",
    )

    def __init__(self, stream: ByteStream, *, stall_timeout: float = inf) -> None:
        self._stream = stream
        # Seconds without progress after which the peer counts as stalled.
        self._stall_timeout = stall_timeout
        # The chunk that is being written, and the number of its bytes that are written.
        self._head: bytes = b""
        self._sent = 0
        # The chunks after it.
        self._chunks: list[bytes] = []
        # Bytes not written yet.
        self.pending = 0
        # True if a spawned task calls `write_kept` whenever there is something to write, so that `drain` only waits.
        self.in_background = False
        # True while a task writes; other tasks wait for its progress.
        self._writing = False
        self._progress = Signal()
        self._writes = 0
        # Error for all further writes.
        self.failure: Failure | None = None

    def write(self, data: bytes) -> None:
        """Write, and keep what the kernel does not take. Raises `BrokenResourceError` or `ClosedResourceError`."""
        if self.failure is not None:
            self.raise_failure()
        if self.pending:
            self._chunks.append(data)
            self.pending += len(data)
            return
        try:
            sent = self._stream.send_nowait(memoryview(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self.fail(error) from error
        if sent < len(data):
            self._head, self._sent = data, sent
            self.pending = len(data) - sent

    async def drain(self, below: int = 0) -> None:
        """Wait until at most `below` bytes are pending; write them if no other task does.

        Raises `Stalled` if the peer takes nothing for too long, else as `write`. Cancelling loses nothing.
        """
        while self.pending > below:
            self.raise_failure()
            if self._writing or self.in_background:
                await self._progress.wait()
                continue
            self._writing = True
            try:
                await self._write_some()
            except Stalled as error:
                raise self.fail(error) from error
            finally:
                self._stop_writing()

    async def write_kept(self) -> None:
        """Write all that `write` has kept. Raises as `drain`, also if nothing was kept. Cancelling loses nothing.

        After `Stalled`, only the caller may write: all other tasks wait until it calls `fail`.
        """
        while self._writing:
            await self._progress.wait()
        self._writing = True
        try:
            while self.pending:
                self.raise_failure()
                await self._write_some()
                self._progress.notify()
        except Stalled:
            raise
        except BaseException:
            self._stop_writing()
            raise
        self._stop_writing()
        self.raise_failure()

    def stop_background(self) -> None:
        """Let `drain` write again: no task calls `write_kept` any more."""
        self.in_background = False
        self._progress.notify()

    def fail(self, error: Failure) -> Failure:
        """Raise this error in every task that waits here or comes later, and return it; only the first one counts."""
        if self.failure is None:
            self.failure = error
        self._progress.notify()
        # A new object each time, because an exception collects a traceback each time it is raised.
        return type(self.failure)(*self.failure.args)

    def raise_failure(self) -> None:
        """Raise the error given to `fail`, if any."""
        if self.failure is not None:
            raise self.fail(self.failure)

    def begun(self, boundary: Callable[[bytes, int], int]) -> bytes:
        """Return the rest of the frame that is partly written; `boundary(chunk, sent)` finds its end in the chunk."""
        committed = min(len(self._head), self._sent + self._stream.committed)
        return self._head[self._sent : boundary(self._head, committed)]

    def _stop_writing(self) -> None:
        self._writing = False
        self._progress.notify()

    async def _write_some(self) -> None:
        self._writes += 1
        if self._writes % WRITES_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()
        if not self._head:
            self._head = self._next_chunk()
        with trio.move_on_after(self._stall_timeout) as timeout:
            try:
                sent = await self._stream.send_some(memoryview(self._head)[self._sent :])
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise self.fail(error) from error
            self._sent += sent
            self.pending -= sent
            if self._sent == len(self._head):
                # An idle connection keeps no large message.
                self._head, self._sent = b"", 0
        if timeout.cancelled_caught:
            raise Stalled(f"the peer took nothing for {self._stall_timeout:g} s")

    def _next_chunk(self) -> bytes:
        count, size = 1, len(self._chunks[0])
        while count < len(self._chunks) and size + len(self._chunks[count]) <= WRITE_SIZE:
            size += len(self._chunks[count])
            count += 1
        chunk = b"".join(self._chunks[:count])
        del self._chunks[:count]
        return chunk


class FramedStream(MaintainedStream):
    """A `MessageStream` over a `ByteStream`, which is closed with it."""

    __slots__ = (
        "_abandoned",
        "_closed",
        "_closes",
        "_closing",
        "_reading",
        "_reads",
        "_spawner",
        "_waited",
        "_writer",
        "bytes",
    )

    def __init__(self, stream: ByteStream, *, stall_timeout: float = inf) -> None:
        super().__init__()
        self.bytes = stream
        self._writer = ByteWriter(stream, stall_timeout=stall_timeout)
        # Spawns the task that writes what can't be written at once; None: `drain` writes it.
        self._spawner: TaskSpawner | None = None
        # Number of the read in which a task waits, from 1; 0 if no task reads.
        self._reading = 0
        self._reads = 0
        # Seconds spent waiting for the rest of the message that has begun.
        self._waited = 0.0
        # True once the beginning of a message was dropped: further bytes are not read as messages.
        self._abandoned = False
        # True once its owner closes it: only the close frame is still sent.
        self._closing = False
        # True once `bytes` is closed, and the signal by which `run` waits for that.
        self._closed = False
        self._closes: Signal | None = None

    async def _read(self) -> bytes:
        """Wait for bytes; empty at the peer's end."""
        if self._closing:
            raise trio.ClosedResourceError
        self._reads += 1
        self._reading = self._reads
        try:
            data = await self.bytes.receive_some()
            self.last_received_at = trio.current_time()
            self.meter.size += len(data)
            if self._abandoned:
                raise trio.ClosedResourceError
            return data
        except trio.ClosedResourceError:
            self._writer.raise_failure()
            raise
        finally:
            self._reading = 0

    def _read_on(self) -> Coroutine[Any, Any, bytes]:
        """As `_read`, within the time limit of the message that has begun. Raises `Unfinished`."""
        # Not a coroutine itself, which would be one more for each waiting stream.
        unfinished = self.unfinished_bytes
        if unfinished and self.message_timeout != inf:
            return self._read_in_time(unfinished)
        self._waited = 0.0
        return self._read()

    async def _read_in_time(self, unfinished: int) -> bytes:
        began = trio.current_time()
        # Only the time in which a task reads counts.
        with trio.move_on_after(self.message_timeout + unfinished / SLOWEST_PEER - self._waited):
            data = await self._read()
            self._waited += trio.current_time() - began
            return data
        raise Unfinished(
            f"a message was not complete within message_timeout ({self.message_timeout:g} s, and 1 s for each "
            f"{SLOWEST_PEER} of its bytes)"
        )

    def _write(self, data: bytes) -> None:
        if self._closing:
            raise trio.ClosedResourceError
        if data:
            try:
                self._writer.write(data)
            finally:
                if self._writer.pending or self._writer.failure:
                    self._spawn_writer()

    @property
    def pending_bytes(self) -> int:
        return self._writer.pending

    @property
    def path(self) -> PathState | None:
        return self.bytes.path

    @property
    def route(self) -> Route | None:
        return self.bytes.route

    async def drain(self, below: int = 0) -> None:
        await self._writer.drain(below)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self.use_spawner(TaskSpawner(nursery))
            self._closes = closes = Signal()
            try:
                while not self._closed:
                    with trio.move_on_at(self.tick(trio.current_time())):
                        await closes.wait()
            finally:
                self.use_spawner(None)

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        self._spawner = spawner
        if spawner is None:
            self._writer.stop_background()
        else:
            self._writer.in_background = True
            if self._writer.pending or self._writer.failure:
                self._spawn_writer()

    def _spawn_writer(self) -> None:
        if self._spawner is not None:
            self._spawner.spawn(self._write_kept)

    async def _write_kept(self) -> None:
        """Write what could not be written at once, and close a stream that can't be written to."""
        try:
            await self._writer.write_kept()
            self._all_written()
        except Stalled as error:
            await self._cut(error)
        except trio.BrokenResourceError as error:
            await self._close_when_read(error)
        except trio.ClosedResourceError:
            pass

    def _all_written(self) -> None:
        """Handle that nothing is pending any more."""

    async def _cut(self, error: Stalled) -> None:
        """Close the stream of a peer that reads nothing."""
        await self._close(error)

    async def _close_when_read(self, error: trio.BrokenResourceError) -> None:
        """Close a stream that can't be written to once there is nothing left to read.

        Messages that the peer sent before its end count. A process may also close its stdin and leave its stdout open;
        then the task that reads it must learn that no response will come.
        """
        while not self._closed:
            reading = self._reading
            await trio.sleep(LAST_READ_TIMEOUT)
            if reading and self._reading == reading:
                await self._close(error)

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        first, self._closing = not self._closing, True
        try:
            if first:
                with trio.move_on_after(CLOSE_TIMEOUT):
                    await self._send_end(reason, text)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The peer has closed already.
        finally:
            await self._close(trio.ClosedResourceError())

    def abandon(self) -> None:
        self._abandoned = True
        self._forget_unfinished()

    async def abort(self) -> None:
        self._closing = True
        await self._close(trio.ClosedResourceError())

    @abstractmethod
    async def _send_end(self, reason: CloseReason, text: str) -> None:
        """Write pending bytes and the end of the stream. May raise what the stream raises."""

    @abstractmethod
    def _forget_unfinished(self) -> None:
        """Drop the beginning of a message: it may be large, and the closed stream may be kept for a while."""

    async def _close(self, error: Failure) -> None:
        """Close at once; tasks that wait or come later get this error, unless there was an earlier one.

        A message that has begun is kept after a loss: a link goes on behind its first bytes.
        """
        self._closed = True
        if self._closes is not None:
            self._closes.notify()
        if isinstance(error, trio.ClosedResourceError):
            self._forget_unfinished()
        self._writer.fail(error)
        await self.bytes.aclose()
