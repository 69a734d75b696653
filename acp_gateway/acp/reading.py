"""Reads a JSON object as a struct, in one step of the decoder, whatever it is.

A struct says which members are read: each is a string or None, another struct, or the JSON text that it is. One that is
absent, or of another type, has its default, and so have all members of what is not an object. Nothing is raised.

The decoder refuses members of other types, and escapes of lone surrogates. Then each object takes a step for itself, in
which its members are JSON texts, and such escapes are hidden.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import MalformedJson

ABSENT: Final = Raw(b"")
"""Default of a member that stays a JSON text."""

_HIDDEN: Final = b"\xff"
"""Stands for a backslash, as no text in UTF-8 has this byte."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_string: Final = msgspec.json.Decoder(str).decode

_T = TypeVar("_T")
_Shape = TypeVar("_Shape", bound="Shape")
_Text: TypeAlias = bytes | Raw


class Shape(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An object, as far as it is read: each member has a default, and its name is in camel case in JSON."""

    @classmethod
    def read(cls, text: _Text) -> Self:
        """Return what an object says."""
        if not text:
            return cls()
        try:
            found: Self = _decode[cls](text)
        except _UNREADABLE:
            found = _leniently(cls, text)
        return found

    @classmethod
    def of(cls, message: bytes) -> Self:
        """Return what the params of a message say."""
        found: Self = _messages[cls].read(message).params
        return found

    @classmethod
    def each(cls, array: _Text, most: int = spans.ELEMENTS) -> list[Self]:
        """Return what the elements of an array say; nothing of another value, or where there are more than `most`."""
        text = bytes(array)
        try:
            if text[:1] == b"[" and spans.count(text, b",") < most:
                found: list[Self] = _decode_each[cls](text)
                return found
        except _UNREADABLE:
            pass
        return list(map(cls.read, elements(text, most)))


class _Made(dict[type[Shape], _T]):
    """Things that are made of shapes when they are first used: a dict is faster than a cache."""

    def __init__(self, make: Callable[[type[Shape]], _T]) -> None:
        self._make = make

    def __missing__(self, shape: type[Shape]) -> _T:
        self[shape] = self._make(shape)
        return self[shape]


def _message_of(shape: type[Shape]) -> type[Any]:
    """Return the shape of a message whose params have a shape."""
    return msgspec.defstruct("Message", [("params", shape, shape())], bases=(Shape,), frozen=True, gc=False)


_Spell = Callable[[Raw], bytes]
"""Returns a JSON text as it was written."""


class _Texts(NamedTuple):
    """A shape whose members are JSON texts."""

    decode: Callable[[_Text], msgspec.Struct]
    raws: list[int]
    """Places of the members that stay so."""
    others: list[tuple[int, type[Shape] | None, Any]]
    """Place of each other member, its shape if it is not a string, and its default."""


def _texts_of(shape: type[Shape]) -> _Texts:
    fields = msgspec.structs.fields(shape)
    texts = [(it.name, Raw, msgspec.field(name=it.encode_name, default=ABSENT)) for it in fields]
    decode = msgspec.json.Decoder(msgspec.defstruct("Texts", texts, gc=False)).decode
    raws = [place for place, it in enumerate(fields) if it.type is Raw]
    others = [(place, _shape_in(it.type), it.default) for place, it in enumerate(fields) if it.type is not Raw]
    return _Texts(decode, raws, others)


def _shape_in(kind: Any) -> type[Shape] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Shape) else None


_decode: Final = _Made[Callable[[_Text], Any]](lambda shape: msgspec.json.Decoder(shape).decode)
_decode_each: Final = _Made[Callable[[_Text], Any]](lambda shape: msgspec.json.Decoder(list[shape]).decode)  # type: ignore[valid-type]
_messages: Final = _Made[type[Any]](_message_of)
_texts: Final = _Made[_Texts](_texts_of)


def _leniently(shape: type[_Shape], text: _Text) -> _Shape:
    """Return what an object says that the decoder has refused."""
    whole = bytes(text)
    if b"\\u" not in whole or (b"\\ud" not in whole and b"\\uD" not in whole):
        return _one_by_one(shape, text, bytes)
    if _HIDDEN in whole:
        return shape()
    # Of the backslashes that are left, each begins an escape.
    hidden = whole.replace(b"\\\\", 2 * _HIDDEN).replace(b"\\ud", b"\xffud").replace(b"\\uD", b"\xffuD")
    return _one_by_one(shape, hidden, _as_written)


def _as_written(hidden: Raw) -> bytes:
    return bytes(hidden).replace(_HIDDEN, b"\\")


def _one_by_one(shape: type[_Shape], text: _Text, spell: _Spell) -> _Shape:
    decode, raws, others = _texts[shape]
    try:
        found: list[Any] = [*msgspec.structs.astuple(decode(text))]
    except _UNREADABLE:
        return shape()
    for place, kind, default in others:
        raw = found[place]
        if raw is ABSENT:
            found[place] = default
        elif kind is None:
            written = spell(raw)
            # A string that the decoder refuses has an escape, and to be refused takes long.
            read = _string if b"\\u" in written else string
            found[place] = read(written) if written[:1] == b'"' else None
        else:
            found[place] = _one_by_one(kind, raw, spell)
    if spell is not bytes:
        for place in raws:
            if found[place] is not ABSENT:
                found[place] = Raw(spell(found[place]))
    return shape(*found)


def elements(array: _Text, most: int = spans.ELEMENTS) -> list[bytes]:
    """Return the elements of an array as JSON texts; none of another value, or where there are more than `most`."""
    text = bytes(array)
    try:
        return lookup.elements_of(text, most) if text[:1] == b"[" else []
    except MalformedJson:
        return []


def string(text: _Text | None) -> str | None:
    """Return the value of a string, None for any other JSON text and for no text."""
    if not text:
        return None
    try:
        return _decode_string(text)
    except _UNREADABLE:
        return _string(bytes(text))


def _string(text: bytes) -> str | None:
    try:
        return spans.string_or_none(text)
    except MalformedJson:
        return None
