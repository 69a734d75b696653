"""A session that is open in the program: its link, its state and its widgets."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import trio
import urwid

from acp_gateway import __version__
from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports.session_ports import SessionPorts
from acp_gateway.client.session_link import SessionLink
from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.errors import GatewayError
from acp_gateway.protocol.methods import REQUEST_PERMISSION
from acp_gateway.terminal.content import Option, list_of
from acp_gateway.terminal.conversation import Conversation
from acp_gateway.terminal.dialogue import FILL_IN, Dialogue, Event, Question
from acp_gateway.terminal.port_lines import Port, tell_ports
from acp_gateway.terminal.rendering import DEFAULT_LINES, Line, Span, Style, render
from acp_gateway.terminal.transcript import Block, Change, Level, Message, Transcript
from acp_gateway.tui.markup import Markup, markup

MOST_ROWS: Final = 6
"""Rows of a question that are shown at a time: its answers stay visible on a terminal of 16 rows."""

SILENCE_INTERVAL: Final = 15.0
"""Seconds after which the state is looked at again, which changes while an agent says nothing."""

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


MakeSettings = Callable[[Callable[[LinkState], None]], Settings]
"""Returns the settings of a link, given the function to call with its states."""


class Ports(NamedTuple):
    """The source of the ports of sessions, and the name of their gateway."""

    target: str
    ask: Callable[[str], Awaitable[list[Port]]]
    """Returns those of a session by its id in the gateway's list. Raises `GatewayError`."""


PROGRAM: Final = ("acp-gateway chat", __version__)


class OpenSession:
    """A session, joined or new.

    Args:
        session: the id of the session to join; empty for a new one.
        cwd: the directory of a new session.
        destination: called before each attempt to connect.
        settings: makes the settings of the link.
        changed: called after each change of what is shown.
        ports: those of its programs.
        lines, size: lines of a diff that are shown, and characters of the transcript that are kept, at most.
        machine: the node of a new session; empty for the gateway's own machine.
    """

    def __init__(
        self,
        session: str,
        cwd: str,
        destination: Callable[[], Destination],
        settings: MakeSettings,
        changed: Callable[[], None],
        ports: Ports,
        *,
        lines: int,
        size: int,
        machine: str = "",
    ) -> None:
        self.was_joined = bool(session)
        """True for a session that was not opened here."""
        self.when_open: Callable[[], object] = lambda: None
        """Called when the session is open."""
        self.when_form: Callable[[Question], object] = lambda _: None
        """Called when a form is to be filled in."""
        self._joined, self._machine = session, machine
        self._scope = trio.CancelScope()
        self._dialogue = Dialogue(PROGRAM, cwd=cwd, session=session)
        self._link = SessionLink(self._dialogue, destination, settings(self._link_changed))
        self._changed = changed
        self.conversation = Conversation(size)
        self.transcript_box = TranscriptBox(self.conversation.transcript, lines=lines)
        self.question_box = QuestionBox(self.conversation, self._answer, trio.current_time)
        self._target = ports.target
        self.ports = SessionPorts(lambda: ports.ask(self.session), self._ports_changed)
        """The ports of its programs."""
        self.link_state: LinkState | None = None
        """State of the link; None before the first connection."""
        self.ended = False
        """True after the link has ended: nothing can be sent any more."""

    @property
    def session(self) -> str:
        """The id of the session in the gateway's list, `NODE/ID` for one of a node; empty until a new one is open.

        Within its link it has no node: another machine may have a session of the same id.
        """
        if self._joined:
            return self._joined
        its_id = self._dialogue.session
        return f"{self._machine}/{its_id}" if self._machine and its_id else its_id

    @property
    def state(self) -> str:
        """The state of the session and its link in words."""
        if self.ended or self.conversation.is_over:
            return "closed"
        if self.link_state is LinkState.LOST:
            return "reconnecting"
        if not self.conversation.is_open:
            return "opening"
        if self.conversation.questions.current is not None:
            return "waits for a decision"
        if self.conversation.needs_action:
            return "waits for you"
        if not self.conversation.is_working:
            return "ready"
        return self.conversation.silence.words(trio.current_time()) or "working"

    def described(self, listed: Mapping[str, Any], *, decides: bool) -> dict[str, Any]:
        """Return a session of the gateway's list as it is now: the link tells each change, and the list comes later.

        `decides` is True for a client that gets the agent's questions.
        """
        if not self.conversation.is_open or self.ended or self.link_state is LinkState.LOST:
            return dict(listed)
        now: dict[str, Any] = {"turn": self.conversation.is_working}
        if decides:
            others = [one for one in list_of(listed.get("waiting")) if one.get("method") != REQUEST_PERMISSION]
            asked = [{"method": REQUEST_PERMISSION}] if self.conversation.questions.current is not None else []
            now["waiting"] = others + asked
        if self.conversation.transcript.title:
            now["title"] = self.conversation.transcript.title
        return {**listed, **now}

    async def run(self) -> None:
        """Follow the session until it is cancelled or can't be followed any more, which is then in its transcript."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_silence)
                nursery.start_soon(self.ports.run)
                try:
                    await self._link.run(self._receive)
                except GatewayError as error:
                    self._show(self.conversation.note(str(error), Level.BAD))
                nursery.cancel_scope.cancel()
        self.ended = True
        self.transcript_box.show_all()
        self._changed()

    def close(self) -> None:
        """Leave the session."""
        self._scope.cancel()

    def prompt(self, text: str, *, steers: bool = False, queue: Mapping[str, Any] | None = None) -> bool:
        """Send a prompt, for the turn that runs if it `steers`; `queue` says when it is to be sent. Return False if the
        session is not open."""
        if not self.conversation.is_open or self.ended or self.conversation.is_over:
            return False
        if queue is not None and not self._dialogue.keeps_prompts:
            self._show(self.conversation.note("this gateway keeps no prompts for later: update it", Level.BAD))
            return False
        self._dialogue.prompt(text, steers=steers, queue=queue)
        self._link.flush()
        if queue is None:
            self._show(self.conversation.prompted(text))
            self.transcript_box.scroll("end")
        return True

    def change_kept(self, key: str, action: Literal["release", "remove"]) -> None:
        """Have a kept prompt sent, or removed."""
        self._dialogue.change_kept(key, action)
        self._link.flush()

    def cancel(self) -> None:
        """Cancel the turn, and the prompts that wait."""
        if self.conversation.is_open:
            self._dialogue.cancel()
            self._link.flush()

    def set_mode(self, mode: str) -> None:
        """Ask for another mode."""
        self._dialogue.set_mode(mode)
        self._link.flush()

    async def _follow_silence(self) -> None:
        """Show from time to time for how long the agent has said nothing."""
        shown = ""
        while True:
            await trio.sleep(SILENCE_INTERVAL)
            if self.state != shown:
                shown = self.state
                self._changed()

    async def _receive(self, events: list[Event]) -> None:
        was_open = self.conversation.is_open
        self.ports.receive(events)
        changes = self.conversation.receive(events, trio.current_time())
        if not was_open and self.conversation.is_open:
            # The history is drawn once.
            self.transcript_box.show_all()
            self.when_open()
        self._show(changes)
        # Other sessions and keys have their turn after each batch.
        await trio.lowlevel.checkpoint()

    def fill_in(self, question: Question, content: Mapping[str, object]) -> None:
        """Answer a form."""
        self._dialogue.fill_in(question, content)
        self._answered(question)

    def _answer(self, question: Question, option: Option) -> None:
        if option.kind == FILL_IN:
            self.when_form(question)
            return
        self._dialogue.answer(question, option)
        self._answered(question)

    def _answered(self, question: Question) -> None:
        self._link.flush()
        self.conversation.answered(question.id, trio.current_time())
        self._show([])

    def _link_changed(self, state: LinkState) -> None:
        before, self.link_state = self.link_state, state
        self.conversation.silence.end(trio.current_time())
        if state is LinkState.LOST:
            self._show(self.conversation.note("the connection was lost; connecting again", Level.BAD))
        elif state is LinkState.RESTING:
            self._show(self.conversation.note("the agent has ended; the next prompt starts it again", Level.BAD))
        elif before is not None:
            self._show(self.conversation.note("connected again", Level.GOOD))

    def _ports_changed(self, ports: list[Port]) -> None:
        self._show(self.conversation.note(tell_ports(ports, self._target, self.session)) if ports else [])

    def _show(self, changes: list[Change]) -> None:
        if self.conversation.is_open:
            self.transcript_box.show(changes)
        self.question_box.show()
        self._changed()
