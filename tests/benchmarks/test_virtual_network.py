"""The model of a network: what arrives when, and what each end is told of that."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.transports.path_state import PathState
from benchmarks.virtual_network import MIN_RETRANSMISSION, End, Network


@asynccontextmanager
async def connected(**line: float) -> AsyncIterator[tuple[Network, End, End]]:
    """Yield a network, and both ends of a connection over it."""
    accepted: list[End] = []

    async def accept(end: End) -> None:
        accepted.append(end)

    network = Network(accept, random.Random(1))  # noqa: S311
    network.set(**line)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        near = await network.connect()
        await trio.testing.wait_all_tasks_blocked()
        yield network, near, accepted[0]
        nursery.cancel_scope.cancel()


def send(end: End, data: bytes) -> float:
    """Send, and return the time."""
    assert end.send_nowait(memoryview(data)) == len(data)
    return trio.current_time()


async def test_bytes_come_after_the_delay_and_are_confirmed_after_a_round_trip(autojump_clock: MockClock) -> None:
    async with connected(delay=0.5) as (_, near, far):
        assert trio.current_time() == 2.0
        sent_at = send(near, b"hello")
        assert near.path.in_flight
        assert await far.receive_some() == b"hello"
        assert trio.current_time() - sent_at == 0.5
        assert near.path.acknowledged == 0
        await trio.sleep(0.5)
        assert near.path == PathState(5, False, False)


async def test_the_rate_is_that_of_all_connections(autojump_clock: MockClock) -> None:
    async with connected(rate=1000.0) as (network, near, far):
        other = await network.connect()
        send(near, bytes(1000))
        sent_at = send(other, bytes(1000))
        assert len(await far.receive_some()) == 1000
        assert trio.current_time() - sent_at == 1.0
        await trio.sleep(0.9)
        assert other.path.acknowledged == 0
        await trio.sleep(0.2)
        assert other.path.acknowledged == 1000


async def test_a_writer_waits_for_confirmations(autojump_clock: MockClock) -> None:
    async with connected(delay=0.5) as (network, near, _):
        data = memoryview(bytes(network.up.buffer + 1))
        sent_at = trio.current_time()
        assert near.send_nowait(data) == network.up.buffer
        assert await near.send_some(data[network.up.buffer :]) == 1
        assert trio.current_time() - sent_at == 1.0


async def test_a_lost_segment_comes_later_and_holds_up_those_behind_it(autojump_clock: MockClock) -> None:
    async with connected(delay=0.5) as (network, near, far):
        network.up.loss = 1.0
        network.up.chance = random.Random()  # noqa: S311
        chances = iter((0.0, 0.0, 1.0))
        network.up.chance.random = lambda: next(chances, 1.0)  # type: ignore[method-assign]
        # The first one is for the jitter.
        sent_at = send(near, b"a")
        network.up.loss = 0.0
        send(near, b"b")
        assert await far.receive_some() in (b"a", b"ab")
        assert trio.current_time() - sent_at == pytest.approx(0.5 + 1.0 + MIN_RETRANSMISSION)


@pytest.mark.parametrize(("up", "down"), [(True, False), (False, True), (True, True)])
async def test_a_direction_that_is_dead_carries_nothing_and_a_revived_one_all(
    up: bool, down: bool, autojump_clock: MockClock
) -> None:
    async with connected() as (network, near, far):
        network.kill(up=up, down=down)
        send(near, b"up")
        send(far, b"down")
        for end, dead in ((far, up), (near, down)):
            with trio.move_on_after(100) as waiting:
                assert await end.receive_some()
            assert waiting.cancelled_caught == dead
        # No confirmation comes back over a dead direction either.
        assert near.path.acknowledged == 0
        network.go_on()
        await trio.sleep(1000)
        assert near.path.acknowledged == 2
        assert far.path.acknowledged == 4


async def test_no_connection_is_made_while_the_network_is_away(autojump_clock: MockClock) -> None:
    async with connected() as (network, near, far):
        network.leave()
        with trio.move_on_after(2.5):
            await network.connect()
            pytest.fail("it is away")
        network.come_back(revive=False)
        await network.connect()
        send(near, b"lost")
        with trio.move_on_after(1000):
            await far.receive_some()
            pytest.fail("the client has another address")


async def test_without_a_network_what_is_written_is_kept_and_not_in_flight(autojump_clock: MockClock) -> None:
    async with connected(delay=0.5) as (network, near, far):
        network.leave()
        send(near, b"hello")
        assert near.path == PathState(0, False, True)
        await trio.sleep(5.0)
        network.come_back(revive=True)
        assert near.path == PathState(0, True, True)
        assert await far.receive_some() == b"hello"


async def test_the_end_comes_behind_all_that_was_written(autojump_clock: MockClock) -> None:
    async with connected(delay=0.5) as (_, near, far):
        send(near, b"last")
        await near.aclose()
        assert await far.receive_some() == b"last"
        assert await far.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            send(far, b"too late")
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some()


async def test_a_stopped_server_reads_nothing_though_its_system_confirms(autojump_clock: MockClock) -> None:
    async with connected() as (network, near, far):
        network.stop_server()
        send(near, b"later")
        with trio.move_on_after(3.0) as stopped:
            await far.receive_some()
        assert stopped.cancelled_caught
        assert near.path.acknowledged == 5
        network.continue_server()
        assert await far.receive_some() == b"later"
    assert network.begun == 1
