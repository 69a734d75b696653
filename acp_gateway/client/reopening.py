"""State that a recovery restores: one session on a new link, and the requests that wait for the editor.

The restore request carries the editor's position in the session. If the gateway still knows the epoch, it sends a mark,
and after it the missed updates. Otherwise it replays the session from the start or not at all. The editor has seen part
of a replay, so its updates are discarded until the session is restored.

A request of the agent is kept until its response has certainly been sent. An answered one is kept for a while, because
the response may still be on this machine when the link is lost. A cancelled one is kept until the editor answers it
after all. Ids are JSON texts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from acp_gateway.client.positions import Position
from acp_gateway.protocol.methods import LOAD, RESUME
from acp_gateway.protocol.text.json_text import encode, raw_at, whole_number, with_member, with_own_meta

ANSWERED_KEPT: Final = 1000
"""Maximum answered requests that are kept, because their responses may not have been sent: more than a user answers
while a link is down."""


@dataclass(slots=True)
class SessionRestore:
    """A session that is being restored."""

    session_id: str
    position: Position | None
    """The editor's position in it."""
    prompts: list[bytes] = field(default_factory=list)
    """Ids of open prompts that may have reached the agent."""
    agent_requests: list[bytes] = field(default_factory=list)
    """Ids of agent requests without a response, or with one that was not sent."""
    method: str = ""
    """The method of the restore request, see `restore_method`."""
    raw_id: bytes = b""
    """The id of the restore request; empty before it."""
    marked: bool = False
    """True after a mark with a position in this session."""
    continues: bool = False
    """True after a mark that continues the epoch of `position`."""
    discarded: int = 0
    """Number of updates that did not pass."""

    def request(self, raw_id: bytes, method: str, params: bytes, links: Sequence[str]) -> bytes:
        """Return the restore request.

        Args:
            raw_id: the id of the request.
            method: see `restore_method`.
            params: the params object with which the editor opened the session.
            links: the ids of the lost links, the last one first.
        """
        self.raw_id, self.method = raw_id, method
        params = with_member(params, "sessionId", encode(self.session_id))
        if method == LOAD and raw_at(params, "mcpServers") is None:
            params = with_member(params, "mcpServers", b"[]")
        params = with_own_meta(params, self._own_meta(links))
        return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (raw_id, encode(method), params)

    def _own_meta(self, links: Sequence[str]) -> bytes:
        members: dict[str, Any] = {"connection": links[0]}
        if len(links) > 1:
            members["former"] = links[1:]
        if self.position is not None:
            members["epoch"], members["position"] = self.position
        text = with_member(encode(members), "questions", b"[%b]" % b",".join(self.agent_requests))
        return with_member(text, "prompts", b"[%b]" % b",".join(self.prompts))

    def mark(self, epoch: str) -> None:
        """Record a mark with a position in this session."""
        self.marked = True
        self.continues |= self.position is not None and self.position[0] == epoch

    def discard(self) -> bool:
        """Return whether to drop an update of the session, and count it if so."""
        if self.continues:
            return False
        self.discarded += 1
        return True


def restore_method(response: bytes) -> str | None:
    """Return the method that restores sessions, by the response to `initialize`; None if the agent has none."""
    resumes = raw_at(response, "result", "agentCapabilities", "sessionCapabilities", "resume")
    if resumes not in (None, b"null", b"false"):
        return RESUME
    return LOAD if raw_at(response, "result", "agentCapabilities", "loadSession") == b"true" else None


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
