"""Where an editor is in its sessions, found out when somebody wants to know.

From time to time the gateway says where in them an editor is that has read up to here (a `Mark`): an epoch, which is a
word for one telling of the session, and a position in it. From there on each `session/update` of the session is one
position more.

Notifications pass by the tens of thousands in a second. So they are only put aside, and read when a position is wanted
or a mark leaves a session out. A mark that names all sessions lets them be forgotten unread. Marks are frequent, which
is the bound for what is put aside.

What comes while a session is loaded is history, which no position counts. A mark that comes meanwhile holds if it came
behind the history, and does not if it has crossed the request.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeAlias

from acp_gateway.protocol.json_text import text_at
from acp_gateway.protocol.methods import SESSION_UPDATE

Position: TypeAlias = tuple[str, int]
"""The epoch, and how many updates of it there have been."""


_SMALL = 16 * 1024
"""Bytes of a notification up to which the fastest way is to read all of it."""


class Positions:
    """Up to where an editor has seen each of its sessions."""

    def __init__(self) -> None:
        # As of the last mark or count; what came later is in `_recent`.
        self._known: dict[str, Position] = {}
        # Notifications that have passed since; nothing is added while no position is known.
        self._recent: list[bytes] = []
        # How many requests are open that load each session.
        self._loading: Counter[str] = Counter()

    def passed(self, notifications: Sequence[bytes]) -> None:
        """These came down, and so are seen. They are not looked at now."""
        if self._known:
            self._recent += notifications

    def marked(self, mark: bytes) -> dict[str, Position]:
        """The gateway says where the editor is; returns what of it can be understood."""
        named = _positions_in(mark)
        self._count(besides=named)
        self._known |= named
        return named

    def at(self, session_id: str) -> Position | None:
        """Where the editor is in a session; None where that is not known, or it is being loaded."""
        self._count()
        return None if session_id in self._loading else self._known.get(session_id)

    def loads(self, session_id: str) -> None:
        """The editor asks for a session from its beginning. Where it is after that, the next mark says."""
        self._loading[session_id] += 1
        self._known.pop(session_id, None)

    def loaded(self, session_id: str) -> None:
        """Such a request is answered, or given up; once for each."""
        self._count()
        self._loading[session_id] -= 1
        if not self._loading[session_id]:
            del self._loading[session_id]

    def put(self, session_id: str, position: Position | None) -> None:
        """The editor is here in a session after all, whatever was counted; None where that is not known."""
        self._count()
        self._known.pop(session_id, None)
        if position is not None:
            self._known[session_id] = position

    def forget(self, session_id: str) -> None:
        """Where the editor is in a session is not known any more, or of no interest."""
        self._known.pop(session_id, None)

    def _count(self, besides: Collection[str] = ()) -> None:
        """Bring the positions up to date, all but those that are about to be replaced."""
        recent, self._recent = self._recent, []
        if self._known.keys() <= set(besides):
            return
        for message in recent:
            session_id = updated_session(message)
            if session_id is None or session_id not in self._known:
                continue
            if session_id in self._loading:
                # History: a mark that came since the request was older than it.
                del self._known[session_id]
            else:
                epoch, position = self._known[session_id]
                self._known[session_id] = epoch, position + 1


def updated_session(notification: bytes) -> str | None:
    """Return the id of the session that a notification is an update of; None for any other."""
    try:
        value = json.loads(notification) if len(notification) <= _SMALL else None
    except (ValueError, RecursionError):
        value = None
    if value is None:
        # Large, nested deeply, a number of thousands of digits, or no JSON: what it holds is not made into values.
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
