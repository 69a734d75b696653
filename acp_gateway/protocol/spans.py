r"""Where the values of a JSON text are: spans over bytes that stay verbatim.

A message that is parsed and written again is another message: `1e999`, `1.10`, repeated members and the
order of members do not survive it. So whatever has to change in one is cut out and replaced by position, and
this module knows the positions.

`value_end` walks from bracket to bracket. Four regular expressions say what may stand between two brackets:
after `{` or `[`, and after a value inside an object or an array. Each of them swallows the names, strings,
numbers and commas on its way, and ends behind the next bracket: a container that opens, or the end of the
innermost open one. So the loop needs no state but a stack with one byte for each open container, and there is
no recursion, whatever the depth.

Nothing is read in more than a fixed number of ways, so time is linear in the length of the text. Before
Python 3.11.5 (Debian 12 has 3.11.2) a possessive quantifier on a group loses what an iteration has read when
it fails half-way. The one in `_STRING` cannot: nothing behind the backslash moves the matcher before it fails.
Runs of values are atomic groups instead, with a bound, since a greedy group pays for each iteration in memory.

What is accepted is JSON as RFC 8259 has it (`NaN` and `Infinity` are not), save that strings may hold any
bytes but control characters, and any escapes; `string_value` finds out what cannot be decoded. What stands
behind the value that was asked for is not looked at.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SPACE = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_SCALAR = rb"(?:%b|%b|true|false|null)" % (_STRING, _NUMBER)
_NAME = rb"%b%b:%b" % (_STRING, _SPACE, _SPACE)


def _to_next_bracket(name: bytes, closing: bytes) -> bytes:
    """Scalars and commas up to a bracket; after a thousand of them, up to a comma."""
    run = rb"(?>(?:%b%b%b,%b){0,1000})" % (name, _SCALAR, _SPACE, _SPACE)
    return run + rb"%b(?:[\[{]|%b%b(?:%b|(?=,)))" % (name, _SCALAR, _SPACE, closing)


_IN_OBJECT = _to_next_bracket(_NAME, rb"\}")
_IN_ARRAY = _to_next_bracket(b"", rb"\]")

_OBJECT, _ARRAY = b"{["
_AFTER_OPENING = {
    _OBJECT: re.compile(rb"%b(?:\}|%b)" % (_SPACE, _IN_OBJECT)),
    _ARRAY: re.compile(rb"%b(?:\]|%b)" % (_SPACE, _IN_ARRAY)),
}
_AFTER_VALUE = {
    _OBJECT: re.compile(rb"%b(?:\}|,%b%b)" % (_SPACE, _SPACE, _IN_OBJECT)),
    _ARRAY: re.compile(rb"%b(?:\]|,%b%b)" % (_SPACE, _SPACE, _IN_ARRAY)),
}

_match_space = re.compile(_SPACE).match
_match_scalar = re.compile(_SCALAR).match
_match_member = re.compile(rb"(%b)%b:%b(%b)?" % (_STRING, _SPACE, _SPACE, _SCALAR)).match
_match_delimiter = re.compile(rb"%b([,\]}])%b" % (_SPACE, _SPACE)).match
_match_whole_string = re.compile(_STRING).fullmatch


class MalformedJson(ValueError):
    """The text is not JSON, or ends too early."""


class Member(NamedTuple):
    """A member of an object: where its value is."""

    name: bytes
    """The name as a JSON string, verbatim, quotes included; `string_value` decodes it."""
    start: int
    """Index of the value's first byte."""
    end: int
    """Index after the value's last byte."""


def skip_space(text: bytes, at: int) -> int:
    """Return the index of the first byte from `at` on that is no white space, at most the text's length."""
    space = _match_space(text, at)
    assert space is not None
    return space.end()


def value_end(text: bytes, start: int) -> int:
    """Return the index after the value that begins exactly at `start`.

    Raises:
        MalformedJson: no whole value is there.
    """
    if scalar := _match_scalar(text, start):
        return scalar.end()
    if text[start : start + 1] not in (b"{", b"["):
        raise _malformed(text, start)
    open_containers = bytearray(text[start : start + 1])
    at = start + 1
    patterns = _AFTER_OPENING
    while open_containers:
        between_brackets = patterns[open_containers[-1]].match(text, at)
        if between_brackets is None:
            raise _malformed(text, at)
        at = between_brackets.end()
        last = text[at - 1]
        if last in b"{[":
            open_containers.append(last)
            patterns = _AFTER_OPENING
        else:
            if last in b"}]":
                open_containers.pop()
            patterns = _AFTER_VALUE
    return at


def members(text: bytes, start: int = 0) -> Iterator[Member]:
    """Yield the members of the object that begins at `start`, white space before it allowed, in their order.

    Raises:
        MalformedJson: there is no object, or it is broken; raised when the walk gets there.
    """
    at = skip_space(text, start)
    if text[at : at + 1] != b"{":
        raise _malformed(text, at)
    at = skip_space(text, at + 1)
    more = text[at : at + 1] != b"}"
    while more:
        member = _match_member(text, at)
        if member is None:
            raise _malformed(text, at)
        start, end = member.span(2)
        if end < 0:
            start = member.end()
            end = value_end(text, start)
        yield Member(member[1], start, end)
        at, more = _after_value(text, end, b"}")


def elements(text: bytes, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the spans of the elements of the array that begins at `start`, white space before it allowed.

    Raises:
        MalformedJson: there is no array, or it is broken; raised when the walk gets there.
    """
    at = skip_space(text, start)
    if text[at : at + 1] != b"[":
        raise _malformed(text, at)
    at = skip_space(text, at + 1)
    more = text[at : at + 1] != b"]"
    while more:
        end = value_end(text, at)
        yield at, end
        at, more = _after_value(text, end, b"]")


def string_value(raw: bytes) -> str:
    """Decode a JSON string, quotes included. Escapes of lone surrogates become lone surrogates.

    Raises:
        MalformedJson: `raw` is not exactly one JSON string, or is not UTF-8.
    """
    if _match_whole_string(raw) is None:
        raise MalformedJson("not a JSON string")
    try:
        text = raw.decode()
        value = json.loads(text) if "\\" in text else text[1:-1]
    except ValueError as error:
        raise MalformedJson("a JSON string with a wrong escape, or not UTF-8") from error
    assert isinstance(value, str)
    return value


def find(text: bytes, *names: str) -> tuple[int, int] | None:
    """Return the span of the value at the member path `names` from the top; of the whole value for no names.

    Names are compared unescaped. Of a member that is repeated the last counts, as parsers have it.

    Returns:
        The span, or None if there is no such member or something on the way is no object.

    Raises:
        MalformedJson: the text is broken, or a name is not UTF-8.
    """
    start = skip_space(text, 0)
    span = start, value_end(text, start)
    for name in names:
        if text[span[0]] != _OBJECT:
            return None
        plain = b'"%b"' % name.encode(errors="surrogatepass")
        found = None
        for member in members(text, span[0]):
            if member.name == plain or (b"\\" in member.name and string_value(member.name) == name):
                found = member.start, member.end
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
    """
    start = skip_space(text, 0)
    if text[start : start + 1] != b"{":
        value_end(text, start)
        return None
    params: int | None = None
    seen: set[str] = set()
    for member in members(text, start):
        name = string_value(member.name)
        folded = name.casefold()
        if folded in seen:
            return name
        seen.add(folded)
        if folded == "params" and text[member.start] == _OBJECT:
            params = member.start
    if params is None:
        return None
    seen.clear()
    for member in members(text, params):
        name = string_value(member.name)
        folded = name.casefold()
        if folded in seen:
            return name
        seen.add(folded)
    return None


def _after_value(text: bytes, end: int, closing: bytes) -> tuple[int, bool]:
    """Step over what is behind a value: where the next one begins, and whether there is one."""
    delimiter = _match_delimiter(text, end)
    if delimiter is None or delimiter[1] not in (b",", closing):
        raise _malformed(text, end)
    return delimiter.end(), delimiter[1] == b","


def _malformed(text: bytes, at: int) -> MalformedJson:
    return MalformedJson(f"not JSON, or cut off: see what follows byte {at} of {len(text)}")
