"""Many clients that are connected and say nothing: what each costs in memory, and how soon they are all there."""

import resource
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.measuring import Bench, Measured, Section, Target, Unit
from benchmarks.relays import Running
from benchmarks.report import figure
from benchmarks.tasks.loads import AT_ONCE

TASK: Final = "idle"

LINKS, FEW_LINKS = 1_000, 300
"""Held at a time; the few in a quick run."""

WARMING: Final = 50
"""Opened and closed before: what the first ones have loaded and set up is no part of what a further one costs."""

PEER_LINKS: Final = 50
"""Held at a time with a relay that starts a process for each."""

STAY: Final = 1.1
"""Seconds for which the first ones stay. The gateway has those who leave within one second pay for it with pauses, in
which nobody is accepted, and the arrivals that are measured come next."""

SETTLED: Final = 0.3
"""Seconds after which what was to be done for those who came is done."""

PLAIN, OVER_TLS, BASE = 12_000, 28_000, 45_000_000
"""Bytes that a link without and with TLS may take, and a gateway that has just begun to listen."""

SPARE: Final = 200
"""Descriptors that a process needs besides one for each link."""


STATES = CONNECTED, INITIALIZED = "connected", "initialized"
"""How far clients go: to where they could make their first request, and to where that was answered."""


@dataclass(frozen=True)
class Kind:
    """A kind of links."""

    title: str
    relay: str
    target: int | None = None
    resume: bool = False
    states: tuple[str, ...] = STATES
    """How far it goes in what is measured."""
    each_a_process: bool = False
    """Whether a process is started for each link."""


OURS: Final = (
    Kind("WebSocket", "ours", PLAIN),
    Kind("WebSocket, TLS", "ours-tls", OVER_TLS),
    Kind("TCP", "ours-tcp", PLAIN),
    Kind("TCP, TLS", "ours-tcp-tls", OVER_TLS),
    Kind("WebSocket that resumes", "ours", resume=True),
)
PEERS: Final = (
    # All get the answers to all, so that no client could tell which is its own.
    Kind("naive relay", "naive", states=(CONNECTED,)),
    # What there is for a link is there for certain when its agent has answered.
    Kind("TypeScript SDK's server", "sdk", states=(INITIALIZED,), each_a_process=True),
    Kind("stdio-to-ws", "stdio-to-ws", states=(INITIALIZED,), each_a_process=True),
    Kind("websocketd", "websocketd", states=(INITIALIZED,), each_a_process=True),
)
"""The peers speak WebSocket without TLS."""


def links(bench: Bench, kind: Kind, count: int, *, initialize: bool) -> dict[str, float]:
    """Memory and arrivals of so many links of a relay that was started for this: memory that was in use once is not
    given back, and would hide what the next ones take."""
    with bench.relays[kind.relay].running((str(bench.programs.agent),)) as running:
        base = running.resident()
        few, some = WARMING, hold(bench, running, kind, WARMING, initialize=initialize, seconds=STAY)[1]
        if count <= WARMING:
            few, some = 1, hold(bench, running, kind, 1, initialize=initialize)[1]
        arrived, many = hold(bench, running, kind, count, initialize=initialize)
    return {"base": float(base), "each": (many - some) / (count - few), "rate": count / arrived}


def hold(
    bench: Bench, running: Running, kind: Kind, count: int, *, initialize: bool, seconds: float = SETTLED
) -> tuple[float, int]:
    """Hold so many for a moment: the seconds until all were there, and the bytes that the relay had then."""
    options = {"resume": True} if kind.resume else {}
    with bench.load.start(
        "idle", running.where, connections=count, initialize=int(initialize), concurrency=min(AT_ONCE, count), **options
    ) as held:
        time.sleep(seconds)
        return float(held.result["seconds"]), running.resident()


def most(kind: Kind, count: int) -> int:
    """So many links, or what there is room for."""
    if kind.each_a_process:
        return PEER_LINKS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The gateway and the load take what they may have; the others do with what they are given.
    descriptors = hard if kind in OURS else soft
    return count if descriptors == resource.RLIM_INFINITY else max(min(count, descriptors - SPARE), 2)


def run(bench: Bench) -> list[Section]:
    """Measure our links of all kinds, and those of the peers that speak WebSocket."""
    kinds = [kind for kind in bench.pick(OURS + PEERS, OURS[:2]) if bench.relays[kind.relay].skip is None]
    counts = {kind: most(kind, bench.pick(LINKS, FEW_LINKS)) for kind in kinds}
    subjects = {
        f"{kind.title}, {state}": partial(links, bench, kind, counts[kind], initialize=state == INITIALIZED)
        for kind in kinds
        for state in bench.pick(kind.states, (INITIALIZED,))
    }
    # Memory is the same each time, and a round takes long.
    measured = bench.interleave(TASK, subjects, rounds=1, warm_up=False)
    return [table(measured, kinds, counts)]


def table(measured: Measured, kinds: list[Kind], counts: dict[Kind, int]) -> Section:
    """Memory and arrivals, and what they were to be."""

    def cell(kind: Kind, state: str, metric: str, unit: Unit) -> str:
        return figure(measured.median(f"{kind.title}, {state}", metric), unit)

    rows, targets = [], []
    for kind in kinds:
        each = [cell(kind, state, "each", "B") for state in STATES]
        rate = [cell(kind, state, "rate", "/s") for state in STATES]
        rows.append((kind.title, f"{counts[kind]:,}", cell(kind, kind.states[-1], "base", "B"), *each, *rate))
        if kind.target is not None:
            size = measured.median(f"{kind.title}, {INITIALIZED}", "each")
            targets.append(Target(f"{kind.title}: a link that is initialized", kind.target, "≤", size, "B"))
    bases = [measured.median(f"{kind.title}, {INITIALIZED}", "base") for kind in kinds if kind in OURS]
    base = max((each for each in bases if each is not None), default=None)
    targets.append(Target("the gateway when it listens, the largest of these", BASE, "≤", base, "B"))
    notes = [
        f"A link's memory: what a relay has with all of them less that with the first {WARMING}, by how many more.",
        f"Where there are no more than {WARMING}: less that with one, after as many came and went.",
        f"Arrivals are {AT_ONCE} at a time: `handshakes_per_address` is 32, and all come from one address.",
        "Each figure is from a relay of its own, once.",
    ]
    if any(kind.each_a_process for kind in kinds):
        notes.append(
            f"The SDK's server, stdio-to-ws and websocketd start an agent for each link, so there are {PEER_LINKS}; "
            "the agents' own memory does not count, their start does. Ours share one agent."
        )
    return Section(
        "Idle links",
        (
            "",
            "links",
            "base",
            *(f"a link, {state}" for state in STATES),
            *(f"arrivals, {state}" for state in STATES),
        ),
        rows,
        [*notes, *measured.notes()],
        targets,
    )
