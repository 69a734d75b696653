"""Bytes between two connections: whole, in order, no further ahead than the slower side, and with the end of each."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from acp_gateway.nodes.copying.pipe import ToClient, pipe
from acp_gateway.transports.streams import READ_SIZE, Flooded, Stalled, TrioBytes
from acp_gateway.transports.websocket.frames import encode_text

Pair = tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]


@dataclass
class Ends:
    """The far ends of a pipe, and how it has ended."""

    client: trio.abc.HalfCloseableStream
    node: trio.abc.HalfCloseableStream
    charged: list[int] = field(default_factory=list)
    sent: ToClient = field(default_factory=lambda: ToClient(b""))
    error: BaseException | None = None
    ended: trio.Event = field(default_factory=trio.Event)


@asynccontextmanager
async def piped(
    charge: Callable[[int], float] = lambda _: 0.0, pair: Callable[[], Pair] = trio.testing.memory_stream_pair
) -> AsyncIterator[Ends]:
    """A pipe between two connections in memory, which is closed when it has ended."""
    (client, near), (far, node) = pair(), trio.testing.memory_stream_pair()
    ends = Ends(client, node)

    def charged(size: int) -> float:
        ends.charged.append(size)
        return charge(size)

    async def run() -> None:
        sides = TrioBytes(near), TrioBytes(far)
        try:
            await pipe(*sides, 10.0, charged, ends.sent)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            ends.error = error
        for side in sides:
            await side.aclose()
        ends.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield ends
        nursery.cancel_scope.cancel()


async def test_bytes_are_copied_both_ways_at_once(autojump_clock: trio.abc.Clock) -> None:
    sent = bytes(range(256)) * 2000
    async with piped() as ends:

        async def exchange(near: trio.abc.Stream, far: trio.abc.Stream) -> None:
            received = bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.send_all, sent)
                while len(received) < len(sent):
                    received += await far.receive_some()
            assert bytes(received) == sent

        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange, ends.client, ends.node)
            nursery.start_soon(exchange, ends.node, ends.client)
        # The client alone is charged.
        assert sum(ends.charged) == len(sent)


@pytest.mark.parametrize("first", ["client", "node"])
async def test_the_end_of_a_side_ends_the_other_behind_all_bytes(first: str, autojump_clock: trio.abc.Clock) -> None:
    async with piped() as ends:
        ending, other = (ends.client, ends.node) if first == "client" else (ends.node, ends.client)
        await ending.send_all(b"last")
        await ending.send_eof()
        assert await other.receive_some() == b"last"
        assert await other.receive_some() == b""
        await ends.ended.wait()
        assert ends.error is None


@pytest.mark.parametrize("first", ["client", "node"])
async def test_the_loss_of_a_side_is_the_loss_of_the_pipe(first: str, autojump_clock: trio.abc.Clock) -> None:
    async with piped() as ends:
        ending, other = (ends.client, ends.node) if first == "client" else (ends.node, ends.client)
        await trio.aclose_forcefully(ending)
        assert await other.receive_some() == b""
        await ends.ended.wait()


async def test_a_side_that_takes_nothing_stops_the_other_and_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    async with piped(pair=trio.testing.lockstep_stream_pair) as ends:
        began = trio.current_time()
        for _ in range(20):
            await ends.node.send_all(bytes(READ_SIZE))
        await trio.testing.wait_all_tasks_blocked()
        # A part was read and offered; the rest was not even read.
        await ends.ended.wait()
        assert isinstance(ends.error, Stalled)
        assert trio.current_time() == began + 10.0


async def test_a_client_that_is_over_its_rate_is_not_read_for_as_long(autojump_clock: trio.abc.Clock) -> None:
    async with piped(lambda _: 5.0) as ends:
        await ends.client.send_all(b"a")
        began = trio.current_time()
        assert await ends.node.receive_some() == b"a"
        assert trio.current_time() == began + 5.0


async def test_a_flood_ends_the_pipe(autojump_clock: trio.abc.Clock) -> None:
    def refuse(_: int) -> float:
        raise Flooded("too much")

    async with piped(refuse) as ends:
        await ends.client.send_all(b"a")
        await ends.ended.wait()
        assert isinstance(ends.error, Flooded)
        assert await ends.node.receive_some() == b""


async def test_it_is_known_whether_the_client_was_sent_whole_frames(autojump_clock: trio.abc.Clock) -> None:
    text = encode_text([b"hello"])
    async with piped() as ends:
        for data, is_end in ((text, True), (text[:3], False), (text[3:], True), (text + text[:1], False)):
            await ends.node.send_all(data)
            assert await ends.client.receive_some() == data
            await trio.testing.wait_all_tasks_blocked()
            assert ends.sent.at_end is is_end
        await ends.client.send_all(text[:3])
        await trio.testing.wait_all_tasks_blocked()
        await ends.node.send_all(text[1:])
        await trio.testing.wait_all_tasks_blocked()
        assert ends.sent.at_end


async def test_no_frame_follows_one_that_the_client_does_not_take(autojump_clock: trio.abc.Clock) -> None:
    async with piped(pair=trio.testing.lockstep_stream_pair) as ends:
        await ends.node.send_all(encode_text([b"hello"]))
        await trio.testing.wait_all_tasks_blocked()
        assert not ends.sent.at_end
