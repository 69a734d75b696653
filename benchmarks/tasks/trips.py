"""Round trips: how long a request takes that the agent answers at once, and how much of that a relay adds.

Everything is measured twice: with nothing else to do, and while an update after the other comes through the same relay
on another connection, since that is when programs that collect garbage let others wait.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Panel, Section, Target, paired_ratio
from benchmarks.relays import Running, our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    EVERY,
    PERCENTILES,
    Side,
    Way,
    echo,
    known,
    meanwhile,
    percentiles,
    rest,
    steady_echo,
    streaming,
)

TASK: Final = "trips"

DIRECT: Final = "direct"
"""The agent itself, over its pipes: what is more than that was added."""

PEERS: Final = ("stdio-to-ws", "sdk", "websocketd", "socat", "c-relay", "c-relay-ws", "naive")
QUICK_PEERS: Final = ("stdio-to-ws", "websocketd", "c-relay-ws")
LOADED: Final = ("ours", "stdio-to-ws", "sdk", "websocketd", "c-relay-ws")

MOST_ADDED: Final = {"stdio-to-ws": 0.6, "websocketd": 1.4}
"""How many times as much as a peer we may add to the round trip in the middle."""

NODE: Final = ("stdio-to-ws", "sdk")
MOST_P99: Final = 0.1
"""How many times as long as the peers that run on Node our slowest hundredth may take."""

COUNT, QUICK_COUNT = 4000, 1000
"""Round trips of a measurement. An identity may send 20,000 messages at once and 5,000 a second, which is no matter of
speed: in the time that the others take as much has come again."""

LOADED_COUNT: Final = 200
"""The same while there is a load; two of these are a hundredth."""

LOAD_BATCH: Final = 50
LOADED_SECONDS: Final = 0.5
ROUNDS: Final = 3
"""Each of them takes seconds for each relay; a quick run has no time for any."""


def run(bench: Bench) -> list[Section]:
    """With nothing else to do, and under load, for which a quick run has no time."""
    return [_idle(bench)] if bench.quick else [_idle(bench), _loaded(bench)]


# With nothing else to do


def _idle(bench: Bench) -> Section:
    names = (DIRECT, "ours", "ours-tls", *bench.pick(("ours-tcp", *PEERS), QUICK_PEERS))
    relays = known(bench, names)
    count = bench.pick(COUNT, QUICK_COUNT)

    def measure(way: Way) -> Mapping[str, float]:
        return percentiles(echo(bench, way, count))

    with Side(bench, relays) as side:
        measured = bench.interleave(TASK, {name: partial(measure, side.way(name)) for name in side.relays})
    titles = {relay.name: relay.title for relay in relays}
    ours = {metric: _added(measured, "ours", metric) for metric in PERCENTILES}
    rows = []
    for name in side.relays:
        added = {metric: _added(measured, name, metric) for metric in PERCENTILES}
        row = [titles[name], *(figure(measured.median(name, metric), "µs") for metric in PERCENTILES)]
        if name == DIRECT:
            row += [""] * 4
        else:
            row += [figure(_middle(added[metric]), "µs") for metric in PERCENTILES]
            row += [
                "" if name == "ours" else figure(paired_ratio(ours[metric], added[metric]), "x")
                for metric in PERCENTILES
            ]
        rows.append(row)
    targets = [
        Target(
            f"added p50 against {titles[peer]}",
            most,
            "≤",
            paired_ratio(ours["p50_us"], _added(measured, peer, "p50_us")),
        )
        for peer, most in MOST_ADDED.items()
        if peer in side.relays
    ] + [
        Target(
            f"added p99 against {titles[peer]}, nothing else to do",
            MOST_P99,
            "≤",
            paired_ratio(ours["p99_us"], _added(measured, peer, "p99_us")),
        )
        for peer in NODE
        if peer in side.relays
    ]
    return Section(
        "Round trips, with nothing else to do",
        ("relay", "p50", "p99", "added p50", "added p99", "ours against it, added p50", "added p99"),
        rows,
        notes=[
            f"{count:,} requests in each round, one at a time, answered by the agent at once.",
            "Added: more than over the pipes of the agent itself in the same round.",
            *measured.notes(),
        ],
        targets=targets,
        data={"trips": count},
        panel=Panel(
            "Round trips, with nothing else to do",
            "microseconds, less is better",
            {metric[:3]: {name: measured.median(name, metric) for name in side.relays} for metric in PERCENTILES},
            unit="µs",
            logarithmic=True,
            titles=titles,
            highlighted=("ours", "ours-tls", "ours-tcp"),
        ),
    )


def _added(measured: Measured, name: str, metric: str) -> list[float | None]:
    """How much more than without a relay, round by round; None where what disturbed it was more than that."""
    return [
        through - direct if through is not None and direct is not None and through > direct else None
        for through, direct in zip(measured.values(name, metric), measured.values(DIRECT, metric), strict=True)
    ]


def _middle(values: Sequence[float | None]) -> float | None:
    return paired_ratio(values, [1.0] * len(values))


# Under load


def _loaded(bench: Bench) -> Section:
    own = our_gateway(bench.programs, listen="ws", scope="connection")
    own_name = "ours, an agent for each connection"
    relays = known(bench, LOADED)
    rounds = min(ROUNDS, bench.rounds)
    subjects: dict[str, Callable[[], Mapping[str, float]]] = {}

    def add(name: str, way: Way, running: Callable[[], Running] | None = None) -> None:
        load = streaming(bench, way, LOAD_BATCH, seconds=LOADED_SECONDS)

        def measure() -> Mapping[str, float]:
            with meanwhile(load):
                told = percentiles(steady_echo(bench, way, LOADED_COUNT))
            if running is not None:
                rest(running())
            return told

        subjects[name] = measure

    with Side(bench, relays) as side, Side(bench, [own]) as own_side:
        for name in side.relays:
            if name == "ours":
                add(name, side.way(name), lambda: side["ours"])
                add(own_name, own_side.way("ours"), lambda: own_side["ours"])
            else:
                add(name, side.way(name))
        measured = bench.interleave("trips, loaded", subjects, rounds=rounds)
    titles = {relay.name: relay.title for relay in relays} | {own_name: own_name}
    rows = [
        [
            titles[name],
            *(figure(measured.median(name, metric), "µs") for metric in PERCENTILES),
            *("" if name == "ours" else figure(measured.ratio("ours", name, metric), "x") for metric in PERCENTILES),
        ]
        for name in subjects
    ]
    return Section(
        "Round trips, while updates stream through the same relay",
        ("relay", "p50", "p99", "ours against it, p50", "p99"),
        rows,
        notes=[
            f"On another connection updates of {SIZE} bytes are taken as fast as they come, {LOAD_BATCH} per write.",
            f"{LOADED_COUNT} requests, one every {EVERY / 1000:g} ms; those held up count from when they were due.",
            "By default both connections of ours have one agent, which answers between two writes; others have two.",
            f"{rounds} rounds.",
            *side.notes(),
            *own_side.notes(),
            *measured.notes(),
        ],
        targets=[
            Target(
                f"p99 against {titles[peer]}, under load",
                MOST_P99,
                "≤",
                measured.ratio("ours", peer, "p99_us"),
            )
            for peer in NODE
            if peer in side.relays
        ],
    )
