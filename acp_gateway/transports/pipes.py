"""Pipes: this process's own stdin and stdout, and those of a subprocess. All differences of platforms are here."""

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import trio

from acp_gateway.errors import UsageError
from acp_gateway.transports.streams import LITTLE, MAX_FRUITLESS, PROBE_EVERY, READ_COST, READ_SIZE, TURN, ByteStream

if sys.platform == "linux":
    import fcntl

T = TypeVar("T")

PIPE_SIZE: Final = 262144
"""Bytes that a pipe holds from the first time on that it was full, where the system allows that: a large message goes
through it with a quarter of the wake-ups at both ends. All pipes of a user together have a limit
(`fs.pipe-user-pages-soft`), which pipes of a megabyte would reach with 64 agents."""


class FileBytes(ByteStream):
    """A readable and a writable descriptor that the system can wait for: pipes, terminals. Not on Windows.

    Both are made non-blocking and closed with this stream; `keep_open` leaves them open and restores their mode.
    """

    def __init__(self, read_fd: int, write_fd: int, *, keep_open: bool = False) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._blocking = [(fd, os.get_blocking(fd)) for fd in {read_fd, write_fd}] if keep_open else []
        self._keep_open = keep_open
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        # Bytes read since other tasks had their turn.
        self._turn = 0
        # Calls in a row of `receive_some` that had to wait, for little.
        self._fruitless = 0
        self._was_full = False

    async def receive_some(self) -> bytes:
        if self._turn >= TURN:
            self._turn = 0
            await trio.lowlevel.checkpoint()
        waited = False
        while True:
            if self._read_fd < 0:
                raise trio.ClosedResourceError
            if waited or self._fruitless % PROBE_EVERY < MAX_FRUITLESS:
                try:
                    data = os.read(self._read_fd, READ_SIZE)
                    self._turn += READ_COST + len(data)
                    self._fruitless = self._fruitless + 1 if waited and len(data) < LITTLE else 0
                    return data
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise trio.BrokenResourceError(f"cannot read: {error.strerror}") from error
            await trio.lowlevel.wait_readable(self._read_fd)
            self._turn = 0
            waited = True

    def send_nowait(self, data: memoryview) -> int:
        if self._write_fd < 0:
            raise trio.ClosedResourceError
        try:
            sent = os.write(self._write_fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"the reader has closed: {error.strerror}") from error
        if sent < len(data) and not self._was_full:
            self._was_full = True
            self._widen()
            return sent + self.send_nowait(data[sent:])
        return sent

    def _widen(self) -> None:
        """Let the pipe that is written to hold more; not if it is something else, or the user has too many."""
        if sys.platform == "linux":
            with suppress(OSError):
                fcntl.fcntl(self._write_fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)

    async def send_some(self, data: memoryview) -> int:
        while True:
            sent = self.send_nowait(data)
            if sent:
                return sent
            await trio.lowlevel.wait_writable(self._write_fd)

    async def send_eof(self) -> None:
        """Close the writing side, which ends the reader's input."""
        self._close_writing()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._close_writing()
        if self._read_fd >= 0:
            self._close_descriptor(self._read_fd)
            self._read_fd = -1
        for fd, blocking in self._blocking:
            os.set_blocking(fd, blocking)
        self._blocking.clear()
        await trio.lowlevel.checkpoint()

    def _close_writing(self) -> None:
        if self._write_fd >= 0:
            self._close_descriptor(self._write_fd)
            self._write_fd = -1

    def _close_descriptor(self, fd: int) -> None:
        trio.lowlevel.notify_closing(fd)
        if not self._keep_open:
            os.close(fd)


class ThreadBytes(ByteStream):
    """Descriptors that cannot be waited for, read and written in threads: pipes on Windows, regular files anywhere.

    The descriptors stay open after `aclose`: a thread may still be waiting in one of them.
    """

    committed = READ_SIZE

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._reading = _Calls[bytes]()
        self._writing = _Calls[int]()

    async def receive_some(self) -> bytes:
        try:
            return await self._reading.call(lambda: os.read(self._read_fd, READ_SIZE))
        except OSError as error:
            raise trio.BrokenResourceError(f"cannot read: {error.strerror}") from error

    def send_nowait(self, data: memoryview) -> int:
        if self._writing.closed:
            raise trio.ClosedResourceError
        return 0

    async def send_some(self, data: memoryview) -> int:
        part = bytes(data[:READ_SIZE])
        try:
            return await self._writing.call(lambda: os.write(self._write_fd, part))
        except OSError as error:
            raise trio.BrokenResourceError(f"the reader has closed: {error.strerror}") from error

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._reading.close()
        self._writing.close()
        await trio.lowlevel.checkpoint()


class _Calls(Generic[T]):
    """Blocking calls in a thread, one after the other. After a cancellation, the next caller gets the result."""

    def __init__(self) -> None:
        self.closed = False
        self._under_way = False
        # Returns the result of the last call; None once a caller has taken it.
        self._take_result: Callable[[], T] | None = None
        self._changed = trio.lowlevel.ParkingLot()

    async def call(self, function: Callable[[], T]) -> T:
        """Return the result of the running call, or else of this one. Raises what the call raises."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._take_result is None and not self._under_way and not self.closed:
            self._under_way = True
            token = trio.lowlevel.current_trio_token()
            trio.lowlevel.start_thread_soon(function, lambda outcome: self._deliver(token, outcome.unwrap))
        while (take_result := self._take_result) is None and not self.closed:
            await self._changed.park()
        if self.closed or take_result is None:
            raise trio.ClosedResourceError
        self._take_result = None
        return take_result()

    def close(self) -> None:
        self.closed = True
        self._changed.unpark_all()

    def _deliver(self, token: trio.lowlevel.TrioToken, take_result: Callable[[], T]) -> None:
        def deliver() -> None:
            self._under_way = False
            self._take_result = take_result
            self._changed.unpark_all()

        try:
            token.run_sync_soon(deliver)
        except trio.RunFinishedError:
            pass  # No task is left to take it.


def open_stdio() -> ByteStream:
    """Return this process's stdin and stdout as a stream of bytes; closing it leaves the descriptors open.

    Raises `UsageError` if the process was started without them.
    """
    if sys.stdin is None or sys.stdout is None:
        raise UsageError("stdin or stdout is closed; this command is for editors, which start it with pipes")
    read_fd, write_fd = sys.stdin.fileno(), sys.stdout.fileno()
    if sys.platform == "win32" or not (_can_be_waited_for(read_fd) and _can_be_waited_for(write_fd)):
        return ThreadBytes(read_fd, write_fd)
    return FileBytes(read_fd, write_fd, keep_open=True)


def _can_be_waited_for(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
