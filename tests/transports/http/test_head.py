"""The head of a request: what two parsers may read differently is refused, as soon as it is there."""

import pytest
from websockets.datastructures import Headers

from acp_gateway.transports.http.head import (
    HEAD_SIZE,
    LINE_SIZE,
    MAX_FIELDS,
    HttpError,
    body_size,
    check_head,
    split_target,
)

LINE = b"POST /a HTTP/1.1\r\n"


def check_in_pieces(head: bytes) -> None:
    """Check a head that comes byte by byte, and in larger pieces where it is long."""
    begun = 0
    for size in [*range(1, 200), *range(200, len(head), 97), len(head)]:
        check_head(head[:size], begun)
        begun = size


def refused(head: bytes) -> int:
    """The status by which a head is refused, whether it comes at once or in pieces."""
    with pytest.raises(HttpError) as at_once:
        check_head(head, 0)
    with pytest.raises(HttpError) as in_pieces:
        check_in_pieces(head)
    assert at_once.value.status == in_pieces.value.status
    return at_once.value.status


@pytest.mark.parametrize(
    "head",
    [
        LINE + b"A: b\nC: d\r\n",
        LINE + b"A: b\rC: d\r\n",
        LINE + b"A: b\r\n C: d\r\n",
        LINE + b"A: b\r\n\tC: d\r\n",
        LINE + b"A: b\0\r\n",
        LINE + b"A: b\x7f\r\n",
        LINE + b"A: \x0bb\r\n",
        b"\x16\x03\x01 /a",
        b"A" * 21 + b" /a",
    ],
)
def test_a_head_with_two_readings_is_refused(head: bytes) -> None:
    assert refused(head) == 400


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"x" * LINE_SIZE, 414),
        (LINE + b"A: " + b"x" * LINE_SIZE, 431),
        (LINE + b"A: b\r\n" * (MAX_FIELDS + 2), 431),
    ],
)
def test_a_head_that_is_too_long_is_refused_before_its_end(head: bytes, status: int) -> None:
    assert refused(head) == status
    assert len(head) < HEAD_SIZE


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        (b"A: b\r\n", 0),
        (b"Content-Length: 12\r\n", 12),
        (b"CONTENT-LENGTH:12 \r\n", 12),
        (b"Transfer-Encoding: Chunked\r\n", None),
        (b"X: Content-Length: 5\r\n", 0),
    ],
)
def test_a_head_announces_the_size_of_the_body_or_chunks(fields: bytes, size: int | None) -> None:
    assert body_size(LINE + fields + b"\r\n", b"1.1") == size


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        (b"Content-Length: 1\r\nContent-Length: 1\r\n", b"1.1"),
        (b"Content-Length: 1, 1\r\n", b"1.1"),
        (b"Content-Length: +1\r\n", b"1.1"),
        (b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", b"1.1"),
        (b"Transfer-Encoding: chunked, chunked\r\n", b"1.1"),
        (b"Transfer-Encoding: chunked\r\n", b"1.0"),
        (b"Transfer-Encoding: \x0bchunked\r\n", b"1.1"),
    ],
)
def test_a_body_of_two_sizes_is_refused(fields: bytes, version: bytes) -> None:
    with pytest.raises(HttpError):
        body_size(LINE + fields + b"\r\n", version)


def test_a_target_is_a_path_or_a_url_of_the_host() -> None:
    headers = Headers(Host="h")
    assert split_target("/a?b=1", headers) == ("/a", "b=1")
    assert split_target("http://h/a?b=1", headers) == ("/a", "b=1")
    for target in ("http://other/a", "a", "*", "http://[", "ftp://h/a"):
        with pytest.raises(HttpError):
            split_target(target, headers)
