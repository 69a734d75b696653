"""The transcript of a session as a list that follows its end, unless it was scrolled back."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import urwid

from acp_gateway.terminal.rendering import DEFAULT_LINES, Line, render
from acp_gateway.terminal.transcript import Block, Change, Message, Transcript
from acp_gateway.tui.markup import Markup, markup


class BlockRow(urwid.Widget):
    """A block of a transcript, which is rendered when it comes onto the screen.

    Args:
        block: the block.
        draw: returns the markup of a block.
    """

    _sizing = frozenset([urwid.Sizing.FLOW])

    def __init__(self, block: Block, draw: Callable[[Block], Markup]) -> None:
        super().__init__()
        self._block = block
        self._draw = draw
        self._text: urwid.Text | None = None

    def changed(self) -> None:
        """Render the block again."""
        self._text = None
        self._invalidate()

    def selectable(self) -> bool:
        """Return False: it can't have the focus."""
        return False

    def rows(self, size: Any, focus: bool = False) -> int:
        """Return the number of rows."""
        rows: int = self._rendered().rows(size, focus)
        return rows

    def render(self, size: Any, focus: bool = False) -> Any:
        """Draw the block."""
        return urwid.CompositeCanvas(self._rendered().render(size, focus))

    def _rendered(self) -> urwid.Text:
        if self._text is None:
            self._text = urwid.Text(self._draw(self._block))
        return self._text


class TranscriptBox(urwid.ListBox[Any]):
    """Shows a transcript.

    Args:
        transcript: the transcript; `show` follows its changes.
        lines: lines of a diff or of an output that are shown at most.
    """

    def __init__(self, transcript: Transcript, *, lines: int = DEFAULT_LINES) -> None:
        self._transcript = transcript
        self._lines = lines
        self._details = False
        self._blocks: dict[int, BlockRow] = {}
        self._numbers: deque[int] = deque()
        self._rows: Any = urwid.SimpleFocusListWalker([])
        self._follows = True
        self._size = (80, 24)
        super().__init__(self._rows)

    @property
    def follows(self) -> bool:
        """True while the end is shown, also of what comes later."""
        return self._follows

    def show(self, changes: Sequence[Change]) -> None:
        """Show changes of the transcript."""
        for change in changes:
            row = self._blocks.get(change.block.number)
            if row is not None:
                row.changed()
            elif change.new:
                self._append(change.block)
        first = self._transcript.blocks[0].number if self._transcript.blocks else 0
        while self._numbers and self._numbers[0] < first:
            del self._blocks[self._numbers.popleft()]
            del self._rows[0]

    def show_all(self) -> None:
        """Show the whole transcript from its beginning."""
        self._blocks.clear()
        self._numbers.clear()
        del self._rows[:]
        for block in self._transcript.blocks:
            self._blocks[block.number] = BlockRow(block, self._markup)
        self._numbers.extend(self._blocks)
        self._rows[:] = self._blocks.values()

    def toggle_details(self) -> None:
        """Show the inputs and outputs of all tool calls, or not any more."""
        self._details = not self._details
        for row in self._blocks.values():
            row.changed()

    def scroll(self, key: str) -> None:
        """Scroll by a key: page up, page down, home, end, up, down."""
        if not self._rows:
            return
        if key == "end":
            self._follows = True
        else:
            self._follows = False
            self.keypress(self._size, key)
            self._follows = key != "home" and "bottom" in self.ends_visible(self._size)
        self._invalidate()

    def render(self, size: Any, focus: bool = False) -> Any:
        """Draw the list; at its end, unless it was scrolled back."""
        self._size = size
        if self._follows and self._rows:
            self._rows.set_focus(len(self._rows) - 1)
            # Also a last row that is higher than the list ends at its bottom.
            self.shift_focus(size, size[1] - self._rows[-1].rows(size[:1]))
        return super().render(size, focus)

    def _append(self, block: Block) -> None:
        row = self._blocks[block.number] = BlockRow(block, self._markup)
        self._numbers.append(block.number)
        self._rows.append(row)

    def _markup(self, block: Block) -> Markup:
        lines: list[Line] = render(block, lines=self._lines, details=self._details)
        apart = isinstance(block, Message) and not block.continued
        return markup([[], *lines] if apart else lines)
