"""A client that takes up a session again over a new link: what it has seen of it, and what it still waits for.

Its old link could not be resumed: it had been away for too long, or this is another gateway process by now. The client
says so in `params._meta["acp-gateway"]` of `session/resume` or `session/load`:

    {"epoch": "…", "position": 12, "connection": "…", "prompts": [4], "questions": [7]}

Where its journal is still known here, it gets what came after that position and nothing else; of what is not held any
more, a line that says so, and the states as they are. Where the position proves nothing, a line says that too: nobody
comes back to a gap without being told. Its prompts whose turn is
still running are its own again, under the ids that they had on the old link, and so are the questions that it was asked
there and that are still open; the answer names both, and what it does not name is over. The id of the old link is no
authority: prompts and questions are given back within one identity only.
"""

from dataclasses import dataclass
from typing import Final, Self

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions import Client, Session
from acp_gateway.protocol import jsonrpc, spans
from acp_gateway.protocol.gaps import PART_MISSING, gap
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.outbox import Mark, acknowledgement
from acp_gateway.protocol.spans import TooMany

LARGEST_RETURN: Final = 64 * 1024
"""Bytes of what a client says of a session at most: the ids of a thousand prompts. Each is looked for."""

LARGEST_ID: Final = 10**15
"""Above it a number is none of those that were minted here for a client."""


@dataclass(frozen=True, slots=True)
class Rejoin:
    """What a client says of its time on another link."""

    epoch: str | None = None
    position: int = 0
    connection: str | None = None
    prompts: tuple[RawId, ...] = ()
    questions: tuple[int, ...] = ()

    @classmethod
    def read(cls, message: Message) -> Self | None:
        """What a `session/load` or `session/resume` says of it; None for one that says nothing."""
        raw = jsonrpc.param(message, "_meta", META)
        said = {} if raw is None or len(raw) > LARGEST_RETURN else jsonrpc.members_at(raw)
        if not said:
            return None
        asked = (jsonrpc.id_number(RawId(raw)) for raw in _elements(said.get("questions")))
        return cls(
            epoch=_string(said.get("epoch")),
            position=_number(said.get("position")),
            connection=_string(said.get("connection")),
            prompts=tuple(RawId(raw) for raw in _elements(said.get("prompts"))),
            questions=tuple(number for number in asked if number is not None),
        )


def last_id(initialize: Message) -> int:
    """The highest id under which a client was asked something over an earlier link, 0 for one that had none."""
    return _number(jsonrpc.param(initialize, "_meta", META, "lastId"))


def missed(session: Session, client: Client, returning: Rejoin | None) -> list[bytes] | None:
    """What a client has not seen of a session, behind a mark that says so; None where that can't be told.

    What is not held any more is named: there is never a silent gap.
    """
    if returning is None or not client.counts or returning.epoch is None:
        return None
    journal = session.journal
    begin = journal.shared_with(returning.epoch, returning.position)
    if begin is None:
        return None

    def mark(position: int, epoch: str = journal.epoch) -> Mark:
        return Mark(acknowledgement(0, {session.id: (epoch, position)}))

    marked: list[bytes] = [mark(returning.position, returning.epoch)]
    if (journal.epoch, begin) != (returning.epoch, returning.position):
        # From here on it counts in the epoch of now: in that of before, a place past its end says nothing any more.
        marked.append(mark(begin))
    if begin < journal.start:
        begin = journal.start
        marked.append(gap(session.id, PART_MISSING))
        marked += [update for update, _ in journal.aside()]
        marked.append(mark(begin))
    tail = journal.since(begin)
    assert tail is not None
    for position, update in enumerate(tail, begin + 1):
        marked.append(update)
        if jsonrpc.text_at(update, "params", "sessionId") != session.id:
            # A sub-agent's counts here, and under another name at the client.
            marked.append(mark(position))
    return marked


def adopt(process: AgentState, session: Session, client: Client, returning: Rejoin) -> bytes:
    """Give a client back what it waits for in a session and is asked there; what the answer says of it in _meta."""
    prompts: list[RawId] = []
    questions: list[int] = []
    if client.controls and returning.connection:
        wanted = {jsonrpc.id_key(raw_id) for raw_id in returning.prompts}
        for request in [*session.turns, *session.queue]:
            former = request.client
            if former is None or not former.gone or returning.connection not in (former.link, *former.former_links):
                continue
            key = jsonrpc.id_key(request.id)
            if former.viewer.identity == client.viewer.identity and key in wanted and key not in client.requests:
                request.client = client
                client.take_on(request)
                prompts.append(request.id)
        if prompts:
            # Should this link be lost before the answer has arrived, the client will name the old one again.
            client.former_links |= {returning.connection}
        client.mint_above(min(max(returning.questions, default=0), LARGEST_ID))
        questions = process.questions.adopt(session, client, returning.connection, returning.questions)
    listed = b",".join(prompts), b",".join(b"%d" % number for number in questions)
    return b'{"prompts":[%b],"questions":[%b]}' % listed


def with_own_meta(result: bytes, value: bytes) -> bytes:
    """The result of opening a session with the gateway's own member of `_meta` added; both are JSON texts."""
    members = jsonrpc.members_at(result)
    meta = jsonrpc.members_at(members.get("_meta", b"{}"))
    meta[META] = jsonrpc.compose(jsonrpc.members_at(meta.get(META, b"{}")) | jsonrpc.members_at(value))
    return jsonrpc.compose(members | {"_meta": jsonrpc.compose(meta)})


def without_own_meta(text: bytes) -> bytes:
    """A request without the gateway's own member of `params._meta`: an agent has nothing to do with it."""
    at = spans.find(text, "params", "_meta")
    meta = jsonrpc.members_at(text, "params", "_meta")
    if at is None or meta.pop(META, None) is None:
        return text
    return spans.splice(text, [(*at, jsonrpc.compose(meta))])


def _elements(raw: bytes | None) -> list[bytes]:
    try:
        return jsonrpc.elements_of(raw) if raw is not None and raw[:1] == b"[" else []
    except TooMany:
        return []


def _string(raw: bytes | None) -> str | None:
    return spans.string_value(raw) if raw is not None and raw[:1] == b'"' else None


def _number(raw: bytes | None) -> int:
    number = jsonrpc.id_number(RawId(raw)) if raw is not None and raw[:1].isdigit() else None
    return number if number is not None and number <= LARGEST_ID else 0
