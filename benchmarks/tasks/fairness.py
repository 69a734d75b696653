"""Fairness: how long the round trips of one client take while another one is as busy as it can be.

Two processors are few for a gateway, its agents, a client and whoever floods it: these are in each other's way whatever
the gateway does. So the last rows are no floods of the gateway: they show what other work beside it costs the same
client.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Final

from benchmarks.load import TIMEOUT
from benchmarks.measuring import Bench, Section, Subject, Target
from benchmarks.processes import output_of
from benchmarks.relays import PROGRAM
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    EVERY,
    MEGABYTE,
    PERCENTILES,
    Side,
    Way,
    known,
    meanwhile,
    percentiles,
    rest,
    steady_echo,
    streaming,
    uploading,
)

TASK: Final = "fairness"

UNDISTURBED, BUSY = "undisturbed", "control: two busy processes"

MOST_RATIO: Final = 3.0
"""How many times as long the slowest hundredth may take during a flood."""

REQUESTS: Final = 9000
"""Small requests of one connection of the flood; below half of what an identity may send at once, past which it is held
up by the limit, and the flood is over."""

WINDOW: Final = 100
"""Such requests that are under way at a time."""

SMALL: Final = 200
"""Bytes of such a request."""

ROUNDS, QUICK_ROUNDS = 3, 2

COUNT, QUICK_COUNT = 200, 60
"""Round trips of a measurement: two of them are a hundredth, in a quick run less than one."""

Beside = Callable[[], AbstractContextManager[object]]
"""What goes on while it is measured."""


def run(bench: Bench) -> list[Section]:
    """One table."""
    names = ("ours", "c-relay", "c-relay-ws")
    rounds = min(bench.pick(ROUNDS, QUICK_ROUNDS), bench.rounds)
    count = bench.pick(COUNT, QUICK_COUNT)
    with Side(bench, known(bench, names)) as side:
        other = _another_identity(side)
        floods, controls = _floods(bench, side.way("ours"), other), _controls(bench, side)

        def subject(beside: Beside) -> Subject:
            def measure() -> Mapping[str, float]:
                # The flood must not wait for the gateway, and nobody for another token.
                other()
                with beside():
                    told = percentiles(steady_echo(bench, side.way("ours"), count))
                # What a flood has left to be done is no part of what comes next.
                rest(side["ours"])
                return told

            return measure

        subjects = {UNDISTURBED: ExitStack, **floods, **controls}
        measured = bench.interleave(
            TASK,
            {name: subject(beside) for name, beside in subjects.items()},
            rounds=rounds,
        )
    rows = [
        [
            name,
            *(figure(measured.median(name, metric), "µs") for metric in PERCENTILES),
            *(
                "" if name == over else figure(measured.ratio(name, over, metric), "x")
                for over, metric in ((UNDISTURBED, "p50_us"), (UNDISTURBED, "p99_us"), (BUSY, "p99_us"))
            ),
        ]
        for name in subjects
    ]
    return [
        Section(
            "Round trips of one client, while another floods the gateway",
            ("what goes on beside it", "p50", "p99", "p50 against undisturbed", "p99", "p99 against busy processors"),
            rows,
            notes=[
                f"{count} requests, one every {EVERY / 1000:g} ms; those held up count from when they were due.",
                "Two clients of one identity have one agent, which answers between two writes; another has its own.",
                f"Small requests: {SMALL} bytes, {WINDOW} under way, on a further connection after each {REQUESTS:,}.",
                "One that went on would be held up by the limit of messages_per_second, and be no flood any more.",
                *(["Controls: processes that only count, or updates through the relay in C."] if controls else []),
                f"{rounds} rounds.",
                *side.notes(),
                *measured.notes(),
            ],
            targets=[
                Target(f"p99 against undisturbed: {name}", MOST_RATIO, "≤", measured.ratio(name, UNDISTURBED, "p99_us"))
                for name in floods
            ],
        )
    ]


def _floods(bench: Bench, same: Way, other: Way) -> dict[str, Beside]:
    """What another client does to the gateway, the same person's or another's."""
    seconds = bench.pick(0.4, 0.2)
    stream = partial(streaming, bench, seconds=seconds)
    floods: dict[str, Callable[[], object]] = {}
    for whose, way in (("another identity", other), ("the same identity", same)):
        floods[f"updates, 50 per write, {whose}"] = stream(way, 50)
        if not bench.quick:
            floods[f"updates, 1 per write, {whose}"] = stream(way, 1)
            floods[f"messages of 1 MB to the agent, {whose}"] = uploading(bench, way, MEGABYTE, seconds=seconds)
        floods[f"small requests, {whose}"] = partial(_request_much, bench, way)
        if bench.quick:
            break
    return {name: partial(meanwhile, flood) for name, flood in floods.items()}


def _request_much(bench: Bench, way: Way) -> None:
    bench.load.run("upload", way(), TIMEOUT, count=REQUESTS, size=SMALL, window=WINDOW)


def _another_identity(side: Side) -> Way:
    """To the same gateway as somebody else."""

    @cache
    def token() -> str:
        create = ("token", "create", "--config", str(side["ours"].directory / "config.toml"), "--label", "other")
        return output_of(*PROGRAM, *create, "--identity", "other").decode().strip()

    return lambda: replace(side["ours"].where, token=token())


def _controls(bench: Bench, side: Side) -> dict[str, Beside]:
    """What the processors being busy comes to, for which a quick run has no time."""
    if bench.quick:
        return {}
    controls: dict[str, Beside] = {BUSY: partial(_busy, 2), "control: a busy process": partial(_busy, 1)}
    for name in side.relays:
        if name != "ours":
            flood = streaming(bench, side.way(name), 50, seconds=0.4)
            controls[f"control: updates, 50 per write, through {side.relays[name].title}"] = partial(meanwhile, flood)
    return controls


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    """Processes that count, and touch nothing."""
    with ExitStack() as stack:
        for _ in range(processes):
            counting = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(counting.kill)
        yield
