"""WebSockets, frame by frame, against a peer by hand."""

import functools
import itertools
import math
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.protocol import CLIENT, SERVER, Side

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.maintained import SLOWEST_PEER
from acp_gateway.transports.streams import READ_SIZE, CloseReason, MessageTooLarge, Stalled, Unfinished
from acp_gateway.transports.websocket.frames import FRAME_SIZE, MAX_FRAMES
from acp_gateway.transports.websocket.stream import PONG_BACKLOG, LibraryProtocol, Timing, WebSocketStream, library_log
from tests.fuzz.effort import effort
from tests.kit.frames import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    Peer,
    Seen,
    accept_by_hand,
    close_payload,
    connect_by_hand,
    frame,
    take_frames,
)
from tests.kit.wires import MIB, NEVER, Charged, Script, close_at_once, fill, tls_wire, upgrade
from tests.transports.conftest import Tls

Clock = trio.testing.MockClock
Open = Callable[..., Awaitable[Peer]]


@pytest.fixture(params=[accept_by_hand, connect_by_hand], ids=["server", "client"])
def role(request: pytest.FixtureRequest) -> Open:
    """Our server before a client by hand, and the other way round."""
    opening: Open = request.param
    return opening


# Sending


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
async def test_a_message_is_sent_as_one_text_frame(role: Open, size: int) -> None:
    peer = await role()
    peer.stream.send_nowait([b"x" * size])
    assert peer.frames() == [Seen(TEXT, b"x" * size)]


@pytest.mark.parametrize("size", [FRAME_SIZE, FRAME_SIZE + 1, FRAME_SIZE + 126, FRAME_SIZE + 70_000, 2 * FRAME_SIZE])
async def test_a_frame_holds_16_mib_at_most(role: Open, size: int) -> None:
    peer = await role(room=64 * MIB)
    # A character of two bytes may be cut in two.
    message = b"x" + "é".encode() * (size // 2)
    message = message[:size] if size % 2 else message[: size - 1] + b"x"
    peer.stream.send_nowait([message, b"{}"])
    *frames, last = peer.frames()
    assert last == Seen(TEXT, b"{}")
    assert [len(part.payload) <= FRAME_SIZE for part in frames] == [True] * math.ceil(size / FRAME_SIZE)
    assert [part.opcode for part in frames] == [TEXT] + [CONT] * (len(frames) - 1)
    assert [part.fin for part in frames] == [False] * (len(frames) - 1) + [True]
    assert b"".join(part.payload for part in frames) == message


# Receiving


async def test_fragments_make_one_message_with_control_frames_between_them(role: Open) -> None:
    peer = await role()
    text = "é\u2028😀".encode()
    peer.send(
        peer.frame(TEXT, text[:1], fin=False),
        peer.frame(PING, b"in between"),
        peer.frame(CONT, text[1:6], fin=False),
        peer.frame(PONG),
        peer.frame(CONT, b"", fin=False),
        peer.frame(CONT, text[6:]),
        peer.frame(TEXT, b"{}"),
    )
    assert await peer.stream.receive_batch() == [text, b"{}"]
    assert peer.frames() == [Seen(PONG, b"in between")]


async def test_an_endless_row_of_empty_fragments_is_not_kept(role: Open) -> None:
    peer = await role()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.receive)
        peer.send(peer.frame(TEXT, fin=False))
        for _ in range(10):
            peer.send(*[peer.frame(CONT, fin=False)] * 1000)
            await trio.testing.wait_all_tasks_blocked()
        assert peer.stream._fragments is not None
        assert peer.stream._fragments.size == 0
        nursery.cancel_scope.cancel()
    peer.send(peer.frame(CONT, b"end"))
    assert await peer.stream.receive() == b"end"


NO_MESSAGES: dict[str, list[bytes]] = {
    "pings": [frame(PING, masked=True)] * 1000,
    "pongs": [frame(PONG, b"x", masked=True)] * 1000,
    "binary": [frame(BINARY, masked=True)] * 1000,
    "fragments": [frame(TEXT, b"x", fin=False, masked=True), *[frame(CONT, b"x", fin=False, masked=True)] * 999],
    "empty fragments": [frame(TEXT, fin=False, masked=True), *[frame(CONT, fin=False, masked=True)] * 999],
}


@pytest.mark.parametrize("kind", NO_MESSAGES)
async def test_frames_without_a_message_are_charged_a_few_at_a_time(kind: str) -> None:
    peer = await accept_by_hand()
    charged: list[int] = []

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        charged.append(frames)
        return 0.0

    peer.stream.meter.charge = charge
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.receive)
        peer.send(*NO_MESSAGES[kind])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sum(charged) == 1000
    assert max(charged) <= MAX_FRAMES


async def test_between_messages_that_only_the_library_can_read_other_tasks_have_their_turn() -> None:
    peer = await accept_by_hand()
    fragments = [peer.frame(TEXT, b"x", fin=False), *[peer.frame(CONT, fin=False)] * (MAX_FRAMES - 2), peer.frame(CONT)]
    # One read holds them all, and begins within a message: none bypasses the library.
    peer.send(peer.frame(TEXT, fin=False), peer.frame(CONT), *fragments * 20)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        received: list[list[bytes]] = []
        while sum(map(len, received)) < 21:
            received.append(await peer.stream.receive_batch())
            # As a receiver does that charges for the frames.
            peer.stream.meter.take()
        assert turns >= len(received) - 2
        nursery.cancel_scope.cancel()
    assert len(received) >= 20


async def test_a_peer_is_not_read_during_the_pause_of_its_charge(autojump_clock: Clock) -> None:
    peer = await accept_by_hand()
    pauses = [30.0]

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        return pauses.pop() if frames and pauses else 0.0

    peer.stream.meter.charge = charge
    peer.send(*[peer.frame(PING)] * (MAX_FRAMES + 1), peer.frame(TEXT, b"{}"))
    assert await peer.stream.receive_batch() == [b"{}"]
    assert trio.current_time() == pytest.approx(30)
    # What came along with a message is for its receiver to charge.
    assert peer.stream.meter.take() == (0, 1)


async def test_large_fragments_are_not_charged_as_frames() -> None:
    peer = await accept_by_hand()
    peer.stream.meter.charge = Charged()
    text = b"x" * 2000
    peer.send(peer.frame(TEXT, text, fin=False), *[peer.frame(CONT, text, fin=False)] * 200, peer.frame(CONT))
    assert await peer.stream.receive() == text * 201
    size, frames = peer.stream.meter.charge.size + peer.stream.meter.size, peer.stream.meter.charge.frames
    assert size > len(text) * 201
    # The last one ends a message.
    assert frames + peer.stream.meter.frames == 0


async def test_unfinished_bytes_counts_frames_and_fragments() -> None:
    peer = await accept_by_hand()
    steps = [
        (peer.frame(TEXT, b"x" * 500)[:300], 300),
        (peer.frame(TEXT, b"x" * 500)[300:] + peer.frame(TEXT, b"y" * 50, fin=False), 50),
        (peer.frame(PING), 50),
        (peer.frame(CONT, b"y" * 50, fin=False), 100),
        (peer.frame(CONT, b"y" * 60)[:40], 140),
        (peer.frame(CONT, b"y" * 60)[40:] + b"\x81", 1),
    ]
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            async for _ in peer.stream:
                pass

        nursery.start_soon(receive)
        for data, unfinished in steps:
            peer.send(data)
            await trio.testing.wait_all_tasks_blocked()
            # What belongs to a frame that the library has begun counts with its header or without.
            assert abs(peer.stream.unfinished_bytes - unfinished) <= 14
        nursery.cancel_scope.cancel()
    peer.stream.abandon()
    assert peer.stream.unfinished_bytes == 0
    peer.send(peer.frame(TEXT, b"z"))
    with pytest.raises(trio.ClosedResourceError):
        await peer.stream.receive()


@pytest.mark.parametrize(
    "begin", [[(TEXT, b"x" * 5000, False)], [(TEXT, b"x" * 4000, False), (CONT, b"x" * 1000, False)]]
)
async def test_a_message_that_is_not_finished_in_time_ends_the_stream(
    begin: list[tuple[int, bytes, bool]], autojump_clock: Clock
) -> None:
    peer = await accept_by_hand()
    peer.stream.message_timeout = 60.0
    peer.send(*[peer.frame(opcode, payload, fin=fin) for opcode, payload, fin in begin])
    with pytest.raises(Unfinished, match=r"within message_timeout \(60 s, and 1 s for each 4096 of its bytes\)"):
        await peer.stream.receive()
    assert trio.current_time() == pytest.approx(60 + 5000 / SLOWEST_PEER, abs=0.1)


async def test_a_smaller_limit_holds_for_messages_that_come_from_now_on() -> None:
    peer = await accept_by_hand()
    peer.send(peer.frame(TEXT, b"x" * 200))
    assert await peer.stream.receive() == b"x" * 200
    peer.stream.limit(100, "observer_message_size")
    peer.send(peer.frame(TEXT, b"x" * 100), peer.frame(TEXT, b"x" * 101)[:8])
    assert await peer.stream.receive() == b"x" * 100
    with pytest.raises(MessageTooLarge, match=r"observer_message_size \(100 bytes\)"):
        await peer.stream.receive()


async def test_binary_messages_are_ignored_whole_and_in_fragments(role: Open) -> None:
    peer = await role()
    peer.send(
        peer.frame(BINARY, b"\xff"),
        peer.frame(TEXT, b"1"),
        peer.frame(BINARY, b"\xff", fin=False),
        peer.frame(CONT, b"\xff", fin=False),
        peer.frame(CONT, b"\xff"),
        peer.frame(TEXT, b"2", fin=False),
        peer.frame(CONT, b"3"),
    )
    assert await peer.stream.receive_batch() == [b"1", b"23"]


async def test_binary_messages_count_as_text_once_they_are_accepted(role: Open) -> None:
    peer = await role()
    peer.stream.accept_binary()
    peer.send(
        peer.frame(TEXT, b"1"),
        peer.frame(BINARY, b"2\n"),
        peer.frame(BINARY, b"3", fin=False),
        peer.frame(CONT, b"4"),
        peer.frame(BINARY, b"\xff"),
    )
    got = [await peer.stream.receive(), await peer.stream.receive(), await peer.stream.receive()]
    assert got == [b"1", b"2\n", b"34"]
    with pytest.raises(trio.BrokenResourceError, match="not UTF-8"):
        await peer.stream.receive()


async def test_pong_backlog_bounds_the_pongs_for_a_peer_that_reads_nothing(role: Open) -> None:
    peer = await role(room=4096)
    sent = fill(peer.stream, b"x" * 1000)
    before = peer.stream.pending_bytes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.receive)
        for _ in range(2000):
            peer.send(*[peer.frame(PING, b"x" * 120)] * 20)
            await trio.testing.wait_all_tasks_blocked()
        assert peer.stream.pending_bytes - before <= PONG_BACKLOG + 4096
        # Once it takes what is there, it gets its pongs again, and never lost anything else.
        peer.wire.room = MIB
        peer.wire.peer.wake()
        await peer.stream.drain()
        assert sum(got.opcode == TEXT for got in peer.frames()) == sent
        peer.send(peer.frame(PING, b"again"))
        await trio.testing.wait_all_tasks_blocked()
        assert peer.frames() == [Seen(PONG, b"again")]
        nursery.cancel_scope.cancel()


# Past the library


LIMIT = 300


class Busy(LibraryProtocol):
    """Sees everything, because nothing is led past it."""

    @property
    def idle(self) -> bool:
        return False

    @idle.setter
    def idle(self, idle: bool) -> None:
        pass


class Listener(Script):
    """Sends these chunks and ends, and keeps what it gets."""

    def __init__(self, chunks: list[bytes]) -> None:
        super().__init__(chunks)
        self.got = bytearray()

    def send_nowait(self, data: memoryview) -> int:
        self.got += data
        return len(data)


Heard = tuple[list[list[bytes]], str, list[Seen], int | None, str]


async def hear(kind: type[LibraryProtocol], side: Side, chunks: list[bytes], limit: int = LIMIT) -> Heard:
    """The batches that come of these chunks, how it ends, what is answered, and what the peer's goodbye says."""
    wire = Listener(chunks)
    stream = WebSocketStream(kind(side, max_size=limit, logger=library_log), wire, NEVER, {})
    batches: list[list[bytes]] = []
    while True:
        try:
            batches.append(await stream.receive_batch())
        except (trio.EndOfChannel, trio.BrokenResourceError) as error:
            answers = take_frames(wire.got, masked=side is CLIENT)
            return batches, repr(error), answers, stream.close_code, stream.close_text


def with_length(size_bytes: int, payload: bytes, *, masked: bool) -> bytes:
    """A text frame whose length takes so many bytes, needed or not."""
    code, mask_bit = {2: 126, 8: 127}[size_bytes], 0x80 if masked else 0
    head = bytes((0x81, mask_bit | code)) + len(payload).to_bytes(size_bytes)
    return head + (b"\0\0\0\0" if masked else b"") + payload


TEXTS = st.one_of(
    st.text(max_size=20).map(str.encode),
    st.sampled_from([0, 1, 124, 125, 126, 127, 128, 255, 256, LIMIT - 1, LIMIT]).map(lambda size: b"x" * size),
)


def frames_of(*, masked: bool) -> st.SearchStrategy[bytes]:
    """Frames as a peer sends them that masks or not: whole messages mostly, and all that is not."""

    def good(opcode: int, payload: bytes, fin: bool) -> bytes:
        return frame(opcode, payload, fin=fin, masked=masked)

    whole = st.builds(good, st.just(TEXT), TEXTS, st.just(True))
    others = st.one_of(
        st.builds(good, st.just(TEXT), TEXTS | st.binary(max_size=5), st.just(False)),
        st.builds(good, st.just(CONT), TEXTS | st.binary(max_size=5), st.booleans()),
        st.builds(good, st.just(BINARY), st.binary(max_size=20), st.booleans()),
        st.builds(good, st.sampled_from([PING, PONG]), st.binary(max_size=126), st.just(True)),
        st.builds(good, st.sampled_from([PING, CLOSE, 3, 11]), st.binary(max_size=3), st.booleans()),
        st.builds(
            good, st.just(CLOSE), st.sampled_from([b"", close_payload(1000), close_payload(1011, "é")]), st.just(True)
        ),
        st.builds(good, st.just(TEXT), st.binary(min_size=1, max_size=5), st.just(True)),
        st.builds(good, st.just(TEXT), st.just(b"x" * (LIMIT + 1)), st.just(True)),
        st.builds(lambda text: frame(TEXT, text, masked=not masked), TEXTS),
        st.builds(
            lambda text, first: frame(TEXT, text, masked=masked, first=first), TEXTS, st.sampled_from([16, 32, 64])
        ),
        st.builds(lambda text, size: with_length(size, text, masked=masked), TEXTS, st.sampled_from([2, 8])),
        st.sampled_from([b"\x81\xff" + b"\xff" * 8, b"\x81\x7f" + b"\xff" * 8]),
        st.binary(max_size=20),
    )
    return whole | whole | whole | others


@effort(100)
@given(st.data())
def test_messages_that_bypass_the_library_are_those_that_it_would_return(data: st.DataObject) -> None:
    side = data.draw(st.sampled_from([SERVER, CLIENT]))
    frames = data.draw(st.lists(frames_of(masked=side is SERVER), max_size=12))
    # The library has to see the first one. Most cuts are between frames: anywhere else it goes on from there by itself.
    frames.insert(0, frame(TEXT, b"{}", masked=side is SERVER))
    ends = list(itertools.accumulate(map(len, frames)))
    sent = b"".join(frames)
    cuts = sorted({ends[0], *data.draw(st.lists(st.sampled_from(ends) | st.integers(ends[0], ends[-1]), max_size=6))})
    chunks = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True) if start < end]

    async def main() -> None:
        assert await hear(LibraryProtocol, side, chunks) == await hear(Busy, side, chunks)

    trio.run(main)


@pytest.mark.parametrize("side", [SERVER, CLIENT])
async def test_whole_messages_bypass_the_library_if_no_message_has_begun(side: Side) -> None:
    seen: list[bytes] = []

    class Watched(LibraryProtocol):
        def recv_frame(self, frame: Frame) -> None:
            seen.append(bytes(frame.data))
            super().recv_frame(frame)

    def text(payload: bytes, *, fin: bool = True, opcode: int = TEXT) -> bytes:
        return frame(opcode, payload, fin=fin, masked=side is SERVER)

    chunks = [
        text(b"1"),
        text(b"2") + text("3 é".encode()),
        text(b"4") + text(b"5")[:-1],
        text(b"5")[-1:] + text(b"6")[:1],
        text(b"6")[1:],
        text(b"7a", fin=False),
        text(b"7b", opcode=CONT),
        text(b"8") + text(b"ping", opcode=PING) + text(b"9"),
        text(b"10"),
    ]
    batches, *_ = await hear(Watched, side, chunks)
    assert [message for batch in batches for message in batch] == [
        b"1",
        b"2",
        "3 é".encode(),
        *b"4 5 6 7a7b 8 9 10".split(),
    ]
    # What is cut off within its header waits for the rest of that.
    assert seen == [b"1", b"7a", b"7b", b"ping", b"9"]


LARGE = 150_000
"""Bytes of a message that takes several reads."""

# To mask so much takes a while in Python.
large_frame = functools.cache(frame)


@pytest.mark.parametrize("side", [SERVER, CLIENT])
@pytest.mark.parametrize("shift", [0, 5, 4000])
@pytest.mark.parametrize(
    "end", ["goodbye", "cut off", "too large", "no UTF-8", "reserved bit", "fragment", "wrong mask"]
)
async def test_large_messages_are_those_that_the_library_would_return(side: Side, shift: int, end: str) -> None:
    masked = side is SERVER
    text = ("é" * (LARGE // 2)).encode()
    limit = LARGE + 100

    def large(payload: bytes = text, *, fin: bool = True, opcode: int = TEXT, first: int = 0) -> bytes:
        return large_frame(opcode, payload, fin=fin, masked=masked, first=first)

    ends = {
        "goodbye": large() + large(close_payload(1000), opcode=CLOSE),
        "cut off": large()[:-1],
        "too large": large(text + b"x" * 101)[:100_000],
        "no UTF-8": large(text[:-1]) + large(),
        "reserved bit": large(first=0x20),
        "fragment": large(text[1:], fin=False) + large(b"x"),
        "wrong mask": large_frame(TEXT, text, masked=not masked),
    }
    ping = large(b"ping", opcode=PING)
    begun = large(text[:-2], fin=False) + ping + large("é".encode(), opcode=CONT)
    # Where reads end moves through header and payload.
    sent = b"".join([large(b"x" * shift), large(), ping, large(), large(b"{}"), begun, large(), large(), ends[end]])
    chunks = [large(b"{}"), *(sent[start : start + READ_SIZE] for start in range(0, len(sent), READ_SIZE))]
    expected = await hear(Busy, side, chunks, limit)
    assert await hear(LibraryProtocol, side, chunks, limit) == expected
    messages = [message for batch in expected[0] for message in batch]
    assert messages[:8] == [b"{}", b"x" * shift, text, text, b"{}", text, text, text]
    assert len(messages) == 8 + (end == "goodbye")


async def test_a_receiver_that_is_cancelled_within_a_message_loses_nothing_of_it(role: Open) -> None:
    peer = await role()
    whole = peer.frame(TEXT, b"x" * 100)
    peer.send(peer.frame(TEXT, b"{}"))
    assert await peer.stream.receive() == b"{}"
    for start in range(0, 60, 20):
        peer.send(whole[start : start + 20])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.receive)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    peer.send(whole[60:] + peer.frame(PING, b"p"))
    assert await peer.stream.receive() == b"x" * 100
    peer.send(peer.frame(TEXT, b"1"))
    assert await peer.stream.receive() == b"1"
    assert peer.frames() == [Seen(PONG, b"p")]


@pytest.mark.parametrize("end", ["abort", "aclose", "eof"])
async def test_a_message_that_has_begun_is_kept_after_a_loss_and_let_go_of_with_the_stream(
    role: Open, end: str
) -> None:
    peer = await role()
    peer.send(peer.frame(TEXT, b"{}"))
    await peer.stream.receive()
    peer.send(peer.frame(TEXT, b"x" * 100)[:50])
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
                await peer.stream.receive()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        assert peer.stream._begun is not None
        await peer.wire.send_eof()
        if end != "eof":
            await getattr(peer.stream, end)()
    assert bool(peer.stream.begun(100)) == (end == "eof")
    await peer.stream.abort()
    assert peer.stream._begun is None


@pytest.mark.parametrize("size", [60, 300, 70_000])
async def test_begun_returns_the_text_that_has_come_also_behind_another_frame(role: Open, size: int) -> None:
    peer, text = await role(), bytes(range(32, 127)) * (size // 95 + 1)
    whole, later = peer.frame(TEXT, text), peer.frame(CONT, text, fin=False)
    missing = len(text) // 2
    steps = [
        (peer.frame(PING) + whole[:-missing], text[:-missing]),
        (whole[-missing:] + peer.frame(TEXT, text, fin=False), text),
        (peer.frame(PING) + later + later[:-missing], text + text),
    ]
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            async for _ in peer.stream:
                pass

        nursery.start_soon(receive)
        for data, begun in steps:
            peer.send(data)
            await trio.testing.wait_all_tasks_blocked()
            assert peer.stream.begun(MIB) == begun
            assert peer.stream.begun(10) == begun[:10]
        nursery.cancel_scope.cancel()


# What breaks the stream


@pytest.mark.parametrize("end", [b"", b"\xc3"])
async def test_text_that_is_not_utf8_ends_the_stream_with_1007(role: Open, end: bytes) -> None:
    peer = await role()
    peer.send(
        peer.frame(TEXT, b"1"),
        peer.frame(TEXT, b"2"),
        peer.frame(TEXT, b"\xff", fin=False),
        peer.frame(CONT, end),
        peer.frame(TEXT, b"3"),
    )
    assert await peer.stream.receive_batch() == [b"1", b"2"]
    assert peer.frames() == [Seen(CLOSE, close_payload(1007, "a text message is not UTF-8"))]
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError, match="violated the protocol: a text message is not UTF-8"):
            await peer.stream.receive()
    with pytest.raises(trio.BrokenResourceError, match="the WebSocket is closing"):
        peer.stream.send_nowait([b"{}"])


async def test_a_message_that_is_too_large_ends_the_stream_with_1009_and_the_setting(role: Open) -> None:
    peer = await role(max_message_size=100)
    # The header alone is enough.
    peer.send(peer.frame(TEXT, b"1"), peer.frame(TEXT, b"x" * 101)[:4])
    assert await peer.stream.receive_batch() == [b"1"]
    text = "a message is larger than max_message_size (100 bytes) allows"
    assert peer.frames() == [Seen(CLOSE, close_payload(1009, text))]
    for _ in range(2):
        with pytest.raises(MessageTooLarge, match=r"^a message is larger than max_message_size \(100 bytes\) allows$"):
            await peer.stream.receive()


async def test_fragments_that_are_too_large_together_end_the_stream_with_1009(role: Open) -> None:
    peer = await role(max_message_size=100)
    peer.send(peer.frame(TEXT, b"x" * 60, fin=False), peer.frame(CONT, b"x" * 40, fin=False), peer.frame(CONT, b"x"))
    with pytest.raises(MessageTooLarge):
        await peer.stream.receive()
    assert [got.payload[:2] for got in peer.frames()] == [close_payload(1009)]


async def test_messages_of_the_largest_size_are_received(role: Open) -> None:
    peer = await role(max_message_size=100)
    peer.send(peer.frame(TEXT, b"x" * 100), peer.frame(TEXT, b"y" * 60, fin=False), peer.frame(CONT, b"y" * 40))
    assert await peer.stream.receive_batch() == [b"x" * 100, b"y" * 100]


async def test_bytes_that_are_not_frames_end_the_stream_with_1002(role: Open) -> None:
    peer = await role()
    peer.send(peer.frame(TEXT, b"1"), peer.frame(TEXT, b"2", first=0x40))
    assert await peer.stream.receive_batch() == [b"1"]
    assert peer.frames() == [Seen(CLOSE, close_payload(1002, "reserved bits must be 0"))]
    with pytest.raises(trio.BrokenResourceError, match="violated the protocol: reserved bits must be 0"):
        await peer.stream.receive()


async def test_a_connection_that_ends_without_a_close_frame_is_lost(role: Open) -> None:
    peer = await role()
    peer.send(peer.frame(TEXT, b"1"), peer.frame(TEXT, b"half")[:-1])
    await peer.wire.send_eof()
    assert await peer.stream.receive_batch() == [b"1"]
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError, match="ended without a closing handshake"):
            await peer.stream.receive()


# The peer's goodbye


async def test_close_code_and_close_text_are_those_of_the_peers_close_frame(role: Open) -> None:
    peer = await role()
    assert peer.stream.close_code is None
    assert peer.stream.close_text == ""
    peer.send(peer.frame(TEXT, b"1"), peer.frame(CLOSE, close_payload(1011, "the agent is gone")))
    assert await peer.stream.receive_batch() == [b"1"]
    for _ in range(2):
        with pytest.raises(trio.EndOfChannel):
            await peer.stream.receive()
    assert peer.stream.close_code == 1011
    assert peer.stream.close_text == "the agent is gone"
    assert peer.frames() == [Seen(CLOSE, close_payload(1011, "the agent is gone"))]


async def test_a_close_frame_may_be_empty(role: Open) -> None:
    peer = await role()
    peer.send(peer.frame(CLOSE))
    with pytest.raises(trio.EndOfChannel):
        await peer.stream.receive()
    assert peer.stream.close_code == 1005
    assert peer.frames() == [Seen(CLOSE, b"")]


async def test_the_last_messages_of_a_lost_peer_are_received_although_replies_fail(role: Open) -> None:
    peer = await role()
    peer.send(peer.frame(PING), peer.frame(TEXT, b"1"), peer.frame(CLOSE, close_payload(1001)))
    await peer.wire.aclose()
    assert await peer.stream.receive_batch() == [b"1"]
    with pytest.raises(trio.EndOfChannel):
        await peer.stream.receive()
    assert peer.stream.close_code == 1001


async def test_aclose_after_the_peers_close_frame_does_not_wait(role: Open, autojump_clock: Clock) -> None:
    peer = await role()
    peer.send(peer.frame(CLOSE, close_payload(1000)))
    with pytest.raises(trio.EndOfChannel):
        await peer.stream.receive()
    await peer.stream.aclose()
    assert trio.current_time() == 0
    assert peer.frames() == [Seen(CLOSE, close_payload(1000))]
    assert await peer.wire.receive_some() == b""


async def test_aclose_after_the_peers_close_frame_ends_tls(tls: Tls) -> None:
    here, there = await upgrade(*await tls_wire(tls))
    there._write(there._close_frame(CloseReason.NORMAL, ""))
    with pytest.raises(trio.EndOfChannel):
        await here.receive()
    await here.aclose()
    there.bytes._sock.suppress_ragged_eofs = False  # type: ignore[attr-defined]  # it is an ssl.SSLSocket
    while await there.bytes.receive_some():
        pass
    await close_at_once(there)


# Our goodbye


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (CloseReason.NORMAL, 1000),
        (CloseReason.GOING_AWAY, 1001),
        (CloseReason.POLICY, 1008),
        (CloseReason.TOO_LARGE, 1009),
        (CloseReason.AGENT_GONE, 1011),
    ],
)
async def test_aclose_sends_the_reason_after_pending_messages(
    role: Open, reason: CloseReason, code: int, autojump_clock: Clock
) -> None:
    peer = await role(room=1000)
    peer.stream.send_nowait([b"x" * 10_000])
    frames: list[Seen] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.aclose, reason, "that's why")
        received = bytearray()
        while data := await peer.wire.receive_some():
            received += data
        frames = take_frames(received, masked=not peer.is_client)
        peer.send(peer.frame(CLOSE, close_payload(code)))
        await peer.wire.send_eof()
    assert frames == [Seen(TEXT, b"x" * 10_000), Seen(CLOSE, close_payload(code, "that's why"))]
    assert trio.current_time() == 0
    assert peer.stream.bytes.closed  # type: ignore[attr-defined]  # it is a MemoryBytes


async def test_aclose_waits_close_timeout_for_the_peers_close_frame(role: Open, autojump_clock: Clock) -> None:
    peer = await role()
    await peer.stream.aclose()
    assert trio.current_time() == CLOSE_TIMEOUT
    assert [got.payload[:2] for got in peer.frames()] == [close_payload(1000)]


@pytest.mark.parametrize("text", ["x" * 200, "é" * 100, "é" * 61 + "x" + "é"])
async def test_a_long_reason_is_cut_between_characters(role: Open, text: str, autojump_clock: Clock) -> None:
    peer = await role()
    await peer.stream.aclose(CloseReason.AGENT_GONE, text)
    (goodbye,) = peer.frames()
    said = goodbye.payload[2:].decode()
    assert 122 <= len(said.encode()) <= 123
    assert text.startswith(said)


async def test_a_close_reason_that_is_not_utf8_is_replaced(role: Open, autojump_clock: Clock) -> None:
    # A path that isn't UTF-8 gets into error messages like this.
    peer = await role()
    await peer.stream.aclose(CloseReason.AGENT_GONE, "cannot start /tmp/\udcff")
    assert peer.frames() == [Seen(CLOSE, close_payload(1011, "cannot start /tmp/?"))]


async def test_closing_after_a_violation_leaves_the_peer_time_to_read_why(role: Open, autojump_clock: Clock) -> None:
    peer = await role(max_message_size=100, room=2000)
    peer.send(peer.frame(TEXT, b"x" * 1000)[:500])
    with pytest.raises(MessageTooLarge):
        await peer.stream.receive()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.aclose, CloseReason.TOO_LARGE)
        for _ in range(10):
            await trio.testing.wait_all_tasks_blocked()
            peer.send(b"x" * 1000)
        assert [got.payload[:2] for got in peer.frames()] == [close_payload(1009)]
        assert await peer.wire.receive_some() == b""
        await peer.wire.send_eof()
    assert trio.current_time() == 0


# Peers that do not read


STALL = Timing(ping_interval=math.inf, ping_timeout=math.inf, stall_timeout=60)


async def test_a_stalled_reader_gets_the_rest_of_its_frame_and_1008(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=STALL, room=1000)
    peer.stream.send_nowait([b"a" * 600, b"b" * 600])
    peer.stream.send_nowait([b"c" * 600])
    received = bytearray()

    async def read_at_last() -> None:
        await trio.sleep(62)
        while data := await peer.wire.receive_some():
            received.extend(data)

    async def receive() -> None:
        with pytest.raises(Stalled, match="the peer took nothing for 60 s"):
            await peer.stream.receive()

    async def drain() -> None:
        # Learns of it once the goodbye is said: a task that drains may close, or cancel, and cut it off.
        with pytest.raises(Stalled):
            await peer.stream.drain()
        assert trio.current_time() == 62

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await trio.testing.wait_all_tasks_blocked()
        for task in (receive, drain, read_at_last):
            nursery.start_soon(task)
    text = "the peer took nothing for 60 s"
    assert take_frames(received, masked=not peer.is_client) == [
        Seen(TEXT, b"a" * 600),
        Seen(TEXT, b"b" * 600),
        Seen(CLOSE, close_payload(1008, text)),
    ]
    assert received == b""
    with pytest.raises(Stalled):
        peer.stream.send_nowait([b"{}"])


async def test_of_frames_that_have_not_begun_to_leave_none_does(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=STALL, room=1000)
    peer.wire.room = 0
    peer.stream.send_nowait([b"a" * 600, b"b" * 600])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await trio.sleep(62)
        peer.wire.room = 10_000
        peer.wire.peer.wake()
    assert [got.opcode for got in peer.frames()] == [CLOSE]
    assert peer.wire.inbox == b""


async def test_a_stalled_peer_may_be_lost_when_its_close_frame_is_sent(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=STALL, room=1000)
    fill(peer.stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await trio.sleep(61)
        await peer.wire.aclose()
    assert trio.current_time() == 61


async def test_a_stalled_peer_that_sends_a_close_frame_was_stalled_all_the_same(
    role: Open, autojump_clock: Clock
) -> None:
    peer = await role(timing=STALL, room=1000)
    peer.stream.send_nowait([b"a" * 2000])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)

        async def answer() -> None:
            await trio.sleep(62)
            peer.send(peer.frame(CLOSE, close_payload(1008)))

        nursery.start_soon(answer)
        with pytest.raises(Stalled, match="the peer took nothing for 60 s"):
            await peer.stream.receive()


async def test_a_stall_after_the_peers_close_frame_sends_no_second_one(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=STALL, room=1000)
    peer.stream.send_nowait([b"a" * 2000])
    peer.send(peer.frame(CLOSE, close_payload(1000)))
    with pytest.raises(trio.EndOfChannel):
        await peer.stream.receive()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
    assert trio.current_time() == 60 + CLOSE_TIMEOUT


async def test_aclose_of_a_stalled_stream_waits_for_its_close_frame(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=STALL, room=1000)
    peer.stream.send_nowait([b"a" * 2000])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await trio.sleep(61)
        nursery.start_soon(peer.stream.aclose)
        await trio.sleep(1)
        received = bytearray()
        while data := await peer.wire.receive_some():
            received += data
    assert [got.opcode for got in take_frames(received, masked=not peer.is_client)] == [TEXT, CLOSE]


@pytest.mark.parametrize("turned", [False, True])
async def test_a_stalled_peer_over_tls_gets_whole_frames_and_1008(
    tls: Tls, turned: bool, autojump_clock: Clock
) -> None:
    # OpenSSL keeps a record that it could not write: what follows must begin with the very same bytes.
    ends = await upgrade(*await tls_wire(tls), timing=STALL)
    here, there = reversed(ends) if turned else ends
    message = bytes(range(32, 127)) * 10
    count = fill(here, message)
    for _ in range(100):
        here.send_nowait([message])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.run)
        await trio.sleep(62)
        received = [message async for batch in there for message in batch]
    assert set(received) == {message}
    assert count - 1 <= len(received) < count + 100
    assert there.close_code == 1008
    await close_at_once(here, there)


# Pings


PINGS = Timing(ping_interval=20, ping_timeout=20, stall_timeout=math.inf)


async def watch(peer: Peer, seconds: float, *, answer: bool) -> list[tuple[float, int]]:
    """When which frames came in these seconds; pings are answered or not."""
    seen = []
    for _ in range(int(seconds)):
        await trio.sleep(1)
        for got in peer.frames():
            seen.append((trio.current_time(), got.opcode))
            if got.opcode == PING and answer:
                peer.send(peer.frame(PONG, got.payload))
    return seen


@pytest.mark.parametrize(
    ("interval", "timeout", "times"),
    [(20, 20, [20, 40, 60, 80, 100]), (20, 5, [20, 40, 60, 80, 100]), (20, 30, [20, 50, 80])],
)
async def test_a_peer_that_answers_is_pinged_regularly(
    role: Open, autojump_clock: Clock, interval: float, timeout: float, times: list[float]
) -> None:
    peer = await role(timing=Timing(ping_interval=interval, ping_timeout=timeout, stall_timeout=math.inf))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        nursery.start_soon(peer.stream.receive)
        seen = await watch(peer, 101, answer=True)
        nursery.cancel_scope.cancel()
    # Watched once a second, it is seen in that second or the next.
    assert [opcode for _, opcode in seen] == [PING] * len(times)
    assert all(0 <= at - time <= 1 for (at, _), time in zip(seen, times, strict=True))


async def test_a_missing_pong_is_a_loss_for_every_task(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS)

    async def expect(wait: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(trio.BrokenResourceError, match="the connection was lost: no pong within 20 s"):
            await wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        nursery.start_soon(expect, peer.stream.receive)
        await trio.sleep(39)
        fill(peer.stream)
        nursery.start_soon(expect, peer.stream.drain)
    assert trio.current_time() == 40
    await expect(peer.stream.receive)
    with pytest.raises(trio.BrokenResourceError, match="no pong"):
        peer.stream.send_nowait([b"{}"])
    await peer.stream.aclose()
    assert trio.current_time() == 40


async def test_any_bytes_of_a_peer_count_as_a_pong(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)

        async def receive() -> None:
            async for _ in peer.stream:
                pass

        nursery.start_soon(receive)
        for _ in range(10):
            await trio.sleep(19)
            peer.send(peer.frame(TEXT, b"{}"))
        nursery.cancel_scope.cancel()


async def test_the_deadline_of_a_pong_does_not_count_while_no_task_reads(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await trio.sleep(50)
        # A task that begins to read in the middle of a deadline does not revive that one, only the next.
        with pytest.raises(trio.BrokenResourceError, match="no pong"):
            await peer.stream.receive()
    assert trio.current_time() == 80


async def test_a_pong_that_was_there_before_it_was_read_is_in_time(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await watch(peer, 115, answer=True)
        peer.send(peer.frame(TEXT, b"{}"))
        assert await peer.stream.receive() == b"{}"
        nursery.cancel_scope.cancel()


async def test_a_peer_that_takes_a_large_message_slowly_is_not_lost(role: Open, autojump_clock: Clock) -> None:
    # The ping is behind the message: until that is through, the peer has nothing to answer.
    peer = await role(timing=Timing(ping_interval=20, ping_timeout=20, stall_timeout=60), room=1000)
    peer.stream.send_nowait([b"x" * 10_000])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        nursery.start_soon(peer.stream.receive)
        received = bytearray()
        for _ in range(8):
            await trio.sleep(50)
            received += await peer.wire.receive_some()
        assert trio.current_time() == 400
        frames: list[Seen] = []
        while len(frames) < 2:
            received += await peer.wire.receive_some()
            frames += take_frames(received, masked=not peer.is_client)
        assert frames == [Seen(TEXT, b"x" * 10_000), Seen(PING, b"")]
        peer.send(peer.frame(PONG))
        await trio.sleep(19)
        nursery.cancel_scope.cancel()


async def test_a_pong_counts_that_came_before_all_behind_the_ping_was_taken(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS, room=1000)
    peer.stream.send_nowait([b"x" * 1500])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        nursery.start_soon(peer.stream.receive)
        await trio.sleep(21)
        peer.stream.send_nowait([b"y" * 1500])
        received = bytearray()
        frames: list[Seen] = []
        while PING not in [got.opcode for got in frames]:
            received += await peer.wire.receive_some()
            frames += take_frames(received, masked=not peer.is_client)
        peer.send(peer.frame(PONG))
        await trio.sleep(10)
        while peer.stream.pending_bytes:
            await peer.wire.receive_some()
        # The deadline, counted from when the rest was taken, passes without another sign of life.
        await trio.sleep(20.5)
        peer.stream.send_nowait([b"{}"])
        nursery.cancel_scope.cancel()


async def test_a_closing_stream_is_not_pinged_any_more(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await trio.sleep(18)
        nursery.start_soon(peer.stream.aclose)
        await trio.sleep(3)
        assert [got.opcode for got in peer.frames()] == [CLOSE]
    assert trio.current_time() == 18 + CLOSE_TIMEOUT


async def test_a_stream_is_not_pinged_after_the_peers_close_frame(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS)
    peer.send(peer.frame(CLOSE, close_payload(1000)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        with pytest.raises(trio.EndOfChannel):
            await peer.stream.receive()
        await trio.sleep(100)
        assert [got.opcode for got in peer.frames()] == [CLOSE]
        nursery.cancel_scope.cancel()


async def test_a_ping_to_a_peer_that_is_gone_is_not_an_error_of_run(role: Open, autojump_clock: Clock) -> None:
    peer = await role(timing=PINGS)
    await peer.wire.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.stream.run)
        await trio.sleep(21)
        with pytest.raises(trio.BrokenResourceError):
            await peer.stream.receive()
        nursery.cancel_scope.cancel()
