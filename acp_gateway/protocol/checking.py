"""Checks in one pass, in C, that a text is JSON, and what its method is."""

import msgspec

from acp_gateway.protocol.spans import MalformedJson


class _Top(msgspec.Struct, gc=False):
    method: msgspec.Raw = msgspec.Raw(b"")


_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode_top = msgspec.json.Decoder(_Top).decode
_decode_string = msgspec.json.Decoder(str).decode


def method_of(message: bytes) -> str:
    """The method of a message, empty where it has none; the last of several, as parsers have it.

    Raises `ValueError` for what is no JSON, and for what is nested hundreds of levels deep. Whether it is UTF-8 is not
    looked at.
    """
    # msgspec refuses the escape of a lone surrogate: to be JSON or not, any other escape of that length is as good.
    plain = message.replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0") if rb"\u" in message else message
    try:
        _check(plain)
    except (msgspec.DecodeError, RecursionError):
        raise MalformedJson("not JSON, or nested too deep") from None
    try:
        method = _decode_top(plain).method
        return _decode_string(method) if method else ""
    except msgspec.DecodeError:
        return ""  # Something else than an object, or than a string.
