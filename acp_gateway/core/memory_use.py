"""Memory of one agent process for messages that their receivers do not have yet, in bytes, and how it is given up.

The memory limit of the gateway counts these bytes beside journals and outboxes, which have counts of their own.
"""

from collections import Counter

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.routing import Routing


class MemoryUse:
    """Memory of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._routing = routing

    @property
    def agent_bytes(self) -> int:
        """Bytes that the agent has sent for clients that do not have them: unanswered requests, updates that came
        before their session, and results of opening sessions."""
        results = sum(sum(map(len, session.result.values())) for session in self._agent.live.values())
        return self._agent.agent_requests.size + self._routing.early_size + results

    @property
    def echo_bytes(self) -> int:
        """Bytes kept to recognize the echoes of prompts, and of prompts that have no place in the history yet."""
        live = self._agent.live.values()
        unplaced = sum(sum(map(len, chunks)) for session in live for chunks in session.unplaced.values())
        return unplaced + sum(session.echo.size for session in live if session.echo is not None)

    def end_echoes(self) -> None:
        """Take no further update for the echo of a prompt, and fan out what was withheld."""
        for session in self._agent.live.values():
            self._agent.end_echo(session)

    def abandoned_prompt_sizes(self) -> Counter[str]:
        """Count the bytes of queued prompts whose clients have gone, by identity."""
        return self._agent.waiting.abandoned_prompt_sizes()

    def drop_abandoned_prompts(self, identity: str) -> None:
        """Drop the queued prompts of an identity whose clients have gone."""
        self._agent.waiting.drop_abandoned_prompts(identity)
