"""Re-opens the sessions of clients in a new process, after theirs has ended: the clients have the history already."""

from functools import partial
from typing import Protocol

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import OwnRequest
from acp_gateway.core.sessions.far_history import ask_to_continue
from acp_gateway.core.sessions.far_opening import FarOpening
from acp_gateway.core.sessions.rejoining import with_request_meta, without_result_meta
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message


class Opening(Protocol):
    """The part of `SessionOpening` that is used here."""

    def set_open(self, session: Session) -> None:
        """End the opening of a session."""

    def remove_session(self, session: Session, *, forgotten: bool) -> None:
        """Remove a session from this process."""


class SessionReopening:
    """Re-opens the sessions of one agent."""

    def __init__(self, agent: AgentState, far: FarOpening, opening: Opening) -> None:
        self._agent = agent
        self._far = far
        self._opening = opening

    def reopen(self, session: Session) -> None:
        """Re-open a session in a new process; its clients have its history already."""
        session.move_to(SessionState.OPENING)
        session.recorded, session.replay_to = self._agent.new_journal(), None
        method = methods.RESUME if self._agent.abilities.resume else methods.LOAD
        own, asked = OwnRequest(session.opening_request(method)), ask_to_continue(self._agent, session)
        text = None if asked is None else with_request_meta(own.message.text, asked)
        self._agent.forward(own, partial(self._reopened, session=session), text)

    def _reopened(self, _own: OwnRequest, response: Message, *, session: Session) -> None:
        recorded, session.recorded = session.recorded, None
        assert recorded is not None
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
            if self._agent.link is not None:
                self._far.take_over(session, response)
                response = without_result_meta(response)
            # The history is known to all clients; the present states may be new to them.
            for text in [*updates.changes(session, response), *recorded.states()]:
                state = jsonrpc.parse(text)
                session.write(text, state.update, self._agent.wall_time)
                updates.read_state(session, state)
                self._agent.out.clients(session.attached, text)
            session.merge_result(response)
            self._opening.set_open(session)
