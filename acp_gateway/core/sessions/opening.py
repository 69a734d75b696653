"""Session methods that open: new, load, resume, fork, and joining an open session.

A live session is never requested from the agent again. A client that loads it gets the history from the journal and is
attached from the next message on, in one step: nothing is missing and nothing comes twice. A session that is not live
is loaded once; other requests for it wait for that.
"""

from collections import Counter
from functools import partial

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import OwnRequest
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions import preconditions
from acp_gateway.core.sessions.agent_opening import ClientOpening
from acp_gateway.core.sessions.joining import Joining
from acp_gateway.core.sessions.known_history import continued, unread
from acp_gateway.core.sessions.own_meta import CHOSEN, with_result_meta, without_own_meta
from acp_gateway.core.sessions.rejoining import absent_owner
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Request, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup


class SessionOpening:
    """Opens the sessions of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._routing = routing

    def new(self, client: Client, request: Request) -> None:
        if client.reach.only is not None:
            if client.joined:
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
                self._ask_for_new(client, request)

    def load(self, client: Client, request: Request) -> None:
        """Handle `session/load` or `session/resume`."""
        agent = self._agent
        session_id = request.message.session
        if session_id is None:
            agent.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        live = agent.session_in_reach(client, session_id)
        if live is not None:
            Joining(agent, self._routing, live, client, request.findings.rejoin).load(request)
            return
        found = absent_owner(agent, request, session_id) or preconditions.past_session(agent, client, session_id)
        if not isinstance(found, Session):
            agent.holds(request, found)
        elif not agent.holds(request, preconditions.opening(agent, client, request, found) or unread(agent, found)):
            request.set_text(without_own_meta(request.message.text))
            found.keep_setup(request.message)
            found.workspace = request.findings.workspace or found.workspace
            request.session = found
            known = continued(agent, found, request.findings.rejoin)
            ClientOpening(agent, self._routing, found, request, None, known).start()

    def fork(self, client: Client, request: Request) -> None:
        """Handle `session/fork`, of a session that is live or not."""
        session_id = request.message.session
        if session_id is None:
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        live = self._agent.session_in_reach(client, session_id)
        found = live or preconditions.past_session(self._agent, client, session_id)
        if not isinstance(found, Session):
            self._agent.holds(request, found)
        elif not self._agent.holds(request, preconditions.opening(self._agent, client, request, found)):
            request.session = live
            self._ask_for_new(client, request)

    def _ask_for_new(self, client: Client, request: Request) -> None:
        """Ask the agent for a new session."""
        self._agent.openings[client.reach.account] += 1
        self._agent.forward(request, self._opened)

    def _opened(self, request: Request, response: Message) -> None:
        """Handle the response to `session/new` or `session/fork`."""
        client = request.client
        self._agent.openings -= Counter((client.reach.account,))
        session_id = lookup.text_at(response.text, "result", "sessionId")
        if not response.error and session_id is not None:
            if len(session_id) > SESSION_ID_SIZE:
                why = f"the agent gave a session an id of more than {SESSION_ID_SIZE} characters"
                self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, why)
                self._routing.sort_early()
                return
            session = self._agent.live.get(session_id)
            is_other = session is not None and (
                session.agent_id is not None
                or not client.reach.sees(session)
                # Its own history would be lost.
                or (request.message.method == methods.FORK and session is not request.session)
            )
            is_renamed = self._agent.out.ids.here(session_id) != session_id
            if is_other or is_renamed or (session is not None and session.in_transition):
                why = f"the agent gave the id {session_id:.80} to a second session"
                self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, why)
                self._routing.sort_early()
                return
            known = session is not None
            session = session or self._agent.new_session(session_id, client.reach)
            session.keep_setup(request.message)
            session.workspace = request.findings.workspace
            if session.workspace is None and request.session is not None:
                session.workspace = request.session.workspace
            if not known:
                self._agent.add_session(session, SessionState.OPEN)
                self._routing.session_added(session)
            session.keep_result(response)
            if request.session is not None and request.session.journal.epoch:
                rewrite = partial(updates.entry_under_session, old=request.session.id, new=session_id)
                session.take_journal(request.session.journal.copy(rewrite, self._agent.registry.new_epoch()))
                self._agent.send_position(session, session.attached)
                session.expect_retelling()
            elif request.message.method == methods.FORK:
                # The journal of an ended session is cleared, so the beginning of the fork is unknown.
                session.journal.begin_truncated()
                session.archive.replace(session)
            if not client.gone:
                self._agent.attach(session, client, hosts=True)
            check = request.findings.directory_check
            chosen = None if check is None else check.chosen
            if chosen is not None:
                response = with_result_meta(response, jsonrpc.encode({CHOSEN: chosen}))
            self._agent.respond(request, response)
            # Editors drop updates of a session that no response has named.
            for update in self._routing.take_early(session_id):
                self._routing.update(update)
            self._agent.give_notice(request, session)
            if not client.gone:
                self._routing.joined(session, client)
            self._agent.waiting.resume(Until.SESSION_REOPENED, session_id)
        else:
            self._agent.respond(request, response)
        self._routing.sort_early()

    def _join(self, client: Client, session_id: str, request: Request) -> None:
        """Answer the first `session/new` of a connection that is bound to a session."""
        agent = self._agent
        live = agent.session_in_reach(client, session_id)
        if live is not None and live.in_transition:
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
            own = OwnRequest(found.opening_request(methods.LOAD if agent.abilities.load else methods.RESUME))
            ClientOpening(agent, self._routing, found, request, own, continued(agent, found, None)).start()
