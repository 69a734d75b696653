"""The cost of attacks for clients at work: the program itself on loopback, attacked by another process.

`make bench-attacks` prints a table, and fails where a client's requests take more than twice the time and more than
five milliseconds in the middle, or where histories and their index take much more of the disk than `history_limit` for
each, or memory is not given back.

A client that is connected over `wss` sends a request every few milliseconds, which the agent answers at once. For each
attack in each round this is measured before it, during it and after it; a ratio is that of the time during it to the
mean of the two others, and the table has the medians of the rounds. The longest stall is the longest of the client's
requests during the attacks of all rounds: nothing kept the loop from it for longer. A newcomer with a right token comes
in over `tcp` ten times a second; the table says how long it waited during the attacks of all rounds, in the middle and
at most. The configuration is the default one. The attacker comes from the same address as the client does, if its name
says nothing else, which is the worst it can do to it, and goes on when it is thrown out.

`make bench-attacks ARGS='"torn lines" flood'` measures the attacks with one of these words in their names;
`ARGS='--rounds 1 …'` is shorter.

On a machine of two processors the client, the agent, the gateway and the attacker are in each other's way, whatever the
gateway does. So attackers are light, bytes made beforehand on bare sockets, the table says how much of one processor
each took, and its first row is not an attack: a loop in a process that keeps one processor busy and touches nothing.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from benchmarks.attackers import CONTROL, HISTORY_LIMIT, RECORDED, STORED, Place, attacks
from benchmarks.installing import PROGRAMS, NotInstallable, build
from benchmarks.processes import LOOK, RelayFailed, output_of, processor_seconds, server
from benchmarks.relays import PROGRAM, SERVE, Scheme, has_tls, toml

ROUNDS: Final = 5
"""Rounds to take the median of, so that one or two that something else disturbed do not count."""

UNDISTURBED, ATTACKED = 0.8, 2.0
"""Seconds for which is measured before and after an attack, and during it."""

SCHEMES: Final[tuple[Scheme, ...]] = ("wss", "ws", "tcp", "tcp+tls")

LOG_LINES: Final = 20
"""Lines of the gateway's log that are shown after a failure."""

LARGEST_RATIO: Final = 2.0
"""Largest ratio of median request times, during an attack to before and after it."""

LARGEST_RATIO_WRITING: Final = 6.0
"""The same while all messages are recorded, which looks through each of them, or while the disk is filled."""

UNNOTICED: Final = 0.005
"""Seconds that a request may take in the middle during an attack, whatever the ratio: a third of a frame."""

LARGEST_GROWTH, LARGEST_REST = 1.2, 64
"""Memory of the gateway after all attacks, at most: times that before them, and so many MB besides."""

LARGEST_DISK: Final = 128 << 20
"""Maximum bytes of the state folder beyond histories and index: what is queued and erased passes through their logs."""


@contextmanager
def running_gateway(directory: Path, **settings: str | int) -> Iterator[Place]:
    """Run a gateway with a token for each of two people, `ann` and `eve`. Raises NotInstallable and RelayFailed."""
    config, log = directory / "config.toml", directory / "log"
    agent = build(PROGRAMS, "agent", [], partial(print, file=sys.stderr))
    output_of(*PROGRAM, "certs", "create", "--host", "127.0.0.1", "--out", str(directory))
    tls = {"cert": f"{directory}/cert.pem", "key": f"{directory}/key.pem"}
    tables: list[tuple[str, dict[str, Any]]] = [
        ("[gateway]", {"state_dir": f"{directory}/state", **settings}),
        ("[agents.benchmark]", {"cwd": str(directory), "command": [str(agent)]}),
        *(("[[listen]]", {"url": f"{scheme}://127.0.0.1:0", **(tls if has_tls(scheme) else {})}) for scheme in SCHEMES),
    ]
    config.write_text("".join(toml({head: options}) for head, options in tables))
    for name in ("ann", "eve"):
        create = ("token", "create", "--config", str(config), "--label", name, "--identity", name)
        (directory / name).touch(0o600)
        (directory / name).write_bytes(output_of(*PROGRAM, *create))
    with server([*SERVE, "--config", str(config)], directory) as started:
        # It listens at the first of them at least.
        while len(urls := re.findall(r"listening on (\S+)", log.read_text())) < len(SCHEMES):
            time.sleep(LOOK)
        try:
            yield Place(str(directory), {url.split(":")[0]: url for url in urls}, started.pid)
        except BaseException:
            print(
                "The end of the gateway's log:", *log.read_text().splitlines()[-LOG_LINES:], sep="\n", file=sys.stderr
            )
            raise


# What is measured


@dataclass(frozen=True)
class Times:
    """Of the requests in one stretch of time, in seconds."""

    p50: float
    p99: float
    longest: float


@dataclass(frozen=True)
class Observed:
    """One attack in one round."""

    before: Times
    during: Times
    after: Times
    entries: list[float]
    """Seconds for which the newcomer waited, each time, during it."""
    rate: float
    """Actions of the attacker in a second."""
    gateway: float
    attacker: float
    """Of one processor."""

    def ratio(self, which: Callable[[Times], float]) -> float:
        """Return the ratio of the times during the attack to those before and after it."""
        return which(self.during) / ((which(self.before) + which(self.after)) / 2)


def p50(times: Times) -> float:
    """Half of the requests took no longer."""
    return times.p50


def p99(times: Times) -> float:
    """One of a hundred took longer."""
    return times.p99


@contextmanager
def process(place: Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process of this benchmark, once it is ready."""
    told = json.dumps([place.directory, place.urls, place.pid])
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.attackers", told, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            if answer(started) != "ready":
                sys.exit(f"{arguments}: it has ended")
            yield started
        finally:
            started.kill()


def answer(started: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert started.stdout is not None
    return started.stdout.readline().strip()


def forget_peak(pid: int) -> None:
    """Reset the most memory that a process has had, where the system lets this user do so; else it is that
    since the gateway's start."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except PermissionError:
        pass


def memory(pid: int, kind: str) -> int:
    """The memory that a process has, `VmRSS`, or has had at most, `VmHWM`, in MB."""
    (kilobytes,) = re.findall(rf"{kind}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) // 1024


def on_disk(place: Place) -> int:
    """Return the bytes of the files in the gateway's state folder."""
    size = 0
    for file in Path(place.directory, "state").iterdir():
        try:
            size += file.stat().st_size
        except FileNotFoundError:
            pass
    return size


@dataclass(frozen=True)
class Honest:
    """The processes of those who work."""

    client: subprocess.Popen[str]
    newcomer: subprocess.Popen[str]

    def work(self, seconds: float) -> tuple[Times, list[float]]:
        """Let them work: the times of the client's requests, and for how long the newcomer waited each time."""
        both = (self.client, self.newcomer)
        for each in both:
            assert each.stdin is not None
            each.stdin.write(f"{seconds}\n")
            each.stdin.flush()
        times, entries = (sorted(json.loads(answer(each) or sys.exit("a client was thrown out"))) for each in both)
        return Times(statistics.median(times), times[len(times) * 99 // 100], times[-1]), entries


def observe(place: Place, honest: Honest, name: str) -> Observed:
    """One attack, and what was before and after it."""
    before, _ = honest.work(UNDISTURBED)
    with process(place, name) as attacker:
        pids = place.pid, attacker.pid
        begun, had = time.perf_counter(), [processor_seconds(pid) for pid in pids]
        during, entries = honest.work(ATTACKED)
        took = time.perf_counter() - begun
        gateway, attacking = ((processor_seconds(pid) - start) / took for pid, start in zip(pids, had, strict=True))
        attacker.terminate()
        count = int(answer(attacker))
    # What the gateway has to do about its end is part of the attack no more.
    time.sleep(0.3)
    after, _ = honest.work(UNDISTURBED)
    return Observed(before, during, after, entries, count / took, gateway, attacking)


def is_wanted(name: str, parts: Sequence[str]) -> bool:
    """Return True for an attack with one of these parts in its name, and for all if there are none."""
    return not parts or any(part in name for part in parts)


def kind_of(name: str) -> str:
    """Return the suffix in the name of an attack that tells which gateway it needs."""
    return next((kind for kind in (RECORDED, STORED) if name.endswith(kind)), "")


def measure(only: Sequence[str], rounds: int, out: TextIO, *, kind: str) -> bool:
    """Print the table of the attacks whose names end with `kind`; return whether all was well."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        settings: dict[str, str | int] = {}
        if kind == RECORDED:
            settings = {"record_dir": f"{directory}/recordings"}
        elif kind == STORED:
            settings = {"history_limit": HISTORY_LIMIT, "history_limit_per_identity": HISTORY_LIMIT}
        place = stack.enter_context(running_gateway(Path(directory), **settings))
        names = [name for name in attacks(place) if kind_of(name) == kind and is_wanted(name, only)]
        if not names:
            return True
        seen: dict[str, list[Observed]] = {name: [] for name in names}
        grown = dict.fromkeys(seen, 0)
        largest = dict.fromkeys(seen, 0)
        with process(place, "work") as client, process(place, "come") as newcomer:
            honest = Honest(client, newcomer)
            honest.work(UNDISTURBED)
            at_first = memory(place.pid, "VmRSS")
            for _ in range(rounds):
                for name, observed in seen.items():
                    forget_peak(place.pid)
                    had = memory(place.pid, "VmRSS")
                    observed.append(observe(place, honest, name))
                    grown[name] = max(grown[name], memory(place.pid, "VmHWM") - had)
                    largest[name] = max(largest[name], on_disk(place))
            at_last = memory(place.pid, "VmRSS")
        heads = ["attack", "p50 else", "p50", "ratio", "p99 ratio", "longest stall", "newcomer p50", "newcomer max"]
        heads += ["each second", "gateway", "attacker", "memory", "disk"]
        print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", file=out)
        fine, largest_ratio = True, LARGEST_RATIO_WRITING if kind else LARGEST_RATIO
        for name, observed in seen.items():

            def median(value: Callable[[Observed], float], among: list[Observed] = observed) -> float:
                return statistics.median(map(value, among))

            entries = [entry for each in observed for entry in each.entries]
            ratio = median(lambda each: each.ratio(p50))
            during = median(lambda each: each.during.p50)
            fine = fine and (name == CONTROL or ratio <= largest_ratio or during <= UNNOTICED)
            fine = fine and (kind != STORED or largest[name] <= 2 * HISTORY_LIMIT + LARGEST_DISK)
            cells = (
                name,
                f"{1000 * median(lambda each: (each.before.p50 + each.after.p50) / 2):.2f} ms",
                f"{1000 * during:.2f} ms",
                f"{ratio:.2f}",
                f"{median(lambda each: each.ratio(p99)):.2f}",
                f"{1000 * max(each.during.longest for each in observed):.0f} ms",
                f"{1000 * statistics.median(entries):.1f} ms",
                f"{1000 * max(entries):.0f} ms",
                "" if name == CONTROL else f"{median(lambda each: each.rate):,.0f}",
                f"{100 * median(lambda each: each.gateway):.0f} %",
                f"{100 * median(lambda each: each.attacker):.0f} %",
                f"+{grown[name]} MB",
                f"{largest[name] / 2**20:.0f} MiB" + (f" of 2 x {HISTORY_LIMIT / 2**20:.0f}" if kind == STORED else ""),
            )
            print("| " + " | ".join(cells) + " |", file=out, flush=True)
        print(
            f"\nThe gateway's memory: {at_first} MB at first, {at_last} MB at last. Processors: {os.cpu_count()}",
            file=out,
        )
        # Histories of live sessions are in memory, within `memory_limit`.
        return fine and (kind == STORED or at_last <= LARGEST_GROWTH * at_first + LARGEST_REST)


def main() -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser("python -m benchmarks.attacks", description="What attacks cost those who work.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"{ROUNDS} if not given; 1 is short")
    parser.add_argument("only", nargs="*", help="parts of the names of the attacks that are wanted; all if not given")
    asked = parser.parse_args()
    try:
        fine = [measure(asked.only, max(asked.rounds, 1), sys.stdout, kind=kind) for kind in ("", RECORDED, STORED)]
        return 0 if all(fine) else 1
    except (NotInstallable, RelayFailed) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
