"""Tracks what an editor has open: its requests, the agent's requests to it, and its sessions with its position in each.

Ids are kept as JSON text, spelled as they were received.

A request of the agent is kept until its response has certainly been sent. An answered one is kept for a while, because
the response may still be on this machine when the link is lost. A cancelled one is kept until the editor answers it
after all.

Positions in sessions are computed lazily. From time to time the gateway sends a `Mark` with the editor's position in
each session: an epoch, which identifies one run of the session's history, and a number. Each later `session/update` of
the session adds one. Tens of thousands of notifications pass per second. So they are only buffered, and parsed when a
position is requested or a mark omits a session. A mark that names all sessions discards the buffer unparsed. Marks are
frequent, which bounds the buffer.

Updates during session/load are history, which positions do not count. A mark that arrives during it is valid if it
follows the history, and stale if it crossed the request.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from acp_gateway.protocol.link_messages import Mark, positions_in, read_control
from acp_gateway.protocol.methods import (
    CLOSE,
    DELETE,
    FORK,
    INITIALIZE,
    LOAD,
    META,
    NEW,
    PROMPT,
    RESERVED_PREFIX,
    RESUME,
    SESSION_CANCEL,
    SESSION_UPDATE,
)
from acp_gateway.protocol.not_sent import first_text
from acp_gateway.protocol.text.json_text import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    encode,
    error,
    has_valid_id,
    may_be_id,
    object_at,
    raw_at,
    read_envelope,
    text_at,
    whole_number,
    with_member,
    with_own_meta,
)

ANSWERED_KEPT: Final = 1000
"""Maximum answered requests that are kept, because their responses may not have been sent: more than a user answers
while a link is down."""


_RESERVED: Final = RESERVED_PREFIX.encode()
_CANCEL: Final = SESSION_CANCEL.encode()
_ESCAPED_SLASH: Final = _CANCEL.replace(b"/", rb"\/")
_META: Final = b'"%b"' % META.encode()
Position: TypeAlias = tuple[str, int]
"""The epoch, and the number of updates since its start."""


STATE_UPDATE: Final = "state_update"
IDLE: Final = "idle"
_AT_WORK: Final = frozenset({"running", "requires_action"})

_SMALL = 16 * 1024
"""Bytes of a notification up to which parsing it whole is fastest."""


class Positions:
    """The last position that an editor has received in each of its sessions."""

    def __init__(self) -> None:
        # Positions as of the last mark or count; later notifications are in `_recent`.
        self._known: dict[str, Position] = {}
        # Notifications not counted yet; unused while no position is known.
        self._recent: list[bytes] = []
        # Number of open session/load and session/resume requests, by session.
        self._loading: Counter[str] = Counter()
        self.are_told = False
        """True once a mark has come, as from this program's gateways alone."""

    def delivered(self, notifications: Sequence[bytes]) -> None:
        """Buffer notifications that were delivered to the editor."""
        if self._known:
            self._recent += notifications

    def apply_mark(self, mark: Mark) -> dict[str, Position]:
        """Apply a mark, and return its valid positions."""
        named = positions_in(mark.text)
        self.are_told = True
        self._count(besides=named)
        self._known |= named
        return named

    def at(self, session_id: str) -> Position | None:
        """Return the editor's position in a session; None if unknown, or while it is being loaded."""
        self._count()
        return None if session_id in self._loading else self._known.get(session_id)

    def load_requested(self, session_id: str) -> None:
        """Record a session/load or session/resume request. The next mark after it sets the position."""
        self._loading[session_id] += 1
        self._known.pop(session_id, None)

    def load_ended(self, session_id: str) -> None:
        """Record the end of such a request, once for each."""
        self._count()
        self._loading[session_id] -= 1
        if not self._loading[session_id]:
            del self._loading[session_id]

    def put(self, session_id: str, position: Position | None) -> None:
        """Set the position of a session, overriding the count; None for unknown."""
        self._count()
        self._known.pop(session_id, None)
        if position is not None:
            self._known[session_id] = position

    def forget(self, session_id: str) -> None:
        """Drop the position of a session."""
        self._known.pop(session_id, None)

    def _count(self, besides: Collection[str] = ()) -> None:
        """Count the buffered notifications, unless all positions are about to be replaced."""
        recent, self._recent = self._recent, []
        if self._known.keys() <= set(besides):
            return
        for message in recent:
            session_id = updated_session(message)
            if session_id is None or session_id not in self._known:
                continue
            if session_id in self._loading:
                # History: a mark received since the request was stale.
                del self._known[session_id]
            else:
                epoch, position = self._known[session_id]
                self._known[session_id] = epoch, position + 1


def updated_session(notification: bytes) -> str | None:
    """Return the session id of a `session/update`; None for any other notification."""
    try:
        value = json.loads(notification) if len(notification) <= _SMALL else None
    except (ValueError, RecursionError):
        value = None
    if value is None:
        # Large, deeply nested, with an enormous number, or invalid: search the text instead.
        is_update = text_at(notification, "method") == SESSION_UPDATE
        return text_at(notification, "params", "sessionId") if is_update else None
    if not isinstance(value, dict) or value.get("method") != SESSION_UPDATE:
        return None
    params = value.get("params")
    session_id = params.get("sessionId") if isinstance(params, dict) else None
    return session_id if isinstance(session_id, str) else None


def is_cancel(message: bytes) -> bool:
    """Return whether a message is a `session/cancel`. Others are not walked through: a prompt may be large."""
    if b'"id"' in message or not (_CANCEL in message or _ESCAPED_SLASH in message):
        return False
    return text_at(message, "method") == SESSION_CANCEL


def told_state(message: bytes) -> tuple[str, str] | None:
    """Return the session and the state of a `state_update` of version 2; None for any other message."""
    if text_at(message, "params", "update", "sessionUpdate") != STATE_UPDATE:
        return None
    session_id, state = text_at(message, "params", "sessionId"), text_at(message, "params", "update", "state")
    return None if session_id is None or state is None else (session_id, state)


def speaks_new(response: bytes) -> bool:
    """Return whether the response to `initialize` agrees on version 2."""
    return (whole_number(raw_at(response, "result", "protocolVersion")) or 0) > 1


def taken_content(response: bytes) -> frozenset[str]:
    """Return the names of what the agent takes in prompts, by the response to `initialize`."""
    new = ("capabilities", "session", "prompt")
    told = object_at(
        response, "result", *(new if speaks_new(response) else ("agentCapabilities", "promptCapabilities"))
    )
    names = ("image", "embeddedContext")
    return frozenset(name for name in names if raw_at(told, name) not in (None, b"null", b"false"))


class PendingRequests:
    """Requests of the agent to one editor."""

    def __init__(self) -> None:
        self.last_id = 0
        """The highest integer id of any request so far."""
        # The session of each request, by id: requests without a response, and recently answered ones.
        self._open: dict[bytes, str | None] = {}
        self._answered: dict[bytes, str | None] = {}
        # Cancelled requests that the editor may still answer.
        self._withdrawn: set[bytes] = set()

    def __bool__(self) -> bool:
        """Return whether any request waits for a response."""
        return bool(self._open)

    def __contains__(self, raw_id: bytes) -> bool:
        """Return whether a response with this id is valid: an expected one, or one that may not have been sent."""
        return raw_id in self._open or raw_id in self._answered

    def add(self, raw_id: bytes, session_id: str | None) -> None:
        """Record a request, in a session or outside of all."""
        self._open[raw_id] = session_id
        self._withdrawn.discard(raw_id)
        self.last_id = max(self.last_id, whole_number(raw_id) or 0)

    def cancel(self, raw_id: bytes) -> None:
        """Remove a request that the gateway itself has cancelled."""
        self._open.pop(raw_id, None)

    def take_response(self, raw_id: bytes) -> bool:
        """Record a response. Return False for the first response to a withdrawn request, which is to be dropped."""
        if raw_id in self._withdrawn:
            self._withdrawn.remove(raw_id)
            return False
        if raw_id in self._open:
            self._answered[raw_id] = self._open.pop(raw_id)
            if len(self._answered) > ANSWERED_KEPT:
                del self._answered[next(iter(self._answered))]
        return True

    def unsettled(self, unsent: Collection[bytes]) -> dict[bytes, str | None]:
        """Return the session of each request whose response has not been sent, answered ones first.

        Forgets answered requests that are not among `unsent`, the ids of responses that were certainly not sent.
        """
        self._answered = {raw_id: session_id for raw_id, session_id in self._answered.items() if raw_id in unsent}
        return self._answered | self._open

    def withdraw(self, raw_id: bytes) -> bool:
        """Cancel a request, or drop its unsent response. Return whether the editor has to be notified."""
        if raw_id not in self._open:
            self._answered.pop(raw_id, None)
            return False
        del self._open[raw_id]
        self._withdrawn.add(raw_id)
        return True


@dataclass(slots=True)
class Outcome:
    """Messages to send now, in order, and log messages."""

    to_gateway: list[bytes] = field(default_factory=list)
    to_editor: list[bytes] = field(default_factory=list)
    log_messages: list[str] = field(default_factory=list)
    """Log messages, without content of sessions."""


@dataclass(slots=True)
class Request:
    """An open request of the editor."""

    method: str
    session: str | None
    params: bytes
    """The params object; empty unless the request opens a session, or is a prompt of version 2."""
    text: str = ""
    """Beginning of the text of a prompt."""


class EditorState:
    """The open requests and sessions of one editor."""

    def __init__(self) -> None:
        self.started = False
        """True after the editor's `initialize` was answered with a result."""
        self.initialize: bytes | None = None
        """The editor's `initialize` that succeeded or is in flight."""
        self._initialize_id: bytes | None = None
        self.requests: dict[bytes, Request] = {}
        """Open requests of the editor by id, oldest first."""
        self.pending = PendingRequests()
        """Requests of the agent to the editor."""
        self.sessions: dict[str, bytes] = {}
        """Open sessions of the editor, with the params object that opened each."""
        self.takes: frozenset[str] = frozenset()
        """Names of what the agent takes in prompts beside text and links, as `initialize` was answered."""
        self.is_new = False
        """True if version 2 was agreed on: a prompt is answered at once, and its turn ends by an update."""
        self.running: dict[str, list[bytes]] = {}
        """Sessions with a turn, of an editor of version 2, with the ids of its answered prompts since the last one."""
        self.positions = Positions()

    def from_editor(self, batch: Sequence[bytes]) -> Outcome:
        """Process messages of the editor. They pass unchanged, except reserved methods and responses that come late."""
        outcome = Outcome()
        for message in batch:
            if self._passes(message, outcome):
                outcome.to_gateway.append(self.aimed(message) if is_cancel(message) else message)
        return outcome

    def aimed(self, cancel: bytes, held: Iterable[bytes] = ()) -> bytes:
        """Return a `session/cancel` with what it is meant for: the prompts that are open in its session now, and the
        editor's position there. When it arrives, another turn may run.

        `held` are ids of requests that are not recorded yet.
        """
        session_id = text_at(cancel, "params", "sessionId")
        if session_id is None or _META in cancel or not self.positions.are_told:
            return cancel
        asked = (raw_id for raw_id, it in self.requests.items() if (it.method, it.session) == (PROMPT, session_id))
        prompts = b",".join([*self.running.get(session_id, ()), *asked, *held])
        position = self.positions.at(session_id)
        said = encode({} if position is None else {"epoch": position[0], "position": position[1]})
        params = with_own_meta(object_at(cancel, "params"), with_member(said, "prompts", b"[%b]" % prompts))
        return with_member(cancel, "params", params)

    def _passes(self, message: bytes, outcome: Outcome) -> bool:
        if b'"id"' not in message and b"\\" not in message and _RESERVED not in message:
            return True
        envelope = read_envelope(message)
        if envelope is None:
            # The gateway answers invalid messages, but must not take one for a link message.
            if read_control(message) is None:
                return True
            outcome.log_messages.append("dropped a message of the editor: link messages are reserved")
            return False
        raw_id, method, _ = envelope
        if method is None:
            if raw_id is None or self.pending.take_response(raw_id):
                return True
            outcome.log_messages.append("dropped the editor's response to a request that was cancelled")
            return False
        if method.startswith(RESERVED_PREFIX):
            if raw_id is None:
                outcome.log_messages.append(f"dropped a notification of the editor: {method[:80]!r} is reserved")
            else:
                to = raw_id if may_be_id(raw_id) else b"null"
                why = "methods that begin with _acp-gateway/ are reserved"
                outcome.to_editor.append(error(to, METHOD_NOT_FOUND, why))
            return False
        if raw_id is not None:
            self._record(raw_id, method, message)
        return True

    def _record(self, raw_id: bytes, method: str, message: bytes) -> None:
        if raw_id in self.requests or not has_valid_id(message, raw_id):
            return  # The gateway refuses it under the id null.
        session_id = text_at(message, "params", "sessionId")
        is_kept = method in (NEW, LOAD, RESUME, FORK) or (self.is_new and method == PROMPT)
        params = object_at(message, "params") if is_kept else b"{}"
        text = first_text(raw_at(message, "params", "prompt") or b"") if method == PROMPT else ""
        self.requests[raw_id] = Request(method, session_id, params, text)
        if method == INITIALIZE and self.initialize is None:
            self.initialize, self._initialize_id = message, raw_id
        elif method in (LOAD, RESUME) and session_id is not None:
            self.positions.load_requested(session_id)

    def is_initializing(self, raw_id: bytes) -> bool:
        """Return whether an open request is the editor's `initialize` that has not been answered yet."""
        request = self.requests[raw_id]
        return request.method == INITIALIZE and raw_id == self._initialize_id and not self.started

    def answered(self, raw_id: bytes, response: bytes, *, failed: bool) -> Request | None:
        """Process a response of the gateway; return the request that it closes, None if it closes none."""
        request = self.requests.get(raw_id)
        if request is None:
            return None
        initializing = self.is_initializing(raw_id)
        self.close(raw_id)
        if initializing:
            self.started = not failed
            self.is_new = not failed and speaks_new(response)
            self.takes = taken_content(response)
            if failed:
                self.initialize = None
        elif not failed and request.method == PROMPT:
            if self.is_new and request.session is not None:
                self.accept(raw_id, request.session)
        elif not failed:
            self._succeeded(request, response)
        return request

    def close(self, raw_id: bytes) -> None:
        """Remove a request that was answered or given up."""
        request = self.requests.pop(raw_id)
        if request.method in (LOAD, RESUME) and request.session is not None:
            self.positions.load_ended(request.session)

    def close_all(self, message: str, reason: str) -> list[bytes]:
        """Remove all requests; return an error response for each."""
        errors = [error(raw_id, INTERNAL_ERROR, message, reason) for raw_id in self.requests]
        for raw_id in list(self.requests):
            self.close(raw_id)
        if not self.started:
            self.initialize = None
        return errors

    def _succeeded(self, request: Request, response: bytes) -> None:
        session_id = request.session
        if request.method in (NEW, FORK):
            session_id = text_at(response, "result", "sessionId")
        if session_id is None:
            return
        if request.method in (NEW, FORK, LOAD, RESUME):
            self.sessions[session_id] = request.params
        elif request.method in (CLOSE, DELETE):
            self.forget(session_id)

    def forget(self, session_id: str) -> None:
        """Remove a session that was closed or lost."""
        self.sessions.pop(session_id, None)
        self.running.pop(session_id, None)
        self.positions.forget(session_id)

    def accept(self, raw_id: bytes, session_id: str) -> None:
        """Close a prompt of version 2 that was accepted: its turn has begun, or will."""
        self.requests.pop(raw_id, None)
        self.running.setdefault(session_id, []).append(raw_id)

    def state_told(self, session_id: str, state: str) -> None:
        """Record the state that a `state_update` of version 2 tells; states of others' making change nothing."""
        if state == IDLE:
            self.running.pop(session_id, None)
        elif state in _AT_WORK:
            self.running.setdefault(session_id, [])

    def wants_extensions(self) -> bool:
        """Return whether the editor's `initialize` asks for the gateway's extensions."""
        offered = "capabilities" if self.is_new else "clientCapabilities"
        asked = raw_at(self.initialize or b"", "params", offered, "_meta", META)
        return asked not in (None, b"null", b"false")

    def unused_id(self, purpose: str) -> bytes:
        """Return an id for a request of the shim's own, different from those of the open requests."""
        raw_id = b'"acp-gateway:%b"' % purpose.encode()
        while raw_id in self.requests:
            raw_id = raw_id[:-1] + b'+"'
        return raw_id
