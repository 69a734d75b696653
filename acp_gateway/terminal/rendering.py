"""Renders blocks of a transcript as lines of styled text without control characters.

A line is a list of spans. Texts of agents and users are escaped here, and nowhere else: a view shows the spans as they
are.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from acp_gateway.printable import MAX_LENGTH, printable_lines
from acp_gateway.terminal.content import DONE_WELL, Diff, shortened
from acp_gateway.terminal.line_diff import DiffLine, LineDiff, Mark
from acp_gateway.terminal.markdown import Markdown, Part, Piece
from acp_gateway.terminal.transcript import Block, Kind, Level, Message, Note, Plan, Tool

MOST_DIFFS: Final = 20
"""Diffs of one tool call that are shown: each takes up to 0.3 s to make."""

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
    Mark.ROUGH: Style.HUNK,
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
