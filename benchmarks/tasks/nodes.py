"""The cost of a second gateway: for messages between a client and an agent of a node, and for lists of sessions."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import trio

from benchmarks.bare import BareClient
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, Unit, growth
from benchmarks.parked import Held, make_tokens
from benchmarks.relays import Running, front_gateway, our_gateway, run_ours
from benchmarks.report import NOTHING, figure
from benchmarks.tasks.fanout import fan_out
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

LEAST_RATE: Final = {True: 0.9, False: 0.7}
"""Minimum rate of updates through the gateway in front, relative to the node itself: for clients that resume, whose
bytes are copied, and for others, whose link is held there."""

MOST_TRIP: Final = {True: 1.5, False: 2.2}
"""Maximum p50 of round trips through it, as a multiple of the node's own."""

COUNT, QUICK_COUNT = 4000, 1000
"""Round trips per measurement."""

NODES: Final = (1, 2, 4, 8)
SESSIONS: Final = (100, 300, 1000, 3000)
"""Numbers of nodes with 100 and with 1,000 sessions each, and of sessions of one node."""

VIEWERS, AT_ONCE = 100, 50
"""Viewers of a session, and updates that its agent writes at a time."""

WRITTEN, QUICK_WRITTEN = 4000, 1000
"""Updates that it writes."""

BOXES: Final = 63
"""Boxes with parked connections: a door keeps 16 of each, which makes a thousand."""

LOOKS: Final = 12.0
"""Seconds after which a door has given up to ask boxes that answer nothing."""

WAITED: Final = 30.0
"""Seconds for which the processor time of connections that wait is measured: each is pinged twice."""

ROUNDS: Final = 5
LISTS: Final = 5
"""Lists per measurement; the fastest counts."""


def run(bench: Bench) -> list[Section]:
    """Measure the hop and viewers, and unless it is a quick run connections that wait, and lists of sessions."""
    sections = [_hop(bench, resume=True), _hop(bench, resume=False), _viewers(bench)]
    return sections if bench.quick else [*sections, _waiting(bench), _lists(bench)]


# The hop


def _hop(bench: Bench, *, resume: bool) -> Section:
    own = our_gateway(bench.programs, listen="ws", agent_options={"scope": "identity"})
    front = front_gateway(bench.programs, ["node"])
    titles = {own.name: DIRECT, front.name: FRONT}
    seconds = bench.pick(0.4, 0.1)
    options, who = ({"resume": True}, "that resumes") if resume else ({}, "that resumes nothing")
    with RelayPool(bench, [own, front]) as pool:

        def streams(name: str, batch: int) -> Callable[[], Mapping[str, float]]:
            load = streaming(bench, pool.endpoint(name), batch, seconds=seconds, **options)

            def measure() -> Mapping[str, float]:
                before = pool[name].processor()
                metrics = load()
                wait_until_idle(pool[name])
                # The first call calibrates the number, and is discarded.
                return {**metrics, "cpu_us": 1e6 * (pool[name].processor() - before) / (load.count or 1)}

            return measure

        def trips(endpoint: EndpointSource) -> Mapping[str, float]:
            return percentiles(echo(bench, endpoint, bench.pick(COUNT, QUICK_COUNT), **options))

        rates = {
            batch: bench.interleave(
                f"{TASK}, a client {who}, {title}", {titles[name]: streams(name, batch) for name in titles}
            )
            for batch, title in WRITES.items()
        }
        times = bench.interleave(
            f"{TASK}, a client {who}, round trips",
            {titles[name]: partial(trips, pool.endpoint(name)) for name in titles},
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
        Target(
            f"a hop, a client {who}, {WRITES[batch]}", LEAST_RATE[resume], "≥", measured.ratio(FRONT, DIRECT, "per_s")
        )
        for batch, measured in rates.items()
    ]
    p50 = times.ratio(FRONT, DIRECT, "p50_us")
    targets.append(Target(f"a hop, a client {who}, round trip p50", MOST_TRIP[resume], "≤", p50))
    return Section(
        f"A second gateway in front of the agent's, for a client {who}",
        ("", *titles.values(), "ratio"),
        rows,
        notes=[
            "WebSockets without TLS. The gateway in front holds the link of a client that resumes nothing.",
            "Processor time is that of the gateways, until their histories are on the disk.",
            *(note for measured in (*rates.values(), times) for note in measured.notes()),
            *notes,
        ],
        targets=targets,
    )


# Viewers


def _viewers(bench: Bench) -> Section:
    own = our_gateway(bench.programs, listen="ws", agent_options={"scope": "identity"})
    front = front_gateway(bench.programs, ["node"])
    titles = {own.name: DIRECT, front.name: FRONT}
    count = bench.pick(WRITTEN, QUICK_WRITTEN)
    with RelayPool(bench, [own, front]) as pool:

        def watch(name: str) -> Mapping[str, float]:
            running = pool[name]
            before, memory = running.processor(), running.resident()
            found = fan_out(bench, running, "ours", VIEWERS, count, AT_ONCE)
            used = running.processor() - before
            grown = max(running.resident() - memory, 0) / VIEWERS
            return {"per_s": found["per_s"], "cpu_us": 1e6 * used / (count * (VIEWERS + 1)), "bytes": grown}

        subjects = {titles[name]: partial(watch, name) for name in titles}
        # Later rounds use the memory of the first one again.
        first = bench.interleave(f"{TASK}, memory of viewers", subjects, rounds=1, warm_up=False)
        measured = bench.interleave(f"{TASK}, viewers", subjects, rounds=min(bench.rounds, ROUNDS))
    shown: dict[str, tuple[Measured, str, Unit]] = {
        "updates to all": (measured, "per_s", "/s"),
        "processor time for each": (measured, "cpu_us", "µs"),
        "memory for each viewer": (first, "bytes", "B"),
    }
    rows = [
        [
            title,
            *(figure(its.median(name, metric), unit) for name in titles.values()),
            figure(its.ratio(FRONT, DIRECT, metric), "x"),
        ]
        for title, (its, metric, unit) in shown.items()
    ]
    return Section(
        f"{VIEWERS} viewers of one session through a gateway in front",
        ("", *titles.values(), "ratio"),
        rows,
        notes=[
            "Both gateways count. The door holds a link for each viewer, since these resume nothing.",
            "Memory has what is on its way in the first round, and stays.",
            *first.notes(),
            *measured.notes(),
        ],
    )


# Connections that wait


def _waiting(bench: Bench) -> Section:
    def wait() -> Mapping[str, float]:
        with run_ours(bench.programs, "wss", {"gateway": {}, "agents": {}}, ()) as door:
            tokens = make_tokens(door.directory / "state", BOXES)
            port = int(door.endpoint.address.partition("/")[0].rpartition(":")[2])
            held = Held(port, door.directory / "cert.pem", tokens)
            base, found = door.resident(), {}

            def measure() -> None:
                # The looks at the boxes, which answer nothing, are over.
                time.sleep(LOOKS)
                before = door.processor()
                time.sleep(WAITED)
                found["busy_us"] = 1e6 * (door.processor() - before) / WAITED
                found["each"] = (door.resident() - base) / held.waiting
                found["waiting"] = held.waiting

            trio.run(held.run, measure)
            return found

    measured = bench.interleave(f"{TASK}, waiting", {"door": wait}, rounds=1, warm_up=False)
    return Section(
        "Connections that boxes have parked at a door, over TLS",
        ("connections", "memory for each", "processor time in a second"),
        [
            (
                f"{measured.median('door', 'waiting') or 0:,.0f}",
                figure(measured.median("door", "each"), "B"),
                figure(measured.median("door", "busy_us"), "µs"),
            )
        ],
        notes=[f"{BOXES} boxes; each connection is pinged after 15 s of silence.", *measured.notes()],
    )


# Lists


def _lists(bench: Bench) -> Section:
    axes = {
        "nodes, of 100 sessions each": {nodes: (nodes, 100) for nodes in NODES},
        "nodes, of 1,000 sessions each": {nodes: (nodes, 1000) for nodes in NODES},
        "sessions of one node": {sessions: (1, sessions) for sessions in SESSIONS},
    }
    subjects = {}
    clients: list[BareClient] = []
    with ExitStack() as stack:
        for title, sizes in axes.items():
            for size, (nodes, sessions) in sizes.items():
                names = [f"node{number}" for number in range(nodes)]
                agent = (str(bench.programs.agent),)
                running = stack.enter_context(front_gateway(bench.programs, names).running(agent))
                assert running.behind is not None, "it is a gateway in front"
                clients.append(stack.enter_context(BareClient(running.behind.endpoint)))
                _open(clients, sessions)
                subjects[f"{title}: {size}"] = _listing(running, clients[-1], nodes * sessions)
        measured = bench.interleave(f"{TASK}, lists", subjects, rounds=min(bench.rounds, ROUNDS))
    return lists_table(measured, {title: list(sizes) for title, sizes in axes.items()})


def _open(clients: Sequence[BareClient], sessions: int) -> None:
    """Open sessions with the last client, while none stays silent for so long that it is closed as dead."""
    clients[-1].initialize()
    for number in range(sessions):
        if number % 100 == 0:
            for client in clients:
                client.ask("_bench/echo", {})
        clients[-1].open_session()


def _listing(running: Running, client: BareClient, count: int) -> Callable[[], Mapping[str, float]]:
    """Return what measures the time of a list of `count` sessions, in all and for each session."""

    def measure() -> Mapping[str, float]:
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
