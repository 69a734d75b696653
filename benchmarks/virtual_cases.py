"""Cases in virtual time: pauses in each situation, deaths by the thousand, an hour of a path that is bad and lives."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from benchmarks.virtual_roaming import World, world

HOUR: Final = 3600.0

FAR: Final = 0.1
"""Seconds of a round trip where nothing else is said: another continent, or a mobile network."""

ROUND_TRIPS: Final = 4
"""Round trips that a pause may have besides: TCP, TLS, the upgrade, and the message itself."""


class Pauses(NamedTuple):
    """Pauses of one situation, in virtual seconds."""

    pauses: list[float]
    faults: int
    """Messages that were lost, came twice, or in another order."""


# Pauses


async def message_on_its_way(made: World) -> float:
    """The path dies, and a prompt is sent within a second."""
    _die(made)
    await trio.sleep(made.chance.random())
    began = trio.current_time()
    await made.editor.answered(made.editor.prompt())
    return trio.current_time() - began


async def message_later(made: World) -> float:
    """The path of an idle client dies, and a prompt is sent after a while."""
    _die(made)
    await trio.sleep(made.chance.uniform(5.0, 40.0))
    began = trio.current_time()
    await made.editor.answered(made.editor.prompt())
    return trio.current_time() - began


async def agent_speaks(made: World) -> float:
    """The path dies in a turn, in which only the agent speaks."""
    turn = made.editor.prompt(updates=100, pause=0.1)
    await trio.sleep(made.chance.uniform(1.0, 5.0))
    _die(made)
    began = trio.current_time()
    await trio.sleep(2 * made.network.round_trip)
    await made.editor.news()
    pause = trio.current_time() - began
    await made.editor.answered(turn)
    return pause


async def agent_thinks(made: World) -> float:
    """The path dies in a turn, and the agent speaks once after a long silence."""
    turn = made.editor.prompt(pause=made.chance.uniform(8.0, 20.0))
    await trio.sleep(made.chance.uniform(1.0, 5.0))
    _die(made)
    await made.agent.spoke.park()
    began = trio.current_time()
    await made.editor.answered(turn)
    return trio.current_time() - began


async def wake_up(made: World) -> float:
    """The machine sleeps in a turn; the pause begins when it is awake."""
    return await _asleep(made, working=True)


async def wake_up_idle(made: World) -> float:
    """The machine sleeps while idle, and the agent has something for it."""
    return await _asleep(made, working=False)


async def another_address(made: World) -> float:
    """The client gets another address in a turn, and the path dies with it."""
    turn = made.editor.prompt(updates=100, pause=0.1)
    await trio.sleep(made.chance.uniform(1.0, 5.0))
    made.network.kill()
    made.network.source = f"192.0.2.{made.network.begun % 250 + 2}"
    began = trio.current_time()
    await trio.sleep(2 * made.network.round_trip)
    await made.editor.news()
    pause = trio.current_time() - began
    await made.editor.answered(turn)
    return pause


async def network_was_away(made: World) -> float:
    """The network is away for minutes in a turn, and comes back with the same address."""
    return await _outage(made, moved=False)


async def network_was_away_for_a_prompt(made: World) -> float:
    """The network is away for seconds, in which a prompt is sent, and comes back with the same address."""
    made.network.leave()
    turn = made.editor.prompt()
    await trio.sleep(made.chance.uniform(3.0, 18.0))
    made.network.come_back(revive=True)
    began = trio.current_time()
    await made.editor.answered(turn)
    return trio.current_time() - began


async def network_is_another(made: World) -> float:
    """The network is away for minutes in a turn, and another one comes."""
    return await _outage(made, moved=True)


async def _asleep(made: World, *, working: bool) -> float:
    turn = made.editor.prompt(updates=100, pause=0.1) if working else 0
    await trio.sleep(made.chance.uniform(1.0, 5.0))
    made.network.kill()
    if not working:
        made.agent.say()
    # What was sent before has been lost by now.
    made.sleep(600.0)
    began = trio.current_time()
    await made.editor.news()
    pause = trio.current_time() - began
    if working:
        await made.editor.answered(turn)
    return pause


async def _outage(made: World, *, moved: bool) -> float:
    turn = made.editor.prompt(updates=150, pause=3.0)
    await trio.sleep(made.chance.uniform(1.0, 5.0))
    made.network.leave()
    await trio.sleep(made.chance.uniform(60.0, 300.0))
    if moved:
        made.network.source = f"192.0.2.{made.network.begun % 250 + 2}"
    made.network.come_back(revive=not moved)
    began = trio.current_time()
    await made.editor.news()
    pause = trio.current_time() - began
    await made.editor.answered(turn)
    return pause


def _die(made: World) -> None:
    up, down = made.chance.choice([(True, True), (True, True), (True, False), (False, True)])
    made.network.kill(up=up, down=down)


@dataclass(frozen=True)
class Situation:
    """A situation, and the pause that is to be had in it."""

    title: str
    measure: Callable[[World], Awaitable[float]]
    most: float
    """Seconds of the longest pause of 95 in a hundred, besides `ROUND_TRIPS`."""


SITUATIONS: Final = (
    Situation("a prompt, at once", message_on_its_way, 1.0),
    Situation("a prompt, later", message_later, 1.0),
    Situation("a turn, the agent speaks", agent_speaks, 2.5),
    Situation("a turn, the agent thinks", agent_thinks, 2.5),
    Situation("woken up, in a turn", wake_up, 0.3),
    Situation("woken up, idle", wake_up_idle, 0.3),
    Situation("another address, in a turn", another_address, 1.0),
    Situation("network back after minutes", network_was_away, 1.0),
    Situation("network back after seconds, a prompt", network_was_away_for_a_prompt, 1.0),
    Situation("another network after minutes", network_is_another, 1.0),
)


def within(situation: Situation, round_trip: float = FAR) -> float:
    """Return the seconds that a pause of a situation is to have at most."""
    return round(situation.most + ROUND_TRIPS * round_trip, 3)


async def pauses_of(situation: Situation, count: int, round_trip: float = FAR) -> Pauses:
    """Measure a situation so many times."""
    async with world(1, delay=round_trip / 2) as made:
        pauses = []
        for _ in range(count):
            await made.settled()
            await trio.sleep(made.chance.uniform(1.0, 30.0))
            pauses.append(round(await situation.measure(made), 3))
        await made.settled()
        return Pauses(pauses, made.faults())


# Deaths


async def die_often(count: int, seed: int = 1) -> Pauses:
    """Let paths die so many times, one after another or while the next one is made, and compare all messages."""
    async with world(seed) as made:
        pauses = []
        for number in range(count):
            if number % 100 == 0:
                made.network.set(delay=made.chance.choice([0.0, 0.005, 0.05, 0.3]), loss=made.chance.choice([0, 0.02]))
            # The prompt before may be on its way, and updates.
            _die(made)
            await trio.sleep(made.chance.choice([0.0, 0.01, 0.5, 1.2]) * made.chance.random())
            began = trio.current_time()
            turn = made.editor.prompt(made.chance.randrange(4), made.chance.random() / 10)
            if made.chance.random() < 0.7:
                await made.editor.answered(turn)
                pauses.append(trio.current_time() - began)
            else:
                await trio.sleep(2 * made.chance.random())
        await made.settled()
        await trio.sleep(60.0)
        return Pauses(pauses, made.faults())


# Paths that are bad and live


class Hour(NamedTuple):
    """Results of an hour of a bad path."""

    turns: int
    broken: int
    """Links that ended."""
    told: int
    """Losses that the user was told of: silences of more than 2 s beyond what was to be expected."""
    dialed: int
    """Connections that were begun beside the first, all of them in vain."""
    longest: float
    """The longest turn, in seconds."""
    faults: int
    spacing: float
    """Seconds between two such connections at least."""


async def usual(made: World, until: float) -> None:
    """Send a prompt now and then."""
    while trio.current_time() < until:
        await made.editor.answered(made.editor.prompt(updates=20, pause=made.chance.random()))
        await trio.sleep(made.chance.uniform(0.0, 20.0))


async def large_prompts(made: World, until: float) -> None:
    """Send 10 MB now and then, with a prompt behind."""
    while trio.current_time() < until:
        await made.editor.answered(made.editor.prompt(padding=10_000_000))
        await usual(made, min(until, trio.current_time() + 60.0))


async def bursts(made: World, until: float) -> None:
    """Prompts over a path that loses all for a moment now and then, and delivers it then."""
    async with _besides(made, _lose_for_a_moment):
        await usual(made, until)


async def _lose_for_a_moment(made: World) -> None:
    while True:
        await trio.sleep(made.chance.uniform(2.0, 20.0))
        made.network.kill()
        await trio.sleep(made.chance.uniform(0.1, 0.6))
        made.network.go_on()


async def stopped(made: World, until: float) -> None:
    """Prompts to a gateway that is stopped for 3 s now and then."""
    async with _besides(made, _stop_gateway):
        await usual(made, until)


async def _stop_gateway(made: World) -> None:
    while True:
        await trio.sleep(made.chance.uniform(10.0, 60.0))
        made.network.stop_server()
        await trio.sleep(3.0)
        made.network.continue_server()


@asynccontextmanager
async def _besides(made: World, disturb: Callable[[World], Awaitable[None]]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disturb, made)
        yield
        nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class BadPath:
    """A path that lives."""

    title: str
    use: Callable[[World, float], Awaitable[None]]
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    rate: float = 0.0


BAD_PATHS: Final = (
    BadPath("a round trip of 3 s", usual, delay=1.5),
    BadPath("5 % loss, 0.1 s", usual, delay=0.05, loss=0.05),
    BadPath("5 % loss, 3 s", usual, delay=1.5, loss=0.05),
    BadPath("0 to 1 s of jitter", usual, delay=0.05, jitter=1.0),
    BadPath("pauses of up to 0.6 s", bursts, delay=0.05),
    BadPath("20 KB/s, prompts of 10 MB", large_prompts, delay=0.05, rate=20_000),
    BadPath("gateway stopped for 3 s", stopped, delay=0.05),
)


async def bad_path(path: BadPath, seconds: float = HOUR) -> Hour:
    """Use a bad path for so long."""
    async with world(1, delay=path.delay, jitter=path.jitter, loss=path.loss, rate=path.rate) as made:
        await made.settled()
        began, first = trio.current_time(), made.network.begun
        await path.use(made, began + seconds)
        made.network.continue_server()
        await made.settled()
        times = made.network.times[first:]
        spacing = min((later - earlier for earlier, later in itertools.pairwise(times)), default=HOUR)
        kinds = Counter(event.kind for event in made.events)
        editor = made.editor
        return Hour(
            editor.prompts, kinds["connected"] - 1, kinds["lost"], len(times), editor.longest, made.faults(), spacing
        )
