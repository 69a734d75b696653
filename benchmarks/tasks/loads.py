"""Building blocks of tasks: pools of running relays, loads of a set duration, metrics of their results."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from benchmarks.load import SIZE, TIMEOUT, Endpoint
from benchmarks.measuring import Bench, Measured, Subject
from benchmarks.processes import RelayFailed
from benchmarks.relays import Relay, Running

MEGABYTE: Final = 1_000_000

WRITES: Final = {1: "1 per write", 50: "50 per write"}
"""Updates per write of the agent: one, as agents write, and one or two pages, which shows the cost per line instead of
the cost per wake-up."""

LINEAR: Final = 1.3
"""Maximum cost of a unit at the largest size, as a multiple of its cost at the smallest."""

AT_ONCE: Final = 24
"""Concurrent handshakes, below `handshakes_per_address`: beyond it, the gateway closes the oldest."""

MOST: Final = 2_000_000
"""Maximum updates of one measurement."""

MOST_BYTES: Final = 1_000_000_000

WINDOW: Final = 4
"""Large requests in flight at a time, so that throughput and not latency is measured."""

EVERY: Final = 5_000
"""Microseconds between requests of a client that sends at a fixed rate (an open loop)."""

PERCENTILES: Final = ("p50_us", "p99_us")

BUSY: Final = 0.9
"""Share of the time above which a busy load generator may be the bottleneck."""

SETTLING: Final = 0.2
"""Seconds until a load is running: its process, its connection, its agent."""

IDLE_CPU, POLL_INTERVAL, POLLS = 0.01, 0.07, 100
"""CPU seconds that an idle gateway uses at most between two polls, seconds between polls, and their maximum number.
Ours batches writes to the disk for 0.05 seconds, so polls are further apart than that."""

INDEX_DELAY: Final = 1.3
"""Seconds from the end of a turn after which our gateway writes its texts to the index."""

STORAGE_SUSPENDED: Final = "more is to be written than can be"
"""Part of our gateway's log message when the disk can't keep up and it stops storing a session's history."""

EndpointSource = Callable[[], Endpoint]
"""Returns the endpoint of a relay, and starts the relay if needed."""


# Relays


class RelayPool:
    """Relays that are started on first use and run until the end of the block.

    A relay that does not start fails only the measurement that uses it.
    """

    def __init__(self, bench: Bench, relays: Iterable[Relay]) -> None:
        self.relays = {relay.name: relay for relay in relays if relay.skip is None}
        """Relays that can run on this machine; the report lists skipped ones."""
        self._log = bench.log
        self._agent = (str(bench.programs.agent),)
        self._running: dict[str, tuple[Running, ExitStack]] = {}
        self._suspended = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self._running):
            self.stop(name)

    def __getitem__(self, name: str) -> Running:
        """Return a running relay; start it if needed."""
        if name not in self._running:
            stack = ExitStack()
            self._running[name] = (stack.enter_context(self.relays[name].running(self._agent)), stack)
        return self._running[name][0]

    def stop(self, name: str) -> None:
        """Stop a relay. Its next use starts a new one, without state."""
        running, stack = self._running.pop(name)
        self._suspended += count_suspended_histories(running)
        try:
            stack.close()
        except RelayFailed as error:
            # It ended unexpectedly; the measurement through it has failed already.
            self._log(str(error))

    def endpoint(self, name: str) -> EndpointSource:
        """Return a function that returns a relay's endpoint."""
        return lambda: self[name].endpoint

    def notes(self) -> list[str]:
        """Return notes on the relays stopped so far, for `Section.notes`."""
        return suspended_notes(self._suspended)


def select_relays(bench: Bench, names: Iterable[str]) -> list[Relay]:
    """Return relays by name, without unknown ones."""
    return [bench.relays[name] for name in names if name in bench.relays]


def count_suspended_histories(running: Running) -> int:
    """Count how often a gateway logged that it stopped storing the histories of sessions."""
    if not running.pid:
        return 0
    return (running.directory / "log").read_text(errors="replace").count(STORAGE_SUSPENDED)


def suspended_notes(suspended: int) -> list[str]:
    """Return that count as a line for `Section.notes`: without the writes to the disk, the figures are too good."""
    if not suspended:
        return []
    return [f"**Histories were not stored**: our log says {suspended:,} times that {STORAGE_SUSPENDED}."]


def wait_until_idle(running: Running) -> None:
    """Wait until a gateway is idle, so that its deferred writes to the disk do not disturb the next measurement."""
    before = running.processor()
    for _ in range(POLLS):
        time.sleep(POLL_INTERVAL)
        if (now := running.processor()) - before <= IDLE_CPU:
            return
        before = now


def wait_until_indexed(running: Running) -> None:
    """Wait until a gateway's index has the ended turns as well, so that its work is in no measurement."""
    time.sleep(INDEX_DELAY)
    wait_until_idle(running)


def measure_and_wait(pool: RelayPool, name: str, measure: Subject) -> Mapping[str, float]:
    """Measure, then wait until our gateway is idle, so that its deferred work does not disturb the next measurement."""
    metrics = measure()
    if name.startswith("ours"):
        wait_until_indexed(pool[name])
    return metrics


# Loads


@dataclass
class TimedLoad:
    """A load of about a given duration, on any machine and through any relay.

    The first call calibrates the number of messages, which serves as warm-up too.
    """

    send: Callable[[int], Mapping[str, Any]]
    """Sends a number of messages; its result has the duration in `seconds`."""
    metrics: Callable[[Mapping[str, Any]], Mapping[str, float]]
    """Makes metrics of the result of `send`."""
    seconds: float
    first: int
    """Number of messages that calibration starts with; also the minimum."""
    step: int = 1
    """The number of messages is a multiple of it."""
    most: int = MOST
    count: int | None = None
    """Number of messages; None until calibrated."""

    def __call__(self) -> Mapping[str, float]:
        """Measure."""
        if self.count is None:
            self.count = self._calibrate()
        return self.metrics(self.send(self.count))

    def _calibrate(self) -> int:
        count = self.first
        # The first load may include the start of the relay and its agent, so its duration is ignored.
        self.send(count)
        while (took := float(self.send(count)["seconds"])) < self.seconds / 4 and count < self.most:
            count = min(count * 4, self.most)
        enough = round(count * self.seconds / took / self.step) * self.step
        return max(min(enough, self.most // self.step * self.step), self.first)


def streaming(
    bench: Bench, endpoint: EndpointSource, batch: int, *, seconds: float, size: int = SIZE, **options: Any
) -> TimedLoad:
    """Return a stream of updates to one client; `options` go to the load generator."""

    def send(count: int) -> Mapping[str, Any]:
        return bench.load.run("stream", endpoint(), TIMEOUT, count=count, batch=batch, size=size, **options)

    # Calibrate with about as many bytes whatever the size of updates.
    first = batch * max(2000 * SIZE // size // batch, 4)
    return TimedLoad(send, rates, seconds, first, batch, MOST * SIZE // size)


def uploading(bench: Bench, endpoint: EndpointSource, size: int, *, seconds: float) -> TimedLoad:
    """Return a load of requests of `size` bytes each, which the agent answers at once."""

    def send(count: int) -> Mapping[str, Any]:
        return bench.load.run("upload", endpoint(), TIMEOUT, count=count, size=size, window=WINDOW)

    return TimedLoad(send, rates, seconds, first=WINDOW, most=max(MOST_BYTES // size, 1))


def echo(bench: Bench, endpoint: EndpointSource, count: int, **options: Any) -> Mapping[str, Any]:
    """Measure `count` round trips, one after the other; `options` go to the load generator."""
    return bench.load.run("echo", endpoint(), TIMEOUT, count=count, **options)


def steady_echo(bench: Bench, endpoint: EndpointSource, count: int) -> Mapping[str, Any]:
    """Measure `count` round trips at a fixed rate, each from when it was due.

    For measurements beside a load: in a closed loop, nearly all round trips would fall into the load's pauses, because
    more of them fit there (coordinated omission).
    """
    return bench.load.run("echo", endpoint(), TIMEOUT, count=count, every_us=EVERY)


def rates(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates of messages and bytes, and the share of the time that the load generator was busy."""
    seconds = result["seconds"]
    return {
        "per_s": result["messages"] / seconds,
        "bytes_per_s": result["bytes"] / seconds,
        "load_busy": result["own_processor"] / seconds,
    }


def percentiles(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the percentiles of round trips."""
    return {metric: result[metric] for metric in PERCENTILES}


@contextmanager
def background_load(load: Callable[[], object], settling: float = SETTLING) -> Iterator[None]:
    """Repeat a load, from so many seconds before the block on, then wait for its end. Raises what the load raised.

    A load is not interrupted: a shared agent would go on with its requests after that.
    """
    if isinstance(load, TimedLoad) and load.count is None:
        # Calibrate without competing load.
        load()
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            load()

    with ThreadPoolExecutor(1) as thread:
        repeating = thread.submit(repeat)
        try:
            time.sleep(settling)
            yield
        finally:
            over.set()
        repeating.result()


# Notes


def failures(measured: Iterable[Measured]) -> list[str]:
    """Return a line for each failed subject, with the task."""
    return [f"{each.task}: {note}" for each in measured for note in each.notes()]


def limited(measured: Iterable[Measured], titles: Mapping[str, str]) -> list[str]:
    """Return a line for each measurement that the load generator limited: the subject may be faster."""
    return [
        f"{each.task}: the load generator was busy for {100 * busy:.0f} % of the time with {titles.get(name, name)}, "
        "which may be faster."
        for each in measured
        for name in each.subjects
        if (busy := each.median(name, "load_busy")) is not None and busy > BUSY
    ]
