"""Watches the sessions of a gateway for those who are told of open questions and of the ends of turns.

Watchers are browsers, for which `service` sends, and other gateways, to which `following` tells the same.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, Protocol
from weakref import WeakKeyDictionary

import trio

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.requests import EndedTurn, TurnOutcome
from acp_gateway.core.sessions.session import Role, Session, SessionReach
from acp_gateway.core.states import Presence
from acp_gateway.core.turns import ends
from acp_gateway.gateway.push.deciding import Question, TurnNotice, options_of
from acp_gateway.gateway.push.wording import words_of
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.gateway.sessions.session_view import SessionViews, Viewer
from acp_gateway.transports.timers import Signal

log = logging.getLogger(__name__)

LOOK_PAUSE: Final = 1.0
"""Seconds between two looks at the sessions: what is decided within it by a program needs no notification."""

LOOK_AGAIN: Final = 60.0
"""Seconds after which the sessions are looked at again though nothing has changed, if that has failed."""


class Watcher(Protocol):
    """Is told of the sessions that it may control."""

    @property
    def since(self) -> int | None:
        """Time from which on it is told of turns that had ended before it was added, in milliseconds since 1970; None
        for none of these."""

    def viewer(self) -> Viewer | None:
        """Return what it may see; None for nothing."""

    def turn(self, session: str, ended: TurnNotice | None, *, running: bool) -> None:
        """Note that a turn of a session has ended, and whether one runs."""

    def look(self, questions: list[Question], now: float) -> float:
        """Note all open questions; return when to look again though nothing changes, or infinity."""


class SessionWatch:
    """Tells watchers.

    Args:
        views: describes the sessions.
        changes: tells their changes.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, views: SessionViews, changes: SessionChanges, now: Callable[[], float]) -> None:
        self._views = views
        self._changes = changes
        self._now = now
        # Whether each was shown the sessions that were there before it.
        self._watchers: dict[Watcher, bool] = {}
        # Sessions that may have open questions.
        self._asking: set[Session] = set()
        # The last turn of each session that has ended, as last seen.
        self._ended: WeakKeyDictionary[Session, EndedTurn | None] = WeakKeyDictionary()
        # The words of open questions, as first seen.
        self._words: dict[AgentRequest, str | None] = {}
        self._signal = Signal()

    @property
    def watchers(self) -> int:
        """Number of watchers."""
        return len(self._watchers)

    def add(self, watcher: Watcher) -> None:
        """Tell a watcher of what is there, and of what changes."""
        self._watchers[watcher] = False
        self.look_again()

    def discard(self, watcher: Watcher) -> None:
        """Tell a watcher nothing more. May be repeated."""
        self._watchers.pop(watcher, None)

    def look_again(self) -> None:
        """Look soon, though no session has changed."""
        self._signal.notify()

    async def run(self, prepare: Callable[[], None]) -> None:
        """Tell watchers until cancelled. `prepare` is called before each look, and may add and discard some."""
        with self._changes.subscribe(lambda _: bool(self._watchers), signal=self._signal) as changes:
            while True:
                # What begins with this program, as the nodes, is there before the first look.
                await trio.sleep(LOOK_PAUSE)
                changed = changes.take()
                self._asking = (self._asking | changed.sessions) - changed.removed
                with reporting("no browser is notified of the ends of turns"):
                    self._note_turns(changed.sessions)
                next_look = self._now() + LOOK_AGAIN
                with reporting("no browser is notified"):
                    prepare()
                    next_look = self._look()
                with trio.move_on_after(max(0.0, next_look - self._now())):
                    await self._signal.wait()

    def _viewers(self) -> dict[Watcher, Viewer]:
        """Return what each watcher sees that may control sessions."""
        found = ((watcher, watcher.viewer()) for watcher in self._watchers)
        return {watcher: viewer for watcher, viewer in found if viewer is not None and viewer.role is Role.CONTROLLER}

    def _note_turns(self, sessions: Iterable[Session]) -> None:
        """Tell of turns that have begun or ended in sessions since the last call."""
        changed: list[tuple[Session, TurnNotice | None]] = []
        for session in sessions:
            last = session.last_turn
            has_ended = last is not None and last is not self._ended.get(session) and last.outcome != TurnOutcome()
            self._ended[session] = last
            if has_ended or session.turns:
                changed.append((session, _notice_of(session, last) if has_ended and last is not None else None))
        viewers = self._viewers() if changed else {}
        for session, notice in changed:
            for watcher, viewer in viewers.items():
                if self._watchers[watcher] and viewer.sees(session):
                    watcher.turn(session.name, notice, running=bool(session.turns))

    def _look(self) -> float:
        """Tell of open questions; return when to look again."""
        viewers = self._viewers()
        for watcher, viewer in viewers.items():
            if not self._watchers[watcher]:
                self._show(watcher, viewer)
                self._watchers[watcher] = True
        open_questions: dict[Session, list[Question]] = {}
        former, self._words = self._words, {}
        for session in self._asking:
            with reporting("no browser is notified of a session's questions"):
                open_questions[session] = self._questions(session, former)
        self._asking = {session for session in self._asking if open_questions.get(session) != []}
        now, next_look = self._now(), math.inf
        for watcher in self._watchers:
            with reporting(f"{watcher} is not notified"):
                its = viewers.get(watcher)
                questions = [
                    question
                    for session in open_questions
                    if its is not None and its.sees(session)
                    for question in open_questions[session]
                    if its.reach.sees_all or not question.is_in_doubt
                ]
                next_look = min(next_look, watcher.look(questions, now))
        return next_look

    def _show(self, watcher: Watcher, viewer: Viewer) -> None:
        """Note the sessions that were there before a watcher."""
        since = math.inf if watcher.since is None else watcher.since
        for session in self._views.sessions(viewer):
            last = session.last_turn
            if last is not None and last.outcome != TurnOutcome() and (last.time or 0) > since:
                watcher.turn(session.name, _notice_of(session, last), running=bool(session.turns))
            if session.live:
                self._asking.add(session)
                # What has ended before is not told.
                self._ended.setdefault(session, last)

    def _questions(self, session: Session, former: Mapping[AgentRequest, str | None]) -> list[Question]:
        """Return the open questions for users in a session. `former` has the words of those that were open before."""
        multiplexer = self._views.multiplexer_of(session)
        if multiplexer is None:
            return []
        attended = any(client.decides and client.presence is Presence.CONNECTED for client in session.attached)
        clock = self._now() - trio.current_time()
        waiting = multiplexer.waiting(session, SessionReach(session.owner))
        asked = [request for request in waiting if request.is_decision and request.is_told_in(session)]
        for request in asked:
            known = request in former
            self._words[request] = former[request] if known else words_of(request, _latest(session))
        return [
            Question(
                session.name,
                request.key,
                session.agent,
                session.title,
                self._words[request],
                tuple(options_of(request.options)),
                request.arrived_at + clock,
                attended and not request.is_in_doubt,
                is_in_doubt=request.is_in_doubt,
            )
            for request in asked
        ]


def _notice_of(session: Session, turn: EndedTurn) -> TurnNotice:
    """Return what is told of the end of a turn."""
    outcome = turn.outcome
    end: Literal["done", "failed", "stopped"] = "done"
    if outcome.error is not None or outcome.cut is not None:
        end = "failed"
    elif ends.words_of(outcome):
        end = "stopped"
    return TurnNotice(session.name, session.agent, session.title, end, ends.words_of(outcome), turn.seconds)


def _latest(session: Session) -> Iterator[bytes]:
    """Yield the updates of a session since the end of the last turn, the latest first."""
    return reversed(session.journal.running())


@contextmanager
def reporting(what: str) -> Iterator[None]:
    """Log a bug: no message of an agent depends on a notification, so that it must not end the gateway."""
    try:
        yield
    except Exception:
        log.exception("%s: a bug of the gateway", what)
