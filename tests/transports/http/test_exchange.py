"""Exchanges by h11: when a request is whole, and what is left of the connection. The server's tests have the rest."""

import pytest
import trio

from acp_gateway.transports.http.exchange import H11Exchange
from acp_gateway.transports.http.head import HttpError


def reading(head: bytes, behind: bytes = b"") -> H11Exchange:
    exchange = H11Exchange()
    exchange.read(head)
    exchange.h11.receive_data(behind)
    return exchange


def test_a_head_has_all_but_the_length_among_its_headers() -> None:
    exchange = H11Exchange()
    method, target, headers, version = exchange.read(b"PUT /a?b HTTP/1.0\r\nHost: h\r\nContent-Length: 2\r\n\r\n")
    assert (method, target, [*headers.raw_items()], version) == ("PUT", "/a?b", [("Host", "h")], "1.0")
    assert exchange.announced == 2


@pytest.mark.parametrize(("line", "status"), [(b"GET / HTTP/2.0", 505), (b"GET /", 400), (b"GET  / HTTP/1.1", 400)])
def test_another_protocol_is_refused(line: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        H11Exchange().read(line + b"\r\nHost: h\r\n\r\n")
    assert refused.value.status == status


def test_nothing_is_whole_before_a_head_was_read_and_it_can_be_refused_all_the_same() -> None:
    exchange = H11Exchange()
    assert not exchange.is_whole()
    assert exchange.head(400, {"Connection": "close"}, chunked=False).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    exchange.end()
    assert not exchange.may_be_followed


def test_a_request_without_a_body_is_whole_and_what_comes_behind_it_is_kept() -> None:
    exchange = reading(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"GET")
    assert exchange.is_whole()
    exchange.head(200, {"Content-Length": "2"}, chunked=False)
    assert exchange.data(b"ok") == b"ok"
    exchange.end()
    assert (exchange.may_be_followed, exchange.behind) == (True, b"GET")


def test_an_unread_body_and_one_that_waits_for_a_100_are_not_whole() -> None:
    assert not reading(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n").is_whole()
    head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert not reading(head).is_whole()


def test_a_request_is_answered_once() -> None:
    exchange = reading(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    exchange.head(200, {"Content-Length": "0"}, chunked=False)
    with pytest.raises(trio.BrokenResourceError):
        exchange.head(200, {"Content-Length": "0"}, chunked=False)
