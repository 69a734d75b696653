"""A JSON-RPC message: the envelope, read once, over bytes that stay verbatim.

`parse` looks at the top of a message and never builds the rest of it. Ids keep the text they were spelled with, because
`1`, `"1"`, `1.0` and `1e0` are four ids that a Python dict would take for fewer; so does everything that is passed on.

msgspec checks the whole text as strictly as RFC 8259 asks, with two exceptions that are handled here. It doesn't look
at the UTF-8 inside of what it skips, and it rejects the escape of a lone surrogate (`"\\ud83d"`), which agents
written in JavaScript do send when a chunk of their output cuts an emoji in two.
"""

import enum
import re
from collections.abc import Iterator
from typing import Any, Final, NewType

import msgspec

from acp_gateway.protocol import spans

RawId = NewType("RawId", bytes)
"""An id as the JSON text that a peer spelled it with: `b'7'`, `b'"7"'`, `b'null'`."""

NO_ID: Final = RawId(b"null")

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
AUTH_REQUIRED: Final = -32000
REQUEST_CANCELLED: Final = -32800


class Kind(enum.Enum):
    """The three shapes of a message."""

    REQUEST = enum.auto()
    NOTIFICATION = enum.auto()
    RESPONSE = enum.auto()


class Message(msgspec.Struct, frozen=True):
    """A valid message."""

    text: bytes
    """All of it, verbatim."""
    kind: Kind
    id: RawId
    """`NO_ID` for a notification."""
    method: str
    """Empty for a response."""
    error: bool = False
    """Whether a response is an error."""


class InvalidMessage(ValueError):
    """A text that is no message: the code and the words that its sender is answered with, under the id null."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class _Envelope(msgspec.Struct):
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_ESCAPE = re.compile(rb"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_ID_START = frozenset(b'"-0123456789n')


def parse(text: bytes) -> Message:
    """Read the envelope of one message.

    Raises:
        InvalidMessage: `-32700` for what is not JSON in UTF-8, `-32600` for JSON that is no request, notification or
        response.
    """
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessage(PARSE_ERROR, f"not UTF-8 at byte {error.start}") from None
    try:
        envelope = _decode_envelope(text)
    except msgspec.ValidationError:
        kind = "an array; batches are not part of ACP" if text.lstrip()[:1] == b"[" else "not an object"
        raise InvalidMessage(INVALID_REQUEST, f"a message must be an object, this is {kind}") from None
    except msgspec.DecodeError as error:
        envelope = _decode_with_surrogates(text, error)
    except RecursionError:
        raise InvalidMessage(PARSE_ERROR, "nested too deeply") from None
    return _classify(text, envelope)


def _decode_with_surrogates(text: bytes, error: msgspec.DecodeError) -> _Envelope:
    """Decode a text that may have failed because of its surrogate escapes alone, with harmless ones instead."""

    def harmless(escape: re.Match[bytes]) -> bytes:
        return rb"\u0020" if len(escape[0]) > 2 else escape[0]

    try:
        _decode_envelope(_ESCAPE.sub(harmless, text))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidMessage(PARSE_ERROR, str(error)) from None
    values = {
        spans.string_value(member.name): msgspec.Raw(text[member.start : member.end]) for member in spans.members(text)
    }
    return _Envelope(**{name: values[name] for name in _Envelope.__struct_fields__ if name in values})


def _classify(text: bytes, envelope: _Envelope) -> Message:
    raw_id = envelope.id
    if raw_id is not msgspec.UNSET:
        id_text = RawId(bytes(raw_id))
        if id_text[0] not in _ID_START:
            raise InvalidMessage(INVALID_REQUEST, "an id must be a string, a number or null")
    if envelope.method is not msgspec.UNSET:
        raw_method = bytes(envelope.method)
        if raw_method[0] != 0x22:
            raise InvalidMessage(INVALID_REQUEST, "method must be a string")
        method = spans.string_value(raw_method) if b"\\" in raw_method else raw_method[1:-1].decode()
        if raw_id is msgspec.UNSET:
            return Message(text, Kind.NOTIFICATION, NO_ID, method)
        return Message(text, Kind.REQUEST, id_text, method)
    if raw_id is msgspec.UNSET or (envelope.result is msgspec.UNSET and envelope.error is msgspec.UNSET):
        raise InvalidMessage(INVALID_REQUEST, "neither a request nor a notification nor a response")
    return Message(text, Kind.RESPONSE, id_text, "", envelope.error is not msgspec.UNSET)


def with_id(message: Message, new_id: RawId) -> bytes:
    """The message's text under another id; nothing else of it changes."""
    at = spans.find(message.text, "id")
    assert at is not None
    return spans.splice(message.text, [(*at, new_id)])


def text_at(message: bytes, *path: str) -> str | None:
    """The string at a member path of a message, None where there is none."""
    at = spans.find(message, *path)
    if at is None or message[at[0]] != 0x22:
        return None
    return spans.string_value(message[at[0] : at[1]])


def raw_at(message: bytes, *path: str) -> bytes | None:
    """The JSON text of the value at a member path of a message, None where there is none."""
    at = spans.find(message, *path)
    return None if at is None else message[at[0] : at[1]]


def is_id(text: bytes) -> bool:
    """Whether the text of a JSON value may be an id."""
    return text[0] in _ID_START


def result(to: RawId, value: Any) -> bytes:
    """A response with a result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (to, msgspec.json.encode(value))


def error(to: RawId, code: int, message: str, data: Any = None) -> bytes:
    """A response with an error; `data` is left out where it is None."""
    body = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to, msgspec.json.encode(body))


def notification(method: str, params: Any) -> bytes:
    """A notification."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params})


class OpenRequest(msgspec.Struct, frozen=True):
    """A request that waits for its response."""

    id: RawId
    """As its sender spelled it."""
    method: str
    session: str | None = None


class OpenRequests:
    """The requests of one peer that the other has not answered yet.

    Answers are found by the id's text. A peer whose parser spells numbers its own way (`1e2` comes back as `100`,
    2^63 as 9223372036854776000) or unescapes a string is understood too: then by value, the oldest first.
    """

    def __init__(self) -> None:
        self._by_text: dict[bytes | str, list[OpenRequest]] = {}

    def __contains__(self, raw: RawId) -> bool:
        return _key(raw) in self._by_text

    def __iter__(self) -> Iterator[OpenRequest]:
        return (request for same in self._by_text.values() for request in same)

    def __len__(self) -> int:
        return sum(map(len, self._by_text.values()))

    def add(self, request: OpenRequest) -> None:
        """A request was passed on."""
        self._by_text.setdefault(_key(request.id), []).append(request)

    def take(self, raw: RawId) -> OpenRequest | None:
        """An answer came: the request it is for, not open any more; None where nobody asked."""
        key = self._find(raw)
        if key is None:
            return None
        same = self._by_text[key]
        request = same.pop(0)
        if not same:
            del self._by_text[key]
        return request

    def clear(self) -> list[OpenRequest]:
        """Forget all and return them, the oldest first."""
        requests = list(self)
        self._by_text.clear()
        return requests

    def _find(self, raw: RawId) -> bytes | str | None:
        key = _key(raw)
        if key in self._by_text:
            return key
        if isinstance(key, str) or raw == NO_ID:
            return None
        number = float(raw)
        for other in self._by_text:
            if isinstance(other, bytes) and other != NO_ID and float(other) == number:
                return other
        return None


def _key(raw: RawId) -> bytes | str:
    """What makes two ids the same: the text of a number, the value of a string."""
    return spans.string_value(raw) if raw[0] == 0x22 else raw
