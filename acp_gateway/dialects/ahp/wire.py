"""Reads and composes the messages of the Agent Host Protocol (AHP), and names its channels.

Each message is JSON-RPC in one WebSocket text. A channel is named by a URI: the root, a session, the chat of a session.
VS Code makes the URI of a session's chat out of that of the session by itself, so this is done in the same way here.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, RawId
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.strict_parsing import parse_strictly
from acp_gateway.protocol.text.whole_values import parse_whole

Action: TypeAlias = dict[str, Any]
"""An action: what changes the state of a channel. Its `type` begins with the kind of the channel."""

ROOT: Final = "ahp-root://"
"""The channel of all agents."""

SUPPORTED: Final = ("^1.0.0", "^0.9.0")
"""The versions that are spoken, as a client is told them when it offers none of these."""

SESSION_NOT_FOUND: Final = -32001
PROVIDER_NOT_FOUND: Final = -32002
SESSION_EXISTS: Final = -32003
UNSUPPORTED_VERSION: Final = -32005
NOT_FOUND: Final = -32008
DENIED: Final = -32009
CONFLICT: Final = -32011

VALUES: Final = 2048
"""Maximum values in a part of an agent's message that is read value by value: content, a plan, a form."""

CLIENT_VALUES: Final = 32 * 1024
"""Maximum values in a message of a client: the tools that VS Code offers have some thousands."""

_VERSION: Final = re.compile(r"(?:1\.[0-9]{1,6}|0\.9)\.[0-9]{1,6}")
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9._-][A-Za-z0-9._~-]*")
_CHAT: Final = "ahp-chat://default/"
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
SESSION_URI: Final = re.compile(r"([a-z][a-z0-9+.-]{0,63}):/([A-Za-z0-9._~-]{1,1400})")
"""The URI of a session: the provider of its agent, and an id without a character that a client may spell otherwise."""


def negotiate(offered: Iterable[object]) -> str | None:
    """Return the first offered version that is spoken; None if none is."""
    return next((it for it in offered if isinstance(it, str) and _VERSION.fullmatch(it)), None)


# Names


def session_uri(provider: str, session: str) -> str:
    """Return the URI of a session, by its name at the gateway."""
    return f"{provider}:/{segment(session)}"


def session_named(uri: str) -> str | None:
    """Return the name of the session of a URI that `session_uri` has returned; None if it can't have."""
    found = SESSION_URI.fullmatch(uri)
    return None if found is None else from_segment(found[2])


def segment(text: str) -> str:
    """Return a text as a segment of a path that no client spells otherwise."""
    return text if _PLAIN_ID.fullmatch(text) else "~" + _b64(text)


def from_segment(text: str) -> str | None:
    """Return the text of a segment; None if it is not one."""
    return text if text[:1] != "~" else _from_b64(text[1:])


def chat_uri(session: str) -> str:
    """Return the URI of the chat of a session, as VS Code makes it."""
    return _CHAT + _b64(session)


def session_of(channel: str) -> str | None:
    """Return the URI of the session that a channel, which may be that of its chat, belongs to; None for others."""
    session = _from_b64(channel.removeprefix(_CHAT)) if channel.startswith(_CHAT) else channel
    return session if session is not None and SESSION_URI.fullmatch(session) else None


def is_chat(channel: str) -> bool:
    """Return True for the channel of a chat."""
    return channel.startswith(_CHAT)


def file_uri(path: str) -> str:
    """Return the URI of a file."""
    return "file://" + quote(path, errors="surrogateescape")


def iso(time: float) -> str:
    """Return a time in milliseconds since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def provider_names(agents: Iterable[str], known: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the provider of each agent: a scheme of URIs. Agents whose names differ too little get a number.

    `known` has those of earlier calls, which stay as they were.
    """
    names = dict(known)
    for agent in agents:
        if agent in names:
            continue
        plain = re.sub(r"[^a-z0-9+.-]", "-", agent.lower())
        plain = plain if _SCHEME.fullmatch(plain) else f"a-{plain}"
        number, name, taken = 1, plain, {*names.values(), "file", "http", "https", "ws", "wss"}
        while name in taken:
            number += 1
            name = f"{plain}-{number}"
        names[agent] = name
    return names


def _b64(text: str) -> str:
    return urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _from_b64(text: str) -> str | None:
    try:
        found = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("utf-8", "surrogatepass")
    except (NotBase64, ValueError):
        return None
    # One spelling alone.
    return found if _b64(found) == text else None


# Values


def has_many(text: bytes, most: int) -> bool:
    """Return True if a JSON text has more than so many values. Each takes a step in Python; a long string takes one."""
    return text.count(b",") >= most and _match_many(most)(text) is not None


@lru_cache
def _match_many(commas: int) -> Callable[[bytes], object]:
    """Return what matches a text with so many commas outside its strings."""
    string = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    return re.compile(rb'(?:[^",]*+(?:%b[^",]*+)*+,){%d}+' % (string, commas), re.DOTALL).match


def value_of(text: bytes | msgspec.Raw, most: int = VALUES, instead: Any = None) -> Any:
    """Return the value of a JSON text of an agent, which may have halves of characters.

    It is None for a text that can't be read, and `instead` for one that has more than so many values.
    """
    text = bytes(text)
    if not text:
        return None
    return instead if has_many(text, most) else parse_whole(text)


# From a client


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A message of a client: a request, or a notification, which gets no response."""

    method: str
    params: Mapping[str, Any]
    id: RawId | None = None
    """None for a notification."""
    size: int = 0
    """Bytes of the message."""

    @property
    def channel(self) -> str:
        """The channel that it names; that of the root without one, as VS Code leaves it out."""
        return text(self.params, "channel") or ROOT

    def result(self, value: Any) -> bytes | None:
        """Return the response with this result, or with this JSON text; None for a notification."""
        text = value if isinstance(value, bytes) else jsonrpc.encode(value)
        return None if self.id is None else b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self.id, text)

    def error(self, code: int, why: str, data: Any = None) -> bytes | None:
        """Return the response with this error; None for a notification."""
        return None if self.id is None else jsonrpc.error(self.id, code, why, data)


class Refused(Exception):
    """A message that gets an error: `reply` is that response, None for a notification."""

    def __init__(self, reply: bytes | None) -> None:
        self.reply = reply
        super().__init__()


def read(text: bytes, most: int) -> Call | None:
    """Read a message of a client; None for a response, as nothing is asked of clients. Raises `Refused`.

    `most` is the maximum of bytes of a request. What is dispatched may be larger: a prompt, or a client's tools.
    """
    try:
        message, repeated = parse_strictly(text)
    except InvalidMessage as error:
        raise Refused(jsonrpc.error(jsonrpc.NO_ID, error.code, str(error))) from None
    if message.kind is Kind.RESPONSE:
        return None
    call = Call(message.method, {}, message.id if message.kind is Kind.REQUEST else None, len(text))
    raw, code, why = lookup.raw_params(message), jsonrpc.INVALID_PARAMS, ""
    if call.id is not None and len(call.id) > jsonrpc.ID_SIZE:
        why = f"an id has at most {jsonrpc.ID_SIZE} bytes"
        raise Refused(jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why))
    if repeated is not None:
        code, why = jsonrpc.INVALID_REQUEST, f"the member {repeated!r:.80} is repeated"
    elif call.id is not None and call.size > most:
        why = f"{call.method:.80} has at most session_request_size ({most}) bytes"
    elif has_many(raw, CLIENT_VALUES):
        why = f"params have at most {CLIENT_VALUES} values"
    else:
        try:
            params = msgspec.json.decode(raw or b"{}")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            params = None
        if isinstance(params, dict):
            return replace(call, params=params)
        why = "params must be an object, whose texts have no half characters"
    raise Refused(call.error(code, why))


def text(members: Mapping[str, Any], name: str) -> str:
    """Return a member that is a string; "" for anything else."""
    value = members.get(name)
    return value if isinstance(value, str) else ""


def object_in(members: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a member that is an object; an empty one for anything else."""
    value = members.get(name)
    return value if isinstance(value, dict) else {}


def list_in(members: Mapping[str, Any], name: str) -> list[Any]:
    """Return a member that is an array; an empty one for anything else."""
    value = members.get(name)
    return value if isinstance(value, list) else []


# To a client


def notification(method: str, **params: Any) -> bytes:
    """Compose a notification of the root channel."""
    return jsonrpc.notification(method, {"channel": ROOT, **params})


@dataclass(slots=True)
class Envelopes:
    """The actions that one client was told, in one order over all its channels.

    The latest stay, up to `most` bytes, for a client whose connection was lost.
    """

    client_id: str
    most: int
    last: int = 0
    """The number of the last one."""
    size: int = 0
    """Bytes of those that stay."""
    _kept: deque[bytes] = field(default_factory=deque)

    def add(self, channel: str, action: Action, client_seq: object = None) -> bytes:
        """Number an action, and return its message. `client_seq` is the client's own number of what it dispatched."""
        self.last += 1
        envelope = self._envelope(channel, action, client_seq)
        self._kept.append(envelope)
        self.size += len(envelope)
        while self.size > self.most:
            self.size -= len(self._kept.popleft())
        return _ACTION % envelope

    def rejection(self, channel: str, action: Action, client_seq: object, why: str) -> bytes:
        """Return the message that refuses what the client dispatched; it has no number of its own."""
        return _ACTION % self._envelope(channel, action, client_seq, {"rejectionReason": why})

    def since(self, seen: object) -> list[bytes] | None:
        """Return the envelopes after a number; None if some are not kept any more, or the number is unknown."""
        if type(seen) is not int or not self.last - len(self._kept) <= seen <= self.last:
            return None
        return list(self._kept)[len(self._kept) - (self.last - seen) :]

    def forget(self) -> None:
        """Keep none of them: the client starts again from snapshots."""
        self._kept.clear()
        self.size = 0

    def _envelope(self, channel: str, action: Action, client_seq: object, more: Mapping[str, Any] = {}) -> bytes:
        about: dict[str, Any] = {"channel": channel, "action": action, "serverSeq": self.last, **more}
        if client_seq is not None:
            about["origin"] = {"clientId": self.client_id, "clientSeq": client_seq}
        return jsonrpc.encode(about)


_ACTION: Final = b'{"jsonrpc":"2.0","method":"action","params":%b}'
