"""Requests that a lost link to another gateway has certainly not sent: they wait for the next link.

These are prompts, and requests whose text is kept. Others are refused: the text at hand is not that of the client.
"""

from collections.abc import Sequence
from typing import Final

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.own_meta import without_own_meta
from acp_gateway.core.sessions.session import Request, Session
from acp_gateway.core.turns.cut_turns import AGENT_ENDED
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message, RawId
from acp_gateway.protocol.not_sent import CANCELLED
from acp_gateway.protocol.text import lookup

MAX_HELD: Final = 8
"""Links that a request waits for at most: a node that is started again is reached over the next."""

_NOT_SENT: Final = (Until.AGENT_READY, Until.SESSION_OPEN)
"""Events that a request waits for before any message of it is sent."""


def take_unsent(agent: AgentState, unsent: Sequence[bytes]) -> dict[Request, None]:
    """Take requests back from an agent whose link was lost; return them in their order.

    A prompt that was cancelled since is answered. The prompts that wait for such turns alone are taken as well, and the
    requests that were taken back from an earlier link and that this one was not ready for.

    Args:
        agent: its link was lost, and the state of the process is not cleared yet.
        unsent: the messages that were certainly not sent, in their order.
    """
    if agent.link is None or not agent.policy.shared:
        return {}
    taken: dict[Request, None] = {}
    withdrawn: set[Request] = set()
    sessions: dict[Session, None] = {}
    # By session: a client may have sent a million cancels.
    prompts: dict[str | None, list[Request]] = {}
    for text in unsent:
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage:
            continue
        if message.kind is Kind.REQUEST:
            request = _taken_back(agent, message)
            if request is not None:
                taken[request] = None
                sessions |= {} if request.session is None else {request.session: None}
                if request.message.method == methods.PROMPT:
                    prompts.setdefault(request.message.session, []).append(request)
        elif message.method == methods.SESSION_CANCEL:
            for request in prompts.pop(message.session, ()):
                if request in taken:
                    del taken[request]
                    _end_turn(agent, request)
                    agent.answer(request, CANCELLED)
        elif message.method == methods.CANCEL_REQUEST:
            number = jsonrpc.id_number(RawId(lookup.param(message, "requestId") or b"null"))
            asked = None if number is None else agent.open_requests.get(number)
            if isinstance(asked, Request) and asked in taken:
                del taken[asked]
                withdrawn.add(asked)
    taken |= dict.fromkeys(request for until in _NOT_SENT for request in agent.waiting.of_kind(until) if request.held)
    taken = {request: None for request in taken if _may_wait(agent, request)}
    for session in sessions:
        if all(request in taken or request in withdrawn for request in session.turns):
            taken |= dict.fromkeys(request for request in agent.queued(session) if not request.abandoned)
    for request in taken:
        _end_turn(agent, request)
        request.agent_id = request.then = None
        request.held, request.held_link = request.held + 1, agent.link
    return taken


def _may_wait(agent: AgentState, request: Request) -> bool:
    """Return whether a request may wait for another link: once for each, and for so many at most."""
    return request.held < MAX_HELD and request.held_link != agent.link


def _taken_back(agent: AgentState, message: Message) -> Request | None:
    """Return the request of a client that was forwarded as this message, with its text; None if it can't wait."""
    number = jsonrpc.id_number(message.id)
    request = None if number is None else agent.open_requests.get(number)
    if not isinstance(request, Request) or request.client.requests.get(request.key) is not request:
        return None
    if request.message.method != methods.PROMPT:
        return request if methods.client_method(request.message.method).kept else None
    session = agent.attached_session(request.client, request.message.session)
    if session is None or request not in session.turns or not agent.abilities.reopens:
        return None
    own = jsonrpc.parse(without_own_meta(message.text))
    request.replace(jsonrpc.with_id(own, request.id))
    return request


def _end_turn(agent: AgentState, request: Request) -> None:
    """Take the turn of a prompt out of its session, where nothing of it is written yet."""
    session = request.session
    if session is None or session.turns.pop(request, None) is None:
        return
    session.unplaced.pop(request, None)
    session.note_change()
    agent.notify(session, "turn_ended", stopReason=None, reason=AGENT_ENDED)
    for client in session.attached if not agent.carries else ():
        # Its sender is told by the response, now or after the next link.
        if client.translator is not None and client is not request.client:
            agent.out.put(client, client.translator.turn_ended(session.id), session)
