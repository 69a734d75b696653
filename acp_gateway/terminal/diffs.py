"""Line diffs of texts, in bounded time."""

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from enum import Enum
from typing import Final, NamedTuple

MOST_COMPARED: Final = 600
"""Lines of either text, between the equal ones at both ends, that are compared; longer texts are shown as replaced."""

MOST_WORK: Final = 3_000_000
"""Pairs of equal lines of both texts, times the lines of the shorter one, up to which they are compared: as often the
pairs are looked at, at worst. That takes 0.14 s; a file of 300 lines, a quarter of them empty, has less than two
thirds of them."""

CONTEXT: Final = 2
"""Equal lines shown before and after a change."""


class Mark(Enum):
    """The meaning of a line of a diff."""

    SAME = " "
    ADDED = "+"
    REMOVED = "-"
    SKIPPED = "@"


class DiffLine(NamedTuple):
    """A line of a diff; for `SKIPPED`, `text` is the number of the next line in the new text."""

    mark: Mark
    text: str


class LineDiff:
    """The difference of two texts.

    Args:
        old, new: the texts. A missing line break at the end does not matter.
        most: number of lines of the diff that are made at most.
    """

    def __init__(self, old: str, new: str, most: int) -> None:
        self.added = 0
        """Number of added lines."""
        self.removed = 0
        """Number of removed lines."""
        self.total = 0
        """Number of lines of the whole diff."""
        self.lines: list[DiffLine] = []
        """The changed lines and a few equal ones around them, with a `SKIPPED` line for those left out between."""
        self._most = most
        self._compare(_lines(old), _lines(new))

    def _compare(self, before: Sequence[str], after: Sequence[str]) -> None:
        start = 0
        while start < min(len(before), len(after)) and before[start] == after[start]:
            start += 1
        end = 0
        while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
            end += 1
        shown = 0  # Lines of the new text that are in the diff or left out.
        for a1, a2, b1, b2 in _changes(before[start : len(before) - end], after[start : len(after) - end]):
            first = max(shown, start + b1 - CONTEXT)
            # The lines after the former change, as far as this one has not begun.
            tail = min(shown + CONTEXT, first) if self.total else shown
            self._add(Mark.SAME, after, shown, tail)
            if first > tail:
                self._add(Mark.SKIPPED, [str(first + 1)], 0, 1)
            self._add(Mark.SAME, after, first, start + b1)
            self._add(Mark.REMOVED, before, start + a1, start + a2)
            self._add(Mark.ADDED, after, start + b1, start + b2)
            self.removed += a2 - a1
            self.added += b2 - b1
            shown = start + b2
        if self.total:
            self._add(Mark.SAME, after, shown, min(shown + CONTEXT, len(after)))

    def _add(self, mark: Mark, texts: Sequence[str], start: int, end: int) -> None:
        """Count lines, and keep those for which there is room."""
        self.total += end - start
        room = self._most - len(self.lines)
        self.lines += (DiffLine(mark, text) for text in texts[start : min(end, start + room)])


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _work(before: Sequence[str], after: Sequence[str]) -> int:
    count = Counter(after)
    return sum(count[line] for line in before) * min(len(before), len(after))


def _changes(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Return the changed ranges of both texts, in order."""
    if len(before) > MOST_COMPARED or len(after) > MOST_COMPARED or _work(before, after) > MOST_WORK:
        yield 0, len(before), 0, len(after)
        return
    for tag, a1, a2, b1, b2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            yield a1, a2, b1, b2
