"""Renders blocks of a transcript as lines of styled text without control characters.

A line is a list of spans. Texts of agents and users are escaped here, and nowhere else: a view shows the spans as they
are.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from enum import Enum
from typing import Final, NamedTuple

from acp_gateway.printable import MAX_LENGTH, printable_lines
from acp_gateway.terminal.content import DONE_WELL, Diff, shortened
from acp_gateway.terminal.markdown import Markdown, Part, Piece
from acp_gateway.terminal.transcript import Block, Kind, Level, Message, Note, Plan, Tool

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


MOST_DIFFS: Final = 20
"""Diffs of one tool call that are shown: each takes up to 0.2 s to make."""

DEFAULT_LINES: Final = 40
"""Lines of a diff or of an output that are shown by default: a screen."""

RUNNING_LINES: Final = 8
"""Lines of a terminal that are shown while it runs: what it does now."""

LINE_SIZE: Final = 4096
"""Characters of one line of a diff or of an output that are shown: minified files have lines of a megabyte."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]{0,64}m")
"""The escape sequences that colour a program's output; they are removed, all others are shown."""


class Style(Enum):
    """The style of a span."""

    PLAIN = "plain"
    USER = "user"
    THOUGHT = "thought"
    DIM = "dim"
    TOOL = "tool"
    GOOD = "good"
    BAD = "bad"
    RUNNING = "running"
    ADDED = "added"
    REMOVED = "removed"
    HUNK = "hunk"
    QUESTION = "question"
    HEADING = "heading"
    STRONG = "strong"
    CODE = "code"
    LINK = "link"


class Span(NamedTuple):
    """A piece of a line: printable characters only."""

    text: str
    style: Style = Style.PLAIN


Line = list[Span]

PREFIXES: Final = {
    Kind.USER: Span("> ", Style.USER),
    Kind.AGENT: Span(""),
    Kind.THOUGHT: Span("~ ", Style.THOUGHT),
}
"""The beginning of each line of a message."""

TEXT_STYLES: Final = {Kind.USER: Style.USER, Kind.AGENT: Style.PLAIN, Kind.THOUGHT: Style.THOUGHT}
"""The style of a message."""

_PARTS: Final = {
    Part.TEXT: Style.PLAIN,
    Part.HEADING: Style.HEADING,
    Part.STRONG: Style.STRONG,
    Part.CODE: Style.CODE,
    Part.LINK: Style.LINK,
    Part.BULLET: Style.HUNK,
    Part.FENCE: Style.DIM,
}
"""The styles of Markdown, in which agents write."""

_NOTES: Final = {Level.INFO: Style.DIM, Level.GOOD: Style.GOOD, Level.BAD: Style.BAD}

_STATES: Final = {
    "pending": Span("○", Style.DIM),
    "in_progress": Span("◐", Style.RUNNING),
    "completed": Span("●", Style.GOOD),
    "failed": Span("✗", Style.BAD),
    "cancelled": Span("✗", Style.DIM),
}
"""Signs for the states of tool calls and plan entries."""

_DIFF_STYLES: Final = {
    Mark.SAME: Style.DIM,
    Mark.ADDED: Style.ADDED,
    Mark.REMOVED: Style.REMOVED,
    Mark.SKIPPED: Style.HUNK,
}


def render(block: Block, *, lines: int = DEFAULT_LINES, details: bool = False) -> list[Line]:
    """Return the lines of a block.

    Args:
        block: a block of a transcript.
        lines: lines of a diff or of an output that are shown at most.
        details: show the output of a tool call also if it has not failed.
    """
    match block:
        case Message():
            return indented(render_message(block), block.lane)
        case Tool():
            return indented(render_tool(block, lines=lines, details=details), block.lane)
        case Plan():
            return indented(render_plan(block), block.lane)
        case Note():
            return indented([[Span(f"-- {one_line(block.text)}", _NOTES[block.level])]], block.lane)
    raise AssertionError(block)


def indented(lines: list[Line], lane: str) -> list[Line]:
    """Return lines marked as those of a sub-agent, if `lane` is one."""
    return [[Span("| ", Style.DIM), *line] for line in lines] if lane else lines


def render_message(message: Message) -> list[Line]:
    """Return the lines of a message."""
    prefix, style = PREFIXES[message.kind], TEXT_STYLES[message.kind]
    lines = escape(message.text.rstrip("\r\n")).split("\n")
    if message.kind is Kind.AGENT:
        markdown = Markdown()
        return [styled(markdown.add(line, ends=True)) for line in lines]
    return [[prefix, Span(line, style)] for line in lines]


def styled(pieces: Iterable[Piece]) -> Line:
    """Return pieces of Markdown with their styles."""
    return [Span(text, _PARTS[part]) for text, part in pieces]


def render_tool(tool: Tool, *, lines: int = DEFAULT_LINES, details: bool = False) -> list[Line]:
    """Return the line of a tool call, with its diffs, and its output if it has failed or `details` are wanted.

    Of a terminal that runs, the last lines are shown in any case.
    """
    rendered = [tool_line(tool)]
    if details and tool.input and tool.input not in tool.title:
        rendered.append([Span("    $ " + one_line(tool.input), Style.DIM)])
    for diff in tool.diffs[:MOST_DIFFS]:
        rendered += render_diff(diff, lines=lines)
    if len(tool.diffs) > MOST_DIFFS:
        rendered.append(more_diffs(tool))
    if tool.output and (details or tool.status == "failed"):
        rendered += render_output(tool.output, lines=lines)
    elif tool.terminal_output and not tool.is_over:
        rendered += render_output(tool.terminal_output, lines=min(lines, RUNNING_LINES))
    return rendered


def more_diffs(tool: Tool) -> Line:
    """Return the line for the diffs of a tool call that are left out."""
    return [Span(f"    … {len(tool.diffs) - MOST_DIFFS} more diffs", Style.DIM)]


def tool_line(tool: Tool) -> Line:
    """Return the state, the title and the places of a tool call in one line."""
    state = _STATES.get(tool.status, _STATES["pending"])
    told = one_line(tool.title)
    title = told or one_line(tool.kind) or "a tool"
    line = [state, Span(f" {title}", Style.TOOL)]
    places = [place for place in tool.locations if place.path not in told]
    if places:
        first = places[0]
        shown = one_line(f"{first.path}:{first.line}" if first.line is not None else first.path)
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        line.append(Span(f" {shown}{more}", Style.DIM))
    if tool.status not in ("pending", "in_progress", "completed"):
        line.append(Span(f" ({one_line(tool.status)})", state.style))
    if tool.end:
        line.append(Span(f" {one_line(tool.end)}", Style.DIM if tool.end == DONE_WELL else Style.BAD))
    return line


def render_diff(diff: Diff, *, lines: int = DEFAULT_LINES) -> list[Line]:
    """Return the lines of a diff, below its path and the numbers of its changes."""
    difference = LineDiff(diff.old, diff.new, lines)
    head = [Span(f"    {one_line(diff.path) or 'a file'} ", Style.TOOL)]
    if diff.change:
        head.append(Span(f"{one_line(diff.change)} ", Style.DIM))
    if not diff.change or difference.total:
        head += [Span(f"+{difference.added}", Style.ADDED), Span(" "), Span(f"-{difference.removed}", Style.REMOVED)]
    return [head, *map(_diff_line, difference.lines), *_left_out(difference.total - lines)]


def render_output(text: str, *, lines: int = DEFAULT_LINES) -> list[Line]:
    """Return the last lines of an output."""
    shown = escape(_COLOURS.sub("", text)).strip("\n").split("\n")
    cut = len(shown) - lines
    return [*_left_out(cut), *([Span(f"    {line[:LINE_SIZE]}", Style.DIM)] for line in shown[max(cut, 0) :])]


def render_plan(plan: Plan) -> list[Line]:
    """Return the lines of a plan."""
    done = sum(entry.status == "completed" for entry in plan.entries)
    name = f"Plan {one_line(plan.name)}".rstrip()
    if plan.is_removed:
        return [[Span(f"{name} was removed", Style.DIM)]]
    rendered: list[Line] = [[Span(f"{name} {done}/{len(plan.entries)}", Style.TOOL)]]
    for entry in plan.entries:
        style = Style.DIM if entry.status == "completed" else Style.PLAIN
        state = _STATES.get(entry.status, _STATES["pending"])
        rendered.append([Span("  "), state, Span(f" {one_line(entry.text)}", style)])
    return rendered


def escape(text: str) -> str:
    """Escape what is not printable in a text of several lines."""
    return printable_lines(text)


def one_line(text: str) -> str:
    """Escape a text for one line, and cut it, which "…" shows."""
    return shortened(text, MAX_LENGTH)


def _diff_line(line: DiffLine) -> Line:
    if line.mark is Mark.SKIPPED:
        return [Span(f"    @ line {line.text}", Style.HUNK)]
    cut = "…" if len(line.text) > LINE_SIZE else ""
    return [Span(f"    {line.mark.value} {escape(line.text[:LINE_SIZE])}{cut}", _DIFF_STYLES[line.mark])]


def _left_out(count: int) -> list[Line]:
    return [[Span(f"    … {count} more", Style.DIM)]] if count > 0 else []
