"""The results as Markdown for people and as JSON with every raw value, and how a figure is written."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks.measuring import Measured, Section, Target, Unit

TIMES: Final = "\N{MULTIPLICATION SIGN}"

NOTHING: Final = "\N{EN DASH}"
"""What stands for a figure that there is none of."""

VERDICTS: Final = {True: "met", False: "**missed**", None: "not measured"}


@dataclass
class Results:
    """All that a run has to tell."""

    machine: Mapping[str, str]
    """What it ran on, by what it is."""
    command: str
    """What measures it again."""
    rounds: int
    quick: bool
    sections: list[Section] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """For each task that failed, or whose sections can't be written, why, in a line."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What could not be compared with here, and why."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each task took."""

    @property
    def complete(self) -> bool:
        """Whether nothing failed; what was skipped or missed did not."""
        return not self.failed and not any(each.failed for each in self.measured)


# Figures


def figure(value: float | None, unit: Unit = "") -> str:
    """A figure as people read it: 1,158 k/s, 60 µs, 12.3 KB (of 1,000 bytes), 0.85 times; a dash for None."""
    if value is None:
        return NOTHING
    match unit:
        case "x":
            return (f"{value:.2f}" if abs(value) < 9.995 else _rounded(value)) + TIMES
        case "/s":
            return f"{_rounded(value)}/s" if abs(value) < 9_995 else f"{_rounded(value / 1000)} k/s"
        case "µs":
            return _time(value / 1e6)
        case "ms":
            return _time(value / 1e3)
        case "s":
            return _time(value)
        case "B":
            return _size(value)
        case _:
            return _rounded(value)


def _rounded(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def _time(seconds: float) -> str:
    # Below ten of a unit a digit more counts; no clock here is good for a tenth of a microsecond above that.
    if abs(seconds) < 9.995e-3:
        micros = seconds * 1e6
        return f"{micros:,.0f} µs" if abs(micros) >= 9.95 else f"{micros:.2g} µs"
    if abs(seconds) < 9.995:
        return f"{_rounded(seconds * 1e3)} ms"
    return f"{_rounded(seconds)} s"


def _size(size: float) -> str:
    for limit, name in ((1e3, "B"), (1e6, "KB"), (1e9, "MB")):
        if abs(size) < limit * 0.9995:
            return f"{_rounded(size / limit * 1e3)} {name}"
    return f"{_rounded(size / 1e9)} GB"


# Markdown


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table in Markdown. The first so many columns are words, to the left, and the others figures, to the right."""
    lines = [_row(head), "|" + "|".join(["---"] * words + ["---:"] * (len(head) - words)) + "|"]
    return "\n".join([*lines, *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def markdown(results: Results) -> str:
    """The whole report."""
    parts = ["# Benchmark", _setting(results)]
    if targets := [(section.title, target) for section in results.sections for target in section.targets]:
        rows = [_target(title, target) for title, target in targets]
        head = ("task", "what", "to reach", "measured", "")
        parts += ["## Targets: what was to be reached, what was measured, met or missed", table(head, rows, words=2)]
    if results.failed:
        parts += ["## What failed", _list(f"{name}: {why}" for name, why in results.failed.items())]
    if results.skipped:
        parts += ["## What was skipped", _list(f"{name}: {why}" for name, why in results.skipped.items())]
    for section in results.sections:
        parts += [f"## {section.title}", table(section.head, section.rows)]
        if section.notes:
            parts.append(_list(section.notes))
    return "\n\n".join(parts) + "\n"


def _setting(results: Results) -> str:
    how = (
        f"Medians of the rounds ({results.rounds} unless said else), in each of which all are measured; a ratio is the "
        f"median of the ratios within the rounds. `{results.command}` measures it again."
    )
    lines = [", ".join(f"{what} {value}" for what, value in results.machine.items()) + ".", how]
    if results.quick:
        lines.append("**A quick run: smaller loads and fewer rounds; these figures are rough.**")
    return "\n\n".join(lines)


def _target(title: str, target: Target) -> tuple[str, ...]:
    # A round figure was set, and none of its digits measured.
    figure_set = f"{target.figure:g}{TIMES}" if target.unit == "x" else figure(target.figure, target.unit)
    return (
        title,
        target.text,
        f"{target.relation} {figure_set}",
        figure(target.measured, target.unit),
        VERDICTS[target.met],
    )


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


# JSON


def as_json(results: Results) -> str:
    """All of it, with the raw values of every round. Raises ValueError or TypeError where `Section.data` is no JSON."""
    told = {
        "machine": dict(results.machine),
        "command": results.command,
        "rounds": results.rounds,
        "quick": results.quick,
        "complete": results.complete,
        "failed": results.failed,
        "skipped": results.skipped,
        "seconds": results.seconds,
        "sections": [_section(section) for section in results.sections],
        "measured": [asdict(measured) for measured in results.measured],
    }
    return _dumps(told)


def check(section: Section) -> None:
    """Raises ValueError or TypeError where a section can't be written, so that the task is told and not all is lost."""
    _dumps(_section(section))


def _section(section: Section) -> dict[str, Any]:
    targets = [asdict(target) | {"met": target.met} for target in section.targets]
    return {
        "title": section.title,
        "head": list(section.head),
        "rows": [list(row) for row in section.rows],
        "notes": list(section.notes),
        "targets": targets,
        "data": section.data,
        "panel": None if section.panel is None else asdict(section.panel),
    }


def _dumps(told: Any) -> str:
    return json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
