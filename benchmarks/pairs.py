"""Compares the speed with that at another commit: `make bench-pairs`, in five minutes.

Gateways of both commits run side by side, with the libraries of this environment, the same agent and the same load.
Each short measurement of one follows the same measurement of the other, in alternating order; the median of the ratios
of these pairs counts. Both are started several times: two processes of one commit differ by some percent.

A ratio is too small if it is below `LEAST`, and more pairs are slower than chance would have it. Then as many pairs are
measured again, twice at most; it fails if all together say the same.
"""

import argparse
import math
import signal
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.bases import NoBase, checked_out, describe, find_base
from benchmarks.installing import OUT, TLS, NotInstallable, Programs, build
from benchmarks.load import Endpoint, Load, LoadFailed
from benchmarks.measuring import Bench
from benchmarks.processes import RelayFailed
from benchmarks.relays import Running, front_gateway, our_gateway, serve_of
from benchmarks.tasks.loads import (
    MEGABYTE,
    EndpointSource,
    TimedLoad,
    echo,
    streaming,
    uploading,
    wait_until_idle,
)

ROOT: Final = Path(__file__).parents[1]
BUILT: Final = OUT / "pairs"
"""Directory of the programs: agent and load."""

LEAST: Final = 0.97
"""Minimum speed, as a multiple of the base's."""

STARTS, PAIRS = 6, 6
"""Starts of both gateways, and pairs of measurements after each."""

CHANCE: Final = 1.3
"""Slower pairs beyond the half, as a multiple of the root of their number, that chance explains in 99 of 100
comparisons: 26 of 36 are needed."""

ATTEMPTS: Final = 3
"""Times that as many pairs are measured while a ratio is too small."""

SECONDS: Final = 0.12
"""Seconds of a measurement, so that what disturbs the machine disturbs both of a pair or a single pair."""

TRIPS: Final = 500
"""Round trips of a measurement."""

DIRECT, HTTP, FRONT = "direct", "http", "front"


class Task(NamedTuple):
    """Something whose speed is compared."""

    title: str
    way: str
    """`DIRECT`, `HTTP` or `FRONT`."""
    load: Callable[[Bench, EndpointSource], TimedLoad]


def _streams(batch: int, size: int | None = None) -> Callable[[Bench, EndpointSource], TimedLoad]:
    options = {} if size is None else {"size": size}
    return lambda bench, endpoint: streaming(bench, endpoint, batch, seconds=SECONDS, **options)


def _uploads(size: int) -> Callable[[Bench, EndpointSource], TimedLoad]:
    return lambda bench, endpoint: uploading(bench, endpoint, size, seconds=SECONDS)


def _trips(bench: Bench, endpoint: EndpointSource) -> TimedLoad:
    def send(count: int) -> Mapping[str, Any]:
        return echo(bench, endpoint, count)

    return TimedLoad(send, lambda result: {"per_s": 1e6 / result["p50_us"]}, SECONDS, TRIPS, count=TRIPS)


TASKS: Final = (
    Task("updates, 1 per write", DIRECT, _streams(1)),
    Task("updates, 50 per write", DIRECT, _streams(50)),
    Task("round trips, p50", DIRECT, _trips),
    Task("1 MB from the agent", DIRECT, _streams(1, MEGABYTE)),
    Task("1 MB to the agent", DIRECT, _uploads(MEGABYTE)),
    Task("5 MB from the agent", DIRECT, _streams(1, 5 * MEGABYTE)),
    Task("5 MB to the agent", DIRECT, _uploads(5 * MEGABYTE)),
    Task("updates over HTTP, 1 per write", HTTP, _streams(1)),
    Task("round trips over HTTP, p50", HTTP, _trips),
    Task("updates through a door, 1 per write", FRONT, _streams(1)),
    Task("round trips through a door, p50", FRONT, _trips),
)


@dataclass
class Pairs:
    """The pairs of measurements of one task, each the base's and ours."""

    speed: list[tuple[float, float]] = field(default_factory=list)
    """Messages a second."""
    processor: list[tuple[float, float]] = field(default_factory=list)
    """Microseconds of a message that the gateway takes, with its deferred writes to the disk."""

    @property
    def speed_ratios(self) -> list[float]:
        """Our speed, as a multiple of the base's."""
        return [ours / theirs for theirs, ours in self.speed]

    @property
    def processor_ratios(self) -> list[float]:
        """The same of messages for each second of a processor."""
        return [theirs / ours for theirs, ours in self.processor]


def compare(bench: Bench, base: Path, now: Path, only: Collection[str]) -> dict[str, Pairs]:
    """Measure tasks by their titles, those that seem too slow more often."""
    found = {title: Pairs() for title in only}
    counts: dict[str, int | None] = {}
    wanted = [task for task in TASKS if task.title in found]
    for attempt in range(ATTEMPTS):
        for start in range(STARTS):
            bench.log(f"attempt {attempt + 1}, start {start + 1} of {STARTS}")
            with _gateways(bench.programs, (base, now), {task.way for task in wanted}) as running:
                for task in wanted:
                    _measure(bench, task, running[task.way], found[task.title], counts)
        wanted = [task for task in wanted if is_slower(found[task.title])]
        if not wanted:
            break
    return found


def is_slower(pairs: Pairs) -> bool:
    """Return True if a task is slower than at the base, or takes more of the processor."""
    return _is_less(pairs.speed_ratios) or _is_less(pairs.processor_ratios)


def _is_less(ratios: Sequence[float]) -> bool:
    slower = sum(ratio < 1 for ratio in ratios)
    return statistics.median(ratios) < LEAST and slower > len(ratios) / 2 + CHANCE * math.sqrt(len(ratios))


@contextmanager
def _gateways(
    programs: Programs, checkouts: Sequence[Path], ways: Collection[str]
) -> Iterator[dict[str, list[Running]]]:
    """Run the gateways of the checkouts, as far as the ways need them."""
    agent = (str(programs.agent),)
    with ExitStack() as stack:
        running: dict[str, list[Running]] = {}
        serves = list(map(serve_of, checkouts))
        if FRONT in ways:
            fronts = [front_gateway(programs, ["node"], serve) for serve in serves]
            running[FRONT] = [stack.enter_context(front.running(agent)) for front in fronts]
        relays = [our_gateway(programs, listen="ws", serve=serve) for serve in serves]
        running[DIRECT] = [stack.enter_context(relay.running(agent)) for relay in relays]
        running[HTTP] = [replace(each, endpoint=replace(each.endpoint, kind="http")) for each in running[DIRECT]]
        yield running


def _measure(bench: Bench, task: Task, running: Sequence[Running], pairs: Pairs, counts: dict[str, int | None]) -> None:
    loads = [task.load(bench, partial(_endpoint, place)) for place in running]
    loads[0].count = counts.get(task.title, loads[0].count)
    # The first measurement of each is only for warming up, and the very first finds the number of messages.
    loads[0]()
    counts[task.title] = loads[1].count = loads[0].count
    loads[1]()
    for number in range(PAIRS):
        speed, processor = [0.0, 0.0], [0.0, 0.0]
        for at in (0, 1) if number % 2 == 0 else (1, 0):
            before = running[at].processor()
            speed[at] = loads[at]()["per_s"]
            wait_until_idle(running[at])
            processor[at] = 1e6 * (running[at].processor() - before) / (loads[at].count or 1)
        pairs.speed.append((speed[0], speed[1]))
        pairs.processor.append((processor[0], processor[1]))


def _endpoint(running: Running) -> Endpoint:
    return running.endpoint


def medians(pairs: Pairs) -> tuple[float, float]:
    """Return the ratios that count: of the speed, and of the processor."""
    return statistics.median(pairs.speed_ratios), statistics.median(pairs.processor_ratios)


def report(found: Mapping[str, Pairs]) -> int:
    """Print the table, and the tasks that are slower; return 1 if there are any."""
    print("| | base | now | speed | processor, base | now | ratio | pairs |\n" + "|---" * 8 + "|")
    for title, pairs in found.items():
        speed = [statistics.median(values) for values in zip(*pairs.speed, strict=True)]
        processor = [statistics.median(values) for values in zip(*pairs.processor, strict=True)]
        ratio, processor_ratio = medians(pairs)
        print(
            f"| {title} | {speed[0]:,.0f}/s | {speed[1]:,.0f}/s | {ratio:.3f} | {processor[0]:.2f} µs "
            f"| {processor[1]:.2f} µs | {processor_ratio:.3f} | {len(pairs.speed)} |"
        )
    slower = [title for title, pairs in found.items() if is_slower(pairs)]
    least = {title: min(medians(pairs)) for title, pairs in found.items()}
    worst = min(least, key=least.__getitem__)
    print(f"\nworst: {least[worst]:.2f} times the base's speed, {worst}")
    if slower:
        print(f"less than {LEAST:g} times as fast as the base: {'; '.join(slower)}", file=sys.stderr)
    return 1 if slower else 0


def main(arguments: Sequence[str]) -> int:
    """Compare, and return the exit code: 1 if something is slower, 2 if nothing can be compared."""
    parser = argparse.ArgumentParser("python -m benchmarks.pairs", description="Speed beside that of another commit.")
    parser.add_argument("base", nargs="?", help="the other commit; the last release if it is not given")
    titles = [task.title for task in TASKS]
    parser.add_argument("--only", nargs="+", metavar="WORDS", default=[""], help=f"tasks: {', '.join(titles)}")
    asked = parser.parse_args(arguments)
    only = [title for title in titles if any(words in title for words in asked.only)]
    if not only:
        parser.error("no task has these words")

    # SIGTERM raises SystemExit, so that the gateways are stopped and the checkout is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def log(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        base = asked.base or find_base(ROOT)
        agent, load = (build(BUILT, name, [], log) for name in ("agent", "load"))
        programs = Programs(BUILT, agent, load, agent, BUILT, BUILT, {TLS: "not measured"})
        with checked_out(ROOT, base) as checkout:
            print(f"base: {describe(ROOT, base)}\n", flush=True)
            return report(compare(Bench(False, 1, {}, Load(load), programs, log), checkout, ROOT, only))
    except (NoBase, NotInstallable, RelayFailed, LoadFailed) as error:
        print(f"no comparison: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
