"""Messages as lines: where they end, what is tolerated, and what is too much."""

import itertools

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from acp_gateway.transports import framing
from acp_gateway.transports.maintained import SLOWEST_PEER
from acp_gateway.transports.ndjson import BEGUN, ENDED, MAX_SCRAP, LineStream
from acp_gateway.transports.streams import MessageSkipped, MessageTooLarge, Unfinished
from tests.kit.wires import MIB, Charged, Script, collect, memory_wire


async def received(*chunks: bytes, limit: int = MIB) -> list[bytes]:
    """The messages in these chunks, up to the end."""
    stream = LineStream(Script(chunks), max_message_size=limit)
    return [message async for batch in stream for message in batch]


async def sent(*messages: bytes) -> bytes:
    """The bytes that these messages become."""
    here, there = memory_wire()
    LineStream(here, max_message_size=MIB).send_nowait(messages)
    return bytes(there.inbox)


# Where lines end


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c"])
async def test_lines_end_at_a_line_feed_and_at_nothing_else(character: str) -> None:
    message = f'{{"text":"one{character}line"}}'.encode()
    assert await received(message + b"\n{}\n") == [message, b"{}"]
    assert await sent(message) == message + b"\n"


async def test_a_carriage_return_before_the_line_feed_is_not_part_of_the_message() -> None:
    assert await received(b'{"a":1}\r\n{"b":2}\r', b"\n") == [b'{"a":1}', b'{"b":2}']


async def test_blank_lines_are_passed_over() -> None:
    assert await received(b"\n\r\n \t \n{}\n\n", b"\n", b"  \n{}\n", b"  ") == [b"{}", b"{}"]


async def test_a_last_line_without_its_line_feed_counts() -> None:
    assert await received(b'{"a":1}\n{"b":', b"2}") == [b'{"a":1}', b'{"b":2}']


async def test_a_last_line_without_its_line_feed_is_lost_where_it_would_be_sent_again() -> None:
    stream = LineStream(Script((b'{"a":1}\n{"b":', b"2}")), max_message_size=MIB)
    stream.accepts_unterminated_line = False
    assert await stream.receive_batch() == [b'{"a":1}']
    with pytest.raises(trio.BrokenResourceError, match="in the middle of a message"):
        await stream.receive_batch()


def lines_of(text: bytes) -> list[bytes]:
    """The messages in a text, one line after the other."""
    return [line.removesuffix(b"\r") for line in text.split(b"\n") if line.strip()]


@given(st.lists(st.sampled_from([b"\n", b"\r", b" ", b"\t", b"{}", b"\x0b", b"\xc2\x85"]), max_size=30), st.data())
def test_lines_are_the_same_however_they_are_cut(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if start < end]

    async def main() -> None:
        assert await received(*chunks) == lines_of(text)

    trio.run(main)


async def test_bytes_that_are_not_utf8_pass_through() -> None:
    # What is to be said about them is for those who know JSON.
    assert await received(b'{"a":"\xff\0"}\n') == [b'{"a":"\xff\0"}']
    assert await sent(b'{"a":"\xff\0"}') == b'{"a":"\xff\0"}\n'


async def test_a_message_of_several_lines_is_sent_as_one() -> None:
    assert await sent(b"{}", b'{\r\n  "a": 1,\n  "b": "\\n"\r}', b"[]") == b'{}\n{    "a": 1,   "b": "\\n" }\n[]\n'


async def test_a_single_carriage_return_is_sent_as_a_space() -> None:
    assert await sent(b'{"a":\r1}') == b'{"a": 1}\n'


# What is too much


async def test_a_line_of_the_largest_size_is_received() -> None:
    assert await received(b"x" * 100 + b"\r\n", b"y" * 100, b"\n", limit=101) == [b"x" * 100, b"y" * 100]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"x" * 101 + b"\n"], id="whole"),
        pytest.param([b"x" * 100, b"x"], id="while it is still incomplete"),
        pytest.param([b"{}\n" + b"x" * 101], id="begun behind another"),
        pytest.param([b"x" * 100, b"x\n"], id="with its last byte"),
        pytest.param([b"x" * 101], id="at once"),
        pytest.param([b" " * 101], id="of white space"),
    ],
)
async def test_a_larger_one_breaks_the_stream_with_an_error_that_names_the_setting(chunks: list[bytes]) -> None:
    stream = LineStream(Script([*chunks, b"{}\n"]), max_message_size=100, size_setting="max_line")
    with pytest.raises(MessageTooLarge, match=r"larger than max_line \(100 bytes\)"):
        await collect(stream, 2)
    with pytest.raises(MessageTooLarge, match="max_line"):
        await stream.receive()


async def test_messages_before_one_that_is_too_large_are_received() -> None:
    stream = LineStream(Script([b"{}\n[]\n" + b"x" * 101 + b"\n{}\n"]), max_message_size=100)
    assert await stream.receive_batch() == [b"{}", b"[]"]
    with pytest.raises(MessageTooLarge, match="max_message_size"):
        await stream.receive_batch()


async def skipped(*chunks: bytes, limit: int = 100) -> list[bytes | tuple[int, bytes, bytes]]:
    """The messages in these chunks, up to the end, and what is known of those that are left out."""
    stream = LineStream(Script(chunks), max_message_size=limit, skips=True)
    found: list[bytes | tuple[int, bytes, bytes]] = []
    while True:
        try:
            found += await stream.receive_batch()
        except MessageSkipped as large:
            found.append((large.size, large.begun, large.ended))
        except trio.EndOfChannel:
            return found


LARGE = b"{" + b"x" * 200 + b"}"


@pytest.mark.parametrize("size", [1, 7, 64, 99, 100, 150, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_a_stream_that_skips_goes_on_after_a_large_line_however_it_is_cut(size: int, end: bytes) -> None:
    text = b"{}\n" + LARGE + end + b"[]\n" + LARGE + end + LARGE + end + b'{"a":1}\n'
    found = await skipped(*(text[at : at + size] for at in range(0, len(text), size)))
    assert [entry for entry in found if isinstance(entry, bytes)] == [b"{}", b"[]", b'{"a":1}']
    assert [isinstance(entry, bytes) for entry in found] == [True, False, True, False, False, True]
    for entry in found:
        assert isinstance(entry, bytes) or entry[0] in (len(LARGE), len(LARGE) + len(end) - 1)
        assert isinstance(entry, bytes) or entry[1:] == (LARGE[: len(entry[1])], entry[2])


async def test_of_a_line_that_is_left_out_the_two_ends_are_kept_and_no_more() -> None:
    (found,) = await skipped(b'{"a":', *[b"x" * MIB] * 20, b',"id":7}', b"\n")
    assert isinstance(found, tuple)
    assert found[0] == 20 * MIB + 13
    assert len(found[1]) <= BEGUN
    assert found[1].startswith(b'{"a":x')
    assert found[2].endswith(b'x,"id":7}')
    assert len(found[2]) == ENDED


async def test_a_line_that_is_being_left_out_takes_no_memory() -> None:
    here, there = memory_wire()
    stream = LineStream(here, max_message_size=100, skips=True)
    there.send_nowait(memoryview(b"{}\n" + b"x" * 101))
    assert await stream.receive() == b"{}"
    assert stream.unfinished_bytes == 0


async def test_a_large_line_without_an_end_ends_with_its_stream() -> None:
    assert await skipped(b"{}\n" + b"x" * 101, b"x" * 50) == [b"{}"]


async def test_a_line_that_begins_too_large_is_not_waited_for() -> None:
    here, there = memory_wire()
    stream = LineStream(here, max_message_size=100)
    there.send_nowait(memoryview(b"{}\n" + b"x" * 101))
    assert await stream.receive() == b"{}"
    with pytest.raises(MessageTooLarge):
        await stream.receive()


async def test_a_line_of_64_mib_in_4_kib_pieces_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = b"x" * 4096
    count = 64 * MIB // len(piece)
    joins: list[int] = []

    class CountingPieces(framing.ChunkBuffer):
        def take(self) -> bytes:
            joins.append(self.size)
            return super().take()

    monkeypatch.setattr("acp_gateway.transports.ndjson.ChunkBuffer", CountingPieces)
    stream = LineStream(Script(itertools.chain(itertools.repeat(piece, count), [b"\n"])), max_message_size=64 * MIB)
    assert len(await stream.receive()) == 64 * MIB
    assert joins == [64 * MIB]


async def test_the_search_for_the_end_of_a_line_looks_at_each_byte_once() -> None:
    looked_at = 0

    class Watched(bytes):
        def __contains__(self, key: object) -> bool:
            nonlocal looked_at
            looked_at += len(self)
            return super().__contains__(key)  # type: ignore[operator]  # bytes takes what bytes take

    pieces = [Watched(b"x" * 5000) for _ in range(100)]
    assert len(await LineStream(Script([*pieces, b"\n"]), max_message_size=MIB).receive()) == 500_000
    assert looked_at == 500_000


async def test_blank_lines_without_end_deliver_nothing_and_keep_nothing() -> None:
    stream = LineStream(Script([b"\n \r\n" * 1000] * 100), max_message_size=10)
    with pytest.raises(trio.EndOfChannel):
        await stream.receive()
    assert stream._rest.size == 0


# What is charged


async def test_blank_lines_are_counted_as_frames_without_a_message() -> None:
    stream = LineStream(Script([b"\n" * 1000, b" \r\n{}\n\n"]), max_message_size=MIB)
    stream.meter.charge = charged = Charged()
    assert await stream.receive_batch() == [b"{}"]
    assert (charged.frames, charged.size) == (1000, 1000)
    assert stream.meter.take() == (7, 2)


async def test_each_piece_of_a_line_is_charged_as_it_comes(autojump_clock: MockClock) -> None:
    stream = LineStream(Script([b"x" * 500, b"x" * 500, b"\n"]), max_message_size=MIB)
    stream.meter.charge = charged = Charged(pause=10.0)
    assert await stream.receive() == b"x" * 1000
    assert trio.current_time() == pytest.approx(10)
    assert (charged.size, stream.meter.size) == (1000, 1)


async def test_a_line_that_is_not_finished_in_time_ends_the_stream(autojump_clock: MockClock) -> None:
    here, there = memory_wire()
    stream = LineStream(here, max_message_size=MIB)
    stream.message_timeout = 60.0
    async with trio.open_nursery() as nursery:

        async def trickle() -> None:
            for _ in range(100):
                there.send_nowait(memoryview(b"x" * SLOWEST_PEER))
                await trio.sleep(2)

        nursery.start_soon(trickle)
        with pytest.raises(Unfinished, match="message_timeout"):
            await stream.receive()
        # Half as fast as it may be for as long as it takes: twice the time.
        assert trio.current_time() == pytest.approx(120, abs=3)
        nursery.cancel_scope.cancel()


async def test_message_timeout_allows_a_line_at_the_slowest_speed(autojump_clock: MockClock) -> None:
    here, there = memory_wire()
    stream = LineStream(here, max_message_size=MIB)
    stream.message_timeout = 1.5
    async with trio.open_nursery() as nursery:

        async def trickle() -> None:
            for _ in range(100):
                there.send_nowait(memoryview(b"x" * SLOWEST_PEER))
                await trio.sleep(1)
            there.send_nowait(memoryview(b"\n"))

        nursery.start_soon(trickle)
        assert len(await stream.receive()) == 100 * SLOWEST_PEER


async def test_message_timeout_does_not_count_time_in_which_no_task_reads(autojump_clock: MockClock) -> None:
    here, there = memory_wire()
    stream = LineStream(here, max_message_size=MIB)
    stream.message_timeout = 60.0
    there.send_nowait(memoryview(b"x"))
    for _ in range(5):
        with trio.move_on_after(10):
            await stream.receive()
        await trio.sleep(1000)
    there.send_nowait(memoryview(b"\n"))
    assert await stream.receive() == b"x"


@pytest.mark.parametrize("size", [MAX_SCRAP, MAX_SCRAP + 1])
async def test_a_large_message_that_was_cut_off_in_the_middle_is_not_a_message(size: int) -> None:
    assert await received(b"{}\n" + b"[" * size) == [b"{}", *([b"[" * size] if size <= MAX_SCRAP else [])]
    assert await received(b"{}\n" + b"[" * size + b"} \r") == [b"{}", b"[" * size + b"} "]


async def test_an_abandoned_line_is_not_continued() -> None:
    here, there = memory_wire()
    stream = LineStream(here, max_message_size=MIB)
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive()

        nursery.start_soon(receive)
        there.send_nowait(memoryview(b'{"text":"'))
        await trio.testing.wait_all_tasks_blocked()
        assert stream.unfinished_bytes == 9
        assert (stream.begun(4), stream.begun(100)) == (b'{"te', b'{"text":"')
        stream.abandon()
        assert stream.unfinished_bytes == 0
        there.send_nowait(memoryview(b"{}\n"))


async def test_a_smaller_limit_holds_for_lines_that_come_from_now_on() -> None:
    stream = LineStream(Script([b"x" * 101 + b"\n", b"x" * 100 + b"\n", b"x" * 101]), max_message_size=MIB)
    assert await stream.receive() == b"x" * 101
    stream.limit(100, "observer_message_size")
    assert await stream.receive() == b"x" * 100
    with pytest.raises(MessageTooLarge, match=r"observer_message_size \(100 bytes\)"):
        await stream.receive()
