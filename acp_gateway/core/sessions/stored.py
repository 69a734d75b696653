"""Session methods for which a session need not be open: its status, its title, and the end of its archiving."""

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions import preconditions
from acp_gateway.core.sessions.session import Client, Request
from acp_gateway.core.turns import updates
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup


class StoredSessions:
    """Sessions that the agent has stored, whether or not they are open."""

    def __init__(self, agent: AgentState) -> None:
        self._agent = agent

    def ask(self, client: Client, request: Request) -> None:
        """Handle a request that changes nothing here."""
        if self._may_ask(client, request):
            self._agent.open_requests.forward(request)

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
