"""Fan-out: one session that many look at, what each of them costs, and what one that takes nothing costs the others."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from benchmarks.load import SIZE, TIMEOUT
from benchmarks.measuring import Bench, Measured, Section, Target, paired_ratio
from benchmarks.relays import Running
from benchmarks.report import figure
from benchmarks.tasks.loads import WRITES, Side, failures, known, limited, rest

TASK: Final = "fanout"

VIEWERS: Final = (1, 10, 100, 1000)
QUICK_VIEWERS: Final = (1, 100)
QUICK_WRITES: Final = {50: WRITES[50]}
MANY: Final = 100
"""Viewers that the targets speak of."""

JOIN: Final = {"ours": "load", "naive": "none"}
"""How viewers come to a session: ours are let into it when they ask; the other relay sends everything to everybody."""

DELIVERED: Final = {"ours": (800_000, 400_000), "naive": (8_000, 4_000)}
"""Updates that all viewers get together, a third of a second's on two processors, and how many in a quick run; there is
one write at least. It is not found out: a gateway makes a pause after a hundred have left at once."""

MOST_WRITES: Final = {1: 100_000, 50: 4_000}
"""For few viewers, who come to fewer updates in the same time, by how many there are in a write."""

PACE: Final = 2_000
"""Microseconds from one update to the next where each is one by itself, as agents write that think: for a hundred
viewers that is time enough."""

PACED, QUICK_PACED = 300, 100
"""Updates of such a measurement."""

PACED_VIEWERS: Final = (1, 10, 100)

AT_LEAST: Final = 50.0
"""How many times as much as the naive relay is to be reached, with many updates in each write."""

MOST_COST: Final = 4.0
"""Microseconds that a further viewer may cost for each write."""

ROUNDS: Final = 3
"""A thousand viewers take seconds to come and to be told, through the naive relay."""


def run(bench: Bench) -> list[Section]:
    """Viewers that all read, and one that doesn't, for which a quick run has no time."""
    sections = [_viewers(bench), _paced(bench)]
    return sections if bench.quick else [*sections, _stalled(bench)]


def show(
    bench: Bench, running: Running, name: str, viewers: int, count: int, batch: int, **options: Any
) -> Mapping[str, float]:
    """Send updates to whoever prompted and to viewers.

    `per_s` is what all have got together in a second, `write_us` the time that one write of the agent took and
    `processor_us` what it took of a processor in the relay.
    """
    told = bench.load.run(
        "fanout",
        running.where,
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
        rest(running)
    writes = count / batch
    return {
        "per_s": told["messages"] / told["seconds"],
        "write_us": 1e6 * told["seconds"] / writes,
        "processor_us": 1e6 * told["watched_processor"] / writes,
        "load_busy": told["own_processor"] / told["seconds"],
    }


def _count(bench: Bench, name: str, viewers: int, batch: int) -> int:
    """How many updates the agent sends."""
    writes = bench.pick(*DELIVERED[name]) // (viewers + 1) // batch
    return batch * max(min(writes, MOST_WRITES[batch]), 1)


def _viewers(bench: Bench) -> Section:
    relays = known(bench, JOIN)
    numbers, writes = bench.pick(VIEWERS, QUICK_VIEWERS), bench.pick(WRITES, QUICK_WRITES)
    measured: dict[int, Measured] = {}
    with Side(bench, relays) as side:

        def measure(name: str, viewers: int, batch: int) -> Mapping[str, float]:
            return show(bench, side[name], name, viewers, _count(bench, name, viewers, batch), batch)

        for batch, title in writes.items():
            subjects = {
                _subject(name, viewers): partial(measure, name, viewers, batch)
                for name in side.relays
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
        targets.append(Target(f"a further viewer, for each write, {title}", MOST_COST, "≤", cost, "µs"))
    return Section(
        "Fan-out to viewers of one session",
        ("viewers", *(f"{title}: {column}" for title in writes.values() for column in columns)),
        rows,
        notes=[
            f"Updates of {SIZE} bytes a second that all viewers and whoever prompted have got together.",
            "A further viewer: how much longer a write of the agent takes than with one, by how many more.",
            "What the load generator does to receive it, on the same processors, can be part of that.",
            "Writes that come one right after the other reach each viewer together: see below for single ones.",
            "Processor: how much more of one a write takes in the gateway itself.",
            f"{min(ROUNDS, bench.rounds)} rounds.",
            *limited(measured.values(), {}),
            *side.notes(),
            *failures(measured.values()),
        ],
        targets=targets,
    )


def _subject(name: str, viewers: int) -> str:
    return f"{name}, viewers: {viewers}"


def _cost(measured: Measured, viewers: int, metric: str) -> float | None:
    """Microseconds that each viewer but the first adds to a write of the agent; None for one."""
    if viewers == 1:
        return None
    one, many = (measured.values(_subject("ours", number), metric) for number in (1, viewers))
    added = [None if a is None or b is None else b - a for a, b in zip(one, many, strict=True)]
    return paired_ratio(added, [float(viewers - 1)] * len(added))


def _paced(bench: Bench) -> Section:
    numbers, count = bench.pick(PACED_VIEWERS, QUICK_VIEWERS), bench.pick(PACED, QUICK_PACED)
    with Side(bench, known(bench, ("ours",))) as side:

        def measure(viewers: int) -> Mapping[str, float]:
            return show(bench, side["ours"], "ours", viewers, count, 1, pace_us=PACE)

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
            f"An update of {SIZE} bytes every {PACE / 1000:g} ms, so that each goes to each viewer by itself.",
            "Of a processor, in the gateway alone, what is written to the disk included.",
            f"Where it is more than {PACE / 1000:g} ms from one to the next, the gateway had more than it could do.",
            *side.notes(),
            *measured.notes(),
        ],
        targets=[
            Target(
                "a further viewer, for an update by itself, processor",
                MOST_COST,
                "≤",
                _cost(measured, numbers[-1], "processor_us"),
                unit="µs",
            )
        ],
    )


def _stalled(bench: Bench) -> Section:
    rounds = min(ROUNDS, bench.rounds)
    measured = {}
    with Side(bench, known(bench, ("ours",))) as side:

        def measure(batch: int, stalled: int) -> Mapping[str, float]:
            count = _count(bench, "ours", MANY, batch)
            return show(bench, side["ours"], "ours", MANY, count, batch, stalled=stalled)

        for batch, title in WRITES.items():
            subjects = {"all read": partial(measure, batch, 0), "one takes nothing": partial(measure, batch, 1)}
            measured[title] = bench.interleave(f"{TASK}, stalled, {title}", subjects, rounds=rounds)
    return Section(
        f"A viewer among {MANY} that takes nothing",
        ("ours", "all read", "one takes nothing", "what the others get, against that"),
        [
            [
                title,
                *(figure(each.median(name, "per_s"), "/s") for name in each.subjects),
                figure(each.ratio("one takes nothing", "all read", "per_s"), "x"),
            ]
            for title, each in measured.items()
        ],
        notes=[
            f"Updates of {SIZE} bytes a second that all who read have got together, {rounds} rounds.",
            "What one does not take waits for it, up to outbox_limit; then it is closed.",
            *limited(measured.values(), {}),
            *side.notes(),
            *failures(measured.values()),
        ],
    )
