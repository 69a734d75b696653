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

from collections import deque
from collections.abc import Sequence
from typing import Final

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.requests import ErrorObject
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.places import Place, begun_message, place_of, seen_up_to, step
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.core.turns.ends import TurnEnd, past_end
from acp_gateway.core.turns.updates import opening_result
from acp_gateway.core.waiting import Event, Objection, Until
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
    start = session.journal.start
    if begin < start:
        # The gap and the states are in no place.
        marked.append(mark(step(place_of(session, begin), begin, 0)))
    elif place_of(session, begin) != (rejoin.epoch, rejoin.position):
        # Count in the present epoch from here on: in the former one, a position past its end has no meaning.
        marked.append(mark(place_of(session, begin)))
    if begin < start:
        begin = start
        marked.append(gap(session.id, PART_MISSING))
        marked += journal.states(begin)
        marked.append(mark(place_of(session, begin)))
    tail = journal.since(begin)
    assert tail is not None
    for position, update in enumerate(tail, begin + 1):
        named = lookup.text_at(update, "params", "sessionId")
        marked.append(update)
        if named != session.id:
            # A sub-agent's update counts in this session, and under another name at the client.
            marked.append(mark(place_of(session, position)))
    # What comes before its next mark is in no place.
    marked.append(mark(step(place_of(session), session.journal.position, 0)))
    return marked


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
    if agent.never_reopens:
        return _refusal(session_id, _FORGETS)
    # The wait is one, however often it is begun.
    findings.returned_at = findings.returned_at or agent.now
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
        elif (since := request.findings.returned_at) is not None and agent.now - since >= patience:
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


def replay(
    agent: AgentState, session: Session, client: Client, history: Sequence[bytes], rejoin: Rejoin | None = None
) -> None:
    """Send the history of a session to a client, with the client's terminal ids."""
    its = translated(agent, client, history)
    # A history requested again before it was read counts as ordinary output of a client.
    is_ordinary = client.translator is None and session in client.replays
    if not is_ordinary:
        client.replays[session] = None
    replay_up_to(agent, session, client, its, session.journal.position, rejoin, is_ordinary=is_ordinary)


def replay_up_to(
    agent: AgentState,
    session: Session,
    client: Client,
    history: Sequence[bytes],
    end: int,
    rejoin: Rejoin | None = None,
    *,
    is_ordinary: bool = False,
) -> None:
    """Send a part of the history, which ends at a position, to a client, translated if its version is another.

    A history with marks is counted from the first one on, which is the place that `rejoin` names.
    """
    journal, translator = session.journal, client.translator
    marks = sum(isinstance(text, Mark) for text in history)
    position, counts_in = end - len(history) + marks, session if marks else None
    asked = client.wants_ends and translator is None
    turns = deque(journal.ends((max(position, journal.start), 0), end) if asked else ())
    if translator is None and not (marks and journal.carries):
        told = _with_ends(session, history, position, turns) if turns else history
        agent.out.replay(client, told, is_ordinary=is_ordinary)
        return
    boundaries, begun = set(journal.turn_ends()), None
    if translator is not None:
        translator.begin_replay(session.id)
        if marks:
            translator.knows(session.id, opening_result(session, with_id=False))
        # It may begin within a turn, and go on with a message that the client has a part of.
        begin = max((place for place in boundaries if place <= position), default=journal.start)
        translator.prime(session.id, journal.messages(begin, position), begin)
        if rejoin is not None and rejoin.epoch is not None:
            begun = begun_message(session, rejoin.epoch, rejoin.position)
    for text in history:
        if isinstance(text, Mark):
            agent.out.client(client, text)
            continue
        while turns and turns[0].position <= position:
            agent.out.replay(client, [past_end(session.id, turns.popleft())], is_ordinary=is_ordinary)
        if translator is not None and position in boundaries:
            translator.turn_boundary(session.id)
        if begun is not None and position == begun.position:
            agent.out.rest(client, session, text, position, begun.updates)
        else:
            # A gap, and the states before the beginning, are in no place.
            place = position if position >= journal.start else None
            agent.out.replay(client, [text], place, counts_in=counts_in, is_ordinary=is_ordinary)
        position += 1
    for turn in turns:
        agent.out.replay(client, [past_end(session.id, turn)], is_ordinary=is_ordinary)
    if translator is not None:
        if position in boundaries:
            translator.turn_boundary(session.id)
        agent.introduce(session, client)


def _with_ends(session: Session, history: Sequence[bytes], position: int, turns: deque[TurnEnd]) -> list[bytes]:
    """Return a part of the history, from a position on, with the ends of turns in it as news at their places."""
    found: list[bytes] = []
    for text in history:
        if not isinstance(text, Mark):
            while turns and turns[0].position <= position:
                found.append(past_end(session.id, turns.popleft()))
            position += 1
        found.append(text)
    return [*found, *(past_end(session.id, turn) for turn in turns)]


def translated(agent: AgentState, client: Client, history: Sequence[bytes]) -> Sequence[bytes]:
    """Return a history with the terminals of a client under its ids, and none of others."""
    translations = agent.terminals.translations
    return [translations(update, [client]).get(client, update) for update in history]


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
