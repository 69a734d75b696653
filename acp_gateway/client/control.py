"""Requests to the gateway itself over a control connection, without an agent: sessions, rights, codes for browsers."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
import trio
from msgspec import Meta, Raw

from acp_gateway.acp.reading import ABSENT, Shape
from acp_gateway.client.dialing import Destination, dial, explain_silence, refusal_by_error
from acp_gateway.config.listeners import PublicUrl
from acp_gateway.errors import ProtocolError, TooOld, Unreachable, UsageError
from acp_gateway.gateway.session_api.output import CHANGED, REMOVED
from acp_gateway.gateway.session_api.requests import EXPORT, LIST, MOST_SUMS, REMOVE_WORKTREE, SEARCH, TRY_RULES, USAGE
from acp_gateway.printable import printable
from acp_gateway.protocol.jsonrpc import METHOD_NOT_FOUND
from acp_gateway.protocol.methods import OPEN
from acp_gateway.security.token_format import is_well_formed
from acp_gateway.transports.streams import MessageStream
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream

SESSION_COLUMNS: Final = (
    "ID",
    "AGENT",
    "TITLE",
    "CWD",
    "OWNER",
    "LIVE",
    "HISTORY",
    "CONNECTED",
    "AWAY",
    "TURN",
    "WAITS",
)

TITLE_SIZE: Final = 40
"""Characters of a title in a table; some agents use the whole first prompt as the title."""

_REQUEST_ID: Final = 1
_RESPONDING: Final = (b"%d" % _REQUEST_ID, b"null", b"")

PAST: Final = 200
"""Sessions that are not live in a list by default: a few screens, of the thousands that a gateway remembers."""

REMOVAL_TIME: Final = 70.0
"""Seconds in which a gateway removes a worktree, or says why not: it gives up after 60."""

_REQUIRES_ACTION: Final = "requires_action"
"""Stands for the method of an open request where an agent waits for a person and does not say for what."""

_PROBLEM_SIZE: Final = 1000
"""Characters of a problem that are shown: enough for several causes with their paths."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A gateway's list of sessions."""

    sessions: list[dict[str, Any]]
    """Sessions, as `sessions --json` prints them: those that are not live first, the oldest first."""
    more: int = 0
    """Number of further sessions."""
    problems: tuple[str, ...] = ()
    """Current problems of the gateway, one line each, escaped for terminals."""
    load: dict[str, float] | None = None
    """`sessions`, `turns` and `lag` of a gateway that another one asks; None if it does not tell."""
    missing: frozenset[str] = frozenset()
    """Nodes of the gateway that did not answer: their sessions are not in the list."""


class _Waiting(msgspec.Struct):
    """An open request, as far as it is read."""

    method: str
    since: Annotated[datetime, Meta(tz=True)]
    title: str | None = None


class _Port(msgspec.Struct):
    port: Annotated[int, Meta(gt=0, lt=65536)]
    program: str


class _Session(msgspec.Struct, rename="camel"):
    """A session, as far as it is read."""

    id: str
    agent_type: str
    owner: str
    live: bool
    connected: int
    away: int
    turn: bool
    waiting: list[_Waiting]
    title: str | None = None
    cwd: str | None = None
    updated_at: str | None = None
    history: str | None = None
    status: str | None = None
    fence: str | None = None
    unreachable_since: str | None = None
    ports: list[_Port] = []


_Amount = Annotated[float, Meta(ge=0, lt=1e9)]
"""No gateway has as many sessions, nor was late for as many seconds."""


class _Load(msgspec.Struct):
    sessions: _Amount
    turns: _Amount
    lag: _Amount


class _Listing(msgspec.Struct):
    sessions: list[_Session]
    more: int = 0
    problems: list[str] = []
    missing: list[str] = []
    load: Any = None


Read = TypeVar("Read")


class Rights(NamedTuple):
    """Rights of a credential."""

    role: str = ""
    """`controller` or `observer`; empty if the gateway does not tell."""
    agents: tuple[str, ...] = ()
    """Agents that it may use; empty if the gateway does not tell, or for a guest."""
    default_agent: str = ""
    folders: tuple[str, ...] = ()
    """Directories at the gateway in which sessions may work; empty if the gateway does not tell, or for a guest."""
    version: str = ""
    """Version of the gateway; empty if it does not tell."""
    claims: int = 0
    """The form of claims that it understands; 0 if it does not tell."""


async def request(
    destination: Destination, method: str, params: object, *, time_limit: float, more_time: float = 0.0
) -> Any:
    """Connect, send one request to the gateway, and return its result: any JSON value.

    Args:
        destination: a gateway, with `control` set.
        method: one of a control connection.
        params: its parameters, serializable as JSON.
        time_limit: seconds for connecting and the response together.
        more_time: further ones for the response.

    Raises what `dial` raises, also for an error response. Cancelling closes the connection.
    """
    address = destination.address
    stream = None
    try:
        with trio.move_on_after(time_limit) as limit:
            stream = await dial(destination, Timing())
            time_limit += more_time
            limit.deadline += more_time
            return await exchange(stream, destination, method, params)
    except trio.EndOfChannel:
        said = printable(stream.close_text) if isinstance(stream, WebSocketStream) else ""
        raise Unreachable(f"{address}: {said or 'the connection was closed without an answer'}") from None
    except trio.BrokenResourceError as error:
        raise Unreachable(f"{address}: {error}") from error
    finally:
        if stream is not None:
            await stream.aclose()
    raise Unreachable(f"{explain_silence(str(address))} (tried for {time_limit:g} s)")


class _Reply(Shape, frozen=True):
    id: Raw = ABSENT
    method: Raw = ABSENT
    error: Raw = ABSENT
    result: Raw = ABSENT
    params: Raw = ABSENT


async def exchange(
    stream: MessageStream,
    destination: Destination,
    method: str,
    params: object,
    news: Callable[[bytes], object] = lambda _: None,
) -> Any:
    """Send a request over a control connection, and return its result.

    `news` is called with each message that comes before. Raises `GatewayError` for an error response, `TooOld` if the
    gateway does not know the method, and Trio's errors for a lost connection. The stream can't be used further after
    cancelling.
    """
    return _value(await exchange_text(stream, destination, method, params, news), destination)


def _value(text: bytes, destination: Destination) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError(f"{destination.address}: the response is not a JSON-RPC message") from None


async def exchange_text(
    stream: MessageStream,
    destination: Destination,
    method: str,
    params: object,
    news: Callable[[bytes], object] = lambda _: None,
) -> bytes:
    """Return the result as `exchange` does, but as JSON text: it may have many megabytes that are passed on."""
    request = {"jsonrpc": "2.0", "id": _REQUEST_ID, "method": method, "params": params}
    await stream.send(json.dumps(request).encode())
    size = 0
    while True:
        text = await stream.receive()
        size += len(text)
        if size > 2 * destination.max_message_size:
            raise ProtocolError(f"{destination.address}: {size} bytes of messages came before the response")
        reply = _Reply.read(text)
        # The id is null if the gateway could not parse the request.
        if reply.method or bytes(reply.id) not in _RESPONDING:
            news(text)
            continue
        if bytes(reply.error)[:1] == b"{":
            error = _value(bytes(reply.error), destination)
            if error.get("code") == METHOD_NOT_FOUND:
                raise TooOld(f"{destination.address}: the gateway does not know {method}: upgrade acp-gateway there")
            raise refusal_by_error(destination, error)
        if not reply.result:
            raise ProtocolError(f"{destination.address}: the response has no result, or is not a JSON-RPC message")
        return bytes(reply.result)


async def list_sessions(
    destination: Destination, *, time_limit: float, complete: bool = False, with_ports: bool = False
) -> Listing:
    """Return the sessions that the token may see; only those of the destination's agent, if it names one.

    Without `complete`, of those that are not live the last `PAST` of the gateway's own are listed. With `with_ports`,
    each has the ports of its programs that the token may use. `time_limit` and errors are those of `request`.
    """
    params = {"all": True} | ({} if complete else {"limit": PAST}) | ({"ports": True} if with_ports else {})
    return read_listing(destination, await request(destination, LIST, params, time_limit=time_limit))


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The result of a search at a gateway."""

    found: list[dict[str, Any]]
    """Sessions: `sessionId`, `agent`, `owner`, `title`, `texts`, their number, and `text`, a part of one."""
    complete: bool = True
    """False if not all histories were read yet."""
    missing: tuple[str, ...] = ()
    """Nodes of the gateway that were not searched."""


async def search(destination: Destination, words: str, *, time_limit: float) -> SearchAnswer:
    """Return the sessions with all words: those of the gateway, the last used first, then those of its nodes.

    `time_limit` and errors are those of `request`.
    """
    params = {"words": words, "nodes": True}
    return read_found(destination, await request(destination, SEARCH, params, time_limit=time_limit))


def read_found(destination: Destination, result: Any) -> SearchAnswer:
    """Return what is in the result of `session/search`, of nodes as well. Raises `ProtocolError`."""
    found = result.get("found") if isinstance(result, dict) else None
    if not isinstance(found, list) or not all(map(_is_found, found)):
        raise ProtocolError(f"{destination.address}: the gateway's response is not understood")
    missing = result.get("missing")
    names = tuple(map(str, missing)) if isinstance(missing, list) else ()
    rows = [{member: one[name] for name, member in _FOUND.items()} for one in found]
    return SearchAnswer(rows, result.get("complete") is not False, names)


_FOUND: Final = {
    "sessionId": "sessionId",
    "agentType": "agent",
    "owner": "owner",
    "title": "title",
    "texts": "texts",
    "text": "text",
}
"""Members of a session that was found, and their names here."""


def _is_found(one: object) -> bool:
    return isinstance(one, dict) and all(type(one.get(name)) is (int if name == "texts" else str) for name in _FOUND)


FOUND_COLUMNS: Final = ("ID", "AGENT", "TITLE", "TEXTS", "TEXT")


def found_rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each session of `search`, with a cell for each of `FOUND_COLUMNS`, escaped."""
    return [
        (
            printable(one["sessionId"], size=len(one["sessionId"])),
            printable(one["agent"]),
            _shortened(one["title"] or "-"),
            str(one["texts"]),
            printable(one["text"]),
        )
        for one in found
    ]


_Number = Annotated[int, Meta(ge=0, lt=2**53)]


class _Spent(msgspec.Struct, rename="camel"):
    costs: dict[str, Annotated[float, Meta(ge=0, lt=1e15)]]
    turns: _Number
    tokens: _Number
    input: _Number
    output: _Number
    cached_read: _Number
    cached_write: _Number


class _SpentRow(_Spent):
    key: str
    title: str | None = None
    machine: str | None = None


class _Usage(msgspec.Struct):
    rows: Annotated[list[_SpentRow], Meta(max_length=MOST_SUMS)]
    total: _Spent
    more: _Number = 0
    missing: list[str] = []


@dataclass(frozen=True, slots=True)
class UsageAnswer:
    """Sums of the costs of sessions at a gateway."""

    rows: list[dict[str, Any]]
    """Sums: `key`, `costs` by currency, the numbers of `turns`, `tokens`, `input`, `output`, `cachedRead` and
    `cachedWrite`, and `title` and `machine`, which may be None."""
    total: dict[str, Any]
    """The same members but the last three, of all."""
    more: int = 0
    """Number of further sums."""
    missing: tuple[str, ...] = ()
    """Nodes of the gateway that did not answer."""


async def usage(destination: Destination, by: str, since: str, *, time_limit: float) -> UsageAnswer:
    """Return what sessions have cost since a day, in ISO 8601, with those of nodes.

    `by` is one of `session_api.requests.SUMS_BY`. `time_limit` and errors are those of `request`.
    """
    params = {"by": by, "since": since, "nodes": True}
    return read_usage(destination, await request(destination, USAGE, params, time_limit=time_limit))


def read_usage(destination: Destination, result: Any) -> UsageAnswer:
    """Return what is in the result of `gateway/usage`. Raises `ProtocolError`."""
    told = _read(destination, result, _Usage)
    rows: list[dict[str, Any]] = [msgspec.to_builtins(row) for row in told.rows]
    return UsageAnswer(rows, msgspec.to_builtins(told.total), told.more, tuple(told.missing))


EXPORT_SIZE: Final = 256 * 1024 * 1024
"""Maximum bytes of a file that is taken: it is held in memory, and gateways keep 16 MiB of a session."""

EXPORT_TIME: Final = 120.0
"""Seconds for the gateway to write a file, which it does for one client at a time."""


async def remove_worktree(destination: Destination, session: str, *, time_limit: float) -> str | None:
    """Have the git worktree of a session removed; return a sentence on the branch that stays, if one does.

    Raises as `request`, with what is not committed there.
    """
    result = await request(
        destination, REMOVE_WORKTREE, {"sessionId": session}, time_limit=time_limit, more_time=REMOVAL_TIME
    )
    kept = result.get("kept") if isinstance(result, dict) else None
    return printable(kept, _PROBLEM_SIZE) if isinstance(kept, str) else None


async def try_rules(
    destination: Destination, command: str, cwd: str, agent: str | None, *, time_limit: float
) -> dict[str, Any]:
    """Return what the rules of a gateway decide if an agent asks for a command in a session of the token's identity in
    this folder: `decision`, `rule`, which may be None, and `why`.

    `time_limit` and errors are those of `request`.
    """
    params = {"command": command, "cwd": cwd} | ({} if agent is None else {"agentType": agent})
    told = await request(destination, TRY_RULES, params, time_limit=time_limit)
    if not isinstance(told, dict) or not all(isinstance(told.get(name), str) for name in ("decision", "why")):
        raise ProtocolError(f"{destination.address}: the gateway's response is not understood")
    return told


async def export(destination: Destination, session: str, form: str, *, redact: bool, time_limit: float) -> str:
    """Return the history of a session as the text of a file. No agent is started.

    `form` is a format of `session/export`. `time_limit` is that of `request`, without `EXPORT_TIME`; its errors are.
    """
    place = replace(destination, max_message_size=EXPORT_SIZE)
    params = {"sessionId": session, "format": form, "redact": redact}
    result = await request(place, EXPORT, params, time_limit=time_limit, more_time=EXPORT_TIME)
    text = result.get("text") if isinstance(result, dict) else None
    if not isinstance(text, str):
        raise ProtocolError(f"{destination.address}: the gateway's response is not understood")
    return text


def read_listing(destination: Destination, result: Any) -> Listing:
    """Return the list in the result of `session/list` with `all`. Raises `ProtocolError`."""
    told = _read(destination, result, _Listing)
    sessions = map(_row, reversed(told.sessions))
    return Listing(
        [session for session in sessions if destination.agent in (None, session["agent"])],
        told.more,
        tuple(printable(problem, size=_PROBLEM_SIZE) for problem in told.problems),
        _load(told.load),
        frozenset(told.missing),
    )


def read_news(destination: Destination, text: bytes) -> tuple[str, dict[str, Any] | None] | None:
    """Return the id of the session that a notification is about, and the session, None if it is no more; None if it
    tells nothing of the list. Raises `ProtocolError`."""
    news = _Reply.read(text)
    method = bytes(news.method)
    if method not in (_CHANGED, _REMOVED):
        return None
    params = _read(destination, _value(bytes(news.params), destination), dict[str, Any])
    if method == _REMOVED:
        return str(params.get("sessionId")), None
    row = _row(_read(destination, params.get("session"), _Session))
    return row["sessionId"], row


_CHANGED: Final = b'"%b"' % CHANGED.encode()
_REMOVED: Final = b'"%b"' % REMOVED.encode()


def _read(destination: Destination, value: Any, kind: type[Read]) -> Read:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        why = "the gateway's response is not understood; does `acp-gateway --version` print the same there and here?"
        raise ProtocolError(f"{destination.address}: {why}") from None


def _row(told: _Session) -> dict[str, Any]:
    """Return a session as `sessions --json` prints it, without texts that are unknown and fractions of seconds."""
    updated = None if told.updated_at is None else re.sub(r"\.\d+(?=Z$)", "", told.updated_at)
    texts = {"title": told.title, "cwd": told.cwd, "updatedAt": updated, "history": told.history}
    texts["unreachableSince"] = told.unreachable_since
    row: dict[str, Any] = {"sessionId": told.id, "agent": told.agent_type}
    row |= {name: text for name, text in texts.items() if text is not None}
    waiting = [
        {"method": one.method, "since": _iso(one.since)} | ({} if one.title is None else {"title": one.title})
        for one in told.waiting
    ]
    waits = told.status == "waiting" and not waiting
    if waits:
        waiting.append({"method": _REQUIRES_ACTION, "since": _time_of(updated) or _iso(datetime.now(UTC))})
    row |= {"owner": told.owner, "live": told.live, "connected": told.connected, "away": told.away}
    row["turn"] = told.turn or waits or told.status == "running"
    ports = {"ports": list(map(msgspec.structs.asdict, told.ports))} if told.ports else {}
    return row | {"fence": told.fence, "waiting": waiting} | ports


def _iso(time: datetime) -> str:
    try:
        time = time.astimezone(UTC)
    except OverflowError:
        return time.isoformat()  # In the first or the last hours that there are.
    return f"{time.replace(microsecond=0, tzinfo=None).isoformat()}Z"


def _time_of(text: str | None) -> str | None:
    """Return a time as `_iso` does; None for anything else."""
    try:
        return None if text is None else _iso(datetime.fromisoformat(text))
    except (ValueError, OverflowError, OSError):
        return None


def read_rights(result: Any, known: Rights = Rights()) -> Rights:  # noqa: B008 - it never changes.
    """Return the rights in the result of `_acp-gateway/access`; `known` for another value."""
    if not isinstance(result, dict):
        return known
    agents = result.get("agents")
    names = tuple(map(str, agents)) if isinstance(agents, dict) else ()
    told = result.get("folders")
    folders = tuple(map(str, told)) if isinstance(told, list) else ()
    default, version = str(result.get("defaultAgent", "")), str(result.get("version", ""))
    claims = result.get("claims")
    form = claims if isinstance(claims, int) else 0
    return Rights(str(result.get("role", "")), names, default, folders, version, form)


def _load(value: Any) -> dict[str, float] | None:
    """Return the load in a list of sessions; None for any other value."""
    try:
        return msgspec.structs.asdict(msgspec.convert(value, _Load))
    except msgspec.ValidationError:
        return None


async def make_code(
    destination: Destination, session: str | None, label: str | None, *, observe: bool, time_limit: float
) -> tuple[str, PublicUrl | None]:
    """Return a code that signs a browser in, with the rights of the destination's token at most, and the address of the
    gateway's page; None if the gateway knows no other than the destination's.

    `time_limit` and errors are those of `request`.
    """
    params: dict[str, object] = {"observe": observe}
    params |= {name: value for name, value in (("session", session), ("label", label)) if value is not None}
    result = await request(destination, OPEN, params, time_limit=time_limit)
    code, page = (result.get("code"), result.get("page")) if isinstance(result, dict) else (None, None)
    try:
        if isinstance(code, str) and is_well_formed(code, "code"):
            return code, None if page is None else PublicUrl.parse(str(page))
    except UsageError:
        pass  # Nothing that a terminal or a browser would take for something else is printed.
    raise ProtocolError(f"{destination.address}: the gateway's response is not understood")


def session_rows(sessions: Sequence[Mapping[str, Any]], now: datetime) -> list[tuple[str, ...]]:
    """Return a row for each session of `list_sessions`, with a cell for each of `SESSION_COLUMNS`.

    Ages are relative to `now`, which has a time zone. Control characters are escaped.
    """
    return [
        (
            printable(session["sessionId"], size=len(session["sessionId"])),
            printable(session["agent"]),
            _shortened(session.get("title") or "-"),
            printable(session.get("cwd") or "-"),
            printable(session["owner"]),
            "yes" if session["live"] else "no",
            printable(session.get("history") or "-"),
            str(session["connected"]),
            str(session["away"]),
            "open" if session["turn"] else "-",
            _describe_waiting(session["waiting"], now),
        )
        for session in sessions
    ]


def _describe_waiting(waiting: Sequence[Mapping[str, Any]], now: datetime) -> str:
    """Describe the oldest request that waits for a decision, and count the others."""
    if not waiting:
        return "-"
    since, oldest = min(((datetime.fromisoformat(one["since"]), one) for one in waiting), key=lambda pair: pair[0])
    title = f" ({_shortened(oldest['title'])})" if oldest.get("title") else ""
    more = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return f"{printable(oldest['method'])}{title} for {_age(now - since)}{more}"


def _age(age: timedelta) -> str:
    """Format a duration in its largest unit; a negative one, caused by clock skew, counts as 0."""
    seconds = max(int(age.total_seconds()), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _shortened(title: str) -> str:
    text = printable(title)
    return text if len(text) <= TITLE_SIZE else text[: TITLE_SIZE - 1].rstrip() + "…"
