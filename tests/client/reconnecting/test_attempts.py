"""Attempts to reach the gateway beside a connection."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from acp_gateway.client.dialing import Destination, Dialed, Resume
from acp_gateway.client.reconnecting.attempts import ATTEMPT_TIMEOUT, MAX_ATTEMPTS, Attempt, Attempts
from acp_gateway.config.addresses import parse_address
from acp_gateway.errors import Unreachable
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason
from tests.kit.doubles import FragileStream

TARGET = Destination(parse_address("ws://127.0.0.1:1/acp"), None, None, None, None, 1 << 20)


async def test_an_attempt_tells_each_address_the_same_count(nursery: trio.Nursery) -> None:
    counts = iter((5, 7))
    told: list[int | None] = []
    asking: list[Attempt] = []

    def ask(attempt: Attempt) -> int:
        asking.append(attempt)
        return next(counts)

    async def dial(_: Destination, resume: Resume) -> Dialed:
        told.extend([(await resume.asked()).received for _address in range(2)])
        return Dialed(memory_message_stream_pair()[0], "link", 0)

    attempts = Attempts(dial, lambda: None)
    await nursery.start(attempts.run)
    attempts.start(TARGET, Resume("link", 5), ask)
    await trio.testing.wait_all_tasks_blocked()
    assert told == [5, 5]
    assert [attempt.told for attempt in asking] == [5]
    nursery.cancel_scope.cancel()


class Network:
    """A gateway that answers the attempts which the test lets through, and asks each for its count."""

    def __init__(self) -> None:
        self.streams: list[FragileStream] = []
        """Connections that were made."""
        self.dialed: list[float] = []
        """Times at which an attempt has dialed."""
        self.answers = trio.Event()
        self.outcomes = 0
        self.attempts = Attempts(self._dial, self._done)

    async def _dial(self, _: Destination, resume: Resume) -> Dialed:
        self.dialed.append(trio.current_time())
        await resume.asked()
        await self.answers.wait()
        self.streams.append(FragileStream(memory_message_stream_pair()[0]))
        return Dialed(self.streams[-1], "link", 0)

    def _done(self) -> None:
        self.outcomes += 1

    async def start(self, *, asks: bool = False, delay: float = 0.0) -> Attempt:
        self.attempts.start(TARGET, Resume("link"), (lambda _: 0) if asks else None, delay)
        attempt = self.attempts.running[-1]
        await trio.testing.wait_all_tasks_blocked()
        return attempt

    def abandoned(self) -> list[bool]:
        """For each connection, whether it was closed in a way that leaves its link."""
        return [
            stream.closed_with is not None and stream.closed_with[0] is CloseReason.GOING_AWAY
            for stream in self.streams
        ]


@pytest.fixture
async def network(nursery: trio.Nursery) -> AsyncIterator[Network]:
    network = Network()
    await nursery.start(network.attempts.run)
    yield network
    nursery.cancel_scope.cancel()


async def test_of_many_attempts_the_first_keeps_its_time_and_the_second_is_dropped(network: Network) -> None:
    started = [await network.start() for _ in range(MAX_ATTEMPTS + 1)]
    assert network.attempts.running == [started[0], *started[2:]]
    assert started[1].scope.cancel_called


async def test_an_attempt_without_an_answer_fails_after_its_time(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    attempt = await network.start()
    await network.attempts.wait(ATTEMPT_TIMEOUT + 1)
    assert trio.current_time() == ATTEMPT_TIMEOUT
    assert network.attempts.take() is attempt
    assert isinstance(attempt.outcome, Unreachable)
    assert network.attempts.take() is None


async def test_an_attempt_that_is_delayed_begins_when_it_dials(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    attempt = await network.start(delay=0.5)
    await network.attempts.wait(1.0)
    assert network.dialed == [0.5]
    assert attempt.began == 0.5


async def test_attempts_that_have_asked_go_on_when_the_others_are_dropped(network: Network) -> None:
    asking, _ = await network.start(asks=True), await network.start()
    assert network.attempts.asked
    network.attempts.drop_unasked()
    assert network.attempts.running == [asking]
    network.attempts.drop()
    assert not network.attempts.asked


async def test_attempts_that_are_cut_short_fail_at_once(network: Network) -> None:
    await network.start()
    network.attempts.cut_short()
    await trio.testing.wait_all_tasks_blocked()
    assert network.attempts.done is not None
    assert isinstance(network.attempts.done.outcome, Unreachable)


async def test_connections_that_are_not_taken_are_closed_and_their_link_is_not(network: Network) -> None:
    network.answers.set()
    for _ in range(2):
        await network.start()
    assert network.outcomes == 2
    assert network.attempts.take() is not None
    network.attempts.drop()
    await trio.testing.wait_all_tasks_blocked()
    assert network.abandoned() == [False, True]


async def test_a_connection_of_an_attempt_that_was_dropped_is_closed(network: Network) -> None:
    await network.start()
    network.answers.set()
    # Its answer is there already.
    network.attempts.drop()
    await trio.testing.wait_all_tasks_blocked()
    assert network.abandoned() == [True]
    assert network.outcomes == 0


async def test_cancelled_the_connections_that_were_not_taken_are_closed() -> None:
    network = Network()
    network.answers.set()
    async with trio.open_nursery() as nursery:
        await nursery.start(network.attempts.run)
        await network.start()
        nursery.cancel_scope.cancel()
    assert network.abandoned() == [True]
