"""A session that is open in the program: its link, its state and its widgets."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from acp_gateway import __version__
from acp_gateway.client.dialing import Destination
from acp_gateway.client.session_link import SessionLink
from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.errors import GatewayError
from acp_gateway.protocol.methods import REQUEST_PERMISSION
from acp_gateway.terminal.content import Option, list_of
from acp_gateway.terminal.conversation import Conversation
from acp_gateway.terminal.dialogue import Dialogue, Event, Question
from acp_gateway.terminal.transcript import Change, Level
from acp_gateway.tui.question_box import QuestionBox
from acp_gateway.tui.transcript_box import TranscriptBox

MakeSettings = Callable[[Callable[[LinkState], None]], Settings]
"""Returns the settings of a link, given the function to call with its states."""

PROGRAM: Final = ("acp-gateway chat", __version__)


class OpenSession:
    """A session, joined or new.

    Args:
        session: the id of the session to join; empty for a new one.
        cwd: the directory of a new session.
        destination: called before each attempt to connect.
        settings: makes the settings of the link.
        changed: called after each change of what is shown.
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
        *,
        lines: int,
        size: int,
        machine: str = "",
    ) -> None:
        self.was_joined = bool(session)
        """True for a session that was not opened here."""
        self.when_open: Callable[[], object] = lambda: None
        """Called when the session is open."""
        self._joined, self._machine = session, machine
        self._scope = trio.CancelScope()
        self._dialogue = Dialogue(PROGRAM, cwd=cwd, session=session)
        self._link = SessionLink(self._dialogue, destination, settings(self._link_changed))
        self._changed = changed
        self.conversation = Conversation(size)
        self.transcript_box = TranscriptBox(self.conversation.transcript, lines=lines)
        self.question_box = QuestionBox(self.conversation, self._answer, trio.current_time)
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
        return "working" if self.conversation.is_working else "ready"

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
            try:
                await self._link.run(self._receive)
            except GatewayError as error:
                self._show(self.conversation.note(str(error), Level.BAD))
        self.ended = True
        self.transcript_box.show_all()
        self._changed()

    def close(self) -> None:
        """Leave the session."""
        self._scope.cancel()

    def prompt(self, text: str) -> bool:
        """Send a prompt; return False if the session is not open."""
        if not self.conversation.is_open or self.ended or self.conversation.is_over:
            return False
        self._dialogue.prompt(text)
        self._link.flush()
        self._show(self.conversation.prompted(text))
        self.transcript_box.scroll("end")
        return True

    def cancel(self) -> None:
        """Cancel the turn, and the prompts that wait."""
        if self.conversation.is_open:
            self._dialogue.cancel()
            self._link.flush()

    def set_mode(self, mode: str) -> None:
        """Ask for another mode."""
        self._dialogue.set_mode(mode)
        self._link.flush()

    async def _receive(self, events: list[Event]) -> None:
        was_open = self.conversation.is_open
        changes = self.conversation.receive(events, trio.current_time())
        if not was_open and self.conversation.is_open:
            # The history is drawn once.
            self.transcript_box.show_all()
            self.when_open()
        self._show(changes)
        # Other sessions and keys have their turn after each batch.
        await trio.lowlevel.checkpoint()

    def _answer(self, question: Question, option: Option) -> None:
        self._dialogue.answer(question, option)
        self._link.flush()
        self.conversation.questions.remove(question.id, trio.current_time())
        self._show([])

    def _link_changed(self, state: LinkState) -> None:
        before, self.link_state = self.link_state, state
        if state is LinkState.LOST:
            self._show(self.conversation.note("the connection was lost; connecting again", Level.BAD))
        elif state is LinkState.RESTING:
            self._show(self.conversation.note("the agent has ended; the next prompt starts it again", Level.BAD))
        elif before is not None:
            self._show(self.conversation.note("connected again", Level.GOOD))

    def _show(self, changes: list[Change]) -> None:
        if self.conversation.is_open:
            self.transcript_box.show(changes)
        self.question_box.show()
        self._changed()
