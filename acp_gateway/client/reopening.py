"""How one session is opened again on a new link: what the gateway is told of it, and what it makes of that.

The gateway is told up to where the editor has seen the session. If it counts as it did before, it says so with a mark,
and behind that mark come the updates that were missed. Otherwise the session is told from its beginning or not at all,
and of these updates the editor has seen some: none of them is for it before the session is open again.
"""

from dataclasses import dataclass, field
from typing import Any

from acp_gateway.client.positions import Position
from acp_gateway.protocol.json_text import encode, raw_at, with_member, with_own_meta
from acp_gateway.protocol.methods import LOAD, RESUME


@dataclass(slots=True)
class SessionRestore:
    """A session that is not open again yet."""

    session_id: str
    told: Position | None
    """Up to where the editor has seen it."""
    prompts: list[bytes] = field(default_factory=list)
    """The ids of those that may have reached the agent and have no answer."""
    questions: list[bytes] = field(default_factory=list)
    """The ids of those that the editor has not answered, or whose answers have not left."""
    method: str = ""
    """By which it is opened, as `restore_method` says."""
    raw_id: bytes = b""
    """Of the request that opens it; empty before there was one."""
    marked: bool = False
    """Whether the gateway has said where in it the editor is now."""
    goes_on: bool = False
    """Whether it has said so for the epoch that it was told."""
    swallowed: int = 0
    """How many updates did not pass."""

    def request(self, raw_id: bytes, method: str, params: bytes, connection_id: str) -> bytes:
        """Return the request that opens it.

        Args:
            raw_id: the id that the request gets.
            method: see `restore_method`.
            params: what the editor has opened it with, an object.
            connection_id: of the link that was lost.
        """
        self.raw_id, self.method = raw_id, method
        params = with_member(params, "sessionId", encode(self.session_id))
        if method == LOAD and raw_at(params, "mcpServers") is None:
            params = with_member(params, "mcpServers", b"[]")
        params = with_own_meta(params, self._what_is_known(connection_id))
        return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (raw_id, encode(method), params)

    def _what_is_known(self, connection_id: str) -> bytes:
        known: dict[str, Any] = {"connection": connection_id}
        if self.told is not None:
            known["epoch"], known["position"] = self.told
        text = with_member(encode(known), "questions", b"[%b]" % b",".join(self.questions))
        return with_member(text, "prompts", b"[%b]" % b",".join(self.prompts))

    def mark(self, epoch: str) -> None:
        """The gateway has said where in it the editor is."""
        self.marked = True
        self.goes_on |= self.told is not None and self.told[0] == epoch

    def swallow(self) -> bool:
        """An update of it came; returns whether it is not for the editor, and counts it then."""
        if self.goes_on:
            return False
        self.swallowed += 1
        return True


def restore_method(response: bytes) -> str | None:
    """Return the method by which sessions can be opened again, from the answer to `initialize`; None for no way."""
    resumes = raw_at(response, "result", "agentCapabilities", "sessionCapabilities", "resume")
    if resumes not in (None, b"null", b"false"):
        return RESUME
    return LOAD if raw_at(response, "result", "agentCapabilities", "loadSession") == b"true" else None
