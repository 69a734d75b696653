"""Round trips: latency of a request that the agent answers at once, and the part that a relay adds.

Measured on an idle relay, and while updates stream through the same relay on another connection: then the garbage
collection of a relay's runtime causes pauses.
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
    EndpointSource,
    RelayPool,
    background_load,
    echo,
    percentiles,
    select_relays,
    steady_echo,
    streaming,
    wait_until_idle,
)

TASK: Final = "trips"

DIRECT: Final = "direct"
"""The agent itself, over its pipes: the baseline to which relays add."""

PEERS: Final = ("stdio-to-ws", "sdk", "websocketd", "socat", "c-relay", "c-relay-ws", "naive")
QUICK_PEERS: Final = ("stdio-to-ws", "websocketd", "c-relay-ws")
LOADED: Final = ("ours", "stdio-to-ws", "sdk", "websocketd", "c-relay-ws")

MOST_ADDED: Final = {"stdio-to-ws": 0.6, "websocketd": 1.4}
"""Maximum added p50 of ours, as a multiple of a peer's."""

NODE: Final = ("stdio-to-ws", "sdk")
MOST_P99: Final = 0.1
"""Maximum p99 of ours, as a multiple of that of peers on Node."""

COUNT, QUICK_COUNT = 4000, 1000
"""Round trips per measurement. The rate limit of an identity, a burst of 20,000 messages and 5,000 a second, does not
apply: the token bucket refills while the other relays are measured."""

LOADED_COUNT: Final = 200
"""Round trips per measurement under load; one percent of them are two."""

LOAD_BATCH: Final = 50
LOADED_SECONDS: Final = 0.5
ROUNDS: Final = 3
"""Rounds under load; few, since each takes seconds per relay."""


def run(bench: Bench) -> list[Section]:
    """Measure idle relays, and unless it is a quick run relays under load."""
    return [_idle(bench)] if bench.quick else [_idle(bench), _loaded(bench)]


# Idle


def _idle(bench: Bench) -> Section:
    names = (DIRECT, "ours", "ours-tls", *bench.pick(("ours-tcp", *PEERS), QUICK_PEERS))
    relays = select_relays(bench, names)
    count = bench.pick(COUNT, QUICK_COUNT)

    def measure(endpoint: EndpointSource) -> Mapping[str, float]:
        return percentiles(echo(bench, endpoint, count))

    with RelayPool(bench, relays) as pool:
        measured = bench.interleave(TASK, {name: partial(measure, pool.endpoint(name)) for name in pool.relays})
    titles = {relay.name: relay.title for relay in relays}
    ours = {metric: _added(measured, "ours", metric) for metric in PERCENTILES}
    rows = []
    for name in pool.relays:
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
        if peer in pool.relays
    ] + [
        Target(
            f"added p99 against {titles[peer]}, idle",
            MOST_P99,
            "≤",
            paired_ratio(ours["p99_us"], _added(measured, peer, "p99_us")),
        )
        for peer in NODE
        if peer in pool.relays
    ]
    return Section(
        "Round trips, idle",
        ("relay", "p50", "p99", "added p50", "added p99", "ours against it, added p50", "added p99"),
        rows,
        notes=[
            f"{count:,} requests in each round, one at a time, answered by the agent at once.",
            "Added: difference to the agent itself, over its pipes, in the same round.",
            *measured.notes(),
        ],
        targets=targets,
        data={"trips": count},
        panel=Panel(
            "Round trips, idle",
            "microseconds, less is better",
            {metric[:3]: {name: measured.median(name, metric) for name in pool.relays} for metric in PERCENTILES},
            unit="µs",
            logarithmic=True,
            titles=titles,
            highlighted=("ours", "ours-tls", "ours-tcp"),
        ),
    )


def _added(measured: Measured, name: str, metric: str) -> list[float | None]:
    """Return the latency that a relay adds, round by round; None if interference exceeded it."""
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
    relays = select_relays(bench, LOADED)
    rounds = min(ROUNDS, bench.rounds)
    subjects: dict[str, Callable[[], Mapping[str, float]]] = {}

    def add(name: str, endpoint: EndpointSource, running: Callable[[], Running] | None = None) -> None:
        load = streaming(bench, endpoint, LOAD_BATCH, seconds=LOADED_SECONDS)

        def measure() -> Mapping[str, float]:
            with background_load(load):
                metrics = percentiles(steady_echo(bench, endpoint, LOADED_COUNT))
            if running is not None:
                wait_until_idle(running())
            return metrics

        subjects[name] = measure

    with RelayPool(bench, relays) as pool, RelayPool(bench, [own]) as own_pool:
        for name in pool.relays:
            if name == "ours":
                add(name, pool.endpoint(name), lambda: pool["ours"])
                add(own_name, own_pool.endpoint("ours"), lambda: own_pool["ours"])
            else:
                add(name, pool.endpoint(name))
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
            f"Another connection reads updates of {SIZE} bytes at full speed, {LOAD_BATCH} per write.",
            f"{LOADED_COUNT} requests, one every {EVERY / 1000:g} ms; delayed requests count from when they were due.",
            "By default, both connections of ours share one agent, which answers between two writes; others use two.",
            f"{rounds} rounds.",
            *pool.notes(),
            *own_pool.notes(),
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
            if peer in pool.relays
        ],
    )
