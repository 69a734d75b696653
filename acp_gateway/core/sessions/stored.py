"""Session methods for which a session need not be open: its status, its title, and the end of its archiving."""

from typing import Any

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions import preconditions
from acp_gateway.core.sessions.own_meta import with_result_meta
from acp_gateway.core.sessions.places import CURSOR, Cursor, place_of
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.turns import updates
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.text import lookup


class StoredSessions:
    """Sessions that the agent has stored, whether or not they are open."""

    def __init__(self, agent: AgentState) -> None:
        self._agent = agent

    def ask(self, client: Client, request: Request) -> None:
        """Handle a request that changes nothing here."""
        if self._may_ask(client, request):
            self._agent.open_requests.forward(request)

    def status(self, client: Client, request: Request) -> None:
        """Handle `session/status`: of a session that is known here the gateway answers, of others the agent."""
        agent, session_id = self._agent, request.message.session
        session = None
        if session_id is not None:
            session = agent.session_in_reach(client, session_id)
            session = session or agent.registry.find(client.reach, agent.name, session_id)
        if session is not None and session.agent_handle is None and client.reach.guest:
            # It was invited while that is open.
            agent.refuse_unknown(request, session_id)
        elif session is not None and not session.aside:
            agent.answer(request, status_result(session))
        elif session_id is not None and (
            not client.controls or client.reach.guest or not agent.process.abilities.status
        ):
            agent.refuse_unknown(request, session_id)
        else:
            self.ask(client, request)

    def set_title(self, client: Client, request: Request) -> None:
        """Handle `session/set_title`; the title that the agent has stored is fanned out."""
        if self._may_ask(client, request):
            request.session = self._agent.session_in_reach(client, request.message.session)
            self._agent.open_requests.forward(request, self._title_set)

    def _may_ask(self, client: Client, request: Request) -> bool:
        """Refuse a request that names no session, or one of another owner; return True for any other."""
        session_id = request.message.session
        # The agent would take the id for the session that is live, even if the client had one of that id before.
        taken = session_id in self._agent.live and self._agent.session_in_reach(client, session_id) is None
        refusal = preconditions.named_session(self._agent, client, request)
        if session_id is None:
            refusal = preconditions.NO_SESSION
        elif taken:
            refusal = self._agent.unknown_session(client, session_id)
        if refusal is not None:
            self._agent.refuse(request, *refusal)
        return refusal is None

    def _title_set(self, request: Request, response: Message) -> None:
        title = lookup.text_at(response.text, "result", "title")
        if request.session is not None and title is not None:
            update = updates.title_update(request.session, title)
            self._agent.histories.write_choice(request.session, request.client, methods.INFO_UPDATE, update)
        self._agent.respond(request, response)


def status_of(session: Session) -> dict[str, Any]:
    """Return the members of the gateway's own `_meta` that tell of a session."""
    handle = session.agent_handle
    questions = 0 if handle is None else handle.questions(session)
    state = "requires_action" if questions else session.own_state or ("running" if session.turns else "idle")
    status = {"state": state, "questions": questions, "queue": len(session.queue)}
    if handle is None:
        return {"status": status}
    return {"status": status, CURSOR: str(Cursor(place_of(session), session.journal.ends_here))}


def status_result(session: Session) -> bytes:
    """Compose the result of `session/status`."""
    status = "saved" if session.agent_handle is None else "open"
    return jsonrpc.encode({"status": status, "_meta": {META: status_of(session)}})


def with_status(client: Client, session: Session, response: Message, **more: Any) -> Message:
    """Add the status of a session to the response that opens it, and further members, for a client with cursors."""
    if client.cursors is None:
        return response
    return with_result_meta(response, jsonrpc.encode(status_of(session) | more))
