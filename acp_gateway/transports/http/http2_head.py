"""The head of a request over HTTP/2, as one of HTTP/1.1: refused where a proxy behind could read it differently.

The rules are those of RFC 9113, 8.2 and 8.3, and the limits those of `head`. `:authority` becomes `Host`, so that what
checks the names of the gateway checks it too; fields of one cookie each become one `Cookie`.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from websockets.datastructures import Headers

from acp_gateway.transports.http.head import (
    DIGITS,
    FIELD_TOO_LARGE,
    LINE_SIZE,
    MAX_FIELDS,
    TOO_MANY_FIELDS,
    HttpError,
    split_target,
)
from acp_gateway.transports.http.server import Request

NOT_SOUND: Final = "this is not understood: it must be a request of HTTP/2, sound and with one meaning"
"""Response to fields that are not those of a request."""

CONNECTION_FIELDS: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"}
)
"""Fields of one connection of HTTP/1.1, which HTTP/2 has none of, nor passes on."""

_PSEUDO: Final = (b":method", b":scheme", b":path", b":authority")
_NEEDED: Final = frozenset(_PSEUDO[:3])
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE: Final = re.compile(rb"(?:[^\x00-\x20\x7f](?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}")
_PATH: Final = re.compile(rb"/[!-~]*")


def read_head(fields: Sequence[tuple[bytes, bytes]]) -> tuple[Request, int | None]:
    """Return a request and the bytes of its body, None where only the end will tell. Raises `HttpError`."""
    _check_sizes(fields)
    pseudo: dict[bytes, bytes] = {}
    lengths: list[bytes] = []
    cookies: list[str] = []
    headers, ordinary = Headers(), False
    for name, value in fields:
        _require(_VALUE.fullmatch(value))
        if name.startswith(b":"):
            _require(name in _PSEUDO and name not in pseudo and not ordinary)
            pseudo[name] = value
            continue
        ordinary = True
        _require(_NAME.fullmatch(name))
        text = name.decode("ascii")
        if name == b"content-length":
            lengths.append(value)
        elif name == b"cookie":
            cookies.append(value.decode("latin-1"))
        elif text in CONNECTION_FIELDS:
            _require(name == b"te" and value.lower() == b"trailers")
        else:
            headers[text] = value.decode("latin-1")
    _require(pseudo.keys() >= _NEEDED)
    _require(_METHOD.fullmatch(pseudo[b":method"]))
    _require(pseudo[b":scheme"] in (b"http", b"https"))
    _require(_PATH.fullmatch(pseudo[b":path"]))
    _require(len(lengths) <= 1 and all(map(DIGITS.fullmatch, lengths)))
    if cookies:
        headers["Cookie"] = _one_cookie(cookies)
    hosts = headers.get_all("Host")
    named = [pseudo[b":authority"].decode("latin-1")] if b":authority" in pseudo else hosts
    _require(len(named) == 1 and hosts in ([], named))
    if not hosts:
        headers["Host"] = named[0]
    path, query = split_target(pseudo[b":path"].decode("ascii"), headers)
    request = Request(pseudo[b":method"].decode("ascii"), path, query, headers, "2")
    return request, int(lengths[0]) if lengths else None


def _check_sizes(fields: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise `HttpError` for too many fields, or too long ones; all together are bounded when they are read."""
    # Browsers have a field for each cookie.
    if sum(name != b"cookie" for name, _ in fields) > MAX_FIELDS + len(_PSEUDO):
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_MANY_FIELDS)
    for name, value in fields:
        if len(name) + len(value) > LINE_SIZE:
            if name == b":path":
                raise HttpError(HTTPStatus.REQUEST_URI_TOO_LONG, f"a path must not exceed {LINE_SIZE} bytes")
            raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, FIELD_TOO_LARGE)


def _one_cookie(cookies: list[str]) -> str:
    """Return the value of one `Cookie` (RFC 9113, 8.2.3). Raises `HttpError`."""
    cookie = "; ".join(filter(None, cookies))
    if len(cookie) > LINE_SIZE:
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, FIELD_TOO_LARGE)
    return cookie


def _require(sound: object) -> None:
    if not sound:
        raise HttpError(HTTPStatus.BAD_REQUEST, NOT_SOUND)
