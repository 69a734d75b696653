"""Serves control connections of a gateway: sessions, rights, codes for browsers, the gateway's state, reload.

A client asks here what its credential allows, and which agents it may use. An agent is neither named nor started for
that, and nothing is told that the client could not find out by trying.
"""

import json
import time
from collections.abc import Awaitable, Callable, Collection, Container, Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from acp_gateway import __version__
from acp_gateway.config.load import Config
from acp_gateway.config.services import services
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role, Session, SessionReach
from acp_gateway.core.sessions.sub_agents import Doubt
from acp_gateway.core.states import Presence
from acp_gateway.errors import AccessError, Busy, Forbidden, UnknownAgent, UnknownSession, UsageError
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.browsers import SignInCodes
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.search.elsewhere import SearchNodes, beside
from acp_gateway.gateway.search.service import MOST_FOUND, SearchService
from acp_gateway.gateway.served_connection import ControlConnection, read_messages, serving
from acp_gateway.gateway.sessions.history import HistoryReader
from acp_gateway.gateway.sessions.history_pages import read_page
from acp_gateway.gateway.sessions.session_view import (
    Viewer,
    all_sessions,
    find_session,
    history_loss,
    past_sessions,
    shown_reach,
)
from acp_gateway.gateway.sessions.told_list import (
    MAX_SIZE,
    ToldList,
    within_size,
)
from acp_gateway.gateway.workspaces import workspaces_of
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message
from acp_gateway.protocol.methods import (
    ACCESS,
    CONFIRM,
    HISTORY,
    NOTICES,
    OPEN,
    RELOAD,
    SEARCH,
    SESSIONS,
    STATUS,
    STOP_AGENT,
    TOKENS,
)
from acp_gateway.protocol.on_behalf import CLAIMS
from acp_gateway.protocol.text import lookup
from acp_gateway.security.token_store import CLUSTER
from acp_gateway.transports.maintained import Charge, MaintainedStream, free
from acp_gateway.transports.streams import CloseReason

PAST: Final = 200
"""Maximum number of listed sessions that are not live: a few screens, of the thousands that are remembered."""

PAGE: Final = 1000
"""Maximum number of further ones in one response to a client that asks for the rest: some ten milliseconds' work."""

TEXT: Final = 4096
"""Maximum characters of a title, a path or a date in the list: no path is longer, and some agents use a whole first
prompt as the title."""

WEIGHT: Final = 100
"""Messages that a control request counts as in rate limits: searching thousands of sessions takes that much longer."""

CODE_WEIGHT: Final = 2000
"""Messages that a sign-in code counts as: it is written to the disk before it is answered."""

HISTORY_WEIGHT: Final = 500
"""Messages that a page of a history, or a search, counts as: the disk is read for it."""

REQUEST_SIZE: Final = 64 * 1024
"""Maximum bytes of a request of a control connection: it has some hundred. Its error names `control_message_size`."""

_UNSPECIFIED: Final = "the gateway's storage has a problem; its log says which"


@dataclass(frozen=True, slots=True)
class Operations:
    """Requests of the gateway's own user that the program around the gateway carries out."""

    status: Callable[..., Awaitable[dict[str, Any]]]
    """Returns the state of the gateway, as members of the response; `with_nodes`, that of the nodes is a present one.
    """
    reload: Callable[[], dict[str, Any]]
    """Reads the configuration again, and returns what has changed, as members of the response."""
    stop_agent: Callable[[str], Awaitable[dict[str, Any]]]
    """Ends the processes of an agent, and returns how many there were, as members of the response. Raises
    `UsageError`."""


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """Requests about the tokens that count on all nodes of a cluster."""

    tell: Callable[[object], Awaitable[object]]
    """Takes over what another node tells, the params of the request, and returns the same of this gateway. Raises
    `UsageError`."""
    confirm: Callable[[str], Awaitable[dict[str, Any]]]
    """Tells the other nodes of a change of a token; returns which of them have confirmed it."""


MergeNodes = Callable[[SessionReach, Container[str], dict[str, Any]], Awaitable[dict[str, Any]]]
"""Adds the sessions of nodes to a list: for a reach, and those of certain agents."""


Take = Callable[[bytes], Awaitable[tuple[int, float] | None]]
"""Begins to serve a message; returns what it counts as and the seconds that it has taken, None for other methods."""

Send = Callable[[bytes], Awaitable[None]]
"""Sends a message over the connection."""

TellNotices = Callable[[int | None, Send], Awaitable[None]]
"""Tells of questions, and of turns since a time, by a function that sends, until the client has to connect again."""


@dataclass(frozen=True, slots=True)
class ControlContext:
    """The state of the gateway that control requests read."""

    registry: Registry
    """All sessions of the gateway."""
    agents: Container[str]
    """Names of the agents whose sessions are listed."""
    hubs: Callable[[], list[Hub]]
    """Returns the present hubs."""
    problem: Callable[[], str | None]
    """Returns the current storage problem, for the gateway's own user only: it names files."""
    make_code: Callable[[bytes], dict[str, Any]]
    """Returns a code that signs a browser in, by the params of the request; raises `GatewayError`."""
    describe_access: Callable[[], dict[str, Any]]
    """Returns what the credential of the connection allows."""
    operations: Operations | None = None
    """None for a connection that may not ask for them."""
    merge: MergeNodes | None = None
    """Adds the sessions of nodes to a list; None without any."""
    load: Callable[[], dict[str, Any]] | None = None
    """Returns the load of the gateway; None for a connection that is not told."""
    max_sessions: int = 5000
    """Maximum sessions in a list for another gateway."""
    tell: Callable[[object], Awaitable[object]] | None = None
    """See `TokenExchange`; None for a connection that is not of a node of the cluster."""
    confirm: Callable[[str], Awaitable[dict[str, Any]]] | None = None
    """See `TokenExchange`; None for a connection that may not ask, and without a cluster."""
    version: Callable[[], int] | None = None
    """Returns another number when a session of this gateway has changed; None if its lists are always read."""
    history: HistoryReader | None = None
    """Reads histories; None if none is told."""
    search: SearchService | None = None
    """Searches in histories; None if there is no search."""
    search_nodes: SearchNodes | None = None
    """Searches at nodes; None without any."""
    node_history: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any] | None]] | None = None
    """Reads a page of the history of a session `NODE/ID` at its node; returns None for another name."""
    notices: TellNotices | None = None
    """Tells the connection of questions and turns; None for one that may decide nothing."""
    shows_doubt: bool = True
    """True if the agent's requests are listed that may be of several sessions, see `core/sessions/sub_agents.py`: not
    for observers, nor another gateway, which may serve several identities under one here."""


async def serve_control_channel(
    stream: MaintainedStream,
    reach: SessionReach,
    context: ControlContext,
    charge: Charge = free,
    begin_sessions: Callable[[trio.Nursery], Take | None] = lambda _: None,
) -> Disconnect:
    """Answer the requests of a control connection until it ends; return how the caller has to close it.

    `reach` are the sessions that exist for the connection. `charge` is called for each request, and returns the seconds
    to wait before the next one. `begin_sessions` returns what serves other methods.
    """
    channel = _Channel(ToldList(context.version if context.merge is None else None))
    stream.meter.charge = charge

    async def receive(text: bytes) -> tuple[int, float]:
        taken = None if take is None else await take(text)
        if taken is not None:
            return taken
        reply, weight = await _answer(text, reach, context, channel)
        if reply is not None:
            await stream.send(reply)
        if channel.begin is not None:
            nursery.start_soon(_tell_notices, stream, channel.begin, channel, nursery.cancel_scope)
            channel.begin = None
        return weight, 0.0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        take = begin_sessions(nursery)
        channel.disconnect = await read_messages(stream, receive, charge, failure=_failure) or channel.disconnect
        nursery.cancel_scope.cancel()
    return channel.disconnect


def _failure(why: str) -> bytes:
    return jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why)


class _Channel:
    """The state of one connection."""

    def __init__(self, told: ToldList) -> None:
        self.told = told
        self.follows = False
        """True once it has asked for notices."""
        self.begin: Callable[[Send], Awaitable[None]] | None = None
        """Tells notices; set until that has begun."""
        self.disconnect = Disconnect(CloseReason.NORMAL, "")
        """The way to close it."""


async def _tell_notices(
    stream: MaintainedStream,
    tell: Callable[[Send], Awaitable[None]],
    channel: _Channel,
    scope: trio.CancelScope,
) -> None:
    try:
        await tell(stream.send)
    except trio.BrokenResourceError:
        return  # The task that reads finds out.
    channel.disconnect = Disconnect(CloseReason.GOING_AWAY, "there are other agents now: connect again")
    scope.cancel()


def _answer_notices(message: Message, context: ControlContext, channel: _Channel) -> bytes:
    if context.notices is None:
        return _refusal(message, Forbidden("only those who may decide questions are told of them"))
    if channel.follows:
        return jsonrpc.error(message.id, jsonrpc.INVALID_REQUEST, "this connection is told already")
    channel.follows, channel.begin = True, partial(context.notices, _count(message, "since"))
    return jsonrpc.result(message.id, {})


async def _answer(
    text: bytes, reach: SessionReach, context: ControlContext, channel: _Channel
) -> tuple[bytes | None, int]:
    """Return the response to a message, None for a notification, and what it counts as."""
    try:
        message: Message = jsonrpc.parse(text)
    except InvalidMessage as error:
        return jsonrpc.error(jsonrpc.NO_ID, error.code, str(error)), WEIGHT
    if message.kind is not Kind.REQUEST:
        return None, WEIGHT
    if message.method == SESSIONS:
        skip = _count(message, "skip")
        if skip is not None:
            return jsonrpc.result(message.id, list_earlier(reach, context, skip)), WEIGHT
        return jsonrpc.result(message.id, await _list(message, reach, context, channel.told)), WEIGHT
    if message.method == HISTORY:
        return await _answer_history(message, reach, context), HISTORY_WEIGHT
    if message.method == SEARCH:
        return await _answer_search(message, reach, context), HISTORY_WEIGHT
    if message.method == NOTICES:
        return _answer_notices(message, context, channel), WEIGHT
    if message.method == OPEN:
        return _answer_open(message, context), CODE_WEIGHT
    if message.method == ACCESS:
        return jsonrpc.result(message.id, context.describe_access()), WEIGHT
    if message.method in (STATUS, RELOAD, STOP_AGENT):
        return await _answer_operation(message, context), CODE_WEIGHT
    if message.method == TOKENS:
        return await _answer_tokens(message, context.tell), WEIGHT
    if message.method == CONFIRM:
        return await _answer_confirm(message, context), CODE_WEIGHT
    known = (
        f"a control connection knows only {SESSIONS}, {SEARCH}, {HISTORY}, {NOTICES}, {OPEN}, {ACCESS}, {STATUS}, "
        f"{RELOAD} and {STOP_AGENT}"
    )
    return jsonrpc.error(message.id, jsonrpc.METHOD_NOT_FOUND, known), WEIGHT


async def _list(message: Message, reach: SessionReach, context: ControlContext, told: ToldList) -> dict[str, Any]:
    """Return the members of the response to a request for sessions: all, or what has changed since the last one."""
    limit, follows = _count(message, "limit"), lookup.param(message, "changes") == b"true"
    access = told.access(context.describe_access()) if follows else {}
    if follows and not told.has_changed(_state(context, limit)) and not access:
        listed = told.nothing()
    else:
        listed = list_sessions(reach, context, limit)
        if context.merge is not None:
            listed = await context.merge(reach, context.agents, listed)
        listed = (told.changes(listed) if follows else listed) | access
    if context.load is not None:
        listed["load"] = context.load()
    return listed


def _state(context: ControlContext, limit: int | None) -> Hashable:
    """Return what a list depends on beside sessions and rights: requests of agents in no known session, problems."""
    unrouted = tuple((id(hub), tuple(map(id, hub.multiplexer.waiting(None)))) for hub in context.hubs())
    return limit, context.problem(), unrouted


async def _answer_operation(message: Message, context: ControlContext) -> bytes:
    operations = context.operations
    if operations is None:
        why = "only the gateway's own user may ask this, on its machine"
        return _refusal(message, Forbidden(why))
    if message.method == STATUS:
        status = await operations.status(with_nodes=lookup.param(message, "nodes") == b"true")
        session_id = lookup.text_param(message, "session")
        known = {} if session_id is None else {"known": bool(context.registry.by_id(session_id))}
        return jsonrpc.result(message.id, status | known)
    if message.method == RELOAD:
        return jsonrpc.result(message.id, operations.reload())
    try:
        return jsonrpc.result(message.id, await operations.stop_agent(lookup.text_param(message, "agent") or ""))
    except UnknownAgent as error:
        return _refusal(message, error)
    except UsageError as error:
        return jsonrpc.error(message.id, jsonrpc.INVALID_PARAMS, str(error))


async def _answer_tokens(message: Message, tell: Callable[[object], Awaitable[object]] | None) -> bytes:
    if tell is None:
        why = "only a node of the same cluster may tell this"
        return _refusal(message, Forbidden(why))
    try:
        return jsonrpc.result(message.id, await tell(json.loads(_params(message))))
    except (UsageError, ValueError, RecursionError) as error:
        return jsonrpc.error(message.id, jsonrpc.INVALID_PARAMS, str(error))


async def _answer_confirm(message: Message, context: ControlContext) -> bytes:
    if context.operations is None:
        return await _answer_operation(message, context)
    if context.confirm is None:
        return jsonrpc.result(message.id, {"nodes": []})
    return jsonrpc.result(message.id, await context.confirm(str(lookup.text_param(message, "id"))))


async def _answer_history(message: Message, reach: SessionReach, context: ControlContext) -> bytes:
    viewer = Viewer(shown_reach(context.registry, reach), agents=context.agents)
    name = lookup.text_param(message, "sessionId") or ""
    if context.node_history is not None:
        asked = ("since", _count(message, "since")), ("epoch", lookup.text_param(message, "epoch"))
        try:
            told = await context.node_history(name, {key: value for key, value in asked if value is not None})
        except AccessError as error:
            return _refusal(message, error)
        if told is not None:
            return jsonrpc.result(message.id, told)
    session = find_session(context.registry, viewer, name)
    if session is None or context.history is None:
        why = "there is no such session, or it is not yours; `acp-gateway sessions` lists them"
        return _refusal(message, UnknownSession(why))
    since, epoch = _count(message, "since") or 0, lookup.text_param(message, "epoch")
    try:
        page = await read_page(context.history, session, since, epoch)
    except Busy as error:
        return _refusal(message, error)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message.id, page)


async def _answer_search(message: Message, reach: SessionReach, context: ControlContext) -> bytes:
    registry, words = context.registry, lookup.text_param(message, "words") or ""
    own_reach = shown_reach(registry, reach)
    sessions = list(all_sessions(registry, Viewer(own_reach, agents=context.agents)))
    try:
        if context.search is None:
            raise UsageError("this gateway has no search")
        found = await context.search.find(sessions, words)
    except UsageError as error:
        return jsonrpc.error(message.id, jsonrpc.INVALID_PARAMS, str(error))
    except Busy as error:
        return _refusal(message, error)
    told = [
        {
            "sessionId": one.session.name,
            "agent": one.session.agent,
            "owner": one.session.owner,
            "title": (one.session.title or "")[:TEXT],
            "texts": one.found.texts,
            "text": one.found.snippet.text,
        }
        for one in found
    ]
    result: dict[str, Any] = {"found": told, "complete": context.search.is_complete}
    if context.search_nodes is not None:
        there = await context.search_nodes(own_reach, context.agents, words)
        own = {one.session.name for one in found}
        result["found"] += [
            {
                "sessionId": one.name,
                "agent": one.agent,
                "owner": one.owner,
                "title": one.title,
                "texts": one.texts,
                "text": one.text,
            }
            for one in beside(own, there, MOST_FOUND - len(own))
        ]
        result |= {"complete": result["complete"] and there.complete, "missing": there.missing}
    return jsonrpc.result(message.id, result)


def _refusal(message: Message, error: AccessError) -> bytes:
    return jsonrpc.error(message.id, error.http_status, str(error), {"reason": error.reason})


def _params(message: Message) -> bytes:
    return bytes(lookup.members_at(message.text).get("params", b"{}"))


def _answer_open(message: Message, context: ControlContext) -> bytes:
    try:
        return jsonrpc.result(message.id, context.make_code(_params(message)))
    except UsageError as error:
        return jsonrpc.error(message.id, jsonrpc.INVALID_PARAMS, str(error))
    except AccessError as error:
        return _refusal(message, error)


def _count(message: Message, name: str) -> int | None:
    """Return a count in the params of a request; None without a valid one."""
    count = jsonrpc.id_number(jsonrpc.RawId(lookup.param(message, name) or b"null"))
    return None if count is None or count < 0 else count


def list_sessions(reach: SessionReach, context: ControlContext, limit: int | None = None) -> dict[str, Any]:
    """Return the sessions in reach and the gateway's problems, as members of the response; see `docs/wire.md`.

    Sessions that are not live come first: in a terminal the live ones are visible without scrolling back. `limit` is
    the number that another gateway takes.
    """
    registry = context.registry
    own = shown_reach(registry, reach)
    live = _live_sessions(own, _RunningAgents(context))
    past = past_sessions(registry, Viewer(own, agents=context.agents))
    if limit is None:
        listed = [_describe(session) for session in past[-PAST:]] + live
    else:
        most = min(limit, context.max_sessions)
        shown = live[max(len(live) - most, 0) :]
        ended = past[max(len(past) - most + len(shown), 0) :]
        listed = within_size([_describe(session) for session in ended] + shown, MAX_SIZE)
    answer: dict[str, Any] = {"sessions": listed}
    if more := len(past) + len(live) - len(listed):
        answer["more"] = more
    problem = context.problem()
    if problem is not None:
        is_own = reach.identity == context.registry.own_identity
        answer["problems"] = [problem if is_own else _UNSPECIFIED]
    return answer


def list_earlier(reach: SessionReach, context: ControlContext, skip: int) -> dict[str, Any]:
    """Return the sessions that are not live, without the last `skip` of them, in pages: the last ones that fit."""
    own = shown_reach(context.registry, reach)
    past = past_sessions(context.registry, Viewer(own, agents=context.agents))
    past = past[: max(0, len(past) - skip)]
    listed = within_size([_describe(session) for session in past[-PAGE:]], MAX_SIZE)
    more = len(past) - len(listed)
    return {"sessions": listed, **({"more": more} if more else {})}


def load_of(hubs: Iterable[Hub], lag: float) -> dict[str, Any]:
    """Return the load of a gateway, of all identities; `lag` is that of its event loop."""
    sessions = [session for hub in hubs for session in hub.multiplexer.sessions]
    return {"sessions": len(sessions), "turns": sum(bool(session.turns) for session in sessions), "lag": round(lag, 6)}


class _RunningAgents:
    """The agent processes whose sessions are listed. A request of no known session stands in all that it may be of."""

    def __init__(self, context: ControlContext) -> None:
        self.registry = context.registry
        self.hubs = [hub for hub in context.hubs() if hub.name in context.agents]
        self.hub_of = {hub.multiplexer.agent_handle: hub for hub in self.hubs}
        self.shows_doubt = context.shows_doubt

    def requests_elsewhere(self, identity: str) -> Iterator[tuple[AgentRequest, Hub]]:
        """Yield the requests that no live session of an identity shows; those of several are the own user's."""
        for hub in self.hubs if self.shows_doubt else ():
            for request in hub.multiplexer.waiting(None):
                doubt = request.doubt or Doubt()
                is_told = identity == (doubt.identity or self.registry.own_identity)
                if is_told and all(session.owner != identity for session in doubt.sessions):
                    yield request, hub


def _live_sessions(reach: SessionReach, agents: _RunningAgents) -> list[dict[str, Any]]:
    """Return the live sessions in reach and their open agent requests, the oldest first.

    A request that no session shows is listed under the session that the agent named.
    """
    listed = []
    for session in agents.registry.live(reach):
        hub = None if session.agent_handle is None else agents.hub_of.get(session.agent_handle)
        if hub is not None:
            listed.append(_describe(session, hub, reach if agents.shows_doubt else None))
    if reach.sees_all:
        listed += [_describe_elsewhere(*found, reach) for found in agents.requests_elsewhere(reach.identity)]
    return listed


def _describe(session: Session, hub: Hub | None = None, reach: SessionReach | None = None) -> dict[str, Any]:
    """Describe a session, which is live in `hub` if that is given; `reach` as in `Multiplexer.waiting`."""
    presences = [client.presence for client in session.attached]
    described: dict[str, Any] = {"sessionId": session.name, "agent": session.agent}
    updated = _iso(session.active_at) or session.updated_at or _iso(session.created_at)
    texts = {"title": session.title, "cwd": session.cwd, "updatedAt": updated}
    described |= {name: text[:TEXT] for name, text in texts.items() if text is not None}
    waiting = [] if hub is None else list(map(_describe_agent_request, hub.multiplexer.waiting(session, reach)))
    if hub is not None and session.own_state == "requires_action" and not waiting:
        # Something that it does not ask for here.
        waiting.append({"method": session.own_state, "since": _iso(session.active_at or int(1000 * time.time()))})
    loss = history_loss(session, live=hub is not None)
    if loss is not None:
        described["history"] = loss
    return described | {
        "owner": session.owner,
        "live": hub is not None,
        "connected": presences.count(Presence.CONNECTED),
        "away": presences.count(Presence.AWAY),
        "turn": bool(session.turns or session.own_state),
        "fence": None if hub is None else hub.fence,
        "waiting": waiting,
    }


def _iso(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _describe_elsewhere(agent_request: AgentRequest, hub: Hub, reach: SessionReach) -> dict[str, Any]:
    return {
        "sessionId": agent_request.message.session or "?",
        "agent": hub.name,
        "owner": reach.identity,
        "live": True,
        "connected": 0,
        "away": 0,
        "turn": False,
        "fence": hub.fence,
        "waiting": [_describe_agent_request(agent_request.shown)],
    }


def _describe_agent_request(agent_request: AgentRequest) -> dict[str, str | None]:
    since = datetime.fromtimestamp(time.time() - (trio.current_time() - agent_request.arrived_at), UTC)
    described: dict[str, str | None] = {"method": agent_request.method, "since": since.strftime("%Y-%m-%dT%H:%M:%SZ")}
    if agent_request.title is not None:
        described["title"] = agent_request.title
    return described


class UsableAgents(Container[str]):
    """The agents whose sessions a connection is told of: also agents of nodes that do not answer now.

    Args:
        grant: the connection.
        config: returns the configuration in force.
        wanted: the only agent that it asks for; None for all.
    """

    def __init__(self, grant: Grant, config: Callable[[], Config], wanted: str | None) -> None:
        self._grant = grant
        self._config = config
        self._wanted = wanted

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or self._wanted not in (None, name) or not self._grant.access.may_use(name):
            return False
        config = self._config()
        if name in config.agents:
            return True
        return not self._grant.connect_request.passed and config.leads_to(name)


def describe_access(grant: Grant, config: Config, names: Collection[str] = ()) -> dict[str, Any]:
    """Return identity, role, limits and end of a connection's credential, as members of the response; see
    `docs/wire.md`.

    `names` are agents of nodes, which another gateway is not told. Members without a value are left out.
    """
    access = grant.access
    # A connection that is for one session uses the agent of that, and is not told which others there are.
    usable = config.agents if grant.reach.only is None else {}
    agents = {name: section.scope for name, section in usable.items() if access.may_use(name)}
    if usable is config.agents and not grant.connect_request.passed and access.workspaces is None:
        # A node has a process for each identity at the most, as far as is known here.
        agents |= {name: "identity" for name in names if access.may_use(name) and name not in config.agents}
    described: dict[str, Any] = {
        "version": __version__,
        "identity": access.identity,
        "credential": access.credential,
        "role": grant.role.value,
        "agents": agents,
        "claims": CLAIMS,
    }
    if grant.reach.only is None:
        allowed = workspaces_of(config.workspaces, None)
        described["folders"] = [
            each.root for each in allowed if access.workspaces is None or each.name in access.workspaces
        ]
    default = config.default_agent if access.agents is None or len(access.agents) > 1 else next(iter(agents), "")
    if default in agents:
        described["defaultAgent"] = default
    texts = {
        "label": None if access.token is None else access.token.label,
        "session": grant.reach.only,
        "workspaces": None if access.workspaces is None else list(access.workspaces),
        "expires": _end_of(access),
    }
    return described | {name: value for name, value in texts.items() if value is not None}


def _end_of(access: Access) -> str | None:
    """Return the time from which the credential is refused, in ISO 8601; None if it has no end."""
    if access.browser is None and access.token is not None:
        return access.token.expires
    return (
        None if access.expires is None else datetime.fromtimestamp(access.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )


if TYPE_CHECKING:
    from acp_gateway.gateway.gateway import Gateway


async def serve_control(gateway: "Gateway", stream: MaintainedStream, grant: Grant, name: str = "control") -> None:
    """Serve a connection that asks the gateway itself, about what its token may join, until it ends."""
    limit = gateway.bound(stream, grant.role, "control")
    connection = ControlConnection(grant.access)
    async with serving(connection, stream, grant, gateway.connections) as charge:
        context = _context(gateway, grant)

        def begin_sessions(nursery: trio.Nursery) -> Take | None:
            page = next((service for service in services() if service.word == "page"), None)
            if page is None:
                return None
            begun: Take = page.serving().begin_sessions(gateway, grant, name, limit, stream, connection, nursery)
            return begun

        connection.disconnect = await serve_control_channel(stream, grant.reach, context, charge, begin_sessions)


def _context(gateway: "Gateway", grant: Grant) -> ControlContext:
    extensions = gateway.extensions
    machines = [] if extensions.led_to is None else [it["name"] for it in extensions.led_to(grant.access)]
    codes = SignInCodes(
        grant, gateway.registry, gateway.browsers, gateway.audit_throttle, gateway.config.listen, machines
    )
    exchange = extensions.token_exchange
    # Gateways that are nodes of each other would wait for each other's lists.
    questions = None if grant.connect_request.passed else extensions.questions
    if extensions.looks is not None and not grant.connect_request.passed:
        # It may ask for the agents there are.
        extensions.looks.look_soon()
    controls = grant.role is Role.CONTROLLER
    is_gateway = bool(grant.connect_request.passed) and grant.reach.only is None
    return ControlContext(
        gateway.registry,
        UsableAgents(grant, lambda: gateway.config, grant.connect_request.agent),
        lambda: gateway.hubs,
        lambda: gateway.storage.problem,
        codes.make,
        lambda: describe_access(grant, gateway.config, gateway.admissions.names),
        extensions.operations if grant.access.is_own_user else None,
        None if questions is None else partial(questions.merge, grant.access),
        (lambda: load_of(gateway.hubs, gateway.metrics.recent_lag)) if is_gateway else None,
        max_sessions=gateway.config.limits.max_node_sessions,
        tell=exchange.tell if exchange is not None and _is_of_cluster(grant) else None,
        confirm=exchange.confirm if exchange is not None and grant.access.is_own_user else None,
        version=lambda: gateway.changes.version,
        history=gateway.history,
        search=gateway.search,
        search_nodes=None if questions is None else partial(questions.search, grant.access),
        node_history=None if questions is None else partial(questions.history, grant.access),
        notices=partial(gateway.push.tell, grant.access, grant.connect_request) if controls else None,
        shows_doubt=controls and not grant.connect_request.passed,
    )


def _is_of_cluster(grant: Grant) -> bool:
    """Return whether the connection is that of a node with the token of the cluster, for itself."""
    access = grant.access
    return access.token is not None and access.token.id == CLUSTER and not access.spoken_for
