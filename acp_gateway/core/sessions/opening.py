"""Session methods that open: new, load, resume, fork, and joining an open session.

A live session is never requested from the agent again. A client that loads it gets the history from the journal and is
attached from the next message on, in one step: nothing is missing and nothing comes twice. A session that is not live
is loaded once; other requests for it wait for that.
"""

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import OwnRequest
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions import preconditions
from acp_gateway.core.sessions.agent_opening import ClientOpening, NewSession
from acp_gateway.core.sessions.joining import Joining
from acp_gateway.core.sessions.known_history import continued, unread
from acp_gateway.core.sessions.own_meta import asked_worktree, without_own_meta
from acp_gateway.core.sessions.rejoining import absent_owner
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods


class SessionOpening:
    """Opens the sessions of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._routing = routing

    def new(self, client: Client, request: Request) -> None:
        if client.reach.only is not None:
            if asked_worktree(request.message) not in (None, False):
                why = f"this connection is for session {client.reach.only:.80}, which can't get a new working tree"
                self._agent.refuse(request, jsonrpc.INVALID_REQUEST, why)
            elif client.joined:
                why = f"this connection is for session {client.reach.only:.80} only: no further session/new"
                self._agent.refuse(request, jsonrpc.INVALID_REQUEST, why)
            else:
                self._join(client, client.reach.only, request)
        elif not client.controls:
            self._agent.refuse(request, jsonrpc.METHOD_NOT_FOUND, "observers may only look: no session/new")
        else:
            objection = preconditions.named_session(self._agent, client, request) or preconditions.opening(
                self._agent, client, request
            )
            if not self._agent.holds(request, objection):
                request.set_text(without_own_meta(request.message.text))
                NewSession(self._agent, self._routing, request).start()

    def load(self, client: Client, request: Request) -> None:
        """Handle `session/load` or `session/resume`."""
        agent = self._agent
        session_id = request.message.session
        if session_id is None:
            agent.refuse(request, *preconditions.NO_SESSION)
            return
        live = agent.session_in_reach(client, session_id)
        if live is not None:
            if not agent.holds(request, preconditions.cursor(live, request)):
                Joining(agent, self._routing, live, client, request.findings.rejoin).load(request)
            return
        found = absent_owner(agent, request, session_id) or preconditions.past_session(agent, client, session_id)
        if not isinstance(found, Session):
            agent.holds(request, found)
        elif not agent.holds(
            request,
            preconditions.opening(agent, client, request, found)
            or unread(agent, found)
            or preconditions.cursor(found, request),
        ):
            request.set_text(without_own_meta(request.message.text))
            found.keep_setup(request.message)
            found.workspace = request.findings.workspace or found.workspace
            request.session = found
            known = continued(agent, found, request.findings.rejoin)
            ClientOpening(agent, self._routing, found, request, None, known).start()

    def fork(self, client: Client, request: Request) -> None:
        """Handle `session/fork`, of a session that is live or not."""
        found = preconditions.named(self._agent, client, request)
        if not isinstance(found, Session):
            self._agent.holds(request, found)
        elif not self._agent.holds(request, preconditions.opening(self._agent, client, request, found)):
            NewSession(self._agent, self._routing, request, found if found.live else None).start()

    def _join(self, client: Client, session_id: str, request: Request) -> None:
        """Answer the first `session/new` of a connection that is bound to a session."""
        agent = self._agent
        live = agent.session_in_reach(client, session_id)
        if live is not None and live.transit is not None:
            agent.waiting.add(request, Until.SESSION_OPEN, live)
            return
        if live is not None:
            Joining(agent, self._routing, live, client).bind(request)
            return
        found = preconditions.past_session(agent, client, session_id)
        if not isinstance(found, Session):
            agent.holds(request, found)
        elif not agent.holds(
            request,
            preconditions.room(agent, request)
            or preconditions.joined_directory(agent, found, request)
            or unread(agent, found),
        ):
            agent.waiting.add(request, Until.SESSION_OPEN, found)
            own = OwnRequest(found.opening_request(methods.LOAD if agent.process.abilities.load else methods.RESUME))
            ClientOpening(agent, self._routing, found, request, own, continued(agent, found, None)).start()
