"""Writes a session as it goes on: text as it streams, and a line for each event.

The history is written first, each block in its last state. After that a message is continued where it has ended, a tool
call gets a line when it begins and one when it ends, and a plan one for each change.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from acp_gateway.printable import counted
from acp_gateway.terminal.ansi import LEAST_COLUMNS, Pen, rows_of
from acp_gateway.terminal.content import Diff, Option
from acp_gateway.terminal.dialogue import (
    Answered,
    Asked,
    Closed,
    Decided,
    Event,
    Failed,
    Kept,
    Opened,
    Question,
    Queued,
    TurnEnded,
    TurnStarted,
    Updated,
    Withdrawn,
)
from acp_gateway.terminal.forms import TEXT_SIZE, Field, Filling
from acp_gateway.terminal.markdown import Markdown
from acp_gateway.terminal.port_lines import Port
from acp_gateway.terminal.questions import Questions, Review, option_spans, question_lines
from acp_gateway.terminal.rendering import (
    DEFAULT_LINES,
    MOST_DIFFS,
    PREFIXES,
    TEXT_STYLES,
    Line,
    Span,
    Style,
    escape,
    indented,
    more_diffs,
    one_line,
    render,
    render_diff,
    render_output,
    render_plan,
    styled,
    tool_line,
)
from acp_gateway.terminal.silence import Silence
from acp_gateway.terminal.transcript import (
    DEFAULT_SIZE,
    Block,
    Change,
    Kind,
    Level,
    Message,
    Plan,
    Tool,
    Transcript,
    end_words,
)

SHOWN_TOOLS: Final = 1000
"""Maximum of the tool calls whose written text is remembered; an older one is written again if it changes."""


SHOWN_PLANS: Final = 100
"""Maximum of the plans whose written text is remembered."""

_ERASE: Final = "\r\x1b[K"
"""Erases the line of the cursor (ECMA-48, ERASE IN LINE)."""

QUEUED_SIZE: Final = 60
"""Characters that are written of a prompt that waits."""

MOST_QUEUED: Final = 3
"""Maximum of the prompts that are named of those that wait."""

OVERLAP: Final = 200
"""Characters by which an output is found in a later one that has lost its beginning."""


@dataclass(slots=True)
class _Written:
    """A tool call as it was written."""

    title: str
    state: str
    diffs: list[Diff]
    seen: dict[str, str]
    """Outputs of terminals, as far as they were written."""
    lines: int = 0
    """Lines of them."""
    is_whole: bool = False
    """True if that is all of its output."""


STEERING: Final = Question(
    "acp-gateway",
    {},
    (),
    fields=(Field("text", "For the agent, within the turn that runs", "", "text", True, (), None, {}),),
)
"""The form for a text that steers, which no agent asks for."""


class Watcher:
    """Writes one session.

    Args:
        colour: write escape sequences for styles.
        last: number of blocks of the history to write, None for all.
        lines: lines of a diff or of an output that are written at most.
        size: characters of the history that are kept at most.
        columns: returns the columns of the terminal, to wrap at words; None not to wrap.
        rows: returns the rows of the terminal, so that a longer question is shown in parts; None to show it at once.
        erases: False for a terminal that can't erase a line: what is typed is repeated on the next one.
    """

    def __init__(
        self,
        *,
        colour: bool = False,
        last: int | None = None,
        lines: int = DEFAULT_LINES,
        size: int = DEFAULT_SIZE,
        columns: Callable[[], int] | None = None,
        rows: Callable[[], int] | None = None,
        erases: bool = True,
    ) -> None:
        self._transcript = Transcript(size)
        self._erase = _ERASE if erases else "\n"
        self._pen = Pen(colour=colour, columns=columns)
        self._last = last
        self._lines = lines
        self._questions = Questions()
        # False while the history comes.
        self._live = False
        self._has_turn = False
        self._is_up = True
        self._silence = Silence()
        # The message that is being written, and its last characters if it is not known yet how they are shown.
        self._stream: tuple[str, str, str] | None = None
        self._held = ""
        self._markdown = Markdown()
        # What was written of tool calls and plans.
        self._tools: dict[int, _Written] = {}
        self._plans: dict[int, Plan] = {}
        self._columns = columns
        self._rows = rows
        # The rest of the question that is shown, if it does not fit onto the screen.
        self._review: Review | None = None
        # The form that is filled in, what was typed for its present field, and the line that shows it.
        self._form: tuple[Question, Filling] | None = None
        self._typed = ""
        self._line = ""

    def take(self) -> str:
        """Return and forget the text to write now. The line that is being typed stays below all other text."""
        line = self._typed_line()
        if line:
            self._end_stream()
        text = self._pen.take()
        if not text and line == self._line:
            return ""
        erased = self._erase if self._line else ""
        self._line = line
        return erased + text + line

    @property
    def is_holding(self) -> bool:
        """True while characters of a message are held back, because the next ones tell how they are shown."""
        return self._markdown.is_holding

    def flush(self) -> None:
        """Write the characters that are held back: the agent makes a pause behind them."""
        self._pen.write(*styled(self._markdown.flush()))

    def receive(self, events: Sequence[Event], now: float) -> None:
        """Write events. `now`, in seconds of any clock, is when they have come."""
        for event in events:
            self._receive(event, now)

    @property
    def silence_due(self) -> float:
        """Time from which on the agent's silence is to be written, if it goes on."""
        works = self._has_turn or self._transcript.state == "running"
        waits = self._questions.current is not None or self._transcript.state == "requires_action"
        return self._silence.due if self._live and self._is_up and works and not waits else math.inf

    def write_silence(self, now: float) -> None:
        """Write for how long the agent has said nothing, if that is due."""
        if self.silence_due <= now:
            self._note(self._silence.words(now))
            self._silence.note_told(now)

    def link_changed(self, text: str, now: float, *, up: bool) -> None:
        """Write that the connection was lost, or is back."""
        self._is_up = up
        self._silence.end(now)
        self._note(text, Level.GOOD if up else Level.BAD)

    def note(self, text: str) -> None:
        """Write a line about the session."""
        self._note(text)

    def end(self) -> None:
        """End the line that was begun."""
        self._end_stream()

    def key(self, key: str, now: float) -> tuple[Question, Option] | None:
        """Return the question that a key answers, and the answer; None if it answers none.

        While rows of a question are hidden, a key that would allow it shows the next ones, as Space does.
        """
        answer = self._questions.key(key, now)
        review = self._review
        if review is None or review.is_over:
            return answer
        if answer is not None and not answer[1].kind.startswith("allow"):
            return answer
        if answer is not None or key == " ":
            self._end_stream()
            self._pen.lines(review.take(), wrap=False)
            self._questions.note_shown(now)
            if review.is_over and self._questions.current is not None:
                self._pen.lines([[Span("  "), *option_spans(self._questions.current.options)]])
        return None

    def answered(self, question_id: int | str, now: float) -> None:
        """Remove a question that needs no answer any more, and write the next one."""
        following = self._questions.remove(question_id, now)
        self._silence.end(now)
        if self._form is not None and self._form[0].id == question_id:
            self._form = None
            self._questions.defer(now)
        if following is not None:
            self._ask(following)

    @property
    def is_typing(self) -> bool:
        """True while a form is filled in: what is typed is for `type`."""
        return self._form is not None

    def begin_form(self, question: Question) -> None:
        """Ask for the fields of a form, one after the other."""
        self._form = (question, Filling(question.fields))
        self._ask_field()

    def type(self, text: str) -> tuple[Question, Mapping[str, object]] | None:
        """Take what was typed at once; return the form and its content after the last field.

        Enter ends a field, Esc the form. Other escape sequences are ignored, line breaks within a paste are spaces.
        """
        if self._form is None or (text[:1] == "\x1b" and text != "\x1b"):
            return None
        question, filling = self._form
        if text == "\x1b":
            self._form = None
            self._ask_again(self._questions.current if question is STEERING else question)
            return None
        for at, character in enumerate(text, 1):
            if character in "\r\n" and at == len(text):
                self._enter(filling)
            elif character in "\x7f\b":
                self._typed = self._typed[:-1]
            elif character == "\x15":
                self._typed = ""
            else:
                self._typed = (self._typed + (character if character.isprintable() else " "))[:TEXT_SIZE]
        if filling.field is not None:
            return None
        self._form = None
        if question is STEERING:
            self._ask_again(self._questions.current)
        return question, filling.content

    def _ask_again(self, question: Question | None) -> None:
        """Write the question that is open behind a form, if there is one."""
        if question is not None:
            self._ask(question)

    def _enter(self, filling: Filling) -> None:
        field = filling.field
        if field is None:
            return
        self._pen.lines([[Span(field.caption() + escape(self._typed))]])
        try:
            filling.enter(self._typed)
        except ValueError as error:
            self._pen.lines([[Span(f"    {error}", Style.BAD)]])
            self._typed = ""
        else:
            self._ask_field()

    def _ask_field(self) -> None:
        self._typed = ""
        if self._form is not None and self._form[1].field is not None:
            self._end_stream()
            self._pen.lines(self._form[1].field.lines())

    def _typed_line(self) -> str:
        """Return the line in which a field is typed; of a long text its end. Empty without a form."""
        field = None if self._form is None else self._form[1].field
        if field is None:
            return ""
        caption = field.caption()
        room = max((self._columns() if self._columns else 80) - len(caption) - 1, LEAST_COLUMNS)
        return caption + escape(self._typed)[-room:]

    def _receive(self, event: Event, now: float) -> None:
        match event:
            case Updated():
                self._silence.end(now)
                before = self._transcript.state
                self._show_all(self._transcript.apply(event.update, event.lane))
                self._show_state(before, self._transcript.state)
            case Opened():
                self._silence.end(now)
                self._open(event)
            case Asked():
                self._show_all(self._transcript.apply(event.question.update, event.question.lane))
                if self._questions.add(event.question, now):
                    self._ask(event.question)
            case Withdrawn():
                self.answered(event.id, now)
            case Decided():
                name = self._questions.name_of(event.decision)
                self._note(f"{event.by or 'the gateway'} has decided: {name}")
            case TurnStarted():
                self._has_turn = True
                self._silence.end(now)
                if not event.running:
                    self._transcript.end_turn()
            case TurnEnded():
                self._has_turn = False
                self._transcript.end_turn()
                if not event.needs_no_words:
                    self._note(*describe_end(event))
            case Queued():
                if event.count:
                    self._note(describe_queue(event))
            case Failed():
                self._note(f"refused: {event.text}", Level.BAD)
            case Closed():
                self._note(event.text, Level.BAD)

    def _open(self, event: Opened) -> None:
        """Write the history."""
        if self._live:
            return
        self._live = True
        self._transcript.mode = event.mode or self._transcript.mode
        self._transcript.state = event.state
        blocks = self._transcript.blocks
        first = 0 if self._last is None else max(len(blocks) - self._last, 0)
        left_out = first + self._transcript.dropped
        if left_out and self._last != 0:
            self._pen.lines([[Span(f"-- not shown: {left_out} older", Style.DIM)]])
        for block in islice(blocks, first, None):
            self._show(Change(block, new=True, added=block.text if isinstance(block, Message) else ""))
        self.flush()
        for block in islice(blocks, first):
            self._remember(block)
        if self._questions.current is not None:
            self._ask(self._questions.current)
        self._show_state("", event.state)

    def _remember(self, block: Block) -> None:
        """Treat a block of the history as written."""
        if isinstance(block, Tool):
            state = block.status if block.is_over else ""
            self._tools[block.number] = _Written(block.title, state, block.diffs, _terminals(block))

    def _show_all(self, changes: Sequence[Change]) -> None:
        if self._live:
            for change in changes:
                self._show(change)

    def _show(self, change: Change) -> None:
        match change.block:
            case Message():
                self._show_text(change.block, change.added, new=change.new)
            case Tool():
                self._show_tool(change.block)
            case Plan():
                self._show_plan(change.block)
            case block:
                if change.new:
                    self._end_stream()
                    self._pen.lines(render(block))

    # Messages

    def _show_text(self, message: Message, added: str, *, new: bool) -> None:
        stream = (message.kind.value, message.lane, message.message_id)
        if stream != self._stream or (new and not message.continued):
            self._end_stream()
            if not self._pen.is_empty:
                self._pen.new_line()
            self._stream = stream
        text = self._held + added
        # A final line break is not written before something follows it, and CR LF is one.
        shown = text.rstrip("\r\n")
        self._held = text[len(shown) :]
        if shown:
            self._write_text(message, shown)

    def _write_text(self, message: Message, text: str) -> None:
        margin = indented([[PREFIXES[message.kind]]], message.lane)[0]
        style = TEXT_STYLES[message.kind]
        lines = escape(text).split("\n")
        for count, line in enumerate(lines, 1):
            if self._pen.at_start:
                self._pen.margin(*margin)
            ends = count < len(lines)
            if message.kind is Kind.AGENT:
                self._pen.write(*styled(self._markdown.add(line, ends=ends)))
            else:
                self._pen.write(Span(line, style))
            if ends:
                self._pen.new_line()

    def _end_stream(self) -> None:
        self._stream = None
        self._pen.write(*styled(self._markdown.add("", ends=True)))
        self._markdown = Markdown()
        self._held = ""
        self._pen.end_line()

    # Tool calls and plans

    def _show_tool(self, tool: Tool) -> None:
        written = self._tools.pop(tool.number, None)
        is_new = written is None
        # What a tool call that is over when it is first seen has written is not shown.
        written = written or _Written("", "", [], _terminals(tool) if tool.is_over else {})
        state = tool.status if tool.is_over else ""
        if not is_new:
            self._show_output(tool, written)
        if (tool.title, state) != (written.title, written.state):
            self._end_stream()
            self._pen.lines(indented([tool_line(tool)], tool.lane))
            if state == "failed" and tool.output and not written.is_whole:
                self._pen.lines(indented(render_output(tool.output, lines=self._lines), tool.lane), wrap=False)
        if is_new:
            self._show_output(tool, written)
        shown = tool.diffs[:MOST_DIFFS]
        for diff in shown:
            if diff not in written.diffs:
                self._end_stream()
                lines = render_diff(diff, lines=self._lines)
                if diff is shown[-1] and len(tool.diffs) > MOST_DIFFS:
                    lines.append(more_diffs(tool))
                self._pen.lines(indented(lines, tool.lane), wrap=False)
        written.title, written.state, written.diffs = tool.title, state, shown
        self._tools[tool.number] = written
        if len(self._tools) > SHOWN_TOOLS:
            del self._tools[next(iter(self._tools))]

    def _show_output(self, tool: Tool, written: "_Written") -> None:
        """Write the lines that were added to terminals, up to a number for each tool call."""
        for name, text in _terminals(tool).items():
            before = written.seen.get(name, "")
            end = len(text) if tool.is_over else text.rfind("\n") + 1
            added = _added(before, text[:end])
            written.seen[name] = text[:end]
            room = self._lines - written.lines
            if not added or room < 0:
                continue
            lines = render_output(added, lines=sys.maxsize)
            written.lines += len(lines)
            if len(lines) > room:
                lines = [*lines[:room], [Span("    … more follows", Style.DIM)]]
            self._end_stream()
            self._pen.lines(indented(lines, tool.lane), wrap=False)
        written.is_whole = 0 < written.lines <= self._lines and len(written.seen) == len(tool.outputs)
        if tool.is_over:
            # No more is written, as after all that it has.
            written.seen = dict.fromkeys(written.seen, "")
            written.lines = sys.maxsize

    def _show_plan(self, plan: Plan) -> None:
        before = self._plans.pop(plan.number, None)
        self._plans[plan.number] = replace(plan, entries=list(plan.entries))
        if len(self._plans) > SHOWN_PLANS:
            del self._plans[next(iter(self._plans))]
        if before == plan:
            return
        self._end_stream()
        lines = indented(render_plan(plan), plan.lane)
        if before is not None and not plan.is_removed:
            former = before.entries
            if [entry.text for entry in former] == [entry.text for entry in plan.entries]:
                # The heading, and what is new.
                old = zip(lines[1:], former, plan.entries, strict=True)
                lines = [lines[0], *(line for line, one, other in old if one != other)]
        self._pen.lines(lines)

    # Questions and notes

    def _ask(self, question: Question) -> None:
        if self._live:
            self._end_stream()
            tool = self._transcript.tool(question.tool.get("toolCallId"), question.lane)
            lines = question_lines(question, tool)
            self._review = self._review_of(tool, lines)
            self._pen.lines(lines if self._review is None else [lines[0], self._review.place(), lines[-1]])

    def _review_of(self, tool: Tool | None, lines: list[Line]) -> Review | None:
        """Return what is to be shown in parts of a question with these lines; None if all of it is on the screen."""
        if self._rows is None or self._columns is None:
            return None
        # The bottom row is for the cursor, and two rows are for the place and the answers.
        height, width = self._rows() - 1, max(self._columns() - 1, LEAST_COLUMNS)
        diffs = [] if tool is None else tool.diffs
        texts = [text for diff in diffs for text in (diff.old, diff.new)]
        most = sum(text.count("\n") + len(text) // width + 3 for text in texts) + len(rows_of(lines, width))
        if most <= min(height, self._lines) and len(diffs) <= MOST_DIFFS:
            return None
        whole = [render_diff(diff, lines=sys.maxsize) for diff in diffs]
        rows = rows_of([*(line for diff in whole for line in diff), *lines[:-1]], width)
        is_cut = len(diffs) > MOST_DIFFS or any(len(diff) - 1 > self._lines for diff in whole)
        return Review(rows, height - 2) if is_cut or len(rows) >= height else None

    def _show_state(self, before: str, now: str) -> None:
        """Write that the agent waits for a person, unless a question says it, or works without a prompt."""
        if not self._live or now == before:
            return
        if now == "requires_action" and self._questions.current is None:
            self._note("the agent waits for a person")
        elif now == "running" and not before:
            self._note("the agent works by itself")

    def _note(self, text: str, level: Level = Level.INFO) -> None:
        self._show_all([self._transcript.note(text, level)])


def _terminals(tool: Tool) -> dict[str, str]:
    """Return the outputs of a tool call's terminals, by their ids."""
    return {output.terminal: output.text for output in tool.outputs if output.terminal}


def _added(before: str, text: str) -> str:
    """Return what was added to a text, whose beginning may have been cut off; all of it if it was replaced."""
    if text.startswith(before):
        return text[len(before) :]
    end = before[-OVERLAP:]
    at = text.rfind(end)
    return text if at < 0 else text[at + len(end) :]


def describe_end(event: TurnEnded) -> tuple[str, Level]:
    """Return what is written at the end of a turn."""
    return end_words(event.stop_reason, event.error, event.why)


def describe_queue(event: Queued) -> str:
    """Return what is written of the prompts that wait: who has sent each, and its first words, in order."""
    notes = [""] * (len(event.prompts) - len(event.kept)) + [_wait_of(one) for one in event.kept]
    told = [_queued_prompt(*one) + note for one, note in zip(event.prompts, notes, strict=True)]
    if event.count == 1 and told:
        return f"1 prompt waits: {told[0]}"
    named = [f"{at}. {one}" for at, one in enumerate(told[:MOST_QUEUED], 1)]
    more = [f"{event.count - len(named)} more"] if event.count > len(named) else []
    return f"{counted(event.count, 'prompt waits', 'prompts wait')}: {'; '.join(named + more)}"


def _queued_prompt(by: str, text: str) -> str:
    words = " ".join(text.split())
    return f"{by}: {words if len(words) <= QUEUED_SIZE else f'{words[: QUEUED_SIZE - 1]}…'}"


def _wait_of(kept: Kept) -> str:
    """Return what is written of what a prompt waits for, other than the end of a turn."""
    if kept.state == "timed":
        return f" (to be sent {datetime.fromtimestamp(kept.due // 1000, UTC):%Y-%m-%d %H:%M} UTC)"
    return (
        " (may have reached the agent, is not sent again)" if kept.state == "lost" else " (until it is sent or removed)"
    )


def json_line(event: Event) -> str:
    """Return an event as one line of JSON, without control characters."""
    match event:
        case Updated():
            members: dict[str, Any] = {"type": "update", "update": event.update}
            members |= {"sub": event.lane} if event.lane else {}
        case Opened():
            members = {"type": "opened", "sessionId": event.session, "modeId": event.mode or None}
        case Asked():
            options = [{"optionId": one.id, "name": one.name, "kind": one.kind} for one in event.question.options]
            tool = event.question.tool
            members = {"type": "asked", "requestId": event.question.id, "toolCall": tool, "options": options}
        case Withdrawn():
            members = {"type": "withdrawn", "requestId": event.id}
        case Decided():
            members = {"type": "decided", "by": event.by or None, "decision": event.decision or None}
        case TurnStarted():
            members = {"type": "turn_started", "by": event.by or None}
        case TurnEnded():
            members = {"type": "turn_ended", "stopReason": event.stop_reason or None, "reason": event.why or None}
            members |= {"error": event.error} if event.error else {}
            members |= {"time": event.time} if event.is_past else {}
        case Queued():
            prompts: list[dict[str, Any]] = [{"by": by or None, "text": text} for by, text in event.prompts]
            for one, kept in zip(prompts[len(prompts) - len(event.kept) :], event.kept, strict=True):
                one |= {"state": kept.state, "due": kept.due or None}
            members = {"type": "queue", "count": event.count, "prompts": prompts}
        case Answered():
            members = {"type": "answered", "stopReason": event.stop_reason or None}
        case Failed():
            members = {"type": "failed", "method": event.method, "message": event.text}
        case Closed():
            members = {"type": "closed", "message": event.text}
    return line_of(members)


def line_of(members: Mapping[str, Any]) -> str:
    """Return an object as one line of JSON, without control characters."""
    # The one control character that JSON does not escape.
    return json.dumps(members).replace("\x7f", "\\u007f") + "\n"


def ports_json_line(ports: Sequence[Port], forward: str | None) -> str:
    """Return the ports of the session's programs as one line of JSON, with the way to the first."""
    told = [{"port": port.number, "program": port.program} for port in ports]
    return line_of({"type": "ports", "ports": told, "forward": forward})


def link_json_line(*, up: bool, text: str) -> str:
    """Return a change of the connection as one line of JSON."""
    return line_of({"type": "connected" if up else "disconnected", "message": one_line(text)})
