"""Tunnels that are opened ahead, over memory streams: how many there are, and when one is used."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from acp_gateway.client.ports.spare_tunnels import (
    LONGEST_PAUSE,
    PATIENCE,
    PING_INTERVAL,
    REFILL_PAUSE,
    SPARES,
    SpareTunnels,
)
from acp_gateway.errors import Forbidden, GatewayError, Unreachable
from acp_gateway.transports.streams import send_all
from acp_gateway.transports.websocket.tunnel import NEEDED, Tunnel
from tests.kit.wires import memory_wire, tunnel_over

pytestmark = pytest.mark.jumps


class Gateway:
    """Opens tunnels, and has their far ends, the first one first."""

    def __init__(self) -> None:
        self.ends: list[Tunnel] = []
        self.failure: GatewayError | None = None
        self.asked = 0
        self.is_full = False

    async def open(self) -> Tunnel:
        self.asked += 1
        assert self.asked < 100
        if self.failure is not None:
            raise self.failure
        here, there = await tunnel_over(*memory_wire())
        self.ends.append(there)
        if self.is_full:
            await there.refuse("others needed the room")
        return here


@asynccontextmanager
async def keeping() -> AsyncIterator[tuple[Gateway, SpareTunnels]]:
    gateway = Gateway()
    spares = SpareTunnels(gateway.open)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spares.run)
        await trio.testing.wait_all_tasks_blocked()
        yield gateway, spares
        nursery.cancel_scope.cancel()
    for end in gateway.ends:
        await end.aclose()


async def answer(end: Tunnel, text: bytes) -> None:
    assert await end.receive_some() == NEEDED
    await send_all(end, text)


async def test_a_spare_tunnel_is_taken_once_the_gateway_has_said_that_it_leads_there() -> None:
    async with keeping() as (gateway, spares), trio.open_nursery() as nursery:
        assert len(gateway.ends) == SPARES
        nursery.start_soon(answer, gateway.ends[-1], NEEDED + b"hello")
        tunnel = await spares.take()
        assert tunnel is not None
        assert await tunnel.receive_some() == b"hello"
        assert len(gateway.ends) == SPARES
        await trio.sleep(REFILL_PAUSE)
        await trio.testing.wait_all_tasks_blocked()
        assert len(gateway.ends) == SPARES + 1, "another one takes its place"
        await send_all(tunnel, b"request")
        assert await gateway.ends[SPARES - 1].receive_some() == b"request"
        await tunnel.aclose()


async def refuse(end: Tunnel) -> None:
    await end.receive_some()
    await end.refuse("the port is gone")


async def lose(end: Tunnel) -> None:
    await end.receive_some()
    await end.below.aclose()


async def say_something_else(end: Tunnel) -> None:
    await answer(end, b"HTTP/1.1 200")


async def keep_silent(_: Tunnel) -> None:
    pass


@pytest.mark.parametrize(
    ("does", "seconds"), [(refuse, 0), (lose, 0), (say_something_else, 0), (keep_silent, PATIENCE)]
)
async def test_a_spare_tunnel_that_leads_nowhere_is_given_up_with_the_others(
    does: Callable[[Tunnel], Awaitable[None]], seconds: float
) -> None:
    async with keeping() as (gateway, spares), trio.open_nursery() as nursery:
        before = list(gateway.ends)
        nursery.start_soon(does, before[-1])
        began = trio.current_time()
        assert await spares.take() is None
        assert trio.current_time() - began == seconds
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(1):
            await before[0].receive_some()
        await trio.sleep(2 * REFILL_PAUSE)
        assert len(gateway.ends) == 2 * SPARES
        nursery.start_soon(answer, gateway.ends[-1], NEEDED)
        tunnel = await spares.take()
        assert tunnel is not None
        await tunnel.aclose()


async def test_a_spare_tunnel_that_ends_or_whose_network_is_lost_is_replaced() -> None:
    async with keeping() as (gateway, spares):
        await gateway.ends[0].aclose()
        await trio.sleep(2 * REFILL_PAUSE)
        assert len(gateway.ends) == SPARES + 1
        # No end reads here, so that no ping is answered.
        await trio.sleep(3 * PING_INTERVAL)
        assert len(gateway.ends) > SPARES + 2
        del spares


async def test_spare_tunnels_that_a_full_gateway_closes_are_opened_ever_more_rarely() -> None:
    async with keeping() as (gateway, spares):
        gateway.is_full = True
        await gateway.ends[0].aclose()
        await trio.sleep(10 * LONGEST_PAUSE)
        assert 10 < gateway.asked < 40
        gateway.is_full = False
        spares.reached()
        await trio.sleep(2 * LONGEST_PAUSE)
        asked = gateway.asked
        await gateway.ends[-1].aclose()
        await trio.sleep(2 * REFILL_PAUSE)
        assert gateway.asked == asked + 1, "after one that was used, the next is opened at once"


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_spare_tunnel_is_closed_when_the_forwarding_ends_or_its_client_leaves(cancels: bool) -> None:
    async with keeping() as (gateway, spares):
        if cancels:
            with trio.move_on_after(PATIENCE / 2):
                await spares.take()
            assert await gateway.ends[-2].receive_some() == NEEDED
    for end in gateway.ends:
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            await end.receive_some()


@pytest.mark.parametrize(("failure", "again"), [(Unreachable("no network"), True), (Forbidden("a guest"), False)])
async def test_a_gateway_that_is_away_is_tried_again_and_one_that_refuses_only_after_it_was_reached(
    failure: GatewayError, again: bool
) -> None:
    async with keeping() as (gateway, spares):
        gateway.failure = failure
        for end in gateway.ends:
            await end.aclose()
        await trio.sleep(2 * REFILL_PAUSE)
        asked = gateway.asked
        await trio.sleep(10 * LONGEST_PAUSE)
        assert (gateway.asked > asked + 5) == again
        assert gateway.asked < asked + 40
        assert await spares.take() is None
        gateway.failure = None
        spares.reached()
        await trio.testing.wait_all_tasks_blocked()
        assert len(gateway.ends) == 2 * SPARES
