"""Pipes: this process's own stdin and stdout, and those of a subprocess. Where platforms differ, they differ here."""

import os
import stat
import sys

import trio

from acp_gateway.transports.base import READ_SIZE, ByteStream

READS_PER_CHECKPOINT = 16
"""As for sockets: reads in a row that bring bytes at once before other tasks get their turn."""


class FileBytes(ByteStream):
    """A readable and a writable descriptor that the system can wait for: pipes, sockets, terminals. Not on Windows.

    Both are made non-blocking and closed with this stream; `keep_open` leaves them open and gives them back as they
    were.
    """

    def __init__(self, read_fd: int, write_fd: int, *, keep_open: bool = False) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._blocking = [(fd, os.get_blocking(fd)) for fd in {read_fd, write_fd}] if keep_open else []
        self._keep_open = keep_open
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        self._reads = 0

    async def receive_some(self) -> bytes:
        self._reads += 1
        if self._reads % READS_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()
        while True:
            if self._read_fd < 0:
                raise trio.ClosedResourceError
            try:
                return os.read(self._read_fd, READ_SIZE)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._read_fd)
            except OSError as error:
                raise trio.BrokenResourceError(f"cannot read: {error.strerror}") from error

    def send_nowait(self, data: memoryview) -> int:
        if self._write_fd < 0:
            raise trio.ClosedResourceError
        try:
            return os.write(self._write_fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(f"nobody reads any more: {error.strerror}") from error

    async def send_some(self, data: memoryview) -> int:
        while True:
            sent = self.send_nowait(data)
            if sent:
                return sent
            await trio.lowlevel.wait_writable(self._write_fd)

    async def send_eof(self) -> None:
        """Close the writing side; the reader at the other end sees the end of its input."""
        self._close_writing()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._close_writing()
        if self._read_fd >= 0:
            self._let_go(self._read_fd)
            self._read_fd = -1
        for fd, blocking in self._blocking:
            os.set_blocking(fd, blocking)
        self._blocking.clear()
        await trio.lowlevel.checkpoint()

    def _close_writing(self) -> None:
        if self._write_fd >= 0:
            self._let_go(self._write_fd)
            self._write_fd = -1

    def _let_go(self, fd: int) -> None:
        trio.lowlevel.notify_closing(fd)
        if not self._keep_open:
            os.close(fd)


class ThreadBytes(ByteStream):
    """Descriptors that nobody can wait for, read and written in threads: pipes on Windows, regular files anywhere.

    A read that is cancelled goes on in its thread, and what it brings is handed to the next reader. A write that is
    cancelled may have been done or not: the stream can only be closed then.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._closed = False
        # What a read brought whose reader had been cancelled.
        self._send_read, self._receive_read = trio.open_memory_channel[bytes | OSError](1)
        self._read_under_way = False

    async def receive_some(self) -> bytes:
        if self._closed:
            raise trio.ClosedResourceError
        if not self._read_under_way:
            self._read_under_way = True
            trio.lowlevel.spawn_system_task(self._read)
        result = await self._receive_read.receive()
        if isinstance(result, OSError):
            raise trio.BrokenResourceError(f"cannot read: {result.strerror}") from result
        return result

    async def _read(self) -> None:
        result: bytes | OSError
        try:
            result = await trio.to_thread.run_sync(os.read, self._read_fd, READ_SIZE, abandon_on_cancel=True)
        except OSError as error:
            result = error
        self._read_under_way = False
        if not self._closed:
            self._send_read.send_nowait(result)

    def send_nowait(self, data: memoryview) -> int:
        if self._closed:
            raise trio.ClosedResourceError
        return 0

    async def send_some(self, data: memoryview) -> int:
        try:
            return await trio.to_thread.run_sync(
                os.write, self._write_fd, bytes(data[:READ_SIZE]), abandon_on_cancel=True
            )
        except OSError as error:
            raise trio.BrokenResourceError(f"nobody reads any more: {error.strerror}") from error

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._closed = True
        self._send_read.close()
        self._receive_read.close()
        await trio.lowlevel.checkpoint()


def open_stdio() -> ByteStream:
    """This process's stdin and stdout as a stream of bytes; the descriptors stay open when it is closed."""
    read_fd, write_fd = sys.stdin.fileno(), sys.stdout.fileno()
    if sys.platform == "win32" or not (_can_be_waited_for(read_fd) and _can_be_waited_for(write_fd)):
        return ThreadBytes(read_fd, write_fd)
    return FileBytes(read_fd, write_fd, keep_open=True)


def _can_be_waited_for(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
