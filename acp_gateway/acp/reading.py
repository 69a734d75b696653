"""Reads a JSON object as a struct, in one step of the decoder, whatever it is.

A struct says which members are read: each is a string or None, another struct, or the JSON text that it is. One that is
absent, or of another type, has its default, and so have all members of what is not an object. Nothing is raised.
"""

from collections.abc import Callable
from functools import cache
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
            found: Self = _decoder(cls)(text)
        except _UNREADABLE:
            # A member of another type, or a lone surrogate, which the decoder refuses.
            found = _one_by_one(cls, text)
        return found

    @classmethod
    def each(cls, array: bytes | Raw, most: int = spans.ELEMENTS) -> list[Self]:
        """Return what the elements of an array say; nothing of another value, or where there are more than `most`."""
        return list(map(cls.read, elements(array, most)))


@cache
def _decoder(shape: type[Shape]) -> Callable[[bytes | Raw], Any]:
    return msgspec.json.Decoder(shape).decode


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
        members = {}
    fields = msgspec.structs.fields(shape)
    return shape(
        **{it.name: _value(it.type, bytes(members[it.encode_name])) for it in fields if it.encode_name in members}
    )


def _value(kind: Any, text: bytes) -> Any:
    if kind is Raw:
        return Raw(text)
    return _one_by_one(kind, text) if isinstance(kind, type) else _string(text)
