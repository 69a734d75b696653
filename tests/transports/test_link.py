"""A link sends what its peer takes, says what has arrived, and goes on over another connection as if nothing was."""

import json
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.protocol.link_messages import (
    Control,
    Mark,
    Sent,
    acknowledgement,
    goodbye,
    probe,
    read_control,
    texts_of,
    without_marks,
)
from acp_gateway.transports.link import (
    CHUNK,
    CONFIRM_BYTES,
    CONFIRM_MESSAGES,
    HEARTBEAT,
    MAX_ANSWERS,
    WINDOW,
    Link,
    Miscounted,
    Overrun,
)
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.fuzz.effort import effort
from tests.kit.doubles import FAIL, TIMEOUT, FragileStream

SMALL = b"x" * 10
HIGH_WATER = 100

BOTH_KINDS = pytest.mark.parametrize("window", [None, WINDOW], ids=["stock", "resumable"])
LOSSES = pytest.mark.parametrize(
    "error", [trio.BrokenResourceError("lost"), trio.ClosedResourceError("closed")], ids=["broken", "closed"]
)

PEER_TIMEOUT: Final = 30.0
"""Seconds of silence after which the links of these tests give up a connection."""


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def mark(position: int) -> Mark:
    return Mark(acknowledgement(0, {"s": ("e", position)}))


def connect(link: Link, peer_received: int = 0, told: int | None = None) -> MaintainedStream:
    """Give a link a connection, and return the other end of it."""
    ours, peer = memory_message_stream_pair()
    link.connect(ours, peer_received, told)
    return peer


def connect_fragile(link: Link, peer_received: int = 0) -> tuple[FragileStream, MaintainedStream]:
    """Give a link a connection that can fail, and return both ends of it."""
    ours, peer = memory_message_stream_pair()
    fragile = FragileStream(ours)
    link.connect(fragile, peer_received)
    return fragile, peer


def connect_both(left: Link, right: Link) -> tuple[MaintainedStream, MaintainedStream]:
    """Connect two links with each other, as after the exchange of counts."""
    streams = memory_message_stream_pair()
    left.disconnect()
    right.disconnect()
    left.connect(streams[0], right.received)
    right.connect(streams[1], left.received)
    return streams


async def arrived(peer: MaintainedStream) -> list[bytes]:
    """Return the messages that have arrived there and were not read yet."""
    messages: list[bytes] = []

    async def read() -> None:
        while True:
            messages.extend(await peer.receive_batch())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return messages


async def deliver(peer: MaintainedStream, link: Link, *messages: Sent) -> Sequence[Sent]:
    """Have the peer send messages in one write, and return what the link makes of them."""
    peer.send_nowait(texts_of(messages))
    return await link.receive_batch()


class Task:
    """Something that goes on beside the test."""

    def __init__(self) -> None:
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        self.ended_at = 0.0
        self.scope = trio.CancelScope()

    async def run(self, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        with self.scope:
            try:
                self.result = await function(*arguments)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel) as error:
                self.error = error
        self.done = True
        self.ended_at = trio.current_time()


async def start(nursery: trio.Nursery, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Task:
    """Start something, and let it come as far as it can."""
    task = Task()
    nursery.start_soon(task.run, function, *arguments)
    await wait_all_tasks_blocked()
    return task


# Stock peers


async def test_a_stock_peer_gets_no_control_messages() -> None:
    link = Link()
    assert not link.resumable
    peer = connect(link)
    for _ in range(3 * CONFIRM_MESSAGES):
        await deliver(peer, link, SMALL)
        link.acknowledge()
    await deliver(peer, link, b"y" * CONFIRM_BYTES)
    link.acknowledge()
    link.send([b"a", b"b"])
    assert await arrived(peer) == [b"a", b"b"]


async def test_control_messages_of_a_stock_peer_are_passed_on() -> None:
    link = Link()
    peer = connect(link)
    sent: list[Sent] = [SMALL, acknowledgement(99), goodbye(), mark(1), b"_acp-gateway/"]
    assert await deliver(peer, link, *sent) == texts_of(sent)
    assert link.left  # As any stock peer, not because of what looked like a goodbye.


# Sending


@BOTH_KINDS
async def test_send_without_a_connection_keeps_the_messages(window: int | None) -> None:
    link = Link(window=window)
    link.send([b"a"])
    link.push()
    link.flush()
    link.send_control(b"control")
    assert link.behind
    peer = connect(link)
    assert not link.behind
    assert await arrived(peer) == [b"a"]


@BOTH_KINDS
async def test_the_stream_is_handed_no_more_than_its_high_water_mark(window: int | None) -> None:
    link = Link(window=window, high_water=HIGH_WATER)
    peer = connect(link)
    link.send([b"y" * HIGH_WATER])
    link.send([b"a"])
    assert link.behind
    assert await arrived(peer) == [b"y" * HIGH_WATER]
    link.push()
    assert not link.behind
    assert await arrived(peer) == [b"a"]


async def test_much_is_handed_over_in_chunks() -> None:
    link = Link(high_water=2 * CHUNK)
    writes: list[int] = []

    class Written(FragileStream):
        def send_nowait(self, messages: Any) -> None:
            writes.append(sum(map(len, messages)))
            super().send_nowait(messages)

    ours, _peer = memory_message_stream_pair()
    link.connect(Written(ours))
    link.send([b"y" * (CHUNK // 2)] * 5)
    assert writes == [CHUNK, CHUNK]
    assert link.outbox.unwritten_bytes == CHUNK // 2


@BOTH_KINDS
async def test_pass_on_sends_at_once_or_not_at_all(window: int | None) -> None:
    link = Link(window=window, high_water=HIGH_WATER)
    assert not link.pass_on([b"a"])
    peer = connect(link)
    assert link.pass_on([b"b", b"y" * HIGH_WATER])
    assert not link.pass_on([b"c"])
    link.send([b"d"])
    assert await arrived(peer) == [b"b", b"y" * HIGH_WATER]
    assert not link.pass_on([b"e"])
    link.push()
    assert not link.pass_on([b"x" * CHUNK, b"x"])
    assert link.pass_on([b"f"])
    assert await arrived(peer) == [b"d", b"f"]
    assert link.outbox.written == 4


@LOSSES
@BOTH_KINDS
async def test_pass_on_over_a_broken_stream_keeps_messages_of_a_resumable_link_only(
    error: Exception, window: int | None
) -> None:
    link = Link(window=window)
    stream, peer = connect_fragile(link)
    stream.send_error = error
    assert link.pass_on([b"a"])
    assert list(link.outbox.messages()) == ([] if window is None else [b"a"])
    stream.send_error = None
    assert not link.pass_on([b"b"])
    assert await arrived(peer) == []


@BOTH_KINDS
async def test_the_pump_sends_the_rest_as_the_peer_takes_it(window: int | None) -> None:
    caught_up: list[bool] = []
    link = Link(window=window, high_water=HIGH_WATER, caught_up=lambda: caught_up.append(link.behind))
    peer = connect(link)
    async with trio.open_nursery() as nursery:
        pump = await start(nursery, link.pump)
        messages = [b"%d" % number + b"y" * HIGH_WATER for number in range(5)]
        for message in messages:
            link.send([message])
        assert caught_up == []
        received: list[bytes] = []
        with trio.fail_after(TIMEOUT):
            while len(received) < 5:
                received += await peer.receive_batch()
        assert received == messages
        await wait_all_tasks_blocked()
        assert caught_up == [False]
        assert not pump.done
        nursery.cancel_scope.cancel()


@BOTH_KINDS
async def test_pump_ends_after_finish_once_all_messages_are_sent(window: int | None) -> None:
    link = Link(window=window, high_water=HIGH_WATER)
    peer = connect(link)
    async with trio.open_nursery() as nursery:
        link.send([b"y" * HIGH_WATER])
        link.send([b"last words"])
        pump = await start(nursery, link.pump)
        link.finish()
        await wait_all_tasks_blocked()
        assert not pump.done
        assert await peer.receive_batch() == [b"y" * HIGH_WATER]
        await wait_all_tasks_blocked()
        assert not pump.done
        assert await peer.receive_batch() == [b"last words"]
        await wait_all_tasks_blocked()
        assert pump.done


async def test_finish_ends_a_pump_without_a_connection() -> None:
    link = Link()
    link.finish()
    with trio.fail_after(TIMEOUT):
        await link.pump()


async def test_flush_sends_all_messages_beyond_the_high_water_mark() -> None:
    link = Link(high_water=HIGH_WATER)
    peer = connect(link)
    messages = [b"y" * HIGH_WATER] * 5
    link.send(messages[:1])
    link.send(messages[1:])
    link.flush()
    assert not link.behind
    assert await arrived(peer) == messages


async def test_flush_keeps_to_the_window() -> None:
    link = Link(window=25, high_water=5)
    peer = connect(link)
    link.send([SMALL] * 4)
    link.flush()
    assert await arrived(peer) == [SMALL, SMALL, SMALL]
    assert link.outbox.unwritten_bytes == 10


async def test_send_control_overtakes_waiting_messages() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW, high_water=HIGH_WATER)
    peer = connect(link)
    link.send([b"y" * HIGH_WATER])
    link.send([b"later"])
    link.send_control(goodbye())
    assert await arrived(peer) == [b"y" * HIGH_WATER, goodbye()]
    assert link.outbox.written == 1


# Streams that break


SENDERS: dict[str, Callable[[Link], None]] = {
    "send": lambda link: link.send([b"b"]),
    "push": Link.push,
    "flush": Link.flush,
    "say": lambda link: link.send_control(acknowledgement(0)),
}


@LOSSES
@pytest.mark.parametrize("act", SENDERS.values(), ids=SENDERS)
async def test_a_stock_link_drops_messages_after_its_stream_broke(
    error: Exception, act: Callable[[Link], None]
) -> None:
    link = Link(high_water=HIGH_WATER)
    stream, peer = connect_fragile(link)
    link.send([b"y" * HIGH_WATER])
    link.send([b"a"])
    await arrived(peer)
    stream.send_error = error
    act(link)
    assert (link.behind, link.outbox.unconfirmed_bytes) == (False, 0)
    link.send([b"c"])
    assert (link.behind, link.outbox.unconfirmed_bytes) == (False, 0)
    stream.send_error = None
    link.flush()
    link.send_control(b"control")
    assert await arrived(peer) == []


@LOSSES
@pytest.mark.parametrize("act", SENDERS.values(), ids=SENDERS)
async def test_a_resumable_link_keeps_messages_that_a_broken_stream_did_not_take(
    error: Exception, act: Callable[[Link], None]
) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW, high_water=HIGH_WATER)
    stream, peer = connect_fragile(link)
    link.send([b"y" * HIGH_WATER])
    link.send([b"a"])
    await arrived(peer)
    stream.send_error = error
    act(link)
    link.send([b"c"])
    stream.send_error = None
    link.flush()
    link.send_control(b"control")
    assert await arrived(peer) == []
    link.disconnect()
    expected = [b"a", b"b", b"c"] if act is SENDERS["send"] else [b"a", b"c"]
    assert await arrived(connect(link, 1)) == expected


@LOSSES
@BOTH_KINDS
async def test_pump_outlives_a_broken_stream_until_finish(error: Exception, window: int | None) -> None:
    link = Link(window=window, high_water=HIGH_WATER)
    stream, _ = connect_fragile(link)
    link.send([b"y" * HIGH_WATER])
    link.send([b"a"])
    stream.drain_error = error
    async with trio.open_nursery() as nursery:
        pump = await start(nursery, link.pump)
        assert not pump.done
        link.finish()
        await wait_all_tasks_blocked()
        assert pump.done == (window is None)
        if window is not None:
            assert await arrived(connect(link, 1)) == [b"a"]
            await wait_all_tasks_blocked()
            assert pump.done


async def test_the_loss_of_an_older_connection_does_not_affect_the_newer_one() -> None:
    lost = trio.Event()

    class LostLater(FragileStream):
        async def drain(self, below: int = 0) -> None:
            await lost.wait()
            raise trio.BrokenResourceError("lost")

    link = Link(window=WINDOW, receive_window=WINDOW, high_water=HIGH_WATER)
    link.connect(LostLater(memory_message_stream_pair()[0]))
    link.send([b"y" * HIGH_WATER])
    link.send([b"a"])
    async with trio.open_nursery() as nursery:
        await start(nursery, link.pump)
        peer = connect(link, 1)
        lost.set()
        await wait_all_tasks_blocked()
        link.send([b"b"])
        assert await arrived(peer) == [b"a", b"b"]
        nursery.cancel_scope.cancel()


# Resuming


async def test_a_mark_arrives_at_its_place_and_is_not_counted() -> None:
    left, right = Link(window=WINDOW, receive_window=WINDOW), Link(window=WINDOW, receive_window=WINDOW)
    connect_both(left, right)
    left.send([b"0", mark(1), b"1"])
    received = await right.receive_batch()
    assert received == [b"0", mark(1), b"1"]
    assert [type(message) for message in received] == [bytes, Mark, bytes]
    assert right.received == 2
    connect_both(left, right)
    assert len(left.outbox) == 0


async def test_a_mark_comes_again_when_nothing_after_it_has_arrived() -> None:
    left, right = Link(window=WINDOW, receive_window=WINDOW), Link(window=WINDOW, receive_window=WINDOW)
    connect_both(left, right)
    left.send([b"0", mark(1)])
    await right.receive_batch()
    connect_both(left, right)
    assert await right.receive_batch() == [mark(1)]


@pytest.mark.parametrize(("peer_received", "why"), [(1, "2 were confirmed"), (4, "3 written")])
async def test_a_peer_that_has_lost_messages_or_claims_too_many_can_not_resume(peer_received: int, why: str) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    link.send(numbered(0, 3))
    await deliver(peer, link, acknowledgement(2), SMALL)
    link.disconnect()
    with pytest.raises(ValueError, match=why):
        connect(link, peer_received)
    assert link.stream is None
    assert await arrived(connect(link, 2)) == [b"2"]


async def test_caught_up_is_called_after_a_reconnect() -> None:
    caught_up: list[bool] = []
    link = Link(window=WINDOW, receive_window=WINDOW, caught_up=lambda: caught_up.append(link.behind))
    connect(link)
    assert caught_up == []
    link.disconnect()
    link.send([b"a"])
    connect(link)
    assert caught_up == [False]


# Receiving


@pytest.mark.parametrize("window", [None, WINDOW], ids=["stock", "resumable"])
async def test_receive_batch_raises_the_end_after_the_last_messages(window: int | None) -> None:
    link = Link(window=window)
    stream, peer = connect_fragile(link)
    assert await deliver(peer, link, SMALL) == [SMALL]
    stream.receive_error = trio.BrokenResourceError("lost")
    with pytest.raises(trio.BrokenResourceError, match="lost"):
        await deliver(peer, link, FAIL)
    await peer.aclose()
    with pytest.raises(trio.EndOfChannel):
        await link.receive_batch()


async def test_receive_batch_without_a_connection_is_an_error() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    with pytest.raises(trio.BrokenResourceError, match="given up"):
        await link.receive_batch()


@pytest.mark.parametrize("newer", [True, False])
async def test_messages_over_an_older_connection_do_not_count(newer: bool) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old_peer = connect(link)
    async with trio.open_nursery() as nursery:
        receiving = await start(nursery, link.receive_batch)
        old_peer.send_nowait([SMALL, acknowledgement(0)])
        if newer:
            connect(link)
        else:
            link.disconnect()
        await wait_all_tasks_blocked()
        assert isinstance(receiving.error, trio.BrokenResourceError)
    assert link.received == 0


async def test_confirmations_alone_wake_no_task() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    link.send(numbered(0, 3))
    async with trio.open_nursery() as nursery:
        receiving = await start(nursery, link.receive_batch)
        peer.send_nowait([acknowledgement(2)])
        await wait_all_tasks_blocked()
        assert not receiving.done
        assert link.outbox.confirmed == 2
        peer.send_nowait([SMALL])
        await wait_all_tasks_blocked()
        assert receiving.result == [SMALL]


async def test_confirmations_alone_are_charged_like_messages(autojump_clock: MockClock) -> None:
    link = Link(window=WINDOW)
    ours, peer = memory_message_stream_pair()
    charged: list[int] = []

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        charged.append(frames)
        return 7.0 if len(charged) == 1 else 0.0

    ours.meter.charge = charge
    link.connect(ours)
    peer.send_nowait([acknowledgement(0)] * 100)
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            assert await link.receive_batch() == [SMALL]

        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        peer.send_nowait([acknowledgement(0), SMALL])
    assert charged == [100]
    assert trio.current_time() == pytest.approx(7)
    # With a message, its receiver does it.
    assert ours.meter.take()[1] == 1


async def test_a_confirmation_with_positions_confirms_as_well() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    link.send(numbered(0, 3))
    told = acknowledgement(2, {"s": ("e", 1)})
    assert await deliver(peer, link, told) == [Mark(told)]
    assert link.outbox.confirmed == 2


async def test_requests_that_look_like_controls_are_counted_and_passed_on() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    request = b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/ack","params":{"received":5}}'
    assert await deliver(peer, link, request) == [request]
    assert link.received == 1


async def test_left_is_true_after_a_goodbye() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    assert not link.left
    assert await deliver(peer, link, b"a", goodbye(), b"b") == [b"a", b"b"]
    assert link.left
    assert link.received == 2


async def test_confirming_messages_that_were_never_sent_is_miscounted() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    link.send(numbered(0, 2))
    with pytest.raises(Miscounted, match="3 messages are confirmed, but 2 were sent"):
        await deliver(peer, link, acknowledgement(3))
    assert link.outbox.confirmed == 0


async def test_messages_of_a_miscounted_batch_do_not_count() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    link.send(numbered(0, 2))
    with pytest.raises(Miscounted):
        await deliver(peer, link, b"a", acknowledgement(1), acknowledgement(3))
    assert (link.received, link.outbox.confirmed) == (0, 1)
    peer = connect(link, 1)
    assert await deliver(peer, link, b"a") == [b"a"]


WORD = b"_acp-gateway/"
PIECES = [
    b"",
    b"x" * 300,
    b"{}",
    acknowledgement(0),
    acknowledgement(1),
    acknowledgement(0, {"s": ("e", 7)}),
    # Messages that have the word, or a part of it that another message continues.
    b'{"method":"_acp-gateway/ack","id":1}',
    WORD,
    WORD * 3,
    WORD[:4],
    WORD[4:],
]


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12))
@effort(300)
def test_control_messages_are_found_among_others_as_if_each_was_looked_at(batch: list[bytes]) -> None:
    async def main() -> None:
        link = Link(window=WINDOW, receive_window=WINDOW)
        peer = connect(link)
        link.send([b"1"])
        expected: list[bytes] = []
        for message in batch:
            control = read_control(message)
            if control is None or control.has_positions:
                expected.append(message)
        # The last one counts, so that something is received.
        got = await deliver(peer, link, *batch, b"last")
        assert texts_of(got) == [*expected, b"last"]
        positions = PIECES[5]
        assert [isinstance(it, Mark) for it in got] == [text == positions for text in texts_of(got)]
        counted = without_marks(got)
        assert link.received == len(counted)
        assert link._unhandled_bytes == link._unacknowledged_bytes == sum(map(len, counted))
        assert link.outbox.confirmed == int(acknowledgement(1) in batch)

    trio.run(main)


# Confirming


async def test_messages_are_confirmed_only_after_acknowledge() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    await deliver(peer, link, *[SMALL] * CONFIRM_MESSAGES)
    assert await arrived(peer) == []
    link.acknowledge()
    assert await arrived(peer) == [acknowledgement(CONFIRM_MESSAGES)]


async def test_a_few_messages_are_not_confirmed_at_once() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    for _ in range(CONFIRM_MESSAGES - 1):
        await deliver(peer, link, SMALL)
        link.acknowledge()
    assert await arrived(peer) == []
    await deliver(peer, link, SMALL)
    link.acknowledge()
    assert await arrived(peer) == [acknowledgement(CONFIRM_MESSAGES)]
    link.acknowledge()
    assert await arrived(peer) == []


async def test_many_bytes_are_confirmed_at_once() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    await deliver(peer, link, b"y" * (CONFIRM_BYTES - 1))
    link.acknowledge()
    assert await arrived(peer) == []
    await deliver(peer, link, b"y")
    link.acknowledge()
    assert await arrived(peer) == [acknowledgement(2)]


async def test_acknowledge_in_caught_up_confirms_no_message_before_it_is_returned() -> None:
    link = Link(window=2 * len(SMALL), high_water=HIGH_WATER, caught_up=lambda: link.acknowledge())
    peer = connect(link)
    link.send([SMALL] * 3)
    assert await arrived(peer) == [SMALL] * 2
    await deliver(peer, link, *[b"a"] * CONFIRM_MESSAGES, acknowledgement(2), b"b")
    assert await arrived(peer) == [SMALL]
    link.acknowledge()
    assert await arrived(peer) == [acknowledgement(CONFIRM_MESSAGES + 1)]


async def test_a_full_window_stops_a_sender_until_the_peer_acknowledges() -> None:
    caught_up: list[bool] = []
    left = Link(window=CONFIRM_BYTES, high_water=CONFIRM_BYTES, caught_up=lambda: caught_up.append(True))
    right = Link(window=CONFIRM_BYTES, receive_window=CONFIRM_BYTES)
    connect_both(left, right)
    half = b"y" * (CONFIRM_BYTES // 2)
    left.send([half, half, half])
    async with trio.open_nursery() as nursery:
        await start(nursery, left.receive_batch)
        await start(nursery, left.pump)
        assert await right.receive_batch() == [half, half]
        await wait_all_tasks_blocked()
        assert left.behind
        assert caught_up == []
        right.acknowledge()
        assert await right.receive_batch() == [half]
        assert not left.behind
        assert caught_up == [True]
        nursery.cancel_scope.cancel()


async def test_room_in_the_window_is_used_when_the_stream_has_room_as_well() -> None:
    link = Link(window=3 * len(SMALL), high_water=len(SMALL))
    peer = connect(link)
    link.send([SMALL] * 4)
    async with trio.open_nursery() as nursery:
        await start(nursery, link.pump)
        await start(nursery, link.receive_batch)
        peer.send_nowait([acknowledgement(3)])
        await wait_all_tasks_blocked()
        assert link.behind
        assert await peer.receive_batch() == [SMALL] * 3
        with trio.fail_after(TIMEOUT):
            assert await peer.receive_batch() == [SMALL]
        nursery.cancel_scope.cancel()


async def test_bytes_of_an_earlier_connection_are_acknowledged_before_a_window_more_is_read() -> None:
    link = Link(window=100, receive_window=100)
    peer = connect(link)
    await deliver(peer, link, SMALL * 10)
    peer = connect(link)
    peer.send_nowait([b"a"])
    async with trio.open_nursery() as nursery:
        receiving = await start(nursery, link.receive_batch)
        assert peer.pending_bytes == 1
        link.acknowledge()
        await wait_all_tasks_blocked()
        assert receiving.result == [b"a"]


async def test_less_than_a_window_of_an_earlier_connection_does_not_block_reading() -> None:
    link = Link(window=100, receive_window=100)
    peer = connect(link)
    await deliver(peer, link, SMALL * 9)
    peer = connect(link)
    assert await deliver(peer, link, SMALL * 9) == [SMALL * 9]
    assert await deliver(peer, link, SMALL * 9) == [SMALL * 9]


@pytest.mark.parametrize("newer", [True, False])
async def test_a_blocked_receiver_gets_an_error_after_disconnect(newer: bool) -> None:
    link = Link(window=100, receive_window=100)
    await deliver(connect(link), link, SMALL * 10)
    connect(link)
    async with trio.open_nursery() as nursery:
        receiving = await start(nursery, link.receive_batch)
        link.disconnect()
        if newer:
            # Who was woken finds another connection, and goes on with that.
            connect(link).send_nowait([b"a"])
        await wait_all_tasks_blocked()
        if newer:
            assert not receiving.done
            link.acknowledge()
            await wait_all_tasks_blocked()
            assert receiving.result == [b"a"]
        else:
            assert isinstance(receiving.error, trio.BrokenResourceError)


async def test_messages_confirmed_by_connect_are_not_confirmed_again() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    await deliver(peer, link, *[SMALL] * (CONFIRM_MESSAGES - 1), b"y" * CONFIRM_BYTES)
    peer = connect(link)
    link.acknowledge()
    assert await arrived(peer) == []
    await deliver(peer, link, *[SMALL] * CONFIRM_MESSAGES)
    link.acknowledge()
    assert await arrived(peer) == [acknowledgement(2 * CONFIRM_MESSAGES)]


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_sending_beyond_a_full_window_is_an_overrun(acknowledged: bool) -> None:
    link = Link(window=WINDOW, receive_window=100, enforces_window=True)
    peer = connect(link)
    await deliver(peer, link, b"one message may be larger " * 10)
    if acknowledged:
        link.acknowledge()
        await deliver(peer, link, SMALL)
        return
    # The two ends may still talk to each other.
    peer.send_nowait([acknowledgement(0), SMALL])
    with pytest.raises(Overrun):
        await link.receive_batch()
    assert link.received == 1


async def test_bytes_of_an_earlier_connection_do_not_fill_the_window() -> None:
    link = Link(window=WINDOW, receive_window=100, enforces_window=True)
    peer = connect(link)
    await deliver(peer, link, b"y" * 99)
    peer = connect(link)
    await deliver(peer, link, b"y" * 99)
    await deliver(peer, link, SMALL)
    with pytest.raises(Overrun):
        await deliver(peer, link, SMALL)


async def test_an_unterminated_line_counts_only_on_a_stock_link() -> None:
    links = Link(window=WINDOW), Link()
    for link, torn in zip(links, (False, True), strict=True):
        peer = connect(link)
        assert link.stream is not None
        assert link.stream.accepts_unterminated_line is torn
        await peer.aclose()


# Time


async def listen(link: Link) -> None:
    """Receive and acknowledge, until cancelled or lost."""
    while True:
        await link.receive_batch()
        link.acknowledge()


async def test_tick_confirms_at_each_heartbeat(autojump_clock: MockClock) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    begin = trio.current_time()
    told: list[tuple[float, bytes]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, link)
        nursery.start_soon(link.keep_alive, float("inf"))
        for messages in (2, 0, 1):
            peer.send_nowait([SMALL] * messages)
            told += [(trio.current_time() - begin, message) for message in await peer.receive_batch()]
        nursery.cancel_scope.cancel()
    assert told == [
        (1 * HEARTBEAT, acknowledgement(2)),
        (2 * HEARTBEAT, acknowledgement(2)),
        (3 * HEARTBEAT, acknowledgement(3)),
    ]


async def test_a_heartbeat_confirms_acknowledged_messages_only(autojump_clock: MockClock) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    await deliver(peer, link, SMALL)
    link.acknowledge()
    await deliver(peer, link, SMALL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.keep_alive, float("inf"))
        assert await peer.receive() == acknowledgement(1)
        nursery.cancel_scope.cancel()


async def test_messages_after_a_heartbeat_are_confirmed_by_acknowledge(autojump_clock: MockClock) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    await deliver(peer, link, b"y" * CONFIRM_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.keep_alive, float("inf"))
        assert await peer.receive() == acknowledgement(0)
        nursery.cancel_scope.cancel()
    link.acknowledge()
    assert await arrived(peer) == [acknowledgement(1)]


async def test_after_a_confirmation_the_next_heartbeat_is_later(autojump_clock: MockClock) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.keep_alive, float("inf"))
        await trio.sleep(0.6 * HEARTBEAT)
        link.send_control(acknowledgement(0))
        await peer.receive()
        await peer.receive()
        assert trio.current_time() - begin == pytest.approx(1.6 * HEARTBEAT)
        nursery.cancel_scope.cancel()


async def test_a_peer_that_is_silent_for_too_long_is_noticed(autojump_clock: MockClock) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, link)
        alive = await start(nursery, link.keep_alive, PEER_TIMEOUT)
        await trio.sleep(25)
        peer.send_nowait([SMALL])
        await trio.sleep(25)
        peer.send_nowait([acknowledgement(0)])
        await trio.sleep(100)
        assert alive.done
        assert alive.ended_at - begin == pytest.approx(50 + PEER_TIMEOUT)
        nursery.cancel_scope.cancel()


async def test_the_timeout_of_keep_alive_starts_over_with_each_connection(autojump_clock: MockClock) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    connect(link)
    await trio.sleep(100)
    connect(link)
    begin = trio.current_time()
    await link.keep_alive(PEER_TIMEOUT)
    assert trio.current_time() - begin == pytest.approx(PEER_TIMEOUT)


async def test_a_connection_that_is_not_read_is_not_given_up_for_silence(autojump_clock: MockClock) -> None:
    link = Link(window=100, receive_window=100)
    peer = connect(link)
    await deliver(peer, link, SMALL * 10)
    peer = connect(link)
    async with trio.open_nursery() as nursery:
        alive = await start(nursery, link.keep_alive, PEER_TIMEOUT)
        nursery.start_soon(listen, link)
        await trio.sleep(1000)
        assert not alive.done
        link.acknowledge()
        acknowledged_at = trio.current_time()
        await trio.sleep(100)
        assert alive.ended_at - acknowledged_at == pytest.approx(PEER_TIMEOUT, abs=HEARTBEAT)
        assert alive.ended_at - acknowledged_at >= PEER_TIMEOUT
        assert {json.loads(told)["params"]["received"] for told in await arrived(peer)} == {0, 1}
        nursery.cancel_scope.cancel()


# Probes


async def test_a_probe_is_answered_at_once_and_not_counted() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    peer = connect(link)
    assert await deliver(peer, link, SMALL, probe(3), SMALL) == [SMALL, SMALL]
    assert link.received == 2
    # What came with it is not passed on yet, so it is not confirmed.
    assert list(map(read_control, await arrived(peer))) == [Control(answered=3)]
    link.acknowledge()
    await deliver(peer, link, probe(4), SMALL)
    assert list(map(read_control, await arrived(peer))) == [Control(received=2, answered=4)]


async def test_a_peer_that_probes_for_ever_and_takes_nothing_gets_only_so_many_answers() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW, high_water=HIGH_WATER)
    peer = connect(link)
    link.send([b"x" * HIGH_WATER])
    await deliver(peer, link, *(probe(number) for number in range(1, 3 * MAX_ANSWERS)), SMALL)
    assert list(map(read_control, await arrived(peer))) == [
        None,
        *(Control(answered=number) for number in range(1, MAX_ANSWERS + 1)),
    ]
    await deliver(peer, link, probe(1000), SMALL)
    assert [read_control(message) for message in await arrived(peer)] == [Control(answered=1000)]


async def test_the_answer_to_a_probe_is_told_with_its_number() -> None:
    answers: list[int] = []
    link = Link(window=WINDOW, answered=answers.append)
    peer = connect(link)
    link.send([SMALL])
    await deliver(peer, link, acknowledgement(1, probe=5), acknowledgement(1), SMALL)
    assert answers == [5]
    assert link.outbox.confirmed == 1


# A second connection beside the first


async def test_what_came_after_the_count_was_told_is_dropped_when_it_comes_again() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old = connect(link)
    assert await deliver(old, link, *numbered(0, 3)) == numbered(0, 3)
    link.acknowledge()
    told = link.tell_count()
    assert told == 3
    assert await deliver(old, link, *numbered(3, 5)) == numbered(3, 5)
    new = connect(link, told=told)
    assert await deliver(new, link, *numbered(3, 7)) == numbered(5, 7)
    assert await deliver(new, link, *numbered(7, 8)) == numbered(7, 8)
    assert link.received == 8


async def test_what_comes_again_may_come_in_pieces_and_with_control_messages_between() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old = connect(link)
    told = link.tell_count()
    await deliver(old, link, *numbered(0, 4))
    new = connect(link, told=told)
    new.send_nowait([b"0"])
    new.send_nowait([probe(1), b"1", acknowledgement(0), b"2"])
    assert await deliver(new, link, b"3", acknowledgement(0), b"4") == [b"4"]
    assert link.received == 5


async def test_a_mark_among_messages_that_come_again_is_dropped_and_one_behind_them_is_not() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old = connect(link)
    told = link.tell_count()
    await deliver(old, link, b"0", mark(1), b"1", mark(2))
    new = connect(link, told=told)
    assert await deliver(new, link, mark(0), b"0", mark(1), b"1", mark(2), b"2") == [mark(2), b"2"]
    assert link.received == 3


async def test_while_another_connection_resumes_the_link_nothing_beyond_the_told_count_is_confirmed() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old = connect(link)
    await deliver(old, link, *numbered(0, 3))
    link.acknowledge()
    link.tell_count()
    await deliver(old, link, *numbered(3, 5 + CONFIRM_MESSAGES))
    link.acknowledge()
    assert [read_control(message) for message in await arrived(old)] == [Control(received=3)]
    link.untell_count()
    await deliver(old, link, SMALL)
    link.acknowledge()
    assert [read_control(message) for message in await arrived(old)] == [Control(received=6 + CONFIRM_MESSAGES)]


async def test_what_has_come_again_is_confirmed_because_it_fills_the_window_of_the_peer() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old = connect(link)
    told = link.tell_count()
    await deliver(old, link, *numbered(0, 2))
    link.acknowledge()
    new = connect(link, told=told)
    new.send_nowait(numbered(0, 2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.receive_batch)
        assert [read_control(message) for message in await arrived(new)] == [Control(received=2)]
        nursery.cancel_scope.cancel()


async def test_what_has_come_again_and_was_not_passed_on_is_confirmed_when_it_is() -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old = connect(link)
    told = link.tell_count()
    await deliver(old, link, *numbered(0, 2))
    new = connect(link, told=told)
    await deliver(new, link, *numbered(0, 3))
    assert await arrived(new) == []
    link.acknowledge()
    assert [read_control(message) for message in await arrived(new)] == [Control(received=3)]
    await deliver(new, link, SMALL)
    link.acknowledge()
    assert await arrived(new) == []


# Any cuts


class Unreliable(FragileStream):
    """A stream over which only so many messages come: it is cut, and what was on its way is lost."""

    def __init__(self, stream: MaintainedStream, lifetime: int) -> None:
        super().__init__(stream)
        self.lifetime = lifetime

    async def _receive_batch(self) -> list[bytes]:
        batch = await super()._receive_batch()
        if not self.lifetime:
            raise trio.BrokenResourceError("cut")
        batch = batch[: self.lifetime]
        self.lifetime -= len(batch)
        return batch


class Transfer:
    """Messages from one link to another, each way, over connections that are cut again and again."""

    MESSAGES: Final = 3000
    WINDOW: Final = 20_000
    MAX_SIZE: Final = 400
    LIFETIME: Final = 150
    """Messages and confirmations that come over one connection, at most."""
    OVERLAPS: Final = 1.0
    """Part of the connections that are replaced before they are lost."""

    def __init__(self, seed: int) -> None:
        self.told: list[int] | None = None
        """The counts that the next connection has exchanged; None if it has not."""
        self.chance = random.Random(seed)  # noqa: S311 (the same each time is what is wanted)
        self.links = [Link(window=self.WINDOW, high_water=2000) for _ in range(2)]
        self.said = [
            [b"%d:" % number + b"x" * self.chance.randrange(self.MAX_SIZE - 9) for number in range(self.MESSAGES)]
            for _ in self.links
        ]
        self.heard: list[list[bytes]] = [[] for _ in self.links]
        self.connections = 0
        self.overlapping = 0
        """Connections that were begun while the one before was alive."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for link, messages in zip(self.links, self.said, strict=True):
                nursery.start_soon(self.speak, link, messages)
            while any(len(heard) < self.MESSAGES for heard in self.heard):
                await self.connect()

    async def speak(self, link: Link, messages: list[bytes]) -> None:
        begin = 0
        while begin < len(messages):
            end = begin + self.chance.randint(1, 40)
            link.send(messages[begin:end])
            begin = end
            await trio.sleep(self.chance.choice([0, 0.01, 0.1]))

    async def connect(self) -> None:
        """One connection, from the exchange of counts until it is lost, or until all is said."""
        self.connections += 1
        streams = [Unreliable(stream, self.chance.randint(1, self.LIFETIME)) for stream in memory_message_stream_pair()]
        counts = [link.received for link in self.links] if self.told is None else self.told
        self.told = None
        for link, stream, told, peer_received in zip(self.links, streams, counts, reversed(counts), strict=True):
            link.connect(stream, peer_received, told)
        async with trio.open_nursery() as nursery:
            for link, heard in zip(self.links, self.heard, strict=True):
                nursery.start_soon(link.pump)
                nursery.start_soon(link.keep_alive, PEER_TIMEOUT)
                nursery.start_soon(self.acknowledge, link)
                nursery.start_soon(self.listen, link, heard, nursery.cancel_scope)
            if self.chance.random() < self.OVERLAPS:
                nursery.start_soon(self.replace, nursery.cancel_scope)
        for link, stream in zip(self.links, streams, strict=True):
            link.disconnect()
            await stream.aclose()

    async def replace(self, connection: trio.CancelScope) -> None:
        """Resume the links by another connection while this one is alive: the first tells its count earlier."""
        client, gateway = self.links
        await trio.sleep(self.chance.choice([0, 0, 0.01]))
        told = client.tell_count()
        await trio.sleep(self.chance.choice([0, 0.01]))
        gateway.disconnect()
        self.told = [told, gateway.received]
        self.overlapping += 1
        # The answer is on its way, and what the old connection has delivered is still read.
        await trio.sleep(self.chance.choice([0, 0.01]))
        connection.cancel()

    async def listen(self, link: Link, heard: list[bytes], connection: trio.CancelScope) -> None:
        try:
            while any(len(heard) < self.MESSAGES for heard in self.heard):
                heard += without_marks(await link.receive_batch())
                assert link.received == len(heard)
                assert link.outbox.unconfirmed_bytes - link.outbox.unwritten_bytes < self.WINDOW + self.MAX_SIZE
        except trio.BrokenResourceError:
            pass
        connection.cancel()

    async def acknowledge(self, link: Link) -> None:
        while True:
            await trio.sleep(self.chance.choice([0, 0.01, 0.1]))
            link.acknowledge()


@pytest.mark.parametrize("seed", range(3))
async def test_whenever_a_link_is_cut_every_message_arrives_once(seed: int, autojump_clock: MockClock) -> None:
    transfer = Transfer(seed)
    await transfer.run()
    assert transfer.heard == list(reversed(transfer.said))
    assert transfer.connections >= Transfer.MESSAGES / Transfer.LIFETIME
    assert transfer.overlapping > 3


async def test_nothing_that_comes_again_is_confirmed_or_told_before_it_has_come(nursery: trio.Nursery) -> None:
    link = Link(window=WINDOW, receive_window=WINDOW)
    old = connect(link)
    told = link.tell_count()
    await deliver(old, link, *numbered(0, 5 + CONFIRM_MESSAGES))
    new = connect(link, told=told)
    nursery.start_soon(link.receive_batch)
    new.send_nowait(numbered(0, 2))
    await trio.testing.wait_all_tasks_blocked()
    link.acknowledge()
    link.send([SMALL])
    assert await arrived(new) == [SMALL]
    assert link.tell_count() == 2
    nursery.cancel_scope.cancel()
