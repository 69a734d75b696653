"""Runs an editor's messages as turns of a session, one after another.

A message supersedes those of the same session that came over this bridge before it: their turns are cancelled, and it
waits for their end. Turns of other clients are waited for, as any client's prompt does.

The updates of a turn are read from the session's journal, between the places where the turn begins and ends, as far as
the editor reads: nothing is queued for it.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.dialects.editor.answers import Answer, AnswerTooLarge
from acp_gateway.dialects.editor.output import failure_of, stop_reason_of
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.session_changes import Subscription
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.gateway.viewing.local_client import CLIENT_LEFT, ClientEnded, LocalClient
from acp_gateway.gateway.viewing.session_feed import PIECE_COUNT, PIECE_SIZE, fitting, requests_for
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

CANCELLED: Final = "cancelled"
"""Stop reason of a turn that another message has superseded."""

ABORT_TIMEOUT: Final = 5.0
"""Seconds to wait for the end of a turn whose editor has left. Agents end a cancelled turn within one or two."""

LAGGED: Final = "the answer was read too slowly: a part of it is not kept any more"


class _Lagged(Exception):
    """The history was cut, or replaced, behind the place up to which it was told."""


class WaitingMessage:
    """The text of a message until its turn begins, counted for its identity.

    Args:
        text: the prompt.
        waiting: characters that wait, by identity.
        identity: the editor's.
    """

    def __init__(self, text: str, waiting: Counter[str], identity: str) -> None:
        self._text = text
        self._waiting = waiting
        self._identity = identity
        waiting[identity] += len(text)

    def take(self) -> str:
        """Return the text, which is not kept any more; empty if that was done before."""
        text, self._text = self._text, ""
        self._waiting -= Counter({self._identity: len(text)})
        return text


class Outcome(NamedTuple):
    """The end of a turn."""

    stop_reason: str | None
    """None if it has failed."""
    error: str = ""


class Lanes:
    """The messages that are being answered, by their sessions, the earliest first."""

    def __init__(self) -> None:
        self._turns: dict[Session, dict[EditorTurn, None]] = {}

    def enter(self, session: Session, turn: "EditorTurn") -> "list[EditorTurn]":
        """Add a turn; return those of the same session before it, which are superseded."""
        turns = self._turns.setdefault(session, {})
        formers = list(turns)
        for former in formers:
            former.supersede()
        turns[turn] = None
        return formers

    def leave(self, session: Session, turn: "EditorTurn") -> None:
        """Remove a turn whose message was answered."""
        turns = self._turns[session]
        del turns[turn]
        if not turns:
            del self._turns[session]


class EditorTurn:
    """One message of an editor, and its turn.

    Args:
        gateway: the gateway.
        session: the session.
        viewer: the editor.
        answer: takes what is told of the turn.
    """

    def __init__(self, gateway: Gateway, session: Session, viewer: Viewer, answer: Answer) -> None:
        self._gateway = gateway
        self._session = session
        self._viewer = viewer
        self._answer = answer
        # Covers what comes before the prompt.
        self._preparing = trio.CancelScope()
        self._is_superseded = False
        self._client: LocalClient | None = None
        self._request = 0
        # How the agent was asked to end the turn: before it began, and while it runs.
        self._asked: set[bool] = set()
        # Epoch and position at which the turn began; the position is that of the last update that was told.
        self._epoch: str | None = None
        self._position = 0
        # Position at which it ended.
        self._end: int | None = None
        self._told: set[str] = set()
        self._response: Message | None = None
        self._is_answered = False
        self._changes: Subscription | None = None
        self.over = trio.Event()
        """Set when the turn has ended at the agent, or will not begin. The editor may read the rest of it later."""

    def supersede(self) -> None:
        """End, because another message has come."""
        self._is_superseded = True
        self._preparing.cancel()
        if self._client is not None:
            # At once: the answer may wait for its editor to read.
            self._ask_to_end()

    async def run(self, lanes: Lanes, join: Callable[[], Awaitable[LocalClient]], message: WaitingMessage) -> Outcome:
        """Run the turn once those before it have ended, and return its end.

        Args:
            lanes: those of the gateway.
            join: returns a client in the session that is ready for the prompt.
            message: the prompt, which is taken when the turn begins.

        Raises what `join` and the answer raise, and `ClientEnded`. If it is cancelled or the answer raises, the turn
        is cancelled, and its end is waited for within `ABORT_TIMEOUT`.
        """
        client, formers = None, lanes.enter(self._session, self)
        try:
            with self._preparing:
                for former in formers:
                    await former.over.wait()
                client = await join()
            return Outcome(CANCELLED) if client is None else await self._run(client, message)
        finally:
            self.over.set()
            lanes.leave(self._session, self)

    async def _run(self, client: LocalClient, message: WaitingMessage) -> Outcome:
        session = self._session
        with self._gateway.changes.subscribe(lambda changed: changed is session, self._notice) as changes:
            self._changes = changes
            changes.follow(session)
            self._client = client
            prompt = editor.prompt(session.id, message.take())
            self._request = client.start_request(methods.PROMPT, prompt, self._answered)
            # A turn may take hours.
            del prompt
            try:
                await self._follow(changes)
            except (_Lagged, AnswerTooLarge) as error:
                return Outcome(None, str(error))
            finally:
                if not self._is_answered:
                    await self._abort(changes)
        return self._outcome()

    async def _follow(self, changes: Subscription) -> None:
        """Tell the turn until it has ended."""
        while True:
            if self._is_superseded:
                self._ask_to_end()
            while await self._tell():
                pass
            if self._is_answered:
                break
            with trio.move_on_at(self._answer.deadline) as idle:
                await changes.wait()
            if idle.cancelled_caught:
                await self._answer.keep_alive()

    async def _abort(self, changes: Subscription) -> None:
        """Cancel the turn, and wait for its end: a prompt that comes next must not be cancelled with it."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + ABORT_TIMEOUT):
            while not self._is_answered:
                self._ask_to_end()
                await changes.wait()

    # What happens in the session

    def _notice(self, session: Session) -> None:
        """Note where the turn begins and ends, at that very moment: others may follow at once."""
        runs = self._client is not None and any(it.client.name == self._client.name for it in session.turns)
        if runs and self._epoch is None:
            self._epoch, self._position = session.journal.epoch, session.journal.position
        elif not runs and self._epoch is not None and self._end is None:
            self._end = session.journal.position

    def _answered(self, response: Message | None) -> None:
        self._response = response
        self._is_answered = True
        self.over.set()
        if self._end is None:
            self._end = self._session.journal.position
        self._wake()

    def _wake(self) -> None:
        if self._changes is not None:
            self._changes.note_session(self._session)

    def _ask_to_end(self) -> None:
        """Ask for the end of the turn, once before it has begun and once while it runs."""
        assert self._client is not None
        runs = self._epoch is not None
        if runs in self._asked or self._is_answered:
            return
        self._asked.add(runs)
        try:
            self._client.notify(*editor.cancellation(self._session.id, self._request, runs=runs))
        except ClientEnded:
            pass  # So has the turn, for the editor.

    # To the editor

    async def _tell(self) -> bool:
        """Tell the next part of the turn; return False if everything was told. Raises `_Lagged`."""
        journal = self._session.journal
        if self._epoch is None or not journal.epoch:
            return False
        if journal.epoch != self._epoch:
            if journal.shared_with(self._epoch, self._position) != self._position:
                raise _Lagged(LAGGED)
            self._epoch = journal.epoch
        end = min(journal.position, self._position + PIECE_COUNT)
        if self._end is not None:
            end = min(end, self._end)
        if self._position < end:
            if self._position < journal.start:
                raise _Lagged(LAGGED)
            messages = journal.messages(self._position, end)
            count = fitting(messages, PIECE_SIZE, PIECE_COUNT)
            self._position += count
            await self._answer.updates(messages[:count])
            return True
        return await self._tell_permission()

    async def _tell_permission(self) -> bool:
        if self._end is not None or self._is_answered:
            return False
        for request in requests_for(self._gateway.views.view(self._session, self._viewer)):
            if request.method == methods.REQUEST_PERMISSION and request.key not in self._told:
                self._told.add(request.key)
                await self._answer.permission(request.key, request.message)
                return True
        return False

    def _outcome(self) -> Outcome:
        response = self._response
        if response is None:
            return Outcome(None, CLIENT_LEFT)
        if not response.error:
            return Outcome(stop_reason_of(response))
        if self._asked and lookup.error_code(response) == jsonrpc.REQUEST_CANCELLED:
            return Outcome(CANCELLED)
        return Outcome(None, failure_of(response))
