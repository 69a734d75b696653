"""Large histories: a start with gigabytes of them on the disk, and joining a session of a million updates."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession
from benchmarks.load import SIZE
from benchmarks.measuring import Bench, Measured, Section, Target
from benchmarks.relays import our_gateway
from benchmarks.report import figure
from benchmarks.tasks import replay, startup
from benchmarks.tasks.loads import LINEAR

TASK: Final = "histories"

STORED, FEW_STORED = (10**8, 5 * 10**8, 2 * 10**9), (10**7, 3 * 10**7, 10**8)
"""Bytes of histories on the disk."""

SESSION_SIZE: Final = 16_000_000
"""Bytes of a history, nearly as many as `journal_limit` allows."""

TURN: Final = 1_000
"""Updates of a turn."""

UPDATES, FEW_UPDATES = (10_000, 100_000, 1_000_000), (1_000, 5_000, 20_000)
"""Updates of a session that is joined."""

JOURNAL_LIMIT: Final = 256 << 20
"""Bytes that hold a million of them."""

MOST_GROWTH: Final = 1.5
"""Maximum time of a start with the largest histories, as a multiple of one with the smallest: they are not read."""

ROUNDS: Final = 3


def run(bench: Bench) -> list[Section]:
    """Measure starts with histories on the disk, and joining a session."""
    return [starts(bench), joining(bench)]


def starts(bench: Bench) -> Section:
    """Measure `serve` until it listens, with histories on the disk."""
    sizes = bench.pick(STORED, FEW_STORED)
    with ExitStack() as stack:
        subjects = {}
        for size in sizes:
            kept = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.programs.directory, prefix="kept-"))
            fill(Path(kept, "state", "sessions.db"), size)
            options = {"state_dir": f"{kept}/state", "history_limit_per_identity": 4 << 30}
            gateway = our_gateway(bench.programs, listen="ws", gateway_options=options)
            subjects[figure(size, "B")] = partial(startup.serve, bench, gateway)
        measured = bench.interleave(f"{TASK}, start", subjects, rounds=min(ROUNDS, bench.rounds))
    smallest, *_, largest = subjects
    return Section(
        "Start of `serve` with histories on the disk",
        ("histories", "time", "memory"),
        startup.rows(measured),
        [f"Sessions with {SESSION_SIZE / 1e6:g} MB of updates of {SIZE} B each.", *measured.notes()],
        [
            Target(
                "time with the largest over the smallest",
                MOST_GROWTH,
                "≤",
                measured.ratio(largest, smallest, "seconds"),
            )
        ],
    )


def fill(path: Path, size: int) -> None:
    """Make a file of sessions with histories of `size` bytes together."""
    updates = SESSION_SIZE // SIZE
    with closing(Database(path, 2 * SESSION_SIZE)) as file:
        for key in range(1, max(size // SESSION_SIZE, 1) + 1):
            with file.transaction():
                now = time.time()
                about = key, "benchmark", f"s{key}", "ann", "/", None, None, now, now, "e"
                file.put_session(StoredSession(*about, position=updates))
                file.histories.replace(key, StoredJournal("e", updates, truncated=False, runs=list(runs(updates))))


def runs(updates: int) -> Iterator[StoredRun]:
    """Yield turns with so many updates together."""
    numbers = count()
    for begin in range(0, updates, TURN):
        messages = [b'{"n":%d,"text":"%b"}' % (next(numbers), b"x" * SIZE) for _ in range(min(TURN, updates - begin))]
        yield StoredRun([message[: SIZE - 2] + b'"}' for message in messages], ends_turn=True)


def joining(bench: Bench) -> Section:
    """Measure `session/load` of a session that is open, by its number of updates."""
    numbers = bench.pick(UPDATES, FEW_UPDATES)
    gateway = our_gateway(bench.programs, listen="ws", gateway_options={"journal_limit": JOURNAL_LIMIT})
    with gateway.running((str(bench.programs.agent),)) as running:

        def measure(number: int) -> dict[str, float]:
            joined = replay.join(bench, running, number)
            return joined | {"seconds": number * joined["each"], "resident": float(running.resident())}

        subjects = {f"{number:,}": partial(measure, number) for number in numbers}
        measured = bench.interleave(f"{TASK}, joining", subjects, rounds=min(ROUNDS, bench.rounds))
    smallest, *_, largest = subjects
    return Section(
        "Joining a session by its updates",
        ("updates", "time", "each second", "the gateway's memory then"),
        [row(measured, subject) for subject in subjects],
        [
            f"Updates of {SIZE} B, by `session/load` of a session that is open, with `journal_limit` raised.",
            "The memory includes the histories of the rounds before.",
            *measured.notes(),
        ],
        [
            Target(
                "time for an update, the largest session over the smallest",
                LINEAR,
                "≤",
                measured.ratio(largest, smallest, "each"),
            )
        ],
    )


def row(measured: Measured, subject: str) -> tuple[str, str, str, str]:
    """Format what was measured of a session."""
    return (
        subject,
        figure(measured.median(subject, "seconds"), "s"),
        figure(measured.median(subject, "rate"), "/s"),
        figure(measured.median(subject, "resident"), "B"),
    )
