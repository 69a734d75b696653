"""What tasks put on relays: these side by side, loads that take a set time, and what is made of what they tell."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from benchmarks.load import SIZE, TIMEOUT, Where
from benchmarks.measuring import Bench, Measured, Subject
from benchmarks.processes import RelayFailed
from benchmarks.relays import Relay, Running

MEGABYTE: Final = 1_000_000

WRITES: Final = {1: "1 per write", 50: "50 per write"}
"""How many updates the agent hands over at once: one after the other, as agents do, and as many as fit a page or two,
where it is the cost of each line that is seen and no more that of each wake-up."""

LINEAR: Final = 1.3
"""How many times as much a unit may cost at the largest size as at the smallest."""

AT_ONCE: Final = 24
"""Connections in the handshake at a time, below `handshakes_per_address`: more, and the gateway closes the oldest."""

MOST: Final = 2_000_000
"""Updates of one measurement, should a relay be faster than anything."""

MOST_BYTES: Final = 1_000_000_000

WINDOW: Final = 4
"""Large messages to the agent that are under way at a time: it is the relay that is measured, and not the way there and
back."""

EVERY: Final = 5_000
"""Microseconds from one request to the next of a client that does not wait for answers before it asks again."""

PERCENTILES: Final = ("p50_us", "p99_us")

BUSY: Final = 0.9
"""Of the time: when the load generator is at work for as much, it may be what others wait for."""

SETTLING: Final = 0.2
"""Seconds for a load to be under way: a process, a connection, an agent."""

AT_REST, LOOK, LOOKS = 0.01, 0.07, 100
"""Seconds of a processor that a gateway at rest takes at most between two looks, seconds between them, and how many.
Ours gathers for 0.05 seconds what it then writes to the disk."""

GIVEN_UP: Final = "more is to be written than can be"
"""What our gateway says when the disk can't keep up with an agent, and it stops writing down a session's history."""

Way = Callable[[], Where]
"""Says where something listens, when that is wanted."""


# Relays


class Side:
    """Relays side by side, each from when it is first asked for until the block is left.

    One that does not start fails the measurement that asks for it, and no other.
    """

    def __init__(self, bench: Bench, relays: Iterable[Relay]) -> None:
        self.relays = {relay.name: relay for relay in relays if relay.skip is None}
        """Those that can be run here; what is skipped is in the report anyway."""
        self._say = bench.say
        self._agent = (str(bench.programs.agent),)
        self._running: dict[str, tuple[Running, ExitStack]] = {}
        self._given_up = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self._running):
            self.stop(name)

    def __getitem__(self, name: str) -> Running:
        """A relay that runs."""
        if name not in self._running:
            stack = ExitStack()
            self._running[name] = (stack.enter_context(self.relays[name].running(self._agent)), stack)
        return self._running[name][0]

    def stop(self, name: str) -> None:
        """End a relay: whoever asks for it then gets another one, which remembers nothing."""
        running, stack = self._running.pop(name)
        self._given_up += histories_given_up(running)
        try:
            stack.close()
        except RelayFailed as error:
            # It has ended by itself, and what was measured through it then has failed already.
            self._say(str(error))

    def way(self, name: str) -> Way:
        """How to get to a relay."""
        return lambda: self[name].where

    def notes(self) -> list[str]:
        """What there is to say of those that were stopped."""
        return notes_on(self._given_up)


def known(bench: Bench, names: Iterable[str]) -> list[Relay]:
    """Relays by their names, without those that this installation does not know."""
    return [bench.relays[name] for name in names if name in bench.relays]


def histories_given_up(running: Running) -> int:
    """How often a gateway has said that it keeps no histories of the sessions in use any more."""
    if not running.pid:
        return 0
    return (running.directory / "log").read_text(errors="replace").count(GIVEN_UP)


def notes_on(given_up: int) -> list[str]:
    """The same for `Section.notes`: what was measured then is not what somebody has whose histories are kept."""
    if not given_up:
        return []
    return [f"**Histories were given up**: our log has {given_up:,} times that {GIVEN_UP}."]


def rest(running: Running) -> None:
    """Wait until a gateway has nothing to do: what it writes to the disk later is not in the way of what comes."""
    before = running.processor()
    for _ in range(LOOKS):
        time.sleep(LOOK)
        if (now := running.processor()) - before <= AT_REST:
            return
        before = now


def at_rest(side: Side, name: str, measure: Subject) -> Mapping[str, float]:
    """Measure, and leave a gateway of ours at rest, so that what it does later is in nobody's way."""
    told = measure()
    if name.startswith("ours"):
        rest(side[name])
    return told


# Loads


@dataclass
class Paced:
    """A load that takes about so many seconds, on any machine and through any relay.

    What is sent to find out how much that is, when it is called first, warms up as well.
    """

    send: Callable[[int], Mapping[str, Any]]
    """Sends so many, and says how many seconds it took."""
    told: Callable[[Mapping[str, Any]], Mapping[str, float]]
    """Makes metrics of what `send` said."""
    seconds: float
    first: int
    """So many are sent at first, and never fewer."""
    step: int = 1
    """What is sent is a multiple of it."""
    most: int = MOST
    count: int | None = None
    """How many are sent, once that is known."""

    def __call__(self) -> Mapping[str, float]:
        """Measure."""
        if self.count is None:
            self.count = self._find_out()
        return self.told(self.send(self.count))

    def _find_out(self) -> int:
        count = self.first
        # Whoever has to be started first makes this one take long.
        self.send(count)
        while (took := float(self.send(count)["seconds"])) < self.seconds / 4 and count < self.most:
            count = min(count * 4, self.most)
        enough = round(count * self.seconds / took / self.step) * self.step
        return max(min(enough, self.most // self.step * self.step), self.first)


def streaming(bench: Bench, way: Way, batch: int, *, seconds: float, size: int = SIZE, **options: Any) -> Paced:
    """A stream of updates to one client; `options` are those of the load."""

    def send(count: int) -> Mapping[str, Any]:
        return bench.load.run("stream", way(), TIMEOUT, count=count, batch=batch, size=size, **options)

    # Of what is large a few say as much as thousands of what is small.
    first = batch * max(2000 * SIZE // size // batch, 4)
    return Paced(send, rates, seconds, first, batch, MOST * SIZE // size)


def uploading(bench: Bench, way: Way, size: int, *, seconds: float) -> Paced:
    """Requests of so many bytes that the agent answers at once."""

    def send(count: int) -> Mapping[str, Any]:
        return bench.load.run("upload", way(), TIMEOUT, count=count, size=size, window=WINDOW)

    return Paced(send, rates, seconds, first=WINDOW, most=max(MOST_BYTES // size, 1))


def echo(bench: Bench, way: Way, count: int) -> Mapping[str, Any]:
    """So many round trips, one after the other."""
    return bench.load.run("echo", way(), TIMEOUT, count=count)


def steady_echo(bench: Bench, way: Way, count: int) -> Mapping[str, Any]:
    """So many round trips, one every few milliseconds, each from when it was due.

    Beside a load, that is. One after the other, nearly all would be those of the moments when there is none, just
    because so many more fit into these.
    """
    return bench.load.run("echo", way(), TIMEOUT, count=count, every_us=EVERY)


def rates(result: Mapping[str, Any]) -> dict[str, float]:
    """What a load that counts messages and bytes has come to, and for how much of the time its generator was busy."""
    seconds = result["seconds"]
    return {
        "per_s": result["messages"] / seconds,
        "bytes_per_s": result["bytes"] / seconds,
        "load_busy": result["own_processor"] / seconds,
    }


def percentiles(result: Mapping[str, Any]) -> dict[str, float]:
    """Of round trips."""
    return {metric: result[metric] for metric in PERCENTILES}


@contextmanager
def meanwhile(load: Callable[[], object]) -> Iterator[None]:
    """Repeat a load beside the block, and wait until it is over. Raises what the load raised.

    A load ends by itself and is not cut off, for an agent that is shared goes on with what nobody waits for any more.
    """
    if isinstance(load, Paced) and load.count is None:
        # How much it is has to be found out before others are in its way.
        load()
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            load()

    with ThreadPoolExecutor(1) as thread:
        repeating = thread.submit(repeat)
        try:
            time.sleep(SETTLING)
            yield
        finally:
            over.set()
        repeating.result()


# Notes


def failures(measured: Iterable[Measured]) -> list[str]:
    """A line for each subject that failed, which says in what."""
    return [f"{each.task}: {note}" for each in measured for note in each.notes()]


def limited(measured: Iterable[Measured], titles: Mapping[str, str]) -> list[str]:
    """A line for each measurement in which the load generator was busy all the time: the subject may do more."""
    return [
        f"{each.task}: the load generator was busy for {100 * busy:.0f} % of the time with {titles.get(name, name)}, "
        "which may do more."
        for each in measured
        for name in each.subjects
        if (busy := each.median(name, "load_busy")) is not None and busy > BUSY
    ]
