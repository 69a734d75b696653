"""A session's history for somebody who joins late: how fast it is replayed, from memory and from the disk."""

import shutil
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.bare import OWED, Bare, Place
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target, growth
from benchmarks.relays import Running, our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import LINEAR, histories_given_up, notes_on, rest

TASK: Final = "replay"

SIZES, FEW_SIZES = (1_000, 10_000, 100_000), (1_000, 5_000, 20_000)
"""Updates in a history. The first is as good as free: what it takes is what the system's own buffers have room for."""

HELD: Final = 80_000
"""Updates that a history of the default `journal_limit` has room for: 16 MiB are 83,886 of 200 B."""

LARGE_JOURNAL: Final = 32 << 20
"""Bytes of `journal_limit` where more are to be replayed than that."""

BATCH: Final = 50
"""Updates in each write of the agent that fills a history."""

TURN: Final = 1_000
"""Updates of each turn in a history on the disk."""

RATE: Final = 200_000
"""Updates in a second to a reader that keeps up."""

DEFAULT, LARGE, DISK = "as by default", "`journal_limit` raised", "from the disk, after a restart"


def join(bench: Bench, running: Running, count: int) -> dict[str, float]:
    """Fill a history, and have a client join and be given it."""
    told = bench.load.run("replay", running.where, count=count, batch=BATCH, size=SIZE)
    rest(running)
    if told["replayed"] != count:
        raise ValueError(f"{told['replayed']:,} updates were replayed instead of {count:,}")
    return {"rate": told["replayed"] / told["seconds"], "each": told["seconds"] / told["replayed"]}


def keeping(bench: Bench, state: Path) -> AbstractContextManager[Running]:
    """A gateway that keeps what it has in that folder."""
    options = {"journal_limit": LARGE_JOURNAL, "state_dir": str(state)}
    return our_gateway(bench.programs, listen="tcp", gateway_options=options).running((str(bench.programs.agent),))


def write_down(running: Running, count: int) -> tuple[str, str]:
    """Fill the history of a session: its id, and its epoch."""
    with Bare(running.where, Place()) as client:
        client.initialize()
        session = client.open_session()
        for _ in range(count // TURN):
            client.turn(session, TURN, BATCH)
        client.leave()
        return session, client.epoch


def read_back(bench: Bench, state: Path, session: str, epoch: str, count: int) -> dict[str, float]:
    """Recover a session of before in a gateway that has just been started: what a client does that was there, here one
    that has seen nothing. For `session/load` the history would be the agent's own."""
    with ExitStack() as stack:
        # To have it open changes what is kept.
        copy = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="kept-"))
        shutil.copytree(state, f"{copy}/state")
        running = stack.enter_context(keeping(bench, Path(copy, "state")))
        client = stack.enter_context(Bare(running.where, Place()))
        client.initialize()
        begun = time.perf_counter()
        client.recover_session(session, epoch)
        seconds = time.perf_counter() - begun
        # Each prompt is an update as well, for whoever has not made it.
        client.expect(count + count // TURN)
        updates = client.updates
        # Who leaves at once has the next one wait.
        time.sleep(OWED)
    return {"rate": updates / seconds, "each": seconds / updates}


def run(bench: Bench) -> list[Section]:
    """Measure replays of several sizes, from memory and from the disk."""
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
        given_up = sum(map(histories_given_up, gateways))
    return [table(measured, list(subjects), sizes, given_up)]


def table(measured: Measured, subjects: list[str], sizes: tuple[int, int, int], given_up: int) -> Section:
    """Rates, and how the time grows with the history."""
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
    notes += [*notes_on(given_up), *measured.notes()]
    return Section(
        "Replay of a history",
        ("", "updates", "each second", "an update"),
        rows,
        notes,
        targets,
    )
