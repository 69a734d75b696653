"""Why an agent could not open sessions, for the requests that name one of them later.

The answer to the request that was to open a session says why, but a client may not have asked for that itself: the
gateway opens sessions again for its clients, and so does what runs beside an editor. What the editor sees is that the
session of its next prompt is not open.
"""

from typing import Final

from acp_gateway.core.sessions import Client, Session
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.reasons import reason_of

REMEMBERED: Final = 1000
"""Sessions of one agent that are remembered: more than its clients ask for again after a restart."""


class Unopened:
    """The sessions that one agent could not open when it was last asked to, and its reasons."""

    def __init__(self) -> None:
        # By id, then by session: two identities may have one of the same id.
        self._reasons: dict[tuple[str, str], tuple[Session, str]] = {}

    def refused(self, session: Session, response: Message) -> str:
        """Remember that the agent has answered with an error, and return its reason."""
        reason = reason_of(response.text)
        self.forget(session)
        self._reasons[session.owner, session.id] = session, reason
        while len(self._reasons) > REMEMBERED:
            del self._reasons[next(iter(self._reasons))]
        return reason

    def forget(self, session: Session) -> None:
        """Forget the reason: the session is open, or the agent is asked again."""
        self._reasons.pop((session.owner, session.id), None)

    def reason(self, client: Client | None, session_id: str | None) -> str | None:
        """Return why a session is not open, if this client may know.

        Only a controller of the owner may: the agent's words can name files, and it would have got them itself.
        """
        if client is None or session_id is None or not client.controls or client.viewer.guest:
            return None
        session, reason = self._reasons.get((client.viewer.identity, session_id), (None, None))
        return reason if session is not None and client.viewer.sees(session) else None
