"""Joining a session that is live: its history comes from the journal, and the client is attached in the same step."""

from collections.abc import Sequence

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.own_meta import with_own_meta
from acp_gateway.core.sessions.rejoining import missed_messages, replay, send_states
from acp_gateway.core.sessions.session import Request, Session
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import cut_turn_meta
from acp_gateway.core.turns.lost_prompts import reclaim_requests
from acp_gateway.protocol import methods


def join(agent: AgentState, routing: Routing, session: Session, request: Request) -> None:
    """Answer `session/load` or `session/resume` of a session that is live here."""
    client = request.client
    client.joined = True
    resumes = request.message.method == methods.RESUME
    result = updates.opening_result(session, with_id=False)
    rejoin = request.rejoin
    tail = missed_messages(session, client, rejoin)
    answers: Sequence[bytes] = ()
    if rejoin is not None:
        own, answers = reclaim_requests(agent, session, client, rejoin)
        result = with_own_meta(result, own)
        result = with_own_meta(result, cut_turn_meta(session, rejoin))
    if tail:
        replay(agent, session, client, tail, rejoin)
    elif tail is None and not resumes:
        replay(agent, session, client, updates.history(session))
    else:
        agent.introduce(session, client, session.journal.running())
    agent.answer(request, result)
    for answer in answers:
        agent.out.client(client, answer)
    if resumes and tail is None:
        send_states(agent, session, client, rejoin)
    # Resuming does not take over the host role: another client may hold it by now.
    hosts = not resumes or session.host is None
    agent.attach(session, client, hosts=hosts, rejoin=rejoin)
    routing.joined(session, client)


def join_bound(agent: AgentState, routing: Routing, session: Session, request: Request) -> None:
    """Answer the first `session/new` of a connection that is bound to a session with that one, which is live here."""
    client = request.client
    client.joined = True
    agent.answer(request, updates.opening_result(session, with_id=True))
    replay(agent, session, client, updates.history(session))
    agent.attach(session, client, hosts=session.host is None)
    routing.joined(session, client)
