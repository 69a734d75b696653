"""The head of an HTTP/1.1 request: refused where two parsers may read it differently (RFC 9112, 11.2).

Bare CR or LF, control characters, folded lines, more than one `Content-Length`, one beside `Transfer-Encoding`, and a
target whose host is not that of the `Host` header. A proxy in front and this server then never disagree about where a
request ends.
"""

import re
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from websockets.datastructures import Headers

HEAD_SIZE: Final = 65536
"""Maximum bytes of a request's head. No client of this program sends as much as one line may hold."""

LINE_SIZE: Final = 8192
"""Maximum bytes of a line of it, as in most servers."""

MAX_FIELDS: Final = 128
"""Maximum header fields."""

_AMBIGUOUS: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r\n[ \t]")
"""Line ends that parsers read differently, control characters, and folded lines."""

_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{0,20}(?:\Z| )")
"""The beginning of a request: what else comes is not HTTP, and its end need not be waited for."""

_LENGTH: Final = re.compile(rb"(?i)\n[ \t]*content-length[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=\r)")
_ENCODING: Final = re.compile(rb"(?i)\n[ \t]*transfer-encoding[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=\r)")

DIGITS: Final = re.compile(rb"[0-9]{1,15}")
"""The form of `Content-Length`."""

NOT_HTTP: Final = (
    "this is not understood: it must be a request of HTTP/1.1, sound and with one meaning"
    " (behind nginx: proxy_http_version 1.1)"
)
"""Response to bytes that are not a request."""

FIELD_TOO_LARGE: Final = f"a header field must not be larger than {LINE_SIZE} bytes"
TOO_MANY_FIELDS: Final = f"a request must not have more than {MAX_FIELDS} header fields"
"""Responses to a head with these."""


class HttpError(Exception):
    """A request that can't be read. The response has this status; the connection is closed behind it."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


def check_head(head: bytes, searched: int) -> None:
    """Raise `HttpError` if a head, or its beginning, is too long or can be read in two ways.

    `searched`: bytes of it that were checked before.
    """
    begun = head[max(0, head.rfind(b"\n", 0, searched) - 1) :]
    lines = begun.split(b"\n")
    if not _METHOD.match(head):
        raise HttpError(HTTPStatus.BAD_REQUEST, NOT_HTTP)
    if max(map(len, lines)) > LINE_SIZE:
        if b"\n" not in head[: LINE_SIZE + 1]:
            raise HttpError(HTTPStatus.REQUEST_URI_TOO_LONG, f"a request line must not exceed {LINE_SIZE} bytes")
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, FIELD_TOO_LARGE)
    # The last byte may be the first half of a line's end.
    if _AMBIGUOUS.search(begun[:-1] if begun.endswith(b"\r") else begun):
        raise HttpError(HTTPStatus.BAD_REQUEST, NOT_HTTP)
    if head.count(b"\n") > MAX_FIELDS + 2:
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_MANY_FIELDS)


def body_size(head: bytes, version: bytes) -> int | None:
    """Return the announced size of a body, None if it is chunked. Raises `HttpError` if there are two readings.

    It looks at the head itself, because h11 takes two equal lengths for one.
    """
    lengths, encodings = _LENGTH.findall(head), _ENCODING.findall(head)
    if encodings:
        if lengths or version != b"1.1" or [encoding.lower() for encoding in encodings] != [b"chunked"]:
            text = "Transfer-Encoding must be chunked, once, in HTTP/1.1 and without Content-Length"
            raise HttpError(HTTPStatus.BAD_REQUEST, text)
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not DIGITS.fullmatch(lengths[0]):
        raise HttpError(HTTPStatus.BAD_REQUEST, "Content-Length must be one number")
    return int(lengths[0])


def split_target(target: str, headers: Headers) -> tuple[str, str]:
    """Return path and query of a target in origin-form or absolute-form (RFC 9112, 3.2). Raises `HttpError`."""
    if not target.startswith("/"):
        try:
            parts = urlsplit(target)
        except ValueError:
            parts = urlsplit("")
        hosts = headers.get_all("Host")
        if parts.scheme not in ("http", "https") or not parts.netloc or hosts != [parts.netloc]:
            text = "the target of a request must be a path, or a URL with the name of the Host header"
            raise HttpError(HTTPStatus.BAD_REQUEST, text)
        target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    path, _, query = target.partition("?")
    return path, query


def media_types(headers: Headers, name: str) -> list[str]:
    """Return the media types that a header names, in lower case and without parameters; [""] if it is not there."""
    values = ",".join(headers.get_all(name)).split(",")
    return [value.partition(";")[0].strip().lower() for value in values]
