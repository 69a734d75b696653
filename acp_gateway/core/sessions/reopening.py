"""Opens sessions again whose history is known: from the archive, or in a new process.

Where the process of a session has ended, its clients have the history already.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import LoadJournal
from acp_gateway.core.requests import OwnRequest
from acp_gateway.core.sessions.renewal import Renewal
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import write_ends_of_calls
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.replays import Replay
from acp_gateway.core.turns.retelling import Retelling
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import MAY_BE_MISSING, gap
from acp_gateway.protocol.jsonrpc import Message


def waits_for_journal(agent: AgentState, session: Session, request: Request) -> bool:
    """Return True if a request to open a session has to wait until its journal is read.

    By then the archive has the session as open, too: it is written before it is read.
    """
    if session.journal_loaded or not session.archive.holds(session):
        return False
    if session not in agent.loading_journals:
        agent.loading_journals[session] = None
        session.awaited += 1
        session.archive.keep(session)
        agent.out.effect(LoadJournal(session))
    agent.waiting.add(request, Until.JOURNAL_LOADED, session)
    return True


def journal_loaded(
    agent: AgentState, session: Session, journal: Journal | None, dispatch: Callable[[Request], None]
) -> None:
    """Take a journal that was read, None if it can't be, and resume the requests that waited for it."""
    if session not in agent.loading_journals:
        return  # The process has ended since.
    del agent.loading_journals[session]
    waiting = agent.waiting.release(Until.JOURNAL_LOADED, session)
    # Without a waiting client the journal would stay in memory unused.
    if not session.live and waiting:
        session.journal_loaded = True
        if journal is not None:
            session.journal = journal
    for request in waiting:
        dispatch(request)
    if session.journal_loaded and not session.live:
        # A journal of a session that was not opened would not count as used memory.
        session.forget_content()
    end_wait(session)


def end_wait(session: Session) -> None:
    """End the wait of a process for a session's journal. If no process has opened it, the archive is told."""
    session.awaited -= 1
    if not session.live and session.archive.holds(session):
        session.archive.keep(session)


def continue_journal(session: Session, epoch: str) -> None:
    """Continue a journal in another epoch."""
    session.journal.rename(epoch)
    session.archive.keep(session)


def end_former_epoch(session: Session, time: int | None) -> None:
    """Write to a journal that goes on in another epoch, at this time, what ends the former one: a gap, which stands for
    messages that may be missing, and the ends of calls."""
    if session.may_lack_end:
        session.may_lack_end = False
        session.write(gap(session.id, MAY_BE_MISSING), time=time)
    write_ends_of_calls(session, time)


def is_all_new(session: Session, request: Request | OwnRequest) -> bool:
    """Return True if nothing is known of a session, here or by the client that opens it.

    Such a client gets what the agent says as it is.
    """
    return isinstance(request, Request) and request.rejoin is None and not session.journal.position


def take_journal(session: Session, recorded: Journal) -> None:
    """Take the recorded replay of a session as its history; no turn runs at its end."""
    recorded.turn_ended()
    session.take_journal(recorded)


def recover_end(agent: AgentState, session: Session, replay: Replay[Client]) -> None:
    """Write what an agent has replayed beyond a history that may lack its end: it has the places that it had before.

    Clients that have seen it are not told it again. Where it comes in other pieces, they are told that some may be
    missing, as always.
    """
    end = session.journal.position
    _write_news(agent, session, replay)
    session.journal.move_former_end(end)
    session.archive.keep(session)


def take_replay(agent: AgentState, session: Session, replay: Replay[Client]) -> None:
    """Take what an agent has replayed of a session, as far as that is new to its history; its clients get it."""
    states = replay.states()
    if replay.replaces(session.id, session.journal):
        take_journal(session, replay.recorded)
    else:
        # Editors show a repeated plan twice.
        for text in updates.new_states(session, states):
            _write(agent, session, text, jsonrpc.parse(text).update, agent.wall_time)
        _write_news(agent, session, replay)
        session.end_turn()
    for text in states:
        updates.read_state(session, jsonrpc.parse(text))


def _write_news(agent: AgentState, session: Session, replay: Replay[Client]) -> None:
    for run in replay.take_news():
        for index, text in enumerate(run.messages):
            _write(agent, session, text, run.states.get(index))
        session.end_turn()


def _write(agent: AgentState, session: Session, text: bytes, state: str | None, time: int | None = None) -> None:
    position = session.journal.position
    session.write(text, state, time)
    agent.out.update(session, text, position)


class Opening(Protocol):
    """The part of `SessionOpening` that is used here."""

    def open_live(self, session: Session, client: Client, request: Request) -> None:
        """Load or resume a session that is live here."""

    def answer_opened(
        self, request: Request | OwnRequest, response: Message, session: Session, *, passes: bool
    ) -> None:
        """Answer the client that has opened a session, and attach it."""

    def set_open(self, session: Session) -> None:
        """End the opening of a session."""

    def remove_session(self, session: Session, *, forgotten: bool) -> None:
        """Remove a session from this process."""

    def not_loaded(self, request: Request | OwnRequest, response: Message, session: Session, *, first: bool) -> None:
        """Handle the error in response to opening a session that was not live."""


class SessionReopening:
    """Re-opens the sessions of one agent."""

    def __init__(self, agent: AgentState, renewal: Renewal, opening: Opening) -> None:
        self._agent = agent
        self._renewal = renewal
        self._opening = opening

    def reopen(self, session: Session) -> None:
        """Re-open a session in a new process; its clients have its history already."""
        session.move_to(SessionState.OPENING)
        session.replay = Replay(self._agent.new_journal(), Retelling(session.id, session.journal))
        method = methods.RESUME if self._agent.abilities.resume else methods.LOAD
        own = OwnRequest(session.opening_request(method))
        self._agent.forward(own, partial(self._answered, session=session))

    def _answered(self, _own: OwnRequest, response: Message, *, session: Session) -> None:
        reopened = partial(self._reopened, session)
        if not self._renewal.begins(session, response, reopened):
            reopened(response)

    def _reopened(self, session: Session, response: Message) -> None:
        replay, session.replay = session.replay, None
        assert replay is not None
        if response.error:
            self._agent.unopened.remember_reason(session, response)
            self._agent.out.log(f"the agent cannot re-open session {session.id:.80}")
            held = self._agent.waiting.release(Until.SESSION_OPEN, session)
            self._opening.remove_session(session, forgotten=False)
            for waiting in held:
                why = f"the agent has ended, and it cannot re-open session {session.id:.80}"
                reason = self._agent.unopened.reason(waiting.client, session.id)
                why += "" if reason is None else f": {reason}"
                self._agent.refuse(waiting, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session.id})
        else:
            # The history is known to all clients; what has changed may be new to them.
            for text in updates.changes(session, response):
                change = jsonrpc.parse(text)
                _write(self._agent, session, text, change.update, self._agent.wall_time)
                updates.read_state(session, change)
            take_replay(self._agent, session, replay)
            session.merge_result(response)
            self._opening.set_open(session)
