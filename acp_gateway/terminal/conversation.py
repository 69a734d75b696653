"""The state of one session that a person takes part in: its transcript, its questions, its turn and its mode."""

from collections.abc import Sequence

from acp_gateway.terminal.content import block_text, text_of
from acp_gateway.terminal.dialogue import (
    Asked,
    Closed,
    Decided,
    Event,
    Failed,
    Kept,
    Opened,
    Queued,
    TurnEnded,
    TurnStarted,
    Updated,
    Withdrawn,
)
from acp_gateway.terminal.questions import Questions, question_lines
from acp_gateway.terminal.rendering import Line, Span, Style
from acp_gateway.terminal.silence import Silence
from acp_gateway.terminal.transcript import DEFAULT_SIZE, Change, Level, Transcript
from acp_gateway.terminal.watching import describe_end, describe_queue


class Conversation:
    """One session.

    Args:
        size: characters of the transcript that are kept at most.
    """

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self.transcript = Transcript(size)
        self.questions = Questions()
        self.kept: tuple[Kept, ...] = ()
        """Prompts that wait for a time or a person."""
        self.is_open = False
        """True once the session is open and its history is complete."""
        self.is_over = False
        """True after the session was closed or deleted."""
        self._has_turn = False
        self.silence = Silence()
        """That of the agent while it works and nothing is asked."""
        self.modes: tuple[tuple[str, str], ...] = ()
        """Ids and names of the modes that can be set."""
        # The text of the last prompt that the agent may repeat, and how much of it has come.
        self._echo = ""
        # What the last request was refused with.
        self._refusal = ""

    @property
    def mode(self) -> str:
        """The name of the present mode; empty if unknown."""
        return dict(self.modes).get(self.transcript.mode, self.transcript.mode)

    @property
    def is_working(self) -> bool:
        """True while the agent works, on a prompt or by itself."""
        return self._has_turn or bool(self.transcript.state)

    @property
    def needs_action(self) -> bool:
        """True while the agent waits for a person, perhaps without a question that can be answered here."""
        return self.transcript.state == "requires_action"

    def question_lines(self) -> list[Line]:
        """Return the lines of the question that is shown, with the number of those behind it; none without one."""
        question = self.questions.current
        if question is None:
            return []
        tool = self.transcript.tool(question.tool.get("toolCallId"), question.lane)
        lines = question_lines(question, tool)
        if self.questions.waiting > 1:
            lines.append([Span(f"  {self.questions.waiting - 1} more after this one", Style.DIM)])
        return lines

    def receive(self, events: Sequence[Event], now: float) -> list[Change]:
        """Take events that have come at `now` (seconds of any clock), and return the changes of the transcript."""
        return [change for event in events for change in self._receive(event, now)]

    def answered(self, question_id: int | str, now: float) -> None:
        """Remove a question that needs no answer any more."""
        self.questions.remove(question_id, now)
        self.silence.end(now)

    def prompted(self, text: str) -> list[Change]:
        """Add a prompt that is being sent: the gateway shows it to all other clients."""
        self.transcript.end_turn()
        changes = self._chunk(text)
        self._echo = text
        return changes

    def note(self, text: str, level: Level = Level.INFO) -> list[Change]:
        """Add a line about the session."""
        return [self.transcript.note(text, level)]

    def _chunk(self, text: str) -> list[Change]:
        content = {"type": "text", "text": text}
        return self.transcript.apply({"sessionUpdate": "user_message_chunk", "content": content})

    def _receive(self, event: Event, now: float) -> list[Change]:
        match event:
            case Updated():
                self.silence.end(now)
                return [] if self._is_echo(event) else self.transcript.apply(event.update, event.lane)
            case Opened():
                self.is_open, self.modes = True, event.modes
                self.transcript.mode = event.mode or self.transcript.mode
                self.transcript.state = event.state
                self.silence.end(now)
            case Asked():
                self.questions.add(event.question, now)
                return self.transcript.apply(event.question.update, event.question.lane)
            case Withdrawn():
                self.answered(event.id, now)
            case Decided():
                name = self.questions.name_of(event.decision)
                return self.note(f"{event.by or 'the gateway'} has decided: {name}")
            case TurnStarted():
                self._has_turn, self._refusal = True, ""
                self.silence.end(now)
            case TurnEnded():
                self._has_turn, self._echo = False, ""
                self.transcript.end_turn()
                # The error that ends a turn is also the response to its prompt.
                is_told = event.error != "" and event.error == self._refusal
                return [] if is_told or event.needs_no_words else self.note(*describe_end(event))
            case Queued():
                self.kept = event.kept
                return self.note(describe_queue(event)) if event.count else []
            case Failed():
                self._refusal = event.text
                return self.note(f"refused: {event.text}", Level.BAD)
            case Closed():
                self.is_over = True
                return self.note(event.text, Level.BAD)
        return []

    def _is_echo(self, event: Updated) -> bool:
        """Return True if an update repeats the prompt of this client, which is shown already."""
        if not self._echo or event.lane:
            return False
        text = block_text(event.update.get("content"))
        if text_of(event.update.get("sessionUpdate")) != "user_message_chunk" or not self._echo.startswith(text):
            self._echo = ""
            return False
        self._echo = self._echo[len(text) :]
        return True
