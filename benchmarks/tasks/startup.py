"""Startup: time until `connect` relays the first answer and `serve` listens, their memory then, and what fences add."""

import compileall
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import trio

import acp_gateway
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.fence.plan import FenceOptions
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner, run_agent
from benchmarks.bare import BareClient
from benchmarks.load import Endpoint
from benchmarks.measuring import Bench, Measured, Section, Target
from benchmarks.relays import Relay, node_shim, our_gateway, our_shim
from benchmarks.report import figure

TASK: Final = "startup"

PACKAGE: Final = Path(acp_gateway.__file__).parent

SESSIONS: Final = 1_000
"""Stored sessions of a gateway, each with one turn."""

UPDATES: Final = 10
"""Updates of that turn."""

SLOWER, SMALLER = 1.0, 0.7
"""Maximum time and memory of `connect`, as a multiple of a shim's in JavaScript."""

UNFENCED: Final = "without a fence"

FENCE_SECONDS: Final = 0.04
"""Maximum time that a fence may add to the start of an agent."""

INITIALIZE: Final = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'

FENCES_PER_ROUND: Final = 5
"""Starts of an agent with each fence in a round: one takes some ten milliseconds."""

OURS, NODE = "`acp-gateway connect`", "node and `ws`"
PYTHON, IMPORTS = "Python, and nothing else", "Python with trio and websockets' client"
NEEDED: Final = "import trio, websockets.client"
"""The libraries that `connect` requires."""

PEERS: Final = ("naive", "sdk", "stdio-to-ws", "websocketd")

START_TIMEOUT: Final = 20.0
"""Seconds that a start may take."""


def connect(bench: Bench, endpoint: Endpoint) -> dict[str, float]:
    """Measure a shim, started as by an editor, until its first answer."""
    result = bench.load.run("first", endpoint, timeout=START_TIMEOUT)
    return {"seconds": result["seconds"], "resident": 1024 * result["resident_kb"]}


def spawn(*arguments: str) -> dict[str, float]:
    """Measure a Python process from its start to its end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, timeout=START_TIMEOUT)
    return {"seconds": time.perf_counter() - begun}


def serve(bench: Bench, relay: Relay) -> dict[str, float]:
    """Measure a relay until it listens."""
    with relay.running((str(bench.programs.agent),)) as running:
        return {"seconds": running.seconds, "resident": float(running.resident())}


def fill(bench: Bench, gateway: Relay, sessions: int) -> None:
    """Store sessions in the gateway's state directory, for its next start."""
    with gateway.running((str(bench.programs.agent),)) as running, BareClient(running.endpoint) as client:
        client.initialize()
        for _ in range(sessions):
            client.turn(client.open_session(), UPDATES, UPDATES)


def run(bench: Bench) -> list[Section]:
    """Measure `connect` and `serve` beside their alternatives, and agents with and without a fence."""
    return [shims(bench), servers(bench), fences(bench)]


def shims(bench: Bench) -> Section:
    """Measure `connect`, a shim in JavaScript, and Python itself."""
    skipped = bench.programs.skipped.get("node-shim")
    # As after an installation from a wheel, whatever PYTHONDONTWRITEBYTECODE says.
    compileall.compile_dir(PACKAGE, quiet=1)
    with bench.relays["ours"].running((str(bench.programs.agent),)) as running:
        subjects = {OURS: partial(connect, bench, our_shim(running))}
        if not bench.quick:
            subjects |= {IMPORTS: partial(spawn, "-c", NEEDED), PYTHON: partial(spawn, "-c", "")}
        if skipped is None:
            subjects[NODE] = partial(connect, bench, node_shim(bench.programs, running))
        measured = bench.interleave(f"{TASK} of connect", subjects)
    notes = [
        "From the start of the program to the answer to `initialize`, through a gateway with a running agent.",
        "The bytecode of all modules is on the disk, as after an installation from a wheel.",
        *([] if bench.quick else ["The two rows about Python are from its start to its end, without a gateway."]),
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
    """Measure `serve` and its alternatives."""
    with ExitStack() as stack:
        kept = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="kept-"))
        subjects = {"`acp-gateway serve`": partial(serve, bench, bench.relays["ours"])}
        if not bench.quick:
            full = our_gateway(bench.programs, listen="ws", gateway_options={"state_dir": f"{kept}/state"})
            fill(bench, full, SESSIONS)
            subjects[f"`acp-gateway serve` with {SESSIONS:,} stored sessions"] = partial(serve, bench, full)
            peers = [bench.relays[name] for name in PEERS if bench.relays[name].skip is None]
            subjects |= {peer.title: partial(serve, bench, peer) for peer in peers}
        rounds = 1 if bench.quick else bench.rounds
        measured = bench.interleave(f"{TASK} of serve", subjects, rounds=rounds, warm_up=not bench.quick)
    return Section("Start of `serve` until it listens", ("", "time", "memory"), rows(measured), measured.notes())


def fences(bench: Bench) -> Section:
    """Measure the start of an agent without a fence, and with each fence that there is here."""
    means = {"landlock": landlock.abi() > 0, "bubblewrap": bubblewrap.find() is not None}
    subjects = {UNFENCED: partial(start_agent, bench, None)}
    subjects |= {name: partial(start_agent, bench, name) for name, there in means.items() if there}
    rounds = FENCES_PER_ROUND * bench.rounds
    measured = bench.interleave(f"{TASK} of an agent", subjects, rounds=rounds)
    return Section(
        "Start of an agent until its first reply",
        ("", "time"),
        [(name, figure(measured.median(name, "seconds"), "s")) for name in subjects],
        [
            "From before the gateway starts it to its answer to `initialize`; the target is of the medians of pairs.",
            *(f"{name} is not there" for name, there in means.items() if not there),
            *measured.notes(),
        ],
        [Target(f"added by {name}", FENCE_SECONDS, "≤", _added(measured, name), "s") for name in means if means[name]],
    )


def _added(measured: Measured, name: str) -> float | None:
    """Return the median of the time that a fence adds, over the rounds; None without any."""
    pairs = [each for each in measured.rounds if name in each and UNFENCED in each]
    return median(each[name]["seconds"] - each[UNFENCED]["seconds"] for each in pairs) if pairs else None


def start_agent(bench: Bench, fence: str | None) -> dict[str, float]:
    """Measure an agent, as the gateway starts it, until its first answer."""
    with tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="fence-") as folder:
        return trio.run(_start_agent, str(bench.programs.agent), fence, Path(folder))


async def _start_agent(program: str, fence: str | None, folder: Path) -> dict[str, float]:
    work = folder / "work"
    work.mkdir()
    options = FenceOptions(
        value=fence or "off",
        workspaces=[(str(work), True)],
        private=[str(folder / "state")],
        user_home=str(Path.home()),
        scratch=str(folder / "scratch"),
    )
    launch = Launch(
        name="agent",
        command=(program,),
        environment=dict(os.environ),
        cwd=str(work),
        max_message_size=2**20,
        eof_grace=1.0,
        term_grace=1.0,
        fence=None if fence is None else options,
    )
    with Spawner(ProcessRegistry(folder / "processes")) as spawner, trio.fail_after(START_TIMEOUT):
        async with trio.open_nursery() as nursery:
            begun = time.perf_counter()
            agent: Agent = await nursery.start(run_agent, launch, spawner)
            await agent.messages.stream.send(INITIALIZE)
            await agent.messages.receive_batch()
            seconds = time.perf_counter() - begun
            nursery.cancel_scope.cancel()
    return {"seconds": seconds}


def rows(measured: Measured) -> list[tuple[str, str, str]]:
    """Format time and memory of each subject."""
    return [
        (
            subject,
            figure(measured.median(subject, "seconds"), "s"),
            figure(measured.median(subject, "resident"), "B"),
        )
        for subject in measured.subjects
    ]
