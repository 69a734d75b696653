"""An editor's position in each of its sessions, computed lazily.

From time to time the gateway sends a `Mark` with the editor's position in each session: an epoch, which identifies one
run of the session's history, and a number. Each later `session/update` of the session adds one.

Tens of thousands of notifications pass per second. So they are only buffered, and parsed when a position is requested
or a mark omits a session. A mark that names all sessions discards the buffer unparsed. Marks are frequent, which bounds
the buffer.

Updates during session/load are history, which positions do not count. A mark that arrives during it is valid if it
follows the history, and stale if it crossed the request.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeAlias

from acp_gateway.protocol.methods import SESSION_UPDATE
from acp_gateway.protocol.text.json_text import text_at

Position: TypeAlias = tuple[str, int]
"""The epoch, and the number of updates since its start."""


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

    def delivered(self, notifications: Sequence[bytes]) -> None:
        """Buffer notifications that were delivered to the editor."""
        if self._known:
            self._recent += notifications

    def apply_mark(self, mark: bytes) -> dict[str, Position]:
        """Apply a mark, and return its valid positions."""
        named = _positions_in(mark)
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


def _positions_in(mark: bytes) -> dict[str, Position]:
    try:
        positions = json.loads(mark)["params"]["positions"]
        found = {session_id: (at["epoch"], at["position"]) for session_id, at in positions.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {
        session_id: (epoch, position)
        for session_id, (epoch, position) in found.items()
        if isinstance(epoch, str) and isinstance(position, int)
    }
