"""Composes what clients of the session API get: updates, requests of the agent, states of sessions.

Payloads of the agent are passed on as the bytes that they are. The wire is described in `docs/web-protocol.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from acp_gateway.acp.updates import Passed, kind_of
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

UPDATED: Final = "session/updated"
STATUS_CHANGED: Final = "session/status_changed"
REQUEST: Final = "session/request"
REQUEST_RESOLVED: Final = "session/request_resolved"
QUEUE_CHANGED: Final = "session/queue_changed"
RESET: Final = "session/reset"
CHANGED: Final = "session/changed"
REMOVED: Final = "session/removed"
MACHINES_CHANGED: Final = "machines/changed"
NOTIFICATIONS: Final = (
    UPDATED,
    STATUS_CHANGED,
    REQUEST,
    REQUEST_RESOLVED,
    QUEUE_CHANGED,
    RESET,
    CHANGED,
    REMOVED,
    MACHINES_CHANGED,
)

USER_MESSAGE: Final = "user_message"
"""Type of an update that is a prompt."""

TURN_END: Final = "turn_end"
"""Type of an entry that is the end of a turn."""


_KNOWN_SIZE: Final = 64
_QUOTED_USER_MESSAGE: Final = jsonrpc.encode(USER_MESSAGE)


def entries(session_id: str, messages: Iterable[bytes], first: int, times: Iterable[int | None]) -> list[bytes]:
    """Return the entries of `session/update` messages; the first one has the number `first`.

    An entry of a sub-agent's session has that session's id as `sub`. `times` are in ms since 1970.
    """
    found, former, created = [], None, b"null"
    for seq, (message, time) in enumerate(zip(messages, times, strict=True), first):
        if time != former:
            # What arrived together has the same time.
            former, created = time, b"null" if time is None else b'"%b"' % iso(time).encode()
        update, session, kind = _read_update(message)
        sub = b"" if session == session_id or session is None else b',"sub":%b' % jsonrpc.encode(session)
        found.append(
            b'{"seq":%d,"updateType":%b,"payload":%b,"createdAt":%b%b}' % (seq, _named(kind), update, created, sub)
        )
    return found


def end_entry(end: Mapping[str, Any]) -> bytes:
    """Return the entry of the end of a turn, which has the number of the update before it."""
    outcome = {name: end[name] for name in ("stopReason", "error") if name in end}
    entry = {
        "seq": end["seq"],
        "nth": end["nth"],
        "updateType": TURN_END,
        "payload": {"sessionUpdate": TURN_END, **outcome},
        "createdAt": None if end["time"] is None else iso(end["time"]),
    }
    return jsonrpc.encode(entry)


def states(messages: Iterable[bytes]) -> list[bytes]:
    """Return the entries of updates that hold a state and were sent earlier, which have no number here."""
    read = map(_read_update, messages)
    return [b'{"updateType":%b,"payload":%b}' % (_named(kind), update) for update, _, kind in read]


def _read_update(message: bytes) -> tuple[bytes, str | None, str | None]:
    """Return the update of a message, its session and its kind."""
    told = Passed.of(message)
    return bytes(told.update) or b"{}", told.session_id, kind_of(told.update)


def _named(kind: str | None) -> bytes:
    return _known_name(kind) if kind is None or len(kind) <= _KNOWN_SIZE else jsonrpc.encode(kind)


@lru_cache(maxsize=64)
def _known_name(kind: str | None) -> bytes:
    return _QUOTED_USER_MESSAGE if kind == methods.USER_CHUNK else jsonrpc.encode(kind or "")


def iso(time: float) -> str:
    """Return a time in ms since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def notification(method: str, session_id: str, **members: bytes) -> bytes:
    """Return a notification about a session; the members are JSON texts."""
    params = jsonrpc.compose({"sessionId": jsonrpc.encode(session_id), **members})
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (jsonrpc.encode(method), params)


def updated(session_id: str, found: Sequence[bytes]) -> bytes:
    """Return the notification of updates, which are `entries`."""
    return notification(UPDATED, session_id, updates=b"[%b]" % b",".join(found))


def status_changed(
    session_id: str,
    status: str,
    exit_reason: str | None = None,
    stop_reason: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the notification of a session's status."""
    params: dict[str, Any] = {"sessionId": session_id, "status": status}
    more = ("exitReason", exit_reason), ("stopReason", stop_reason), ("error", error)
    params |= {name: value for name, value in more if value is not None}
    return jsonrpc.notification(STATUS_CHANGED, params)


def request(session_id: str, request_id: str, message: Message) -> bytes:
    """Return the notification of a request of the agent."""
    members = {
        "requestId": jsonrpc.encode(request_id),
        "requestType": jsonrpc.encode(methods.current_name(message.method)),
        "request": lookup.raw_params(message) or b"{}",
    }
    return notification(REQUEST, session_id, **members)


def pending_request(request_id: str, message: Message) -> bytes:
    """Return a request of the agent as an element of `pendingRequests`."""
    return b'{"requestId":%b,"requestType":%b,"payload":%b}' % (
        jsonrpc.encode(request_id),
        jsonrpc.encode(methods.current_name(message.method)),
        lookup.raw_params(message) or b"{}",
    )


def queued_prompts(prompts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return prompts that wait, as elements of `queue`; `createdAt` and `due` are in ms since 1970."""
    times = "createdAt", "due"
    return [dict(it) | {name: None if it[name] is None else iso(it[name]) for name in times} for it in prompts]


def changed(session: Mapping[str, Any]) -> bytes:
    """Return the notification that a session in reach has changed."""
    return jsonrpc.notification(CHANGED, {"session": session})


def moved(session_id: str, name: str) -> bytes:
    """Return the notification that an id stands for another session now; the one that was open has this name."""
    return jsonrpc.notification(RESET, {"sessionId": session_id, "epoch": None, "movedTo": name})


def removed(session_id: str) -> bytes:
    """Return the notification that a session is not in reach any more."""
    return jsonrpc.notification(REMOVED, {"sessionId": session_id})


def machines_changed(machines: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the notification that the client may use other nodes, or that one is away or there."""
    return jsonrpc.notification(MACHINES_CHANGED, {"machines": machines})


SHARED_SIZE: Final = 1024 * 1024
"""Bytes of composed updates that are kept for other viewers: all that are told the latest ask for them at once."""


class _Composed(NamedTuple):
    """Updates and times, and the notification of them."""

    messages: Sequence[bytes]
    times: list[int | None]
    text: bytes


class SessionOutput:
    """Composes the notifications of the feeds of all viewers of a gateway; the same updates once for all of them."""

    def __init__(self) -> None:
        # By session and first number, the latest used last; another session may have the same id.
        self._composed: dict[tuple[str, str, int], _Composed] = {}
        self._size = 0

    def updates(
        self,
        session_id: str,
        messages: Sequence[bytes],
        first: int,
        times: Sequence[int | None],
        name: str | None = None,
    ) -> list[bytes]:
        """Return the notification of updates, as `entries` has them.

        `name` is that of the session for clients, if not its id.
        """
        if not messages:
            return []
        key = session_id, session_id if name is None else name, first
        known = self._composed.pop(key, None)
        if known is not None:
            self._size -= len(known.text)
        if known is None or known.messages != messages or known.times != list(times):
            text = updated(key[1], entries(session_id, messages, first, times))
            known = _Composed(messages, list(times), text)
        self._composed[key] = known
        self._size += len(known.text)
        while self._size > SHARED_SIZE:
            self._size -= len(self._composed.pop(next(iter(self._composed))).text)
        return [known.text]

    def request(self, session_id: str, request_id: str, message: Message) -> list[bytes]:
        """Return the notification of a request of the agent."""
        return [request(session_id, request_id, message)]

    def request_resolved(
        self,
        session_id: str,
        request_id: str,
        message: Message,
        by: str | None,
        outcome: str | None,
    ) -> list[bytes]:
        """Return the notification that a request of the agent is not open any more.

        `by` is the identity that has decided it, if one did; `outcome` the name of the option that was chosen, or the
        outcome without one.
        """
        params = {"sessionId": session_id, "requestId": request_id, "by": by, "outcome": outcome}
        return [jsonrpc.notification(REQUEST_RESOLVED, params)]

    def queue(self, session_id: str, prompts: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Return the notification of the prompts that wait."""
        return [jsonrpc.notification(QUEUE_CHANGED, {"sessionId": session_id, "queue": queued_prompts(prompts)})]

    def turn_ended(self, session_id: str, status: str, end: Mapping[str, Any]) -> list[bytes]:
        """Return the notifications of the end of a turn: as an entry of the history, and of the status."""
        changed = status_changed(session_id, status, None, end.get("stopReason"), end.get("error"))
        return [updated(session_id, [end_entry(end)]), changed]

    def status(self, session_id: str, status: str, exit_reason: str | None) -> list[bytes]:
        """Return the notification of another status."""
        return [status_changed(session_id, status, exit_reason)]

    def reset(self, session_id: str, epoch: str) -> list[bytes]:
        """Return the notification that the history has to be asked for again."""
        return [jsonrpc.notification(RESET, {"sessionId": session_id, "epoch": epoch})]
