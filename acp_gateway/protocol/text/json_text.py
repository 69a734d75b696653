"""Reads and edits messages as text, with the standard library alone: for the shim.

Values are found and replaced by position, see `spans`; the rest stays verbatim. A value that is missing, of another
type, or in a text that is not JSON is not found: the gateway reports the errors of a message. Ids keep their spelling.

The gateway uses `jsonrpc`, which is faster and stricter, but slower to import.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from acp_gateway.protocol.methods import META
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.spans import MalformedJson

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

# As in `jsonrpc`, which needs msgspec.
_ID_SIZE: Final = 1024
_MEMBERS: Final = frozenset(("jsonrpc", "id", "method", "params", "result", "error"))

# Maximum digits of a whole number: more than any meaningful id or code, and quickly converted.
_MAX_NUMBER_LENGTH: Final = 18


# Bytes of a message that have all names of its request, but for strange orders of members.
_BEGUN: Final = 65536
_ENDED: Final = 256

# Only a member of the message itself has nothing but its brace behind it.
_LAST_ID: Final = re.compile(rb'"id"\s*:\s*(-?[0-9]{1,18}|"[ !#-\[\]-~]{0,256}")\s*\}\s*\Z')


class Envelope(NamedTuple):
    """The top level of a message: its id, its method, and whether it is an error."""

    raw_id: bytes | None
    method: str | None
    failed: bool
    """True if it has an error that is not null."""


NOTHING: Final = Envelope(None, None, False)
"""The envelope of a text that is not a message."""


def read_envelope(message: bytes) -> Envelope | None:
    """Return a message's envelope; None if it is not an object, or malformed, or its method is not a string.

    The last of repeated members counts.
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


class Beginning(NamedTuple):
    """The names in a message whose middle is not known."""

    raw_id: bytes | None
    """In ASCII: nothing else in the message was checked."""
    method: str | None
    """Empty if it is a request or notification, and its method is not known."""
    session: str | None


def ends_of(message: bytes) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a message, for `read_beginning`."""
    return message[:_BEGUN], message[-_ENDED:]


def read_beginning(begun: bytes, ended: bytes) -> Beginning:
    """Return the names in a message that was not kept whole, as far as its first and its last bytes tell them."""
    raw_id = method = session = None
    try:
        for member in spans.members_begun(begun):
            value = begun[member.start : member.end]
            match spans.string_value(member.name):
                case "id" if member.end < len(begun) and may_be_id(value) and value.isascii():
                    raw_id = value
                case "method":
                    method = spans.string_value(value)
                case "params":
                    method, session = method or "", _session_in(value)
    except MalformedJson:
        pass
    last = _LAST_ID.search(ended) if raw_id is None else None
    return Beginning(raw_id if last is None else last[1], method, session)


def _session_in(params: bytes) -> str | None:
    for member in spans.members_begun(params):
        if member.name == b'"sessionId"' and params[member.start : member.start + 1] == b'"':
            return spans.string_value(params[member.start : member.end])
    return None


def may_be_id(raw_id: bytes) -> bool:
    """Return True if a response can have this id: for an object, an array or a boolean it is null."""
    return raw_id[0] not in b"{[tf"


def has_valid_id(message: bytes, raw_id: bytes) -> bool:
    """Return True if the gateway answers a request under its id, False if it refuses the message under the id null.

    It refuses invalid JSON, repeated or long ids, and members whose names lenient parsers take for those of a message.
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
    """Return the text of the object at a member path; that of an empty one if there is none."""
    raw = raw_at(text, *path)
    return raw if raw is not None and raw[:1] == b"{" else b"{}"


def elements_at(text: bytes, *path: str) -> set[bytes]:
    """Return the texts of the elements of the array at a member path."""
    raw = raw_at(text, *path)
    if raw is None or raw[:1] != b"[":
        return set()
    return {raw[start:end] for start, end in spans.elements(raw)}


def strings_in(array: bytes) -> list[str]:
    """Return the strings among the elements of an array; none for another text."""
    try:
        found = json.loads(array)
    except (ValueError, RecursionError):
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def whole_number(raw: bytes | None) -> int | None:
    """Return a text as a whole number; None for other values and for very long numbers."""
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
    """Return an error response; `reason` is its `data.reason`, a word for programs, and `more` is further data."""
    body: dict[str, Any] = {"code": code, "message": message}
    if reason is not None:
        body["data"] = {"reason": reason, **more}
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (to, encode(body))


def encode(value: Any) -> bytes:
    """Return a value as JSON, in ASCII."""
    return json.dumps(value, separators=(",", ":")).encode()
