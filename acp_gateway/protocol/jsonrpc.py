"""A JSON-RPC message: the envelope, read once, over bytes that stay verbatim.

`parse` looks at the top of a message and never builds the rest of it. Ids keep the text they were spelled with, because
`1`, `"1"`, `1.0` and `1e0` are four ids that a Python dict would take for fewer; so does everything that is passed on.

msgspec checks the whole text as strictly as RFC 8259 asks, with two exceptions that are handled here. It doesn't look
at the UTF-8 inside of what it skips, and it rejects the escape of a lone surrogate (`"\\ud83d"`), which agents
written in JavaScript do send when a chunk of their output cuts an emoji in two. `spans` knows how to read on then.

The sender decides how much a message holds, and the event loop does nothing else while it is read. So nothing here is
built from an unlimited number of parts.
"""

import enum
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, NewType, TypeAlias, TypeVar

import msgspec

from acp_gateway.protocol import methods, spans
from acp_gateway.protocol.spans import TooMany

_T = TypeVar("_T")

RawId = NewType("RawId", bytes)
"""An id as the JSON text that a peer spelled it with: `b'7'`, `b'"7"'`, `b'null'`."""

IdKey: TypeAlias = bytes | str
"""Key under which two ids of one peer are the same, see `id_key`."""

NO_ID: Final = RawId(b"null")

ID_SIZE: Final = 1024
"""Bytes of an id at most; a UUID has 38, and each is remembered until its answer comes."""

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
    """True for a response that is an error."""
    session: str | None = None
    """`params.sessionId`, where it is a string."""
    update: str | None = None
    """`params.update.sessionUpdate`, where it is a string: the kind of a `session/update`."""
    params: Mapping[str, bytes | msgspec.Raw] | None = None
    """The members of `params` as they are, once they were read, see `params_of`; mostly views of its text."""


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


# The collector need not know what holds nothing but texts; it would look through thousands of these. Another member
# than these is rare, and each of them is looked at: see `_look_again`.
class Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    jsonrpc: Literal["2.0"] | None = None
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: Params | msgspec.UnsetType | None = msgspec.UNSET
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


class _Top(msgspec.Struct, gc=False):
    params: msgspec.Raw = _ABSENT


decode_envelope = msgspec.json.Decoder(Envelope).decode
"""The envelope of a text in JSON that is no deeper than `is_shallow` says. Raises `DecodeError` or `RecursionError`;
`parse` knows what that means."""
_decode_outline = msgspec.json.Decoder(_Outline).decode
_decode_session = msgspec.json.Decoder(str | None).decode
_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_top = msgspec.json.Decoder(_Top).decode
_ENVELOPE = frozenset(("jsonrpc", "id", "method", "params", "result", "error"))
_ID_START = frozenset(b'"-0123456789n')
_ID_NAME = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*')
# The name of an id before which there is no other member, or only one that is a plain string.
_ID_FIRST = re.compile(
    rb'[ \t\n\r]*\{[ \t\n\r]*(?:"[^"\\]*"[ \t\n\r]*:[ \t\n\r]*"[^"\\]*"[ \t\n\r]*,[ \t\n\r]*)?' + _ID_NAME.pattern
)
_match_number = re.compile(rb"[0-9]{1,18}(?![0-9.eE])").match
# What every escape of one of the letters of "id" begins with.
_HIDDEN_NAME = rb"\u006"
# Colons up to which a text may be taken apart into a dict, and how many bytes may hold a further one: what it holds is
# many times as large as short members are.
_FEW_COLONS = 512
_COLON_EVERY = 48
# Brackets up to which a text is as shallow as any, and how much deeper than anything else the depth of others is tried:
# Python's own calls count as levels, and what was read once must be readable wherever it is looked into later.
_FEW_BRACKETS = 200
_RESERVE = 150
# Characters of a number that was minted here, at most, in whatever spelling.
_LONGEST_NUMBER = 30


def parse(text: bytes) -> Message:
    """Read the envelope of one message.

    Raises:
        InvalidMessage: `-32700` for what is not JSON in UTF-8 or is nested hundreds of levels deep, `-32600` for JSON
        that is no request, notification or response, or that a lenient parser might take for another one.
    """
    _check_utf8(text)
    try:
        envelope = decode_envelope(text) if is_shallow(text) else _deep_down(decode_envelope, text)
    except (msgspec.DecodeError, RecursionError):
        return _classify(text, _look_again(text))
    if len(text) > spans.MEMBERS and text.count(b":") > spans.MEMBERS:
        # All of them that are at the top belong there, and may be there any number of times.
        _count_members(text)
    return _classify(text, envelope)


def parse_strictly(text: bytes) -> tuple[Message, str | None]:
    """As `parse`, and the name of a member that is there twice: see `repeated_member`.

    A message may be of megabytes, and a single pass tells both where there is no space between its members.
    """
    _check_utf8(text)
    try:
        message = _from_outline(text, _decode_outline(text)) if is_shallow(text) and _is_sparse(text) else None
    except (msgspec.DecodeError, RecursionError):
        message = None
    if message is not None:
        return message, None
    return parse(text), repeated_member(text)


def _count_members(text: bytes) -> None:
    try:
        for _ in spans.members(text):
            pass
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message: {error}") from None


def is_shallow(text: bytes) -> bool:
    """Return True if a text can't be nested deeply; False says nothing."""
    return len(text) < 2 * _FEW_BRACKETS or text.count(b"[") + text.count(b"{") <= _FEW_BRACKETS


def _deep_down(decode: Callable[[bytes], _T], text: bytes, calls: int = _RESERVE) -> _T:
    """Decode below `calls` further levels of Python's stack."""
    return _deep_down(decode, text, calls - 1) if calls else decode(text)


def _is_sparse(text: bytes) -> bool:
    """Return True if a text can't have many members for its size."""
    return len(text) <= _FEW_COLONS or text.count(b":") <= _FEW_COLONS + len(text) // _COLON_EVERY


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
        None,
        outline.id or msgspec.UNSET,
        outline.method or msgspec.UNSET,
        msgspec.UNSET if params is None else Params(session),
        outline.result or msgspec.UNSET,
        outline.error or msgspec.UNSET,
    )
    if params is not None and len(params) > spans.MEMBERS:
        raise InvalidMessage(INVALID_REQUEST, f"params have at most {spans.MEMBERS} members")
    # Messages may wait for long, and many members take many times the bytes that count as waiting.
    return _classify(text, envelope, params if params is not None and len(params) <= methods.MEMBERS else None)


def _check_utf8(text: bytes) -> None:
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessage(PARSE_ERROR, f"not UTF-8 at byte {error.start}") from None


def _look_again(text: bytes) -> Envelope:
    """Read the envelope of a text that msgspec refuses: it may be no JSON, no object, have other members, or hold lone
    surrogates."""
    plain = spans.structure(text)
    try:
        if is_shallow(plain):
            _check(plain)
        else:
            _deep_down(_check, plain)
    except msgspec.DecodeError as error:
        raise InvalidMessage(PARSE_ERROR, f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidMessage(PARSE_ERROR, "nested too deeply") from None
    first = text[spans.skip_space(text, 0)]
    if first != ord("{"):
        kind = "an array; batches are not part of ACP" if first == ord("[") else "not an object"
        raise InvalidMessage(INVALID_REQUEST, f"a message must be an object, this is {kind}")
    try:
        top = _spans_in(text, plain, 0)
        for name in top:
            if name not in _ENVELOPE and name.partition("\0")[0].casefold() in _ENVELOPE:
                why = f"the member {name!r:.80} is not one of a message's, and some would take it for one"
                raise InvalidMessage(INVALID_REQUEST, why)
        params = top.get("params")
        members = _spans_in(text, plain, None if params is None else params[0])
        update = members.get("update")
        kind_of_update = _spans_in(text, plain, None if update is None else update[0]).get("sessionUpdate")
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message or its params: {error}") from None
    return Envelope(
        id=_raw(_cut(text, top.get("id"))),
        method=_method(_cut(text, top.get("method"))),
        params=msgspec.UNSET
        if params is None
        else Params(_string(_cut(text, members.get("sessionId"))), Update(_string(_cut(text, kind_of_update)))),
        result=_raw(_cut(text, top.get("result"))),
        error=_raw(_cut(text, top.get("error"))),
    )


def _spans_in(text: bytes, plain: bytes, start: int | None) -> dict[str, tuple[int, int]]:
    """Return where the values of the object at `start` are, by name; nothing where there is no object.

    `plain` is the text's `structure`. Raises `TooMany`.
    """
    if start is None or text[spans.skip_space(text, start)] != ord("{"):
        return {}
    return {spans.string_value(name): (at, end) for name, at, end in spans.members(text, start, plain=plain)}


def _cut(text: bytes, span: tuple[int, int] | None) -> bytes | None:
    return None if span is None else text[span[0] : span[1]]


def _members_in(text: bytes) -> dict[str, bytes]:
    """The members of an object. Raises `TooMany`."""
    return {spans.string_value(name): text[start:end] for name, start, end in spans.members(text)}


def _raw(value: bytes | None) -> msgspec.Raw | msgspec.UnsetType:
    return msgspec.UNSET if value is None else msgspec.Raw(value)


def _string(raw: bytes | None) -> str | None:
    return spans.string_value(raw) if raw is not None and raw[:1] == b'"' else None


def _method(raw: bytes | None) -> str | msgspec.UnsetType:
    if raw is None:
        return msgspec.UNSET
    if raw[0] != ord('"'):
        raise InvalidMessage(INVALID_REQUEST, "method must be a string")
    return spans.string_value(raw)


def _classify(text: bytes, envelope: Envelope, members: Mapping[str, msgspec.Raw] | None = None) -> Message:
    message_id, kind = NO_ID, Kind.NOTIFICATION
    if envelope.id is not msgspec.UNSET:
        message_id, kind = RawId(bytes(envelope.id)), Kind.REQUEST
        if message_id[0] not in _ID_START:
            raise InvalidMessage(INVALID_REQUEST, "an id must be a string, a number or null")
    method, params, result, error = envelope.method, envelope.params, envelope.result, envelope.error
    if method is not msgspec.UNSET:
        if result is not msgspec.UNSET or error is not msgspec.UNSET:
            raise InvalidMessage(INVALID_REQUEST, "a message with a method has no result and no error")
        if params is None or params is msgspec.UNSET:
            return Message(text, kind, message_id, method)
        update = None if params.update is None else params.update.kind
        return Message(text, kind, message_id, method, False, params.session, update, members)
    if envelope.id is msgspec.UNSET or (result is msgspec.UNSET and error is msgspec.UNSET):
        raise InvalidMessage(INVALID_REQUEST, "neither a request nor a notification nor a response")
    if params is not msgspec.UNSET:
        raise InvalidMessage(INVALID_REQUEST, "a response has no params")
    # Peers with JSON-RPC 1.0 in their bones send `"error": null` beside a result.
    failed = error is not msgspec.UNSET and bytes(error) != b"null"
    if failed and result is not msgspec.UNSET and bytes(result) != b"null":
        raise InvalidMessage(INVALID_REQUEST, "a response has a result or an error, and not both")
    return Message(text, Kind.RESPONSE, message_id, "", failed)


def read_unreadable_id(text: bytes) -> RawId | None:
    """Return the id of a response that is no valid message, so that its request can fail; None where it can't be told.

    Programs in Python and JavaScript write `Infinity` and `NaN`, which no other parser reads.
    """
    try:
        readable = text.replace(b"-Infinity", b"-1e000000").replace(b"Infinity", b"1e000000").replace(b"NaN", b"1e0")
        message = parse(readable)
        return message.id if message.kind is Kind.RESPONSE else None
    except InvalidMessage:
        first = _ID_FIRST.match(text)
        if first is None or (b'"result"' not in text and b'"error"' not in text) or b'"method"' in text:
            return None
        number = _match_number(text, first.end())
        return None if number is None else RawId(number[0])


def with_id(message: Message, new_id: RawId, *, unique: bool = False) -> bytes:
    """Return the message's text under another id; nothing else of it changes.

    `unique` says that no member is repeated, so that no second id is looked for.
    """
    text = message.text
    start = _id_at_once(text, unique=unique)
    if start is None:
        at = spans.find(text, "id")
        assert at is not None  # `parse` has counted the members.
        start = at[0]
    view = memoryview(text)
    return b"".join((view[:start], new_id, view[start + len(message.id) :]))


def _id_at_once(text: bytes, *, unique: bool) -> int | None:
    """Return where the id of a message begins, None where only a walk finds it.

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


def text_at(message: bytes | msgspec.Raw, *path: str) -> str | None:
    """Return the string at a member path of a message, None where there is none."""
    return _string(raw_at(message, *path))


def raw_at(message: bytes | msgspec.Raw, *path: str) -> bytes | None:
    """Return the JSON text of the value at a member path of a message, None where there is none.

    There is none as well within an object that has more than `spans.MEMBERS` members.
    """
    value = message
    for depth, name in enumerate(path):
        members = _decoded_members(value)
        if members is None:
            # One walk finds the rest of the path.
            text = bytes(value)
            return _cut(text, spans.find(text, *path[depth:]))
        found = members.get(name)
        if found is None:
            return None
        value = found
    return bytes(value)


def members_of(value: bytes | msgspec.Raw) -> Mapping[str, bytes | msgspec.Raw]:
    """Return the members of an object, none of anything else; mostly they are views and not copies.

    There are none as well of an object that has more than `spans.MEMBERS` members.
    """
    members = _decoded_members(value)
    if members is not None:
        return members
    text = bytes(value)
    if text[spans.skip_space(text, 0)] != ord("{"):
        return {}
    try:
        return _members_in(text)
    except TooMany:
        return {}


def _decoded_members(value: bytes | msgspec.Raw) -> Mapping[str, bytes | msgspec.Raw] | None:
    """Return the members of an object, none of anything else, None where only a walk finds them.

    That is where there may be more than `spans.MEMBERS`, or is a lone surrogate.
    """
    try:
        if len(value) <= spans.MEMBERS or bytes(value).count(b":") <= spans.MEMBERS:
            return _decode_members(value)
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, RecursionError):
        pass
    return None


def has_readable_result(response: Message) -> bool:
    """Return True if the result of a response has no more members than are looked into."""
    text = response.text
    if len(text) <= spans.MEMBERS or text.count(b":") <= spans.MEMBERS:
        return True
    at = spans.find(text, "result")
    try:
        return at is None or text[at[0]] != ord("{") or sum(1 for _ in spans.members(text, at[0])) >= 0
    except TooMany:
        return False


def params_of(message: Message) -> Mapping[str, bytes | msgspec.Raw]:
    """Return the members of a message's `params`, where that is an object; they are kept."""
    found = message.params
    if found is None:
        params = raw_params(message)
        found = members_of(params) if params else {}
        if len(found) <= methods.MEMBERS:
            msgspec.structs.force_setattr(message, "params", found)
    return found


def raw_params(message: Message) -> bytes:
    """Return the JSON text of a message's `params`, empty where there are none."""
    try:
        return bytes(_decode_top(message.text).params)
    except (msgspec.DecodeError, RecursionError):
        at = spans.find(message.text, "params")
        return b"" if at is None else message.text[at[0] : at[1]]


def param(message: Message, name: str, *path: str) -> bytes | None:
    """Return the JSON text of a member of a message's `params`, or at a path within it; None where there is none."""
    found = params_of(message).get(name)
    return None if found is None else raw_at(found, *path)


def text_param(message: Message, name: str, *path: str) -> str | None:
    """Return the string at a path of a message's `params`, None where there is none."""
    return _string(param(message, name, *path))


def members_at(message: bytes | msgspec.Raw, *path: str) -> dict[str, bytes]:
    """The members of the object at a member path of a message, as JSON text; none where there is no object."""
    raw = raw_at(message, *path) if path else message
    return {} if raw is None else {name: bytes(value) for name, value in members_of(raw).items()}


def elements_of(array: bytes, most: int = spans.ELEMENTS) -> list[bytes]:
    """Return the elements of an array, as JSON texts. Raises `TooMany` where there are more than `most`."""
    try:
        if array.count(b",") < most:
            return list(map(bytes, _decode_elements(array)))
    except (msgspec.DecodeError, RecursionError):
        pass  # A lone surrogate somewhere.
    return [array[start:end] for start, end in spans.elements(array, most=most)]


def compose(members: Mapping[str, bytes]) -> bytes:
    """Return the JSON text of an object with these members, which are JSON texts themselves."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode(name), text) for name, text in members.items())


def repeated_member(text: bytes) -> str | None:
    """As `spans.repeated_member`, of a valid message. Raises `InvalidMessage` where it has too many members."""
    try:
        return spans.repeated_member(text)
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message or its params: {error}") from None


def _compact_size(members: Mapping[str, msgspec.Raw]) -> int:
    """Bytes of an object with these members, each of them once, where there is no space between them.

    Two braces, and for each member two quotes, a colon and a comma, but for the last one's.
    """
    return 2 + 4 * len(members) - bool(members) + len("".join(members).encode()) + sum(map(len, members.values()))


def _are_alike(names: Collection[str]) -> bool:
    """Return True if some parsers take one of these names for another."""
    return len(names) > 1 and len(set(map(str.casefold, names))) != len(names)


def encode(value: Any) -> bytes:
    """The JSON text of what the gateway says itself, in ASCII: lone surrogates of a peer's are escapes there too."""
    return json.dumps(value, separators=(",", ":")).encode()


def result(to: RawId, value: Any) -> bytes:
    """Return a response with a result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (to, encode(value))


def error(to: RawId, code: int, message: str, data: Any = None) -> bytes:
    """Return a response with an error; `data` is left out where it is None."""
    body = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to, encode(body))


def notification(method: str, params: Any) -> bytes:
    """Return a notification."""
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def id_key(raw: RawId) -> IdKey:
    """Return the key of an id: the text of a number or of null, the value of a string.

    An id of more than `ID_SIZE` bytes is no other's, and is not remembered anywhere.
    """
    return spans.string_value(raw) if raw[0] == ord('"') and len(raw) <= ID_SIZE else raw
