"""Lists of lines to choose one from by Enter: sessions, modes, agents."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import urwid

from acp_gateway.terminal.rendering import Line
from acp_gateway.tui.markup import FOCUS, PALETTE, markup


class Row(urwid.WidgetWrap[Any]):
    """A line that can be chosen.

    Args:
        value: stands for it.
        line: the line; what does not fit is cut.
    """

    def __init__(self, value: Hashable, line: Line) -> None:
        self.value = value
        text = urwid.Text(markup([line]), wrap="ellipsis")
        super().__init__(urwid.AttrMap(text, None, dict.fromkeys([None, *(name for name, *_ in PALETTE)], FOCUS)))

    def selectable(self) -> bool:
        """Return True: it can have the focus."""
        return True

    def keypress(self, size: Any, key: str) -> str | None:
        """Return the key: the list handles it."""
        return key


class ChoiceList(urwid.ListBox[Any]):
    """A list to choose from.

    Args:
        choose: called with the value of the row that was chosen.
    """

    def __init__(self, choose: Callable[[Any], None]) -> None:
        self._rows: Any = urwid.SimpleFocusListWalker([])
        self._choose = choose
        super().__init__(self._rows)

    @property
    def value(self) -> Any:
        """The value of the row in focus; None if there is none."""
        return self._rows[self._rows.focus].value if self._rows else None

    def show(self, rows: Sequence[tuple[Hashable, Line]]) -> None:
        """Show other rows. The value in focus keeps it; if it is gone, the first row gets it."""
        before = self.value
        self._rows[:] = [Row(value, line) for value, line in rows]
        if self._rows:
            self._rows.set_focus(next((at for at, row in enumerate(self._rows) if row.value == before), 0))

    def keypress(self, size: Any, key: str) -> str | None:
        """Choose by Enter, and move by arrows."""
        if key == "enter" and self._rows:
            self._choose(self.value)
            return None
        unhandled: str | None = super().keypress(size, key)
        return unhandled
