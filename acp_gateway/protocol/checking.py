"""Checks in one pass, in C, that a text is JSON, and what its method is."""

import msgspec

from acp_gateway.protocol.spans import MalformedJson, structure


class _Top(msgspec.Struct, gc=False):
    method: msgspec.Raw = msgspec.Raw(b"")


_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode_top = msgspec.json.Decoder(_Top).decode
_decode_string = msgspec.json.Decoder(str).decode


def method_of(message: bytes) -> str:
    """Return the method of a message, the last of several as parsers have it; empty if it has none.

    UTF-8 is not checked. Raises `MalformedJson` if the text is not JSON, or is nested hundreds of levels deep.
    """
    plain = structure(message)
    try:
        _check(plain)
    except (msgspec.DecodeError, RecursionError):
        raise MalformedJson("not JSON, or nested too deep") from None
    try:
        method = _decode_top(plain).method
        return _decode_string(method) if method else ""
    except msgspec.DecodeError:
        return ""  # Not an object, or not a string.
