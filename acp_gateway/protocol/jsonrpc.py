"""A JSON-RPC message: the envelope, read once, over bytes that stay verbatim.

`parse` looks at the top of a message and never builds the rest of it. Ids keep the text they were spelled with, because
`1`, `"1"`, `1.0` and `1e0` are four ids that a Python dict would take for fewer; so does everything that is passed on.

msgspec checks the whole text as strictly as RFC 8259 asks, with two exceptions that are handled here. It doesn't look
at the UTF-8 inside of what it skips, and it rejects the escape of a lone surrogate (`"\\ud83d"`), which agents
written in JavaScript do send when a chunk of their output cuts an emoji in two.
"""

import enum
import json
import re
from collections.abc import Collection, Mapping, Sized
from typing import Any, Final, NewType, TypeAlias

import msgspec

from acp_gateway.protocol import spans

RawId = NewType("RawId", bytes)
"""An id as the JSON text that a peer spelled it with: `b'7'`, `b'"7"'`, `b'null'`."""

IdKey: TypeAlias = bytes | str
"""What makes two ids of one peer the same: see `id_key`."""

NO_ID: Final = RawId(b"null")

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
AUTH_REQUIRED: Final = -32000
SESSION_NOT_FOUND: Final = -32002
REQUEST_CANCELLED: Final = -32800


class Kind(enum.Enum):
    """The three shapes of a message."""

    REQUEST = enum.auto()
    NOTIFICATION = enum.auto()
    RESPONSE = enum.auto()


class Message(msgspec.Struct, frozen=True, gc=False):
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
    session: str | None = None
    """`params.sessionId`, where it is a string."""
    update: str | None = None
    """`params.update.sessionUpdate`, where it is a string: the kind of a `session/update`."""
    params: Mapping[str, msgspec.Raw] | None = None
    """The members of `params` as they are, where reading the message has come upon them; they are views of its text."""


class InvalidMessage(ValueError):
    """A text that is no message: the code and the words that its sender is answered with, under the id null."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class Update(msgspec.Struct, gc=False):
    kind: str | None = msgspec.field(name="sessionUpdate", default=None)


class Params(msgspec.Struct, gc=False):
    session: str | None = msgspec.field(name="sessionId", default=None)
    update: Update | None = None


# The collector need not know what holds nothing but texts; it would look through thousands of these.
class Envelope(msgspec.Struct, gc=False):
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: Params | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_ABSENT: Final = msgspec.Raw(b"")


class _Outline(msgspec.Struct, gc=False):
    """All the members that a message has by JSON-RPC, and what is directly in `params`; what is empty is not there."""

    jsonrpc: msgspec.Raw = _ABSENT
    id: msgspec.Raw = _ABSENT
    method: str = ""
    params: dict[str, msgspec.Raw] | None = None
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


decode_envelope = msgspec.json.Decoder(Envelope).decode
"""The envelope of a text in JSON. Raises `DecodeError` or `RecursionError`; `parse` knows what that means."""
_decode_outline = msgspec.json.Decoder(_Outline).decode
_decode_session = msgspec.json.Decoder(str | None).decode
_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# A surrogate's escape: its backslash stands behind an even number of others, which are escaped ones themselves.
_SURROGATE = re.compile(rb"(?<!\\)((?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_ID_START = frozenset(b'"-0123456789n')
_ID_NAME = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*')
# The name of an id before which there is no other member, or only one that is a plain string.
_ID_FIRST = re.compile(
    rb'[ \t\n\r]*\{[ \t\n\r]*(?:"[^"\\]*"[ \t\n\r]*:[ \t\n\r]*"[^"\\]*"[ \t\n\r]*,[ \t\n\r]*)?' + _ID_NAME.pattern
)
# What every escape of one of the letters of "id" begins with.
_HIDDEN_NAME = rb"\u006"
# Members of `params` that are kept with a message, at most: methods have less than ten.
_FEW = 32
# Characters of a number that was minted here, at most, in whatever spelling.
_LONGEST_NUMBER = 30


def parse(text: bytes) -> Message:
    """Read the envelope of one message.

    Raises:
        InvalidMessage: `-32700` for what is not JSON in UTF-8 or is nested hundreds of levels deep, `-32600` for JSON
        that is no request, notification or response.
    """
    _check_utf8(text)
    try:
        envelope = decode_envelope(text)
    except (msgspec.DecodeError, RecursionError):
        envelope = _look_again(text)
    return _classify(text, envelope)


def parse_strictly(text: bytes) -> tuple[Message, str | None]:
    """As `parse`, and the name of a member that is there twice: see `repeated_member`.

    A message may be of megabytes, and a single pass tells both where there is no space between its members.
    """
    _check_utf8(text)
    try:
        message = _from_outline(text, _decode_outline(text))
    except (msgspec.DecodeError, RecursionError):
        message = None
    return (parse(text), repeated_member(text)) if message is None else (message, None)


def _from_outline(text: bytes, outline: _Outline) -> Message | None:
    """The message, None where its outline may leave something out or say it twice. May raise `DecodeError`.

    It is all there where its members, each of them once and with no space between them, make up the text.
    """
    # Two braces, and a comma behind each member but one.
    size = 1
    if outline.jsonrpc:
        size += len(b'"jsonrpc":,') + len(outline.jsonrpc)
    if outline.id:
        size += len(b'"id":,') + len(outline.id)
    if outline.method:
        # Where it is spelled with escapes or beyond ASCII, it takes more.
        size += len(b'"method":"",') + len(outline.method)
    if outline.result:
        size += len(b'"result":,') + len(outline.result)
    if outline.error:
        size += len(b'"error":,') + len(outline.error)
    params, session = outline.params, None
    if params is not None:
        # What kind of update it is, `parse` says.
        if "update" in params or _are_alike(params):
            return None
        size += len(b'"params":,') + _compact_size(params)
        if "sessionId" in params:
            session = _decode_session(params["sessionId"])
    if size != len(text):
        return None
    envelope = Envelope(
        outline.id or msgspec.UNSET,
        outline.method or msgspec.UNSET,
        None if params is None else Params(session),
        outline.result or msgspec.UNSET,
        outline.error or msgspec.UNSET,
    )
    # Messages may wait for long, and a million members take many times the bytes that count as waiting.
    return _classify(text, envelope, params if params is not None and len(params) <= _FEW else None)


def _check_utf8(text: bytes) -> None:
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessage(PARSE_ERROR, f"not UTF-8 at byte {error.start}") from None


def _look_again(text: bytes) -> Envelope:
    """Read the envelope of a text that msgspec refuses: it may be no JSON, no object, or hold lone surrogates."""
    try:
        _check(_SURROGATE.sub(rb"\1\\u0020", text))
    except msgspec.DecodeError as error:
        raise InvalidMessage(PARSE_ERROR, f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidMessage(PARSE_ERROR, "nested too deeply") from None
    first = text[spans.skip_space(text, 0)]
    if first != ord("{"):
        kind = "an array; batches are not part of ACP" if first == ord("[") else "not an object"
        raise InvalidMessage(INVALID_REQUEST, f"a message must be an object, this is {kind}")
    values = {spans.string_value(name): msgspec.Raw(text[start:end]) for name, start, end in spans.members(text)}
    update = Update(_string_at(text, "params", "update", "sessionUpdate"))
    return Envelope(
        id=values.get("id", msgspec.UNSET),
        method=_method(values.get("method")),
        params=Params(_string_at(text, "params", "sessionId"), update),
        result=values.get("result", msgspec.UNSET),
        error=values.get("error", msgspec.UNSET),
    )


def _method(raw: msgspec.Raw | None) -> str | msgspec.UnsetType:
    if raw is None:
        return msgspec.UNSET
    text = bytes(raw)
    if text[0] != ord('"'):
        raise InvalidMessage(INVALID_REQUEST, "method must be a string")
    return spans.string_value(text)


def _string_at(text: bytes, *path: str) -> str | None:
    at = spans.find(text, *path)
    return None if at is None or text[at[0]] != ord('"') else spans.string_value(text[at[0] : at[1]])


def _classify(text: bytes, envelope: Envelope, members: Mapping[str, msgspec.Raw] | None = None) -> Message:
    message_id, kind = NO_ID, Kind.NOTIFICATION
    if envelope.id is not msgspec.UNSET:
        message_id, kind = RawId(bytes(envelope.id)), Kind.REQUEST
        if message_id[0] not in _ID_START:
            raise InvalidMessage(INVALID_REQUEST, "an id must be a string, a number or null")
    method, params = envelope.method, envelope.params
    if method is not msgspec.UNSET:
        if params is None:
            return Message(text, kind, message_id, method)
        update = None if params.update is None else params.update.kind
        return Message(text, kind, message_id, method, False, params.session, update, members)
    if envelope.id is msgspec.UNSET or (envelope.result is msgspec.UNSET and envelope.error is msgspec.UNSET):
        raise InvalidMessage(INVALID_REQUEST, "neither a request nor a notification nor a response")
    # Peers with JSON-RPC 1.0 in their bones send `"error": null` beside a result.
    failed = envelope.error is not msgspec.UNSET and bytes(envelope.error) != b"null"
    return Message(text, Kind.RESPONSE, message_id, "", failed)


def with_id(message: Message, new_id: RawId, *, unique: bool = False) -> bytes:
    """The message's text under another id; nothing else of it changes.

    `unique` says that no member of it is there twice, so that nobody need look for another id.
    """
    text = message.text
    start = _id_at_once(text, unique=unique)
    if start is None:
        at = spans.find(text, "id")
        assert at is not None
        start = at[0]
    view = memoryview(text)
    return b"".join((view[:start], new_id, view[start + len(message.id) :]))


def _id_at_once(text: bytes, *, unique: bool) -> int | None:
    """Where the id of a message that has one stands, None where that takes more than a look.

    Where it is the first member, or the second, nothing before it can contain it. Where its name is there once, and
    none can be hidden behind an escape, that is the place: inside of a string its quotes would be escaped.
    """
    member = _ID_FIRST.match(text) if unique else None
    if member is None and text.count(b'"id"') == 1 and _HIDDEN_NAME not in text:
        member = _ID_NAME.search(text)
    return None if member is None else member.end()


def id_number(raw: RawId) -> int | None:
    """The whole number that an id is, however it is spelled (`7`, `7.0`, `70e-1`); None for any other.

    For ids that were minted here: a peer may echo one in a spelling of its own.
    """
    if raw.isdigit():
        return int(raw) if len(raw) <= _LONGEST_NUMBER else None
    if raw[0] not in b"-0123456789" or len(raw) > _LONGEST_NUMBER:
        return None
    number = float(raw)
    return int(number) if number.is_integer() else None


def text_at(message: bytes, *path: str) -> str | None:
    """The string at a member path of a message, None where there is none."""
    raw = raw_at(message, *path)
    return spans.string_value(raw) if raw is not None and raw[0] == ord('"') else None


def raw_at(message: bytes, *path: str) -> bytes | None:
    """The JSON text of the value at a member path of a message, None where there is none."""
    value: bytes | msgspec.Raw = message
    for name in path:
        try:
            found = _decode_members(value).get(name)
        except msgspec.ValidationError:
            return None
        except (msgspec.DecodeError, RecursionError):
            # A lone surrogate somewhere: slower, and without msgspec.
            at = spans.find(message, *path)
            return None if at is None else message[at[0] : at[1]]
        if found is None:
            return None
        value = found
    return bytes(value)


def members_of_params(text: bytes) -> Mapping[str, bytes | msgspec.Raw]:
    """The members of a message's `params`, where that is an object; they are not copied, however large they are."""
    try:
        params = _decode_members(text).get("params")
        return {} if params is None else _decode_members(params)
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, RecursionError):
        # A lone surrogate somewhere: slower, and without msgspec.
        return members_at(text, "params")


def members_at(message: bytes, *path: str) -> dict[str, bytes]:
    """The members of the object at a member path of a message, as JSON text; none where there is no object."""
    raw = raw_at(message, *path) if path else message
    if raw is None:
        return {}
    try:
        return {name: bytes(value) for name, value in _decode_members(raw).items()}
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, RecursionError):
        # A lone surrogate somewhere: slower, and without msgspec.
        if raw[spans.skip_space(raw, 0)] != ord("{"):
            return {}
        return {spans.string_value(member.name): raw[member.start : member.end] for member in spans.members(raw)}


def elements_of(array: bytes) -> list[bytes]:
    """The elements of an array, as JSON texts."""
    try:
        return list(map(bytes, _decode_elements(array)))
    except (msgspec.DecodeError, RecursionError):
        # A lone surrogate somewhere: slower, and without msgspec.
        return [array[start:end] for start, end in spans.elements(array)]


def compose(members: Mapping[str, bytes]) -> bytes:
    """The JSON text of an object with these members, which are JSON texts themselves."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode(name), text) for name, text in members.items())


def repeated_member(text: bytes) -> str | None:
    """As `spans.repeated_member`, of a valid message, and fast where that is the usual answer, none.

    A walk through millions of brackets would keep everybody waiting. msgspec takes such a message apart at once; it
    doesn't tell of repeats, but where the members and what must stand between them account for every byte of an
    object, there is no room for one more.
    """
    top = _compact_members(text)
    if top is None:
        return spans.repeated_member(text)
    params = top.get("params")
    if params is None:
        params = next((value for name, value in top.items() if name.casefold() == "params"), None)
    if params is not None and memoryview(params)[0] == ord("{") and _compact_members(params) is None:
        return spans.repeated_member(text)
    return None


def _compact_members(text: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """The members of an object, None where one may be there twice, also in another case."""
    try:
        members = _decode_members(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if _compact_size(members) != len(text) or _are_alike(members) else members


def _compact_size(members: Mapping[str, Sized]) -> int:
    """Bytes of an object with these members, each of them once, where there is no space between them.

    Two braces, and for each member two quotes, a colon and a comma, but for the last one's.
    """
    return 2 + 4 * len(members) - bool(members) + len("".join(members).encode()) + sum(map(len, members.values()))


def _are_alike(names: Collection[str]) -> bool:
    """Whether there are parsers that take one of these names for another."""
    return len(names) > 1 and len(set(map(str.casefold, names))) != len(names)


def encode(value: Any) -> bytes:
    """The JSON text of what the gateway says itself, in ASCII: lone surrogates of a peer's are escapes there too."""
    return json.dumps(value, separators=(",", ":")).encode()


def result(to: RawId, value: Any) -> bytes:
    """A response with a result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (to, encode(value))


def error(to: RawId, code: int, message: str, data: Any = None) -> bytes:
    """A response with an error; `data` is left out where it is None."""
    body = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to, encode(body))


def notification(method: str, params: Any) -> bytes:
    """A notification."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def id_key(raw: RawId) -> IdKey:
    """What makes two ids the same: the text of a number or of null, the value of a string."""
    return spans.string_value(raw) if raw[0] == ord('"') else raw
