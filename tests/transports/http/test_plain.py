"""Plain requests: which ones are, what repeats, and the bytes of their responses. A fuzz holds them against h11."""

import re

import pytest
import trio

from acp_gateway.transports.http.exchange import BODY_SIZE, PLAIN_HEAD_SIZE, PlainExchange, read_plain

HEAD = b"POST /acp?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\nAcp-Session-Id: s\r\n\r\n"


def test_a_plain_head_has_all_but_the_length_among_its_headers() -> None:
    plain = read_plain(HEAD)
    assert plain is not None
    assert (plain.method, plain.target, plain.size) == ("POST", "/acp?a=b", 12)
    assert [*plain.headers.raw_items()] == [("Host", "h"), ("Acp-Session-Id", "s")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST", b"PUT"),
        (b"/acp", b"http://h/acp"),
        (b"1.1", b"1.0"),
        (b"Host: h\r\n", b""),
        (b"Host: h", b"Host: h\r\nHost: h"),
        (b"12", b"12\r\nContent-Length: 12"),
        (b"12", b"+12"),
        (b"12", str(BODY_SIZE + 1).encode()),
        (b"12", b"12\r\nTransfer-Encoding: chunked"),
        (b"12", b"12\r\nExpect: 100-continue"),
        (b"12", b"12\r\nConnection: close"),
        (b"12", b"12\r\nUpgrade: websocket"),
        (b"12", b"12\r\nX: \xe9"),
        (b"12", b"12\r\nX: y\tz"),
        (b"12", b"12\r\nX: y\nz"),
        (b"12", b"12\r\n X: y"),
        (b"12", b"12" + b"\r\nX: y" * 31),
        (b"12", b"12\r\nX: " + b"y" * PLAIN_HEAD_SIZE),
    ],
)
def test_everything_else_is_left_to_h11(old: bytes, new: bytes) -> None:
    assert read_plain(HEAD.replace(old, new, 1)) is None


def test_a_head_repeats_one_that_differs_in_the_length_alone() -> None:
    plain = read_plain(HEAD)
    assert plain is not None
    for length in (b"0", b"7", b"007", b"65536"):
        assert plain.repeated(HEAD.replace(b"12", length))
        assert plain.size == int(length)
    others = [b"65537", b"", b"x", b"1\r\nContent-Length: 1", b"1" * 16]
    for head in (*(HEAD.replace(b"12", length) for length in others), HEAD.replace(b"Id: s", b"Id: t")):
        assert not plain.repeated(head)
    bare = HEAD.replace(b"Content-Length: 12\r\n", b"")
    assert not plain.repeated(bare)
    without = read_plain(bare)
    assert without is not None
    assert without.repeated(bare)
    assert not without.repeated(HEAD)


def test_a_response_has_its_length_or_is_in_chunks() -> None:
    exchange = PlainExchange(0)
    head = exchange.head(202, {"Content-Length": "2"}, chunked=False)
    assert re.fullmatch(rb"HTTP/1\.1 202 Accepted\r\nContent-Length: 2\r\nDate: [^\r\n]+ GMT\r\n\r\n", head)
    assert (exchange.data(b"ok"), exchange.end(), exchange.may_be_followed) == (b"ok", b"", True)
    stream = PlainExchange(0)
    assert stream.head(299, {}, chunked=True).startswith(b"HTTP/1.1 299 \r\nTransfer-Encoding: chunked\r\n")
    assert stream.data(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"
    # A chunk of no bytes would be the end.
    assert stream.data(b"") == b""
    assert not stream.may_be_followed
    assert (stream.end(), stream.end(), stream.may_be_followed) == (b"0\r\n\r\n", b"", True)


def test_another_request_follows_what_was_read_and_answered_as_a_whole_alone() -> None:
    unread, closing = PlainExchange(2), PlainExchange(0)
    unread.head(200, {}, chunked=False)
    closing.head(200, {"Connection": "close"}, chunked=False)
    for exchange in (unread, closing):
        exchange.end()
        assert not exchange.may_be_followed
    assert not unread.is_whole()


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\n", "\r"])
def test_no_header_of_a_response_makes_another_one(value: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        PlainExchange(0).head(200, {"Acp-Gateway": value}, chunked=False)


def test_a_request_is_answered_once() -> None:
    exchange = PlainExchange(0)
    exchange.head(200, {}, chunked=False)
    with pytest.raises(trio.BrokenResourceError):
        exchange.head(200, {}, chunked=False)
