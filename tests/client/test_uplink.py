"""The uplink between an owner of the test's own and a gateway in memory; pauses pass in no time."""

import itertools
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair
from websockets.uri import WebSocketURI

from acp_gateway.client.dialing import Destination, Resume
from acp_gateway.client.reconnecting.attempts import ATTEMPT_TIMEOUT, close_at_once
from acp_gateway.client.reconnecting.suspicion import PROBE_INTERVAL, TIMEOUT
from acp_gateway.client.uplink import (
    BACKOFF_MAX,
    BACKOFF_MIN,
    SHOWN,
    SPREAD,
    LinkEvent,
    LinkLoss,
    Uplink,
    backoff,
    final_error,
    loss_by_close,
)
from acp_gateway.errors import (
    AgentError,
    ConfigError,
    Forbidden,
    ForeignRefusal,
    GatewayError,
    LinkExpired,
    LinkGone,
    ProtocolError,
    TooFarBehind,
    TrustError,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
    UsageError,
)
from acp_gateway.protocol.link_messages import Sent, without_marks
from acp_gateway.protocol.methods import GOODBYE
from acp_gateway.transports.link import HEARTBEAT
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.parts import EMPTY, NO_PART
from acp_gateway.transports.path_state import PathState
from acp_gateway.transports.streams import CloseReason, TrioBytes
from acp_gateway.transports.websocket.client import connect_websocket
from acp_gateway.transports.websocket.stream import Timing
from tests.fuzz.effort import some
from tests.kit.accepting import Accept, accept_websocket
from tests.kit.doubles import FAIL
from tests.kit.fake_gateway import DESTINATION, FakeGateway

pytestmark = pytest.mark.jumps

REFUSALS = (Unauthorized, Forbidden, UnknownAgent, UnknownSession)


class Speaker:
    """An owner that has had its first success, and keeps what it is told."""

    def __init__(self) -> None:
        self.started = True
        self.waiting = False
        self.heard: list[bytes] = []
        self.started_over: list[tuple[str, list[bytes], str]] = []
        self.without_agent: list[tuple[str, list[bytes], str]] = []
        self.given_up: list[str] = []
        self.refused: list[tuple[bytes, str]] = []
        self.waited_for = 0
        self.changes = trio.lowlevel.ParkingLot()
        self.uplink: Uplink | None = None

    def receive(self, batch: Sequence[Sent]) -> None:
        self.heard += without_marks(batch)
        assert self.uplink is not None
        self.uplink.link.acknowledge()
        self.changes.unpark_all()

    def start_over(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        self.started_over.append((connection_id, unsent, why))

    def agent_lost(self, connection_id: str, unsent: list[bytes], why: str) -> None:
        self.without_agent.append((connection_id, unsent, why))

    def give_up(self, error: GatewayError) -> None:
        self.given_up.append(str(error))

    def too_large(self, message: bytes, why: str) -> None:
        self.refused.append((message, why))

    async def drain(self) -> None:
        self.waited_for += 1

    def changed(self) -> None:
        self.changes.unpark_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.changes.park()


@asynccontextmanager
async def kept_up(
    gateway: FakeGateway,
    *,
    ends: type[GatewayError] | None = None,
    owner: Speaker | None = None,
    destination: Callable[[], Destination] = lambda: DESTINATION,
    **changes: Any,
) -> AsyncIterator[tuple[Uplink, Speaker]]:
    """An uplink at work; it must end by itself with this error, or else is cancelled at the end."""
    owner = owner or Speaker()
    outcomes: list[GatewayError] = []
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            owner.uplink = uplink = Uplink(owner, destination, gateway.reconnect_settings(**changes))
            async with trio.open_nursery() as work:

                async def run() -> None:
                    outcomes.append(await uplink.run())

                work.start_soon(run)
                yield uplink, owner
                if ends is None:
                    await trio.testing.wait_all_tasks_blocked()
                    work.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    assert list(map(type, outcomes)) == ([ends] if ends else [])


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


def pauses(gateway: FakeGateway, first: int = 0) -> list[float]:
    """Seconds between attempts, from that one on."""
    times = [at for at, _ in gateway.attempts[first:]]
    return [round(later - earlier, 6) for earlier, later in itertools.pairwise(times)]


async def connected(gateway: FakeGateway, uplink: Uplink, owner: Speaker, count: int = 1) -> None:
    await owner.until(lambda: len(gateway.connections) >= count and uplink.up)


# Pauses


async def test_after_a_loss_attempts_follow_with_growing_pauses(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        lost_at = trio.current_time()
        gateway.down = True
        gateway.last.cut()
        await gateway.attempted(11)
    assert gateway.attempts[1][0] - lost_at == pytest.approx(0.4)
    assert pauses(gateway, 1) == [0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 15, 15]


async def test_a_connection_that_led_somewhere_restarts_the_pauses(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.refusals = [Unreachable("not yet")] * 5
        gateway.last.cut()
        await connected(gateway, uplink, owner, 2)
        gateway.send(method="news")
        await owner.until(lambda: bool(owner.heard))
        lost_at = trio.current_time()
        gateway.last.cut()
        await gateway.attempted(8)
    assert gateway.attempts[7][0] - lost_at == pytest.approx(BACKOFF_MIN)


async def test_a_gateway_that_accepts_and_hangs_up_each_time_is_not_stormed(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        for count in range(1, 12):
            await connected(gateway, uplink, owner, count)
            gateway.last.cut()
    assert max(pauses(gateway)) > 10


async def test_the_owner_wakes_it_but_not_more_often_than_so(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.down = True
        gateway.last.cut()
        await gateway.attempted(9)
        await trio.sleep(1)
        count, now = len(gateway.attempts), trio.current_time()
        uplink.wake()
        await gateway.attempted(count + 1)
        assert trio.current_time() == now
        for _ in range(3):
            uplink.wake()
            uplink.wake()
            count = len(gateway.attempts)
            await gateway.attempted(count + 1)
    assert pauses(gateway, 9) == pytest.approx([BACKOFF_MIN] * 3)


async def test_waking_it_says_nothing_while_there_is_a_connection(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(60)
        uplink.wake()
        lost_at = trio.current_time()
        gateway.last.cut()
        await gateway.attempted(2)
        assert trio.current_time() - lost_at == pytest.approx(BACKOFF_MIN)


async def test_when_the_machine_has_slept_a_connection_is_replaced_at_once(gateway: FakeGateway) -> None:
    gateway.probes = False
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(100.5)
        gateway.wall_clock.sleep(6)
        await gateway.attempted(2)
        assert trio.current_time() == pytest.approx(101 + SPREAD)
        assert gateway.attempts[1][1] == Resume("c1", 0)


async def test_where_the_system_tells_of_sleep_an_idle_connection_is_replaced_without_looking_at_the_clock(
    gateway: FakeGateway,
) -> None:
    gateway.probes, gateway.wall_clock.is_told = False, True
    looked: list[float] = []

    def wall_clock() -> float:
        looked.append(trio.current_time())
        return gateway.wall_clock()

    async with kept_up(gateway, wall_clock=wall_clock) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.testing.wait_all_tasks_blocked()
        looked.clear()
        await trio.sleep(100.5)
        assert not looked
        gateway.wall_clock.sleep(4)
        await trio.sleep(1000)
        assert len(gateway.attempts) == 1
        slept_at = trio.current_time()
        gateway.wall_clock.sleep(6)
        await gateway.attempted(2)
        assert trio.current_time() - slept_at == pytest.approx(SPREAD)


@pytest.mark.parametrize("told", [False, True])
async def test_silence_is_noticed_in_a_turn_that_another_client_began(told: bool, gateway: FakeGateway) -> None:
    gateway.wall_clock.is_told = told
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(100)
        owner.waiting = True
        gateway.link.send([b'{"method":"turn"}'])
        await owner.until(lambda: bool(owner.heard))
        died_at = trio.current_time()
        gateway.last.near.die()
        await gateway.attempted(2)
        assert trio.current_time() - died_at <= 4.0


async def test_where_the_system_tells_of_sleep_another_way_is_noticed_while_there_is_no_connection(
    gateway: FakeGateway,
) -> None:
    gateway.wall_clock.is_told, gateway.source = True, "10.0.0.1"
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(100)
        gateway.down = True
        gateway.last.cut()
        await gateway.attempted(10)
        gateway.source = "10.0.0.2"
        await trio.sleep(1.0 + SPREAD)
        assert len(gateway.attempts) == 11


async def test_a_connection_that_is_given_up_is_not_closed_as_by_a_goodbye(gateway: FakeGateway) -> None:
    gateway.probes = False
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.wall_clock.sleep(60)
        await connected(gateway, uplink, owner, 2)
        closed_with = gateway.connections[0].near.closed_with
        assert closed_with is not None
        assert closed_with[0] is CloseReason.GOING_AWAY
        assert not gateway.link.left


async def test_when_the_machine_has_slept_a_pause_and_an_attempt_that_hangs_are_cut_short(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.refusals = [Unreachable("not yet")] * 8
        gateway.last.cut()
        await gateway.attempted(9)
        gateway.hangs = True
        now = trio.current_time()
        gateway.wall_clock.sleep(3600)
        await gateway.attempted(10)
        assert trio.current_time() - now <= 1
        gateway.wall_clock.sleep(3600)
        await gateway.attempted(11)
        assert trio.current_time() - now <= 2


async def test_a_clock_that_is_a_little_late_or_set_back_is_not_a_sleep(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        for seconds in (4.9, -3600.0):
            gateway.wall_clock.sleep(seconds)
            await trio.sleep(10)
    assert len(gateway.attempts) == 1


async def test_sleep_leaves_a_connection_alone_that_could_not_be_resumed(gateway: FakeGateway) -> None:
    gateway.resumes = False
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.wall_clock.sleep(3600)
        await trio.sleep(10)
    assert len(gateway.attempts) == 1


async def test_an_attempt_that_gets_no_answer_is_given_up(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.hangs = True
        gateway.last.cut()
        await gateway.attempted(4)
    assert pauses(gateway, 1) == pytest.approx([15.8, 16.6])


# A second connection beside the first


def sequence(owner: Speaker) -> list[int]:
    """The numbers of the messages that an owner has received."""
    return [json.loads(message)["params"] for message in owner.heard]


async def test_a_message_over_a_dead_connection_is_sent_again_over_a_second_one(gateway: FakeGateway) -> None:
    noticed: list[LinkEvent] = []
    async with kept_up(gateway, notice=noticed.append) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(100)
        gateway.last.near.die()
        sent_at = trio.current_time()
        uplink.link.send([b'{"method":"up"}'])
        await gateway.receive("up")
        assert trio.current_time() - sent_at <= TIMEOUT + PROBE_INTERVAL
        await trio.sleep(100)
    assert (len(gateway.attempts), len(gateway.received)) == (2, 1)
    # It was so short that it is not shown as a loss.
    assert [event.kind for event in noticed] == ["connected", "resumed"]


async def test_a_message_of_the_agent_comes_over_a_second_connection_while_a_turn_is_open(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        owner.waiting = True
        await connected(gateway, uplink, owner)
        await trio.sleep(10.3)
        gateway.last.near.die()
        died_at = trio.current_time()
        gateway.send(method="down", params=1)
        await owner.until(lambda: bool(owner.heard))
        assert trio.current_time() - died_at <= 2.5
    assert sequence(owner) == [1]


async def test_a_message_is_sent_again_if_the_way_there_alone_is_dead_and_the_agent_speaks(
    gateway: FakeGateway,
) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.last.near.deafen()
        uplink.link.send([b'{"method":"up"}'])
        for number in range(60):
            gateway.send(method="down", params=number)
            await trio.sleep(0.2)
    assert len(gateway.attempts) == 2
    assert [message["method"] for message in gateway.received] == ["up"]
    assert sequence(owner) == list(range(60))


async def test_another_source_address_leads_to_a_second_connection_while_a_turn_is_open(gateway: FakeGateway) -> None:
    gateway.source = "10.0.0.1"
    async with kept_up(gateway) as (uplink, owner):
        owner.waiting = True
        await connected(gateway, uplink, owner)
        await trio.sleep(20.5)
        assert len(gateway.attempts) == 1
        # Without a way there is nothing to dial over.
        gateway.source = None
        await trio.sleep(20)
        assert len(gateway.attempts) == 1
        gateway.source = "10.0.0.2"
        gateway.last.near.die()
        changed_at = trio.current_time()
        await connected(gateway, uplink, owner, 2)
        assert trio.current_time() - changed_at <= 1.0 + PROBE_INTERVAL


async def test_while_idle_the_source_address_and_the_clock_are_looked_at_when_something_is_sent(
    gateway: FakeGateway,
) -> None:
    gateway.source = "10.0.0.1"
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        for change in ("source", "sleep"):
            uplink.link.send([b'{"method":"up"}'])
            await trio.sleep(20.5)
            count = len(gateway.connections)
            if change == "source":
                gateway.source = "10.0.0.2"
                await trio.sleep(20.5)
                assert len(gateway.connections) == count
            else:
                gateway.wall_clock.sleep(3600)
            gateway.last.near.die()
            uplink.link.send([b'{"method":"up"}'])
            sent_at = trio.current_time()
            await connected(gateway, uplink, owner, count + 1)
            assert trio.current_time() - sent_at == pytest.approx(SPREAD if change == "sleep" else 0)
            await gateway.receive("up", 2 * count)


async def test_without_a_connection_another_source_address_leads_to_an_attempt_within_a_second(
    gateway: FakeGateway,
) -> None:
    gateway.source = "10.0.0.1"
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.down = True
        gateway.last.cut()
        # From here on a pause takes 15 s.
        await gateway.attempted(10)
        for source, attempts in ((None, 10), ("10.0.0.2", 11)):
            gateway.source = source
            await trio.sleep(1.0 + SPREAD)
            assert len(gateway.attempts) == attempts


async def test_a_way_that_is_back_with_the_same_address_leads_to_a_second_connection_for_bytes_that_waited(
    gateway: FakeGateway,
) -> None:
    gateway.source = "10.0.0.1"
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        uplink.link.send([b'{"method":"up"}'])
        await gateway.receive("up")
        await trio.sleep(5.0)
        gateway.source, gateway.down = None, True
        first = gateway.last.near
        first.die()
        # The system keeps what is written.
        first.system = PathState(100, in_flight=False, queued=True)
        uplink.link.send([b'{"method":"up"}'])
        await trio.sleep(SHOWN + PROBE_INTERVAL)
        assert uplink.silent
        await trio.sleep(5.0)
        gateway.source, gateway.down = "10.0.0.1", False
        back_at = trio.current_time()
        await gateway.receive("up", 2)
        assert trio.current_time() - back_at <= 1.0 + PROBE_INTERVAL


async def test_while_idle_nothing_is_probed(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(1)
        near = gateway.last.near
        before = near.writes
        await trio.sleep(1000)
        # The confirmations that are sent in any case.
        assert near.writes - before == 1000 / HEARTBEAT
    assert len(gateway.attempts) == 1


async def test_one_message_is_probed_once(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(1)
        near = gateway.last.near
        before = near.writes
        uplink.link.send([b'{"method":"up"}'])
        await trio.sleep(5)
        assert near.writes - before == 2


async def test_a_connection_that_answers_before_the_second_one_goes_on(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.handshake = 2.0
        first = gateway.last.near
        first.die()
        uplink.link.send([b'{"method":"up"}'])
        await gateway.attempted(2)
        await trio.sleep(1.0)
        first.revive()
        await gateway.receive("up")
        await trio.sleep(100)
        assert uplink.link.stream is first
    assert (len(gateway.attempts), len(gateway.connections), len(gateway.received)) == (2, 1, 1)


async def test_what_the_first_connection_delivers_after_the_second_one_has_asked_does_not_come_twice(
    gateway: FakeGateway,
) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.answers_after = 2.0
        first = gateway.last.near
        first.die()
        for number in range(3):
            gateway.send(method="down", params=number)
        uplink.link.send([b'{"method":"up"}'])
        await gateway.attempted(2)
        await trio.testing.wait_all_tasks_blocked()
        first.revive()
        await owner.until(lambda: len(owner.heard) == 3)
        assert uplink.link.stream is first
        gateway.send(method="down", params=3)
        await owner.until(lambda: len(owner.heard) == 4)
        assert uplink.link.stream is gateway.connections[1].near
        await gateway.receive("up")
        await trio.sleep(100)
    assert sequence(owner) == [0, 1, 2, 3]
    assert len(gateway.received) == 1


async def test_a_connection_that_ends_while_a_second_one_is_dialed_is_replaced_by_that(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.handshake = gateway.answers_after = 1.0
        gateway.last.near.die()
        uplink.link.send([b'{"method":"up"}'])
        await gateway.attempted(2)
        await trio.sleep(0.5)
        gateway.last.near.revive()
        gateway.last.cut()
        await gateway.receive("up")
        await trio.sleep(100)
    assert len(gateway.attempts) == 2


@pytest.mark.parametrize("silence", [1.0, ATTEMPT_TIMEOUT + 1.0])
async def test_requests_for_a_link_that_got_no_answer_delay_no_attempt_once_the_connection_has_answered(
    silence: float, gateway: FakeGateway
) -> None:
    async with kept_up(gateway, keepalive=60.0) as (uplink, owner):
        await connected(gateway, uplink, owner)
        first = gateway.last.near
        for number in range(1, 5):
            count, gateway.loses_requests = len(gateway.attempts), 1
            first.die()
            uplink.link.send([b'{"method":"up"}'])
            await gateway.attempted(count + 1)
            await trio.testing.wait_all_tasks_blocked()
            gateway.down = True
            await trio.sleep(silence)
            first.revive()
            await gateway.receive("up", number)
            await trio.sleep(100.0)
            gateway.down = False
        assert uplink.link.stream is first
        owner.waiting, gateway.loses_requests = True, 1
        gateway.last.cut()
        cut_at = trio.current_time()
        await connected(gateway, uplink, owner, 2)
        assert trio.current_time() - cut_at <= 4.0


async def test_requests_for_a_link_that_got_no_answer_delay_no_attempt_once_the_way_has_changed(
    gateway: FakeGateway,
) -> None:
    gateway.source = "10.0.0.1"
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        owner.waiting, gateway.loses_requests = True, 1000
        gateway.last.cut()
        await gateway.attempted(7)
        await trio.testing.wait_all_tasks_blocked()
        gateway.loses_requests, gateway.source = 1, "10.0.0.2"
        changed_at = trio.current_time()
        await connected(gateway, uplink, owner, 2)
        assert trio.current_time() - changed_at <= 1.0 + SPREAD + 3.0


async def test_a_gateway_that_is_stopped_for_a_while_costs_one_attempt_in_vain(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        for _ in range(10):
            first, count = gateway.last.near, len(gateway.attempts)
            gateway.hangs = True
            first.die()
            uplink.link.send([b'{"method":"up"}'])
            await trio.sleep(3)
            first.revive()
            gateway.hangs = False
            await trio.sleep(1)
            assert len(gateway.attempts) - count <= 1
        assert uplink.link.stream is gateway.connections[0].near
    assert len(gateway.received) == 10
    assert all(pause >= 10 for pause in pauses(gateway, 1))


async def test_a_network_that_is_back_after_minutes_is_used_at_once_while_a_turn_is_open(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        owner.waiting = True
        await connected(gateway, uplink, owner)
        gateway.hangs = True
        gateway.last.near.die()
        await trio.sleep(200)
        gateway.hangs = False
        back_at = trio.current_time()
        await connected(gateway, uplink, owner, 2)
        assert trio.current_time() - back_at <= 1.0
        await trio.sleep(100)
    assert len(gateway.connections) == 2


async def test_silence_is_shown_as_a_loss_after_two_seconds(gateway: FakeGateway) -> None:
    noticed: list[tuple[float, str]] = []
    async with kept_up(gateway, notice=lambda event: noticed.append((trio.current_time(), event.kind))) as (
        uplink,
        owner,
    ):
        await connected(gateway, uplink, owner)
        gateway.hangs = True
        gateway.last.near.die()
        died_at = trio.current_time()
        uplink.link.send([b'{"method":"up"}'])
        await trio.sleep(SHOWN - 0.1)
        assert not uplink.silent
        await trio.sleep(0.5)
        assert uplink.silent
        assert uplink.up
        gateway.last.near.revive()
        await trio.sleep(1)
        assert not uplink.silent
    assert [kind for _, kind in noticed] == ["connected", "lost", "answered"]
    assert noticed[1][0] - died_at == pytest.approx(SHOWN, abs=PROBE_INTERVAL)


async def test_a_gateway_that_has_forgotten_the_link_of_a_dead_connection_gets_a_new_one(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.links.clear()
        gateway.last.near.die()
        uplink.link.send([b'{"method":"up"}'])
        await owner.until(lambda: bool(owner.started_over))
        assert trio.current_time() <= 10
        await connected(gateway, uplink, owner, 2)


async def test_a_second_connection_that_is_refused_leaves_one_that_is_alive(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        first = gateway.last.near
        gateway.refusals = [Unauthorized("no")]
        first.die()
        uplink.link.send([b'{"method":"up"}'])
        await gateway.attempted(2)
        await trio.sleep(1)
        first.revive()
        await trio.sleep(100)
        assert uplink.link.stream is first


async def test_a_gateway_of_an_earlier_version_is_sent_no_probes(gateway: FakeGateway) -> None:
    gateway.probes = False
    async with kept_up(gateway) as (uplink, owner):
        owner.waiting = True
        await connected(gateway, uplink, owner)
        await trio.sleep(1)
        near = gateway.last.near
        before = near.writes
        uplink.link.send([b'{"method":"up"}'])
        await trio.sleep(5)
        assert near.writes - before == 1


async def test_a_slow_network_gets_no_second_connection(gateway: FakeGateway) -> None:
    gateway.handshake = gateway.answers_after = 6.0
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        first = gateway.last.near
        for _ in range(20):
            first.die()
            uplink.link.send([b'{"method":"up"}'])
            await trio.sleep(3)
            first.revive()
            await trio.sleep(0.1)
    assert len(gateway.attempts) == 1


@pytest.mark.parametrize("seed", some(range(20), 3))
async def test_whenever_a_path_dies_every_message_arrives_once(seed: int, gateway: FakeGateway) -> None:
    chance = random.Random(seed)  # noqa: S311 (the same each time is what is wanted)
    count = 150
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        for number in range(count):
            uplink.link.send([b'{"method":"up","params":%d}' % number])
            gateway.send(method="down", params=number)
            owner.waiting = chance.random() < 0.5
            gateway.handshake, gateway.answers_after = chance.choice([0, 0.1, 0.5]), chance.choice([0, 0.1, 0.5])
            connection = gateway.last
            match chance.randrange(8):
                case 0:
                    connection.near.die()
                case 1:
                    connection.near.revive()
                case 2 if connection.near.closed_with is None:
                    connection.cut()
                case 3:
                    gateway.wall_clock.sleep(60)
                case _:
                    pass
            await trio.sleep(chance.choice([0, 0.01, 0.3, 1, 1.3, 5]))
        gateway.hangs = False
        await owner.until(lambda: len(owner.heard) == count)
        await gateway.receive("up", count)
        await trio.sleep(60)
    assert sequence(owner) == list(range(count))
    assert [message["params"] for message in gateway.received] == list(range(count))
    assert owner.started_over == []
    assert len(gateway.connections) > 5


# Losses


async def test_what_was_lost_is_sent_again_in_both_directions_exactly_once(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        for number in range(60):
            uplink.link.send([b'{"method":"up","params":%d}' % number])
            gateway.send(method="down", params=number)
            if number % 3 == 0:
                await trio.testing.wait_all_tasks_blocked()
            if number % 10 == 5:
                count = len(gateway.connections)
                gateway.last.cut()
                await connected(gateway, uplink, owner, count + 1)
        await owner.until(lambda: len(owner.heard) == 60)
        await gateway.receive("up", 60)
    assert [message["params"] for message in gateway.received] == list(range(60))
    assert [int(message.split(b'"params": ')[1][:-1]) for message in owner.heard] == list(range(60))
    assert owner.started_over == []


async def test_a_link_that_goes_silent_is_found_out_and_resumed(gateway: FakeGateway) -> None:
    async with kept_up(gateway, keepalive=30.0) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(1000)
        assert len(gateway.attempts) == 1
        last_heard = trio.current_time()
        gateway.last.scope.cancel()
        await gateway.attempted(2)
        assert 20 <= trio.current_time() - last_heard <= 31


async def test_each_change_of_the_link_is_noticed(gateway: FakeGateway) -> None:
    noticed: list[LinkEvent] = []
    async with kept_up(gateway, notice=noticed.append) as (uplink, owner):
        await connected(gateway, uplink, owner)
        await trio.sleep(60)
        gateway.connections[0].cut()
        await connected(gateway, uplink, owner, 2)
        gateway.forget()
        await connected(gateway, uplink, owner, 3)
    assert [event.kind for event in noticed] == ["connected", "lost", "resumed", "lost", "connected"]
    assert {event.address for event in noticed} == {str(DESTINATION.address)}
    assert noticed[1].why
    assert 0 < noticed[2].seconds < 60


@pytest.mark.parametrize("kind", [Unauthorized, Forbidden, UnknownAgent])
async def test_a_refusal_of_the_gateways_ends_it(gateway: FakeGateway, kind: type[GatewayError]) -> None:
    async with kept_up(gateway, ends=kind) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.refusals = [kind("no")]
        gateway.last.cut()


async def test_everything_else_is_tried_again(gateway: FakeGateway) -> None:
    # A guest's session is not open before its owner has come back.
    kinds = (TrustError, ProtocolError, Unreachable, AgentError, GatewayError, UnknownSession)
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.refusals = [kind("a hotel") for kind in kinds]
        gateway.last.cut()
        await connected(gateway, uplink, owner, 2)
    assert gateway.attempts[-1][1] == Resume("c1", 0)
    assert owner.started_over == []
    # That may take arbitrarily long, so open requests are answered.
    assert owner.given_up == ["a hotel"]


async def test_the_part_of_a_message_is_told_to_a_gateway_that_understands_it(gateway: FakeGateway) -> None:
    part = EMPTY.followed_by(b"the first bytes of a message")
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        uplink.link._part = part
        gateway.last.cut()
        await connected(gateway, uplink, owner, 2)
        # An earlier version takes the gateway's place, and refuses the part.
        uplink.link._part, gateway.takes_parts = part, False
        gateway.last.cut()
        await connected(gateway, uplink, owner, 3)
        uplink.link._part = part
        gateway.last.cut()
        await connected(gateway, uplink, owner, 4)
    assert gateway.told_parts == [part.sum, part.sum, NO_PART, NO_PART]


async def test_after_the_end_of_its_agent_there_is_no_link_before_one_is_wanted(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = LinkLoss("the agent has ended", 1011, closed=True)
    monkeypatch.setattr("acp_gateway.client.uplink.loss_by_close", lambda _: ended)
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        uplink.link.send([b"has left"])
        gateway.last.cut(trio.EndOfChannel())
        await owner.until(lambda: bool(owner.without_agent))
        uplink.wake()
        await trio.sleep(1000)
        assert len(gateway.attempts) == 1
        uplink.resume_attempts()
        await connected(gateway, uplink, owner, 2)
    assert owner.without_agent == [("c1", [], "the agent has ended")]
    assert gateway.attempts[-1][1] == Resume(None, 0)


async def test_what_is_said_while_a_lost_connection_is_being_closed_has_not_left(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close(stream: MaintainedStream) -> None:
        uplink.link.send([b"said while away"])
        await close_at_once(stream)

    monkeypatch.setattr(
        "acp_gateway.client.uplink.loss_by_close", lambda _: LinkLoss("the agent has ended", 1011, closed=True)
    )
    monkeypatch.setattr("acp_gateway.client.uplink.close_at_once", close)
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.last.cut(trio.EndOfChannel())
        await owner.until(lambda: bool(owner.without_agent))
    assert owner.without_agent == [("c1", [b"said while away"], "the agent has ended")]


async def test_a_session_cancel_that_may_be_lost_is_sent_again(gateway: FakeGateway) -> None:
    cancel = b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}'
    prompt = b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"text":"what is session/cancel?"}}'
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        uplink.link.send([prompt, cancel])
        gateway.forget()
        await owner.until(lambda: bool(owner.started_over))
    ((_, unsent, _),) = owner.started_over
    assert unsent == [cancel]


@pytest.mark.parametrize("kind", [ConfigError, Unauthorized, UsageError])
async def test_a_file_that_is_flawed_for_a_while_is_read_again(gateway: FakeGateway, kind: type[GatewayError]) -> None:
    asked = 0

    def destination() -> Destination:
        nonlocal asked
        asked += 1
        if asked in (2, 3):
            raise kind("being edited")
        return DESTINATION

    async with kept_up(gateway, destination=destination) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.last.cut()
        await connected(gateway, uplink, owner, 2)
    assert asked == 4


@pytest.mark.parametrize("kind", [LinkGone, LinkExpired, TooFarBehind])
async def test_a_link_that_is_gone_is_replaced_by_a_new_one(gateway: FakeGateway, kind: type[GatewayError]) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        old = uplink.link
        gateway.refusals = [Unreachable("not yet"), kind("no such link")]
        gateway.last.cut()
        uplink.link.disconnect()
        uplink.link.send([b'{"method":"late"}'])
        await connected(gateway, uplink, owner, 2)
        assert uplink.link is not old
    ((connection_id, unsent, why),) = owner.started_over
    assert (connection_id, unsent) == ("c1", [b'{"method":"late"}'])
    assert "no such link" in why
    assert gateway.attempts[-1][1] == Resume()


async def test_a_gateway_that_has_counted_otherwise_is_started_over_with(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.link.received = 5
        gateway.last.cut()
        await connected(gateway, uplink, owner, 3)
        assert gateway.connections[1].near.closed_with is not None
    assert len(owner.started_over) == 1


async def test_a_gateway_that_knows_nothing_of_resuming_is_started_over_with_after_each_loss(
    gateway: FakeGateway,
) -> None:
    gateway.resumes = False
    async with kept_up(gateway) as (uplink, owner):
        uplink.link.send([b'{"method":"early"}'])
        await connected(gateway, uplink, owner)
        await gateway.receive("early")
        await trio.sleep(120)
        gateway.last.cut()
        await connected(gateway, uplink, owner, 2)
    assert [connection_id for connection_id, _, _ in owner.started_over] == [""]
    assert [resume for _, resume in gateway.attempts] == [Resume(), Resume()]
    assert [message["method"] for message in gateway.received] == ["early"]


async def test_a_refusal_of_another_server_is_told_to_the_owner_and_attempts_go_on(gateway: FakeGateway) -> None:
    gateway.resumes = False
    refused = trio.BrokenResourceError("HTTP 401")
    refused.__cause__ = ForeignRefusal("HTTP 401")
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.last.cut(refused)
        await connected(gateway, uplink, owner, 2)
    assert (owner.given_up, len(owner.started_over)) == (["HTTP 401"], 1)


async def test_a_refusal_of_another_server_is_final_before_the_first_success(gateway: FakeGateway) -> None:
    gateway.resumes = False
    refused = trio.BrokenResourceError("HTTP 401")
    refused.__cause__ = ForeignRefusal("HTTP 401")
    owner = Speaker()
    owner.started = False
    async with kept_up(gateway, ends=ForeignRefusal, owner=owner) as (uplink, _):
        await connected(gateway, uplink, owner)
        gateway.last.cut(refused)


async def test_at_rest_it_does_not_dial_before_it_is_told_to(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        uplink.suspend("nothing to do")
        await trio.sleep(1000)
        gateway.wall_clock.sleep(1000)
        await trio.sleep(1000)
        assert not uplink.up
        assert len(gateway.attempts) == 1
        uplink.resume_attempts()
        uplink.wake()
        await connected(gateway, uplink, owner, 2)
    assert gateway.attempts[1][1] == Resume()
    assert owner.started_over == []


async def test_cancelled_it_says_goodbye(gateway: FakeGateway) -> None:
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        uplink.link.send([b'{"method":"last"}'])
        link = gateway.link
    assert link.left
    assert gateway.received == [{"method": "last"}]
    assert gateway.last.near.closed_with == (CloseReason.NORMAL, "")


async def test_a_gateway_that_knows_nothing_of_resuming_is_told_no_goodbye(gateway: FakeGateway) -> None:
    gateway.resumes = False
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
    assert GOODBYE not in str(gateway.received)
    assert gateway.last.near.closed_with == (CloseReason.NORMAL, "")


async def test_the_log_tells_losses_failures_and_resumes_with_counts(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.send(method="down")
        await owner.until(lambda: bool(owner.heard))
        gateway.refusals = [Unreachable("no answer")]
        gateway.last.link.disconnect()
        gateway.last.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        uplink.link.send([b"{}", b"{}"])
        gateway.last.near.receive_error = trio.BrokenResourceError("cut")
        gateway.last.far.send_nowait([FAIL])
        await owner.until(lambda: not uplink.up)
        uplink.link.send([b"{}"])
        await connected(gateway, uplink, owner, 2)
    assert "lost the connection: cut" in caplog.messages
    assert "no connection: no answer" in caplog.messages
    assert "resumed after 0.6 s: 1 message received, sending 2 again and 1 for the first time" in caplog.messages


# Before the first success


def beginner(*, waiting: bool = False) -> Speaker:
    """An owner that has had no success yet."""
    owner = Speaker()
    owner.started, owner.waiting = False, waiting
    return owner


async def test_at_first_it_is_tried_for_so_long_and_the_last_failure_is_told(gateway: FakeGateway) -> None:
    gateway.down = True
    async with kept_up(gateway, ends=Unreachable, owner=beginner(), connect_timeout=15.0):
        pass
    assert trio.current_time() == 15
    assert pauses(gateway) == pytest.approx([0.4, 0.8, 1.6, 2, 2, 2, 2, 2, 2])


@pytest.mark.parametrize(
    ("known", "known_timeout", "seconds"), [(True, 300.0, 300), (False, 300.0, 15), (True, 0.0, 15), (True, 5.0, 15)]
)
async def test_at_first_a_gateway_that_was_reached_before_is_tried_for_longer(
    gateway: FakeGateway, known: bool, known_timeout: float, seconds: float
) -> None:
    gateway.down = True
    noted: list[str] = []
    uplink = Uplink(
        beginner(),
        lambda: DESTINATION,
        gateway.reconnect_settings(known_timeout=known_timeout, knows=lambda _: known, reached=noted.append),
    )
    outcome = await uplink.run()
    assert f"(tried for {seconds} s)" in str(outcome)
    assert (trio.current_time(), noted) == (seconds, [])


async def test_errors_other_than_unreachable_end_the_uplink_also_to_a_gateway_that_was_reached_before(
    gateway: FakeGateway,
) -> None:
    gateway.refusals = [Unreachable("no"), TrustError("another pin")]
    async with kept_up(gateway, ends=TrustError, owner=beginner(), known_timeout=300.0, knows=lambda _: True):
        pass
    assert trio.current_time() < 1


async def test_at_first_a_gateway_that_says_nothing_is_told_as_such(gateway: FakeGateway) -> None:
    gateway.hangs = True
    outcome: list[GatewayError] = []
    uplink = Uplink(beginner(), lambda: DESTINATION, gateway.reconnect_settings(connect_timeout=3.0))
    outcome.append(await uplink.run())
    assert "tcp://box.example:7443: no answer" in str(outcome[0])
    assert "(tried for 3 s)" in str(outcome[0])


@pytest.mark.parametrize("kind", [*REFUSALS, TrustError, ProtocolError])
async def test_at_first_every_other_error_ends_it_at_once(gateway: FakeGateway, kind: type[GatewayError]) -> None:
    gateway.refusals = [kind("no")]
    async with kept_up(gateway, ends=kind, owner=beginner()):
        pass
    assert trio.current_time() == 0


@pytest.mark.parametrize("kind", [ConfigError, Unauthorized, UsageError])
async def test_at_first_a_flawed_file_ends_it_at_once(gateway: FakeGateway, kind: type[GatewayError]) -> None:
    def destination() -> Destination:
        raise kind("flawed")

    async with kept_up(gateway, ends=kind, owner=beginner(), destination=destination):
        pass
    assert gateway.attempts == []


async def test_a_connection_that_is_lost_before_the_first_success_is_resumed_within_the_time(
    gateway: FakeGateway,
) -> None:
    owner = beginner(waiting=True)
    async with kept_up(gateway, ends=Unreachable, owner=owner, connect_timeout=10.0) as (uplink, _):
        await connected(gateway, uplink, owner)
        await trio.sleep(100)
        gateway.last.cut()
        await connected(gateway, uplink, owner, 2)
        assert gateway.attempts[1][1] == Resume("c1", 0)
        await trio.sleep(100)
        gateway.down = True
        gateway.last.cut()
    assert 210 <= trio.current_time() <= 211


async def test_a_connection_that_is_closed_because_another_one_takes_over_does_not_end_it_before_the_first_success(
    gateway: FakeGateway,
) -> None:
    owner = beginner()
    async with kept_up(gateway, owner=owner) as (uplink, _):
        await connected(gateway, uplink, owner)
        gateway.answers_after = 2.0
        first = gateway.last
        first.near.die()
        uplink.link.send([b'{"method":"up"}'])
        await gateway.attempted(2)
        await trio.testing.wait_all_tasks_blocked()
        first.near.revive()
        await first.far.aclose()
        await connected(gateway, uplink, owner, 2)
        await gateway.receive("up")
    assert len(gateway.attempts) == 2


async def test_the_gateways_close_code_and_its_words_are_understood() -> None:
    near, far = memory_stream_pair()
    uri = WebSocketURI(False, "box", 80, "/acp", "")
    how: list[LinkLoss] = []

    async def client() -> None:
        stream = await connect_websocket(TrioBytes(near), uri, {}, max_message_size=4096, timing=Timing())
        with pytest.raises(trio.EndOfChannel):
            await stream.receive_batch()
        how.append(loss_by_close(stream))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client)
        server = await accept_websocket(TrioBytes(far), lambda _: Accept(), max_message_size=4096, timing=Timing())
        assert server is not None
        await server.aclose(CloseReason.AGENT_GONE, "the agent\x1b[31m has ended")
    assert how == [LinkLoss("the gateway closed the connection: the agent\\x1b[31m has ended", 1011, closed=True)]


async def test_what_was_too_large_for_the_gateway_is_not_sent_again(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.client.uplink.loss_by_close", lambda _: LinkLoss("too large", 1009, closed=True))
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        uplink.link.send([b'{"method":"a"}', b'{"method":"large"}', b'{"method":"b"}'])
        await gateway.last.far.aclose()
        await connected(gateway, uplink, owner, 2)
    assert [connection_id for connection_id, _, _ in owner.started_over] == ["c1"]
    assert owner.refused == [(b'{"method":"large"}', "too large")]
    assert gateway.attempts[1][1] == Resume()


@pytest.mark.parametrize("resumes", [False, True])
async def test_only_a_gateway_that_has_a_window_is_read_whatever_waits(
    gateway: FakeGateway, autojump_clock: MockClock, *, resumes: bool
) -> None:
    gateway.resumes = resumes
    async with kept_up(gateway) as (uplink, owner):
        await connected(gateway, uplink, owner)
        gateway.send(method="news")
        await owner.until(lambda: bool(owner.heard))
        await trio.testing.wait_all_tasks_blocked()
    assert owner.waited_for == (0 if resumes else 1)


# The policy


def test_backoff_doubles_up_to_the_longest() -> None:
    assert [backoff(failures, 15.0, 1.0) for failures in range(9)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15]
    assert backoff(10**9, 15.0, 1.0) == 15


def test_jitter_decides_half_of_the_backoff() -> None:
    assert backoff(20, BACKOFF_MAX, 0.0) == 7.5
    assert backoff(20, BACKOFF_MAX, 0.5) == 11.25


@pytest.mark.parametrize(
    ("loss", "resumable", "waiting", "kind"),
    [
        (LinkLoss("cut"), True, True, None),
        (LinkLoss("cut"), True, False, None),
        (LinkLoss("closed", closed=True), True, True, None),
        (LinkLoss("closed", 1001, closed=True), True, True, None),
        (LinkLoss("closed", closed=True), True, False, Unreachable),
        (LinkLoss("closed", 1001, closed=True), True, False, Unreachable),
        (LinkLoss("closed", 1008, closed=True), True, True, Forbidden),
        (LinkLoss("closed", 1009, closed=True), True, True, ProtocolError),
        (LinkLoss("closed", 1011, closed=True), True, True, AgentError),
        (LinkLoss("cut"), False, True, Unreachable),
        (LinkLoss("closed", 1011, closed=True), False, True, AgentError),
        (LinkLoss("refused", cause=ForeignRefusal("refused")), False, True, ForeignRefusal),
        (LinkLoss("cut", cause=ProtocolError("no HTTP")), True, True, None),
    ],
)
def test_final_error_of_a_loss_before_the_first_success(
    loss: LinkLoss, *, resumable: bool, waiting: bool, kind: type[GatewayError] | None
) -> None:
    error = final_error(loss, resumable=resumable, waiting=waiting)
    assert (None if error is None else type(error)) is kind
