"""What is measured and what is made of it: rounds in turns, medians, paired ratios, targets. It knows no processes.

A machine that others use too is faster in one minute than in the next. So subjects that are compared are measured in
turns, forwards in one round and backwards in the next, and compared round by round: a ratio is the median of the ratios
within the rounds, which what disturbs a whole round does not change, and not the ratio of the medians.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    # What tasks are handed is above this module; only the types of it are needed here.
    from benchmarks.installing import Programs
    from benchmarks.load import Load
    from benchmarks.relays import Relay

ROUNDS: Final = 7
"""The median is none of the two or three that something else disturbed."""

QUICK_ROUNDS: Final = 2
"""Enough to see that all of it works, and what size the figures have."""

Unit = Literal["", "x", "/s", "µs", "ms", "s", "B"]
"""What a figure counts; `report.figure` writes it in words: a number, so many times as much, or so many of each."""

T = TypeVar("T")

Subject = Callable[[], Mapping[str, float]]
"""Measures once, and says what it measured by name: {"messages_per_s": 871_234.5, "p50_us": 60.1}."""


# Statistics


def order(names: Sequence[str], number: int) -> list[str]:
    """In which order subjects are measured in a round: forwards in the even ones, backwards in the others."""
    return list(names) if number % 2 == 0 else list(reversed(names))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that so many percent of them do not exceed. Raises ValueError where there are none."""
    if not values:
        raise ValueError("there is no percentile of nothing")
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def paired_ratio(values: Sequence[float | None], over: Sequence[float | None]) -> float | None:
    """The median of the ratios in the rounds that both have; None where there is none."""
    ratios = [one / other for one, other in zip(values, over, strict=False) if one is not None and other]
    return statistics.median(ratios) if ratios else None


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent with which costs grow with sizes: 0 is not at all, 1 linear, 2 quadratic (a fit of least squares to
    the logarithms). All have to be above 0, and the sizes two different ones at least, else ValueError."""
    if len(set(sizes)) < 2:
        raise ValueError("growth needs two sizes at least")
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs]).slope


# What was measured


@dataclass
class Measured:
    """What came out of some rounds."""

    task: str
    subjects: list[str]
    rounds: list[dict[str, dict[str, float]]] = field(default_factory=list)
    """For each round the metrics of each subject that did not fail."""
    failed: dict[str, str] = field(default_factory=dict)
    """The subjects that failed and were measured no more, with a line that says in which round and why."""

    def values(self, subject: str, metric: str) -> list[float | None]:
        """One for each round; None where the subject had failed or did not tell this metric."""
        return [each.get(subject, {}).get(metric) for each in self.rounds]

    def median(self, subject: str, metric: str) -> float | None:
        """Of the rounds that have it; None where none has."""
        there = [value for value in self.values(subject, metric) if value is not None]
        return statistics.median(there) if there else None

    def ratio(self, subject: str, over: str, metric: str) -> float | None:
        """The median of the paired ratios, subject / over; None where no round has both."""
        return paired_ratio(self.values(subject, metric), self.values(over, metric))

    def notes(self) -> list[str]:
        """A line for each subject that failed, for `Section.notes`."""
        return [f"{subject} failed {why}" for subject, why in self.failed.items()]


def interleave(
    task: str,
    subjects: Mapping[str, Subject],
    *,
    rounds: int,
    warm_up: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Measure subjects in turns. A round that warms up comes first and is forgotten. A subject that raises, or has a
    metric that is no finite number, is noted as failed and left out from then on; the others go on."""
    measured = Measured(task, list(subjects))
    for number in range(1 - warm_up, rounds + 1):
        say(f"{task}: round {number} of {rounds}" if number else f"{task}: warming up")
        told: dict[str, dict[str, float]] = {}
        for subject in order([name for name in subjects if name not in measured.failed], number):
            try:
                told[subject] = _finite(subjects[subject]())
            except Exception as error:  # Whatever goes wrong with one of them is no reason to lose the others.
                when = f"in round {number}" if number else "while warming up"
                measured.failed[subject] = f"{when}: {in_a_line(error)}"
                say(f"{task}: {subject} failed {measured.failed[subject]}")
        if number:
            measured.rounds.append(told)
    return measured


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    for metric, value in metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"{metric} is {value}")
    return dict(metrics)


def in_a_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


# What tasks return


@dataclass(frozen=True)
class Target:
    """What was to be reached, and what was measured."""

    text: str
    """What it is about: "over stdio-to-ws, one update per write"."""
    figure: float
    relation: Literal["≥", "≤"]
    """How what was measured has to stand to the figure."""
    measured: float | None
    """None where it could not be measured."""
    unit: Unit = "x"

    @property
    def met(self) -> bool | None:
        """Whether it was reached; None where it was not measured."""
        if self.measured is None:
            return None
        return self.measured >= self.figure if self.relation == "≥" else self.measured <= self.figure


@dataclass(frozen=True)
class Panel:
    """A part of the plot: bars for each subject, one for each series, next to each other."""

    title: str
    axis: str
    """What is along the axis, with its unit: "messages per second"."""
    series: Mapping[str, Mapping[str, float | None]]
    """For each series, {"1 per write": {"ours": 872_000.0, …}, …}, the bars by subject. What is None has no bar."""
    unit: Unit = ""
    """Of the figures that stand at the bars."""
    logarithmic: bool = False
    titles: Mapping[str, str] = field(default_factory=dict)
    """What stands beside a subject's bars where it is not the subject itself."""
    highlighted: Sequence[str] = ()
    """The subjects that it is about."""


@dataclass(frozen=True)
class Section:
    """A table of the report, and what belongs to it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Cells as they are shown; `report.figure` writes figures. ValueError where one has not as many as `head`."""
    notes: Sequence[str] = ()
    """Lines below the table: how it was measured, what was skipped or failed and why."""
    targets: Sequence[Target] = ()
    data: Any = None
    """What goes into the JSON beside all that `Bench.interleave` measured: dicts, lists, strings, numbers."""
    panel: Panel | None = None
    """What of it is plotted."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"{self.title}: a row has {len(row)} cells instead of {len(self.head)}: {row}")


@dataclass
class Bench:
    """What a task works with."""

    quick: bool
    """Whether all tasks together have to be over within a minute: smaller loads, fewer subjects."""
    rounds: int
    relays: "Mapping[str, Relay]"
    load: "Load"
    programs: "Programs"
    say: Callable[[str], None]
    """Tells progress in a line."""
    measured: list[Measured] = field(default_factory=list)
    """All that was measured in turns; the raw values in the JSON are from here."""

    def interleave(
        self, task: str, subjects: Mapping[str, Subject], *, rounds: int | None = None, warm_up: bool = True
    ) -> Measured:
        """Measure subjects in turns (see the function of this name), by default in as many rounds as all tasks have."""
        measured = interleave(task, subjects, rounds=rounds or self.rounds, warm_up=warm_up, say=self.say)
        self.measured.append(measured)
        return measured

    def pick(self, full: T, quick: T) -> T:
        """The one or the other of two loads."""
        return quick if self.quick else full
