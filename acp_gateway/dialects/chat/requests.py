"""Reads the events that chat widgets send over `/chat`, and composes the ACP messages for them.

`read` checks a text and returns a `ChatCall`; `acp_request` composes its ACP message. Content is passed on as the bytes
that it is. What widgets get is in `chat_output`.

The wire is described in `docs/dialects-reference.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.members import (
    AcpRequest,
    Member,
    Sizes,
    Unfit,
    read_id,
    read_members,
    read_object,
    read_session,
    read_text,
    request_key,
)
from acp_gateway.protocol.text.strict_parsing import members_strictly

SEND: Final = "send_message"
CANCEL: Final = "cancel_turn"
RESPOND: Final = "permission_response"
SET_MODE: Final = "change_mode"
LOAD: Final = "load_session"
NEW: Final = "new_session"

SESSION_NOT_FOUND: Final = -32001
"""Code of the error about a session that does not exist for a connection."""


def _read_content(raw: bytes) -> bytes:
    """Return content blocks as JSON text; a string is one block of text."""
    if raw[:1] == b'"':
        return b'[{"type":"text","text":%b}]' % raw
    if raw[:1] != b"[":
        raise Unfit("must be a string or an array of content blocks")
    return raw


def _read_request_key(raw: bytes) -> str:
    return request_key(read_id(raw))


_SESSION: Final = Member(read_session)
_TEXT: Final = Member(read_text, False)


class ChatType(NamedTuple):
    """A type of event that widgets send."""

    members: Mapping[str, Member] = {}
    acts: bool = True
    """Changes or starts something: refused for observers."""


TYPES: Final[Mapping[str, ChatType]] = {
    SEND: ChatType({"sessionId": _SESSION, "content": Member(_read_content), "messageId": _TEXT}),
    CANCEL: ChatType({"sessionId": _SESSION}),
    RESPOND: ChatType({"requestId": Member(_read_request_key), "outcome": Member(read_object)}),
    SET_MODE: ChatType({"sessionId": _SESSION, "modeId": Member(read_text)}),
    LOAD: ChatType({"sessionId": _SESSION, "cwd": _TEXT}, acts=False),
    NEW: ChatType({"cwd": _TEXT, "agent": _TEXT}),
}
"""All types, by name."""


class Invalid(Exception):
    """A text that is answered by an error."""

    def __init__(self, code: int, text: str, request_type: str | None = None, session: str | None = None) -> None:
        self.code = code
        self.request_type = request_type
        """The type of the event, if it has one."""
        self.session = session
        """The session that it names."""
        super().__init__(text)


@dataclass(frozen=True, slots=True, eq=False)
class ChatCall:
    """An event of a widget whose members were checked."""

    type: str
    """One of `TYPES`."""
    members: Mapping[str, Any]
    """The members that are there: texts as values, content and outcome as JSON texts."""

    @property
    def session(self) -> str | None:
        """The session that it names."""
        session: str | None = self.members.get("sessionId")
        return session

    @property
    def acts(self) -> bool:
        """True if observers may not send it."""
        return TYPES[self.type].acts

    @property
    def result(self) -> bytes:
        """The result of the ACP response in a `permission_response`, as JSON text."""
        return b'{"outcome":%b}' % self.members["outcome"]


def read(text: bytes, sizes: Sizes = Sizes()) -> ChatCall:  # noqa: B008 - it never changes.
    """Read a text of a widget. Raises `Invalid`."""
    try:
        found = members_strictly(text)
    except InvalidMessage as error:
        raise Invalid(error.code, str(error)) from None
    raw = found.get("type")
    name = None if raw is None else spans.string_or_none(bytes(raw))
    if name is None:
        raise Invalid(jsonrpc.INVALID_REQUEST, "an event needs a type, which is a string")
    session = _session_of(found)
    known = TYPES.get(name)
    if known is None:
        # Cut off: it may be as long as the message.
        raise Invalid(jsonrpc.METHOD_NOT_FOUND, f"there is no type {name!r:.80} here", name[:80], session)
    limit, most = ("decision_size", sizes.decision) if name == RESPOND else ("session_request_size", sizes.request)
    if len(text) > most and name != SEND:
        raise Invalid(jsonrpc.INVALID_PARAMS, f"{name} has at most {limit} ({most}) bytes", name, session)
    try:
        return ChatCall(name, read_members(found, known.members, name))
    except Unfit as error:
        raise Invalid(jsonrpc.INVALID_PARAMS, str(error), name, session) from None


def _session_of(found: Mapping[str, Any]) -> str | None:
    try:
        return read_session(bytes(found.get("sessionId", b"null")))
    except ValueError:
        return None


def acp_request(call: ChatCall, session_id: str) -> AcpRequest:
    """Return the ACP message of a call that is one for the agent, whose session has this id there."""
    session = b'"sessionId":%b' % jsonrpc.encode(session_id)
    if call.type == SEND:
        said = call.members.get("messageId")
        message_id = b"" if said is None else b',"messageId":%b' % jsonrpc.encode(said)
        return AcpRequest(methods.PROMPT, b'{%b,"prompt":%b%b}' % (session, call.members["content"], message_id))
    assert call.type == SET_MODE
    return AcpRequest(methods.SET_MODE, b'{%b,"modeId":%b}' % (session, jsonrpc.encode(call.members["modeId"])))
