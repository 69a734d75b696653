"""Lost and repeated messages over paths that die, in virtual time. `python -m benchmarks --only roaming` tries more."""

import itertools
import logging
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.gateway import gateway
from benchmarks.virtual_cases import (
    BAD_PATHS,
    FAR,
    SITUATIONS,
    BadPath,
    Situation,
    bad_path,
    die_often,
    pauses_of,
    within,
)
from benchmarks.virtual_roaming import World, world

SATELLITE = 0.6
"""Seconds of a round trip over a geostationary satellite."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Losses are logged, many of them, and credentials checked in each second of hours."""
    monkeypatch.setattr(gateway, "REVOCATION_INTERVAL", 60.0)
    log = logging.getLogger("acp_gateway")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


async def test_no_message_is_lost_or_repeated_by_fifty_deaths(autojump_clock: MockClock) -> None:
    assert (await die_often(50)).faults == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_no_message_is_lost_or_repeated_by_a_thousand_deaths(seed: int, autojump_clock: MockClock) -> None:
    assert (await die_often(1000, seed)).faults == 0


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.title)
@pytest.mark.parametrize("round_trip", [FAR, pytest.param(SATELLITE, marks=pytest.mark.slow)])
async def test_the_pause_of_a_situation_is_within_its_bound(
    round_trip: float, situation: Situation, autojump_clock: MockClock
) -> None:
    pauses = await pauses_of(situation, 2, round_trip)
    assert pauses.faults == 0
    assert max(pauses.pauses) <= within(situation, round_trip)


@pytest.mark.slow
@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: path.title)
async def test_an_hour_of_a_bad_path_that_lives_interrupts_nothing(path: BadPath, autojump_clock: MockClock) -> None:
    hour = await bad_path(path)
    assert (hour.broken, hour.faults) == (0, 0)
    assert hour.spacing >= 10.0


async def test_attempts_over_a_slow_way_leave_each_other_the_time_for_an_answer(autojump_clock: MockClock) -> None:
    async with world(1) as made:
        await made.settled()
        # A proxy close by takes connections at once.
        made.network.handshake = 0
        made.network.set(delay=0.6)
        for _ in range(3):
            made.network.cut()
            began = trio.current_time()
            await made.editor.answered(made.editor.prompt())
            assert trio.current_time() - began < 20.0
        assert made.faults() == 0


async def test_connections_beside_a_dead_one_leave_each_other_the_time_for_an_answer(autojump_clock: MockClock) -> None:
    async with world(1) as made:
        await made.settled()
        made.network.handshake = 0
        made.network.set(delay=0.6)
        for _ in range(3):
            prompt, back_at = made.editor.prompt(), trio.current_time() + 12.0
            # What the proxy takes is lost for a while.
            while trio.current_time() < back_at:
                made.network.kill()
                await trio.sleep(0.1)
            await made.editor.answered(prompt)
            assert trio.current_time() - back_at < 8.0
        assert made.faults() == 0


async def test_answers_behind_much_that_comes_over_a_slow_line_are_waited_for(autojump_clock: MockClock) -> None:
    async with world(1, delay=0.05) as made:
        await made.settled()
        begun, made.network.down.rate = made.network.begun, 10_000
        turn = made.editor.prompt(updates=4000, pause=0.004)
        await trio.sleep(8.0)
        await made.editor.answered(made.editor.prompt())
        await made.editor.answered(turn)
        assert [event.kind for event in made.events] == ["connected"]
        times = made.network.times[begun:]
        assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 10.0
        assert made.faults() == 0


@pytest.mark.parametrize("takes_parts", [True, False])
async def test_a_large_prompt_passes_over_a_path_that_dies_every_few_seconds(
    takes_parts: bool, autojump_clock: MockClock
) -> None:
    async with world(1, delay=0.02) as made:
        made.takes_parts = takes_parts
        made.network.cut()
        await made.settled()
        made.network.set(delay=0.02, rate=1_000_000)
        prompt, deaths = made.editor.prompt(padding=5_000_000), 0
        while prompt not in made.editor.answers and deaths < 3:
            with trio.move_on_after(4.0):
                await made.editor.answered(prompt)
                break
            made.network.kill()
            deaths += 1
        assert (prompt in made.editor.answers) == (deaths <= 2) == takes_parts
        made.network.set()
        await made.settled()
        made.network.cut()
        await made.settled()
        assert made.network.up_bytes < 6_000_000 or not takes_parts
        assert made.faults() == 0


def a_fault(made: World, what: str) -> None:
    editor = made.editor
    match what:
        case "lost":
            editor.seen.pop()
        case "twice":
            editor.seen.append(editor.seen[-1])
        case "order":
            editor.seen.reverse()
        case "prompt twice":
            made.agent.heard.append(0)
        case "answer twice":
            editor.answers[1] += 1


@pytest.mark.parametrize("what", ["lost", "twice", "order", "prompt twice", "answer twice"])
async def test_the_comparison_notices_a_fault(what: str, autojump_clock: MockClock) -> None:
    async with world(1) as made:
        for _ in range(2):
            await made.settled()
        assert made.faults() == 0
        a_fault(made, what)
        assert made.faults() > 0
