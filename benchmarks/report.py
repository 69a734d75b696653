"""Writes results as Markdown for people and as JSON with every raw value; formats figures."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from benchmarks.measuring import Measured, Section, Target, Unit

TIMES: Final = "\N{MULTIPLICATION SIGN}"

NOTHING: Final = "\N{EN DASH}"
"""Shown in place of a missing figure."""

FAILED: Final = 2
"""Exit status after a failure."""

VERDICTS: Final = {True: "met", False: "**missed**", None: "not measured"}


@dataclass
class Results:
    """Results of a run."""

    machine: Mapping[str, str]
    """Properties of the machine by name."""
    command: str
    """Command that repeats the measurement."""
    rounds: int
    quick: bool
    sections: list[Section] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Reason in one line for each task that failed, or whose sections can't be serialized."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Reason for each relay that can't run on this machine."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each task."""

    @property
    def complete(self) -> bool:
        """True if nothing failed; skipped relays and missed targets are not failures."""
        return not self.failed and not any(each.failed for each in self.measured)

    @property
    def exit_status(self) -> int:
        """Exit status of the run."""
        return 0 if self.complete else FAILED


# Figures


def figure(value: float | None, unit: Unit = "") -> str:
    """Format a figure for people: 1,158 k/s, 60 µs, 12.3 KB (of 1,000 bytes), 0.85 times; a dash for None."""
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
    """Round to three significant digits, or to an integer if that has more."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def _time(seconds: float) -> str:
    # Below ten microseconds one decimal is significant; above, no clock here is that accurate.
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
    """Format a Markdown table. The first `words` columns are aligned left, the others, with figures, right."""
    lines = [_row(head), "|" + "|".join(["---"] * words + ["---:"] * (len(head) - words)) + "|"]
    return "\n".join([*lines, *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def markdown(results: Results) -> str:
    """Format the whole report."""
    parts = ["# Benchmark", _setting(results)]
    if targets := [(section.title, target) for section in results.sections for target in section.targets]:
        rows = [_target(title, target) for title, target in targets]
        head = ("task", "what", "target", "measured", "")
        parts += ["## Targets: required and measured figures, met or missed", table(head, rows, words=2)]
    if results.failed:
        parts += ["## Failed", _list(f"{name}: {why}" for name, why in results.failed.items())]
    if results.skipped:
        parts += ["## Skipped", _list(f"{name}: {why}" for name, why in results.skipped.items())]
    for section in results.sections:
        parts += [f"## {section.title}", table(section.head, section.rows)]
        if section.notes:
            parts.append(_list(section.notes))
    return "\n\n".join(parts) + "\n"


def summary(results: Results) -> list[str]:
    """Return a line about the targets, if there are any, and one for each failure."""
    targets = [(section.title, target) for section in results.sections for target in section.targets]
    missed = [f"{title}: {target.text}" for title, target in targets if target.met is False]
    failed = results.failed | {
        f"{each.task}, {subject}": why for each in results.measured for subject, why in each.failed.items()
    }
    lines = [f"failed: {what}: {why}" for what, why in failed.items()]
    if targets:
        lines.append("; ".join([f"{len(missed)} of {len(targets)} targets missed", *missed]))
    return lines


def _setting(results: Results) -> str:
    how = (
        f"Medians of the rounds ({results.rounds} unless noted otherwise); each round measures all subjects. A ratio "
        f"is the median of the ratios within rounds. Repeat the measurement with `{results.command}`."
    )
    lines = [", ".join(f"{what} {value}" for what, value in results.machine.items()) + ".", how]
    if results.quick:
        lines.append("**A quick run: smaller loads and fewer rounds; these figures are rough.**")
    return "\n\n".join(lines)


def _target(title: str, target: Target) -> tuple[str, ...]:
    # A target is a round number, so it is not padded to the digits of a measured ratio.
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
    """Serialize all results with the raw values of every round.

    Raises ValueError or TypeError if a `Section.data` is not serializable as JSON.
    """
    contents = {
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
    return _dumps(contents)


def check(section: Section) -> None:
    """Raise ValueError or TypeError if a section can't be serialized, so that only its task fails."""
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


def _dumps(contents: Any) -> str:
    return json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
