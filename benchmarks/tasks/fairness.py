"""Fairness: round trips of one client while another floods the gateway.

On two processors, the gateway, its agents, the client and the flood compete for CPU time whatever the gateway does. So
the last rows are controls: they show what load outside of the gateway costs the same client.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Final

from acp_gateway.config.limits import LimitsSection
from benchmarks.load import TIMEOUT
from benchmarks.measuring import Bench, Section, Subject, Target
from benchmarks.processes import output_of
from benchmarks.relays import PROGRAM, our_gateway
from benchmarks.report import figure
from benchmarks.tasks.loads import (
    EVERY,
    MEGABYTE,
    PERCENTILES,
    SETTLING,
    EndpointSource,
    RelayPool,
    background_load,
    percentiles,
    select_relays,
    steady_echo,
    streaming,
    uploading,
    wait_until_idle,
)

TASK: Final = "fairness"

LIMITED: Final = "limited"
"""Name of the gateway whose agents have the share of the event loop that they have by default."""

UNDISTURBED, BUSY = "undisturbed", "control: two busy processes"

SHARED: Final = "updates, 50 per write, of another identity's agent, with `loop_share`"
"""Row of the flood that is limited as it is by default."""

BURST: Final = 5.0
"""Seconds after which a flood has used up the burst that agents have."""

MAX_RATIO: Final = 3.0
"""Maximum p99 during a flood, as a multiple of the undisturbed p99."""

REQUESTS: Final = 9000
"""Small requests per connection of the flood."""

WINDOW: Final = 100
"""Small requests in flight at a time."""

SMALL: Final = 200
"""Bytes of a small request."""

ROUNDS, QUICK_ROUNDS = 3, 2

COUNT, QUICK_COUNT = 200, 60
"""Round trips per measurement: one percent of them are two, in a quick run less than one."""

Beside = Callable[[], AbstractContextManager[object]]
"""Starts the load that runs during a measurement."""


def run(bench: Bench) -> list[Section]:
    """Measure one table."""
    names = ("ours", "c-relay", "c-relay-ws")
    rounds = min(bench.pick(ROUNDS, QUICK_ROUNDS), bench.rounds)
    count = bench.pick(COUNT, QUICK_COUNT)
    limited = our_gateway(bench.programs, listen="ws", limits={"loop_share": LimitsSection().loop_share})
    relays = [*select_relays(bench, names), replace(limited, name=LIMITED)]
    with RelayPool(bench, relays) as pool:
        others = {name: _another_identity(pool, name) for name in ("ours", LIMITED)}
        floods, controls = _floods(bench, pool.endpoint("ours"), others["ours"]), _controls(bench, pool)
        stream = streaming(bench, others[LIMITED], 50, seconds=0.4)
        floods[SHARED] = partial(background_load, stream, settling=bench.pick(BURST, SETTLING))

        def subject(beside: Beside, name: str) -> Subject:
            def measure() -> Mapping[str, float]:
                # Start the gateway and create the second token before the flood begins.
                others[name]()
                with beside():
                    metrics = percentiles(steady_echo(bench, pool.endpoint(name), count))
                # The flood's deferred work must not disturb the next measurement.
                wait_until_idle(pool[name])
                return metrics

            return measure

        subjects = {UNDISTURBED: ExitStack, **floods, **controls}
        measured = bench.interleave(
            TASK,
            {name: subject(beside, LIMITED if name == SHARED else "ours") for name, beside in subjects.items()},
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
            ("concurrent load", "p50", "p99", "p50 against undisturbed", "p99", "p99 against busy processors"),
            rows,
            notes=[
                f"{count} requests, one every {EVERY / 1000:g} ms; delayed requests count from when they were due.",
                "Clients of one identity share an agent, which answers between two writes; identities don't share it.",
                f"Small requests: {SMALL} bytes, {WINDOW} in flight, on a new connection after each {REQUESTS:,}.",
                "Without rate limits: with the defaults, `[limits]` would throttle the flood, as in one row.",
                *(["Controls: processes in a busy loop, or updates through the relay in C."] if controls else []),
                f"{rounds} rounds.",
                *pool.notes(),
                *measured.notes(),
            ],
            targets=[
                Target(f"p99 against undisturbed: {name}", MAX_RATIO, "≤", measured.ratio(name, UNDISTURBED, "p99_us"))
                for name in floods
            ],
        )
    ]


def _floods(bench: Bench, same: EndpointSource, other: EndpointSource) -> dict[str, Beside]:
    """Return the floods of the gateway by another client, of another identity or of the same one."""
    seconds = bench.pick(0.4, 0.2)
    stream = partial(streaming, bench, seconds=seconds)
    floods: dict[str, Callable[[], object]] = {}
    for whose, endpoint in (("another identity", other), ("the same identity", same)):
        floods[f"updates, 50 per write, {whose}"] = stream(endpoint, 50)
        if not bench.quick:
            floods[f"updates, 1 per write, {whose}"] = stream(endpoint, 1)
            floods[f"messages of 1 MB to the agent, {whose}"] = uploading(bench, endpoint, MEGABYTE, seconds=seconds)
        floods[f"small requests, {whose}"] = partial(_flood_requests, bench, endpoint)
        if bench.quick:
            break
    return {name: partial(background_load, flood) for name, flood in floods.items()}


def _flood_requests(bench: Bench, endpoint: EndpointSource) -> None:
    bench.load.run("upload", endpoint(), TIMEOUT, count=REQUESTS, size=SMALL, window=WINDOW)


def _another_identity(pool: RelayPool, name: str) -> EndpointSource:
    """Return the endpoint of a gateway with a token of another identity."""

    @cache
    def token() -> str:
        create = ("token", "create", "--config", str(pool[name].directory / "config.toml"), "--label", "other")
        return output_of(*PROGRAM, *create, "--identity", "other").decode().strip()

    return lambda: replace(pool[name].endpoint, token=token())


def _controls(bench: Bench, pool: RelayPool) -> dict[str, Beside]:
    """Return the loads outside of the gateway; none in a quick run, which has no time for them."""
    if bench.quick:
        return {}
    controls: dict[str, Beside] = {BUSY: partial(_busy, 2), "control: a busy process": partial(_busy, 1)}
    for name in pool.relays:
        if name != "ours":
            flood = streaming(bench, pool.endpoint(name), 50, seconds=0.4)
            controls[f"control: updates, 50 per write, through {pool.relays[name].title}"] = partial(
                background_load, flood
            )
    return controls


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    """Run processes in a busy loop, without I/O, until the end of the block."""
    with ExitStack() as stack:
        for _ in range(processes):
            counting = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(counting.kill)
        yield
