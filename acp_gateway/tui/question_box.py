"""The agent's question, above the prompt."""

from collections.abc import Callable
from typing import Any, Final

import urwid

from acp_gateway.terminal.content import Option
from acp_gateway.terminal.conversation import Conversation
from acp_gateway.terminal.dialogue import Question
from acp_gateway.terminal.rendering import Span, Style
from acp_gateway.tui.markup import markup

MOST_ROWS: Final = 6
"""Rows of a question that are shown at a time: its answers stay visible on a terminal of 16 rows."""

_STEPS: Final = {"down": MOST_ROWS, "up": -MOST_ROWS}


class QuestionBox(urwid.WidgetWrap[Any]):
    """Shows the oldest open question, and answers it by keys while it has the focus.

    A long question is shown in parts. Its answers that allow something count when all of it was shown: the end of a
    command matters most.

    Args:
        conversation: the session.
        answer: called with the question and the answer.
        clock: returns seconds of the clock by which questions were added.
    """

    # What is shown depends on the width, and is noted as seen.
    no_cache = ("render", "rows")

    def __init__(
        self, conversation: Conversation, answer: Callable[[Question, Option], None], clock: Callable[[], float]
    ) -> None:
        self._conversation = conversation
        self._answer = answer
        self._clock = clock
        self._asked = _Window()
        self._answers = urwid.Text("")
        self._question: Question | None = None
        super().__init__(urwid.LineBox(urwid.Pile([("pack", self._asked), ("pack", self._answers)])))
        self.show()

    def show(self) -> None:
        """Show the present question."""
        questions = self._conversation.questions
        if questions.current is not self._question:
            self._question = questions.current
            self._asked.first = self._asked.seen = 0
        lines = self._conversation.question_lines()
        # The answers, and how many other questions wait.
        end = len(lines) - (2 if questions.waiting > 1 else 1)
        self._asked.text.set_text(markup(lines[: max(end, 0)]))
        self._last = lines[max(end, 0) :]
        self._answers.set_text(markup(self._last))

    def selectable(self) -> bool:
        """Return True while there is a question."""
        return self._conversation.questions.current is not None

    def render(self, size: Any, focus: bool = False) -> Any:
        """Return the canvas."""
        self._fit(size)
        canvas = super().render(size, focus)
        self._asked.note_seen()
        return canvas

    def rows(self, size: Any, focus: bool = False) -> int:
        """Return the rows that it takes."""
        self._fit(size)
        return int(super().rows(size, focus))

    def _fit(self, size: Any) -> None:
        """Say which rows are shown, where not all are."""
        self._asked.fit(size[0] - 2)
        first, total = self._asked.first, self._asked.total
        if total > MOST_ROWS:
            told = f"  rows {first + 1}-{first + MOST_ROWS} of {total}: Down, Up; it can be allowed after the last"
            self._answers.set_text(markup([[Span(told, Style.DIM)], *self._last]))
        else:
            self._answers.set_text(markup(self._last))

    def keypress(self, size: Any, key: str) -> str | None:
        """Answer by a key of an option, or scroll."""
        chosen = self._conversation.questions.key(key, self._clock())
        is_hidden = self._asked.seen < self._asked.total
        if chosen is not None and not (is_hidden and chosen[1].kind.startswith("allow")):
            self._answer(*chosen)
            return None
        step = _STEPS.get(key, MOST_ROWS if chosen is not None else 0)
        if not step or self._asked.total <= MOST_ROWS:
            return key
        self._asked.first = max(self._asked.first + step, 0)
        self._fit(size)
        self._invalidate()
        return None


class _Window(urwid.Widget):
    """Some rows of a text, from the row `first` on."""

    _sizing = frozenset([urwid.FLOW])
    _selectable = False
    no_cache = ("render", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.text = urwid.Text("")
        self.first = 0
        self.total = 0
        """Rows of the whole text in the present width."""
        self.seen = 0
        """Rows up to which all were shown."""

    def fit(self, width: int) -> None:
        """Take the width into account."""
        self.total = self.text.rows((width,))
        self.first = min(self.first, max(self.total - MOST_ROWS, 0))

    def note_seen(self) -> None:
        """Note that the rows of the window were shown; only those that follow what was shown before count."""
        if self.first <= self.seen:
            self.seen = max(self.seen, self.first + MOST_ROWS)

    def rows(self, size: Any, focus: bool = False) -> int:
        """Return the rows that it takes."""
        return min(int(self.text.rows(size)), MOST_ROWS)

    def render(self, size: Any, focus: bool = False) -> Any:
        """Return the canvas."""
        canvas = urwid.CompositeCanvas(self.text.render(size))
        if self.total > MOST_ROWS:
            canvas.trim(self.first, MOST_ROWS)
        return canvas
