"""Throughput of many sessions on one agent, when all are active and when most are idle."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from benchmarks.load import SIZE, TIMEOUT
from benchmarks.measuring import Bench, Section, growth
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    WRITES,
    RelayPool,
    echo,
    failures,
    limited,
    percentiles,
    rates,
    select_relays,
    streaming,
    wait_until_idle,
)

TASK: Final = "sessions"

SESSIONS: Final = (1, 10, 100)
QUICK_SESSIONS: Final = (1, 100)
UPDATES: Final = {1: (100_000, 20_000), 50: (200_000, 50_000)}
"""Updates of all sessions together in a full and in a quick run, by updates per write."""

CLIENTS: Final = (0, 10, 100, 1000)
CLIENTS_SECONDS: Final = 0.3
TRIPS: Final = 1000

ROUNDS, QUICK_ROUNDS = 5, 2
CLIENTS_ROUNDS: Final = 3
"""Few, since in each round a thousand clients connect and disconnect."""


def run(bench: Bench) -> list[Section]:
    """Measure active sessions, and unless it is a quick run idle clients."""
    return [_sessions(bench)] if bench.quick else [_sessions(bench), _clients(bench)]


def _sessions(bench: Bench) -> Section:
    numbers, rounds = bench.pick(SESSIONS, QUICK_SESSIONS), min(bench.pick(ROUNDS, QUICK_ROUNDS), bench.rounds)
    writes: Mapping[int, str] = bench.pick(WRITES, {50: WRITES[50]})

    with RelayPool(bench, select_relays(bench, ("ours",))) as pool:

        def measure(sessions: int, batch: int) -> Mapping[str, float]:
            count = bench.pick(*UPDATES[batch]) // sessions // batch * batch
            options = {"connections": sessions, "count": count, "batch": batch, "size": SIZE}
            metrics = rates(bench.load.run("stream", pool["ours"].endpoint, TIMEOUT, **options))
            wait_until_idle(pool["ours"])
            return metrics

        measured = {
            batch: bench.interleave(
                f"{TASK}, {title}",
                {str(sessions): partial(measure, sessions, batch) for sessions in numbers},
                rounds=rounds,
            )
            for batch, title in writes.items()
        }
    rows = []
    for sessions in numbers:
        row = [f"{sessions:,}"]
        for each in measured.values():
            rate = each.median(str(sessions), "per_s")
            row += [
                figure(rate, "/s"),
                figure(each.ratio(str(sessions), str(numbers[0]), "per_s"), "x"),
                figure(1e6 / rate if rate else None, "µs"),
            ]
        rows.append(row)
    grown = []
    for batch, title in writes.items():
        costs = [1 / rate for each in numbers if (rate := measured[batch].median(str(each), "per_s"))]
        if len(costs) == len(numbers):
            grown.append(
                f"{title}: the cost of an update grows with the power {growth(numbers, costs):.2f} "
                "of the number of sessions; 0 is constant, 1 is linear."
            )
    columns = ("all together", "against one", "for each update")
    return Section(
        "Concurrent sessions on one agent",
        ("sessions", *(f"{title}: {column}" for title in writes.values() for column in columns)),
        rows,
        notes=[
            "Each session has its own client, all of one identity; the agent alternates between them write by write.",
            "Updates of 200 bytes a second to all clients together; the total does not depend on the sessions.",
            f"{rounds} rounds.",
            *grown,
            *limited(measured.values(), {}),
            *pool.notes(),
            *failures(measured.values()),
        ],
    )


def _clients(bench: Bench) -> Section:
    with RelayPool(bench, select_relays(bench, ("ours",))) as pool:
        endpoint = pool.endpoint("ours")
        stream = streaming(bench, endpoint, 50, seconds=CLIENTS_SECONDS)

        def measure(clients: int) -> Mapping[str, float]:
            waiting: Any = (
                bench.load.start("idle", endpoint(), TIMEOUT, connections=clients) if clients else nullcontext()
            )
            with waiting:
                streamed = stream()
                wait_until_idle(pool["ours"])
                return {**streamed, **percentiles(echo(bench, endpoint, TRIPS))}

        measured = bench.interleave(
            f"{TASK}, clients",
            {str(clients): partial(measure, clients) for clients in CLIENTS},
            rounds=min(CLIENTS_ROUNDS, bench.rounds),
        )
    first = str(CLIENTS[0])
    return Section(
        "One active client beside idle ones",
        ("others", "updates, 50 per write", "against none", "round trip p50", "p99", "p50 against none"),
        [
            [
                f"{clients:,}",
                figure(measured.median(str(clients), "per_s"), "/s"),
                figure(measured.ratio(str(clients), first, "per_s"), "x"),
                figure(measured.median(str(clients), "p50_us"), "µs"),
                figure(measured.median(str(clients), "p99_us"), "µs"),
                figure(measured.ratio(str(clients), first, "p50_us"), "x"),
            ]
            for clients in CLIENTS
        ],
        notes=[
            "All clients are of one identity and share one agent; idle ones have sent `initialize` and nothing more.",
            f"{min(CLIENTS_ROUNDS, bench.rounds)} rounds.",
            *pool.notes(),
            *measured.notes(),
        ],
    )
