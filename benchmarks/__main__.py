"""Command line of the benchmark: run tasks, log progress to stderr, print the report, write report, data and plot.

`make bench` and `make bench-quick` run it. The exit status is 2 if a task, or a subject of one, failed. Missed targets
are a line at the end; they and peers that can't be installed are in the report and don't change the exit status.
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
from benchmarks.measuring import QUICK_ROUNDS, ROUNDS, Bench, Section, single_line
from benchmarks.plot import draw
from benchmarks.relays import relays
from benchmarks.report import FAILED, Results, as_json, check, markdown, summary
from benchmarks.tasks import (
    fairness,
    fanout,
    growth,
    histories,
    http,
    idle,
    large,
    nodes,
    page,
    replay,
    resuming,
    roaming,
    searching,
    sessions,
    shim,
    soak,
    startup,
    stream,
    trips,
    versions,
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
        http,
        nodes,
        versions,
        replay,
        histories,
        searching,
        resuming,
        roaming,
        page,
        startup,
        shim,
        fairness,
        growth,
        soak,
    )
}
"""Tasks by name, in the order of the report."""


def main(arguments: Sequence[str]) -> int:
    """Run the requested tasks and return the exit status."""
    asked = parse(arguments)
    started = time.monotonic()
    # SIGTERM raises SystemExit, so that `finally` blocks stop the child processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def log(line: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {line}", file=sys.stderr, flush=True)

    # Read before this run adds to the load average.
    on = machine()
    try:
        programs = install(PROGRAMS, log=log)
    except NotInstallable as error:
        log(str(error))
        return FAILED
    bench = Bench(asked.quick, asked.rounds, relays(programs), Load(programs.load), programs, log)
    results = Results(on, command(arguments), asked.rounds, asked.quick, skipped=dict(programs.skipped))
    try:
        run({name: TASKS[name] for name in asked.only}, bench, results)
    finally:
        # An interrupted run may have taken minutes, so its results are written too.
        write(results, asked.out)
    print(markdown(results), flush=True)
    for line in summary(results):
        log(line)
    log(f"results written to {asked.out}")
    return results.exit_status


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments: `quick`, `rounds`, `only` (names of tasks), `out`. Exits with 2 if they are invalid."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="Benchmark the gateway against its alternatives."
    )
    parser.add_argument("--quick", action="store_true", help="smaller loads and fewer rounds; takes under a minute")
    parser.add_argument(
        "--rounds",
        type=_positive,
        metavar="N",
        help=f"rounds per task (default: {ROUNDS}, or {QUICK_ROUNDS} with --quick)",
    )
    parser.add_argument(
        "--only",
        type=_tasks,
        default=list(TASKS),
        metavar="TASK,...",
        help=f"tasks to run (default: all), of {', '.join(TASKS)}",
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help="directory of the results (default: build/bench)"
    )
    asked = parser.parse_args(arguments)
    if asked.rounds is None:
        asked.rounds = QUICK_ROUNDS if asked.quick else ROUNDS
    return asked


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return int(text)


def _tasks(text: str) -> list[str]:
    asked = text.split(",")
    if unknown := set(asked) - TASKS.keys():
        raise argparse.ArgumentTypeError(f"unknown task: {', '.join(sorted(unknown))}; choose from {', '.join(TASKS)}")
    return [name for name in TASKS if name in asked]


def command(arguments: Sequence[str]) -> str:
    """Return the command that repeats the measurement, without `--out`: the report contains no paths of the machine."""
    asked = parse(arguments)
    plain = parse(["--quick"] * asked.quick)
    if (asked.rounds, asked.only) == (plain.rounds, plain.only):
        return "make bench-quick" if asked.quick else "make bench"
    words = ["--quick"] * asked.quick + ["--rounds", str(asked.rounds)]
    if asked.only != plain.only:
        words += ["--only", ",".join(asked.only)]
    return shlex.join(["python", "-m", "benchmarks", *words])


def run(tasks: Mapping[str, Task], bench: Bench, results: Results) -> None:
    """Run tasks one after the other and add their sections to `results`. A failed task does not end the others."""
    results.measured = bench.measured
    results.failed = dict.fromkeys(tasks, "did not finish")
    for name, task in tasks.items():
        bench.log(name)
        begun = time.monotonic()
        try:
            sections = task(bench)
            # Checked here, a section that can't be serialized fails one task instead of the whole report.
            for section in sections:
                check(section)
        except Exception as error:  # No failure of one task may lose the results of the others.
            results.failed[name] = single_line(error)
            bench.log(f"{name} failed: {results.failed[name]}")
        else:
            results.sections += sections
            del results.failed[name]
        results.seconds[name] = round(time.monotonic() - begun, 1)
        bench.log(f"{name} took {results.seconds[name]:.1f} s")


def write(results: Results, directory: Path) -> None:
    """Write report, raw values and plot in place of an earlier run's. Without any panel there is no plot."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.md").write_text(markdown(results))
    (directory / "results.json").write_text(as_json(results))
    (directory / "results.svg").unlink(missing_ok=True)
    if panels := [section.panel for section in results.sections if section.panel is not None]:
        draw(panels, directory / "results.svg")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
