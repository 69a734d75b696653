"""Reads a JSON object as a struct, in one step of the decoder, whatever it is.

A struct says which members are read: each is a string or None, another struct, or the JSON text that it is. One that is
absent, or of another type, has its default, and so have all members of what is not an object. Nothing is raised.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import Raw

from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import MalformedJson

ABSENT: Final = Raw(b"")
"""Default of a member that stays a JSON text."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_string: Final = msgspec.json.Decoder(str).decode


class Shape(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An object, as far as it is read: each member has a default, and its name is in camel case in JSON."""

    @classmethod
    def read(cls, text: bytes | Raw) -> Self:
        """Return what an object says."""
        if not text:
            return cls()
        try:
            found: Self = _decoders[cls](text)
        except _UNREADABLE:
            # A member of another type, or a lone surrogate, which the decoder refuses.
            found = _one_by_one(cls, text)
        return found

    @classmethod
    def each(cls, array: bytes | Raw, most: int = spans.ELEMENTS) -> list[Self]:
        """Return what the elements of an array say; nothing of another value, or where there are more than `most`."""
        return list(map(cls.read, elements(array, most)))


class _Decoders(dict[type[Shape], Callable[[bytes | Raw], Any]]):
    """The decoder of each shape, made when it is first used: a dict is faster than a cache, and each read takes one."""

    def __missing__(self, shape: type[Shape]) -> Callable[[bytes | Raw], Any]:
        self[shape] = msgspec.json.Decoder(shape).decode
        return self[shape]


_decoders: Final = _Decoders()


def elements(array: bytes | Raw, most: int = spans.ELEMENTS) -> list[bytes]:
    """Return the elements of an array as JSON texts; none of another value, or where there are more than `most`."""
    text = bytes(array)
    try:
        return lookup.elements_of(text, most) if text[:1] == b"[" else []
    except MalformedJson:
        return []


def string(text: bytes | Raw) -> str | None:
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


_Shape = TypeVar("_Shape", bound=Shape)


def _one_by_one(shape: type[_Shape], text: bytes | Raw) -> _Shape:
    try:
        members = lookup.members_of(text)
    except MalformedJson:
        return shape()
    found = [(name, kind, members[written]) for written, name, kind in _members(shape) if written in members]
    return shape(**{name: _value(kind, text) for name, kind, text in found})


@functools.cache
def _members(shape: type[Shape]) -> list[tuple[str, str, Any]]:
    """Return the members of a shape: name in JSON, name of the attribute, and kind. Asking for them takes long."""
    return [(it.encode_name, it.name, it.type) for it in msgspec.structs.fields(shape)]


def _value(kind: Any, text: bytes | Raw) -> Any:
    if kind is Raw:
        return Raw(bytes(text))
    return kind.read(text) if isinstance(kind, type) and issubclass(kind, Shape) else string(text)
