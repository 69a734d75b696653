"""Streaming: updates per second to one client, and their cost with our own options."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Panel, Section, Subject, Target
from benchmarks.relays import our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    WRITES,
    RelayPool,
    TimedLoad,
    failures,
    limited,
    measure_and_wait,
    select_relays,
    streaming,
    wait_until_idle,
)

TASK: Final = "stream"

OURS: Final = ("ours", "ours-tls", "ours-tcp")
DIRECT: Final = "direct"
"""The agent itself, over its pipes: the upper bound of all relays."""
PEERS: Final = ("stdio-to-ws", "sdk", "websocketd", "socat", "c-relay", "c-relay-ws", "naive", DIRECT)
QUICK_OURS: Final = ("ours", "ours-tls")
QUICK_PEERS: Final = {1: ("stdio-to-ws", "sdk", "websocketd", "c-relay"), 50: ("websocketd", "c-relay")}
"""Peers by updates per write."""

AT_LEAST: Final = {"stdio-to-ws": 10.0, "sdk": 8.0, "websocketd": 5.0, "c-relay": 0.3}
"""Minimum rate as a multiple of a peer's."""

TLS, RESUMING, SHARED = 0.6, 0.9, 0.85
"""Minimum rate with TLS, on a resumable link, and with a shared agent, relative to the rate without."""


def run(bench: Bench) -> list[Section]:
    """Compare our gateway with the peers, and its options with each other."""
    return [_against_peers(bench), _own_options(bench)]


def _seconds(bench: Bench) -> float:
    seconds: float = bench.pick(0.4, 0.1)
    return seconds


def _writes(bench: Bench) -> Mapping[int, str]:
    """Return the numbers of updates per write with which our options are compared."""
    writes: Mapping[int, str] = bench.pick(WRITES, {1: WRITES[1]})
    return writes


def _measure(bench: Bench, name: str, subjects: Mapping[int, Mapping[str, Subject]]) -> dict[int, Measured]:
    """Measure the subjects of each number of updates per write."""
    return {batch: bench.interleave(f"{name}, {WRITES[batch]}", each) for batch, each in subjects.items()}


def _subject(pool: RelayPool, name: str, stream: TimedLoad) -> Subject:
    """Return a subject that measures the rate of updates and the relay's CPU time per update.

    The CPU time of ours includes its deferred writes to the disk, which end before the next measurement.
    """

    def measure() -> Mapping[str, float]:
        running = pool[name]
        before = running.processor()
        metrics = dict(stream())
        if name in OURS:
            wait_until_idle(running)
        # The CPU time of a fork that has ended is unknown.
        if running.pid and not running.copies_itself and stream.count:
            metrics["processor_us"] = 1e6 * (running.processor() - before) / stream.count
        return metrics

    return measure


def _against_peers(bench: Bench) -> Section:
    names = {batch: (*bench.pick(OURS, QUICK_OURS), *bench.pick(PEERS, QUICK_PEERS[batch])) for batch in WRITES}
    relays = select_relays(bench, names[1])
    with RelayPool(bench, relays) as pool:
        seconds = _seconds(bench)
        streams = {
            batch: {
                name: streaming(bench, pool.endpoint(name), batch, seconds=seconds)
                for name in pool.relays
                if name in names[batch]
            }
            for batch in WRITES
        }
        subjects = {
            batch: {name: _subject(pool, name, stream) for name, stream in each.items()}
            for batch, each in streams.items()
        }
        measured = _measure(bench, TASK, subjects)
    titles = {relay.name: relay.title for relay in relays}
    targets = [
        Target(f"{titles[peer]}, {WRITES[batch]}", least, "≥", measured[batch].ratio("ours", peer, "per_s"))
        for batch in WRITES
        for peer, least in AT_LEAST.items()
        if peer in streams[batch]
    ]
    targets += [
        Target(f"TLS against plaintext, {WRITES[batch]}", TLS, "≥", measured[batch].ratio("ours-tls", "ours", "per_s"))
        for batch in WRITES
        if "ours-tls" in pool.relays
    ]
    columns = ("", ": ours against it", ": the relay's processor")
    return Section(
        f"Streaming updates of {SIZE} bytes to one client",
        ("relay", *(f"{title}{column}" for title in WRITES.values() for column in columns)),
        [[titles[name], *_rate_ratio_and_cost(measured, name)] for name in pool.relays],
        notes=[
            "Updates a second from the prompt to its answer, on one connection.",
            f"The number of updates is calibrated, so that each measurement takes about {seconds:.2g} s.",
            *(
                ["The last row is the agent alone: a relay that is about as fast is limited by the agent."]
                if DIRECT in names[1]
                else []
            ),
            "The relay's processor: its CPU time per update; ours includes its deferred writes to the disk.",
            *limited(measured.values(), titles),
            *pool.notes(),
            *failures(measured.values()),
        ],
        targets=targets,
        data={"sent": {WRITES[batch]: _counts(each) for batch, each in streams.items()}},
        panel=Panel(
            f"Streaming updates of {SIZE} bytes",
            "updates per second, more is better",
            {
                title: {name: measured[batch].median(name, "per_s") for name in pool.relays}
                for batch, title in WRITES.items()
            },
            unit="/s",
            logarithmic=True,
            titles=titles,
            highlighted=OURS,
        ),
    )


def _rate_ratio_and_cost(measured: Mapping[int, Measured], name: str) -> Iterator[str]:
    for each in measured.values():
        yield figure(each.median(name, "per_s"), "/s")
        yield "" if name == "ours" else figure(each.ratio("ours", name, "per_s"), "x")
        yield figure(each.median(name, "processor_us"), "µs")


def _own_options(bench: Bench) -> Section:
    shared, resuming, alone = "default options", "resumable link", "an agent for each connection"
    scope = our_gateway(bench.programs, listen="ws", scope="connection")
    seconds, writes = _seconds(bench), _writes(bench)
    with RelayPool(bench, select_relays(bench, ("ours",))) as ours, RelayPool(bench, [scope]) as own:

        def subjects(batch: int) -> dict[str, TimedLoad]:
            stream = partial(streaming, bench, batch=batch, seconds=seconds)
            return {
                shared: stream(ours.endpoint("ours")),
                resuming: stream(ours.endpoint("ours"), resume=True),
                alone: stream(own.endpoint("ours")),
            }

        streams = {batch: subjects(batch) for batch in writes}
        measured = _measure(
            bench,
            "stream, options",
            {
                batch: {
                    name: partial(measure_and_wait, own if name == alone else ours, "ours", stream)
                    for name, stream in each.items()
                }
                for batch, each in streams.items()
            },
        )
    targets = []
    for batch, title in writes.items():
        resume = measured[batch].ratio(resuming, shared, "per_s")
        alike = measured[batch].ratio(shared, alone, "per_s")
        targets += [
            Target(f"a resumable link against one that is not, {title}", RESUMING, "≥", resume),
            Target(f"a shared agent against an agent for each connection, {title}", SHARED, "≥", alike),
        ]
    return Section(
        "Streaming: what our own options cost",
        ("ours", *(head for title in writes.values() for head in (title, "the default against it"))),
        [[name, *_rate_and_ratio(measured, shared, name)] for name in (shared, resuming, alone)],
        notes=[
            f"Updates of {SIZE} bytes a second to one client over WebSocket, measured in interleaved rounds.",
            *ours.notes(),
            *own.notes(),
            *failures(measured.values()),
        ],
        targets=targets,
        data={"sent": {WRITES[batch]: _counts(each) for batch, each in streams.items()}},
    )


def _rate_and_ratio(measured: Mapping[int, Measured], over: str, name: str) -> Iterator[str]:
    """Yield rate and ratio for each number of updates per write."""
    for each in measured.values():
        yield figure(each.median(name, "per_s"), "/s")
        yield "" if name == over else figure(each.ratio(over, name, "per_s"), "x")


def _counts(streams: Mapping[str, TimedLoad]) -> dict[str, int | None]:
    return {name: stream.count for name, stream in streams.items()}
