"""A message read and edited as text, with the standard library alone: for the side of the editor.

What is wanted is found by its position and replaced by its position, see `spans`; all else stays verbatim. What is not
there, is of another kind or stands in a text that is no JSON is simply not found: the gateway says what is wrong with
a message. Ids are the very text that they were spelled with.

The gateway has `jsonrpc` for this, which is faster and stricter, and needs a library that editors' machines don't have.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from acp_gateway.protocol import spans
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.spans import MalformedJson

METHOD_NOT_FOUND: Final = -32601
INTERNAL_ERROR: Final = -32603

# As in `jsonrpc`, which needs msgspec.
_ID_SIZE: Final = 1024
_MEMBERS: Final = frozenset(("jsonrpc", "id", "method", "params", "result", "error"))

# Digits that a whole number may have here: more than any id or code that means something, and quickly converted.
_MAX_NUMBER_LENGTH: Final = 18


class Envelope(NamedTuple):
    """The top of a message: its id, method and kind."""

    raw_id: bytes | None
    method: str | None
    failed: bool
    """True if it has an error that is not null."""


NOTHING: Final = Envelope(None, None, False)
"""The envelope of what is no message."""


def read_envelope(message: bytes) -> Envelope | None:
    """Return a message's envelope; None where it is no object, or broken.

    A method that is no string breaks it. Of a member that is repeated the last counts.
    """
    raw_id = method = None
    failed = False
    try:
        for member in spans.members(message):
            match spans.string_value(member.name) if b"\\" in member.name else member.name[1:-1].decode():
                case "id":
                    raw_id = message[member.start : member.end]
                case "method":
                    method = spans.string_value(message[member.start : member.end])
                case "error":
                    failed = message[member.start : member.end] != b"null"
    except (MalformedJson, UnicodeDecodeError):
        return None
    return Envelope(raw_id, method, failed)


def may_be_id(raw_id: bytes) -> bool:
    """Return True if a response can come under this id: an object, an array or a boolean is answered under null."""
    return raw_id[0] not in b"{[tf"


def has_valid_id(message: bytes, raw_id: bytes) -> bool:
    """Return True if the gateway answers a request under its id, False if it refuses the message under null.

    It does so with text that is not JSON, ids that parsers could read differently, and members that some take for one
    of a message's.
    """
    if not may_be_id(raw_id) or len(raw_id) > _ID_SIZE:
        return False
    try:
        names = [spans.string_value(member.name) for member in spans.members(message)]
        if spans.repeated_member(message) == "id" or not _MEMBERS.isdisjoint(_taken_for_another(names)):
            return False
        end = spans.value_end(spans.structure(message), spans.skip_space(message, 0))
    except ValueError:
        return False
    alone = spans.skip_space(message, end) == len(message)
    return alone and "result" not in names and "error" not in names


def _taken_for_another(names: Sequence[str]) -> set[str]:
    """Return the members that lenient parsers take some of these for, because of case or a NUL character."""
    return {name.partition("\0")[0].casefold() for name in names if name not in _MEMBERS}


def ids_in(messages: Sequence[bytes]) -> tuple[set[bytes], set[bytes]]:
    """Return the ids of the requests among messages, and those of the responses."""
    requests: set[bytes] = set()
    responses: set[bytes] = set()
    for message in messages:
        raw_id, method, _ = read_envelope(message) or NOTHING
        if raw_id is not None:
            (responses if method is None else requests).add(raw_id)
    return requests, responses


def raw_at(text: bytes, *path: str) -> bytes | None:
    """Return the text of the value at a member path."""
    try:
        at = spans.find(text, *path)
    except MalformedJson:
        return None
    return None if at is None else text[at[0] : at[1]]


def text_at(text: bytes, *path: str) -> str | None:
    """Return the string at a member path."""
    raw = raw_at(text, *path)
    try:
        return spans.string_value(raw) if raw is not None else None
    except MalformedJson:
        return None


def object_at(text: bytes, *path: str) -> bytes:
    """Return the text of the object at a member path, of an empty one where there is none."""
    raw = raw_at(text, *path)
    return raw if raw is not None and raw[:1] == b"{" else b"{}"


def elements_at(text: bytes, *path: str) -> set[bytes]:
    """Return the texts of the elements of the array at a member path."""
    raw = raw_at(text, *path)
    if raw is None or raw[:1] != b"[":
        return set()
    return {raw[start:end] for start, end in spans.elements(raw)}


def whole_number(raw: bytes | None) -> int | None:
    """Return the number that a text is, None for other values and for numbers that are absurdly long."""
    if raw is None or len(raw) > _MAX_NUMBER_LENGTH or not raw.removeprefix(b"-").isdigit():
        return None
    return int(raw)


def with_member(text: bytes, name: str, value: bytes) -> bytes:
    """Return an object with one member added or replaced.

    Raises:
        MalformedJson: the text is broken.
    """
    at = spans.find(text, name)
    if at is not None:
        return spans.splice(text, [(*at, value)])
    start = spans.skip_space(text, 0) + 1
    behind = spans.skip_space(text, start)
    comma = b"" if text[behind : behind + 1] == b"}" else b","
    return spans.splice(text, [(start, start, b"%b:%b%b" % (encode(name), value, comma))])


def with_own_meta(params: bytes, value: bytes) -> bytes:
    """Return an object in which the gateway's own member of `_meta` is `value`.

    Raises:
        MalformedJson: the text is broken.
    """
    return with_member(params, "_meta", with_member(object_at(params, "_meta"), META, value))


def error(to: bytes, code: int, message: str, reason: str | None = None, **more: str) -> bytes:
    """Return an error for a request; `reason` is a word for programs, its `data.reason`, beside `more` of its data."""
    body: dict[str, Any] = {"code": code, "message": message}
    if reason is not None:
        body["data"] = {"reason": reason, **more}
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to, encode(body))


def encode(value: Any) -> bytes:
    """Return a value as JSON, in ASCII."""
    return json.dumps(value, separators=(",", ":")).encode()
