"""Writing what the peer does not take at once, and the end of streams that are framed in bytes."""

import gc
import sys
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from acp_gateway.transports.framing import (
    CLOSE_TIMEOUT,
    LAST_READ_TIMEOUT,
    MAX_REMEMBERED,
    ByteWriter,
    CachedEncoder,
    ChunkBuffer,
    Failure,
)
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import WRITE_SIZE, MessageTooLarge, Stalled
from tests.kit.wires import MIB, MemoryBytes, close_at_once, fill, memory_wire, pipe_wire

# Pieces


def test_the_last_bytes_of_a_message_are_told_without_joining_its_pieces() -> None:
    pieces = ChunkBuffer()
    assert pieces.ended(3) == b""
    for piece in (b"x" * 5000, b"y" * 5000, b"a", b"b"):
        pieces.add(piece)
    assert pieces.ended(2) == b"ab"
    assert pieces.ended(4) == b"yyab"
    assert pieces.size == 10_002


def test_pieces_are_joined_in_order_and_start_over() -> None:
    pieces = ChunkBuffer()
    for piece in (b"a" * 2000, b"b", b"c", b"d" * 2000, b""):
        pieces.add(piece)
    assert pieces.size == 4002
    assert [pieces.begun(size) for size in (0, 1, 2001, 5000)] == [
        b"",
        b"a",
        b"a" * 2000 + b"b",
        b"a" * 2000 + b"bc" + b"d" * 2000,
    ]
    assert pieces.take() == b"a" * 2000 + b"bc" + b"d" * 2000
    assert pieces.size == 0
    pieces.add(b"next")
    assert pieces.take() == b"next"


# LastBatch


def test_the_same_messages_are_encoded_once_and_others_again() -> None:
    calls: list[list[bytes]] = []

    def encode(messages: Sequence[bytes]) -> bytes:
        calls.append(list(messages))
        return b"".join(messages)

    encode_once = CachedEncoder(encode)
    messages = [b"1", b"2"]
    assert [encode_once(messages), encode_once([b"1", b"2"])] == [b"12", b"12"]
    assert calls == [[b"1", b"2"]]
    # The list is its owner's.
    messages.append(b"3")
    assert [encode_once(messages), encode_once(messages[:2])] == [b"123", b"12"]
    assert calls == [[b"1", b"2"], [b"1", b"2", b"3"], [b"1", b"2"]]
    batch = (b"4", b"5")
    assert [encode_once(batch), encode_once(batch), encode_once((b"4", b"5"))] == [b"45"] * 3
    assert calls[3:] == [[b"4", b"5"]]
    # A single message in a tuple is for several peers, one in a list for one peer.
    assert [encode_once((b"6",)), encode_once((b"6",)), encode_once([b"7"]), encode_once([b"7"])] == [b"6"] * 2 + [
        b"7"
    ] * 2
    assert calls[4:] == [[b"6"], [b"7"], [b"7"]]


def test_a_large_batch_is_not_kept() -> None:
    large = [b"x" * MAX_REMEMBERED, b"y"]
    encode_once = CachedEncoder(b"".join)
    assert encode_once(large) == b"".join(large)
    assert not any(held is large[0] for held in gc.get_referents(encode_once._messages))
    assert encode_once._encoded == b""
    assert encode_once(large) == b"".join(large)


# ByteWriter


async def test_write_writes_at_once_as_much_as_the_peer_takes() -> None:
    here, there = memory_wire()
    writer = ByteWriter(here)
    writer.write(b"12345")
    assert writer.pending == 0
    assert there.inbox == b"12345"


async def test_a_write_goes_on_where_the_peer_stopped_taking() -> None:
    here, there = memory_wire(room=4)
    writer = ByteWriter(here)
    writer.write(b"0123456789")
    assert there.inbox == b"0123"
    assert writer.pending == 6
    writer.write(b"ab")
    assert writer.pending == 8
    assert await there.receive_some() == b"0123"
    await writer.drain(4)
    assert await there.receive_some() == b"4567"
    there.room = 100
    await writer.drain()
    assert here.written == [b"0123", b"4567", b"89", b"ab"]


async def test_what_was_written_is_not_kept() -> None:
    here, there = memory_wire(room=60)
    writer = ByteWriter(here)
    data = bytes(100)
    unused = sys.getrefcount(data)
    writer.write(data)
    assert (writer.pending, sys.getrefcount(data)) == (40, unused + 1)
    await there.receive_some()
    await writer.drain()
    assert (writer.pending, sys.getrefcount(data)) == (0, unused)


async def test_small_writes_that_have_to_wait_are_written_together() -> None:
    here, there = memory_wire(room=0)
    writer = ByteWriter(here)
    for _ in range(1000):
        writer.write(b"x" * 1000)
    there.room = 2 * MIB
    await writer.drain()
    assert b"".join(here.written) == b"x" * 1_000_000
    # The first one had been offered alone; the rest in writes of up to WRITE_SIZE.
    assert len(here.written) == 1 + -(-999_000 // (WRITE_SIZE // 1000 * 1000))


class LikeTls(MemoryBytes):
    """Refuses every other write, and from then on insists on the same bytes, and on no fewer, as TLS does."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self._refused: bytes | None = None

    def send_nowait(self, data: memoryview) -> int:
        part = bytes(data[:1000])
        if self._refused is None:
            self._refused = part
            return 0
        assert part[: len(self._refused)] == self._refused
        assert len(part) >= len(self._refused)
        self._refused = None
        return super().send_nowait(data[:1000])

    async def send_some(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        while not (sent := self.send_nowait(data)):
            await trio.lowlevel.checkpoint()
        return sent


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 3000), st.sampled_from(["drain", "cancel", "wait"])), max_size=30))
def test_bytes_once_refused_are_offered_again_the_same_first(steps: list[tuple[int, str]]) -> None:
    async def main() -> None:
        here, there = LikeTls(0), MemoryBytes(MIB)
        here.peer, there.peer = there, here
        writer = ByteWriter(here)
        expected = b""
        for number, (size, then) in enumerate(steps):
            data = b"%d " % number * size
            expected += data
            writer.write(data)
            if then == "drain":
                await writer.drain()
            elif then == "cancel":
                with trio.move_on_after(0):
                    await writer.drain()
        await writer.drain()
        assert there.inbox == expected

    trio.run(main)


async def test_other_tasks_get_their_turn_while_a_lot_is_written() -> None:
    _, there = memory_wire(room=0)

    class Eager(MemoryBytes):
        async def send_some(self, data: memoryview) -> int:  # Never waits.
            return 1

    stream = Eager(0)
    stream.peer = there
    writer = ByteWriter(stream)
    writer.write(b"x" * 10_000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await writer.drain()
        nursery.cancel_scope.cancel()
    assert turns >= 100


async def test_only_one_task_writes_at_a_time() -> None:
    _, there = memory_wire(room=0)
    writing = 0

    class Counting(MemoryBytes):
        async def send_some(self, data: memoryview) -> int:
            nonlocal writing
            assert writing == 0
            writing += 1
            try:
                return await super().send_some(data[:10])
            finally:
                writing -= 1

    stream = Counting(0)
    stream.peer, there.peer = there, stream
    writer = ByteWriter(stream)
    writer.write(b"x" * 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.drain)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(writer.write_kept)
        nursery.start_soon(writer.drain, 500)
        nursery.start_soon(writer.drain)
        await trio.testing.wait_all_tasks_blocked()
        there.room = 2000
        stream.wake()
        await writer.drain()
        writer.write(b"y" * 5000)
        there.room = 10_000
        stream.wake()
        await writer.drain()
        nursery.cancel_scope.cancel()
    assert there.inbox == b"x" * 1000 + b"y" * 5000


async def test_drain_waits_for_the_background_task_and_writes_itself_without_one() -> None:
    here, there = memory_wire(room=10)
    writer = ByteWriter(here)
    writer.write(b"x" * 1000)
    writer.in_background = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.drain)
        await trio.testing.wait_all_tasks_blocked()
        there.room = 500
        here.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert len(there.inbox) == 10
        async with trio.open_nursery() as attending:
            attending.start_soon(writer.write_kept)
            await trio.testing.wait_all_tasks_blocked()
            assert len(there.inbox) == 500
            attending.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        there.room = 2000
        writer.stop_background()
    assert there.inbox == b"x" * 1000


@pytest.mark.parametrize("error", [trio.BrokenResourceError("cut"), trio.ClosedResourceError("shut")])
async def test_the_first_failure_reaches_every_task(error: Failure) -> None:
    here, _ = memory_wire(room=0)
    writer = ByteWriter(here)
    writer.write(b"x")

    async def expect(wait: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(type(error), match=str(error)) as raised:
            await wait()
        assert raised.value is not error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect, writer.write_kept)
        nursery.start_soon(expect, writer.drain)
        await trio.testing.wait_all_tasks_blocked()
        writer.fail(error)
        # Closing wakes the one that writes; what it gets is the failure all the same.
        await here.aclose()
    await expect(writer.drain)
    await expect(writer.write_kept)
    with pytest.raises(type(error), match=str(error)):
        writer.write(b"y")


async def test_a_write_that_fails_at_once_is_raised_by_write_kept() -> None:
    here, there = memory_wire()
    writer = ByteWriter(here)
    await there.aclose()
    with pytest.raises(trio.BrokenResourceError, match="broken pipe"):
        writer.write(b"x")
    assert not writer.pending
    with pytest.raises(trio.BrokenResourceError, match="broken pipe"):
        await writer.write_kept()


async def test_a_peer_that_takes_nothing_for_too_long_is_stalled(autojump_clock: trio.testing.MockClock) -> None:
    here, _ = memory_wire(room=10)
    writer = ByteWriter(here, stall_timeout=60)
    writer.write(b"x" * 20)
    with pytest.raises(Stalled, match="the peer took nothing for 60 s"):
        await writer.drain()
    assert trio.current_time() == 60
    with pytest.raises(Stalled):
        writer.write(b"x")


async def test_a_peer_that_takes_a_little_now_and_then_is_not_stalled(autojump_clock: trio.testing.MockClock) -> None:
    here, there = memory_wire(room=10)
    writer = ByteWriter(here, stall_timeout=60)
    writer.write(b"x" * 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.drain)
        for _ in range(9):
            await trio.sleep(59)
            await there.receive_some()
    assert writer.pending == 0
    assert trio.current_time() == 9 * 59


async def test_after_a_stall_other_tasks_wait_until_the_background_task_has_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    here, _ = memory_wire(room=10)
    writer = ByteWriter(here, stall_timeout=60)
    writer.write(b"x" * 20)
    told: list[float] = []

    async def drain() -> None:
        with pytest.raises(Stalled):
            await writer.drain()
        told.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_until_stalled, writer)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(drain)
    assert told == [65]


async def test_a_stall_noticed_before_use_spawner_is_handled_by_the_background_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    here, _ = memory_wire(room=10)
    writer = ByteWriter(here, stall_timeout=60)
    writer.write(b"x" * 20)

    async def expect(wait: Callable[[], Awaitable[None]]) -> None:
        with pytest.raises(Stalled):
            await wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect, writer.drain)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(expect, writer.write_kept)
    assert trio.current_time() == 60


async def write_until_stalled(writer: ByteWriter) -> None:
    writer.in_background = True
    try:
        await writer.write_kept()
    except Stalled as error:
        await trio.sleep(5)
        writer.fail(error)


async def test_begun_returns_the_rest_of_a_partly_written_frame() -> None:
    here, _ = memory_wire(room=4)
    writer = ByteWriter(here)
    asked: list[tuple[bytes, int]] = []

    def boundary(chunk: bytes, sent: int) -> int:
        asked.append((chunk, sent))
        return 6

    writer.write(b"0123456789")
    assert writer.begun(boundary) == b"45"
    # A transport that may have more on its way than it told says how much more.
    here.committed = 3
    assert writer.begun(boundary) == b"45"
    here.committed = 300
    assert writer.begun(boundary) == b"45"
    assert asked == [(b"0123456789", 4), (b"0123456789", 7), (b"0123456789", 10)]


# FramedStream, with lines as the frames


def lines(stream: MemoryBytes, *, stall_timeout: float = float("inf")) -> LineStream:
    return LineStream(stream, max_message_size=MIB, stall_timeout=stall_timeout)


async def test_a_stalled_peer_ends_the_stream_for_every_task(autojump_clock: trio.testing.MockClock) -> None:
    here, _ = memory_wire()
    stream = lines(here, stall_timeout=60)
    fill(stream)

    async def expect(wait: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(Stalled, match="the peer took nothing for 60 s"):
            await wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect, stream.drain)
        nursery.start_soon(expect, stream.receive)
        nursery.start_soon(stream.run)
    assert trio.current_time() == 60
    await expect(stream.receive)
    with pytest.raises(Stalled):
        stream.send_nowait([b"{}"])


async def test_a_peer_that_only_closed_its_reading_side_ends_the_receiver(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # A process that closes its stdin and lives on: no answer will come, and its open stdout doesn't tell.
    here, there = pipe_wire()
    stream = LineStream(here, max_message_size=MIB)
    there._close_descriptor(there._read_fd)
    there._read_fd = -1

    async def receive() -> None:
        with pytest.raises(trio.BrokenResourceError, match="the reader has closed: Broken pipe"):
            await stream.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BrokenResourceError):
            stream.send_nowait([b"{}"])
    assert trio.current_time() == LAST_READ_TIMEOUT
    await close_at_once(stream, there)


async def test_last_messages_of_a_lost_peer_wait_for_a_busy_receiver(autojump_clock: trio.testing.MockClock) -> None:
    here, there = memory_wire()
    stream = lines(here)
    there.send_nowait(memoryview(b"last\nwords\n"))
    there.closed = there.ended = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        with pytest.raises(trio.BrokenResourceError):
            await stream.send(b"{}")
        await trio.sleep(100)
        assert await stream.receive_batch() == [b"last", b"words"]
        with pytest.raises(trio.EndOfChannel):
            await stream.receive_batch()
        nursery.cancel_scope.cancel()


async def test_aclose_does_not_wait_longer_than_close_timeout(autojump_clock: trio.testing.MockClock) -> None:
    here, _ = memory_wire()
    stream = lines(here)
    fill(stream)
    await stream.aclose()
    assert trio.current_time() == CLOSE_TIMEOUT
    assert here.closed


async def test_aclose_does_not_wait_for_a_peer_that_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    here, there = memory_wire()
    stream = lines(here)
    await there.send_eof()
    with pytest.raises(trio.EndOfChannel):
        await stream.receive()
    await stream.aclose()
    assert trio.current_time() == 0


async def test_aclose_does_not_wait_for_a_lost_peer(autojump_clock: trio.testing.MockClock) -> None:
    here, there = memory_wire()
    stream = lines(here)
    fill(stream)
    await there.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await stream.drain()
    await stream.aclose()
    assert trio.current_time() == 0


async def test_closing_a_second_time_ends_the_first(autojump_clock: trio.testing.MockClock) -> None:
    here, _ = memory_wire()
    stream = lines(here)
    fill(stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.aclose)
        await trio.sleep(1)
        await stream.aclose()
    assert trio.current_time() == 1


async def test_a_peer_whose_line_is_too_large_gets_the_pending_messages(autojump_clock: trio.testing.MockClock) -> None:
    # The peer is in the middle of sending when the error goes out: what it sends is discarded, so that it can read it.
    here, there = memory_wire(room=1000)
    stream = LineStream(here, max_message_size=100)
    other = lines(there)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.send, b"x" * 100_000)
        with pytest.raises(MessageTooLarge):
            await stream.receive()
        stream.send_nowait([b"too large"])
        nursery.start_soon(stream.aclose)
        assert await other.receive() == b"too large"
        with pytest.raises(trio.EndOfChannel):
            await other.receive()
        await other.aclose()
    assert trio.current_time() == 0
