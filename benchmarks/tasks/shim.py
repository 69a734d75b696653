"""Throughput and round trips through `connect`, as an editor gets them."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from benchmarks.load import SIZE, Endpoint
from benchmarks.measuring import Bench, Section, Subject
from benchmarks.relays import node_shim, our_shim
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    PERCENTILES,
    WRITES,
    RelayPool,
    echo,
    failures,
    limited,
    measure_and_wait,
    percentiles,
    select_relays,
    streaming,
)

TASK: Final = "shim"

OURS, NODE, NONE = "`acp-gateway connect`", "a shim of node and `ws`", "no shim, a WebSocket"

SECONDS, QUICK_SECONDS = 0.4, 0.1
TRIPS, QUICK_TRIPS = 2000, 500
ROUNDS: Final = 5


def run(bench: Bench) -> list[Section]:
    """Compare `connect` with a shim in JavaScript and with no shim, through the same gateway."""
    skipped, rounds = bench.programs.skipped.get("node-shim"), min(ROUNDS, bench.rounds)
    writes: Mapping[int, str] = bench.pick(WRITES, {1: WRITES[1]})
    with RelayPool(bench, select_relays(bench, ("ours",))) as pool:
        ours = pool["ours"]
        endpoints = {OURS: our_shim(ours)}
        if not bench.quick:
            endpoints[NONE] = ours.endpoint
        if skipped is None:
            endpoints[NODE] = node_shim(bench.programs, ours)

        def trips(endpoint: Endpoint) -> Mapping[str, float]:
            return percentiles(echo(bench, lambda: endpoint, bench.pick(TRIPS, QUICK_TRIPS)))

        def stream(endpoint: Endpoint, batch: int) -> Subject:
            return streaming(bench, lambda: endpoint, batch, seconds=bench.pick(SECONDS, QUICK_SECONDS))

        streams = {
            batch: bench.interleave(
                f"{TASK}, {title}",
                {
                    name: partial(measure_and_wait, pool, "ours", stream(endpoint, batch))
                    for name, endpoint in endpoints.items()
                },
                rounds=rounds,
            )
            for batch, title in writes.items()
        }
        echoes = bench.interleave(
            f"{TASK}, round trips",
            {name: partial(trips, endpoint) for name, endpoint in endpoints.items()},
            rounds=rounds,
        )
    rows = []
    for name in endpoints:
        row = [name]
        for each in streams.values():
            row += [
                figure(each.median(name, "per_s"), "/s"),
                "" if name == OURS else figure(each.ratio(OURS, name, "per_s"), "x"),
            ]
        for metric in PERCENTILES:
            row += [
                figure(echoes.median(name, metric), "µs"),
                "" if name == OURS else figure(echoes.ratio(OURS, name, metric), "x"),
            ]
        rows.append(row)
    columns = (*writes.values(), "round trip p50", "p99")
    return [
        Section(
            "Throughput and round trips through `connect`",
            ("", *(head for column in columns for head in (column, "ours against it"))),
            rows,
            notes=[
                f"Updates of {SIZE} bytes a second, and requests one at a time, all through the same gateway of ours.",
                f"{rounds} rounds; each starts a shim, which is not part of the measured time.",
                *([] if skipped is None else [f"{NODE} is skipped: {skipped}"]),
                *limited(streams.values(), {}),
                *pool.notes(),
                *failures([*streams.values(), echoes]),
            ],
        )
    ]
