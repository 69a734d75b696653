"""Rejoining: a client resumes its sessions over a new link.

Its old link could not be resumed: it was disconnected for too long, or the gateway has restarted. The client describes
its state in `params._meta["acp-gateway"]` of `session/resume` or `session/load`:

    {"epoch": "…", "position": 12, "connection": "…", "former": ["…"], "prompts": [4], "questions": [7]}

If the journal covers that position, the client gets the messages after it and no others; for messages not held any
more, it gets a gap and the states. If the position proves nothing, it gets a gap too: no client misses a message
without being told. Its prompts whose turn is still running return to it, under the ids of the old link, and so do the
agent's open requests; the response names both, and those not named are over. The id of the old link grants nothing:
prompts and requests return within one identity only.
"""

from collections.abc import Sequence
from typing import Final

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.far_places import Place, place_of, seen_up_to, start_of
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import MAY_BE_MISSING, PART_MISSING, gap
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.link_messages import Mark, acknowledgement
from acp_gateway.protocol.methods import LOAD
from acp_gateway.protocol.text import lookup, spans

_FORGETS: Final = "the agent has neither session/load nor session/resume, so its sessions end with its process"


def missed_messages(session: Session, client: Client, rejoin: Rejoin | None) -> list[bytes] | None:
    """Return the messages that a client has not seen, with marks of their positions; None if its position proves
    nothing.

    A gap stands for messages that are not held any more: none is missing silently.
    """
    if rejoin is None or not client.counts or rejoin.epoch is None:
        return None
    journal = session.journal
    begin = seen_up_to(session, rejoin.epoch, rejoin.position)
    if begin is None:
        return None

    def mark(place: Place) -> Mark:
        return Mark(acknowledgement(0, {session.id: place}))

    marked: list[bytes] = [mark((rejoin.epoch, rejoin.position))]
    if place_of(session, begin) != (rejoin.epoch, rejoin.position):
        # Count in the present epoch from here on: in the former one, a position past its end has no meaning.
        marked.append(mark(place_of(session, begin)))
    start = start_of(session)
    if begin < start:
        begin = start
        marked.append(gap(session.id, PART_MISSING))
        marked += journal.states(begin)
        marked.append(mark(place_of(session, begin)))
    tail = journal.since(begin)
    assert tail is not None
    for position, update in enumerate(tail, begin + 1):
        marked.append(update)
        if lookup.text_at(update, "params", "sessionId") != session.id:
            # A sub-agent's update counts in this session, and under another name at the client.
            marked.append(mark(place_of(session, position)))
    return marked


def waits_for_owner(agent: AgentState, session_id: str, request: Request) -> bool:
    """Return True if the request of a returning client waits for a client that may re-open its session, or was refused
    as none can.

    A refusal would end the session in the editor, and the order of reconnects after a restart is chance.
    """
    client = request.client
    if client.controls and not client.scope.guest:
        return False
    if not _may_be_reopened(agent, session_id, request):
        return False
    if agent.never_reopens:
        _refuse(agent, request, _FORGETS)
    else:
        # The wait is one, however often it is begun.
        request.returned_at = request.returned_at or agent.now
        agent.waiting.add(request, Until.SESSION_REOPENED, session_id)
    return True


def refuse_returning(agent: AgentState, session: Session) -> None:
    """Refuse the requests that wait for a session which the agent has refused to re-open."""
    for request in agent.waiting.release(Until.SESSION_REOPENED, session.id):
        _refuse(agent, request, "the agent has refused to open it again")


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
        elif request.returned_at is not None and agent.now - request.returned_at >= patience:
            agent.waiting.withdraw(request)
            _refuse(agent, request, f"no client that may open it has come within away_grace ({patience:g} s)")


def _may_be_reopened(agent: AgentState, session_id: str, request: Request) -> bool:
    """Return True if a session in the client's scope is not live anywhere, as far as it is known."""
    session = agent.registry.find(request.client.scope, agent.name, session_id)
    return session is not None and not session.live and session_id not in agent.live


def _refuse(agent: AgentState, request: Request, why: str) -> None:
    session_id = request.message.session
    why = f"session {session_id:.80} is not open any more: {why}"
    agent.refuse(request, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})


def replay(agent: AgentState, session: Session, client: Client, history: Sequence[bytes]) -> None:
    """Send the history of a session to a client, with the client's terminal ids."""
    its = translated(agent, client, history)
    if client.translator is None and session in client.replays:
        # A history requested again before it was read counts as ordinary output of a client.
        for update in its:
            agent.out.client(client, update)
    else:
        client.replays[session] = None
        replay_up_to(agent, session, client, its, session.journal.position)


def replay_up_to(agent: AgentState, session: Session, client: Client, history: Sequence[bytes], end: int) -> None:
    """Send a part of the history, which ends at a position, to a client, translated if its version is another."""
    journal, translator = session.journal, client.translator
    if translator is None:
        agent.out.replay(client, history)
        return
    translator.begin_replay(session.id)
    ends = journal.turn_ends()
    position = end - sum(not isinstance(text, Mark) for text in history)
    # It may begin within a turn, and go on with a message that the client has a part of.
    begin = max((place for place in ends if place <= position), default=journal.start)
    translator.prime(session.id, journal.messages(begin, position), begin)
    boundaries = set(ends)
    for text in history:
        if isinstance(text, Mark):
            agent.out.client(client, text)
            continue
        if position in boundaries:
            translator.turn_boundary(session.id)
        # A gap, and the states before the beginning, are in no place.
        agent.out.replay(client, [text], position if position >= journal.start else None)
        position += 1
    if position in boundaries:
        translator.turn_boundary(session.id)
    agent.introduce(session, client)


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


def resume_as_load(message: Message) -> bytes:
    """Rewrite a `session/resume` as the `session/load` that replays the history."""
    method = spans.find(message.text, "method")
    params = spans.find(message.text, "params")
    assert method is not None
    assert params is not None
    edits = [(*method, jsonrpc.encode(LOAD))]
    if spans.find(message.text, "params", "mcpServers") is None:
        edits.append((params[0] + 1, params[0] + 1, b'"mcpServers":[],'))
    return spans.splice(message.text, edits)
