"""A stream of bytes over a WebSocket."""

import itertools
from collections.abc import Callable

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.protocol import CLIENT, SERVER, Side

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.streams import READ_SIZE, ByteStream
from acp_gateway.transports.websocket.stream import PONG_BACKLOG, LibraryProtocol
from acp_gateway.transports.websocket.tunnel import TUNNEL_FRAME, Tunnel
from tests.kit.frames import BINARY, CLOSE, CONT, PING, PONG, TEXT, Seen, close_payload, frame, take_frames
from tests.kit.wires import MIB, Charged, MemoryBytes, Script, close_at_once, memory_wire, tunnel_over


def after_handshake(side: Side) -> LibraryProtocol:
    """The protocol object of a connection whose handshake is done."""
    protocol = LibraryProtocol(side)
    protocol.idle = True
    return protocol


def by_hand(room: int = 65536) -> tuple[Tunnel, MemoryBytes]:
    """A server's tunnel, and its peer."""
    here, there = memory_wire(room)
    return Tunnel(LibraryProtocol(SERVER), here), there


def tell(peer: MemoryBytes, *frames: tuple[int, bytes]) -> None:
    """Send these frames to a server's tunnel."""
    data = b"".join(frame(opcode, payload, masked=True) for opcode, payload in frames)
    assert peer.send_nowait(memoryview(data)) == len(data)


def seen(peer: MemoryBytes) -> list[Seen]:
    """The frames that have arrived from a server's tunnel."""
    return take_frames(peer.inbox, masked=False)


async def read_all(stream: ByteStream) -> bytes:
    received = b""
    while data := await stream.receive_some():
        received += data
    return received


# The stream


async def test_each_side_of_a_tunnel_ends_on_its_own() -> None:
    client, server = await tunnel_over(*memory_wire())
    client.send_nowait(memoryview(b"request"))
    await client.send_eof()
    assert await read_all(server) == b"request"
    server.send_nowait(memoryview(b"response"))
    await server.send_eof()
    assert await read_all(client) == b"response"
    with pytest.raises(trio.ClosedResourceError):
        client.send_nowait(memoryview(b"more"))
    await close_at_once(client, server)


async def test_the_end_of_a_side_is_an_empty_binary_message() -> None:
    tunnel, peer = by_hand()
    tell(peer, (BINARY, b"in"), (BINARY, b""))
    assert await read_all(tunnel) == b"in"
    await tunnel.send_eof()
    assert seen(peer) == [Seen(BINARY, b"")]
    await tunnel.aclose()


async def test_a_tunnel_that_is_closed_politely_ends_with_a_normal_close_frame() -> None:
    tunnel, peer = by_hand()
    tell(peer, (BINARY, b"not read any more"), (BINARY, b""))
    await peer.send_eof()
    await tunnel.finish()
    assert seen(peer) == [Seen(BINARY, b""), Seen(CLOSE, close_payload(1000))]
    with pytest.raises(trio.ClosedResourceError):
        await tunnel.receive_some()


async def test_a_tunnel_can_be_closed_politely_while_a_task_reads_it() -> None:
    client, server = await tunnel_over(*memory_wire())

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await client.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(client.finish)
        assert await server.receive_some() == b""
        server.send_nowait(memoryview(b"still under way"))
        nursery.start_soon(server.finish)
    await close_at_once(client, server)


async def test_the_reason_for_a_refusal_reaches_the_peer() -> None:
    client, server = await tunnel_over(*memory_wire())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.refuse, "the node gpu2 is away")
        with pytest.raises(trio.BrokenResourceError, match="the node gpu2 is away"):
            await client.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="the node gpu2 is away"):
            await client.send_some(memoryview(b"too late"))
        await client.aclose()


async def test_a_refusal_waits_for_a_peer_that_does_not_read_no_longer_than_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tunnel, peer = by_hand(room=0)
    began = trio.current_time()
    await tunnel.refuse("no")
    assert trio.current_time() - began == CLOSE_TIMEOUT
    assert tunnel.below.closed  # type: ignore[attr-defined]
    await peer.aclose()


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([(TEXT, b"{}")], "binary messages only"),
        ([(BINARY, b"x" * (TUNNEL_FRAME + 1))], "a frame of a tunnel"),
        ([(CLOSE, close_payload(1011, "out of order"))], "out of order"),
        ([(CLOSE, close_payload(1001))], "1001"),
    ],
)
async def test_other_frames_break_a_tunnel_with_the_reason(frames: list[tuple[int, bytes]], why: str) -> None:
    tunnel, peer = by_hand(room=MIB)
    tell(peer, *frames)
    with pytest.raises(trio.BrokenResourceError, match=why):
        await tunnel.receive_some()
    with pytest.raises(trio.BrokenResourceError, match=why):
        tunnel.send_nowait(memoryview(b"answer"))
    assert seen(peer)[-1].opcode == CLOSE
    await tunnel.aclose()


async def test_bytes_behind_the_end_are_dropped_and_close_the_tunnel() -> None:
    tunnel, peer = by_hand()
    tell(peer, (BINARY, b"all"), (BINARY, b""), (BINARY, b"behind"))
    assert await read_all(tunnel) == b"all"
    assert seen(peer) == [Seen(CLOSE, close_payload(1002, "there are bytes behind the end"))]
    await tunnel.aclose()


async def test_a_tunnel_that_is_cut_is_lost() -> None:
    tunnel, peer = by_hand()
    tell(peer, (BINARY, b"some"))
    await peer.send_eof()
    assert await tunnel.receive_some() == b"some"
    with pytest.raises(trio.BrokenResourceError, match="without a closing handshake"):
        await tunnel.receive_some()
    await tunnel.aclose()


async def test_closing_a_tunnel_ends_the_tasks_that_wait() -> None:
    tunnel, peer = by_hand(room=1)

    async def ends(wait: Callable[..., object], *args: object) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await wait(*args)  # type: ignore[misc]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends, tunnel.receive_some)
        nursery.start_soon(ends, tunnel.send_some, memoryview(b"much"))
        await trio.testing.wait_all_tasks_blocked()
        await tunnel.aclose()
    await peer.aclose()


async def test_losing_a_tunnel_tells_the_tasks_that_wait_why() -> None:
    tunnel, peer = by_hand(room=1)

    async def ends(wait: Callable[..., object], *args: object) -> None:
        with pytest.raises(trio.BrokenResourceError, match="its token is not valid any more"):
            await wait(*args)  # type: ignore[misc]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends, tunnel.receive_some)
        nursery.start_soon(ends, tunnel.send_some, memoryview(b"much"))
        await trio.testing.wait_all_tasks_blocked()
        await tunnel.lose("its token is not valid any more")
    await ends(tunnel.send_some, memoryview(b"more"))
    await peer.aclose()


# Backpressure and bounds


async def test_a_tunnel_that_is_not_read_stops_who_writes() -> None:
    client, server = await tunnel_over(*memory_wire())
    data = bytes(MIB)
    sent = 0
    while taken := client.send_nowait(memoryview(data)):
        sent += taken
    assert sent <= 65536
    await close_at_once(client, server)


async def test_a_read_returns_no_more_than_its_size_and_joins_small_frames() -> None:
    tunnel, peer = by_hand(room=MIB)
    tell(peer, *[(BINARY, b"x" * 40_000)] * 3, *[(BINARY, b"y")] * 10)
    parts = [len(await tunnel.receive_some()) for _ in range(3)]
    while sum(parts) < 120_010:
        parts.append(len(await tunnel.receive_some()))
    assert max(parts) <= READ_SIZE
    assert len(parts) <= 6
    await tunnel.aclose()


async def test_other_tasks_get_their_turn_between_thousands_of_small_frames() -> None:
    tunnel, peer = by_hand(room=MIB)
    tell(peer, *[(PING, b"")] * 1000, (BINARY, b"x"))
    charged = Charged()
    tunnel.meter.charge = charged
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        assert await tunnel.receive_some() == b"x"
        nursery.cancel_scope.cancel()
    assert turns >= 50
    assert charged.frames + tunnel.meter.frames == 1001
    await tunnel.aclose()


async def test_pongs_that_a_peer_does_not_read_are_dropped() -> None:
    tunnel, peer = by_hand(room=MIB)
    peer.room = 0
    for _ in range(40):
        tell(peer, *[(PING, b"p" * 125)] * 100, (BINARY, b"x"))
        while await tunnel.receive_some() != b"x":
            pass
    assert tunnel.unwritten_bytes <= PONG_BACKLOG + TUNNEL_FRAME + 16 * 127
    await tunnel.aclose()


# Upkeep


async def test_a_ping_is_answered_between_data() -> None:
    tunnel, peer = by_hand()
    tell(peer, (BINARY, b"1"), (PING, b"?"), (BINARY, b"2"))
    assert await tunnel.receive_some() == b"12"
    assert seen(peer) == [Seen(PONG, b"?")]
    await tunnel.aclose()


async def test_keep_alive_pings_a_silent_peer_and_ends_the_tunnel_of_a_dead_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tunnel, peer = by_hand()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tunnel.keep_alive, 60, 20)
        with pytest.raises(trio.BrokenResourceError, match="no pong within 20 s"):
            await tunnel.receive_some()
    assert trio.current_time() - began == 80
    assert [each.opcode for each in seen(peer)] == [PING]
    with pytest.raises(trio.BrokenResourceError, match="no pong within 20 s"):
        await tunnel.send_some(memoryview(b"x"))


async def test_keep_alive_leaves_a_tunnel_with_a_live_peer(autojump_clock: trio.testing.MockClock) -> None:
    client, server = await tunnel_over(*memory_wire())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.keep_alive, 60, 20)
        nursery.start_soon(client.receive_some)
        nursery.start_soon(server.receive_some)
        await trio.sleep(1000)
        nursery.cancel_scope.cancel()
    assert client.send_nowait(memoryview(b"alive")) == 5
    await close_at_once(client, server)


async def test_keep_alive_leaves_a_tunnel_that_no_task_reads(autojump_clock: trio.testing.MockClock) -> None:
    tunnel, peer = by_hand()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tunnel.keep_alive, 60, 20)
        await trio.sleep(1000)
        nursery.cancel_scope.cancel()
    assert tunnel.send_nowait(memoryview(b"alive")) == 5
    await close_at_once(tunnel, peer)


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    here, there = memory_wire()
    tunnel = Tunnel(after_handshake(SERVER), here)
    data = b"".join(frame(BINARY, bytes([number]) * 300, masked=True) for number in range(20))
    received = b""
    for at in range(len(data)):
        there.send_nowait(memoryview(data[at : at + 1]))
        with trio.CancelScope() as scope:
            while True:
                scope.cancel()
                received += await tunnel.receive_some()
    # A cancelled read takes nothing, so all is still there.
    while len(received) < 20 * 300:
        received += await tunnel.receive_some()
    assert received == b"".join(bytes([number]) * 300 for number in range(20))
    await tunnel.aclose()


# Frames cut anywhere

PIECES = st.lists(st.tuples(st.sampled_from([BINARY, PING, PONG]), st.binary(max_size=300)), max_size=12)


@settings(deadline=None)
@given(pieces=PIECES, fragments=st.integers(1, 4), cuts=st.lists(st.integers(0, 4000), max_size=20), data=st.data())
def test_frames_may_be_cut_and_fragmented_anywhere(
    pieces: list[tuple[int, bytes]], fragments: int, cuts: list[int], data: st.DataObject
) -> None:
    sent, content = bytearray(), bytearray()
    for opcode, payload in pieces:
        if opcode != BINARY:
            sent += frame(opcode, payload[:125], masked=True)
        elif payload:
            content += payload
            step = max(1, len(payload) // fragments)
            parts = [payload[at : at + step] for at in range(0, len(payload), step)]
            for index, part in enumerate(parts):
                last = index == len(parts) - 1
                sent += frame(CONT if index else BINARY, part, fin=last, masked=True)
                if not last:
                    sent += frame(PING, b"between", masked=True)
    sent += frame(BINARY, b"", masked=True)
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    chunks = [bytes(sent[start:end]) for start, end in itertools.pairwise(edges)]

    async def main() -> bytes:
        return await read_all(Tunnel(after_handshake(SERVER), Script(chunks)))

    assert trio.run(main) == content


@pytest.mark.parametrize("side", [CLIENT, SERVER])
@pytest.mark.parametrize("size", [1, 125, 126, 65535, 65536])
async def test_a_header_may_come_without_what_is_behind_it(side: Side, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    sent = frame(BINARY, content, masked=side is SERVER) + frame(BINARY, masked=side is SERVER)
    head = sent.index(content) if side is CLIENT else len(sent) - size - 6
    for at in (1, head - 1, head, head + 1):
        tunnel = Tunnel(after_handshake(side), Script([sent[:at], sent[at:]]))
        assert await read_all(tunnel) == content


@settings(deadline=None, max_examples=50)
@given(
    room=st.integers(1, 100_000),
    pieces=st.lists(st.binary(max_size=1000).map(lambda part: part * 150), max_size=4),
    is_client=st.booleans(),
)
def test_all_bytes_pass_a_tunnel_however_little_room_there_is(room: int, pieces: list[bytes], is_client: bool) -> None:
    async def main() -> bytes:
        here, there = memory_wire(room)
        sides = (CLIENT, SERVER) if is_client else (SERVER, CLIENT)
        sender, receiver = (
            Tunnel(after_handshake(side), stream) for side, stream in zip(sides, (here, there), strict=True)
        )

        async def send() -> None:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[await sender.send_some(rest) :]
            await sender.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            return await read_all(receiver)

    assert trio.run(main) == b"".join(pieces)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200).filter(lambda data: data[0] != 0x88), max_size=10))
def test_any_bytes_without_an_end_end_a_tunnel_with_a_reason(chunks: list[bytes]) -> None:
    async def main() -> None:
        with pytest.raises(trio.BrokenResourceError, match=r"^[a-z].* "):
            await read_all(Tunnel(after_handshake(SERVER), Script(chunks)))

    trio.run(main)
