"""Looks up members of a message or of a JSON value, by name or path. Values stay the JSON texts that they are.

Objects with more than `spans.MEMBERS` members are not looked into.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.spans import MalformedJson, TooMany

_ABSENT: Final = msgspec.Raw(b"")


class _Params(msgspec.Struct, gc=False):
    params: msgspec.Raw = _ABSENT


class _Method(msgspec.Struct, gc=False):
    method: msgspec.Raw = _ABSENT


_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_params = msgspec.json.Decoder(_Params).decode
_decode_method = msgspec.json.Decoder(_Method).decode
_decode_string = msgspec.json.Decoder(str).decode
_check = msgspec.json.Decoder(msgspec.Raw).decode


def method_of(text: bytes) -> str:
    """Return the method of a text that may not be a message, the last of several; empty if it has none.

    UTF-8 is not checked. Raises `MalformedJson` if the text is not JSON, or is nested hundreds of levels deep.
    """
    plain = spans.structure(text)
    try:
        _check(plain)
    except (msgspec.DecodeError, RecursionError):
        raise MalformedJson("not JSON, or nested too deep") from None
    try:
        method = _decode_method(plain).method
        return _decode_string(method) if method else ""
    except msgspec.DecodeError:
        return ""  # Not an object, or not a string.


def text_at(message: bytes | msgspec.Raw, *path: str) -> str | None:
    """Return the string at a member path of a message, None where there is none."""
    return spans.string_or_none(raw_at(message, *path))


def raw_at(message: bytes | msgspec.Raw, *path: str) -> bytes | None:
    """Return the JSON text of the value at a member path of a message, None where there is none.

    There is none as well within an object that has more than `spans.MEMBERS` members.
    """
    value = message
    for depth, name in enumerate(path):
        members = _decoded_members(value)
        if members is None:
            # One walk finds the rest of the path.
            text = bytes(value)
            at = spans.find(text, *path[depth:])
            return None if at is None else text[at[0] : at[1]]
        found = members.get(name)
        if found is None:
            return None
        value = found
    return bytes(value)


def members_at(message: bytes | msgspec.Raw, *path: str) -> dict[str, bytes]:
    """Return the members of the object at a member path of a message, as JSON texts; none if there is no object."""
    raw = raw_at(message, *path) if path else message
    return {} if raw is None else {name: bytes(value) for name, value in members_of(raw).items()}


def members_of(value: bytes | msgspec.Raw) -> Mapping[str, bytes | msgspec.Raw]:
    """Return the members of an object, none of anything else; mostly they are views and not copies.

    There are none as well of an object that has more than `spans.MEMBERS` members.
    """
    members = _decoded_members(value)
    if members is not None:
        return members
    text = bytes(value)
    if not text.lstrip().startswith(b"{"):
        return {}
    try:
        return _members_in(text)
    except TooMany:
        return {}


def _decoded_members(value: bytes | msgspec.Raw) -> Mapping[str, bytes | msgspec.Raw] | None:
    """Return the members of an object, none of anything else, None where only a walk finds them.

    That is where there may be more than `spans.MEMBERS`, or is a lone surrogate.
    """
    try:
        if len(value) <= spans.MEMBERS or spans.count(bytes(value), b":") <= spans.MEMBERS:
            return _decode_members(value)
    except msgspec.ValidationError:
        return {}
    except (msgspec.DecodeError, RecursionError):
        pass
    return None


def _members_in(text: bytes) -> dict[str, bytes]:
    """Return the members of an object. Raises `TooMany`."""
    return {spans.string_value(name): text[start:end] for name, start, end in spans.members(text)}


def elements_of(array: bytes, most: int = spans.ELEMENTS) -> list[bytes]:
    """Return the elements of an array, as JSON texts. Raises `TooMany` where there are more than `most`."""
    try:
        if spans.count(array, b",") < most:
            return list(map(bytes, _decode_elements(array)))
    except (msgspec.DecodeError, RecursionError):
        pass  # A lone surrogate somewhere.
    return [array[start:end] for start, end in spans.elements(array, most=most)]


def params_of(message: Message) -> Mapping[str, bytes | msgspec.Raw]:
    """Return the members of a message's `params`, where that is an object; they are kept."""
    found = message.params
    if found is None:
        params = raw_params(message)
        found = members_of(params) if params else {}
        if len(found) <= methods.MEMBERS:
            msgspec.structs.force_setattr(message, "params", found)
    return found


def raw_params(message: Message) -> bytes:
    """Return the JSON text of a message's `params`, empty where there are none."""
    try:
        return bytes(_decode_params(message.text).params)
    except (msgspec.DecodeError, RecursionError):
        at = spans.find(message.text, "params")
        return b"" if at is None else message.text[at[0] : at[1]]


def param(message: Message, name: str, *path: str) -> bytes | None:
    """Return the JSON text of a member of a message's `params`, or at a path within it; None where there is none."""
    found = params_of(message).get(name)
    return None if found is None else raw_at(found, *path)


def text_param(message: Message, name: str, *path: str) -> str | None:
    """Return the string at a path of a message's `params`, None where there is none."""
    return spans.string_or_none(param(message, name, *path))


def error_code(response: Message) -> int | None:
    """Return the code of an error response, in any spelling of the number; None if it has none."""
    return jsonrpc.id_number(RawId(raw_at(response.text, "error", "code") or b"null"))


def has_readable_result(response: Message) -> bool:
    """Return True if the result of a response has no more members than are looked into."""
    text = response.text
    if len(text) <= spans.MEMBERS or spans.count(text, b":") <= spans.MEMBERS:
        return True
    at = spans.find(text, "result")
    try:
        return at is None or text[at[0]] != ord("{") or sum(1 for _ in spans.members(text, at[0])) >= 0
    except TooMany:
        return False
