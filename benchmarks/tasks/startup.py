"""How soon `connect` has an answer for its editor, how soon `serve` listens, and what they take of memory then."""

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks.bare import Bare
from benchmarks.load import Where
from benchmarks.measuring import Bench, Measured, Section, Target
from benchmarks.relays import Relay, node_shim, our_gateway, our_shim
from benchmarks.report import figure

TASK: Final = "startup"

SESSIONS: Final = 1_000
"""That a gateway has from before, each with a turn."""

UPDATES: Final = 10
"""Of that turn."""

SLOWER, SMALLER = 1.8, 0.7
"""What `connect` may take of time and of memory, over a shim in JavaScript."""

OURS, NODE = "`acp-gateway connect`", "node and `ws`"
PYTHON, IMPORTS = "Python, and nothing else", "Python with click, trio and websockets' client"
NEEDED: Final = "import click, trio, websockets.client"
"""The three that `connect` can't do without."""

PEERS: Final = ("naive", "sdk", "stdio-to-ws", "websocketd")

PATIENCE: Final = 20.0
"""Seconds that a start may take."""


def connect(bench: Bench, where: Where) -> dict[str, float]:
    """Start a shim as an editor does, to the first answer."""
    told = bench.load.run("first", where, timeout=PATIENCE)
    return {"seconds": told["seconds"], "resident": 1024 * told["resident_kb"]}


def spawn(*arguments: str) -> dict[str, float]:
    """Start Python, to its end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, timeout=PATIENCE)
    return {"seconds": time.perf_counter() - begun}


def serve(bench: Bench, relay: Relay) -> dict[str, float]:
    """Start a relay, to where it listens."""
    with relay.running((str(bench.programs.agent),)) as running:
        return {"seconds": running.seconds, "resident": float(running.resident())}


def fill(bench: Bench, gateway: Relay, sessions: int) -> None:
    """Have so many sessions there when the gateway is started for the next time."""
    with gateway.running((str(bench.programs.agent),)) as running, Bare(running.where) as client:
        client.initialize()
        for _ in range(sessions):
            client.turn(client.open_session(), UPDATES, UPDATES)


def run(bench: Bench) -> list[Section]:
    """Measure the two programs beside others."""
    return [shims(bench), servers(bench)]


def shims(bench: Bench) -> Section:
    """What an editor starts."""
    skipped = bench.programs.skipped.get("node-shim")
    with bench.relays["ours"].running((str(bench.programs.agent),)) as running:
        subjects = {OURS: partial(connect, bench, our_shim(running))}
        if not bench.quick:
            subjects |= {IMPORTS: partial(spawn, "-c", NEEDED), PYTHON: partial(spawn, "-c", "")}
        if skipped is None:
            subjects[NODE] = partial(connect, bench, node_shim(bench.programs, running))
        measured = bench.interleave(f"{TASK} of connect", subjects)
    notes = [
        "From the start of the program to the answer to `initialize`, through a gateway whose agent runs already.",
        *([] if bench.quick else ["The two rows about Python are from its start to its end, and need no gateway."]),
        *([] if skipped is None else [f"{NODE} is skipped: {skipped}"]),
        *measured.notes(),
    ]
    return Section(
        "Start of `connect` until the first reply",
        ("", "time", "memory"),
        rows(measured),
        notes,
        [
            Target(f"time, over {NODE}", SLOWER, "≤", measured.ratio(OURS, NODE, "seconds")),
            Target(f"memory, over {NODE}", SMALLER, "≤", measured.ratio(OURS, NODE, "resident")),
        ],
    )


def servers(bench: Bench) -> Section:
    """What listens."""
    with ExitStack() as stack:
        kept = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="kept-"))
        subjects = {"`acp-gateway serve`": partial(serve, bench, bench.relays["ours"])}
        if not bench.quick:
            full = our_gateway(bench.programs, listen="ws", gateway_options={"state_dir": f"{kept}/state"})
            fill(bench, full, SESSIONS)
            subjects[f"`acp-gateway serve` with {SESSIONS:,} sessions of before"] = partial(serve, bench, full)
            peers = [bench.relays[name] for name in PEERS if bench.relays[name].skip is None]
            subjects |= {peer.title: partial(serve, bench, peer) for peer in peers}
        rounds = 1 if bench.quick else bench.rounds
        measured = bench.interleave(f"{TASK} of serve", subjects, rounds=rounds, warm_up=not bench.quick)
    return Section("Start of `serve` until it listens", ("", "time", "memory"), rows(measured), measured.notes())


def rows(measured: Measured) -> list[tuple[str, str, str]]:
    """Time and memory of each subject."""
    return [
        (
            subject,
            figure(measured.median(subject, "seconds"), "s"),
            figure(measured.median(subject, "resident"), "B"),
        )
        for subject in measured.subjects
    ]
