"""An agent without open requests is not idle while it works in the background."""

import logging
from typing import Any

import pytest

from acp_gateway.gateway.agent.descendants import Look
from acp_gateway.gateway.agent.orphans import ProcessStat
from acp_gateway.gateway.hub.idleness import WORKING, Idleness
from tests.kit.doubles import FakeAgent

TIMEOUT = 80.0
TICK = TIMEOUT / 4
TRAINING = ProcessStat(9, "S", 1, 9, 9, 1, name="train")


class FakeDescendants:
    """Descendants that look as they are told to."""

    def __init__(self) -> None:
        self.now = Look()

    async def look(self) -> Look:
        return self.now


class Silence:
    """An agent that is silent since second 0."""

    def __init__(self) -> None:
        self.agent = FakeAgent().agent
        self.looks = FakeDescendants()
        self.agent.descendants = self.looks  # type: ignore[assignment]
        self.idleness = Idleness()
        self.time = 0.0
        self.since = 0.0

    async def passes(self, ticks: int, **look: Any) -> bool:
        """Let so many ticks pass, and have the agent look like this at the last; return True if it was ever idle."""
        found = False
        for tick in range(ticks):
            self.time += TICK
            if tick == ticks - 1:
                self.looks.now = Look(**look)
            found = await self.idleness.is_idle(self.agent, self.since, self.time, TIMEOUT) or found
        return found


@pytest.fixture
def silence() -> Silence:
    return Silence()


async def test_an_agent_that_neither_speaks_nor_works_is_idle_after_the_timeout(silence: Silence) -> None:
    assert not await silence.passes(3)
    assert await silence.passes(1)


async def test_an_agent_whose_processes_are_not_known_is_idle_when_it_is_silent(silence: Silence) -> None:
    silence.agent.descendants = None
    assert not await silence.passes(3)
    assert await silence.passes(1)
    assert await silence.idleness.is_idle(None, 0.0, TIMEOUT, TIMEOUT)


async def test_an_agent_is_not_idle_while_something_runs_that_it_has_started(
    silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    silence.looks.now = Look((TRAINING,))
    assert not await silence.passes(20, started=(TRAINING,))
    assert caplog.messages == [
        "agent fake is not stopped, though nothing is asked of it: train (9) runs, which it has started"
    ]
    assert await silence.passes(1)


async def test_an_agent_that_uses_the_processor_is_not_idle(silence: Silence) -> None:
    used = 0.0
    for _ in range(10):
        used += WORKING * TICK * 2
        assert not await silence.passes(1, seconds=used)
    assert await silence.passes(2, seconds=used + WORKING * TICK / 2)


async def test_what_was_seen_before_the_last_message_does_not_count(silence: Silence) -> None:
    assert not await silence.passes(3)
    silence.since = silence.time
    assert not await silence.passes(3)
    assert await silence.passes(1)
