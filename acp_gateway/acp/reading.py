"""Reads a JSON object as a struct, in one step of the decoder, whatever it is.

A struct says which members are read: each is a string or None, another struct, or the JSON text that it is. One that is
absent, or of another type, has its default, and so have all members of what is not an object. Nothing is raised.
"""

from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw

from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import MalformedJson

_Shape = TypeVar("_Shape", bound=msgspec.Struct)

ABSENT: Final = Raw(b"")
"""Default of a member that stays a JSON text."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_string: Final = msgspec.json.Decoder(str).decode


class Reader(Generic[_Shape]):
    """Reads objects of one shape, which is frozen and has a default for each member."""

    def __init__(self, shape: type[_Shape]) -> None:
        self._shape = shape
        self._absent = shape()
        self._decode = msgspec.json.Decoder(shape).decode

    def __call__(self, text: bytes | Raw) -> _Shape:
        """Return what an object says."""
        if not text:
            return self._absent
        try:
            return self._decode(text)
        except _UNREADABLE:
            # A member of another type, or a lone surrogate, which the decoder refuses.
            return _one_by_one(self._shape, text)

    def each(self, array: bytes | Raw, most: int = spans.ELEMENTS) -> list[_Shape]:
        """Return what the elements of an array say; nothing of another value, or where there are more than `most`."""
        return list(map(self, elements(array, most)))


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
