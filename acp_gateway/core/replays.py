"""Sends histories to clients: that of a session, or what a returning client has missed of it."""

from collections.abc import Sequence

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.rejoining import Rejoin
from acp_gateway.core.sessions import Client, Session
from acp_gateway.protocol.gaps import MAY_BE_MISSING, gap


def replay(agent: AgentState, session: Session, client: Client, history: Sequence[bytes]) -> None:
    """Send the history of a session to a client, with the client's terminal ids."""
    its = translated(agent, client, history)
    if session in client.replays:
        # A history requested again before it was read counts as ordinary output of a client.
        for update in its:
            agent.out.client(client, update)
    else:
        client.replays[session] = None
        agent.out.replay(client, its)


def translated(agent: AgentState, client: Client, history: Sequence[bytes]) -> Sequence[bytes]:
    """Return a history with the terminal ids of a client."""
    translations = agent.terminals.translations
    return [translations(update).get(client, update) for update in history]


def send_states(agent: AgentState, session: Session, client: Client, rejoin: Rejoin | None) -> None:
    """Send the states of a session after a resume, and a gap if a returning client may have missed something.

    They follow the response, where no client takes them for history.
    """
    missing = [] if rejoin is None else [gap(session.id, MAY_BE_MISSING)]
    agent.out.replay(client, [*missing, *session.journal.states()])
