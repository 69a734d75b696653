"""Limits of unauthenticated connections: number, CPU time, and no lock-out of valid clients."""

import errno
import itertools
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.config.load import LimitsSection
from acp_gateway.errors import Unauthorized
from acp_gateway.gateway.events.audit import NO_AUDIT
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.tls import client_context, server_context
from acp_gateway.server.handshake_limits import (
    BRIEF_CONNECTION,
    BURST,
    FREE_COST,
    FULL_PAUSE,
    FULL_TIMEOUT,
    LOG_INTERVAL,
    MAX_DEBT,
    SHARE,
    STEP_COST,
    CpuBudget,
    HandshakeLimiter,
    NetworkTurns,
    ThrottledListener,
    ThrottledStream,
    shake_hands,
)
from acp_gateway.server.pending import (
    ANSWER_TIMEOUT,
    ARRIVAL_COST,
    FREE_STEPS,
    WAITING_TIME,
    Accepted,
    PendingConnection,
)
from acp_gateway.transports.sockets import start_tls
from tests.kit.doubles import TIMEOUT, make_config


@pytest.fixture
def limiter(tmp_path: Path) -> HandshakeLimiter:
    return make(tmp_path)


def make(tmp_path: Path, **limits: Any) -> HandshakeLimiter:
    config = make_config(tmp_path, "tcp://127.0.0.1:0")
    object.__setattr__(config, "limits", LimitsSection(**limits))
    return HandshakeLimiter(config, NO_AUDIT)


def guest(network: str = "a", *, limited: bool = True, name: str = "c1") -> PendingConnection:
    return PendingConnection(name=name, peer=network, listener="tcp://gpu:1", network=network, limited=limited)


@asynccontextmanager
async def staying(limiter: HandshakeLimiter, *guests: PendingConnection) -> AsyncIterator[None]:
    """Guests who come one after another and stay until the block is over, or they are shown out."""

    async def stay(guest: PendingConnection) -> None:
        with limiter.admit(guest):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for each in guests:
            nursery.start_soon(stay, each)
            await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


# Room


async def test_of_one_address_the_oldest_goes_when_there_is_one_too_many(tmp_path: Path) -> None:
    limiter = make(tmp_path, handshakes_per_address=2)
    guests = [guest("a"), guest("b"), guest("a"), guest("a"), guest("b")]
    async with staying(limiter, *guests):
        assert [each.evicted for each in guests] == [True, False, False, False, False]
        assert guests[0].scope.cancelled_caught


async def test_another_limit_is_for_the_next_connection(tmp_path: Path) -> None:
    limiter = make(tmp_path, handshakes_per_address=3)
    limiter.set_limits(LimitsSection(handshakes_per_address=1))
    first, second = guest(), guest()
    async with staying(limiter, first, second):
        assert (first.evicted, second.evicted) == (True, False)


async def test_in_all_the_oldest_goes_of_those_addresses_that_have_most(tmp_path: Path) -> None:
    limiter = make(tmp_path, max_handshakes=4)
    guests = [guest("a"), guest("b"), guest("b"), guest("c"), guest("d"), guest("d")]
    async with staying(limiter, *guests):
        # The last but one finds two of b, the last one one of each but two of its own.
        assert [each.evicted for each in guests] == [False, True, False, False, True, False]


async def test_what_was_begun_comes_to_its_end_however_many_come(tmp_path: Path, mock_clock: MockClock) -> None:
    limiter = make(tmp_path, handshakes_per_address=2)
    served = [guest(), guest()]
    async with staying(limiter, *served):
        for each in served:
            await limiter.step(each)
        late = [guest(), guest(), guest()]
        async with staying(limiter, *late):
            assert [each.evicted for each in [*served, *late]] == [False, False, True, False, False]


async def test_whose_turn_has_not_come_yet_is_not_to_blame(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = make(tmp_path, handshakes_per_address=1)
    waiting = guest()
    async with staying(limiter, waiting), trio.open_nursery() as nursery:
        limiter._budget = CpuBudget(1e-6)
        limiter._budget.charge(1.0)
        nursery.start_soon(limiter.step, waiting)
        await trio.sleep(5 * ANSWER_TIMEOUT)
        late = guest()
        async with staying(limiter, late):
            nursery.start_soon(limiter.step, late)
            await trio.sleep(5 * ANSWER_TIMEOUT)
            assert (waiting.evicted, late.evicted) == (False, False)
        nursery.cancel_scope.cancel()


async def test_who_has_waited_for_its_turn_and_goes_on_no_further_keeps_no_other_waiting(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = make(tmp_path, handshakes_per_address=1)
    idle, late = guest(), guest()
    async with staying(limiter, idle), trio.open_nursery() as nursery:
        limiter._budget = CpuBudget(0.5)
        limiter._budget.charge(10 * BURST)
        nursery.start_soon(limiter.step, idle)
        await trio.testing.wait_all_tasks_blocked()
        async with staying(limiter, late):
            with trio.fail_after(100 * BURST + 10 * ANSWER_TIMEOUT):
                await limiter.step(late)
            assert (idle.evicted, late.evicted) == (True, False)
        nursery.cancel_scope.cancel()


async def test_who_does_not_go_on_is_not_waited_for(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    limiter = make(tmp_path, handshakes_per_address=2)
    slow, quick = guest(), guest()
    async with staying(limiter, slow, quick):
        await limiter.step(slow)
        await trio.sleep(2 * ANSWER_TIMEOUT)
        await limiter.step(quick)
        late = guest()
        async with staying(limiter, late):
            assert not slow.evicted
            await limiter.step(late)
            assert [each.evicted for each in (slow, quick, late)] == [True, False, False]


async def test_a_handshake_of_too_many_steps_is_evicted_as_idle(tmp_path: Path) -> None:
    limiter = make(tmp_path, handshakes_per_address=2)
    trickling, quick = guest(), guest()
    async with staying(limiter, trickling, quick):
        await limiter.step(quick)
        for _ in range(FREE_STEPS + 1):
            await limiter.step(trickling)
        late = guest()
        async with staying(limiter, late):
            await limiter.step(late)
            assert (trickling.evicted, quick.evicted) == (True, False)


async def test_a_newcomer_is_let_in_among_those_who_send_a_byte_now_and_then(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = make(tmp_path, handshakes_per_address=2)
    trickling = [guest(), guest()]
    async with staying(limiter, *trickling):
        for _ in range(5):
            for each in trickling:
                await limiter.step(each)
            await trio.sleep(0.8 * ANSWER_TIMEOUT)
        newcomer = guest()
        async with staying(limiter, newcomer):
            await limiter.step(newcomer)
            assert [each.evicted for each in (*trickling, newcomer)] == [True, False, False]


async def test_an_address_that_replaces_unfinished_heads_again_and_again_keeps_no_newcomer_of_it_out(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = make(tmp_path, handshakes_per_address=32)
    limiter._budget = CpuBudget(1.0)

    async def attack() -> None:
        while True:
            head = guest()
            with limiter.admit(head):
                await limiter.step(head)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(attack)
        await trio.sleep(10)
        for _ in range(10):
            began = trio.current_time()
            newcomer = guest()
            with limiter.admit(newcomer):
                for _ in range(4):
                    await limiter.step(newcomer)
                    await trio.sleep(0.3)  # A round trip.
                limiter.authenticated(newcomer)
            assert newcomer.authenticated
            assert not newcomer.evicted
            assert trio.current_time() - began < 4 * 0.3 + 2 * 60 / 32 * ANSWER_TIMEOUT
        nursery.cancel_scope.cancel()


async def test_a_fleet_that_comes_back_comes_in_one_after_another(tmp_path: Path, mock_clock: MockClock) -> None:
    limiter = make(tmp_path, max_handshakes=4)
    fleet = [guest(f"laptop {number}") for number in range(4)]
    async with staying(limiter, *fleet):
        for each in fleet:
            await limiter.step(each)
        late = guest("laptop 5")
        async with staying(limiter, late):
            assert late.evicted
            assert not any(each.evicted for each in fleet)


async def test_who_was_refused_takes_no_room_of_the_address(tmp_path: Path) -> None:
    limiter = make(tmp_path, handshakes_per_address=2, max_handshakes=5)
    refused = [guest(), guest(), guest()]
    async with staying(limiter, *refused[:2]):
        for each in refused[:2]:
            limiter.refuse(each, Unauthorized("no"))
        async with staying(limiter, guest(), guest()):
            assert not any(each.evicted for each in refused)


async def test_who_was_refused_goes_first_where_there_is_no_room_at_all(tmp_path: Path) -> None:
    limiter = make(tmp_path, max_handshakes=3)
    guests = [guest("a"), guest("b"), guest("c")]
    async with staying(limiter, *guests):
        limiter.refuse(guests[2], Unauthorized("no"))
        limiter.refuse(guests[1], Unauthorized("no"))
        async with staying(limiter, guest("d")):
            assert [each.evicted for each in guests] == [False, False, True]
    assert limiter._refused == {}


async def test_requests_that_were_refused_leave_in_no_more_connections_than_there_may_be(tmp_path: Path) -> None:
    limiter = make(tmp_path, max_handshakes=3)
    carrier = guest("a")
    guests = [guest("b"), guest("c"), guest("d")]
    async with staying(limiter, carrier):
        requests = [carrier.for_request(trio.CancelScope()) for _ in range(3)]
        for each in requests:
            limiter.refuse(each, Unauthorized("no"))
        async with staying(limiter, *guests):
            assert sum(each.evicted for each in (carrier, *guests)) == 1
        for each in requests:
            limiter.leave(each)
    assert (limiter._refused, limiter._pending) == ({}, 0)


async def test_who_comes_through_a_proxy_or_a_unix_socket_is_not_limited_by_the_address(tmp_path: Path) -> None:
    limiter = make(tmp_path, handshakes_per_address=2)
    guests = [guest("proxy", limited=False) for _ in range(5)]
    async with staying(limiter, *guests):
        assert not any(each.evicted for each in guests)


async def test_who_has_come_in_takes_no_room_and_stays(tmp_path: Path) -> None:
    limiter = make(tmp_path, handshakes_per_address=2, max_handshakes=2)
    inside = [guest(), guest()]
    async with staying(limiter, *inside):
        for each in inside:
            limiter.authenticated(each)
        guests = [guest(), guest()]
        async with staying(limiter, *guests):
            assert not any(each.evicted for each in [*inside, *guests])


async def test_who_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    limiter = make(tmp_path, handshakes_per_address=2)
    async with staying(limiter, *(guest(room) for room in "aaaabbc")):
        pass
    assert (limiter._by_network, limiter._pending) == ({}, 0)


async def test_evict_one_without_connections_does_nothing(limiter: HandshakeLimiter) -> None:
    limiter.evict_one()


# Time


async def test_the_cpu_budget_delays_no_turn_within_its_credit(autojump_clock: trio.testing.MockClock) -> None:
    budget = CpuBudget(0.5)
    for _ in range(10):
        await budget.turn()
        budget.charge(BURST / 10)
    assert trio.current_time() == 0.0


async def test_in_the_long_run_what_is_charged_is_a_share_of_the_time(autojump_clock: trio.testing.MockClock) -> None:
    budget = CpuBudget(0.25)
    for _ in range(1000):
        await budget.turn()
        budget.charge(0.001)
    assert trio.current_time() == pytest.approx((1.0 - BURST) / 0.25, rel=0.01)


async def test_the_cpu_budget_saves_up_no_more_than_its_credit(autojump_clock: trio.testing.MockClock) -> None:
    budget = CpuBudget(0.5)
    await trio.sleep(1000)
    budget.charge(BURST)
    budget.charge(0.01)
    await budget.turn()
    assert trio.current_time() == pytest.approx(1000.02)


async def test_what_many_owe_together_is_not_waited_for_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    budget = CpuBudget(0.5)
    for _ in range(1000):
        budget.charge(0.001)
    await budget.turn()
    assert trio.current_time() == pytest.approx(MAX_DEBT / 0.5)


async def test_what_one_step_took_is_paid_for_however_long_it_was(autojump_clock: trio.testing.MockClock) -> None:
    budget = CpuBudget(0.25)
    for _ in range(10):
        await budget.turn()
        budget.charge(100 * MAX_DEBT)
        budget.charge(0.0)
    await budget.turn()
    assert trio.current_time() == pytest.approx((10 * 100 * MAX_DEBT - BURST) / 0.25)


async def test_a_debt_that_is_too_small_for_the_clock_ends(autojump_clock: trio.testing.MockClock) -> None:
    budget = CpuBudget(0.5)
    autojump_clock.jump(1e9)
    budget.charge(BURST + 1e-12)
    with trio.fail_after(1):
        await budget.turn()


async def test_one_passes_at_a_turn_in_the_order_in_which_they_came() -> None:
    budget = CpuBudget(0.5)
    passed: list[int] = []
    alone: list[int] = []

    async def come(number: int) -> None:
        await budget.turn()
        passed.append(number)

    class Watch(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            alone.append(len(passed))

    watch = Watch()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(come, number)
            await trio.lowlevel.cancel_shielded_checkpoint()
            if number == 0:
                trio.lowlevel.add_instrument(watch)
    trio.lowlevel.remove_instrument(watch)
    assert max(after - before for before, after in itertools.pairwise(alone)) == 1
    assert passed == sorted(passed)


async def test_only_who_came_for_nothing_is_paid_for(
    limiter: HandshakeLimiter, autojump_clock: trio.testing.MockClock
) -> None:
    async def come(*, is_let_in: bool) -> None:
        connection = guest()
        with limiter.admit(connection):
            for _ in range(4):
                await limiter.step(connection)
            if is_let_in:
                limiter.authenticated(connection)

    for _ in range(1000):
        await come(is_let_in=True)
    assert trio.current_time() == 0.0
    for _ in range(1000):
        await come(is_let_in=False)
    charged = 1000 * (ARRIVAL_COST + 4 * STEP_COST)
    assert trio.current_time() == pytest.approx((charged - BURST) / SHARE, rel=0.01)


async def test_who_comes_in_and_leaves_at_once_is_paid_for_as_well(
    limiter: HandshakeLimiter, autojump_clock: trio.testing.MockClock
) -> None:
    async def connect_for(seconds: float) -> float:
        """Return how long the next handshake waits after an authenticated connection of that duration."""
        connection = guest()
        with limiter.admit(connection):
            limiter.authenticated(connection)
        came = trio.current_time()
        await trio.sleep(seconds)
        limiter.release(10 * BURST, came)
        began = trio.current_time()
        await limiter.step(guest())
        return trio.current_time() - began

    assert await connect_for(BRIEF_CONNECTION) == 0
    assert await connect_for(0.0) > BURST


async def test_who_sends_byte_after_byte_pays_before_leaving(
    limiter: HandshakeLimiter, autojump_clock: trio.testing.MockClock
) -> None:
    connection = guest()
    with limiter.admit(connection):
        for _ in range(FREE_STEPS + 1000):
            await limiter.step(connection)
        assert trio.current_time() == pytest.approx((1000 * STEP_COST - BURST) / SHARE, rel=0.01)


async def test_the_work_for_a_guest_is_measured(limiter: HandshakeLimiter, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.0 + FREE_COST / 2])
    monkeypatch.setattr("time.thread_time", lambda: next(times))
    connection = guest()
    with pytest.raises(ZeroDivisionError), limiter.measured(connection):
        raise ZeroDivisionError
    assert connection.cost == pytest.approx(ARRIVAL_COST + FREE_COST / 2)


async def test_a_handshake_of_unusual_cost_is_charged_before_it_ends(
    limiter: HandshakeLimiter, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    times = iter([10.0, 10.0 + 3 * BURST])
    monkeypatch.setattr("time.thread_time", lambda: next(times))
    connection = guest()
    with limiter.measured(connection):
        pass
    monkeypatch.undo()
    await limiter.step(connection)
    assert trio.current_time() == pytest.approx((3 * BURST + ARRIVAL_COST + STEP_COST - BURST) / SHARE, rel=0.05)


@pytest.mark.parametrize("how", ["refused", "not understood"])
async def test_who_was_refused_pays_at_once_and_not_when_they_choose_to_leave(
    how: str, limiter: HandshakeLimiter, autojump_clock: trio.testing.MockClock
) -> None:
    pendings = [guest(str(number)) for number in range(200)]
    async with staying(limiter, *pendings):
        for connection in pendings:
            await limiter.step(connection)
            if how == "refused":
                limiter.refuse(connection, Unauthorized("no"))
            else:
                limiter.refuse_malformed(connection, "what?")
        await limiter.step(guest())
        charged = 200 * (ARRIVAL_COST + STEP_COST)
        assert trio.current_time() == pytest.approx((charged - BURST) / SHARE, rel=0.05)


async def test_where_it_is_full_the_next_is_expected_when_one_has_gone(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = make(tmp_path, max_handshakes=2)
    first = guest()
    async with staying(limiter, first, guest()), trio.open_nursery() as nursery:
        nursery.start_soon(limiter.wait_to_accept)
        await trio.sleep(FULL_TIMEOUT / 2)
        limiter.authenticated(first)
    assert trio.current_time() == FULL_TIMEOUT / 2


async def test_where_it_stays_full_the_next_is_expected_all_the_same(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = make(tmp_path, max_handshakes=2)
    async with staying(limiter, guest(), guest()):
        await limiter.wait_to_accept()
    assert trio.current_time() == FULL_TIMEOUT


# Accepting


class Crowded(trio.abc.Listener[trio.SocketStream]):
    """A listener whose system has no room for the first so many connections."""

    def __init__(self, *errors: int) -> None:
        self._errors = list(errors)

    async def accept(self) -> trio.SocketStream:
        await trio.lowlevel.checkpoint()
        if self._errors:
            raise OSError(self._errors.pop(0), "no")
        here, there = trio.socket.socketpair()
        there.close()
        return trio.SocketStream(here)

    async def aclose(self) -> None:
        raise ZeroDivisionError


async def test_where_the_system_is_full_it_is_asked_again_and_the_log_has_it_once(
    limiter: HandshakeLimiter, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    throttled = ThrottledListener(Crowded(*[errno.EMFILE, errno.ENFILE] * 5), limiter)  # type: ignore[arg-type]
    oldest, next_one = guest("a"), guest("a")
    async with staying(limiter, oldest, next_one):
        await (await throttled.accept()).aclose()
        assert oldest.evicted
    assert trio.current_time() == pytest.approx(10 * FULL_PAUSE)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == ("accept failed: too many open files; open connections are not affected")
    assert record.exc_info is None


async def test_the_log_has_it_again_when_that_is_long_ago(
    limiter: HandshakeLimiter, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(3):
        throttled = ThrottledListener(Crowded(errno.EMFILE), limiter)  # type: ignore[arg-type]
        await (await throttled.accept()).aclose()
        await trio.sleep(LOG_INTERVAL)
    assert len(caplog.records) == 3


async def test_another_error_of_a_listener_is_not_passed_over(limiter: HandshakeLimiter) -> None:
    with pytest.raises(OSError, match="no"):
        await ThrottledListener(Crowded(errno.EBADF), limiter).accept()  # type: ignore[arg-type]


async def test_a_throttled_listener_closes_the_listener_below(limiter: HandshakeLimiter) -> None:
    with pytest.raises(ZeroDivisionError):
        await ThrottledListener(Crowded(), limiter).aclose()  # type: ignore[arg-type]


# Connections


def pair() -> tuple[socket.socket, socket.socket]:
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    return here, there


async def test_what_a_guest_sends_is_read_in_turns_until_they_are_in(limiter: HandshakeLimiter) -> None:
    here, there = pair()
    connection = guest()
    stream = ThrottledStream(here, connection, limiter)
    for data in (b"a", b"b"):
        there.send(data)
        assert await stream.receive_some() == data
    assert connection.steps == 2
    stream.stop_throttling()
    there.send(b"c")
    assert await stream.receive_some() == b"c"
    assert connection.steps == 2
    await stream.aclose()
    there.close()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    created = create_certificate(["localhost"], tmp_path_factory.mktemp("tls"))
    return server_context(created.cert_path, created.key_path), client_context(ca=created.cert_path, pin=None)


async def test_hands_are_shaken_a_step_at_a_time(
    limiter: HandshakeLimiter, contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each reading is a millisecond after the one before: real ones may be so far apart that the cost is charged.
    clock = SimpleNamespace(thread_time=itertools.count(0.0, 0.001).__next__)
    monkeypatch.setattr("acp_gateway.server.pending.time", clock)
    here, there = pair()
    connection = guest()
    ends: list[Any] = []

    async def serve() -> None:
        ends.append(ThrottledStream(await shake_hands(here, contexts[0], connection, limiter), connection, limiter))

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            ends.append(await start_tls(there, contexts[1], server_hostname="localhost"))
            await ends[0].send_some(memoryview(b"hello"))
        client, server = sorted(ends, key=lambda end: isinstance(end, ThrottledStream))
        assert await server.receive_some() == b"hello"
    assert 2 <= connection.steps <= 5
    # The last step is the read.
    measured = (connection.steps - 1) * 0.001
    assert connection.cost == pytest.approx(ARRIVAL_COST + connection.steps * STEP_COST + measured)
    await client.aclose()
    await server.aclose()


async def test_for_who_says_nothing_nothing_is_set_up(
    limiter: HandshakeLimiter, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    here, there = pair()
    connection = guest()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shake_hands, here, contexts[0], connection, limiter)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert connection.steps == 0
    assert here.fileno() == -1
    there.close()


@pytest.mark.parametrize("said", [b"hello\r\n\r\n", b"\x16\x03\x01\xff\xff", b""])
async def test_who_speaks_no_tls_is_an_error_and_the_socket_closed(
    said: bytes, limiter: HandshakeLimiter, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    here, there = pair()
    there.send(said)
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError), trio.fail_after(TIMEOUT):  # noqa: PT011 - whichever OpenSSL finds fitting
        await shake_hands(here, contexts[0], guest(), limiter)
    there.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_listeners_with_one_handshake_limiter_report_refusals_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = make(tmp_path)
    told = 0

    async def report() -> None:
        nonlocal told
        told += 1
        await trio.sleep_forever()

    limiter.refusals.report = report  # type: ignore[method-assign]
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(limiter.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert told == 2


def arrival(number: int, steps: int = 0, *, limited: bool = True) -> PendingConnection:
    return PendingConnection(
        name=str(number), peer="a", listener="tcp://gpu:1", network="a", limited=limited, number=number, steps=steps
    )


class Scene:
    """The connections of one network, with turns for two."""

    def __init__(self) -> None:
        self.turns = NetworkTurns()
        self.evicted: list[PendingConnection] = []
        self.took: list[int] = []

    def add(self, number: int, steps: int = 0) -> PendingConnection:
        connection = arrival(number, steps)
        assert self.turns.add(connection, 2) is None
        return connection

    def evict(self, connection: PendingConnection) -> None:
        self.evicted.append(connection)
        self.turns.remove(connection)

    async def take(self, connection: PendingConnection) -> None:
        connection.begin_step(trio.current_time())
        await self.turns.take(connection, lambda: 2, self.evict)
        connection.last_received_at = trio.current_time()
        self.took.append(connection.number)


def test_beyond_as_many_as_there_are_turns_the_oldest_without_a_byte_is_surplus_and_else_the_newest() -> None:
    for steps, surplus in (((0, 0, 0), 1), ((1, 0, 0), 2), ((1, 1, 0), 3), ((1, 1, 1), 3)):
        turns = NetworkTurns()
        first, second, third = (arrival(number, steps[number - 1]) for number in (1, 2, 3))
        assert (turns.add(first, 2), turns.add(second, 2)) == (None, None)
        found = turns.add(third, 2)
        assert found is not None
        assert found.number == surplus


def test_connections_of_a_proxy_are_never_surplus() -> None:
    turns = NetworkTurns()
    assert [turns.add(arrival(number, limited=False), 2) for number in range(9)] == [None] * 9


async def test_turns_are_given_in_the_order_of_asking_when_one_has_ended(autojump_clock: MockClock) -> None:
    scene = Scene()
    first, second = scene.add(1), scene.add(2)
    async with trio.open_nursery() as nursery:
        for connection in (first, second):
            await scene.take(connection)
        third, fourth = scene.add(3), scene.add(4)
        for connection in (third, fourth):
            nursery.start_soon(scene.take, connection)
            await wait_all_tasks_blocked()
        assert scene.took == [1, 2]
        assert scene.turns.remove(second)
        await wait_all_tasks_blocked()
        assert scene.took == [1, 2, 3]
        scene.turns.remove(fourth)
        assert not scene.turns.remove(fourth)
        nursery.cancel_scope.cancel()
    assert (list(scene.turns.connections), scene.evicted) == ([first, third], [])


async def test_an_idle_one_is_evicted_as_soon_as_another_waits_for_its_turn(autojump_clock: MockClock) -> None:
    scene = Scene()
    first, second = scene.add(1), scene.add(2)
    await scene.take(first)
    await trio.sleep(ANSWER_TIMEOUT / 2)
    await scene.take(second)
    await trio.sleep(ANSWER_TIMEOUT / 4)
    await scene.take(scene.add(3))
    assert scene.evicted == [first]
    assert trio.current_time() == pytest.approx(ANSWER_TIMEOUT)


async def test_one_that_has_its_turn_or_has_gone_need_not_wait(autojump_clock: MockClock) -> None:
    scene = Scene()
    connections = [scene.add(1), scene.add(2)]
    for connection in (*connections, *connections, arrival(3)):
        await scene.take(connection)
    assert (scene.took, trio.current_time()) == ([1, 2, 1, 2, 3], 0)


async def test_a_step_of_one_that_had_to_wait_lets_others_look_when_it_is_idle(autojump_clock: MockClock) -> None:
    scene = Scene()
    first, second = scene.add(1), scene.add(2)
    for connection in (first, second):
        # It has its turn, and waits for another reason than the others of its network.
        connection.begin_step(trio.current_time())
        await scene.turns.take(connection, lambda: 2, scene.evict)
    with trio.fail_after(10 * ANSWER_TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.take, scene.add(3))
            await trio.sleep(1)
            for connection in (first, second):
                connection.last_received_at = trio.current_time()
                scene.turns.note_step()
    assert (scene.took, scene.evicted) == ([3], [first])


NOW = 100.0


def pending(number: int, steps: int = 0, last_received_at: float = NOW, name: str = "") -> PendingConnection:
    return PendingConnection(
        name=name or str(number),
        peer="192.0.2.1",
        listener="tcp://gpu:1",
        network="192.0.2.1",
        limited=True,
        number=number,
        steps=steps,
        last_received_at=last_received_at,
    )


def evicted(*connections: PendingConnection) -> list[str]:
    """Return the names in the order of eviction."""
    return [connection.name for connection in sorted(connections, key=lambda each: each.eviction_key(NOW))]


def test_eviction_begins_with_the_oldest_idle_connection_and_ends_with_the_oldest_active_one() -> None:
    slow = pending(2, steps=1, last_received_at=NOW - 2 * ANSWER_TIMEOUT)
    trickling = pending(4, steps=FREE_STEPS + 1)
    assert evicted(pending(1, steps=1), slow, pending(3), trickling, pending(5, steps=1)) == ["2", "3", "4", "5", "1"]


def test_a_connection_that_was_waited_for_too_long_in_all_is_idle_and_the_wait_for_its_turn_does_not_count() -> None:
    trickling, queued = pending(1), pending(2)
    for second in range(int(WAITING_TIME) + 2):
        trickling.begin_step(NOW + second)
        trickling.last_received_at = NOW + second
    queued.begin_step(NOW)
    later = NOW + WAITING_TIME + 1
    quick = pending(3, steps=1, last_received_at=later)
    order = sorted([queued, quick, trickling], key=lambda each: each.eviction_key(later))
    assert order == [trickling, quick, queued]


def test_repr_of_a_pending_connection_hides_its_token() -> None:
    connection = pending(1)
    connection.token = "acpgw_secret"  # It stands for one.
    assert "acpgw_secret" not in repr(connection)


def test_a_request_of_a_trusted_proxy_has_the_address_it_forwards_and_nothing_of_the_request_before() -> None:
    connection = pending(1, name="x7Kd01ab (192.0.2.1:50312)")
    connection.begin_request("203.0.113.5")
    assert (connection.address, connection.name) == ("203.0.113.5", "x7Kd01ab (203.0.113.5 by way of 192.0.2.1:50312)")
    connection.token, connection.access = "acpgw_secret", cast("Any", object())
    connection.begin_request("192.0.2.1")
    assert (connection.address, connection.name) == ("192.0.2.1", "x7Kd01ab (192.0.2.1:50312)")
    assert connection.token is None
    assert connection.access is None
    assert connection.network == "192.0.2.1"


def test_link_id_is_set_for_resumable_connections_only() -> None:
    purpose = cast("Any", None)
    assert Accepted("id", 0, purpose).link_id == "id"
    assert Accepted("id", None, purpose).link_id is None


def test_the_next_request_of_a_connection_has_an_id_of_its_own_and_no_steps_yet() -> None:
    connection = pending(1, steps=FREE_STEPS + 1, name="x7Kd01ab (192.0.2.1:50312)")
    connection.connection_id = "x7Kd01abxxxxxxxxxxxxxx"
    connection.begin_request("203.0.113.5")
    connection.waited, connection.cost, connection.authenticated, connection.fetched = 5.0, 1.0, True, True
    connection.renew()
    connection.begin_request("192.0.2.1")
    assert len(connection.connection_id) == 22
    assert connection.connection_id != "x7Kd01abxxxxxxxxxxxxxx"
    assert connection.name == f"{connection.connection_id[:8]} (192.0.2.1:50312)"
    assert (connection.steps, connection.waited, connection.cost) == (0, 0.0, ARRIVAL_COST)
    assert (connection.answered, connection.authenticated, connection.fetched) == (True, False, False)
