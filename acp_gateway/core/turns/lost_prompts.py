"""Prompts whose link was lost: they are found again by a word, and answered with the real end of their turn.

Each prompt has a word, its *claim*, composed of the identity and the link of its client and of its id. A gateway in
front of another one passes the claim on with the prompt, in `params._meta["acp-gateway"]`, and the other gateway
remembers it with the turn. When the gateway in front was killed, its next process takes over the turns of a session
when it opens that again: it names the former link, and is told the claims. So a client that returns gets its prompt
back, also where another client has opened the session before it.

The last responses of a session are kept for a while: the link may have been lost on the way of one.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice, product
from typing import Any, Final, NamedTuple

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import EndLink
from acp_gateway.core.sessions.far_places import former_places, place_of, start_of
from acp_gateway.core.sessions.own_meta import (
    MAX_ID,
    Rejoin,
    asks_to_steer,
    may_have_own_meta,
    with_request_meta,
    without_own_meta,
)
from acp_gateway.core.sessions.session import Client, EndedPrompt, Request, Session, SessionReach
from acp_gateway.core.states import Presence
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Kind, Message, RawId
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.reasons import reason_of
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.spans import TooMany

CLAIM_SIZE: Final = 64
"""Maximum length of a claim, in characters."""

MAX_CLAIMS: Final = 1000
"""Maximum number of claims of a returning client, and of a gateway that asks for turns: each costs a hash, and few
clients have ten prompts open."""

ENDED_KEPT: Final = 8
"""Maximum number of remembered responses of a session: of the last prompts of a few clients."""

RESPONSE_SIZE: Final = 4096
"""Maximum size of a response that is remembered whole, in bytes; of a larger one its stop reason, or its message."""

_MOVED: Final = "the client has come back through another gateway, which gets the answer to this prompt"


class Reclaimed(NamedTuple):
    """The prompts that a returning client gets back."""

    prompts: list[RawId]
    """Ids of its prompts that will be answered."""
    answers: list[bytes]
    """Responses to those that have ended already."""


def claim_of(identity: str, link: str, raw_id: RawId) -> str:
    """Return the claim of a prompt."""
    key = jsonrpc.id_key(raw_id)
    spelled = key if isinstance(key, bytes) else b'"' + key.encode(errors="surrogatepass")
    text = jsonrpc.encode([identity, link]) + spelled
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def note_claim(request: Request) -> None:
    """Read the claim that a gateway has passed on with a prompt, or compose it.

    An earlier prompt under the same id has been answered: its response is forgotten, even if this one gets nowhere.
    """
    text, link = request.message.text, request.client.link
    said = lookup.text_param(request.message, "_meta", META, "claim") if may_have_own_meta(text) else None
    if said is not None and len(said) <= CLAIM_SIZE:
        request.claim = said
    elif link is not None:
        request.claim = claim_of(request.client.reach.identity, link, request.id)
    for session in request.client.sessions:
        session.ended.pop(request.claim or "", None)


def with_claim(request: Request) -> bytes:
    """Return the text of a prompt for another gateway."""
    told: dict[str, Any] = {} if request.claim is None else {"claim": request.claim}
    told |= {"steer": True} if asks_to_steer(request.message) else {}
    text = without_own_meta(request.message.text)
    return with_request_meta(text, jsonrpc.encode(told)) if told else text


def note_end(session: Session, request: Request, response: Message) -> None:
    """Remember the response to a prompt: its client may not have got it."""
    if request.claim is None:
        return
    text = response.text
    if len(text) > RESPONSE_SIZE and response.error:
        text = jsonrpc.error(response.id, jsonrpc.INTERNAL_ERROR, reason_of(text))
    elif len(text) > RESPONSE_SIZE:
        reason = lookup.text_at(text, "result", "stopReason") or "end_turn"
        text = jsonrpc.result(response.id, {"stopReason": reason[:CLAIM_SIZE]})
    _remember(session, request.claim, EndedPrompt(request.client.reach.identity, text))


def _remember(session: Session, claim: str, ended: EndedPrompt) -> None:
    session.ended[claim] = ended
    while len(session.ended) > ENDED_KEPT:
        del session.ended[next(iter(session.ended))]


def claims_in(client: Client, rejoin: Rejoin | None) -> dict[str, RawId]:
    """Return the claims of the prompts that a returning client names, with their ids."""
    if rejoin is None:
        return {}
    identity, links = client.reach.identity, rejoin.connections
    pairs = islice(product(links, rejoin.prompts), MAX_CLAIMS)
    return {claim_of(identity, link, raw_id): raw_id for link, raw_id in pairs}


def reclaim_prompts(session: Session, client: Client, rejoin: Rejoin) -> Reclaimed:
    """Return a session's prompts to their client, which has another link now."""
    reclaimed = Reclaimed([], [])
    if not client.controls:
        return reclaimed
    identity, links = client.reach.identity, rejoin.connections
    wanted = claims_in(client, rejoin)
    keys = {jsonrpc.id_key(raw_id) for raw_id in rejoin.prompts}
    for request in [*session.turns, *session.queue]:
        former = request.client
        if not former.gone:
            continue
        if former.reach.identity == identity and _was_linked(former, links) and request.key in keys:
            raw_id: RawId | None = request.id
        else:
            raw_id = wanted.get(request.claim or "")
        if raw_id is not None and jsonrpc.id_key(raw_id) not in client.requests:
            _give(request, client, raw_id)
            reclaimed.prompts.append(raw_id)
    if reclaimed.prompts:
        # If this link is lost before the response has arrived, the client will name the old ones again.
        client.former_links |= {*links}
    for claim, raw_id in wanted.items():
        ended = session.ended.get(claim)
        if ended is not None and jsonrpc.id_key(raw_id) not in client.requests:
            reclaimed.prompts.append(raw_id)
            reclaimed.answers.append(jsonrpc.with_id(jsonrpc.parse(ended.response), raw_id))
    return reclaimed


def _was_linked(client: Client, links: Iterable[str]) -> bool:
    """Return True if one of these is a client's link, or an earlier one from which it has taken over prompts."""
    return any(link == client.link or link in client.former_links for link in links)


def _give(request: Request, client: Client, raw_id: RawId) -> None:
    request.client = client
    request.id, request.key = raw_id, jsonrpc.id_key(raw_id)
    client.add_request(request)


def reclaim_requests(
    agent: AgentState, session: Session, client: Client, rejoin: Rejoin
) -> tuple[bytes, Sequence[bytes]]:
    """Return a session's prompts and the agent's requests to a client.

    Returns members of the result's `_meta`, as JSON text, and the messages that follow the response.
    """
    prompts, answers = reclaim_prompts(session, client, rejoin)
    agent_requests: list[int] = []
    if client.controls and rejoin.connections:
        client.mint_above(min(max(rejoin.agent_requests, default=0), MAX_ID))
        agent.mcp_connections.reclaim(client, rejoin.connections)
        for link in rejoin.connections:
            agent_requests += agent.agent_requests.reclaim(session, client, link, rejoin.agent_requests)
    listed = b",".join(prompts), b",".join(b"%d" % number for number in agent_requests)
    members = {"prompts": b"[%b]" % listed[0], "questions": b"[%b]" % listed[1]}
    return jsonrpc.compose(members | hand_over(agent, session, client, rejoin)), answers


# At the gateway that has the agent


def hand_over(agent: AgentState, session: Session, client: Client, rejoin: Rejoin) -> dict[str, bytes]:
    """Give the turns of a former link to the gateway that had it; return members of the result's `_meta`.

    That link is over. The prompts get ids below zero, which that gateway does not use for its own requests.
    """
    if not rejoin.takes_over or not client.controls or client.reach.guest:
        return {}
    identity, links = client.reach.identity, {*rejoin.connections}
    turns = []
    numbers = (RawId(b"%d" % -number) for number in count(1))
    for request in [*session.turns, *session.queue]:
        former = request.client
        is_claimed = request.claim is not None and request.claim in rejoin.claims
        is_over = _was_linked(former, links)
        if former is client or former.reach.identity != identity or not (is_claimed or is_over):
            continue
        if not is_over:
            # Its client has come back through another gateway, and the former one may live on.
            agent.out.client(former, jsonrpc.error(request.id, jsonrpc.INTERNAL_ERROR, _MOVED, {"reason": "outage"}))
        former.remove_request(request)
        request.handed_over = True
        _give(request, client, next(raw_id for raw_id in numbers if jsonrpc.id_key(raw_id) not in client.requests))
        turns.append({"id": int(request.id), "claim": request.claim})
    # If this link is lost as well, the old ones may be named again.
    client.former_links |= links
    for other in agent.clients:
        if other is not client and other.reach.identity == identity and _was_linked(other, links):
            agent.out.effect(EndLink(other))
    ended = [
        jsonrpc.compose({"claim": jsonrpc.encode(claim), "response": past.response})
        for claim, past in session.ended.items()
        if past.identity == identity
    ]
    return {
        "turns": jsonrpc.encode(turns),
        "ended": b"[%b]" % b",".join(ended),
        "start": b"%d" % place_of(session, start_of(session))[1],
        "former": jsonrpc.encode(former_places(session)),
    }


# At the gateway in front


def turns_told(told: Mapping[str, bytes]) -> Iterator[tuple[int, str | None]]:
    """Yield the id and the claim of each turn that the gateway with the agent has handed over."""
    for turn in _elements(told.get("turns")):
        number = jsonrpc.id_number(RawId(lookup.raw_at(turn, "id") or b"0"))
        claim = lookup.text_at(turn, "claim")
        if number is not None and number < 0:
            yield number, claim if claim is not None and len(claim) <= CLAIM_SIZE else None


def remember_ended(session: Session, told: Mapping[str, bytes]) -> None:
    """Remember the responses that the gateway with the agent has kept."""
    for entry in _elements(told.get("ended")):
        claim, response = lookup.text_at(entry, "claim"), lookup.raw_at(entry, "response")
        if claim is None or len(claim) > CLAIM_SIZE or response is None or len(response) > 2 * RESPONSE_SIZE:
            continue
        try:
            message = jsonrpc.parse(response)
        except jsonrpc.InvalidMessage:
            continue
        if message.kind is Kind.RESPONSE:
            _remember(session, claim, EndedPrompt(session.owner, response))


def former_prompt(session: Session, claim: str | None) -> Request:
    """Return a prompt of a client that an earlier process of this gateway had."""
    client = Client("a former connection", SessionReach(session.owner))
    client.become(Presence.GONE)
    request = Request(client, Message(b"", Kind.REQUEST, RawId(b"0"), methods.PROMPT, session=session.id))
    request.claim = claim
    request.session = session
    return request


def _elements(array: bytes | None) -> list[bytes]:
    try:
        return lookup.elements_of(array) if array is not None and array[:1] == b"[" else []
    except TooMany:
        return []
