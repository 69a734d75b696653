r"""Spans: positions of values in a JSON text whose bytes stay verbatim.

A message that is parsed and written again is another message: `1e999`, `1.10`, repeated members and the order of
members would be lost. So values are replaced by position, and this module finds the positions.

No loop here reads the content of a value. A parser written in C reads one value that is followed by more text, and its
error tells the end of that value. The parser is msgspec; for the last few kilobytes of a text it is json, so that a
shim with small messages does not import msgspec. Python takes one step for each member or element of a single
container, within limits.

The parsers differ about the escape of a lone surrogate (`"\ud83d"`), which agents written in JavaScript send.
`structure` returns a text without such escapes, and with all values at the same positions.

JSON is accepted as RFC 8259 defines it (without `NaN` and `Infinity`), but strings may contain any bytes except control
characters; `string_value` raises for those it can't decode. Text after the wanted value is not checked.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

MEMBERS: Final = 512
"""Maximum members of an object that is walked through: those of the protocol have ten, and each is a step in Python."""

ELEMENTS: Final = 1000
"""Default for the maximum elements of an array that is walked through."""

_SELDOM: Final = 2048
"""Bytes of a text for each call of `bytes.find` that is tried before `bytes.count`, which takes longer for as many."""

_SMALL: Final = 16 * 1024
"""Maximum bytes of a value that `json` reads: the objects it makes take many times as many."""

_OBJECT: Final = ord("{")
_ARRAY: Final = ord("[")
_CLOSING: Final = {_OBJECT: b"}", _ARRAY: b"]", ord('"'): b'"'}

_SPACE = rb"[ \t\n\r]*+"
# A longer one is read by the parser, in a fifteenth of the time.
_PLAIN_STRING = rb'"[^"\\\x00-\x1f]{0,1024}+"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_SCALAR = rb"(?:%b|%b|true|false|null)" % (_PLAIN_STRING, _NUMBER)

_match_space = re.compile(_SPACE).match
_match_scalar = re.compile(_SCALAR).match
_match_colon = re.compile(rb"%b:%b" % (_SPACE, _SPACE)).match
_match_member = re.compile(rb"(%b)%b:%b(%b)?" % (_PLAIN_STRING, _SPACE, _SPACE, _SCALAR)).match
_match_delimiter = re.compile(rb"%b([,\]}])%b" % (_SPACE, _SPACE)).match
_match_rest = re.compile(r"JSON is malformed: trailing characters \(byte ([0-9]+)\)").fullmatch


class MalformedJson(ValueError):
    """The text is not JSON, or is cut off."""


class TooMany(MalformedJson):
    """A container has more members or elements than are walked through."""


class Member(NamedTuple):
    """A member of an object, with the span of its value."""

    name: bytes
    """The name as a JSON string, verbatim, quotes included; `string_value` decodes it."""
    start: int
    """Index of the value's first byte."""
    end: int
    """Index after the value's last byte."""


def structure(text: bytes) -> bytes:
    """Return a text with all values of this one at the same places, in which no escape is that of a surrogate.

    It is the text itself where there is none, and valid JSON if this is. Its strings may have other characters.
    """
    # Most texts with many escapes have none of these, and are searched once.
    if b"\\u" in text and (b"\\ud" in text or b"\\uD" in text):
        # Escaped backslashes are replaced first; then each backslash begins an escape.
        return text.replace(b"\\\\", b"__").replace(b"\\ud", b"\\u0").replace(b"\\uD", b"\\u0")
    return text


def count(text: bytes, character: bytes) -> int:
    """Return how often a character occurs, as `bytes.count`: in a thirtieth of its time where that is seldom."""
    tries, at = len(text) // _SELDOM, -1
    for found in range(tries):
        at = text.find(character, at + 1)
        if at < 0:
            return found
    return tries + text.count(character, at + 1)


def skip_space(text: bytes, at: int) -> int:
    """Return the index of the first byte from `at` on that is not white space, at most the text's length."""
    space = _match_space(text, at)
    assert space is not None
    return space.end()


def value_end(text: bytes, start: int) -> int:
    """Return the index after the value that begins exactly at `start` of a text that is a `structure`.

    Raises:
        MalformedJson: no whole value is there, or it is nested hundreds of levels deep.
    """
    if scalar := _match_scalar(text, start):
        return scalar.end()
    closing = _CLOSING.get(text[start]) if start < len(text) else None
    if closing is None:
        raise _malformed(text, start)
    try:
        if len(text) - start <= _SMALL:
            _, size = _scan(text[start:].decode("latin-1"), 0)
            return start + size
        return text.rindex(closing, start, start + _skipper()(memoryview(text)[start:])) + 1
    except (ValueError, StopIteration, RecursionError):
        raise _malformed(text, start) from None


def members(text: bytes, start: int = 0, *, plain: bytes | None = None) -> Iterator[Member]:
    """Yield the members of the object that begins at `start`, white space before it allowed, in their order.

    A caller that walks many containers of one text makes its `structure` once and passes it as `plain`.

    Raises:
        MalformedJson: there is no object, or it is broken, raised when the walk gets there.
        TooMany: it has more than `MEMBERS`.
    """
    return _members(text, structure(text) if plain is None else plain, start)


def _members(text: bytes, plain: bytes, start: int, *, is_begun: bool = False) -> Iterator[Member]:
    """Yield the members of an object; of one that is only begun as far as they are there, see `members_begun`."""
    try:
        at = skip_space(plain, start)
        if plain[at : at + 1] != b"{":
            raise _malformed(plain, at)
        at = skip_space(plain, at + 1)
        more = plain[at : at + 1] != b"}"
        count = 0
        while more:
            count += 1
            if count > MEMBERS:
                raise TooMany(f"an object has more than {MEMBERS} members")
            name = at
            name_end, start, end = member_at(plain, at)
            try:
                end = end if end >= 0 else value_end(plain, start)
            except MalformedJson:
                if not is_begun:
                    raise
                end = len(text)
            yield Member(text[name:name_end], start, end)
            at, more = after_value(plain, end, b"}")
    except MalformedJson:
        if not is_begun:
            raise


def members_begun(text: bytes) -> Iterator[Member]:
    """Yield the members at the beginning of an object that may be cut off, or be broken behind them: `MEMBERS` at most.

    The last one may be cut off itself: its end is that of the text then.
    """
    return _members(text, structure(text), 0, is_begun=True)


def member_at(plain: bytes, at: int) -> tuple[int, int, int]:
    """Return the end of the name of the member at `at` of a `structure`, and start and end of its value.

    The end of the value is -1 where it is a container, or a long string or one with an escape: `value_end` finds it.

    Raises:
        MalformedJson: there is no member.
    """
    if member := _match_member(plain, at):
        start, end = member.span(2)
        return member.end(1), start if end >= 0 else member.end(), end
    name_end = value_end(plain, at)
    colon = _match_colon(plain, name_end)
    if plain[at] != ord('"') or colon is None:
        raise _malformed(plain, at)
    return name_end, colon.end(), -1


def elements(
    text: bytes, start: int = 0, most: int | None = None, *, plain: bytes | None = None
) -> Iterator[tuple[int, int]]:
    """Yield the spans of the elements of the array that begins at `start`, white space before it allowed.

    A caller that walks many containers of one text makes its `structure` once and passes it as `plain`.

    Raises:
        MalformedJson: there is no array, or it is broken, raised when the walk gets there.
        TooMany: it has more than `most`, which is `ELEMENTS` if it is not given.
    """
    plain, most = structure(text) if plain is None else plain, ELEMENTS if most is None else most
    at = skip_space(plain, start)
    if plain[at : at + 1] != b"[":
        raise _malformed(plain, at)
    at = skip_space(plain, at + 1)
    more = plain[at : at + 1] != b"]"
    count = 0
    while more:
        count += 1
        if count > most:
            raise TooMany(f"an array has more than {most} elements")
        end = value_end(plain, at)
        yield at, end
        at, more = after_value(plain, end, b"]")


def string_value(raw: bytes) -> str:
    """Decode a JSON string, quotes included. Escapes of lone surrogates become lone surrogates.

    Raises:
        MalformedJson: `raw` is not exactly one JSON string, or is not UTF-8.
    """
    try:
        if len(raw) > _SMALL and (value := _large_string(raw)) is not None:
            return value
        text = raw.decode()
        value, end = _scan_string(text, 1) if text[:1] == '"' else ("", -1)
    except ValueError as error:
        raise MalformedJson("not a JSON string, with a wrong escape, or not UTF-8") from error
    if end != len(text):
        raise MalformedJson("not a JSON string")
    return value


def _large_string(raw: bytes) -> str | None:
    """Decode a string in a tenth of the time that `json` takes; None if that has to decode it."""
    import msgspec

    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        return None


def string_beginning(raw: bytes, size: int) -> str:
    """Decode the first bytes of a JSON string, `size` or a few less, without what is cut off in the middle.

    Raises `MalformedJson`.
    """
    if len(raw) <= size:
        return string_value(raw)
    piece = raw[:size]
    last = piece.rfind(b"\\")
    if last > max(size - len(rb"\u0000"), -1):
        # Of a row of backslashes, the last one may begin an escape.
        piece = piece[:last].rstrip(b"\\")
    return string_value(piece.decode(errors="ignore").encode() + b'"')


def string_or_none(raw: bytes | None) -> str | None:
    """Return the value of a JSON text that is a string, None for any other value and for no text."""
    return string_value(raw) if raw is not None and raw[:1] == b'"' else None


def find(text: bytes, *names: str) -> tuple[int, int] | None:
    """Return the span of the value at the member path `names` from the top; of the whole value for no names.

    Names are compared unescaped. Of a member that is repeated the last counts.

    Returns:
        The span; None without such a member, or if something on the way is not an object or has more than `MEMBERS`.

    Raises:
        MalformedJson: the text is broken, or a name is not UTF-8.
    """
    plain = structure(text)
    start = skip_space(plain, 0)
    if not names:
        return start, value_end(plain, start)
    span = start, len(text)
    for name in names:
        if plain[span[0] : span[0] + 1] != b"{":
            if span[1] == len(text):
                value_end(plain, span[0])
            return None
        quoted = b'"%b"' % name.encode(errors="surrogatepass")
        found = None
        try:
            for member in _members(text, plain, span[0]):
                if member.name == quoted or (b"\\" in member.name and string_value(member.name) == name):
                    found = member.start, member.end
        except TooMany:
            return None
        if found is None:
            return None
        span = found
    return span


def splice(text: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return the text with each span `start, end` replaced; the edits come in any order and must not overlap.

    Raises:
        ValueError: two edits overlap, or one is not within the text.
    """
    pieces = []
    at = 0
    for start, end, replacement in sorted(edits):
        if not at <= start <= end <= len(text):
            raise ValueError("edits overlap or leave the text")
        pieces += [text[at:start], replacement]
        at = end
    pieces.append(text[at:])
    return b"".join(pieces)


def repeated_member(text: bytes) -> str | None:
    """Return the name of a member that a message has twice, at its top or directly in `params`, else None.

    Names are compared unescaped and case-folded: there are parsers that take `Method` for `method`, and
    parsers that take the first of two.

    Raises:
        MalformedJson: the message is broken, or a name is not UTF-8.
        TooMany: its top or its `params` have more than `MEMBERS`.
    """
    plain = structure(text)
    start = skip_space(plain, 0)
    if plain[start : start + 1] != b"{":
        value_end(plain, start)
        return None
    places, top = [start], True
    while places:
        seen: set[str] = set()
        for member in _members(text, plain, places.pop()):
            name = string_value(member.name)
            folded = name.casefold()
            if folded in seen:
                return name
            seen.add(folded)
            if top and folded == "params" and text[member.start] == _OBJECT:
                places.append(member.start)
        top = False
    return None


def after_value(plain: bytes, end: int, closing: bytes) -> tuple[int, bool]:
    """Step over the delimiter after a value; return the start of the next value, and whether there is one.

    Raises:
        MalformedJson: neither a comma nor the closing bracket is there.
    """
    delimiter = _match_delimiter(plain, end)
    if delimiter is None or delimiter[1] not in (b",", closing):
        raise _malformed(plain, end)
    return delimiter.end(), delimiter[1] == b","


def _malformed(text: bytes, at: int) -> MalformedJson:
    return MalformedJson(f"not JSON, cut off, or nested too deeply: see what follows byte {at} of {len(text)}")


def _reject(constant: str) -> Any:
    raise ValueError(constant)


_scan_string: Final[Callable[[str, int], tuple[str, int]]] = json.decoder.scanstring  # type: ignore[attr-defined]
# Whole numbers of any length become floats, because the conversion to int is limited.
_scan: Final[Callable[[str, int], tuple[Any, int]]] = json.scanner.make_scanner(  # type: ignore[attr-defined]
    json.JSONDecoder(parse_constant=_reject, parse_int=float)
)


@cache
def _skipper() -> Callable[[memoryview], int]:
    """Return a function that returns the bytes of the value at the beginning of a text, with the space after it."""
    import msgspec

    decode = msgspec.json.Decoder(msgspec.Raw).decode

    def skip(text: memoryview) -> int:
        try:
            decode(text)
        except msgspec.DecodeError as error:
            rest = _match_rest(str(error))
            if rest is None:
                raise
            return int(rest[1]) - 1
        return len(text)

    return skip
