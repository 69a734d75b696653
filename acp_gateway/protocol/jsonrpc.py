"""Parses JSON-RPC messages: the envelope is read once, and the bytes stay verbatim.

`parse` reads the top level of a message and builds no objects for the rest. Ids keep their spelling: `1`, `"1"`, `1.0`
and `1e0` are four ids, but fewer keys of a Python dict.

msgspec checks the whole text as strictly as RFC 8259 requires, with two exceptions that are handled here. It does not
check the UTF-8 of skipped values, and it rejects the escape of a lone surrogate (`"\\ud83d"`), which agents written in
JavaScript send if a chunk of their output ends within an emoji. Such texts are read with `spans`; of a large one, a
copy without them is read (`surrogates.py`).

The sender determines the number of parts of a message, and the event loop does nothing else while it is read. So no
object here has an unlimited number of parts.
"""

import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NewType, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from acp_gateway.protocol.text import spans, surrogates
from acp_gateway.protocol.text.pairs import Entry, Pair
from acp_gateway.protocol.text.spans import TooMany

_T = TypeVar("_T")

RawId = NewType("RawId", bytes)
"""An id as JSON text, in the peer's spelling: `b'7'`, `b'"7"'`, `b'null'`."""

IdKey: TypeAlias = bytes | str
"""Key that is equal for equal ids of one peer, see `id_key`."""

NO_ID: Final = RawId(b"null")

ID_SIZE: Final = 1024
"""Maximum bytes of an id. A UUID has 38; each id is remembered until its response."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
AUTH_REQUIRED: Final = -32000
SESSION_NOT_FOUND: Final = -32002
REQUEST_CANCELLED: Final = -32800


class Kind(enum.Enum):
    """Kinds of messages."""

    REQUEST = enum.auto()
    NOTIFICATION = enum.auto()
    RESPONSE = enum.auto()


# Python 3.11 takes ten times as long to look up a member of an enumeration.
REQUEST: Final = Kind.REQUEST
NOTIFICATION: Final = Kind.NOTIFICATION
RESPONSE: Final = Kind.RESPONSE


class Message(msgspec.Struct, frozen=True, gc=False):
    """A valid message."""

    text: bytes
    """The whole message, verbatim."""
    kind: Kind
    id: RawId
    """`NO_ID` for a notification."""
    method: str
    """Empty for a response."""
    error: bool = False
    """True for an error response."""
    session: str | None = None
    """`params.sessionId`, if it is a string."""
    update: str | None = None
    """`params.update.sessionUpdate`, if it is a string: the kind of a `session/update`."""
    params: Mapping[str, bytes | msgspec.Raw] | None = None
    """The members of `params` as JSON texts, if they were read, see `lookup.params_of`; mostly views of `text`."""
    id_start: int = -1
    """Index of the id in `text`, if it is known; -1 says nothing."""
    pair: Pair | None = None
    """The message in both versions, if its text is of a pair."""

    @property
    def entry(self) -> Entry:
        """The message for clients of both versions."""
        return self.text if self.pair is None else self.pair

    @property
    def original(self) -> bytes | None:
        """The message of version 2 that clients of that version get in its place, if it is another one."""
        return None if self.pair is None or self.pair.is_same else self.pair.original


class InvalidMessage(ValueError):
    """A text that is not a message; code and message are those of the error response, which has the id null."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class Update(msgspec.Struct, gc=False):
    kind: str | None = msgspec.field(name="sessionUpdate", default=None)


class Params(msgspec.Struct, gc=False):
    session: str | None = msgspec.field(name="sessionId", default=None)
    update: Update | None = None


# Without `gc` because the garbage collector would traverse thousands of these, which refer to texts only. Messages with
# other members are rare; `_look_again` checks those members.
class Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    jsonrpc: Literal["2.0"] | None = None
    id: msgspec.Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Params | UnsetType | None = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


decode_envelope = msgspec.json.Decoder(Envelope).decode
"""Decode the envelope of a text that `is_shallow`. Raises `DecodeError` or `RecursionError`, as `parse` handles."""
_check = msgspec.json.Decoder(msgspec.Raw).decode
_ENVELOPE = frozenset(("jsonrpc", "id", "method", "params", "result", "error"))
_ID_START = frozenset(b'"-0123456789n')
_ID_NAME = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*')
# The name of an id that is the first member, or the second after a plain string.
_ID_FIRST = re.compile(
    rb'[ \t\n\r]*\{[ \t\n\r]*(?:"[^"\\]*"[ \t\n\r]*:[ \t\n\r]*"[^"\\]*"[ \t\n\r]*,[ \t\n\r]*)?' + _ID_NAME.pattern
)
_match_number = re.compile(rb"[0-9]{1,18}(?![0-9.eE])").match
# The beginning of every escape of a letter of "id".
_HIDDEN_NAME = rb"\u006"
# Maximum brackets of a text that is certainly shallow; and the stack levels by which others are decoded deeper than
# anywhere else: Python's calls count as levels, and a text that was read once must be readable later as well.
FEW_BRACKETS = 200
_RESERVE = 150
# Maximum bytes of a text that is copied twice when it gets another id.
_SHORT = 4096
# Bytes of an unreadable text that are looked at for its id.
_READABLE = 1024 * 1024
# Maximum characters of a name whose JSON text is kept: names of members are few and short.
_NAME_LENGTH = 32
# Maximum characters of a number that was minted here, in any spelling.
_MAX_NUMBER_LENGTH = 30


def parse(text: bytes) -> Message:
    """Read the envelope of one message.

    Raises:
        InvalidMessage: `-32700` for what is not JSON in UTF-8 or is nested hundreds of levels deep, `-32600` for JSON
        that is not a request, notification or response, or that a lenient parser might take for another one.
    """
    check_utf8(text)
    try:
        envelope = decode_envelope(text) if is_shallow(text) else _deep_down(decode_envelope, text)
    except (msgspec.DecodeError, RecursionError):
        is_large = len(text) > surrogates.LEAST_SIZE
        mended = surrogates.replaced(text) if is_large else text
        return classify(text, _look_again(text)) if mended is text else parse(mended)
    if len(text) > spans.MEMBERS and spans.count(text, b":") > spans.MEMBERS:
        # The members at the top level are known ones, but each may be repeated any number of times.
        _count_members(text)
    return classify(text, envelope)


def parse_entry(entry: Entry) -> Message:
    """Read a message for clients of both versions, as `parse`."""
    if not isinstance(entry, Pair):
        return parse(entry)
    message = parse(entry.text)
    msgspec.structs.force_setattr(message, "pair", entry)
    return message


def named_session(text: bytes) -> str | None:
    """Return the session that a request or notification names, in a third of the time of `parse`.

    For messages that were read before: of what `parse` checks, little is. Raises `InvalidMessage` for a response, and
    for what needs more than one look.
    """
    try:
        envelope = decode_envelope(text) if is_shallow(text) else None
    except (msgspec.DecodeError, RecursionError):
        envelope = None
    if envelope is None or envelope.method is UNSET:
        raise InvalidMessage(INVALID_REQUEST, "not a plain request or notification")
    return envelope.params.session if isinstance(envelope.params, Params) else None


def _count_members(text: bytes) -> None:
    try:
        for _ in spans.members(text):
            pass
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message: {error}") from None


def is_shallow(text: bytes) -> bool:
    """Return True if a text can't be nested deeply; False says nothing."""
    return len(text) < 2 * FEW_BRACKETS or spans.count(text, b"[") + spans.count(text, b"{") <= FEW_BRACKETS


def are_shallow(texts: Sequence[bytes]) -> bool:
    """Return True if none of these texts, at least one, can be nested deeply; False says nothing."""
    return max(map(len, texts)) < 2 * FEW_BRACKETS or all(map(is_shallow, texts))


def _deep_down(decode: Callable[[bytes], _T], text: bytes, calls: int = _RESERVE) -> _T:
    """Decode below `calls` further levels of Python's stack."""
    return _deep_down(decode, text, calls - 1) if calls else decode(text)


def check_utf8(text: bytes) -> None:
    """Raise `InvalidMessage` if a text is not UTF-8."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidMessage(PARSE_ERROR, f"not UTF-8 at byte {error.start}") from None


def check_json(plain: bytes) -> None:
    """Raise `InvalidMessage` if a text with this `structure` is not JSON, or is nested hundreds of levels deep."""
    try:
        if is_shallow(plain):
            _check(plain)
        else:
            _deep_down(_check, plain)
    except msgspec.DecodeError as error:
        raise InvalidMessage(PARSE_ERROR, f"not JSON: {error}") from None
    except RecursionError:
        raise InvalidMessage(PARSE_ERROR, "nested too deeply") from None


def _look_again(text: bytes) -> Envelope:
    """Read the envelope of a text that msgspec refuses.

    It may be invalid, not an object, or have other members or lone surrogates.
    """
    plain = spans.structure(text)
    check_json(plain)
    first = text[spans.skip_space(text, 0)]
    if first != ord("{"):
        kind = "an array; batches are not supported" if first == ord("[") else "not an object"
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
        params=UNSET
        if params is None
        else Params(
            spans.string_or_none(_cut(text, members.get("sessionId"))),
            Update(spans.string_or_none(_cut(text, kind_of_update))),
        ),
        result=_raw(_cut(text, top.get("result"))),
        error=_raw(_cut(text, top.get("error"))),
    )


def _spans_in(text: bytes, plain: bytes, start: int | None) -> dict[str, tuple[int, int]]:
    """Return the spans of the values of the object at `start`, by name; none if there is no object.

    `plain` is the text's `structure`. Raises `TooMany`.
    """
    if start is None or text[spans.skip_space(text, start)] != ord("{"):
        return {}
    return {spans.string_value(name): (at, end) for name, at, end in spans.members(text, start, plain=plain)}


def _cut(text: bytes, span: tuple[int, int] | None) -> bytes | None:
    return None if span is None else text[span[0] : span[1]]


def _raw(value: bytes | None) -> msgspec.Raw | UnsetType:
    return UNSET if value is None else msgspec.Raw(value)


def _method(raw: bytes | None) -> str | UnsetType:
    if raw is None:
        return UNSET
    if raw[0] != ord('"'):
        raise InvalidMessage(INVALID_REQUEST, "method must be a string")
    return spans.string_value(raw)


def classify(text: bytes, envelope: Envelope, members: Mapping[str, msgspec.Raw] | None = None) -> Message:
    """Return the message with this text and envelope; `members` are those of its `params`. Raises `InvalidMessage`."""
    message_id, kind = NO_ID, NOTIFICATION
    if envelope.id is not UNSET:
        message_id, kind = RawId(bytes(envelope.id)), REQUEST
        if message_id[0] not in _ID_START:
            raise InvalidMessage(INVALID_REQUEST, "an id must be a string, a number or null")
    method, params, result, error = envelope.method, envelope.params, envelope.result, envelope.error
    if method is not UNSET:
        if result is not UNSET or error is not UNSET:
            raise InvalidMessage(INVALID_REQUEST, "a message with a method has no result and no error")
        if params is None or params is UNSET:
            return Message(text, kind, message_id, method)
        update = None if params.update is None else params.update.kind
        return Message(text, kind, message_id, method, False, params.session, update, members)
    if envelope.id is UNSET or (result is UNSET and error is UNSET):
        raise InvalidMessage(INVALID_REQUEST, "neither a request nor a notification nor a response")
    if params is not UNSET:
        raise InvalidMessage(INVALID_REQUEST, "a response has no params")
    # Some peers send `"error": null` beside a result, as JSON-RPC 1.0 required.
    failed = error is not UNSET and bytes(error) != b"null"
    if failed and result is not UNSET and bytes(result) != b"null":
        raise InvalidMessage(INVALID_REQUEST, "a response has a result or an error, and not both")
    return Message(text, RESPONSE, message_id, "", failed)


def read_unreadable_id(text: bytes) -> RawId | None:
    """Return the id of a response that is not a valid message, so that its request can fail; None if it is unknown.

    Programs in Python and JavaScript write `Infinity` and `NaN`, which no other parser reads.
    """
    if len(text) <= _READABLE:
        try:
            readable = (
                text.replace(b"-Infinity", b"-1e000000").replace(b"Infinity", b"1e000000").replace(b"NaN", b"1e0")
            )
            message = parse(readable)
            return message.id if message.kind is Kind.RESPONSE else None
        except InvalidMessage:
            pass
    begun = text[:_READABLE]
    first = _ID_FIRST.match(begun)
    if first is None or (b'"result"' not in begun and b'"error"' not in begun) or b'"method"' in begun:
        return None
    number = _match_number(begun, first.end())
    return None if number is None else RawId(number[0])


def with_id(message: Message, new_id: RawId, *, unique: bool = False) -> bytes:
    """Return the message's text with another id, otherwise unchanged.

    `unique` is true if no member is repeated: then there is no second id.
    """
    text = message.text
    start = message.id_start if message.id_start >= 0 else _id_at_once(text, unique=unique)
    if start is None:
        at = spans.find(text, "id")
        assert at is not None  # `parse` has counted the members.
        start = at[0]
    # A slice of a short text takes less time than a view.
    rest = text if len(text) <= _SHORT else memoryview(text)
    return b"".join((rest[:start], new_id, rest[start + len(message.id) :]))


def _id_at_once(text: bytes, *, unique: bool) -> int | None:
    """Return the start of the id of a message; None if only a walk can find it.

    If it is the first or second member, no value before it can contain it. If its name occurs once, and not in escaped
    form, it is a member's name: within a string its quotes would be escaped.
    """
    member = _ID_FIRST.match(text) if unique else None
    if member is None and text.count(b'"id"') == 1 and _HIDDEN_NAME not in text:
        member = _ID_NAME.search(text)
    return None if member is None else member.end()


def id_number(raw: RawId) -> int | None:
    """Return an id as a whole number, in any spelling (`7`, `7.0`, `70e-1`); None for other ids.

    For ids that were minted here: a peer may return one in another spelling.
    """
    if raw.isdigit():
        return int(raw) if len(raw) <= _MAX_NUMBER_LENGTH else None
    if raw[0] not in b"-0123456789" or len(raw) > _MAX_NUMBER_LENGTH:
        return None
    number = float(raw)
    return int(number) if number.is_integer() else None


def compose(members: Mapping[str, bytes]) -> bytes:
    """Return the JSON text of an object with these members, which are JSON texts themselves."""
    return b"{%b}" % b",".join([_begin_member(name) + text for name, text in members.items()])


_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def _begin_member(name: str) -> bytes:
    return _begin_known_member(name) if len(name) <= _NAME_LENGTH else b"%b:" % _encode(name).encode()


@lru_cache(1024)
def _begin_known_member(name: str) -> bytes:
    return b"%b:" % _encode(name).encode()


def encode(value: Any) -> bytes:
    """Encode a value of the gateway as JSON, in ASCII: a peer's lone surrogates become escapes."""
    return _encode(value).encode()


def result(to: RawId, value: Any) -> bytes:
    """Return a response with a result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (to, encode(value))


def error(to: RawId, code: int, message: str, data: Any = None) -> bytes:
    """Return an error response; `data` is left out if it is None."""
    body = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to, encode(body))


def notification(method: str, params: Any) -> bytes:
    """Return a notification."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params}).encode()


def id_key(raw: RawId) -> IdKey:
    """Return the key of an id: the text of a number or of null, the value of a string.

    An id of more than `ID_SIZE` bytes is never remembered, so its text will do.
    """
    return spans.string_value(raw) if raw[0] == ord('"') and len(raw) <= ID_SIZE else raw
