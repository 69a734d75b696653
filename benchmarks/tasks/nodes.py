"""The cost of a second gateway: for messages between a client and an agent of a node, and for lists of sessions."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks.bare import BareClient
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, growth
from benchmarks.relays import Running, front_gateway, our_gateway
from benchmarks.report import NOTHING, figure
from benchmarks.tasks.loads import (
    LINEAR,
    PERCENTILES,
    WRITES,
    EndpointSource,
    RelayPool,
    echo,
    percentiles,
    streaming,
    wait_until_idle,
)

TASK: Final = "nodes"

DIRECT, FRONT = "direct to the node", "through a gateway in front"

LEAST_RATE: Final = 0.7
"""Minimum rate of updates through the gateway in front, relative to the node itself."""

MOST_TRIP: Final = 2.2
"""Maximum p50 of round trips through it, as a multiple of the node's own."""

COUNT, QUICK_COUNT = 4000, 1000
"""Round trips per measurement."""

NODES: Final = (1, 2, 4, 8)
SESSIONS: Final = (100, 300, 1000, 3000)
"""Numbers of nodes with 100 and with 1,000 sessions each, and of sessions of one node."""

ROUNDS: Final = 5
LISTS: Final = 5
"""Lists per measurement; the fastest counts."""


def run(bench: Bench) -> list[Section]:
    """Measure the hop, and unless it is a quick run lists of sessions."""
    return [_hop(bench)] if bench.quick else [_hop(bench), _lists(bench)]


# The hop


def _hop(bench: Bench) -> Section:
    own = our_gateway(bench.programs, listen="ws", agent_options={"scope": "identity"})
    front = front_gateway(bench.programs, ["node"])
    titles = {own.name: DIRECT, front.name: FRONT}
    seconds = bench.pick(0.4, 0.1)
    with RelayPool(bench, [own, front]) as pool:

        def streams(name: str, batch: int) -> Callable[[], Mapping[str, float]]:
            load = streaming(bench, pool.endpoint(name), batch, seconds=seconds)

            def measure() -> Mapping[str, float]:
                before = pool[name].processor()
                metrics = load()
                wait_until_idle(pool[name])
                # The first call calibrates the number, and is discarded.
                return {**metrics, "cpu_us": 1e6 * (pool[name].processor() - before) / (load.count or 1)}

            return measure

        def trips(endpoint: EndpointSource) -> Mapping[str, float]:
            return percentiles(echo(bench, endpoint, bench.pick(COUNT, QUICK_COUNT)))

        rates = {
            batch: bench.interleave(f"{TASK}, {title}", {titles[name]: streams(name, batch) for name in titles})
            for batch, title in WRITES.items()
        }
        times = bench.interleave(
            f"{TASK}, round trips", {titles[name]: partial(trips, pool.endpoint(name)) for name in titles}
        )
        notes = pool.notes()
    rows = [
        [
            f"updates of {SIZE} bytes, {WRITES[batch]}",
            *(figure(measured.median(name, "per_s"), "/s") for name in titles.values()),
            figure(measured.ratio(FRONT, DIRECT, "per_s"), "x"),
        ]
        for batch, measured in rates.items()
    ]
    rows += [
        [
            f"processor time for each, {WRITES[batch]}",
            *(figure(measured.median(name, "cpu_us"), "µs") for name in titles.values()),
            figure(measured.ratio(FRONT, DIRECT, "cpu_us"), "x"),
        ]
        for batch, measured in rates.items()
    ]
    rows += [
        [
            f"round trip, {metric[:3]}",
            *(figure(times.median(name, metric), "µs") for name in titles.values()),
            figure(times.ratio(FRONT, DIRECT, metric), "x"),
        ]
        for metric in PERCENTILES
    ]
    targets = [
        Target(f"a hop, {WRITES[batch]}", LEAST_RATE, "≥", measured.ratio(FRONT, DIRECT, "per_s"))
        for batch, measured in rates.items()
    ]
    targets.append(Target("a hop, round trip p50", MOST_TRIP, "≤", times.ratio(FRONT, DIRECT, "p50_us")))
    return Section(
        "A second gateway in front of the agent's",
        ("", *titles.values(), "ratio"),
        rows,
        notes=[
            "WebSockets without TLS on both hops; the second one is a link that resumes.",
            "Processor time is that of the gateways, until their histories are on the disk.",
            *(note for measured in (*rates.values(), times) for note in measured.notes()),
            *notes,
        ],
        targets=targets,
    )


# Lists


def _lists(bench: Bench) -> Section:
    axes = {
        "nodes, of 100 sessions each": {nodes: (nodes, 100) for nodes in NODES},
        "nodes, of 1,000 sessions each": {nodes: (nodes, 1000) for nodes in NODES},
        "sessions of one node": {sessions: (1, sessions) for sessions in SESSIONS},
    }
    subjects = {}
    with ExitStack() as stack:
        for title, sizes in axes.items():
            for size, (nodes, sessions) in sizes.items():
                names = [f"node{number}" for number in range(nodes)]
                agent = (str(bench.programs.agent),)
                running = stack.enter_context(front_gateway(bench.programs, names).running(agent))
                subjects[f"{title}: {size}"] = _listing(running, stack, nodes, sessions)
        measured = bench.interleave(f"{TASK}, lists", subjects, rounds=min(bench.rounds, ROUNDS))
    return lists_table(measured, {title: list(sizes) for title, sizes in axes.items()})


def _listing(running: Running, stack: ExitStack, nodes: int, sessions: int) -> Callable[[], Mapping[str, float]]:
    """Open sessions at the node, and return what measures the time of a list, in all and for each session."""
    assert running.behind is not None, "it is a gateway in front"
    client = stack.enter_context(BareClient(running.behind.endpoint))
    client.initialize()
    for _ in range(sessions):
        client.open_session()
    count = nodes * sessions

    def measure() -> Mapping[str, float]:
        # A connection that stays silent for too long is closed as dead.
        client.ask("_bench/echo", {})
        times = []
        with BareClient(running.endpoint, control=True) as control:
            for _ in range(LISTS):
                begun = time.perf_counter()
                listed = control.list_sessions()
                times.append(time.perf_counter() - begun)
                if listed != count:
                    raise ValueError(f"{listed} sessions are listed instead of {count}")
        return {"all": min(times), "each": min(times) / count}

    return measure


def lists_table(measured: Measured, axes: Mapping[str, list[int]]) -> Section:
    """Format the time of a list for each size, and its exponent of growth."""
    rows, targets = [], []
    for title, sizes in axes.items():
        times = {size: measured.median(f"{title}: {size}", "all") for size in sizes}
        known = {size: seconds for size, seconds in times.items() if seconds is not None}
        rows.append(
            (
                title,
                " · ".join(map(str, sizes)),
                " · ".join(figure(None if seconds is None else 1000 * seconds, "ms") for seconds in times.values()),
                f"{growth(list(known), list(known.values())):.2f}" if len(known) > 1 else NOTHING,
            )
        )
        ratio = measured.ratio(f"{title}: {max(sizes)}", f"{title}: {min(sizes)}", "each")
        text = f"{title}: time of a list for each session, {max(sizes)} over {min(sizes)}"
        targets.append(Target(text, LINEAR, "≤", ratio))
    return Section(
        "Lists of the sessions of nodes",
        ("with", "sizes", "time of a list", "exponent"),
        rows,
        notes=[
            "From the request at the gateway in front to the whole answer; it asks all nodes each time.",
            "The nodes are one gateway under several names: it answers for all of them.",
            *measured.notes(),
        ],
        targets=targets,
    )
