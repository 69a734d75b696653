"""Fan-out: cost of each viewer of a session, and cost of a stalled viewer for the others."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from benchmarks.load import SIZE, TIMEOUT
from benchmarks.measuring import Bench, Measured, Section, Target, paired_ratio
from benchmarks.relays import Running
from benchmarks.report import figure
from benchmarks.tasks.loads import WRITES, RelayPool, failures, limited, select_relays, wait_until_idle

TASK: Final = "fanout"

VIEWERS: Final = (1, 10, 100, 1000)
QUICK_VIEWERS: Final = (1, 100)
QUICK_WRITES: Final = {50: WRITES[50]}
MANY: Final = 100
"""Number of viewers for which targets are set."""

JOIN: Final = {"ours": "load", "naive": "none"}
"""Method by which viewers join: `session/load` with ours; the naive relay sends everything to all clients."""

DELIVERED: Final = {"ours": (800_000, 400_000), "naive": (8_000, 4_000)}
"""Updates to all viewers together in a full and in a quick run, a third of a second's on two processors; at least one
write. Constants instead of calibration, because the gateway pauses `accept` after a hundred clients left at once."""

MAX_WRITES: Final = {1: 100_000, 50: 4_000}
"""Maximum writes by updates per write, for few viewers, which receive fewer updates in the same time."""

PACE: Final = 2_000
"""Microseconds between single updates, as a thinking agent writes them; enough to serve a hundred viewers."""

PACED, QUICK_PACED = 300, 100
"""Updates of a measurement of single updates."""

PACED_VIEWERS: Final = (1, 10, 100)

AT_LEAST: Final = 50.0
"""Minimum throughput as a multiple of the naive relay's, with many updates per write."""

MAX_COST, MAX_SINGLE_COST = 4.0, 6.0
"""Maximum microseconds per write of a further viewer, where updates are delivered together and one by one."""

ROUNDS: Final = 3
"""Few, since a thousand viewers take seconds to connect and to be served by the naive relay."""


def run(bench: Bench) -> list[Section]:
    """Measure viewers that all read, and unless it is a quick run one that doesn't."""
    sections = [_viewers(bench), _paced(bench)]
    return sections if bench.quick else [*sections, _stalled(bench)]


def fan_out(
    bench: Bench, running: Running, name: str, viewers: int, count: int, batch: int, **options: Any
) -> Mapping[str, float]:
    """Stream updates to the prompting client and to viewers.

    `per_s` is the rate of updates to all of them together, `write_us` the time per write of the agent, `processor_us`
    the relay's CPU time per write.
    """
    result = bench.load.run(
        "fanout",
        running.endpoint,
        TIMEOUT,
        viewers=viewers,
        count=count,
        batch=batch,
        size=SIZE,
        join=JOIN[name],
        watch=running.pid,
        **options,
    )
    if name == "ours":
        wait_until_idle(running)
    writes = count / batch
    return {
        "per_s": result["messages"] / result["seconds"],
        "write_us": 1e6 * result["seconds"] / writes,
        "processor_us": 1e6 * result["watched_processor"] / writes,
        "load_busy": result["own_processor"] / result["seconds"],
    }


def _count(bench: Bench, name: str, viewers: int, batch: int) -> int:
    """Return the number of updates that the agent sends."""
    writes = bench.pick(*DELIVERED[name]) // (viewers + 1) // batch
    return batch * max(min(writes, MAX_WRITES[batch]), 1)


def _viewers(bench: Bench) -> Section:
    relays = select_relays(bench, JOIN)
    numbers, writes = bench.pick(VIEWERS, QUICK_VIEWERS), bench.pick(WRITES, QUICK_WRITES)
    measured: dict[int, Measured] = {}
    with RelayPool(bench, relays) as pool:

        def measure(name: str, viewers: int, batch: int) -> Mapping[str, float]:
            return fan_out(bench, pool[name], name, viewers, _count(bench, name, viewers, batch), batch)

        for batch, title in writes.items():
            subjects = {
                _subject(name, viewers): partial(measure, name, viewers, batch)
                for name in pool.relays
                for viewers in numbers
            }
            measured[batch] = bench.interleave(f"{TASK}, {title}", subjects, rounds=min(ROUNDS, bench.rounds))
    rows = []
    for viewers in numbers:
        row = [f"{viewers:,}"]
        for each in measured.values():
            ours, naive = _subject("ours", viewers), _subject("naive", viewers)
            row += [
                figure(each.median(ours, "per_s"), "/s"),
                figure(each.median(naive, "per_s"), "/s"),
                figure(each.ratio(ours, naive, "per_s"), "x"),
                figure(_cost(each, viewers, "write_us"), "µs"),
                figure(_cost(each, viewers, "processor_us"), "µs"),
            ]
        rows.append(row)
    columns = ("ours", "naive relay", "ratio", "ours, a further viewer", "of that, processor")
    targets = []
    for batch, title in writes.items():
        ratio = measured[batch].ratio(_subject("ours", MANY), _subject("naive", MANY), "per_s")
        if batch > 1:
            targets.append(Target(f"against the naive relay, {MANY} viewers, {title}", AT_LEAST, "≥", ratio))
        cost = _cost(measured[batch], MANY, "write_us")
        targets.append(Target(f"a further viewer, for each write, {title}", MAX_COST, "≤", cost, "µs"))
    return Section(
        "Fan-out to viewers of one session",
        ("viewers", *(f"{title}: {column}" for title in writes.values() for column in columns)),
        rows,
        notes=[
            f"Rate: updates of {SIZE} bytes a second to all viewers and the prompting client together.",
            "A further viewer: additional time per write of the agent, compared with one viewer, per added viewer.",
            "That can include the load generator's own CPU time, since it runs on the same processors.",
            "Writes in quick succession are delivered to each viewer as one batch; for single updates see below.",
            "Processor: additional CPU time per write in the gateway itself.",
            f"{min(ROUNDS, bench.rounds)} rounds.",
            *limited(measured.values(), {}),
            *pool.notes(),
            *failures(measured.values()),
        ],
        targets=targets,
    )


def _subject(name: str, viewers: int) -> str:
    return f"{name}, viewers: {viewers}"


def _cost(measured: Measured, viewers: int, metric: str) -> float | None:
    """Return the microseconds that each viewer but the first adds to a write of the agent; None for one viewer."""
    if viewers == 1:
        return None
    one, many = (measured.values(_subject("ours", number), metric) for number in (1, viewers))
    added = [None if a is None or b is None else b - a for a, b in zip(one, many, strict=True)]
    return paired_ratio(added, [float(viewers - 1)] * len(added))


def _paced(bench: Bench) -> Section:
    numbers, count = bench.pick(PACED_VIEWERS, QUICK_VIEWERS), bench.pick(PACED, QUICK_PACED)
    with RelayPool(bench, select_relays(bench, ("ours",))) as pool:

        def measure(viewers: int) -> Mapping[str, float]:
            return fan_out(bench, pool["ours"], "ours", viewers, count, 1, pace_us=PACE)

        subjects = {_subject("ours", viewers): partial(measure, viewers) for viewers in numbers}
        measured = bench.interleave(f"{TASK}, paced", subjects, rounds=min(bench.pick(ROUNDS, 1), bench.rounds))
    rows = []
    for viewers in numbers:
        name = _subject("ours", viewers)
        rows.append(
            [
                f"{viewers:,}",
                figure(measured.median(name, "write_us"), "µs"),
                figure(measured.median(name, "processor_us"), "µs"),
                figure(_cost(measured, viewers, "processor_us"), "µs"),
            ]
        )
    return Section(
        "Fan-out of single updates",
        ("viewers", "from one update to the next", "ours, processor for an update", "for a further viewer"),
        rows,
        notes=[
            f"An update of {SIZE} bytes every {PACE / 1000:g} ms, so that each is delivered on its own.",
            "Processor: CPU time of the gateway alone, writing to the disk included.",
            f"An interval above {PACE / 1000:g} ms means that the gateway was overloaded.",
            *pool.notes(),
            *measured.notes(),
        ],
        targets=[
            Target(
                "a further viewer, for a single update, processor",
                MAX_SINGLE_COST,
                "≤",
                _cost(measured, numbers[-1], "processor_us"),
                unit="µs",
            )
        ],
    )


def _stalled(bench: Bench) -> Section:
    rounds = min(ROUNDS, bench.rounds)
    measured = {}
    with RelayPool(bench, select_relays(bench, ("ours",))) as pool:

        def measure(batch: int, stalled: int) -> Mapping[str, float]:
            count = _count(bench, "ours", MANY, batch)
            return fan_out(bench, pool["ours"], "ours", MANY, count, batch, stalled=stalled)

        for batch, title in WRITES.items():
            subjects = {"all read": partial(measure, batch, 0), "one is stalled": partial(measure, batch, 1)}
            measured[title] = bench.interleave(f"{TASK}, stalled, {title}", subjects, rounds=rounds)
    return Section(
        f"A stalled viewer among {MANY}",
        ("ours", "all read", "one is stalled", "the others' rate, against all reading"),
        [
            [
                title,
                *(figure(each.median(name, "per_s"), "/s") for name in each.subjects),
                figure(each.ratio("one is stalled", "all read", "per_s"), "x"),
            ]
            for title, each in measured.items()
        ],
        notes=[
            f"Updates of {SIZE} bytes a second to all reading viewers together, {rounds} rounds.",
            "The stalled viewer's updates are queued up to `outbox_limit`; beyond it, its connection is closed.",
            *limited(measured.values(), {}),
            *pool.notes(),
            *failures(measured.values()),
        ],
    )
