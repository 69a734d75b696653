"""Prompts whose link was lost: they are found again by a word, and answered with the real end of their turn.

Each prompt has a word, its *claim*, composed of the identity and the link of its client and of its id.

The last responses of a session are kept for a while: the link may have been lost on the way of one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice, product
from typing import Final, NamedTuple

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.own_meta import MAX_ID, Rejoin
from acp_gateway.core.sessions.session import Client, EndedPrompt, Request, Session
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.reasons import reason_of
from acp_gateway.protocol.text import lookup

CLAIM_SIZE: Final = 64
"""Maximum length of a claim, in characters."""

MAX_CLAIMS: Final = 1000
"""Maximum number of claims of a returning client: each costs a hash, and few clients have ten prompts open."""

ENDED_KEPT: Final = 8
"""Maximum number of remembered responses of a session: of the last prompts of a few clients."""

RESPONSE_SIZE: Final = 4096
"""Maximum size of a response that is remembered whole, in bytes; of a larger one its stop reason, or its message."""


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
    """Compose the claim of a prompt.

    An earlier prompt under the same id has been answered: its response is forgotten, even if this one gets nowhere.
    """
    link = request.client.link
    if link is not None:
        request.claim = claim_of(request.client.reach.identity, link, request.id)
    for session in request.client.sessions:
        session.ended.pop(request.claim or "", None)


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
    session.ended[request.claim] = EndedPrompt(request.client.reach.identity, text)
    while len(session.ended) > ENDED_KEPT:
        del session.ended[next(iter(session.ended))]


def claims_in(client: Client, rejoin: Rejoin) -> dict[str, RawId]:
    """Return the claims of the prompts that a returning client names, with their ids."""
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
    return jsonrpc.compose(members), answers
