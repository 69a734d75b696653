"""Tracks what an editor has open: its requests, the agent's requests to it, and its sessions with its position in each.

Ids are kept as JSON text, spelled as they were received. Positions in sessions are computed lazily (`positions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from acp_gateway.client.positions import Positions
from acp_gateway.client.reopening import PendingRequests
from acp_gateway.protocol.link_messages import read_control
from acp_gateway.protocol.methods import CLOSE, DELETE, FORK, INITIALIZE, LOAD, META, NEW, RESERVED_PREFIX, RESUME
from acp_gateway.protocol.text.json_text import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    error,
    has_valid_id,
    may_be_id,
    object_at,
    raw_at,
    read_envelope,
    text_at,
)

_RESERVED: Final = RESERVED_PREFIX.encode()


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
    """The params object; empty unless the request opens a session."""


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
        self.positions = Positions()

    def from_editor(self, batch: Sequence[bytes]) -> Outcome:
        """Process messages of the editor. They pass unchanged, except reserved methods and responses that come late."""
        outcome = Outcome()
        for message in batch:
            if self._passes(message, outcome):
                outcome.to_gateway.append(message)
        return outcome

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
        params = object_at(message, "params") if method in (NEW, LOAD, RESUME, FORK) else b"{}"
        self.requests[raw_id] = Request(method, session_id, params)
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
            if failed:
                self.initialize = None
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
        self.positions.forget(session_id)

    def wants_extensions(self) -> bool:
        """Return whether the editor's `initialize` asks for the gateway's extensions."""
        asked = raw_at(self.initialize or b"", "params", "clientCapabilities", "_meta", META)
        return asked not in (None, b"null", b"false")

    def unused_id(self, purpose: str) -> bytes:
        """Return an id for a request of the shim's own, different from those of the open requests."""
        raw_id = b'"acp-gateway:%b"' % purpose.encode()
        while raw_id in self.requests:
            raw_id = raw_id[:-1] + b'+"'
        return raw_id
