"""Interleaved rounds, medians, paired ratios and targets, independent of how a subject is measured.

The speed of a shared machine varies from minute to minute. So compared subjects are measured in interleaved rounds,
forwards in one round and backwards in the next. A ratio is the median of the ratios within rounds instead of the ratio
of the medians: interference that lasts a whole round does not change it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    # These modules are above this one; only their types are needed here.
    from benchmarks.installing import Programs
    from benchmarks.load import Load
    from benchmarks.relays import Relay

ROUNDS: Final = 7
"""Enough that two or three disturbed rounds do not change the median."""

QUICK_ROUNDS: Final = 2
"""Enough for a smoke test, and for the magnitude of the figures."""

Unit = Literal["", "x", "/s", "µs", "ms", "s", "B"]
"""Unit of a figure, formatted by `report.figure`: a plain number, a factor, a rate, a time or a size."""

T = TypeVar("T")

Subject = Callable[[], Mapping[str, float]]
"""Measures once and returns metrics by name: {"messages_per_s": 871_234.5, "p50_us": 60.1}."""


# Statistics


def order(names: Sequence[str], number: int) -> list[str]:
    """Return the order of subjects in a round: forwards in even rounds, backwards in odd ones."""
    return list(names) if number % 2 == 0 else list(reversed(names))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` percent of the values do not exceed. Raises ValueError if empty."""
    if not values:
        raise ValueError("a percentile needs at least one value")
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def paired_ratio(values: Sequence[float | None], over: Sequence[float | None]) -> float | None:
    """Return the median of the ratios over the rounds that both have; None without such a round."""
    ratios = [one / other for one, other in zip(values, over, strict=False) if one is not None and other]
    return statistics.median(ratios) if ratios else None


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent of growth of costs with sizes: 0 is constant, 1 linear, 2 quadratic.

    It is a least squares fit to the logarithms. Raises ValueError unless all values are above 0 and at least two sizes
    differ.
    """
    if len(set(sizes)) < 2:
        raise ValueError("growth needs at least two sizes")
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs]).slope


# Measurements


@dataclass
class Measured:
    """Metrics of several rounds."""

    task: str
    subjects: list[str]
    rounds: list[dict[str, dict[str, float]]] = field(default_factory=list)
    """For each round, the metrics of each subject that did not fail."""
    failed: dict[str, str] = field(default_factory=dict)
    """Round and reason of failure, in one line, of each subject that failed; it is not measured again."""

    def values(self, subject: str, metric: str) -> list[float | None]:
        """Return one value per round; None if the subject had failed or did not report this metric."""
        return [each.get(subject, {}).get(metric) for each in self.rounds]

    def median(self, subject: str, metric: str) -> float | None:
        """Return the median of the rounds that have the metric; None if none has."""
        present = [value for value in self.values(subject, metric) if value is not None]
        return statistics.median(present) if present else None

    def ratio(self, subject: str, over: str, metric: str) -> float | None:
        """Return the median of the paired ratios, subject / over; None if no round has both."""
        return paired_ratio(self.values(subject, metric), self.values(over, metric))

    def notes(self) -> list[str]:
        """Return a line for each failed subject, for `Section.notes`."""
        return [f"{subject} failed {why}" for subject, why in self.failed.items()]


def interleave(
    task: str,
    subjects: Mapping[str, Subject],
    *,
    rounds: int,
    warm_up: bool = True,
    log: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Measure subjects in interleaved rounds, after a warm-up round that is discarded.

    A subject that raises, or reports a metric that is not finite, is recorded as failed and left out of later rounds.
    """
    measured = Measured(task, list(subjects))
    for number in range(1 - warm_up, rounds + 1):
        log(f"{task}: round {number} of {rounds}" if number else f"{task}: warming up")
        metrics: dict[str, dict[str, float]] = {}
        for subject in order([name for name in subjects if name not in measured.failed], number):
            try:
                metrics[subject] = _finite(subjects[subject]())
            except Exception as error:  # No failure of one subject may lose the others.
                when = f"in round {number}" if number else "while warming up"
                measured.failed[subject] = f"{when}: {single_line(error)}"
                log(f"{task}: {subject} failed {measured.failed[subject]}")
        if number:
            measured.rounds.append(metrics)
    return measured


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    for metric, value in metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"{metric} is {value}")
    return dict(metrics)


def single_line(error: BaseException) -> str:
    """Format an exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# Results of tasks


@dataclass(frozen=True)
class Target:
    """A target figure and the measured one."""

    text: str
    """Subject of the target: "over stdio-to-ws, one update per write"."""
    figure: float
    relation: Literal["≥", "≤"]
    """Required relation of the measured figure to the target figure."""
    measured: float | None
    """Measured figure; None if it could not be measured."""
    unit: Unit = "x"

    @property
    def met(self) -> bool | None:
        """True if the target was reached; None if it was not measured."""
        if self.measured is None:
            return None
        return self.measured >= self.figure if self.relation == "≥" else self.measured <= self.figure


@dataclass(frozen=True)
class Panel:
    """A panel of the plot: for each subject a group of bars, one per series."""

    title: str
    axis: str
    """Label of the axis, with its unit: "messages per second"."""
    series: Mapping[str, Mapping[str, float | None]]
    """Bars by series and subject: {"1 per write": {"ours": 872_000.0, …}, …}. None draws no bar."""
    unit: Unit = ""
    """Unit of the bar labels."""
    logarithmic: bool = False
    titles: Mapping[str, str] = field(default_factory=dict)
    """Titles of subjects; by default a subject's title is its name."""
    highlighted: Sequence[str] = ()
    """Subjects drawn in colour."""


@dataclass(frozen=True)
class Section:
    """A table of the report, with its notes, targets, data and panel."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Formatted cells (see `report.figure`). A row whose length differs from that of `head` raises ValueError."""
    notes: Sequence[str] = ()
    """Lines below the table: method, skipped and failed subjects with reasons."""
    targets: Sequence[Target] = ()
    data: Any = None
    """Data for the JSON results besides the measurements of `Bench.interleave`: dicts, lists, strings, numbers."""
    panel: Panel | None = None
    """Panel of the plot, if any."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"{self.title}: a row has {len(row)} cells instead of {len(self.head)}: {row}")


@dataclass
class Bench:
    """Context in which tasks run."""

    quick: bool
    """True if all tasks together must take less than a minute: smaller loads, fewer subjects."""
    rounds: int
    relays: "Mapping[str, Relay]"
    load: "Load"
    programs: "Programs"
    log: Callable[[str], None]
    """Logs a line of progress."""
    measured: list[Measured] = field(default_factory=list)
    """All measurements of `interleave`: the raw values of the JSON results."""

    def interleave(
        self, task: str, subjects: Mapping[str, Subject], *, rounds: int | None = None, warm_up: bool = True
    ) -> Measured:
        """Call the function `interleave`, by default with this run's number of rounds, and record the measurements."""
        measured = interleave(task, subjects, rounds=rounds or self.rounds, warm_up=warm_up, log=self.log)
        self.measured.append(measured)
        return measured

    def pick(self, full: T, quick: T) -> T:
        """Return `quick` in a quick run, else `full`."""
        return quick if self.quick else full
