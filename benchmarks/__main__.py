"""The command line: run tasks, tell progress on stderr, print the report and write it with the raw values and the plot.

`make bench` and `make bench-quick` run it. Its exit status is 1 where a task failed, or a subject of one. A target that
is missed, or a peer that can't be installed here, is in the report and changes nothing.
"""

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.installing import OUT, PROGRAMS, NotInstallable, install
from benchmarks.load import Load
from benchmarks.machine import machine
from benchmarks.measuring import QUICK_ROUNDS, ROUNDS, Bench, Section, in_a_line
from benchmarks.plot import draw
from benchmarks.relays import relays
from benchmarks.report import Results, as_json, check, markdown
from benchmarks.tasks import (
    fairness,
    fanout,
    growth,
    idle,
    large,
    replay,
    resuming,
    sessions,
    shim,
    soak,
    startup,
    stream,
    trips,
)

Task = Callable[[Bench], list[Section]]

TASKS: Final[Mapping[str, Task]] = {
    each.TASK: each.run
    for each in (
        stream,
        trips,
        large,
        fanout,
        sessions,
        idle,
        replay,
        resuming,
        startup,
        shim,
        fairness,
        growth,
        soak,
    )
}
"""In the order of the report."""


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; the exit status."""
    asked = parse(arguments)
    started = time.monotonic()
    # With an exception, that is, so that what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {line}", file=sys.stderr, flush=True)

    # Before anything of this run is a load itself.
    on = machine()
    try:
        programs = install(PROGRAMS, say=say)
    except NotInstallable as error:
        say(str(error))
        return 1
    bench = Bench(asked.quick, asked.rounds, relays(programs), Load(programs.load), programs, say)
    results = Results(on, command(arguments), asked.rounds, asked.quick, skipped=dict(programs.skipped))
    try:
        run({name: TASKS[name] for name in asked.only}, bench, results)
    finally:
        # Of a run that is interrupted too: it may have taken minutes.
        write(results, asked.out)
    print(markdown(results), flush=True)
    say(f"the results are in {asked.out}")
    return 0 if results.complete else 1


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for: `quick`, `rounds`, `only` (names of tasks), `out`. Exits with 2 where it makes no sense."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="The gateway beside what could be used instead."
    )
    parser.add_argument("--quick", action="store_true", help="under a minute: smaller loads, fewer rounds")
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"{ROUNDS}, or {QUICK_ROUNDS} with --quick")
    parser.add_argument(
        "--only", type=_tasks, default=list(TASKS), metavar="TASK,...", help=f"some of {', '.join(TASKS)}"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help="for the results; build/bench if not given"
    )
    asked = parser.parse_args(arguments)
    if asked.rounds is None:
        asked.rounds = QUICK_ROUNDS if asked.quick else ROUNDS
    return asked


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a number above 0, please")
    return int(text)


def _tasks(text: str) -> list[str]:
    asked = text.split(",")
    if unknown := set(asked) - TASKS.keys():
        raise argparse.ArgumentTypeError(f"no such task: {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    return [name for name in TASKS if name in asked]


def command(arguments: Sequence[str]) -> str:
    """What measures the same again. Where the results went doesn't matter for that, and is nobody's business."""
    asked = parse(arguments)
    plain = parse(["--quick"] * asked.quick)
    if (asked.rounds, asked.only) == (plain.rounds, plain.only):
        return "make bench-quick" if asked.quick else "make bench"
    words = ["--quick"] * asked.quick + ["--rounds", str(asked.rounds)]
    if asked.only != plain.only:
        words += ["--only", ",".join(asked.only)]
    return shlex.join(["python", "-m", "benchmarks", *words])


def run(tasks: Mapping[str, Task], bench: Bench, results: Results) -> None:
    """Run tasks one after the other into `results`. One that fails is told there, and the others go on."""
    results.measured = bench.measured
    results.failed = dict.fromkeys(tasks, "was not run to its end")
    for name, task in tasks.items():
        bench.say(name)
        begun = time.monotonic()
        try:
            sections = task(bench)
            # What can't be written is found now, and costs one task and not the report.
            for section in sections:
                check(section)
        except Exception as error:  # Nothing that goes wrong in it may cost what the others found.
            results.failed[name] = in_a_line(error)
            bench.say(f"{name} failed: {results.failed[name]}")
        else:
            results.sections += sections
            del results.failed[name]
        results.seconds[name] = round(time.monotonic() - begun, 1)
        bench.say(f"{name} took {results.seconds[name]:.1f} s")


def write(results: Results, directory: Path) -> None:
    """The three files, in place of those of an earlier run; no plot where nothing that is plotted was measured."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.md").write_text(markdown(results))
    (directory / "results.json").write_text(as_json(results))
    (directory / "results.svg").unlink(missing_ok=True)
    if panels := [section.panel for section in results.sections if section.panel is not None]:
        draw(panels, directory / "results.svg")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
