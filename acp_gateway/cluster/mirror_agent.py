"""Answers like an agent whose sessions can only be read: the mirrored histories of a node that is away.

Pure: messages in, messages out. The caller reads the histories of the sessions that are asked for.
"""

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from acp_gateway.cluster.mirrored_history import read_update
from acp_gateway.cluster.store import MirroredJournal
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message

VERSION: Final = 1
"""The protocol version in which it answers."""

NODE_AWAY: Final = "node_away"
"""Reason in errors for what can't be done while a node is away."""

_RESULT: Final = {
    "protocolVersion": VERSION,
    "agentCapabilities": {"loadSession": True, "promptCapabilities": {}},
    "authMethods": [],
}


class MirrorAgent:
    """The agent of one reader.

    Args:
        node: the name of the node that is away.
        since: time since which it is, in ISO 8601.
    """

    def __init__(self, node: str, since: str) -> None:
        self.wanted: deque[Message] = deque()
        """Requests to open a session: the caller removes each, and answers it by `opened` or `unknown`."""
        self._node = node
        self._since = since
        # What is said of each session that was opened.
        self._told: dict[str, str] = {}

    def receive(self, text: bytes) -> list[bytes]:
        """Handle a message, and return what is sent at once."""
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage:
            return []
        if message.kind is not Kind.REQUEST:
            return []
        if message.method == methods.INITIALIZE:
            return [jsonrpc.result(message.id, _RESULT)]
        if message.method in (methods.LOAD, methods.RESUME) and message.session is not None:
            self.wanted.append(message)
            return []
        return [self._refusal(message)]

    def opened(self, request: Message, key: str, journal: MirroredJournal) -> Iterator[bytes]:
        """Yield the answer to a request to open a session: its history, the response, and what it is.

        `key` is the session's name in the cluster.
        """
        session_id = request.session
        assert session_id is not None, "only such requests are wanted"
        told = self._told[session_id] = absence_text(self._node, self._since, key, journal.as_of)
        if request.method == methods.LOAD:
            if not journal.complete:
                yield gap(session_id)
            yield from (message for _, message in journal.messages if read_update(message) is not None)
        yield jsonrpc.result(request.id, {})
        # Behind the response, so that it is no part of the history.
        yield gap(session_id, f"[acp-gateway: {told}]")

    def unknown(self, request: Message, why: str) -> bytes:
        """Return the answer to a request for a session that can't be read here."""
        text = f"the node {self._node} is away since {self._since}, and its session can't be read here: {why}"
        return jsonrpc.error(request.id, jsonrpc.SESSION_NOT_FOUND, text, self._data)

    def _refusal(self, request: Message) -> bytes:
        told = self._told.get(request.session or "")
        if told is None:
            told = f"the node {self._node} is away since {self._since}: its sessions can be read, and nothing else"
        return jsonrpc.error(request.id, jsonrpc.INVALID_REQUEST, told, self._data)

    @property
    def _data(self) -> dict[str, Any]:
        return {"reason": NODE_AWAY, "node": self._node, "unreachableSince": self._since}


def absence_text(node: str, since: str, key: str, as_of: int) -> str:
    """Say that a session can only be read, since when, as of when, and how it is opened elsewhere.

    `since` is in ISO 8601, `as_of` in milliseconds since 1970.
    """
    try:
        time = datetime.fromtimestamp(as_of / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        time = "an unknown time"
    return (
        f"the node {node} is away since {since}; this is the history of its session as of {time}, read only. "
        f"`acp-gateway sessions adopt {key:.200} --on NODE` opens it on another node"
    )
