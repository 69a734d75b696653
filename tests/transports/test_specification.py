"""The specification of `MessageStream`. Each transport runs through all of it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import ByteStream, TrioBytes
from tests.kit.wires import (
    MIB,
    close_all,
    close_at_once,
    collect,
    fill,
    memory_wire,
    pipe_wire,
    socket_wire,
    thread_wire,
    tls_inside,
    tls_wire,
    tunnel_over,
    upgrade,
)
from tests.transports.conftest import Tls


@dataclass
class Link:
    """Two connected streams."""

    here: MaintainedStream
    there: MaintainedStream
    counts_unread: bool = False
    """True if what the other end has not received yet counts as pending."""


Open = Callable[[Tls], AbstractAsyncContextManager[Link]]


@asynccontextmanager
async def in_memory(tls: Tls) -> AsyncIterator[Link]:
    yield Link(*memory_message_stream_pair(), counts_unread=True)


def lines(stream: ByteStream) -> LineStream:
    return LineStream(stream, max_message_size=64 * MIB)


@asynccontextmanager
async def lines_over_a_trio_stream(tls: Tls) -> AsyncIterator[Link]:
    here, there = trio.testing.memory_stream_pair()
    yield Link(lines(TrioBytes(here)), lines(TrioBytes(there)))


@asynccontextmanager
async def lines_over_memory(tls: Tls) -> AsyncIterator[Link]:
    here, there = memory_wire()
    yield Link(lines(here), lines(there))


@asynccontextmanager
async def lines_over_sockets(tls: Tls) -> AsyncIterator[Link]:
    here, there = socket_wire()
    yield Link(lines(here), lines(there))


@asynccontextmanager
async def lines_over_tls(tls: Tls) -> AsyncIterator[Link]:
    here, there = await tls_wire(tls)
    yield Link(lines(here), lines(there))


@asynccontextmanager
async def lines_over_pipes(tls: Tls) -> AsyncIterator[Link]:
    here, there = pipe_wire()
    yield Link(lines(here), lines(there))


@asynccontextmanager
async def lines_over_threads(tls: Tls) -> AsyncIterator[Link]:
    here, there = thread_wire()
    yield Link(lines(here), lines(there))
    await close_at_once(here, there)
    # One end of each pipe is closed now, or soon, so that threads that were reading or writing find that.
    while here.open or there.open:
        await trio.lowlevel.checkpoint()
        await close_at_once(here, there)


@asynccontextmanager
async def websocket_over_memory(tls: Tls) -> AsyncIterator[Link]:
    yield Link(*await upgrade(*memory_wire()))


@asynccontextmanager
async def websocket_over_sockets(tls: Tls) -> AsyncIterator[Link]:
    yield Link(*await upgrade(*socket_wire()))


@asynccontextmanager
async def websocket_over_tls(tls: Tls) -> AsyncIterator[Link]:
    yield Link(*await upgrade(*await tls_wire(tls)))


@asynccontextmanager
async def lines_over_a_tunnel(tls: Tls) -> AsyncIterator[Link]:
    here, there = await tunnel_over(*memory_wire())
    yield Link(lines(here), lines(there))


@asynccontextmanager
async def lines_over_a_tunnel_with_little_room(tls: Tls) -> AsyncIterator[Link]:
    here, there = await tunnel_over(*memory_wire(room=100))
    yield Link(lines(here), lines(there))


@asynccontextmanager
async def lines_over_tls_inside(tls: Tls) -> AsyncIterator[Link]:
    here, there = await tls_inside(*memory_wire(), tls)
    yield Link(lines(here), lines(there))


@asynccontextmanager
async def websocket_over_tls_in_a_tunnel(tls: Tls) -> AsyncIterator[Link]:
    yield Link(*await upgrade(*await tls_inside(*await tunnel_over(*socket_wire()), tls)))


TRANSPORTS: list[Open] = [
    in_memory,
    lines_over_a_trio_stream,
    lines_over_memory,
    lines_over_sockets,
    lines_over_tls,
    lines_over_pipes,
    lines_over_threads,
    websocket_over_memory,
    websocket_over_sockets,
    websocket_over_tls,
    lines_over_a_tunnel,
    lines_over_a_tunnel_with_little_room,
    lines_over_tls_inside,
    websocket_over_tls_in_a_tunnel,
]


BOUNDED = [opening for opening in TRANSPORTS if opening is not lines_over_a_trio_stream]
"""Those that do not take whatever is sent, read or not."""


def from_both_ends(openings: list[Open]) -> list[object]:
    return [
        pytest.param((opening, turned), id=opening.__name__ + "-turned" * turned)
        for opening in openings
        for turned in (False, True)
    ]


@asynccontextmanager
async def opened(param: tuple[Open, bool], tls: Tls) -> AsyncIterator[Link]:
    opening, turned = param
    async with opening(tls) as link:
        if turned:
            link.here, link.there = link.there, link.here
        yield link
        await close_at_once(link.here, link.there)


@pytest.fixture(params=from_both_ends(TRANSPORTS))
async def link(request: pytest.FixtureRequest, tls: Tls) -> AsyncIterator[Link]:
    """Each transport, from each of its ends."""
    async with opened(request.param, tls) as link:
        yield link


@pytest.fixture(params=from_both_ends(BOUNDED))
async def bounded_link(request: pytest.FixtureRequest, tls: Tls) -> AsyncIterator[Link]:
    """Each transport in which who sends may have to wait for who receives, from each of its ends."""
    async with opened(request.param, tls) as link:
        yield link


MESSAGES = [
    b"{}",
    b'{"text":"\\n is escaped here"}',
    '{"text":"raw \u2028, \u2029 and \u0085 are not ends of a line"}'.encode(),
    '{"text":"😀\\ud83d"}'.encode(),
    b'{"nul":"\0"}',
    b"x" * 125,
    b"x" * 126,
    b"x" * 65535,
    b"x" * 65536,
    b"x" * 300_000,
    b"{}",
]


async def send_and_receive(sender: MaintainedStream, receiver: MaintainedStream, messages: list[bytes]) -> list[bytes]:
    received: list[bytes] = []

    async def receive() -> None:
        received.extend(await collect(receiver, len(messages)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await sender.send_batch(messages)
    return received


@asynccontextmanager
async def sending(stream: MaintainedStream, *messages: bytes) -> AsyncIterator[None]:
    """Send these while the block runs: who sends may have to wait for who receives."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_batch, messages)
        yield


# Messages


async def test_messages_arrive_whole_and_in_order(link: Link) -> None:
    assert await send_and_receive(link.here, link.there, MESSAGES) == MESSAGES


async def test_nothing_is_sent_where_there_is_nothing_to_send(link: Link) -> None:
    await link.here.send_batch([])
    async with sending(link.here, b"first"):
        assert await link.there.receive_batch() == [b"first"]


async def test_a_batch_that_fits_arrives_as_one(link: Link) -> None:
    async with sending(link.here, b"1", b"2", b"3"):
        assert await link.there.receive_batch() == [b"1", b"2", b"3"]


async def test_messages_of_a_batch_can_be_received_one_by_one_and_the_rest_at_once(link: Link) -> None:
    async with sending(link.here, b"1", b"2", b"3", b"4"):
        assert await link.there.receive() == b"1"
    assert await link.there.receive() == b"2"
    assert await link.there.receive_batch() == [b"3", b"4"]


async def test_both_ends_can_send_more_than_the_transport_holds_at_the_same_time(link: Link) -> None:
    there_and_back = [b"a" * MIB, b"b" * 10, b"c" * MIB]
    results: list[list[bytes]] = []

    async def send(sender: MaintainedStream, receiver: MaintainedStream) -> None:
        results.append(await send_and_receive(sender, receiver, there_and_back))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, link.here, link.there)
        nursery.start_soon(send, link.there, link.here)
    assert results == [there_and_back, there_and_back]


async def test_each_of_several_senders_keeps_its_order_and_no_message_is_torn(link: Link) -> None:
    count = 20

    async def send(name: str) -> None:
        for number in range(count):
            await link.here.send(f"{name} {number} {'x' * 9_000}".encode())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.run)
        for name in "abc":
            nursery.start_soon(send, name)
        received = await collect(link.there, 3 * count)
        nursery.cancel_scope.cancel()
    words = [message.decode().split() for message in received]
    assert {rest for _, _, rest in words} == {"x" * 9_000}
    for name in "abc":
        assert [int(number) for sender, number, _ in words if sender == name] == list(range(count))


# Backpressure


async def test_run_writes_what_send_nowait_has_kept(link: Link) -> None:
    sent = fill(link.here)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.run)
        link.here.send_nowait([b"the", b"end"])
        received = await collect(link.there, sent + 2)
        await link.here.drain()
        nursery.cancel_scope.cancel()
    assert received == [b"x" * 10_000] * sent + [b"the", b"end"]
    assert link.here.pending_bytes == 0


async def test_drain_returns_once_no_more_than_so_many_bytes_are_left(link: Link) -> None:
    fill(link.here)
    link.here.send_nowait([b"y" * 100_000] * 10)
    before = link.here.pending_bytes
    assert before >= 1_000_000

    async def read() -> None:
        async for _ in link.there:
            pass

    await link.here.drain(before)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await link.here.drain(500_000)
        assert link.here.pending_bytes <= 500_000
        await link.here.drain()
        assert link.here.pending_bytes == 0
        nursery.cancel_scope.cancel()


async def test_drain_waits_for_a_peer_that_does_not_read(bounded_link: Link) -> None:
    fill(bounded_link.here)
    bounded_link.here.send_nowait([b"y" * MIB])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bounded_link.here.drain)
        for _ in range(10):
            await trio.testing.wait_all_tasks_blocked()
        assert bounded_link.here.pending_bytes > 0
        nursery.cancel_scope.cancel()


async def test_several_tasks_can_drain_beside_run(link: Link) -> None:
    sent = fill(link.here)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.drain)
        nursery.start_soon(link.here.run)
        nursery.start_soon(link.here.drain)
        nursery.start_soon(link.here.drain, 1000)
        assert len(await collect(link.there, sent)) == sent
        await link.here.drain()
        nursery.cancel_scope.cancel()


# Cancellation


async def test_cancelling_a_receiver_loses_nothing(link: Link) -> None:
    received: list[bytes] = []

    async def receive() -> None:
        received.extend(await link.there.receive_batch())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.run)
        for number in range(10):
            with trio.CancelScope() as scope:
                scope.cancel()
                await receive()
            async with trio.open_nursery() as waiting:
                waiting.start_soon(receive)
                await trio.testing.wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            link.here.send_nowait([b"%d" % number])
        while len(received) < 10:
            await receive()
        nursery.cancel_scope.cancel()
    assert received == [b"%d" % number for number in range(10)]


async def test_cancelling_a_writer_loses_and_repeats_nothing(link: Link) -> None:
    sent = fill(link.here, b"z" * 50_000)
    writers: list[Callable[[], Awaitable[None]]] = [link.here.drain, link.here.run, lambda: link.here.send(b"last")]
    for write in writers:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.run)
        received = await collect(link.there, sent + 1)
        nursery.cancel_scope.cancel()
    assert received == [b"z" * 50_000] * sent + [b"last"]


# The end


async def test_a_peer_that_closes_ends_the_stream_behind_its_last_message(link: Link) -> None:
    async with trio.open_nursery() as nursery:
        link.there.send_nowait([b"1", b"2"])
        nursery.start_soon(link.there.aclose)
        assert await collect(link.here, 2) == [b"1", b"2"]
        for _ in range(2):
            with pytest.raises(trio.EndOfChannel):
                await link.here.receive()
        await link.here.aclose()


async def test_iterating_ends_with_the_stream(link: Link) -> None:
    async with trio.open_nursery() as nursery:
        link.there.send_nowait([b"1", b"2"])
        nursery.start_soon(link.there.aclose)
        assert [message async for batch in link.here for message in batch] == [b"1", b"2"]
        await link.here.aclose()


async def test_an_iteration_can_be_left_and_taken_up_again(link: Link) -> None:
    async with sending(link.there, b"1"):
        async for batch in link.here:
            assert batch == [b"1"]
            break
    async with sending(link.there, b"2"):
        assert await link.here.receive() == b"2"


async def test_closing_writes_what_is_pending_first(link: Link) -> None:
    sent = fill(link.here)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.aclose)
        assert [message async for batch in link.there for message in batch] == [b"x" * 10_000] * sent
        await link.there.aclose()


async def test_closing_writes_what_is_pending_first_also_beside_run(link: Link) -> None:
    sent = fill(link.here)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(link.here.aclose)
        assert [message async for batch in link.there for message in batch] == [b"x" * 10_000] * sent
        await link.there.aclose()


async def test_a_closed_stream_can_be_closed_again_and_nothing_else(link: Link) -> None:
    await close_all(link.here, link.there)
    await link.here.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await link.here.receive()
    with pytest.raises(trio.ClosedResourceError):
        link.here.send_nowait([b"{}"])
    with pytest.raises(trio.ClosedResourceError):
        await link.here.send(b"{}")


async def test_messages_after_aclose_are_not_received(link: Link) -> None:
    link.there.send_nowait([b"too late"])
    if not link.counts_unread:
        await link.there.drain()
    await close_at_once(link.here)
    with pytest.raises(trio.ClosedResourceError):
        await link.here.receive()


async def test_a_task_that_receives_learns_that_its_stream_is_closed(link: Link) -> None:
    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await link.here.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await close_at_once(link.here)


async def test_both_ends_can_be_closed_at_once_while_both_receive(link: Link) -> None:
    async def receive(stream: MaintainedStream) -> None:
        with pytest.raises((trio.ClosedResourceError, trio.EndOfChannel)):
            await stream.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive, link.here)
        nursery.start_soon(receive, link.there)
        await trio.testing.wait_all_tasks_blocked()
        await close_all(link.here, link.there)


async def test_a_task_that_drains_learns_that_its_stream_is_closed(bounded_link: Link) -> None:
    fill(bounded_link.here)
    bounded_link.here.send_nowait([b"y" * MIB])

    async def drain() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await bounded_link.here.drain()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain)
        nursery.start_soon(drain)
        await trio.testing.wait_all_tasks_blocked()
        await close_at_once(bounded_link.here)


async def test_cancelled_closing_closes_at_once(bounded_link: Link) -> None:
    fill(bounded_link.here)
    bounded_link.here.send_nowait([b"y" * MIB])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bounded_link.here.aclose)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.ClosedResourceError):
        await bounded_link.here.receive()


async def test_nothing_can_be_sent_while_the_stream_is_being_closed(bounded_link: Link) -> None:
    fill(bounded_link.here)
    bounded_link.here.send_nowait([b"y" * MIB])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bounded_link.here.aclose)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.ClosedResourceError):
            bounded_link.here.send_nowait([b"{}"])
        with pytest.raises(trio.ClosedResourceError):
            await bounded_link.here.receive()
        nursery.cancel_scope.cancel()


async def test_run_ends_when_the_stream_is_closed(link: Link) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.here.run)
        await trio.testing.wait_all_tasks_blocked()
        await close_at_once(link.here)


async def test_sending_to_a_peer_that_is_gone_fails_and_goes_on_failing(link: Link) -> None:
    await close_at_once(link.there)

    async def send_on_and_on() -> None:
        while True:
            await link.here.send(b"x" * 10_000)

    with pytest.raises(trio.BrokenResourceError):
        await send_on_and_on()
    with pytest.raises(trio.BrokenResourceError):
        link.here.send_nowait([b"{}"])


async def test_a_task_that_drains_learns_that_the_peer_is_gone(bounded_link: Link) -> None:
    fill(bounded_link.here)
    bounded_link.here.send_nowait([b"y" * MIB])

    async def drain() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await bounded_link.here.drain()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain)
        nursery.start_soon(drain)
        await trio.testing.wait_all_tasks_blocked()
        await close_at_once(bounded_link.there)


async def test_the_last_messages_of_a_lost_peer_are_received_after_a_failed_write(link: Link) -> None:
    link.there.send_nowait([b"last", b"words"])
    if not link.counts_unread:
        await link.there.drain()
    fill(link.here)
    async with trio.open_nursery() as nursery:
        await close_at_once(link.there)
        nursery.start_soon(link.here.run)
        await trio.testing.wait_all_tasks_blocked()
        assert await collect(link.here, 2) == [b"last", b"words"]
        with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
            await link.here.receive()
        nursery.cancel_scope.cancel()
