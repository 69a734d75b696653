"""Ids of sessions at the agent, where they are others than the clients': of sessions that were made again."""

from acp_gateway.core.turns.updates import entry_under_session, under_session
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup


class AgentIds:
    """The live sessions of one agent process that have another id there; mostly none."""

    def __init__(self) -> None:
        # By each other.
        self._there: dict[str, str] = {}
        self._here: dict[str, str] = {}

    def set(self, session_id: str, agent_id: str | None) -> None:
        """Note the id that a session has at the agent; None for its own one."""
        self._here.pop(self._there.pop(session_id, ""), None)
        if agent_id is not None:
            self._there[session_id], self._here[agent_id] = agent_id, session_id

    def here(self, agent_id: str | None) -> str | None:
        """Return the id of a session that the agent has named."""
        return None if agent_id is None else self._here.get(agent_id, agent_id)

    def to_agent(self, text: bytes) -> bytes:
        """Return a message for the agent, with its id of the session."""
        if not self._there:
            return text
        session_id = lookup.text_at(text, "params", "sessionId")
        there = None if session_id is None else self._there.get(session_id)
        return text if session_id is None or there is None else under_session(text, session_id, there)

    def from_agent(self, message: Message) -> Message:
        """Return a message of the agent, with the clients' id of the session."""
        if message.session is None or message.session not in self._here:
            return message
        return jsonrpc.parse_entry(entry_under_session(message.entry, message.session, self._here[message.session]))
