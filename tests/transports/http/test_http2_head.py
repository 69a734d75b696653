"""Heads of requests over HTTP/2: what is read of them is what a request of HTTP/1.1 says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.transports.http.head import LINE_SIZE, MAX_FIELDS, HttpError, check_head
from acp_gateway.transports.http.http2_head import read_head
from acp_gateway.transports.http.server import H11Exchange

Fields = list[tuple[bytes, bytes]]

GET: Fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"h:1"), (b":path", b"/a?b=1")]


def without(name: bytes) -> Fields:
    return [field for field in GET if field[0] != name]


def replaced(name: bytes, value: bytes) -> Fields:
    return [(other, value if other == name else said) for other, said in GET]


def test_a_head_is_read_as_one_of_a_request() -> None:
    more = [(b"accept", b"a"), (b"accept", b"b; q=0"), (b"x-empty", b""), (b"te", b"trailers"), (b"expect", b"\xff")]
    request, size = read_head([*GET, *more, (b"content-length", b"12")])
    assert (request.method, request.path, request.query, request.version, size) == ("GET", "/a", "b=1", "2", 12)
    assert list(request.headers.raw_items()) == [
        ("accept", "a"),
        ("accept", "b; q=0"),
        ("x-empty", ""),
        ("expect", "\xff"),
        ("Host", "h:1"),
    ]


def test_a_cookie_in_several_fields_is_one() -> None:
    request, size = read_head([*GET, (b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2; c=3")])
    assert request.headers.get_all("Cookie") == ["a=1; b=2; c=3"]
    assert size is None
    # As many as they like, up to the size of a field.
    request, _ = read_head([*GET, *[(b"cookie", b"a=1")] * 2 * MAX_FIELDS])
    assert request.headers["Cookie"].count("a=1") == 2 * MAX_FIELDS


@pytest.mark.parametrize("host", [[], [(b"host", b"h:1")]])
def test_the_host_is_the_authority(host: Fields) -> None:
    assert read_head([*GET, *host])[0].headers.get_all("Host") == ["h:1"]
    assert not host or read_head([*without(b":authority"), *host])[0].headers.get_all("Host") == ["h:1"]


@pytest.mark.parametrize(
    "fields",
    [
        *(without(name) for name, _ in GET),
        *([*GET, (name, value)] for name, value in GET),
        [*without(b":path"), (b"a", b"b"), (b":path", b"/")],
        [*GET, (b":status", b"200")],
        [*GET, (b":protocol", b"websocket")],
        # CONNECT, as tunnels and WebSockets ask for it.
        [(b":method", b"CONNECT"), (b":authority", b"other:443")],
        [*replaced(b":method", b"CONNECT"), (b":protocol", b"websocket")],
        *(replaced(b":method", method) for method in (b"", b"GE T", b"G\r\nX: y", b"A" * 21)),
        *(replaced(b":scheme", scheme) for scheme in (b"", b"ftp", b"HTTPS")),
        *(
            replaced(b":path", path)
            for path in (b"", b"*", b"a", b"http://other/a", b"/a b", b"/\xc3\xa4", b"/a\r\nHost: b")
        ),
        *(replaced(b":authority", host) for host in (b"h\r\n", b" h", b"h\x00")),
        [*GET, (b"host", b"other")],
        [*GET, (b"host", b"h:1"), (b"host", b"h:1")],
        [*without(b":authority"), (b"host", b"a"), (b"host", b"b")],
        *([*GET, (name, b"x")] for name in (b"Accept", b"", b"a b", b"a:", b"a\r\nb", b"\xc3\xa4", b":a")),
        *([*GET, (b"a", value)] for value in (b" b", b"b ", b"b\t", b"a\rb", b"a\nb", b"a\x00b", b"a\x7fb", b" ")),
        *([*GET, (name, b"x")] for name in (b"connection", b"keep-alive", b"proxy-connection", b"upgrade")),
        [*GET, (b"transfer-encoding", b"chunked")],
        [*GET, (b"te", b"gzip")],
        *([*GET, (b"content-length", size)] for size in (b"", b"-1", b"+1", b"1, 1", b"1" * 16)),
        [*GET, (b"content-length", b"1"), (b"content-length", b"1")],
    ],
    ids=lambda fields: repr(fields[-1])[:60],
)
def test_what_has_two_meanings_is_refused(fields: Fields) -> None:
    with pytest.raises(HttpError) as raised:
        read_head(fields)
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (replaced(b":path", b"/" + b"a" * LINE_SIZE), 414),
        ([*GET, (b"a", b"b" * LINE_SIZE)], 431),
        ([*GET, *[(b"cookie", b"c" * 100)] * (LINE_SIZE // 100)], 431),
        ([*GET, *[(b"a", b"b")] * (MAX_FIELDS + 1)], 431),
    ],
)
def test_what_is_too_large_is_refused_as_in_http_1(fields: Fields, status: int) -> None:
    with pytest.raises(HttpError, match=r"\d") as raised:
        read_head(fields)
    assert raised.value.status == status


TEXT = st.text(st.sampled_from("aB:\r\n \t\0\x7fé,;=/?#%-"), max_size=6).map(lambda text: text.encode("latin-1"))
NAMES = st.sampled_from([b"a", b"cookie", b"host", b"content-length", b"transfer-encoding", b"te", b"x:y"]) | TEXT


@given(st.builds(lambda path: b"/" + path, TEXT), st.lists(st.tuples(NAMES, TEXT), max_size=5))
def test_what_is_accepted_reads_the_same_as_a_request_of_http_1(path: bytes, more: Fields) -> None:
    try:
        request, size = read_head([*replaced(b":path", path), *more])
    except HttpError:
        return
    target = f"{request.path}?{request.query}" if request.query else request.path
    lines = [
        f"{request.method} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in request.headers.raw_items()),
    ]
    lines += [] if size is None else [f"Content-Length: {size}"]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    check_head(head, 0)
    exchange = H11Exchange()
    method, read, headers, _ = exchange.read(head)
    assert (method, read) == (request.method, target)
    assert sorted((name.lower(), value) for name, value in headers.raw_items()) == sorted(
        (name.lower(), value) for name, value in request.headers.raw_items()
    )
    assert exchange.announced == (size or 0)
