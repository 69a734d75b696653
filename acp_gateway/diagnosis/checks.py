"""The lines that `ping` and `doctor` report: one for each check, with its time or with the remedy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from acp_gateway.printable import printable

Status = Literal["ok", "warning", "fault"]

TEXT_SIZE: Final = 1000
"""Maximum characters of a text or a remedy: enough for several paths."""

NAME_WIDTH: Final = 10
"""Columns of the name of a check."""


@dataclass(frozen=True, slots=True)
class Line:
    """The result of one check."""

    name: str
    """The subject of the check, one word."""
    status: Status
    text: str
    """The finding, one sentence."""
    remedy: str = ""
    """The next step, empty if none is needed or the text has it."""
    exit_code: int = 0
    """Exit code of the command if this is its first fault."""
    seconds: float | None = None
    """Duration, where it tells something."""
    folder: str | None = None
    """For a folder that was refused: the one that may be meant on the gateway's machine, empty if that is unknown."""

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The finding and the remedy, if there is one, each behind what stands in the columns before it."""
        took = "" if self.seconds is None else f" ({format_seconds(self.seconds)})"
        parts = [(f"{self.status:<8}{self.name:<{NAME_WIDTH}}", f"{printable(self.text, TEXT_SIZE)}{took}")]
        if self.remedy:
            parts.append((f"{'':{8 + NAME_WIDTH}}-> ", printable(self.remedy, TEXT_SIZE)))
        return parts

    def __str__(self) -> str:
        return "\n".join(before + text for before, text in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Return the members of its JSON object; those without a value are left out."""
        members = {"name": self.name, "status": self.status, "text": self.text, "remedy": self.remedy or None}
        took = None if self.seconds is None else round(self.seconds, 4)
        return {name: value for name, value in (members | {"seconds": took}).items() if value is not None}


def ok(name: str, text: str, seconds: float | None = None) -> Line:
    """Return the line of a check that has found nothing wrong."""
    return Line(name, "ok", text, seconds=seconds)


def warning(name: str, text: str, remedy: str) -> Line:
    """Return the line of a check whose subject works, and will or may fail."""
    return Line(name, "warning", text, remedy)


def fault(name: str, text: str, remedy: str, exit_code: int) -> Line:
    """Return the line of a check whose subject does not work."""
    return Line(name, "fault", text, remedy, exit_code)


def exit_code_of(lines: Iterable[Line]) -> int:
    """Return the exit code of the first fault; 0 if there is none."""
    return next((line.exit_code for line in lines if line.status == "fault"), 0)


def report_of(lines: Sequence[Line], **about: Any) -> dict[str, Any]:
    """Return the report of `--json`; `about` are further members, placed first."""
    code = exit_code_of(lines)
    return about | {"ok": code == 0, "exitCode": code, "checks": [line.as_json() for line in lines]}


def format_seconds(seconds: float) -> str:
    """Format a duration with two or three digits, in milliseconds below a second."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s"
