"""Pipes and files as streams of bytes, waited for by the system or in threads."""

import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import pytest
import trio
import trio.testing

from acp_gateway.errors import UsageError
from acp_gateway.transports import pipes as stdio
from acp_gateway.transports.pipes import PIPE_SIZE, FileBytes, ThreadBytes, open_stdio
from acp_gateway.transports.streams import LITTLE, MAX_FRUITLESS, PROBE_EVERY, READ_COST, READ_SIZE, TURN, ByteStream
from tests.kit.wires import MIB, close_at_once, pipe_wire


@pytest.fixture
async def pipes() -> AsyncIterator[tuple[FileBytes, FileBytes]]:
    here, there = pipe_wire()
    yield here, there
    await close_at_once(here, there)


async def read_all(stream: ByteStream) -> bytes:
    data = b""
    while more := await stream.receive_some():
        data += more
    return data


# Descriptors that the system can wait for


async def test_the_writing_side_can_end_while_reading_goes_on(pipes: tuple[FileBytes, FileBytes]) -> None:
    here, there = pipes
    here.send_nowait(memoryview(b"last"))
    await here.send_eof()
    await here.send_eof()
    assert await read_all(there) == b"last"
    there.send_nowait(memoryview(b"answer"))
    assert await here.receive_some() == b"answer"
    with pytest.raises(trio.ClosedResourceError):
        here.send_nowait(memoryview(b"x"))


async def test_finishing_does_not_wait_for_a_process_that_keeps_its_output_open(
    pipes: tuple[FileBytes, FileBytes],
) -> None:
    here, there = pipes
    there.send_nowait(memoryview(b"unread"))
    await here.finish()
    assert await here.receive_some() == b"unread"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pipes of another size")
async def test_a_pipe_that_was_full_holds_more_from_then_on(pipes: tuple[FileBytes, FileBytes]) -> None:
    here, there = pipes
    assert here.send_nowait(memoryview(bytes(MIB))) == PIPE_SIZE
    assert len(await there.receive_some()) == READ_SIZE


async def test_a_pipe_that_mostly_has_nothing_is_waited_for_first(
    pipes: tuple[FileBytes, FileBytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pipes
    fruitless, read = 0, os.read

    def counted(fd: int, size: int) -> bytes:
        nonlocal fruitless
        try:
            return read(fd, size)
        except BlockingIOError:
            fruitless += 1
            raise

    async def receive() -> None:
        assert await here.receive_some() == b"x"

    async def receive_later() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            there.send_nowait(memoryview(b"x"))

    monkeypatch.setattr(os, "read", counted)
    for _ in range(2 * PROBE_EVERY):
        await receive_later()
    assert fruitless == 2 * MAX_FRUITLESS
    # From the first bytes that are there without a wait, it is read first again.
    for _ in range(PROBE_EVERY):
        there.send_nowait(memoryview(b"x"))
        await receive()
    before = fruitless
    await receive_later()
    assert fruitless == before + 1
    # Nor does much count, which more may follow.
    before = fruitless
    for _ in range(PROBE_EVERY):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            there.send_nowait(memoryview(bytes(LITTLE)))
    assert fruitless == before + PROBE_EVERY


async def test_a_writer_of_much_leaves_other_tasks_their_turn(pipes: tuple[FileBytes, FileBytes]) -> None:
    here, there = pipes
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(10 * TURN // READ_COST):
            there.send_nowait(memoryview(b"x"))
            assert await here.receive_some() == b"x"
        nursery.cancel_scope.cancel()
    assert turns >= 5


async def test_a_write_without_a_reader_is_lost(pipes: tuple[FileBytes, FileBytes]) -> None:
    here, there = pipes
    await there.aclose()
    with pytest.raises(trio.BrokenResourceError, match="the reader has closed: Broken pipe"):
        here.send_nowait(memoryview(b"x"))
    with pytest.raises(trio.BrokenResourceError):
        await here.send_some(memoryview(b"x"))


async def test_a_terminal_that_has_hung_up_is_lost() -> None:
    terminal, far_end = os.openpty()
    stream = FileBytes(terminal, os.dup(terminal))
    os.close(far_end)
    with pytest.raises(trio.BrokenResourceError, match="cannot read: Input/output error"):
        await stream.receive_some()
    await stream.aclose()


async def test_closing_sends_every_waiting_task_away(pipes: tuple[FileBytes, FileBytes]) -> None:
    here, _ = pipes
    data = memoryview(b"x" * MIB)
    sent = here.send_nowait(data)

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await here.receive_some()

    async def write() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await here.send_some(data[sent:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        await here.aclose()
    await here.aclose()


@pytest.mark.parametrize("blocking", [True, False])
async def test_descriptors_of_others_are_given_back_as_they_were(blocking: bool) -> None:
    read_fd, far_write = os.pipe()
    far_read, write_fd = os.pipe()
    os.set_blocking(read_fd, blocking)
    os.set_blocking(write_fd, not blocking)
    stream = FileBytes(read_fd, write_fd, keep_open=True)
    assert not os.get_blocking(read_fd)
    assert not os.get_blocking(write_fd)
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()
    assert os.get_blocking(read_fd) is blocking
    assert os.get_blocking(write_fd) is not blocking
    for fd in (read_fd, far_write, far_read, write_fd):
        os.close(fd)


# Descriptors that need a thread


class Pipes:
    """Two pipes; `stream` reads the one and writes the other, in threads."""

    def __init__(self) -> None:
        self.read_fd, self.far_write = os.pipe()
        self.far_read, self.write_fd = os.pipe()
        self.stream = ThreadBytes(self.read_fd, self.write_fd)

    def close(self) -> None:
        for fd in (self.read_fd, self.far_write, self.far_read, self.write_fd):
            os.close(fd)


@pytest.fixture
def threaded() -> Iterator[Pipes]:
    pipes = Pipes()
    yield pipes
    pipes.close()


async def until_idle(calls: "stdio._Calls[bytes] | stdio._Calls[int]") -> None:
    while calls._under_way:
        await trio.lowlevel.checkpoint()


async def test_regular_files_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * (READ_SIZE + 1))
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as target:
        stream = ThreadBytes(source.fileno(), target.fileno())
        assert await read_all(stream) == b"x" * (READ_SIZE + 1)
        data = memoryview(b"y" * (READ_SIZE + 1))
        assert stream.send_nowait(data) == 0
        assert await stream.send_some(data) == READ_SIZE
        assert await stream.send_some(data[READ_SIZE:]) == 1
        await stream.send_eof()
        await stream.aclose()
        assert not source.closed
        assert not target.closed
    assert (tmp_path / "out").read_bytes() == b"y" * (READ_SIZE + 1)


async def test_the_data_of_a_cancelled_read_goes_to_the_next_reader(threaded: Pipes) -> None:
    stream = threaded.stream
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.receive_some)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    os.write(threaded.far_write, b"first")
    await until_idle(stream._reading)
    os.write(threaded.far_write, b"second")
    for _ in range(3):
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.receive_some()
    await until_idle(stream._reading)
    assert await stream.receive_some() == b"first"
    assert await stream.receive_some() == b"second"


async def test_a_cancelled_write_is_not_done_twice(threaded: Pipes) -> None:
    stream = threaded.stream
    data = bytes(range(256)) * (MIB // 256)
    sent = 0
    # Up to a write that has to wait for the reader.
    while True:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel_once_blocked(scope: trio.CancelScope = scope) -> None:
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()

                nursery.start_soon(cancel_once_blocked)
                sent += await stream.send_some(memoryview(data)[sent:])
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught and sent:
            break
    received = bytearray()

    def read() -> None:
        while len(received) < len(data):
            received.extend(os.read(threaded.far_read, READ_SIZE))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, read)
        while sent < len(data):
            sent += await stream.send_some(memoryview(data)[sent:])
    assert received == data


async def test_aclose_ends_tasks_that_wait_for_threads(threaded: Pipes) -> None:
    stream = threaded.stream

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
    os.write(threaded.far_write, b"too late")
    await until_idle(stream._reading)
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()
    with pytest.raises(trio.ClosedResourceError):
        stream.send_nowait(memoryview(b"x"))
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_some(memoryview(b"x"))


async def test_errors_in_threads_are_errors_of_the_stream(threaded: Pipes) -> None:
    wrong_way_round = ThreadBytes(threaded.write_fd, threaded.read_fd)
    with pytest.raises(trio.BrokenResourceError, match="cannot read: Bad file descriptor"):
        await wrong_way_round.receive_some()
    with pytest.raises(trio.BrokenResourceError, match="the reader has closed: Bad file descriptor"):
        await wrong_way_round.send_some(memoryview(b"x"))


def test_a_thread_that_outlives_the_program_raises_nothing() -> None:
    calls = stdio._Calls[bytes]()
    tokens: list[trio.lowlevel.TrioToken] = []
    goes_on = threading.Event()

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.call, lambda: bytes(goes_on.wait()))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    # What the thread will do some time later, done here and now.
    calls._deliver(tokens[0], lambda: b"")
    goes_on.set()


# stdin and stdout


class Standard:
    """Opens pipes and files to stand in for this process's own, and closes them."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    def open(self, fd: int, mode: str) -> IO[bytes]:
        file = os.fdopen(fd, mode)
        self._files.append(file)
        return file

    def pipe(self) -> tuple[IO[bytes], IO[bytes]]:
        read_fd, write_fd = os.pipe()
        return self.open(read_fd, "rb"), self.open(write_fd, "wb")

    def close(self) -> None:
        for file in self._files:
            file.close()


@pytest.fixture
def standard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standard]:
    standard = Standard()
    yield standard
    monkeypatch.undo()
    standard.close()


async def test_an_editors_pipes_are_waited_for_and_stay_open(
    standard: Standard, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin, editor_writes = standard.pipe()
    editor_reads, stdout = standard.pipe()
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", stdout)
    stream = open_stdio()
    assert isinstance(stream, FileBytes)
    os.write(editor_writes.fileno(), b"question")
    assert await stream.receive_some() == b"question"
    stream.send_nowait(memoryview(b"answer"))
    await stream.aclose()
    assert os.read(editor_reads.fileno(), 100) == b"answer"
    os.write(stdout.fileno(), b"still open")
    assert os.read(editor_reads.fileno(), 100) == b"still open"


async def test_a_regular_file_as_stdout_is_written_in_a_thread(
    standard: Standard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", standard.open(os.open(os.devnull, os.O_RDONLY), "rb"))
    monkeypatch.setattr(sys, "stdout", standard.open(os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT, 0o600), "wb"))
    stream = open_stdio()
    assert isinstance(stream, ThreadBytes)
    assert await stream.receive_some() == b""
    await stream.send_some(memoryview(b"answer"))
    await stream.aclose()
    assert (tmp_path / "out").read_bytes() == b"answer"


async def test_devices_can_be_waited_for(standard: Standard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", standard.open(os.open(os.devnull, os.O_RDONLY), "rb"))
    monkeypatch.setattr(sys, "stdout", standard.open(os.open(os.devnull, os.O_WRONLY), "wb"))
    stream = open_stdio()
    assert isinstance(stream, FileBytes)
    assert await stream.receive_some() == b""
    assert stream.send_nowait(memoryview(b"x")) == 1
    await stream.aclose()


async def test_pipes_on_windows_need_threads(standard: Standard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", standard.pipe()[0])
    monkeypatch.setattr(sys, "stdout", standard.pipe()[1])
    with monkeypatch.context() as windows:
        windows.setattr(sys, "platform", "win32")
        stream = open_stdio()
    assert isinstance(stream, ThreadBytes)
    await stream.aclose()


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_open_stdio_without_pipes_is_a_usage_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    with pytest.raises(UsageError, match="stdin or stdout is closed"):
        open_stdio()
