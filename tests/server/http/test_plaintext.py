"""Requests in plain HTTP at a TLS port."""

from collections.abc import Mapping

import h11
import pytest

from acp_gateway.server.http.plaintext import answer_plaintext


def request(line: str, **headers: str) -> bytes:
    """A request's head; `_` in the names of headers is `-`."""
    rows = [line, *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "".join(f"{row}\r\n" for row in [*rows, ""]).encode()


def read(answer: bytes, method: str = "GET") -> tuple[int, Mapping[bytes, bytes], bytes]:
    """Return status, headers and body, as an independent parser reads them."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    response = client.next_event()
    assert isinstance(response, h11.Response)
    body = b""
    while isinstance(data := client.next_event(), h11.Data):
        body += data.data
    assert isinstance(data, h11.EndOfMessage)
    return response.status_code, dict(response.headers), body


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("host", ["gpu.example", "gpu.example:7443", "192.0.2.7:7443", "[2001:db8::7]:7443"])
def test_a_browser_is_redirected(method: str, host: str) -> None:
    head = request(f"{method} /gateway/?x=1 HTTP/1.1", Accept="text/html", host=host, Cookie="a=b")
    status, headers, body = read(answer_plaintext(head), method)
    assert (status, headers[b"location"]) == (307, f"https://{host}/gateway/?x=1".encode())
    assert bool(body) == (method == "GET")


@pytest.mark.parametrize(
    "head",
    [
        request("POST /acp HTTP/1.1", Host="gpu.example"),
        request("GET /acp HTTP/1.1", Host="gpu.example", Authorization="Bearer x"),
        request("GET /ws HTTP/1.1", Host="gpu.example", upgrade="websocket"),
        request("GET / HTTP/1.0"),
        request("GET / HTTP/1.1", Host="evil.example/x"),
        request("GET / HTTP/1.1", Host="a b"),
        request("GET / HTTP/1.1", Accept="Host: x"),
    ],
)
def test_other_requests_are_told_that_the_port_speaks_tls(head: bytes) -> None:
    status, headers, body = read(answer_plaintext(head))
    assert status == 400
    assert b"location" not in headers
    assert b"use https:// or wss://" in body


@pytest.mark.parametrize(
    "head",
    [b"", b"\x16\x03\x01\x02\x00\x01", b"GET ", b"GET http://x/ HTTP/1.1\r\n", b"SSH-2.0-x\r\n", b"GET / HTTP/2\r\n"],
)
def test_nothing_else_is_answered(head: bytes) -> None:
    assert answer_plaintext(head) == b""
