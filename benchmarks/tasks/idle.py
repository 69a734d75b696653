"""Idle clients: memory per connection, and rate of new connections."""

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
"""Links held at a time, in a full and in a quick run."""

WARMING: Final = 50
"""Links opened and closed as warm-up: lazy imports and caches are not part of the cost per link."""

PEER_LINKS: Final = 50
"""Links held at a time with a relay that starts a process for each."""

STAY: Final = 1.1
"""Seconds that warm-up links stay open. For connections closed within one second the gateway pauses `accept`, which
would slow down the measured arrivals."""

SETTLED: Final = 0.3
"""Seconds after which the work for new connections is done."""

PLAIN, OVER_TLS, BASE = 12_000, 28_000, 45_000_000
"""Maximum bytes of a link without and with TLS, and of a gateway that has just started to listen."""

SPARE: Final = 200
"""File descriptors that a process needs besides one per link."""


STATES = CONNECTED, INITIALIZED = "connected", "initialized"
"""Measured states of a client: handshake done, and `initialize` answered."""


@dataclass(frozen=True)
class Kind:
    """A kind of link."""

    title: str
    relay: str
    target: int | None = None
    resume: bool = False
    states: tuple[str, ...] = STATES
    """Measured states."""
    each_a_process: bool = False
    """True if the relay starts a process for each link."""


OURS: Final = (
    Kind("WebSocket", "ours", PLAIN),
    Kind("WebSocket, TLS", "ours-tls", OVER_TLS),
    Kind("TCP", "ours-tcp", PLAIN),
    Kind("TCP, TLS", "ours-tcp-tls", OVER_TLS),
    Kind("WebSocket that resumes", "ours", resume=True),
)
PEERS: Final = (
    # It sends all answers to all clients, so that a client can't recognize the answer to its `initialize`.
    Kind("naive relay", "naive", states=(CONNECTED,)),
    # Only the answer of a link's agent shows that its process has started.
    Kind("TypeScript SDK's server", "sdk", states=(INITIALIZED,), each_a_process=True),
    Kind("stdio-to-ws", "stdio-to-ws", states=(INITIALIZED,), each_a_process=True),
    Kind("websocketd", "websocketd", states=(INITIALIZED,), each_a_process=True),
)
"""Peers, all over WebSocket without TLS."""


def links(bench: Bench, kind: Kind, count: int, *, initialize: bool) -> dict[str, float]:
    """Measure memory and arrivals of `count` links to a newly started relay.

    A relay that had more links before would reuse its freed memory, which hides the cost per link.
    """
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
    """Hold `count` links for a moment; return the seconds until all were open, and the relay's memory then in bytes."""
    options = {"resume": True} if kind.resume else {}
    with bench.load.start(
        "idle",
        running.endpoint,
        connections=count,
        initialize=int(initialize),
        concurrency=min(AT_ONCE, count),
        **options,
    ) as held:
        time.sleep(seconds)
        return float(held.result["seconds"]), running.resident()


def link_limit(kind: Kind, count: int) -> int:
    """Return `count`, or fewer if processes or file descriptors limit the number of links."""
    if kind.each_a_process:
        return PEER_LINKS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The gateway and the load generator raise their soft limit to the hard one; the peers don't.
    descriptors = hard if kind in OURS else soft
    return count if descriptors == resource.RLIM_INFINITY else max(min(count, descriptors - SPARE), 2)


def run(bench: Bench) -> list[Section]:
    """Measure all kinds of our links, and those of peers over WebSocket."""
    kinds = [kind for kind in bench.pick(OURS + PEERS, OURS[:2]) if bench.relays[kind.relay].skip is None]
    counts = {kind: link_limit(kind, bench.pick(LINKS, FEW_LINKS)) for kind in kinds}
    subjects = {
        f"{kind.title}, {state}": partial(links, bench, kind, counts[kind], initialize=state == INITIALIZED)
        for kind in kinds
        for state in bench.pick(kind.states, (INITIALIZED,))
    }
    # Memory does not vary between rounds, and a round takes long.
    measured = bench.interleave(TASK, subjects, rounds=1, warm_up=False)
    return [table(measured, kinds, counts)]


def table(measured: Measured, kinds: list[Kind], counts: dict[Kind, int]) -> Section:
    """Format memory and arrivals, with their targets."""

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
    targets.append(Target("the gateway when it starts to listen, the largest of these", BASE, "≤", base, "B"))
    notes = [
        f"A link's memory: difference of the relay's memory with all links and with {WARMING}, per additional link.",
        f"With {WARMING} links or fewer: difference to one link, after as many were opened and closed.",
        f"{AT_ONCE} links are opened at a time: `handshakes_per_address` is 32, and all come from one address.",
        "Each figure was measured once, with a newly started relay.",
    ]
    if any(kind.each_a_process for kind in kinds):
        notes.append(
            f"The SDK's server, stdio-to-ws and websocketd start an agent per link, so {PEER_LINKS} links are opened; "
            "arrivals include the start of the agents, memory excludes them. Our links share one agent."
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
