"""`session/list`: the agent's list filtered for a client, with the live sessions added."""

from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from acp_gateway.acp.worktrees import origin_of
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.preconditions import named_session
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, ListEntry, Request, Session
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import TooMany

PAGES = 100
"""Maximum number of consecutive pages without an entry for a client, before it gets an empty one and continues
itself."""

PAST = 1000
"""Maximum number of sessions on a page that are not live, the latest first: more than a person looks through. Further
pages have the others."""

_CURSOR: Final = "past-"
"""Begin of the gateway's own cursors; the number of sessions on earlier pages follows, of those that are not live."""

_DIGITS: Final = 9
"""Maximum number of digits of that number."""


@dataclass(frozen=True, slots=True)
class Query:
    """Parameters of a client's `session/list`."""

    client: Client
    agent: str
    cwd: str | None
    first: bool
    """True for the first page, which holds all live sessions: later pages leave them out."""
    done: int = 0
    """Number of sessions on earlier pages of the gateway's own that are not live; 0 on the first page, and behind a
    cursor of another one."""

    @classmethod
    def of(cls, client: Client, agent: str, request: Message) -> "Query":
        """Read the parameters of a request."""
        cursor = lookup.param(request, "cursor")
        return cls(client, agent, lookup.text_param(request, "cwd"), cursor in (None, b"null"), _done(request))


def _done(request: Message) -> int:
    """Return the number in a cursor of the gateway; 0 for none and for another cursor."""
    begin, mark, number = (lookup.text_param(request, "cursor") or "").partition(_CURSOR)
    is_own = not begin and mark and number.isascii() and number.isdecimal() and len(number) <= _DIGITS
    return int(number) if is_own else 0


class Page(NamedTuple):
    """A page of a list for a client."""

    response: bytes
    cursor: bytes | None = None
    """The agent's cursor, as JSON text, if no entry is left on this page; None if the page is for the client."""


def known(query: Query, registry: Registry, *, reopens: bool) -> bytes:
    """Return the result without asking the agent.

    `reopens` is true if the client can open sessions that are not live.
    """
    found = _seen(query, registry, past=reopens) if query.first or query.done else []
    past = [session for session in found if not session.live]
    end = max(len(past) - query.done, 0)
    shown = past[max(end - PAST, 0) : end]
    if query.first:
        shown += [session for session in found if session.live]
    more = b',"nextCursor":"%b%d"' % (_CURSOR.encode(), query.done + PAST) if end > PAST else b""
    return b'{"sessions":[%b]%b}' % (b",".join(map(_entry, shown)), more)


def filtered(query: Query, registry: Registry, response: bytes, most: int) -> Page:
    """Return the agent's page filtered for a client, with the titles that users have given, and for those without one.

    Raises `TooMany` if it has more than `most` sessions.
    """
    at = spans.find(response, "result", "sessions")
    if at is None or response[at[0]] != ord("["):
        return Page(response)
    live = {session.id: session for session in _seen(query, registry, past=False)}
    entries = []
    listed = response[at[0] : at[1]]
    texts = lookup.elements_of(listed, most)
    for entry, (session_id, title) in zip(texts, _names(listed, texts), strict=True):
        if session_id is None:
            continue
        renewed = registry.named_by_agent(query.agent, session_id)
        if renewed is not None:
            session_id, title = renewed.id, renewed.title
            entry = _entry(renewed)
        if not _sees(query, registry, session_id):
            continue
        if session_id in live and not query.first:
            continue
        live.pop(session_id, None)
        session = registry.find(query.client.reach, query.agent, session_id)
        if session is not None and session.title and title != session.title and (session.is_named or not title):
            entry = _titled(entry, session.title)
        entries.append(entry)
    if query.first:
        entries = [_entry(session) for session in live.values()] + entries
    cursor = lookup.raw_at(response, "result", "nextCursor")
    if entries or cursor in (None, b"null"):
        cursor = None
    return Page(spans.splice(response, [(*at, b"[%b]" % b",".join(entries))]), cursor)


class _Listed(msgspec.Struct):
    session_id: str | None = msgspec.field(name="sessionId", default=None)
    title: str | None = None


_decode_names: Final = msgspec.json.Decoder(list[_Listed]).decode


def _names(listed: bytes, texts: list[bytes]) -> list[tuple[str | None, str | None]]:
    """Return ids and titles of the sessions in an array of entries; entry by entry if one has invalid ones."""
    try:
        return [(entry.session_id, entry.title) for entry in _decode_names(listed)]
    except (msgspec.DecodeError, RecursionError):
        return [(lookup.text_at(text, "sessionId"), lookup.text_at(text, "title")) for text in texts]


def _titled(entry: bytes, title: str) -> bytes:
    """Return an entry with another title; the entry itself if it has too many members to be read."""
    members = lookup.members_at(entry)
    return jsonrpc.compose(members | {"title": jsonrpc.encode(title)}) if members else entry


def next_page(request: Message, cursor: bytes) -> bytes:
    """Compose the same request for the page behind a cursor, which is JSON text."""
    params = {name: bytes(raw) for name, raw in lookup.params_of(request).items()}
    params["cursor"] = cursor
    return b'{"jsonrpc":"2.0","id":0,"method":"session/list","params":%b}' % jsonrpc.compose(params)


def _seen(query: Query, registry: Registry, *, past: bool) -> list[Session]:
    reach = query.client.reach
    return [
        session
        for session in [*(registry.past(reach) if past else ()), *registry.live(reach)]
        if session.agent == query.agent
        and (query.cwd is None or query.cwd in (session.cwd, origin_of(session.cwd)))
        # Of several ended sessions with one id, only the last can be opened.
        and (session.live or registry.find(reach, query.agent, session.id) is session)
    ]


def _sees(query: Query, registry: Registry, session_id: str) -> bool:
    reach = query.client.reach
    return registry.find(reach, query.agent, session_id) is not None or registry.may_exist(
        reach, query.agent, session_id
    )


def _entry(session: Session) -> bytes:
    """Compose the entry of a session; cached, as lists are requested far more often than entries change."""
    shown = session.cwd, session.title, session.updated_at
    if session.listed is None or session.listed.shown != shown:
        session.listed = ListEntry(shown, _compose(session))
    return session.listed.text


def _compose(session: Session) -> bytes:
    entry = {"sessionId": session.id, "cwd": session.cwd or "", "title": session.title, "updatedAt": session.updated_at}
    return jsonrpc.encode({name: value for name, value in entry.items() if value is not None})


class SessionList:
    """Lists the sessions of one agent process."""

    def __init__(self, agent: AgentState) -> None:
        self._agent = agent

    def list(self, client: Client, request: Request) -> None:
        """Answer from the registry, or forward to the agent."""
        query = Query.of(client, self._agent.name, request.message)
        if self._agent.process.abilities.list and client.controls and client.reach.only is None:
            refusal = named_session(self._agent, client, request)
            if refusal is not None:
                self._agent.refuse(request, *refusal)
                return
            self._agent.open_requests.forward(request, partial(self._listed, query=query, pages=1))
        else:
            reopens = self._agent.process.abilities.reopens and client.controls and client.reach.only is None
            self._agent.answer(request, known(query, self._agent.registry, reopens=reopens))

    def _listed(self, request: Request, response: Message, *, query: Query, pages: int) -> None:
        if response.error:
            self._agent.respond(request, response)
            return
        most = self._agent.policy.limits.max_listed_sessions
        try:
            text, cursor = filtered(query, self._agent.registry, response.text, most)
        except TooMany:
            why = f"the agent lists more than {most} sessions on one page (max_listed_sessions)"
            self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, why)
            return
        if cursor is not None and pages < PAGES and not query.client.gone:
            then = partial(self._listed, query=query, pages=pages + 1)
            self._agent.open_requests.forward(request, then, next_page(request.message, cursor))
        else:
            self._agent.respond(request, jsonrpc.parse(text))
