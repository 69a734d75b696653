r"""Checks large messages piece by piece, and parses them by their outlines: the event loop is never held for long.

A message of megabytes consists of a few long strings: images, files, the output of a tool. Their pieces are checked one
by one. The rest is limited: the outline of a message is the message without the contents of its long strings. A message
that has passed is JSON in UTF-8, and a parser written in C reads it quickly. A worker thread would gain nothing:
parsers hold the interpreter's lock.

Escapes of lone surrogates are replaced (`surrogates.py`).
"""

import codecs
import re
from bisect import bisect_right
from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

import msgspec

from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import INVALID_REQUEST, PARSE_ERROR, InvalidMessage, Message, check_json
from acp_gateway.protocol.text import spans, surrogates
from acp_gateway.protocol.text.strict_parsing import parse_strictly

LARGE: Final = 1024 * 1024
"""Bytes above which a message is checked piece by piece; reading a smaller one holds the loop for 50 ms at most."""

OUTLINE_SIZE: Final = 2 * 1024 * 1024
"""Maximum bytes of a message besides the contents of its long strings. A list of 8000 sessions has less, and so has
the output of a tool with 100,000 numbers; reading each MiB of short values takes up to 50 ms."""

PIECE: Final = 64 * 1024
"""Bytes that are checked at once, mostly in a third of a millisecond."""

_FIRST_PIECE: Final = 2048
"""Bytes of a long string that are checked first: most strings end soon."""

# A string that belongs to the outline, and the bytes of the longest one.
_SHORT: Final = rb'"[^"\\]{0,256}+(?:\\.[^"\\]{0,64}+){0,32}"'
_LONGEST_SHORT: Final = 2 + 256 + 32 * (2 + 64)
# Anything up to the first string that is long, or not complete.
_match_outline: Final = re.compile(rb'[^"]*+(?:%b[^"]*+)*' % _SHORT, re.DOTALL).match
_match_high: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}").match

_check: Final = msgspec.json.Decoder(msgspec.Raw).decode
_match_rest: Final = re.compile(r"JSON is malformed: trailing characters \(byte ([0-9]+)\)").fullmatch
_TRUNCATED: Final = "Input data was truncated"


class Outline:
    """A message without the contents of its long strings.

    Args:
        text: the message.
        plain: the message with `""` in place of each long string.
        ends: the index after each of these in `plain`, in their order.
        places: the same in `text`.
    """

    def __init__(self, text: bytes, plain: bytes, ends: list[int], places: list[int]) -> None:
        self.text = text
        self.plain = plain
        self._ends = ends
        self._places = places

    def place(self, at: int) -> int:
        """Return the index in the text of what is at an index of `plain`."""
        gap = bisect_right(self._ends, at) - 1
        return at if gap < 0 else self._places[gap] + at - self._ends[gap]

    def is_long(self, start: int) -> bool:
        """Return True if the value at this index of `plain` is a long string."""
        gap = bisect_right(self._ends, start + 1)
        return gap < len(self._ends) and self._ends[gap] == start + 2


def check_large(text: bytes) -> Generator[None, None, Outline]:
    """Check that a message is JSON with a small outline, and yield after each piece; return that.

    Its text is another one than `text` only if that has the escape of a lone surrogate.

    Raises:
        InvalidMessage: as `jsonrpc.parse`, and with `-32600` for an outline above `OUTLINE_SIZE`.
    """
    yield from _check_utf8(text)
    pieces = _Pieces(text)
    outline: list[bytes] = []
    ends: list[int] = []
    places: list[int] = []
    size = at = 0
    while at < len(text):
        limit = min(at + PIECE, len(text))
        found = _match_outline(text, at, limit)
        assert found is not None
        end = found.end()
        piece = surrogates.replaced(text[at:end])
        pieces.keep(at, piece)
        outline.append(piece)
        size += end - at
        if size > OUTLINE_SIZE:
            why = f"besides the contents of long strings, a message has at most {OUTLINE_SIZE} bytes"
            raise InvalidMessage(INVALID_REQUEST, why)
        at = end
        yield
        # A string may be short, and complete with the next piece.
        if at < limit and (limit == len(text) or limit - at > _LONGEST_SHORT):
            outline.append(b'""')
            size += 2
            at = yield from pieces.check_string(at + 1)
            ends.append(size)
            places.append(at)
    plain = b"".join(outline)
    check_json(plain)
    return Outline(pieces.joined(), plain, ends, places)


def _check_utf8(text: bytes) -> Generator[None, None, None]:
    at = 0
    while at < len(text):
        piece = text[at : at + PIECE]
        if piece.isascii():
            at += len(piece)
        else:
            try:
                # The last character of a piece may be incomplete.
                at += codecs.utf_8_decode(piece, "strict", at + PIECE >= len(text))[1]
            except UnicodeDecodeError as error:
                raise InvalidMessage(PARSE_ERROR, f"not UTF-8 at byte {at + error.start}") from None
        yield


class _Pieces:
    """The text in pieces, without the escapes of lone surrogates."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        # The beginning of the text, up to the last piece that was changed, and its size.
        self._changed: list[bytes] = []
        self._copied = 0

    def keep(self, at: int, piece: bytes) -> None:
        """Use this piece in place of the text at this index."""
        if piece != self._text[at : at + len(piece)]:
            self._changed += (self._text[self._copied : at], piece)
            self._copied = at + len(piece)

    def joined(self) -> bytes:
        """Return the text."""
        return b"".join((*self._changed, self._text[self._copied :])) if self._changed else self._text

    def check_string(self, at: int) -> Generator[None, None, int]:
        """Check a string whose content begins at `at`, and yield after each piece; return the index after it."""
        text, size, left = self._text, _FIRST_PIECE, PIECE
        while True:
            piece = text[at : at + size]
            is_last = at + size >= len(text)
            if not is_last:
                piece = piece[: _end_of_escapes(piece)]
            piece = surrogates.replaced(piece)
            length = _content_length(piece, at)
            if length is not None:
                self.keep(at, piece[:length])
                return at + length + 1
            if is_last:
                raise InvalidMessage(PARSE_ERROR, "not JSON: a string has no end")
            self.keep(at, piece)
            at += len(piece)
            left -= len(piece)
            if left <= 0:
                yield
                left = PIECE
            size = min(4 * size, PIECE)


def _content_length(piece: bytes, at: int) -> int | None:
    """Return the length of the content of a string that began before a piece; None if it goes on after the piece.

    Raises `InvalidMessage`; `at` is the index of the piece in its text.
    """
    string = b'"' + piece
    try:
        _check(string)
        end = len(string)
    except msgspec.DecodeError as error:
        found = _match_rest(str(error))
        if found is None:
            if str(error) == _TRUNCATED:
                return None
            raise InvalidMessage(PARSE_ERROR, f"not JSON: {error} of the string at byte {at}") from None
        end = int(found[1]) - 1
    return string.rindex(b'"', 0, end) - 1


def _end_of_escapes(piece: bytes) -> int:
    """Return the end of the last character in a piece that is certainly whole, as escapes of surrogates are pairs."""
    last = piece.rfind(b"\\")
    if last < 0 or last + 6 < len(piece) or not _is_escape(piece, last):
        return len(piece)
    if piece[last + 1 : last + 2] not in (b"", b"u") or (last + 6 == len(piece) and not _match_high(piece, last)):
        return len(piece)
    before = last - 6
    return before if before >= 0 and _match_high(piece, before) and _is_escape(piece, before) else last


def _is_escape(piece: bytes, at: int) -> bool:
    """Return True if the backslash at this index is not escaped by another one."""
    return (at + 1 - len(piece[: at + 1].rstrip(b"\\"))) % 2 == 1


# Members whose values the gateway keeps or compares.
_SHORT_TOP: Final = frozenset(("id", "method"))
_SHORT_PARAMS: Final = frozenset(("sessionId",))
_SHORT_UPDATE: Final = frozenset(("sessionUpdate", "sessionId", "toolCallId", "title"))


class Parsed(NamedTuple):
    """A message, and the name of a repeated member as `parse_strictly` returns it."""

    message: Message
    repeated: str | None


def parse_large(outline: Outline) -> Parsed:
    """Parse a message by its outline, as `parse_strictly`.

    Raises `InvalidMessage`, also for a long string where there should be an id, a name or a title.
    """
    message, repeated = parse_strictly(outline.plain)
    plain = outline.plain
    try:
        top = _members(outline, 0, _SHORT_TOP)
        params = _object(plain, top.get("params"))
        members = {} if params is None else _members(outline, params, _SHORT_PARAMS)
        update = _object(plain, members.get("update"))
        if update is not None and message.method == methods.SESSION_UPDATE:
            _members(outline, update, _SHORT_UPDATE)
    except spans.TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message or its params: {error}") from None
    at = top.get("id")
    view = memoryview(outline.text)
    kept: Mapping[str, bytes | msgspec.Raw] | None = None
    if params is not None and len(members) <= methods.MEMBERS:
        kept = {
            name: msgspec.Raw(view[outline.place(start) : outline.place(end)]) for name, (start, end) in members.items()
        }
    return Parsed(
        msgspec.structs.replace(
            message, text=outline.text, params=kept, id_start=-1 if at is None else outline.place(at[0])
        ),
        repeated,
    )


def _object(plain: bytes, span: tuple[int, int] | None) -> int | None:
    return span[0] if span is not None and plain[span[0] : span[0] + 1] == b"{" else None


def _members(outline: Outline, start: int, short: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Return the spans of the members of the object at `start` of an outline. Raises `InvalidMessage` and `TooMany`."""
    found = {}
    for raw_name, at, end in spans.members(outline.plain, start):
        name = spans.string_value(raw_name)
        if name in short and outline.is_long(at):
            raise InvalidMessage(INVALID_REQUEST, f"the value of the member {name!r} is too long")
        found[name] = at, end
    return found
