"""The agent's open questions, the keys that answer them, and the lines that show one."""

from collections.abc import Sequence
from typing import Final

from acp_gateway.printable import counted, printable
from acp_gateway.terminal.content import Option, describe_input, read_tool_content, text_of
from acp_gateway.terminal.dialogue import FILL_IN, Question
from acp_gateway.terminal.rendering import Line, Span, Style, escape, one_line
from acp_gateway.terminal.transcript import Tool

PAUSE: Final = 0.4
"""Seconds after a question is shown in which keys decide nothing: they were meant for what was there before."""

NAMES: Final = 200
"""Names of options that are remembered, to tell which one was chosen."""

TYPING_PAUSE: Final = 2.0
"""The same after a form that was closed while a text was typed: the next letters still belong to it."""

URL_SIZE: Final = 2000
"""Characters of a page's address that are shown: more than browsers' address bars take."""

_DIGITS: Final = "123456789"


TEXT_SIZE: Final = 64 * 1024
"""Characters of an explanation that are shown: a plan of a thousand lines."""


class Review:
    """The rows of a question that does not fit onto the screen: they are shown in parts.

    Args:
        rows: the rows, without that of the answers.
        size: number of rows of a part.
    """

    def __init__(self, rows: Sequence[Line], size: int) -> None:
        self._rows = rows
        self._size = max(size, 1)
        self._shown = 0

    @property
    def is_over(self) -> bool:
        """True when all rows were shown."""
        return self._shown >= len(self._rows)

    def take(self) -> list[Line]:
        """Return the next part, with a line that tells which one it is."""
        first = self._shown
        part = list(self._rows[first : first + self._size])
        self._shown += len(part)
        return [*part, self.place()]

    def place(self) -> Line:
        """Return the line that tells how much was shown, and how the rest is."""
        told = f"rows 1-{self._shown} of {len(self._rows)}" if self._shown else counted(len(self._rows), "row")
        rest = "" if self.is_over else ": Space shows more; it can be allowed after the last"
        return [Span(f"  {told}{rest}", Style.DIM)]


class Questions:
    """Open questions; the oldest is shown."""

    def __init__(self) -> None:
        self._open: list[Question] = []
        self._shown_at = float("-inf")
        self._names: dict[str, str] = {}

    @property
    def current(self) -> Question | None:
        """The question that is shown."""
        return self._open[0] if self._open else None

    @property
    def waiting(self) -> int:
        """Number of open questions."""
        return len(self._open)

    def add(self, question: Question, now: float) -> bool:
        """Add a question, and return True if it is to be shown now."""
        for option in question.options:
            self._names.pop(option.id, None)
            self._names[option.id] = option.name or option.id
        while len(self._names) > NAMES:
            del self._names[next(iter(self._names))]
        self._open.append(question)
        if len(self._open) == 1:
            self._shown_at = now
        return len(self._open) == 1

    def remove(self, question_id: int | str, now: float) -> Question | None:
        """Remove a question, and return the one that is to be shown in its place, if there is one."""
        before = self.current
        self._open = [question for question in self._open if question.id != question_id]
        if self.current is before:
            return None
        self._shown_at = now
        return self.current

    def defer(self, now: float) -> None:
        """Let keys decide nothing for `TYPING_PAUSE` seconds."""
        self._shown_at = now + TYPING_PAUSE - PAUSE

    def note_shown(self, now: float) -> None:
        """Let keys decide nothing for `PAUSE` seconds: more of the question has come onto the screen."""
        self._shown_at = max(self._shown_at, now)

    def has(self, question_id: int | str) -> bool:
        """Return whether a question is open."""
        return any(question.id == question_id for question in self._open)

    def key(self, key: str, now: float) -> tuple[Question, Option] | None:
        """Return the question that a key answers, and the answer; None if it answers none."""
        question = self.current
        option = None if question is None else keys(question.options).get(key)
        if question is None or option is None or now < self._shown_at + PAUSE:
            return None
        return question, option

    def name_of(self, decision: str) -> str:
        """Return the name of the option that was chosen; of anything else the word itself."""
        return self._names.get(decision) or decision or "nothing"


def keys(options: Sequence[Option]) -> dict[str, Option]:
    """Return the keys for the answers: digits, `y` and `n` for the only one that allows or rejects once, `f` to fill in
    a form.

    Of several that allow once, each is another answer: the agent asks which.
    """
    chosen = dict(zip(_DIGITS, options, strict=False))
    for key, kind in (("y", "allow_once"), ("n", "reject_once"), ("f", FILL_IN)):
        alike = [option for option in options if option.kind == kind]
        if len(alike) == 1:
            chosen[key] = alike[0]
    return chosen


def question_lines(question: Question, tool: Tool | None = None) -> list[Line]:
    """Return the lines of a question: its title, the input of the tool, and the answers with their keys.

    `tool` is the tool call as it is known: agents need not repeat in a question what they have told before.
    """
    told = text_of(question.tool.get("title")) or (tool.title if tool else "") or text_of(question.tool.get("kind"))
    title = one_line(told) or "a tool"
    if question.is_form:
        return _form_lines(question, one_line(told) or "a form")
    lines: list[Line] = [[Span(f"? May the agent do this: {title}", Style.QUESTION)]]
    command = describe_input(question.tool.get("rawInput")) or (tool.input if tool else "")
    if command and command not in title:
        lines.append([Span(f"    $ {command}")])
    text = read_tool_content(question.tool.get("content")).text
    if text:
        cut = ["…"] if len(text) > TEXT_SIZE else []
        shown = [*escape(text[:TEXT_SIZE].strip("\r\n")).split("\n"), *cut]
        lines += [[Span(f"    {line}", Style.DIM)] for line in shown]
    lines.append([Span("  "), *option_spans(question.options)])
    return lines


def _form_lines(question: Question, title: str) -> list[Line]:
    lines: list[Line] = [[Span(f"? The agent asks: {title}", Style.QUESTION)]]
    if question.url:
        lines.append([Span(f"    {printable(question.url, URL_SIZE)}")])
    elif question.fields:
        named = ", ".join(field.label for field in question.fields)
        lines.append([Span(f"    {one_line(named)}", Style.DIM)])
    can_answer = len(question.options) > 1
    where = "  " if can_answer else "  Answer in an editor or on the page, or  "
    lines.append([Span(where), *option_spans(question.options)])
    return lines


def option_spans(options: Sequence[Option]) -> Line:
    """Return the answers in one line, with their keys."""
    key_of: dict[str, str] = {}
    for key, option in keys(options).items():
        key_of[option.id] = key
    spans: Line = []
    for option in options:
        if spans:
            spans.append(Span("   "))
        if option.id in key_of:
            spans.append(Span(f"[{key_of[option.id]}]", Style.QUESTION))
        spans.append(Span(f" {one_line(option.name or option.id)}"))
    return spans
