"""Stopping this gateway's part of a session that another gateway has adopted (fencing).

Another gateway has opened the session in a later epoch. From then on nothing of it happens here: the running turn is
cancelled, its clients are told where the session lives, and the agent closes it.

The same is done at a gateway through which clients use a session of another node, if that one is away.
"""

from collections.abc import Iterable
from typing import Any, Final

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.opening import SessionOpening
from acp_gateway.core.requests import ForwardedRequest, OwnRequest, Request
from acp_gateway.core.sessions import Client, Session, TurnOutcome
from acp_gateway.core.states import AgentPhase
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import Message

MOVED: Final = "moved"
"""Reason in errors and close messages for a session that another gateway has."""

_CANCELLED: Final = b'{"stopReason":"cancelled"}'


def moved_data(session: Session, node: str | None) -> dict[str, Any]:
    """Return the data of an error about a session that a node has adopted."""
    return {"reason": MOVED, "sessionId": session.id, "node": node}


class SessionTakeover:
    """Stops the sessions of one agent process that other gateways have adopted."""

    def __init__(self, agent: AgentState, opening: SessionOpening) -> None:
        self._agent = agent
        self._opening = opening

    def stop(self, session: Session) -> list[Client]:
        """Stop a live session of this process, which was marked as moved; return the clients that came only for it.

        Each of its clients gets a line with the place where the session lives, and its open requests end with an
        error. The agent cancels the turns, and closes the session if it can.
        """
        agent = self._agent
        assert session.moved is not None, "it was marked"
        clients = self._tell(session, session.moved)
        if session.turns:
            agent.out.agent(jsonrpc.notification(methods.SESSION_CANCEL, {"sessionId": session.id}))
        self._end(session, session.moved, cancels=False)
        if agent.abilities.close and agent.phase is AgentPhase.READY:
            close = {"jsonrpc": "2.0", "id": 0, "method": methods.CLOSE, "params": {"sessionId": session.id}}
            agent.forward(OwnRequest(jsonrpc.parse(jsonrpc.encode(close))), _ignore)
        return [client for client in clients if client.scope.only == session.id]

    def leave(self, session: Session, node: str) -> list[Client]:
        """Stop the part that this gateway has in a session of an agent elsewhere, which `node` has adopted from there.

        As `stop`, but prompts end as cancelled, and the agent is told nothing: it can't be reached.
        """
        clients = self._tell(session, node)
        self._end(session, node, cancels=True)
        return [client for client in clients if client.scope.only == session.id]

    def _tell(self, session: Session, node: str) -> list[Client]:
        """Tell the clients of a session where it lives; return them."""
        clients = list(session.attached)
        line = gap(session.id, f"[acp-gateway: {self._agent.registry.moved_text(session, node)}]")
        for client in clients:
            self._agent.out.client(client, line)
        self._agent.notify(session, MOVED, node=node)
        return clients

    def _end(self, session: Session, node: str, *, cancels: bool) -> None:
        """End the turn and the requests in a session, and remove it from this process."""
        agent = self._agent
        if session.turns:
            agent.turn_ended(session, min(session.turns.values()), TurnOutcome(cut=MOVED))
        why, data = agent.registry.moved_text(session, node), moved_data(session, node)
        for request in self._requests_in(session):
            if cancels and request.message.method == methods.PROMPT:
                agent.answer(request, _CANCELLED)
            else:
                agent.refuse(request, jsonrpc.SESSION_NOT_FOUND, why, data)
        agent.out.audit("session_moved", None, session=session.id, agent=agent.name, node=node)
        self._opening.remove_session(session, forgotten=False)

    def _requests_in(self, session: Session) -> Iterable[Request]:
        """Return the requests of clients that wait for this session or in it; the agent's answers are dropped.

        Those for another session go on, such as a fork: what may belong to it waits for the agent's answer.
        """
        waiting = self._agent.waiting
        found = [*waiting.release(Until.SESSION_OPEN, session), *waiting.release(Until.TURN_FREE, session)]
        attached = session.attached
        found += waiting.take(lambda request: request.message.session == session.id and request.client in attached)
        for request in self._agent.open_requests.values():
            if request.message.session == session.id and request.message.method not in (methods.NEW, methods.FORK):
                request.then = _ignore
                if isinstance(request, Request):
                    found.append(request)
        return found


def _ignore(_request: ForwardedRequest, _response: Message) -> None:
    """Drop an answer of the agent about a session that has moved."""
