"""Replay of a session's history to a client that joins late, from memory and from the disk."""

import shutil
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.bare import ACCEPT_COOLDOWN, BareClient, ResumePoint
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, growth
from benchmarks.relays import Running, our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import LINEAR, count_suspended_histories, suspended_notes, wait_until_idle

TASK: Final = "replay"

SIZES, FEW_SIZES = (1_000, 10_000, 100_000), (1_000, 5_000, 20_000)
"""Updates in a history. The smallest costs next to nothing: it fits into the kernel's socket buffers."""

HELD: Final = 80_000
"""Updates within the default `journal_limit`: 16 MiB hold 83,886 of 200 B."""

LARGE_JOURNAL: Final = 32 << 20
"""Raised `journal_limit` in bytes, for larger histories."""

BATCH: Final = 50
"""Updates per write of the agent when a history is filled."""

TURN: Final = 1_000
"""Updates per turn of a history on the disk."""

RATE: Final = 200_000
"""Minimum updates per second to a reader that keeps up."""

DEFAULT, LARGE, DISK = "as by default", "`journal_limit` raised", "from the disk, after a restart"


def join(bench: Bench, running: Running, count: int) -> dict[str, float]:
    """Fill a history, then measure its replay to a joining client."""
    result = bench.load.run("replay", running.endpoint, count=count, batch=BATCH, size=SIZE)
    wait_until_idle(running)
    if result["replayed"] != count:
        raise ValueError(f"{result['replayed']:,} updates were replayed instead of {count:,}")
    return {"rate": result["replayed"] / result["seconds"], "each": result["seconds"] / result["replayed"]}


def keeping(bench: Bench, state: Path) -> AbstractContextManager[Running]:
    """Run a gateway with `state` as its state directory."""
    options = {"journal_limit": LARGE_JOURNAL, "state_dir": str(state)}
    return our_gateway(bench.programs, listen="tcp", gateway_options=options).running((str(bench.programs.agent),))


def write_down(running: Running, count: int) -> tuple[str, str]:
    """Fill the history of a session; return its id and its epoch."""
    with BareClient(running.endpoint, ResumePoint()) as client:
        client.initialize()
        session = client.open_session()
        for _ in range(count // TURN):
            client.turn(session, TURN, BATCH)
        client.leave()
        return session, client.epoch


def read_back(bench: Bench, state: Path, session: str, epoch: str, count: int) -> dict[str, float]:
    """Recover a session in a restarted gateway, as a client from before the restart that has received nothing yet.

    `session/resume` is used because after `session/load` the agent itself would send the history.
    """
    with ExitStack() as stack:
        # A running gateway changes its state directory, so each round works on a copy.
        copy = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="kept-"))
        shutil.copytree(state, f"{copy}/state")
        running = stack.enter_context(keeping(bench, Path(copy, "state")))
        client = stack.enter_context(BareClient(running.endpoint, ResumePoint()))
        client.initialize()
        begun = time.perf_counter()
        client.recover_session(session, epoch)
        seconds = time.perf_counter() - begun
        # Prompts are replayed as updates too.
        client.expect(count + count // TURN)
        updates = client.updates
        # A connection closed right away delays the next one.
        time.sleep(ACCEPT_COOLDOWN)
    return {"rate": updates / seconds, "each": seconds / updates}


def run(bench: Bench) -> list[Section]:
    """Measure the replay of several sizes, from memory and from the disk."""
    sizes = bench.pick(SIZES, FEW_SIZES)
    agent = (str(bench.programs.agent),)
    with ExitStack() as stack:
        gateway = our_gateway(bench.programs, listen="ws", gateway_options={"journal_limit": LARGE_JOURNAL})
        there = stack.enter_context(gateway.running(agent))
        gateways = [there]
        subjects = {f"{LARGE}, {size:,}": partial(join, bench, there, size) for size in sizes}
        if not bench.quick:
            by_default = stack.enter_context(bench.relays["ours"].running(agent))
            gateways.append(by_default)
            subjects[f"{DEFAULT}, {HELD:,}"] = partial(join, bench, by_default, HELD)
            kept = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="kept-"))
            state = Path(kept, "state")
            with keeping(bench, state) as running:
                session, epoch = write_down(running, max(sizes))
            subjects[f"{DISK}, {max(sizes):,}"] = partial(read_back, bench, state, session, epoch, max(sizes))
        measured = bench.interleave(TASK, subjects, warm_up=not bench.quick)
        suspended = sum(map(count_suspended_histories, gateways))
    return [table(measured, list(subjects), sizes, suspended)]


def table(measured: Measured, subjects: list[str], sizes: tuple[int, int, int], suspended: int) -> Section:
    """Format rates, and the growth of the time with the history."""
    rows = []
    for subject in subjects:
        rate = measured.median(subject, "rate")
        each = measured.median(subject, "each")
        how, _, count = subject.rpartition(", ")
        rows.append((how, count, figure(rate, "/s"), figure(1e6 * each if each else None, "µs")))
    every = {size: measured.median(f"{LARGE}, {size:,}", "each") for size in sizes}
    costs = {size: cost for size, cost in every.items() if cost is not None}
    _, smallest, largest = sizes
    notes = [
        f"Updates of {SIZE} B to a reader that keeps up, from `session/load` to its answer, over a WebSocket.",
        f"`journal_limit` is 16 MiB by default, {HELD:,} such updates; raised, {LARGE_JOURNAL >> 20} MiB.",
    ]
    if f"{DISK}, {largest:,}" in subjects:
        notes.append("From the disk by `session/resume`, as a client recovers after a restart, in lines over TCP.")
    if len(costs) > 1:
        exponent = growth(list(costs), [size * cost for size, cost in costs.items()])
        notes.append(f"The time grows with the power {exponent:.2f} of the history; 1 is linear.")
    targets = [
        Target(f"a history of {largest:,}", RATE, "≥", measured.median(f"{LARGE}, {largest:,}", "rate"), "/s"),
        Target(
            f"time for an update, a history of {largest:,} over one of {smallest:,}",
            LINEAR,
            "≤",
            costs[largest] / costs[smallest] if largest in costs and smallest in costs else None,
        ),
    ]
    if f"{DEFAULT}, {HELD:,}" in subjects:
        rate = measured.median(f"{DEFAULT}, {HELD:,}", "rate")
        targets.insert(1, Target(f"a history of {HELD:,}, {DEFAULT}", RATE, "≥", rate, "/s"))
    notes += [*suspended_notes(suspended), *measured.notes()]
    return Section(
        "Replay of a history",
        ("", "updates", "each second", "an update"),
        rows,
        notes,
        targets,
    )
