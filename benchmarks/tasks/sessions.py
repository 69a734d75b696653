"""Many sessions on one agent: what comes through when they are all at work, and when most only are there."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from benchmarks.load import SIZE, TIMEOUT
from benchmarks.measuring import Bench, Section, growth
from benchmarks.report import figure
from benchmarks.tasks.loads import WRITES, Side, echo, failures, known, limited, percentiles, rates, rest, streaming

TASK: Final = "sessions"

SESSIONS: Final = (1, 10, 100)
QUICK_SESSIONS: Final = (1, 100)
UPDATES: Final = {1: (100_000, 20_000), 50: (200_000, 50_000)}
"""Updates of all sessions together, by how many there are in a write; and how many for a quick run."""

CLIENTS: Final = (0, 10, 100, 1000)
CLIENTS_SECONDS: Final = 0.3
TRIPS: Final = 1000

ROUNDS, QUICK_ROUNDS = 5, 2
CLIENTS_ROUNDS: Final = 3
"""In each of which a thousand come and go."""


def run(bench: Bench) -> list[Section]:
    """Sessions that are all at work, and clients that only are there, for which a quick run has no time."""
    return [_sessions(bench)] if bench.quick else [_sessions(bench), _clients(bench)]


def _sessions(bench: Bench) -> Section:
    numbers, rounds = bench.pick(SESSIONS, QUICK_SESSIONS), min(bench.pick(ROUNDS, QUICK_ROUNDS), bench.rounds)
    writes: Mapping[int, str] = bench.pick(WRITES, {50: WRITES[50]})

    with Side(bench, known(bench, ("ours",))) as side:

        def measure(sessions: int, batch: int) -> Mapping[str, float]:
            count = bench.pick(*UPDATES[batch]) // sessions // batch * batch
            options = {"connections": sessions, "count": count, "batch": batch, "size": SIZE}
            told = rates(bench.load.run("stream", side["ours"].where, TIMEOUT, **options))
            rest(side["ours"])
            return told

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
                f"{title}: the cost of an update grows with the number to the power of "
                f"{growth(numbers, costs):.2f}; 0 is not at all, 1 would be as the number does."
            )
    columns = ("all together", "against one", "for each update")
    return Section(
        "Sessions at work at the same time, on one agent",
        ("sessions", *(f"{title}: {column}" for title in writes.values() for column in columns)),
        rows,
        notes=[
            "Each session has a client of its own, of one identity; the agent takes turns between them write by write.",
            "Updates of 200 bytes a second that all have got together; there are as many however many the sessions.",
            f"{rounds} rounds.",
            *grown,
            *limited(measured.values(), {}),
            *side.notes(),
            *failures(measured.values()),
        ],
    )


def _clients(bench: Bench) -> Section:
    with Side(bench, known(bench, ("ours",))) as side:
        way = side.way("ours")
        stream = streaming(bench, way, 50, seconds=CLIENTS_SECONDS)

        def measure(clients: int) -> Mapping[str, float]:
            waiting: Any = bench.load.start("idle", way(), TIMEOUT, connections=clients) if clients else nullcontext()
            with waiting:
                streamed = stream()
                rest(side["ours"])
                return {**streamed, **percentiles(echo(bench, way, TRIPS))}

        measured = bench.interleave(
            f"{TASK}, clients",
            {str(clients): partial(measure, clients) for clients in CLIENTS},
            rounds=min(CLIENTS_ROUNDS, bench.rounds),
        )
    first = str(CLIENTS[0])
    return Section(
        "One client at work, beside others that wait",
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
            "All are of one identity and have one agent; those who wait have said `initialize` and nothing more.",
            f"{min(CLIENTS_ROUNDS, bench.rounds)} rounds.",
            *side.notes(),
            *measured.notes(),
        ],
    )
