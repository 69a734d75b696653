"""Makes a session again that its agent has lost before the first prompt.

Many agents store nothing before that: such a session ends with their process, while an editor has it open. Its clients
keep the id, and the agent has another one (`core/sessions/agent_ids.py`).
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import OwnRequest
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Session
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup


class Renewal:
    """Makes sessions of one agent process again."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._routing = routing

    def begins(self, session: Session, response: Message, then: Callable[[Message], None]) -> bool:
        """Ask the agent for a new session in place of one that it has refused to open, if that had no prompt yet.

        `then` takes the response to opening it after all, or the refusal; it is not called if this returns False.
        """
        if not response.error or not session.is_unprompted:
            return False
        self._agent.openings[session.account] += 1
        own = OwnRequest(session.opening_request(methods.NEW))
        self._agent.forward(own, partial(self._renewed, session=session, refusal=response, then=then))
        return True

    def _renewed(
        self,
        _own: OwnRequest,
        response: Message,
        *,
        session: Session,
        refusal: Message,
        then: Callable[[Message], None],
    ) -> None:
        self._agent.openings -= Counter((session.account,))
        agent_id = lookup.text_at(response.text, "result", "sessionId")
        if response.error or agent_id is None or len(agent_id) > SESSION_ID_SIZE or self._is_taken(agent_id, session):
            then(refusal)
        else:
            self._agent.out.log(f"session {session.id:.80} had no prompt yet, and was made again")
            self._agent.registry.set_agent_id(session, agent_id)
            self._agent.out.ids.set(session.id, session.agent_id)
            result = lookup.members_at(response.text, "result")
            result.pop("sessionId", None)
            then(jsonrpc.parse(b'{"jsonrpc":"2.0","id":0,"result":%b}' % jsonrpc.compose(result)))
            for update in self._routing.take_early(agent_id):
                self._routing.update(self._agent.out.ids.from_agent(update))
        self._routing.sort_early()

    def _is_taken(self, agent_id: str, session: Session) -> bool:
        """Return True if another session has the id at the agent."""
        here = self._agent.out.ids.here(agent_id)
        other = self._agent.live.get(here or "")
        return other is not None and other is not session
