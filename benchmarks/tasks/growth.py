"""Growth of a message's cost with its size, clients, sessions and history: nothing may be worse than linear."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.bare import BareClient
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, growth
from benchmarks.relays import Running
from benchmarks.report import NOTHING, figure
from benchmarks.tasks.loads import AT_ONCE, LINEAR, count_suspended_histories, suspended_notes, wait_until_idle

TASK: Final = "growth"

ROUNDS: Final = 5
"""Few, since each fills a history of 100,000 updates."""

MESSAGES, FEW_MESSAGES = 100_000, 20_000
"""Updates streamed per measurement, to all clients together, in a full and in a quick run."""

MOST, LITTLE = 40_000_000, 10_000_000
"""Maximum bytes of such a stream, in a full and in a quick run."""

BATCH: Final = 50
"""Updates per write of the agent, the same for any number of clients."""

TURN: Final = 1_000
"""Updates per turn when a history is filled."""

BEHIND: Final = 20_000
"""Updates of the measured turn that follows the history."""

Measure = Callable[[], Mapping[str, float]]
"""Measures once and returns the seconds per message as `each`."""


@dataclass(frozen=True)
class Setting:
    """Context in which a size is prepared."""

    bench: Bench
    running: Running
    stack: ExitStack
    """Holds resources until the end of the task."""


@dataclass(frozen=True)
class Axis:
    """A quantity that grows."""

    title: str
    sizes: tuple[int, ...]
    prepare: Callable[[Setting, int], Measure]
    """Prepares the measurement of one size."""
    unit: str = ""
    by_size: bool = False
    """True if the cost of a message may grow in proportion; otherwise it must stay constant."""
    stays: bool = False
    """True if prepared state persists in the gateway, so that each size needs its own gateway."""

    def subject(self, size: int) -> str:
        """Return the name of a size among the measured subjects."""
        return f"{self.title}: {self.written(size)}"

    def written(self, size: int) -> str:
        """Format a size."""
        return figure(size, "B") if self.unit == "B" else f"{size:,}"


# Measurements


def streamed(setting: Setting, size: int = SIZE, clients: int = 1) -> dict[str, float]:
    """Stream updates of `size` bytes; the total number is the same for any number of clients."""
    bench = setting.bench
    count = min(bench.pick(MESSAGES, FEW_MESSAGES), bench.pick(MOST, LITTLE) // size)
    # The agent writes large lines one at a time.
    batch = BATCH if size == SIZE else 1
    result = bench.load.run(
        "stream", setting.running.endpoint, count=count // clients, batch=batch, size=size, connections=clients
    )
    wait_until_idle(setting.running)
    return {"each": result["seconds"] / result["messages"]}


def of_size(setting: Setting, size: int) -> Measure:
    """Stream updates of `size` bytes to one client, one per write unless `size` is the default."""
    return partial(streamed, setting, size)


def by_clients(setting: Setting, clients: int) -> Measure:
    """Stream to several clients at the same time, each with its own session."""
    return partial(streamed, setting, clients=clients)


def beside_links(setting: Setting, links: int) -> Measure:
    """Stream to one client beside idle connections."""
    at_once = min(AT_ONCE, links)
    endpoint = setting.running.endpoint
    held = setting.bench.load.start("idle", endpoint, connections=links, initialize=1, concurrency=at_once)
    setting.stack.enter_context(held)
    return partial(streamed, setting)


def beside_sessions(setting: Setting, sessions: int) -> Measure:
    """Stream in one session beside idle sessions."""
    client = setting.stack.enter_context(BareClient(setting.running.endpoint))
    client.initialize()
    for _ in range(sessions):
        client.open_session()

    def measure() -> dict[str, float]:
        # A connection that stays silent for too long is closed as dead.
        client.ask("_bench/echo", {})
        return streamed(setting)

    return measure


def behind_entries(setting: Setting, entries: int) -> Measure:
    """Stream a turn in a session with a history of `entries` updates."""

    def measure() -> dict[str, float]:
        with BareClient(setting.running.endpoint) as client:
            client.initialize()
            session = client.open_session()
            for _ in range(entries // TURN):
                client.turn(session, TURN, BATCH)
            wait_until_idle(setting.running)
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
    """Measure all sizes of all axes in interleaved rounds."""
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
        suspended = sum(map(count_suspended_histories, gateways))
    return [table(measured, axes, rounds, suspended)]


def table(measured: Measured, axes: tuple[Axis, ...], rounds: int, suspended: int) -> Section:
    """Format the cost of a message for each size, and its exponent of growth."""
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
            f"Streams of updates over WebSockets, {SIZE} B each unless noted otherwise.",
            f"The agent writes {BATCH} updates of that size at once, larger ones one at a time.",
            "The exponent is that of the time for one message: 0 is constant, 1 is linear.",
            "Beyond 16 MiB, 83,886 updates, the oldest turns of a history are evicted, in memory and on the disk.",
            f"{rounds} rounds.",
            *suspended_notes(suspended),
            *measured.notes(),
        ],
        targets,
    )
