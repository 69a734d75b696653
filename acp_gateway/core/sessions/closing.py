"""Session methods that end a session: close, archive and delete."""

from collections.abc import Callable
from functools import partial

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.opening import SessionOpening
from acp_gateway.core.sessions.own_meta import asks_to_forget
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.turns import Turns
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message


class SessionClosing:
    """Closes, archives and deletes the sessions of one agent process."""

    def __init__(
        self, agent: AgentState, turns: Turns, opening: SessionOpening, dispatch: Callable[[Request], None]
    ) -> None:
        self._agent = agent
        self._turns = turns
        self._opening = opening
        # Resumes a request that has waited.
        self._dispatch = dispatch

    def close(self, client: Client, request: Request) -> None:
        """Close a session at the agent, or detach the client while other controllers are connected.

        A request to forget it removes its entry as well, also if the agent can't close it: a session that was opened
        as a test is not to be listed.
        """
        session = self._agent.session_of_request(client, request)
        if session is None:
            return
        controllers = (other for other in session.controllers() if other is not client and not other.reach.guest)
        others = any(other.connected for other in controllers)
        may_end = client.controls and not client.reach.guest and not others
        # As for a deletion, which a connection bound to one session may not request.
        forgets = may_end and client.reach.only is None and asks_to_forget(request.message)
        if may_end and self._agent.abilities.close:
            self._end(session, request, forgets=forgets)
        elif forgets and not session.turns:
            self._remove(session, forgotten=True)
            self._agent.answer(request, b"{}")
        else:
            self._agent.detach(session, client)
            self._agent.answer(request, b"{}")
            self._agent.announce_waiting()

    def delete(self, client: Client, request: Request) -> None:
        """Delete a session at the agent, live or not."""
        past = self._agent.registry.find(client.reach, self._agent.name, request.message.session or "")
        if past is not None and past.aside and client.controls and client.reach.only is None:
            self._agent.registry.remove(past)
            self._agent.answer(request, b"{}")
            return
        self._end_wherever(client, request, forgets=True)

    def archive(self, client: Client, request: Request) -> None:
        """Archive a session at the agent, live or not, which closes it."""
        self._end_wherever(client, request, forgets=False)

    def _end_wherever(self, client: Client, request: Request, *, forgets: bool) -> None:
        session_id = request.message.session
        if session_id is None:
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        session = self._agent.session_in_reach(client, session_id)
        if session is None:
            session = self._opening.session_to_open(client, session_id, request)
            if session is None or not self._opening.may_delete(client, request, session):
                return
        self._end(session, request, forgets=forgets)

    def _end(self, session: Session, request: Request, *, forgets: bool) -> None:
        """Forward the request to the agent; a session that was not live is added to this process for it."""
        request.session = session
        then = partial(self._closed, session=session, first=self._opening.is_first(session), forgets=forgets)
        if session.live:
            session.move_to(SessionState.CLOSING)
        else:
            self._agent.add_session(session, SessionState.DELETING)
        self._agent.forward(request, then)

    def _closed(self, request: Request, response: Message, *, session: Session, first: bool, forgets: bool) -> None:
        """Handle the response to closing, archiving or deleting a session."""
        held = self._agent.waiting.release(Until.SESSION_OPEN, session)
        if not response.error:
            self._remove(session, forgotten=forgets)
        elif session.state is SessionState.DELETING:
            self._opening.remove_session(session, forgotten=first)
        else:
            session.move_to(SessionState.OPEN)
        self._agent.respond(request, response)
        for waiting in held:
            self._dispatch(waiting)

    def _remove(self, session: Session, *, forgotten: bool) -> None:
        self._agent.notify(session, "deleted" if forgotten else "closed")
        self._turns.cancel_queued(session)
        self._opening.remove_session(session, forgotten=forgotten)
