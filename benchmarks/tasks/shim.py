"""What comes through `connect`, to an editor that has the gateway's agent as one of its own."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from benchmarks.load import SIZE, Where
from benchmarks.measuring import Bench, Section, Subject
from benchmarks.relays import node_shim, our_shim
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    PERCENTILES,
    WRITES,
    Side,
    at_rest,
    echo,
    failures,
    known,
    limited,
    percentiles,
    streaming,
)

TASK: Final = "shim"

OURS, NODE, NONE = "`acp-gateway connect`", "a shim of node and `ws`", "no shim, a WebSocket"

SECONDS, QUICK_SECONDS = 0.4, 0.1
TRIPS, QUICK_TRIPS = 2000, 500
ROUNDS: Final = 5


def run(bench: Bench) -> list[Section]:
    """Throughput and round trips, beside a shim in JavaScript and beside none, through the same gateway."""
    skipped, rounds = bench.programs.skipped.get("node-shim"), min(ROUNDS, bench.rounds)
    writes: Mapping[int, str] = bench.pick(WRITES, {1: WRITES[1]})
    with Side(bench, known(bench, ("ours",))) as side:
        ours = side["ours"]
        places = {OURS: our_shim(ours)}
        if not bench.quick:
            places[NONE] = ours.where
        if skipped is None:
            places[NODE] = node_shim(bench.programs, ours)

        def trips(where: Where) -> Mapping[str, float]:
            return percentiles(echo(bench, lambda: where, bench.pick(TRIPS, QUICK_TRIPS)))

        def stream(where: Where, batch: int) -> Subject:
            return streaming(bench, lambda: where, batch, seconds=bench.pick(SECONDS, QUICK_SECONDS))

        streams = {
            batch: bench.interleave(
                f"{TASK}, {title}",
                {name: partial(at_rest, side, "ours", stream(where, batch)) for name, where in places.items()},
                rounds=rounds,
            )
            for batch, title in writes.items()
        }
        echoes = bench.interleave(
            f"{TASK}, round trips", {name: partial(trips, where) for name, where in places.items()}, rounds=rounds
        )
    rows = []
    for name in places:
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
            "What comes through `connect`",
            ("", *(head for column in columns for head in (column, "ours against it"))),
            rows,
            notes=[
                f"Updates of {SIZE} bytes a second, and requests one at a time, all through one gateway of ours.",
                f"{rounds} rounds; each starts a shim, which is not measured here.",
                *([] if skipped is None else [f"{NODE} is skipped: {skipped}"]),
                *limited(streams.values(), {}),
                *side.notes(),
                *failures([*streams.values(), echoes]),
            ],
        )
    ]
