"""Large messages: one and five megabytes, the size of images and whole files, from the agent and to it."""

from functools import partial
from typing import Final

from benchmarks.measuring import Bench, Section, Target
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    MEGABYTE,
    WINDOW,
    RelayPool,
    failures,
    limited,
    measure_and_wait,
    select_relays,
    streaming,
    uploading,
)

TASK: Final = "large"

SIZES, QUICK_SIZES = (1, 5), (1,)
"""Megabytes."""

PEERS: Final = ("stdio-to-ws", "sdk", "websocketd", "socat", "c-relay", "c-relay-ws", "naive")
QUICK_PEERS: Final = ("stdio-to-ws", "websocketd")

AT_LEAST: Final = {"stdio-to-ws": 2.0, "sdk": 2.0, "websocketd": 1.1}
"""Minimum throughput as a multiple of a peer's."""

ROUNDS: Final = {1: 5, 5: 3}
"""Rounds by megabytes."""

DOWN, UP = "from the agent", "to the agent"


def run(bench: Bench) -> list[Section]:
    """Measure one table per size."""
    return [_section(bench, megabytes) for megabytes in bench.pick(SIZES, QUICK_SIZES)]


def _section(bench: Bench, megabytes: int) -> Section:
    size, seconds, rounds = megabytes * MEGABYTE, bench.pick(0.3, 0.1), min(ROUNDS[megabytes], bench.rounds)
    relays = select_relays(bench, ("ours", *bench.pick(("ours-tls", *PEERS), QUICK_PEERS)))
    measured = {}
    with RelayPool(bench, relays) as pool:
        for direction in (DOWN, UP):
            load = partial(streaming, batch=1) if direction == DOWN else uploading
            loads = {name: load(bench, pool.endpoint(name), size=size, seconds=seconds) for name in pool.relays}
            subjects = {name: partial(measure_and_wait, pool, name, each) for name, each in loads.items()}
            measured[direction] = bench.interleave(f"{TASK}, {megabytes} MB {direction}", subjects, rounds=rounds)
    titles = {relay.name: relay.title for relay in relays}
    rows = []
    for name in pool.relays:
        row = [titles[name]]
        for each in measured.values():
            rate = figure(each.median(name, "bytes_per_s"), "B")
            row += [f"{rate}/s", "" if name == "ours" else figure(each.ratio("ours", name, "bytes_per_s"), "x")]
        rows.append(row)
    targets = [
        Target(f"{titles[peer]}, {direction}", least, "≥", each.ratio("ours", peer, "bytes_per_s"))
        for direction, each in measured.items()
        for peer, least in AT_LEAST.items()
        if peer in pool.relays
    ]
    return Section(
        f"Messages of {megabytes} MB",
        ("relay", *(head for direction in (DOWN, UP) for head in (direction, "ours against it"))),
        rows,
        notes=[
            f"Updates from the agent, one per write; requests to it, at most {WINDOW} in flight; {rounds} rounds.",
            *limited(measured.values(), titles),
            *pool.notes(),
            *failures(measured.values()),
        ],
        targets=targets,
    )
