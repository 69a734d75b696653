"""Waits of clients that come back over a new link for sessions which are not open any more, until another client that
may open them has done so.
"""

from typing import Final

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import ErrorObject
from acp_gateway.core.sessions.session import Request, Session
from acp_gateway.core.waiting import Event, Objection, Until
from acp_gateway.protocol import jsonrpc

_FORGETS: Final = "the agent has neither session/load nor session/resume, so its sessions end with its process"


def absent_owner(agent: AgentState, request: Request, session_id: str) -> Objection | None:
    """Let the request of a returning client wait for a client that may re-open its session; refuse it if none can.

    A refusal would end the session in the editor, and the order of reconnects after a restart is chance.
    """
    client = request.client
    if client.controls and not client.reach.guest:
        return None
    findings = request.findings
    if findings.rejoin is None or not _may_be_reopened(agent, session_id, request):
        return None
    if agent.process.never_reopens:
        return _refusal(session_id, _FORGETS)
    # The wait is one, however often it is begun.
    findings.returned_at = findings.returned_at or agent.clock.now
    return Event(Until.SESSION_REOPENED, session_id)


def refuse_returning(agent: AgentState, session: Session) -> None:
    """Refuse the requests that wait for a session which the agent has refused to re-open."""
    for request in agent.waiting.release(Until.SESSION_REOPENED, session.id):
        agent.refuse(request, *_refusal(session.id, "the agent has refused to open it again"))


def end_vain_waits(agent: AgentState, patience: float) -> None:
    """Refuse the requests that wait for sessions which can't be re-opened here any more, or have waited too long.

    Another process has opened it, or it was forgotten; or no client that may re-open it has come within `patience`
    seconds, for which a client may be away.
    """
    for request in agent.waiting.of_kind(Until.SESSION_REOPENED):
        session_id = request.message.session
        assert session_id is not None
        if not _may_be_reopened(agent, session_id, request):
            agent.waiting.withdraw(request)
            agent.refuse_unknown(request, session_id)
        elif (since := request.findings.returned_at) is not None and agent.clock.now - since >= patience:
            agent.waiting.withdraw(request)
            why = f"no client that may open it has come within away_grace ({patience:g} s)"
            agent.refuse(request, *_refusal(session_id, why))


def _may_be_reopened(agent: AgentState, session_id: str, request: Request) -> bool:
    """Return True if a session in the client's reach is not live anywhere, as far as it is known."""
    session = agent.registry.find(request.client.reach, agent.name, session_id)
    return session is not None and not session.aside and not session.live and session_id not in agent.live


def _refusal(session_id: str, why: str) -> ErrorObject:
    why = f"session {session_id:.80} is not open any more: {why}"
    return ErrorObject(jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})
