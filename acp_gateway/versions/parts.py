"""Takes JSON texts apart and puts them together; all that is not translated stays the text that it was."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from acp_gateway.acp.reading import string
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import TooMany

ELEMENTS: Final = 2048
"""Elements of an array that are translated at most, in about thirty milliseconds; a prompt or a plan has a hundred."""

BACKGROUND_SIZE: Final = 4096
"""Bytes of a list of work in the background that is told at most; each entry has an id."""

NULL: Final = b"null"
EMPTY: Final = b"{}"
NOTHING: Final = b"[]"

_FOUND: Final = 64
"""Bytes of a part that are searched for."""

_ESCAPE: Final = b"\\u00"
_ESCAPED_LETTER: Final = re.compile(rb"\\u00[4-7]")
_KIND: Final = b'"sessionUpdate":"%b"'

text: Final = string
"""Returns the value of a JSON text that is a string, None for any other value and for no text."""


class Untranslatable(Exception):
    """The other version can't say this; a request is answered with this error."""

    def __init__(self, message: str, code: int = jsonrpc.INVALID_PARAMS) -> None:
        self.code = code
        super().__init__(message)


def members(raw: bytes | None) -> dict[str, bytes]:
    """Return the members of an object; none of anything else, nor of an object with more than `spans.MEMBERS`."""
    return lookup.members_at(raw) if raw else {}


def elements(raw: bytes | None, most: int = ELEMENTS) -> list[bytes]:
    """Return the elements of an array, none of anything else. Raises `Untranslatable` if there are too many."""
    if raw is None or raw[:1] != b"[":
        return []
    try:
        return lookup.elements_of(raw, most)
    except TooMany:
        raise Untranslatable(f"an array has more than {most} elements", jsonrpc.INVALID_REQUEST) from None


def number(raw: bytes | None) -> float | None:
    """Return the value of a JSON text that is a number, None for any other value and for no text."""
    return float(raw) if raw is not None and raw[:1] in b"-0123456789" else None


def given(raw: bytes | None) -> bool:
    """Return True for a value that is present and not null."""
    return raw is not None and raw != NULL


def is_object(raw: bytes | None) -> bool:
    """Return True for an object."""
    return raw is not None and raw[:1] == b"{"


def array(items: Iterable[bytes]) -> bytes:
    """Return the array of these elements."""
    return b"[%b]" % b",".join(items)


def background_of(raw: bytes | None, known: bytes) -> bytes:
    """Return the work in the background that is told, an array, the known one if none is.

    Of a list that is too long, that is what fits from its beginning.
    """
    if raw is None:
        return known
    if len(raw) <= BACKGROUND_SIZE:
        return array(elements(raw))
    found: list[bytes] = []
    left = BACKGROUND_SIZE - len(NOTHING)
    for start, end in spans.elements(raw, most=ELEMENTS) if raw[:1] == b"[" else ():
        left -= end - start + 1
        if left < 0:
            break
        found.append(raw[start:end])
    return array(found)


def respelled(message: bytes, old: bytes, new: bytes) -> bytes | None:
    """Return a text with one of its parts replaced; None if that is not found at once, or if its beginning is there
    twice."""
    # A short text is found in a fraction of the time.
    begins = old[:_FOUND]
    at = message.find(begins)
    if at < 0 or not message.startswith(old, at) or message.find(begins, at + 1) >= 0:
        return None
    return b"%b%b%b" % (message[:at], new, message[at + len(old) :])


def with_kind(message: bytes, old: str, new: str) -> bytes | None:
    """Return an update with another kind; None if that may be spelled in another way, or stands elsewhere too."""
    spelled = _ESCAPE in message and _ESCAPED_LETTER.search(message) is not None
    return None if spelled else respelled(message, _KIND % old.encode(), _KIND % new.encode())


def text_block(words: str) -> bytes:
    """Return a content block of text."""
    return b'{"type":"text","text":%b}' % jsonrpc.encode(words)


def text_item(words: str, **told: bytes) -> bytes:
    """Return an item of a tool call's content with a text, and with members of the gateway's own."""
    meta = b',"_meta":%b' % own_meta(**told) if told else b""
    return b'{"type":"content","content":%b%b}' % (text_block(words), meta)


def own_meta(**told: bytes) -> bytes:
    """Return a `_meta` with these members of the gateway's own."""
    return jsonrpc.compose({methods.META: jsonrpc.compose(told)})


def request(raw_id: RawId, method: str, params: Mapping[str, bytes]) -> bytes:
    """Return a request."""
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (
        raw_id,
        jsonrpc.encode(method),
        jsonrpc.compose(params),
    )


def notification(method: str, params: Mapping[str, bytes]) -> bytes:
    """Return a notification; the method is a known one."""
    return b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), jsonrpc.compose(params))


def result(raw_id: RawId, value: bytes) -> bytes:
    """Return a response with a result."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (raw_id, value)


def error(raw_id: RawId, value: bytes) -> bytes:
    """Return a response with an error object."""
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, value)
