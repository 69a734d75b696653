"""Writes lines of styled text for a terminal, wrapped at words, or as plain text for a pipe."""

import unicodedata
from collections.abc import Callable, Iterable
from typing import Final

from acp_gateway.terminal.rendering import Line, Span, Style

LEAST_COLUMNS: Final = 20
"""Columns below which nothing is wrapped: most words would not fit."""


class Wrapping:
    """The place in a line that is written in pieces.

    A word whose end does not fit is taken back by backspaces and written into the next row: its beginning may have come
    before.

    Args:
        columns: returns the columns of the terminal.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self.begin_line()

    def begin_line(self) -> None:
        """Begin another line."""
        self._column = self._indent = 0
        # The characters since the last place where the row may end.
        self._word = ""

    def indent(self) -> None:
        """Begin the following rows of the line in the present column."""
        self._indent, self._word = self._column, ""

    def add(self, text: str) -> str:
        """Return what writes more of the line: the text, with the line breaks that it needs."""
        # A terminal may wait in its last column, where a backspace leads elsewhere.
        width = self._columns() - 1
        if width < LEAST_COLUMNS:
            return text
        indent = min(self._indent, width // 2)
        parts = []
        while (fitting := _fitting(text, width - self._column)) < len(text):
            end = _last_break(text, fitting)
            if end or (not cells(self._word) and self._column > indent):
                parts.append(text[:end].rstrip(" "))
                text = text[end:]
            elif self._column - cells(self._word) > indent:
                back = cells(self._word)
                parts.append("\b" * back + " " * back)
                text = self._word + text
            else:  # The word is longer than a row.
                parts.append(text[:fitting])
                text = text[fitting:]
            parts.append("\n" + " " * indent)
            self._column, self._word = indent, ""
            text = text.lstrip(" ")
        self._column += cells(text)
        end = _last_break(text, len(text))
        self._word = text[end:] if end else self._word + text
        return "".join([*parts, text])


def cells(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(_width, text))


def rows_of(lines: Iterable[Line], width: int) -> list[Line]:
    """Return lines as rows of at most so many columns."""
    rows = []
    for line in lines:
        row: Line = []
        room = width
        for text, style in line:
            while len(text) > (fitting := max(_fitting(text, room), 0 if row else 1)):
                rows.append([*row, Span(text[:fitting], style)])
                text, row, room = text[fitting:], [], width
            row.append(Span(text, style))
            room -= cells(text)
        rows.append(row)
    return rows


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _fitting(text: str, room: int) -> int:
    """Return the number of characters that fit into so many columns."""
    if text.isascii():
        return min(len(text), max(0, room))
    used = 0
    for at, character in enumerate(text):
        used += _width(character)
        if used > room:
            return at
    return len(text)


def _last_break(text: str, fitting: int) -> int:
    """Return where the row may end last, within the characters that fit: behind a space or a wide character; else 0.

    A space behind them needs no column.
    """
    end = text.rfind(" ", 0, fitting + 1) + 1
    if text.isascii():
        return end
    # Chinese and Japanese have no spaces.
    return max(end, next((at for at in range(fitting, end, -1) if _width(text[at - 1]) == 2), 0))


_RESET: Final = "\x1b[0m"

_SGR: Final = {
    Style.USER: "1;36",
    Style.THOUGHT: "2;3",
    Style.DIM: "2",
    Style.TOOL: "1",
    Style.GOOD: "32",
    Style.BAD: "31",
    Style.RUNNING: "33",
    Style.ADDED: "32",
    Style.REMOVED: "31",
    Style.HUNK: "36",
    Style.QUESTION: "1;33",
    Style.HEADING: "1;4",
    Style.STRONG: "1",
    Style.CODE: "36",
    Style.LINK: "4",
}
"""Parameters of SELECT GRAPHIC RENDITION (ECMA-48); 16 colours, which follow the terminal's own palette."""


class Pen:
    """Collects styled text, and knows where its last line has ended.

    Args:
        colour: write escape sequences for styles; without, the text has no control character but line feeds and, with
            `columns`, backspaces.
        columns: returns the columns of the terminal, to wrap lines at words; None to leave lines as they are.
    """

    def __init__(self, *, colour: bool, columns: Callable[[], int] | None = None) -> None:
        self._colour = colour
        self._wrapping = None if columns is None else Wrapping(columns)
        self._parts: list[str] = []
        self.at_start = True
        """True at the beginning of a line."""
        self.is_empty = True
        """True until something was written."""

    def margin(self, *spans: Span) -> None:
        """Write the beginning of a line, behind which its other rows begin as well."""
        self.write(*spans)
        if self._wrapping is not None:
            self._wrapping.indent()

    def write(self, *spans: Span, wrap: bool = True) -> None:
        """Write spans; with `wrap`, at words where they are too long for the terminal."""
        for text, style in spans:
            if text:
                sgr = _SGR.get(style) if self._colour else None
                shown = self._wrapping.add(text) if wrap and self._wrapping is not None else text
                self._parts.append(f"\x1b[{sgr}m{shown}{_RESET}" if sgr else shown)
                self.at_start = self.is_empty = False

    def end_line(self) -> None:
        """End the line that was begun, if any."""
        if not self.at_start:
            self.new_line()

    def new_line(self) -> None:
        """End the line, even an empty one."""
        self._parts.append("\n")
        if self._wrapping is not None:
            self._wrapping.begin_line()
        self.at_start = True
        self.is_empty = False

    def lines(self, lines: Iterable[Line], *, wrap: bool = True) -> None:
        """Write whole lines. Code is better not wrapped at words."""
        for line in lines:
            self.write(*line, wrap=wrap)
            self.new_line()

    def take(self) -> str:
        """Return and forget what was written."""
        text = "".join(self._parts)
        self._parts.clear()
        return text
