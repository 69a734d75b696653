"""Streaming: how many updates a second come through to one client, and what our own options cost of that."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Panel, Section, Subject, Target
from benchmarks.relays import our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import WRITES, Paced, Side, at_rest, failures, known, limited, rest, streaming

TASK: Final = "stream"

OURS: Final = ("ours", "ours-tls", "ours-tcp")
DIRECT: Final = "direct"
"""The agent itself, over its pipes: what is about as fast as that waits for the agent."""
PEERS: Final = ("stdio-to-ws", "sdk", "websocketd", "socat", "c-relay", "c-relay-ws", "naive", DIRECT)
QUICK_OURS: Final = ("ours", "ours-tls")
QUICK_PEERS: Final = {1: ("stdio-to-ws", "sdk", "websocketd", "c-relay"), 50: ("websocketd", "c-relay")}
"""By how many updates are in a write."""

AT_LEAST: Final = {"stdio-to-ws": 10.0, "sdk": 8.0, "websocketd": 2.5, "c-relay": 0.3}
"""How many times as much as a peer is to be reached."""

TLS, RESUMING, SHARED = 0.6, 0.9, 0.85
"""What is to be left with TLS, on a link that resumes, and where the process is one that others could share."""


def run(bench: Bench) -> list[Section]:
    """Against the peers, and our gateway with its options against itself."""
    return [_against_peers(bench), _own_options(bench)]


def _seconds(bench: Bench) -> float:
    seconds: float = bench.pick(0.4, 0.1)
    return seconds


def _writes(bench: Bench) -> Mapping[int, str]:
    """The ways of writing with which our options are compared; a quick run has no time for more."""
    writes: Mapping[int, str] = bench.pick(WRITES, {1: WRITES[1]})
    return writes


def _measure(bench: Bench, name: str, subjects: Mapping[int, Mapping[str, Subject]]) -> dict[int, Measured]:
    """The same subjects with each way of writing."""
    return {batch: bench.interleave(f"{name}, {WRITES[batch]}", each) for batch, each in subjects.items()}


def _subject(side: Side, name: str, stream: Paced) -> Subject:
    """The rate, and what each update costs the relay of a processor. Ours has more to do when the client has all that
    it waited for: that is part of the cost, and over when the next one is measured."""

    def measure() -> Mapping[str, float]:
        running = side[name]
        before = running.processor()
        told = dict(stream())
        if name in OURS:
            rest(running)
        # What a copy of itself has used is gone with it.
        if running.pid and not running.copies_itself and stream.count:
            told["processor_us"] = 1e6 * (running.processor() - before) / stream.count
        return told

    return measure


def _against_peers(bench: Bench) -> Section:
    names = {batch: (*bench.pick(OURS, QUICK_OURS), *bench.pick(PEERS, QUICK_PEERS[batch])) for batch in WRITES}
    relays = known(bench, names[1])
    with Side(bench, relays) as side:
        seconds = _seconds(bench)
        streams = {
            batch: {
                name: streaming(bench, side.way(name), batch, seconds=seconds)
                for name in side.relays
                if name in names[batch]
            }
            for batch in WRITES
        }
        subjects = {
            batch: {name: _subject(side, name, stream) for name, stream in each.items()}
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
        if "ours-tls" in side.relays
    ]
    columns = ("", ": ours against it", ": the relay's processor")
    return Section(
        f"Streaming updates of {SIZE} bytes to one client",
        ("relay", *(f"{title}{column}" for title in WRITES.values() for column in columns)),
        [[titles[name], *_rate_ratio_and_cost(measured, name)] for name in side.relays],
        notes=[
            "Updates a second from the prompt to its answer, on one connection.",
            f"How many are sent is found out before, so that it takes about {seconds:.2g} s.",
            *(
                ["The agent is by itself in the last row: what is about as fast waits for the agent."]
                if DIRECT in names[1]
                else []
            ),
            "The relay's processor: what each update costs it, with the disk that ours writes to afterwards.",
            *limited(measured.values(), titles),
            *side.notes(),
            *failures(measured.values()),
        ],
        targets=targets,
        data={"sent": {WRITES[batch]: _counts(each) for batch, each in streams.items()}},
        panel=Panel(
            f"Streaming updates of {SIZE} bytes",
            "updates per second, more is better",
            {
                title: {name: measured[batch].median(name, "per_s") for name in side.relays}
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
    shared, resuming, alone = "as it is by default", "the link resumes", "an agent for each connection"
    scope = our_gateway(bench.programs, listen="ws", scope="connection")
    seconds, writes = _seconds(bench), _writes(bench)
    with Side(bench, known(bench, ("ours",))) as ours, Side(bench, [scope]) as own:

        def subjects(batch: int) -> dict[str, Paced]:
            stream = partial(streaming, bench, batch=batch, seconds=seconds)
            return {
                shared: stream(ours.way("ours")),
                resuming: stream(ours.way("ours"), resume=True),
                alone: stream(own.way("ours")),
            }

        streams = {batch: subjects(batch) for batch in writes}
        measured = _measure(
            bench,
            "stream, options",
            {
                batch: {
                    name: partial(at_rest, own if name == alone else ours, "ours", stream)
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
            Target(f"a link that resumes against one that does not, {title}", RESUMING, "≥", resume),
            Target(f"a shared agent against an agent for each connection, {title}", SHARED, "≥", alike),
        ]
    return Section(
        "Streaming: what our own options cost",
        ("ours", *(head for title in writes.values() for head in (title, "the default against it"))),
        [[name, *_rate_and_ratio(measured, shared, name)] for name in (shared, resuming, alone)],
        notes=[
            f"Updates of {SIZE} bytes a second to one client over WebSocket, measured in turns.",
            *ours.notes(),
            *own.notes(),
            *failures(measured.values()),
        ],
        targets=targets,
        data={"sent": {WRITES[batch]: _counts(each) for batch, each in streams.items()}},
    )


def _rate_and_ratio(measured: Mapping[int, Measured], over: str, name: str) -> Iterator[str]:
    """For each way of writing what came through, and how many times as much it is with the other one."""
    for each in measured.values():
        yield figure(each.median(name, "per_s"), "/s")
        yield "" if name == over else figure(each.ratio(over, name, "per_s"), "x")


def _counts(streams: Mapping[str, Paced]) -> dict[str, int | None]:
    return {name: stream.count for name, stream in streams.items()}
