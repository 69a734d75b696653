"""Requests to the gateway itself over a control connection, which has no agent: sessions, codes for browsers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import trio
from msgspec import Raw

from acp_gateway.acp.reading import ABSENT, Shape
from acp_gateway.client.dialing import Destination, dial, explain_silence, refusal_by_error
from acp_gateway.config.listeners import PublicUrl
from acp_gateway.errors import ProtocolError, Unreachable, UsageError
from acp_gateway.gateway.session_api.requests import EXPORT, SEARCH
from acp_gateway.made.machine import Machine, read_told
from acp_gateway.printable import printable
from acp_gateway.protocol.methods import OPEN, SESSIONS
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

_SESSION: Final = {
    "sessionId": str,
    "agent": str,
    "title": str | None,
    "cwd": str | None,
    "updatedAt": str | None,
    "owner": str,
    "live": bool | None,
    "history": str | None,
    "connected": int,
    "away": int,
    "turn": bool,
    "fence": str | None,
    "waiting": list,
}
_WAITING: Final = {"method": str, "title": str | None, "since": str}
"""Members of a session and of an open request, with their types. Later versions may add members; earlier ones listed
live sessions only, without `live`."""

_LOAD: Final = {"sessions": int, "turns": int, "lag": int | float}
"""Members of the load of a gateway, with their types."""

_LOAD_BOUND: Final = 1e9
"""Upper bound of each: no gateway has as many sessions, nor was late for as many seconds."""

SessionKey = tuple[str, str, str]
"""The agent, the id and the owner of a session."""

_PROBLEM_SIZE: Final = 1000
"""Characters of a problem that are shown: enough for several causes with their paths."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A gateway's list of sessions."""

    sessions: list[dict[str, Any]]
    """Sessions as the gateway describes them; see `docs/wire.md`."""
    more: int = 0
    """Number of further sessions."""
    problems: tuple[str, ...] = ()
    """Current problems of the gateway, one line each, escaped for terminals."""
    load: Mapping[str, float] | None = None
    """`sessions`, `turns` and `lag` of a gateway that another one asks; None if it does not tell."""
    machine: Machine | None = None
    """The load of the machine of that gateway; None if it was not asked for that, or does not tell."""
    missing: frozenset[str] = frozenset()
    """Nodes of the gateway that did not answer: their sessions are not in the list."""


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


async def exchange(stream: MessageStream, destination: Destination, method: str, params: object) -> Any:
    """Send a request over a control connection, and return its result.

    Raises `GatewayError` for an error response, and Trio's errors for a lost connection. The stream can't be used
    further after cancelling.
    """
    return _value(await exchange_text(stream, destination, method, params), destination)


def _value(text: bytes, destination: Destination) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError(f"{destination.address}: the response is not a JSON-RPC message") from None


async def exchange_text(stream: MessageStream, destination: Destination, method: str, params: object) -> bytes:
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
            continue
        if bytes(reply.error)[:1] == b"{":
            raise refusal_by_error(destination, _value(bytes(reply.error), destination))
        if not reply.result:
            raise ProtocolError(f"{destination.address}: the response has no result, or is not a JSON-RPC message")
        return bytes(reply.result)


async def list_sessions(destination: Destination, *, time_limit: float, complete: bool = False) -> Listing:
    """Return the sessions that the token may see; only those of the destination's agent, if it names one.

    With `complete` all are asked for, in several requests; without, the gateway leaves out old ones that are not live.
    `time_limit`, for each request, and errors are those of `request`.
    """
    every = replace(destination, agent=None)
    listing = read_listing(every, await request(destination, SESSIONS, {}, time_limit=time_limit))
    # Those of nodes are only in the first response.
    own = {key_of(session) for session in listing.sessions if _is_past(session) and "/" not in session["agent"]}
    more = listing.more
    while complete and more > 0:
        params = {"skip": len(own)}
        page = read_listing(every, await request(destination, SESSIONS, params, time_limit=time_limit))
        # A session that has ended since is listed again; a gateway of an earlier version repeats the first list.
        news = [session for session in page.sessions if _is_past(session) and key_of(session) not in own]
        if not news:
            break
        own.update(map(key_of, news))
        more = page.more
        listing = replace(listing, sessions=news + listing.sessions, more=listing.more - len(news))
    return replace(listing, sessions=[each for each in listing.sessions if destination.agent in (None, each["agent"])])


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


EXPORT_SIZE: Final = 256 * 1024 * 1024
"""Maximum bytes of a file that is taken: it is held in memory, and gateways keep 16 MiB of a session."""

EXPORT_TIME: Final = 120.0
"""Seconds for the gateway to write a file, which it does for one client at a time."""


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
    """Return the list in the result of `_acp-gateway/sessions`. Raises `ProtocolError`."""
    if not _is_listing(result):
        raise ProtocolError(
            f"{destination.address}: the gateway's response is not understood; does `acp-gateway --version` print the "
            "same there and here?"
        )
    return Listing(
        [session for session in result["sessions"] if destination.agent in (None, session["agent"])],
        result.get("more", 0),
        tuple(printable(problem, size=_PROBLEM_SIZE) for problem in result.get("problems", ())),
        _load(result.get("load")),
        read_told(result["load"].get("machine")) if isinstance(result.get("load"), dict) else None,
        missing=frozenset(result.get("missing", ())),
    )


def _load(value: Any) -> dict[str, float] | None:
    """Return the load in a list of sessions; None for any other value."""
    if not isinstance(value, dict):
        return None
    load: dict[str, float] = {}
    for name, kind in _LOAD.items():
        number = value.get(name)
        if not isinstance(number, kind) or isinstance(number, bool) or not 0 <= number < _LOAD_BOUND:
            return None
        load[name] = number
    return load


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


def _is_listing(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    sessions, problems, missing = value.get("sessions"), value.get("problems", []), value.get("missing", [])
    return (
        isinstance(sessions, list)
        and all(map(_is_session, sessions))
        and isinstance(value.get("more", 0), int)
        and isinstance(problems, list)
        and all(isinstance(problem, str) for problem in problems)
        and isinstance(missing, list)
        and all(isinstance(name, str) for name in missing)
    )


def key_of(session: Mapping[str, Any]) -> SessionKey:
    """Return the key of a session in lists of its gateway."""
    return session["agent"], session["sessionId"], session["owner"]


def is_changes(value: Any) -> bool:
    """Return whether the result of `_acp-gateway/sessions` has what is another than in the list of before."""
    if not isinstance(value, dict) or "sessions" in value:
        return False
    changed, removed = value.get("changed"), value.get("removed")
    return (
        isinstance(changed, list)
        and all(map(_is_session, changed))
        and isinstance(removed, list)
        and all(isinstance(key, list) and len(key) == 3 and all(isinstance(it, str) for it in key) for key in removed)
    )


def _is_session(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), kind) for name, kind in _SESSION.items())
        and all(map(_is_waiting, value["waiting"]))
    )


def _is_waiting(value: object) -> bool:
    if not isinstance(value, dict) or not all(isinstance(value.get(name), kind) for name, kind in _WAITING.items()):
        return False
    try:
        return datetime.fromisoformat(value["since"]).tzinfo is not None
    except ValueError:
        return False


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
            "no" if _is_past(session) else "yes",
            printable(session.get("history") or "-"),
            str(session["connected"]),
            str(session["away"]),
            "open" if session["turn"] else "-",
            _describe_waiting(session["waiting"], now),
        )
        for session in sessions
    ]


def _is_past(session: Mapping[str, Any]) -> bool:
    return session.get("live") is False


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
