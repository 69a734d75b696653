"""The agent's question, above the prompt."""

from collections.abc import Callable
from typing import Any

import urwid

from acp_gateway.terminal.content import Option
from acp_gateway.terminal.conversation import Conversation
from acp_gateway.terminal.dialogue import Question
from acp_gateway.tui.markup import markup


class QuestionBox(urwid.WidgetWrap[Any]):
    """Shows the oldest open question, and answers it by keys while it has the focus.

    Args:
        conversation: the session.
        answer: called with the question and the answer.
        clock: returns seconds of the clock by which questions were added.
    """

    def __init__(
        self, conversation: Conversation, answer: Callable[[Question, Option], None], clock: Callable[[], float]
    ) -> None:
        self._conversation = conversation
        self._answer = answer
        self._clock = clock
        self._text = urwid.Text("")
        super().__init__(urwid.LineBox(self._text))
        self.show()

    def show(self) -> None:
        """Show the present question."""
        self._text.set_text(markup(self._conversation.question_lines()))

    def selectable(self) -> bool:
        """Return True while there is a question."""
        return self._conversation.questions.current is not None

    def keypress(self, size: Any, key: str) -> str | None:
        """Answer by a key of an option."""
        chosen = self._conversation.questions.key(key, self._clock())
        if chosen is None:
            return key
        self._answer(*chosen)
        return None
