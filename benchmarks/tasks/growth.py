"""How what a message costs grows with its size and with what else there is: nothing may be worse than linear."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.bare import Bare
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, growth
from benchmarks.relays import Running
from benchmarks.report import NOTHING, figure
from benchmarks.tasks.loads import AT_ONCE, LINEAR, histories_given_up, notes_on, rest

TASK: Final = "growth"

ROUNDS: Final = 5
"""Each has a history of 100,000 made anew."""

MESSAGES, FEW_MESSAGES = 100_000, 20_000
"""Updates that are streamed for a figure, all clients together; the few in a quick run."""

MOST, LITTLE = 40_000_000, 10_000_000
"""Bytes of such a stream, if that is less."""

BATCH: Final = 50
"""Updates in each write of the agent: as many come for a client at once, however many others there are."""

TURN: Final = 1_000
"""Updates of each turn in a history that is there already."""

BEHIND: Final = 20_000
"""Updates of the turn that is measured behind it."""

Measure = Callable[[], Mapping[str, float]]
"""Measures once: the seconds that a message takes, `each`."""


@dataclass(frozen=True)
class Setting:
    """What a size is prepared in."""

    bench: Bench
    running: Running
    stack: ExitStack
    """What has to stay until all is measured."""


@dataclass(frozen=True)
class Axis:
    """Something that grows."""

    title: str
    sizes: tuple[int, ...]
    prepare: Callable[[Setting, int], Measure]
    """Makes one size of it."""
    unit: str = ""
    by_size: bool = False
    """Whether the cost of a message may grow as this does; else it has to stay what it is."""
    stays: bool = False
    """Whether what was made stays, so that each size has to have a gateway of its own."""

    def subject(self, size: int) -> str:
        """What it is called among what is measured."""
        return f"{self.title}: {self.written(size)}"

    def written(self, size: int) -> str:
        """A size in words."""
        return figure(size, "B") if self.unit == "B" else f"{size:,}"


# What is measured


def streamed(setting: Setting, size: int = SIZE, clients: int = 1) -> dict[str, float]:
    """Stream updates of that size, to all clients together as many as to one."""
    bench = setting.bench
    count = min(bench.pick(MESSAGES, FEW_MESSAGES), bench.pick(MOST, LITTLE) // size)
    # A line of many bytes is a write of its own.
    batch = BATCH if size == SIZE else 1
    told = bench.load.run(
        "stream", setting.running.where, count=count // clients, batch=batch, size=size, connections=clients
    )
    rest(setting.running)
    return {"each": told["seconds"] / told["messages"]}


def of_size(setting: Setting, size: int) -> Measure:
    """One client, whose updates are so large, one in each write."""
    return partial(streamed, setting, size)


def by_clients(setting: Setting, clients: int) -> Measure:
    """As many clients, each with a session, in which a turn runs at the same time."""
    return partial(streamed, setting, clients=clients)


def beside_links(setting: Setting, links: int) -> Measure:
    """One client, beside so many that say nothing."""
    at_once = min(AT_ONCE, links)
    where = setting.running.where
    held = setting.bench.load.start("idle", where, connections=links, initialize=1, concurrency=at_once)
    setting.stack.enter_context(held)
    return partial(streamed, setting)


def beside_sessions(setting: Setting, sessions: int) -> Measure:
    """One session, beside so many others in which nothing happens."""
    client = setting.stack.enter_context(Bare(setting.running.where))
    client.initialize()
    for _ in range(sessions):
        client.open_session()

    def measure() -> dict[str, float]:
        # It is taken for dead when it says nothing for too long.
        client.ask("_bench/echo", {})
        return streamed(setting)

    return measure


def behind_entries(setting: Setting, entries: int) -> Measure:
    """A turn in a session that has so much history."""

    def measure() -> dict[str, float]:
        with Bare(setting.running.where) as client:
            client.initialize()
            session = client.open_session()
            for _ in range(entries // TURN):
                client.turn(session, TURN, BATCH)
            rest(setting.running)
            begun = time.perf_counter()
            client.turn(session, BEHIND, BATCH)
            seconds = time.perf_counter() - begun
            client.ask("session/close", {"sessionId": session})
        return {"each": seconds / BEHIND}

    return measure


AXES: Final = (
    Axis("bytes of the message", (200, 2_000, 20_000, 200_000), of_size, unit="B", by_size=True),
    Axis("clients, all with a turn", (1, 10, 100), by_clients),
    Axis("other clients, idle", (1, 100, 1_000), beside_links, stays=True),
    Axis("other sessions, idle", (1, 100, 900), beside_sessions, stays=True),
    Axis("history of the session, updates", (1_000, 10_000, 100_000), behind_entries),
)

QUICK_AXES: Final = (
    Axis("bytes of the message", (200, 2_000, 20_000), of_size, unit="B", by_size=True),
    Axis("clients, all with a turn", (1, 5, 20), by_clients),
)


def run(bench: Bench) -> list[Section]:
    """Measure each size of each of them in turns."""
    axes = bench.pick(AXES, QUICK_AXES)
    subjects, gateways = {}, []
    with ExitStack() as stack:
        for axis in axes:
            for size in axis.sizes:
                if axis.stays or size == axis.sizes[0]:
                    agent = (str(bench.programs.agent),)
                    running = stack.enter_context(bench.relays["ours"].running(agent))
                    gateways.append(running)
                subjects[axis.subject(size)] = axis.prepare(Setting(bench, running, stack), size)
        rounds = min(bench.rounds, ROUNDS)
        measured = bench.interleave(TASK, subjects, rounds=rounds, warm_up=not bench.quick)
        given_up = sum(map(histories_given_up, gateways))
    return [table(measured, axes, rounds, given_up)]


def table(measured: Measured, axes: tuple[Axis, ...], rounds: int, given_up: int) -> Section:
    """The cost of a message for each size, and how it grows."""
    rows, targets = [], []
    for axis in axes:
        every = {size: measured.median(axis.subject(size), "each") for size in axis.sizes}
        costs = {size: cost for size, cost in every.items() if cost is not None}
        exponent = f"{growth(list(costs), list(costs.values())):.2f}" if len(costs) > 1 else NOTHING
        cells = (
            " · ".join(axis.written(size) for size in axis.sizes),
            " · ".join(figure(None if cost is None else 1e6 * cost, "µs") for cost in every.values()),
        )
        rows.append((axis.title, *cells, exponent))
        smallest, largest = min(axis.sizes), max(axis.sizes)
        ratio = measured.ratio(axis.subject(largest), axis.subject(smallest), "each")
        if ratio is not None and axis.by_size:
            ratio *= smallest / largest
        what = "a byte" if axis.by_size else "a message"
        text = f"{axis.title}: time for {what}, {axis.written(largest)} over {axis.written(smallest)}"
        targets.append(Target(text, LINEAR, "≤", ratio))
    return Section(
        "How the cost of a message grows",
        ("with", "sizes", "time for a message", "exponent"),
        rows,
        [
            f"Streams of updates over WebSockets, {SIZE} B each where nothing else is said.",
            f"There are {BATCH} in each write of the agent where they are as small as that, else one.",
            "The exponent is that of the time for one message: 0 is no growth at all, 1 growth in proportion.",
            "A history of more than 16 MiB, 83,886 updates, loses an old turn for each new one, on the disk as well.",
            f"{rounds} rounds.",
            *notes_on(given_up),
            *measured.notes(),
        ],
        targets,
    )
