"""Several ways to one peer: when each starts (pure), and which one is used."""

import math
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio

from acp_gateway.errors import GatewayError, TrustError, Unauthorized, Unreachable
from acp_gateway.transports.racing import COSTLY_PATIENCE, STAGGER, Schedule, interleave, race, resolve

CHEAP, COSTLY = False, True


def starts(schedule: Schedule, ends: dict[int, float]) -> dict[int, float]:
    """Return the time at which each way starts, if those of `ends` fail at these times and no other ends."""
    begun: dict[int, float] = {}
    now = 0.0
    ends = dict(ends)
    while True:
        due = schedule.next(now)
        end = min((ends[index] for index in begun if index in ends), default=math.inf)
        if due is not None and due[1] <= max(end, now):
            index, now = due[0], max(now, due[1])
            schedule.start(index, now)
            begun[index] = now
        elif end < math.inf:
            now = max(now, end)
            (index,) = [index for index in begun if ends.get(index) == end]
            del ends[index]
            schedule.fail(index)
        else:
            return begun


def test_ways_start_in_their_order_250_ms_apart() -> None:
    assert starts(Schedule([CHEAP] * 3), {}) == {0: 0.0, 1: STAGGER, 2: 2 * STAGGER}


def test_a_failure_starts_the_next_way_at_once() -> None:
    assert starts(Schedule([CHEAP] * 3), {0: 0.1}) == {0: 0.0, 1: 0.1, 2: 0.1 + STAGGER}


def test_the_ways_at_once_start_together_and_the_others_after_them() -> None:
    assert starts(Schedule([CHEAP] * 3, at_once=2), {}) == {0: 0.0, 1: 0.0, 2: STAGGER}


def test_a_costly_way_waits_until_the_others_have_had_time() -> None:
    assert starts(Schedule([CHEAP, COSTLY, CHEAP]), {}) == {0: 0.0, 2: STAGGER, 1: STAGGER + COSTLY_PATIENCE}


def test_a_costly_way_starts_at_once_when_all_others_have_failed() -> None:
    assert starts(Schedule([CHEAP, CHEAP, COSTLY]), {0: 0.01, 1: 0.02}) == {0: 0.0, 1: 0.01, 2: 0.02}


def test_a_failure_does_not_hasten_a_costly_way_while_another_one_runs() -> None:
    assert starts(Schedule([CHEAP, CHEAP, COSTLY]), {0: 0.01}) == {0: 0.0, 1: 0.01, 2: 0.01 + COSTLY_PATIENCE}


def test_a_costly_way_that_is_first_starts_first() -> None:
    assert starts(Schedule([COSTLY, CHEAP]), {}) == {0: 0.0, 1: STAGGER}


def test_costly_ways_never_run_at_the_same_time() -> None:
    assert starts(Schedule([COSTLY, COSTLY, CHEAP]), {}) == {0: 0.0, 2: STAGGER}
    assert starts(Schedule([COSTLY, COSTLY]), {0: 7.0}) == {0: 0.0, 1: 7.0}


def test_a_costly_way_is_not_among_those_at_once_unless_it_is_the_first() -> None:
    assert starts(Schedule([CHEAP, COSTLY, CHEAP], at_once=3), {}) == {0: 0.0, 2: 0.0, 1: COSTLY_PATIENCE}
    assert starts(Schedule([COSTLY, CHEAP], at_once=2), {}) == {0: 0.0, 1: 0.0}


def test_the_families_of_a_name_take_turns_and_the_first_choice_of_the_system_is_first() -> None:
    six, four = socket.AF_INET6, socket.AF_INET
    found = [(six, "a"), (six, "b"), (six, "c"), (four, "d")]
    assert interleave(found) == [(six, "a"), (four, "d"), (six, "b"), (six, "c")]
    assert interleave(found[::-1]) == [(four, "d"), (six, "c"), (six, "b"), (six, "a")]
    assert interleave([]) == []


async def test_an_address_resolves_to_itself() -> None:
    assert await resolve("127.0.0.1", 7) == [(socket.AF_INET, ("127.0.0.1", 7))]


class Connection:
    """A result of a way, which notes whether it was closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


class Ways:
    """Ways in memory: each takes its seconds, and then works or fails."""

    def __init__(self) -> None:
        self.started: list[tuple[str, float]] = []
        self.cancelled: list[str] = []

    def way(self, name: str, seconds: float, outcome: GatewayError | Connection) -> Callable[[], Awaitable[Connection]]:
        async def run() -> Connection:
            self.started.append((name, trio.current_time()))
            try:
                await trio.sleep(seconds)
            except trio.Cancelled:
                self.cancelled.append(name)
                raise
            if isinstance(outcome, GatewayError):
                raise outcome
            return outcome

        return run


@pytest.fixture
def ways() -> Ways:
    return Ways()


async def test_the_first_way_that_works_is_used_and_the_others_are_cancelled(
    ways: Ways, autojump_clock: trio.testing.MockClock
) -> None:
    here = Connection("b")
    began = trio.current_time()
    tried = [ways.way("a", math.inf, Unreachable("a")), ways.way("b", 0.1, here), ways.way("c", 1.0, Connection("c"))]
    assert await race(tried, Schedule([CHEAP] * 3)) is here
    assert (ways.started, ways.cancelled) == ([("a", began), ("b", began + STAGGER)], ["a"])
    assert trio.current_time() == began + STAGGER + 0.1


async def test_if_every_way_fails_each_error_is_returned_in_the_order_of_the_ways(
    ways: Ways, autojump_clock: trio.testing.MockClock
) -> None:
    errors = [Unreachable("a"), TrustError("b"), Unauthorized("c")]
    tried = [ways.way(str(error), 1.0 / (index + 1), error) for index, error in enumerate(errors)]
    assert await race(tried, Schedule([CHEAP] * 3)) == errors


async def test_an_error_that_every_way_would_meet_ends_the_race(
    ways: Ways, autojump_clock: trio.testing.MockClock
) -> None:
    tried = [ways.way("a", math.inf, Unreachable("a")), ways.way("b", 1.0, Unauthorized("b"))]
    with pytest.raises(Unauthorized, match="b"):
        await race(tried, Schedule([CHEAP] * 2), ends=(Unauthorized,))
    assert ways.cancelled == ["a"]


async def test_a_way_that_works_later_than_another_one_is_closed(
    ways: Ways, autojump_clock: trio.testing.MockClock
) -> None:
    first, second = Connection("a"), Connection("b")

    async def work_late() -> Connection:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        return second

    assert await race([ways.way("a", 1.0, first), work_late], Schedule([CHEAP] * 2)) is first
    assert (first.closed, second.closed) == (False, True)


async def test_a_race_that_is_cancelled_cancels_its_ways_and_leaves_nothing_open(
    ways: Ways, autojump_clock: trio.testing.MockClock
) -> None:
    ready = Connection("a")

    async def cancel_and_work() -> Connection:
        scope.cancel()
        return ready

    with trio.CancelScope() as scope:
        await race([ways.way("b", math.inf, Unreachable("b")), cancel_and_work], Schedule([CHEAP] * 2, at_once=2))
    assert scope.cancelled_caught
    assert ready.closed
    assert ways.cancelled == ["b"]
