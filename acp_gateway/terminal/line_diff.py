"""Compares two texts line by line, in bounded time.

Equal lines at both ends are taken off first. The rest is compared by its longest matching runs. If that is too much
work, it is divided at the lines that both texts have once (patience diff), and its parts are compared alike. A part
that is still too much work is shown as removed and added as a whole, below a line that says so.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from enum import Enum
from typing import Final, NamedTuple

MOST_COMPARED: Final = 600
"""Lines of either text, or of a part between two lines that both have once, up to which they are compared."""

MOST_WORK: Final = 3_000_000
"""Pairs of equal lines of both texts, times the lines of the shorter one, up to which they are compared: as often the
pairs are looked at, at worst. For all parts of a diff together. That takes 0.14 s; a file of 300 lines, a quarter of
them empty, has less than two thirds of them."""

MOST_DIVIDED: Final = 20_000
"""Lines of both texts together that are divided into parts; that takes up to 0.1 s."""

DEEPEST: Final = 4
"""Times that a part is divided again. Lines that a text has twice are often alone in a part."""

CONTEXT: Final = 2
"""Equal lines shown before and after a change."""

TOO_MANY: Final = "too many changes to compare: these lines are shown as removed and added as a whole"


class Mark(Enum):
    """The meaning of a line of a diff."""

    SAME = " "
    ADDED = "+"
    REMOVED = "-"
    SKIPPED = "@"
    ROUGH = "!"


class DiffLine(NamedTuple):
    """A line of a diff.

    For `SKIPPED`, `text` is the number of the next line in the new text; for `ROUGH`, which stands before lines that
    were not compared, the reason.
    """

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
        shown = 0  # Lines of the new text that are in the diff or left out.
        for (a1, a2, b1, b2), is_rough in _changes(before, after):
            first = max(shown, b1 - CONTEXT)
            # The lines after the former change, as far as this one has not begun.
            tail = min(shown + CONTEXT, first) if self.total else shown
            self._add(Mark.SAME, after, shown, tail)
            if first > tail:
                self._add(Mark.SKIPPED, [str(first + 1)], 0, 1)
            self._add(Mark.SAME, after, first, b1)
            if is_rough:
                self._add(Mark.ROUGH, [TOO_MANY], 0, 1)
            self._add(Mark.REMOVED, before, a1, a2)
            self._add(Mark.ADDED, after, b1, b2)
            self.removed += a2 - a1
            self.added += b2 - b1
            shown = b2
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


_Part = tuple[int, int, int, int]
"""Lines of the old text, from and to, and those of the new one."""


def _changes(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[_Part, bool]]:
    """Return the changed parts, in order, and whether each was too much to compare."""
    work = MOST_WORK
    # Parts to compare, the next one last, each with the times that it was divided.
    parts: list[tuple[_Part, int]] = [((0, len(before), 0, len(after)), 0)]
    while parts:
        (a1, a2, b1, b2), depth = parts.pop()
        while a1 < a2 and b1 < b2 and before[a1] == after[b1]:
            a1, b1 = a1 + 1, b1 + 1
        while a1 < a2 and b1 < b2 and before[a2 - 1] == after[b2 - 1]:
            a2, b2 = a2 - 1, b2 - 1
        part = a1, a2, b1, b2
        old, new = before[a1:a2], after[b1:b2]
        is_large = len(old) + len(new) > MOST_DIVIDED
        if not old or not new or (not is_large and set(old).isdisjoint(new)):
            if old or new:
                yield part, False
        elif max(len(old), len(new)) <= MOST_COMPARED and (needed := _work(old, new)) <= work:
            work -= needed
            for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
                if tag != "equal":
                    yield (a1 + i1, a1 + i2, b1 + j1, b1 + j2), False
        elif not is_large and depth < DEEPEST and (anchors := _anchors(old, new)):
            ends = [*((a1 + i, b1 + j) for i, j in anchors), (a2, b2)]
            starts = [(a1, b1), *((i + 1, j + 1) for i, j in ends[:-1])]
            between = [((i1, i2, j1, j2), depth + 1) for (i1, j1), (i2, j2) in zip(starts, ends, strict=True)]
            parts += reversed(between)
        else:
            yield part, True


def _work(before: Sequence[str], after: Sequence[str]) -> int:
    count = Counter(after)
    return sum(count[line] for line in before) * min(len(before), len(after))


def _anchors(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places in both texts of lines that each has once, as many as have the same order in both."""
    old, new = _places(before), _places(after)
    pairs = [(i, new[line]) for line, i in old.items() if line in new]
    # The longest increasing subsequence, by patience sorting: the last of each length, and what stands before each.
    last: list[int] = []
    indexes: list[int] = []
    former: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(last, j)
        last[length : length + 1] = [j]
        indexes[length : length + 1] = [index]
        former.append(indexes[length - 1] if length else -1)
    anchors = []
    index = indexes[-1] if indexes else -1
    while index >= 0:
        anchors.append(pairs[index])
        index = former[index]
    return anchors[::-1]


def _places(lines: Sequence[str]) -> dict[str, int]:
    """Return the place of each line that is there once, in their order."""
    count = Counter(lines)
    return {line: place for place, line in enumerate(lines) if count[line] == 1}
