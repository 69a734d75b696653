"""Reasons why an agent could not open sessions, for later requests that name one of them.

The response to the opening request holds the reason, but a client may not have sent that request itself: the gateway
re-opens sessions for its clients, and so does the shim. The editor only learns that the session of its next prompt is
not open.
"""

from typing import Final

from acp_gateway.core.sessions.session import Client, Session
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.reasons import reason_of

MAX_REMEMBERED: Final = 1000
"""Maximum number of remembered sessions of one agent; more than its clients request after a restart."""


class Unopened:
    """Sessions that one agent could not open at the latest attempt, with its reasons."""

    def __init__(self) -> None:
        # By owner and id: two identities may have sessions of the same id.
        self._reasons: dict[tuple[str, str], tuple[Session, str]] = {}

    def remember_reason(self, session: Session, response: Message) -> str:
        """Remember and return the reason in the agent's error."""
        reason = reason_of(response.text)
        self.forget(session)
        self._reasons[session.owner, session.id] = session, reason
        while len(self._reasons) > MAX_REMEMBERED:
            del self._reasons[next(iter(self._reasons))]
        return reason

    def forget(self, session: Session) -> None:
        """Forget the reason: the session is open, or is requested again."""
        self._reasons.pop((session.owner, session.id), None)

    def reason(self, client: Client | None, session_id: str | None) -> str | None:
        """Return why a session is not open, if this client may know.

        Only a controller of the owner may: the agent's words can name files, and were meant for that identity.
        """
        if client is None or session_id is None or not client.controls or client.scope.guest:
            return None
        session, reason = self._reasons.get((client.scope.identity, session_id), (None, None))
        return reason if session is not None and client.scope.sees(session) else None
