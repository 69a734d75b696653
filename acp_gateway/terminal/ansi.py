"""Writes lines of styled text for a terminal, or as plain text for a pipe."""

from collections.abc import Callable, Iterable
from typing import Final

from acp_gateway.terminal.rendering import Line, Span, Style
from acp_gateway.terminal.wrapping import Wrapping

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
