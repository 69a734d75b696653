"""Streamable HTTP: streaming, round trips and idle event streams, beside the HTTP servers of the SDKs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section
from benchmarks.report import figure
from benchmarks.tasks import idle
from benchmarks.tasks.loads import (
    PERCENTILES,
    WRITES,
    EndpointSource,
    RelayPool,
    echo,
    failures,
    limited,
    measure_and_wait,
    percentiles,
    select_relays,
    streaming,
)

TASK: Final = "http"

OURS, WEBSOCKET = "ours-http", "ours"
PEERS: Final = ("sdk-http", "python-sdk-http")

SECONDS, QUICK_SECONDS = 0.4, 0.1
TRIPS, QUICK_TRIPS = 2000, 500
STREAMS, QUICK_STREAMS = 1000, 200
"""Event streams held at a time."""

ROUNDS: Final = 5


def run(bench: Bench) -> list[Section]:
    """Compare our gateway over HTTP with the SDKs' servers, and with its WebSockets."""
    return [_updates_and_trips(bench), _idle(bench)]


# Streaming and round trips


def _updates_and_trips(bench: Bench) -> Section:
    relays = select_relays(bench, (OURS, WEBSOCKET, *PEERS))
    rounds, titles = min(ROUNDS, bench.rounds), {relay.name: relay.title for relay in relays}
    seconds, count = bench.pick(SECONDS, QUICK_SECONDS), bench.pick(TRIPS, QUICK_TRIPS)

    def trips(endpoint: EndpointSource) -> Mapping[str, float]:
        return percentiles(echo(bench, endpoint, count))

    with RelayPool(bench, relays) as pool:
        streams = {
            batch: bench.interleave(
                f"{TASK}, {title}",
                {
                    name: partial(
                        measure_and_wait, pool, name, streaming(bench, pool.endpoint(name), batch, seconds=seconds)
                    )
                    for name in pool.relays
                },
                rounds=rounds,
            )
            for batch, title in WRITES.items()
        }
        echoes = bench.interleave(
            f"{TASK}, round trips",
            {name: partial(trips, pool.endpoint(name)) for name in pool.relays},
            rounds=rounds,
        )
    columns = [(each, "per_s", "/s") for each in streams.values()] + [(echoes, metric, "µs") for metric in PERCENTILES]
    heads = (*WRITES.values(), "round trip p50", "p99")
    return Section(
        "Streamable HTTP: updates and round trips",
        ("relay", *(head for each in heads for head in (each, "ours against it"))),
        [[titles[name], *_cells(columns, name)] for name in pool.relays],
        notes=[
            f"Updates of {SIZE} bytes a second to one client, and {count:,} requests in each round, one at a time.",
            "A round trip is from the `POST` to the event with the response, over connections that stay open.",
            "Over HTTP the load generator is in Python, over WebSocket in C: a round trip has some 30 µs more for it.",
            "The Python SDK's server runs on uvicorn with httptools and uvloop. The SDKs' servers have no tokens.",
            f"{rounds} rounds.",
            *limited(streams.values(), titles),
            *pool.notes(),
            *failures([*streams.values(), echoes]),
        ],
    )


def _cells(columns: list[tuple[Measured, str, str]], name: str) -> list[str]:
    cells = []
    for measured, metric, unit in columns:
        cells.append(figure(measured.median(name, metric), unit))  # type: ignore[arg-type] # Two of the known units.
        cells.append("" if name == OURS else figure(measured.ratio(OURS, name, metric), "x"))
    return cells


# Idle event streams


@dataclass(frozen=True)
class _Held:
    """Memory in bytes and file descriptors of a relay that holds event streams."""

    memory: int
    descriptors: int


def _hold(bench: Bench, name: str, count: int) -> dict[str, float]:
    """Measure memory and file descriptors of event streams, each of a client of its own, with a new relay."""
    with bench.relays[name].running((str(bench.programs.agent),)) as running:

        def held(number: int) -> tuple[_Held, float]:
            with bench.load.start("idle", running.endpoint, connections=number) as load:
                time.sleep(idle.SETTLED)
                return _Held(running.resident(), running.descriptors()), number / float(load.result["seconds"])

        few, _ = held(idle.WARMING)
        many, rate = held(count)
    further = count - idle.WARMING
    return {
        "memory": (many.memory - few.memory) / further,
        "descriptors": (many.descriptors - few.descriptors) / further,
        "all_memory": float(many.memory),
        "all_descriptors": float(many.descriptors),
        "rate": rate,
    }


def _idle(bench: Bench) -> Section:
    relays = [relay for relay in select_relays(bench, (OURS, *PEERS)) if relay.skip is None]
    count = bench.pick(STREAMS, QUICK_STREAMS)
    # Memory does not vary between rounds, and a round takes long.
    subjects = {relay.name: partial(_hold, bench, relay.name, count) for relay in relays}
    measured = bench.interleave(f"{TASK}, idle", subjects, rounds=1, warm_up=False)
    rows = [
        [
            relay.title,
            figure(measured.median(relay.name, "memory"), "B"),
            figure(measured.median(relay.name, "descriptors")),
            figure(measured.median(relay.name, "all_memory"), "B"),
            figure(measured.median(relay.name, "all_descriptors")),
            figure(measured.median(relay.name, "rate"), "/s"),
        ]
        for relay in relays
    ]
    return Section(
        f"Streamable HTTP: {count:,} idle event streams",
        ("relay", "memory of one", "descriptors of one", "memory of all", "descriptors of all", "arrivals"),
        rows,
        notes=[
            "Each is the connection's stream of a client of its own, which has sent `initialize`.",
            f"Of one: difference between all streams and {idle.WARMING}, for each further one. Of all: with the relay.",
            "The SDKs' servers start an agent for each client; memory excludes agents, descriptors include pipes.",
            "Clients arrive one after the other. Measured once, with a newly started relay.",
            *measured.notes(),
        ],
    )
