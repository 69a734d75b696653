"""Requests of any shape against a second reading: what reaches a route is what a strict reader reads, in this order.

The second reader is RFC 9112 by its letter and nothing else, without h11. This server may refuse more than it does.
Plain requests are not read by h11: what is read of one is held against h11 as well.
"""

import re
from itertools import pairwise

import h11
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from acp_gateway.transports.http.head import HttpError, body_size, check_head
from acp_gateway.transports.http.server import HttpConnection, Response, read_plain
from tests.fuzz.effort import effort
from tests.kit.wires import MIB, memory_wire

Read = tuple[bytes, bytes]
"""The method and the body of a request."""

TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
LINE = re.compile(rb"(?P<method>[!#$%&'*+.^_`|~0-9A-Za-z-]+) (?P<target>[\x21-\x7e]+) HTTP/1\.(?P<minor>[01])")
FIELD = re.compile(rb"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\t\x20-\x7e\x80-\xff]*?)[ \t]*")
CHUNK = re.compile(rb"(?P<size>[0-9a-fA-F]{1,16})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")


class Unsound(Exception):
    """The second reader refuses a request, or misses a part of it."""


def second_reading(data: bytes) -> list[Read]:
    """The requests up to the first one that is not sound, or that is the last one of its connection."""
    found: list[Read] = []
    try:
        while data.lstrip(b"\r\n"):
            method, body, data, last = read_request(data)
            found.append((method, body))
            if last:
                break
    except Unsound:
        pass
    return found


def read_line(data: bytes) -> tuple[bytes, bytes]:
    line, end, data = data.partition(b"\r\n")
    if not end or b"\r" in line or b"\n" in line:
        raise Unsound
    return line, data


def read_fields(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    fields: list[tuple[bytes, bytes]] = []
    while True:
        line, data = read_line(data)
        if not line:
            return fields, data
        match = FIELD.fullmatch(line)
        if match is None:
            raise Unsound
        fields.append((match["name"].lower(), match["value"]))


def read_request(data: bytes) -> tuple[bytes, bytes, bytes, bool]:
    """The method, the body, the bytes behind, and whether it is the connection's last request."""
    while data.startswith(b"\r\n"):
        data = data[2:]
    line, data = read_line(data)
    match = LINE.fullmatch(line)
    if match is None:
        raise Unsound
    fields, data = read_fields(data)
    values = {name: [value for other, value in fields if other == name] for name, _ in fields}
    lengths, encodings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
    if match["minor"] == b"1" and len(values.get(b"host", [])) != 1:
        raise Unsound
    options = [option.strip().lower() for value in values.get(b"connection", []) for option in value.split(b",")]
    last = match["minor"] == b"0" or b"close" in options
    if encodings:
        if lengths or match["minor"] == b"0" or [value.lower() for value in encodings] != [b"chunked"]:
            raise Unsound
        body, data = read_chunks(data)
    else:
        if len(lengths) > 1 or not all(re.fullmatch(rb"[0-9]+", value) for value in lengths):
            raise Unsound
        size = int(lengths[0]) if lengths else 0
        if len(data) < size:
            raise Unsound
        body, data = data[:size], data[size:]
    return match["method"], body, data, last


def read_chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, data = read_line(data)
        match = CHUNK.fullmatch(line)
        if match is None:
            raise Unsound
        size = int(match["size"], 16)
        if not size:
            return body, read_fields(data)[1]
        if data[size : size + 2] != b"\r\n":
            raise Unsound
        body, data = body + data[:size], data[size + 2 :]


async def first_reading(pieces: list[bytes]) -> tuple[list[Read], int, bool]:
    """The requests that reach a route, the number of responses, and whether one of them is a refusal."""
    client, server = memory_wire(MIB)
    http = HttpConnection(server)
    found: list[Read] = []
    refused = False

    async def feed() -> None:
        for piece in pieces:
            client.send_nowait(memoryview(piece))
            while server.inbox:
                await trio.lowlevel.checkpoint()
        await client.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        try:
            while (request := await http.receive_request()) is not None:
                body = await http.receive_body(MIB)
                found.append((request.method.encode(), body))
                if not await http.respond(Response.of_text(200, "ok")):
                    break
        except HttpError as error:
            refused = True
            await http.respond(Response.of_text(error.status, "no", close=True))
        except trio.BrokenResourceError:
            pass  # The client has left in the middle of a request.
        nursery.cancel_scope.cancel()
    return found, bytes(client.inbox).count(b"\r\nDate: "), refused


FIELDS = st.sampled_from(
    [
        b"Host: h",
        b"Content-Length: 2",
        b"Content-Length: 5",
        b"content-length:2",
        b"Content-Length: 2, 2",
        b"Content-Length: +2",
        b"Content-Length: 02",
        b"Content-Length : 2",
        b"Content-Length: 0x2",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: CHUNKED",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding : chunked",
        b"Transfer_Encoding: chunked",
        b"X: a\nTransfer-Encoding: chunked",
        b"X: a\rTransfer-Encoding: chunked",
        b"X: a\r\n Transfer-Encoding: chunked",
        b"X: \x00",
        b"X: \xe9\x7f",
        b": a",
        b"X",
        b"Connection: close",
        b"Connection: keep-alive, Content-Length",
        b"Connection: Upgrade\r\nUpgrade: h2c",
    ]
)
LINES = st.sampled_from(
    [
        b"GET /a HTTP/1.1",
        b"POST /a HTTP/1.1",
        b"HEAD /a HTTP/1.1",
        b"POST /a HTTP/1.0",
        b"GET  /a HTTP/1.1",
        b"GET /a HTTP/1.1 ",
        b"GET /a",
        b" GET /a HTTP/1.1",
        b"GET\t/a HTTP/1.1",
        b"G(T /a HTTP/1.1",
        b"GET http://h/a HTTP/1.1",
        b"GET /a HTTP/2.0",
    ]
)
BODIES = st.sampled_from(
    [
        b"",
        b"{}",
        b"2\r\n{}\r\n0\r\n\r\n",
        b"2;x=y\r\n{}\r\n0\r\nX: y\r\n\r\n",
        b"2\n{}\n0\n\n",
        b"2\r\n{}0\r\n\r\n",
        b"+2\r\n{}\r\n0\r\n\r\n",
        b"2 \r\n{}\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\n",
        b"-1\r\n\r\n",
        b"2;\r\n{}\r\n00\r\n\r\n",
    ]
)
ENDS = st.sampled_from([b"\r\n"] * 6 + [b"\n", b"\r", b"\r\n\r\n", b""])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    fields = [b"Host: h", *draw(st.lists(FIELDS, max_size=3))]
    head = [draw(LINES), *draw(st.permutations(fields))]
    end = draw(ENDS)
    return b"".join(line + (b"\r\n" if draw(st.integers(0, 9)) else end) for line in head) + end + draw(BODIES)


@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 400), max_size=6))
@example(
    [b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n"], []
)
@example([b"HEAD /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n"], [])
@effort(200)
def test_what_reaches_a_route_is_what_a_strict_reader_reads(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(sent)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places) if start < end]
    found, responses, refused = trio.run(first_reading, pieces)
    assert found == second_reading(data)[: len(found)]
    assert responses == len(found) + refused


@given(st.lists(st.sampled_from([b"", b"{}", b"x" * 500]), min_size=1, max_size=5), st.booleans())
@effort(50)
def test_sound_requests_all_reach_a_route(bodies: list[bytes], chunked: bool) -> None:
    data = b""
    for body in bodies:
        if chunked:
            framing, sent = b"Transfer-Encoding: chunked", (b"%x\r\n%b\r\n" % (len(body), body) if body else b"")
            sent += b"0\r\n\r\n"
        else:
            framing, sent = b"Content-Length: %d" % len(body), body
        data += b"POST /a HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n" + sent
    found, responses, refused = trio.run(first_reading, [data])
    assert found == second_reading(data) == [(b"POST", body) for body in bodies]
    assert (responses, refused) == (len(bodies), False)


NEARLY_PLAIN = st.sampled_from(
    [
        *(b"Host: h", b"host:h", b"Host: h\t", b"Host:  h", b"Host : h", b"Host:"),
        *(
            b"Content-Length: 2",
            b"content-length:2",
            b"Content-Length:  2",
            b"CONTENT-LENGTH: 002",
            b"Content-Length: 2 ",
        ),
        *(b"Content-Length: 1" + b"0" * 15, b"Content-Length: 65536", b"Content-Length: 65537", b"Content-Length: 2,2"),
        *(
            b"Content-Length: +2",
            b"Content-Length: 2_0",
            b"Content-Length: \xb2",
            b"X-Content-Length: 2",
            b"Content-Length:",
        ),
        *(
            b"X: Content-Length: 2",
            b"X:\x0bContent-Length: 2",
            b"X: a\r\n Content-Length: 2",
            b"X: a\rContent-Length: 2",
        ),
        *(b"Connection: keep-alive", b"connection: Keep-Alive", b"Connection: close", b"Connection: keep-alive, close"),
        *(b"Transfer-Encoding: chunked", b"transfer-encoding:chunked", b"Transfer-Encoding:", b"Expect: 100-continue"),
        *(
            b"Upgrade: websocket",
            b"Upgrade: h2c",
            b"Accept: */*",
            b"X: a  b",
            b"X: a \t b",
            b"X: \xe9",
            b"X: ",
            b"X:;,:=\"'",
        ),
        *(b"X: a\x00", b"X: a\x7f", b"X\x00: a", b"X y: a", b": a", b"X", b" X: a", b"\tX: a", b"X: " + b"y" * 4096),
        *(b"Authorization: Bearer acpgw_x", b"Acp-Connection-Id: c", b"Cookie: a=b; a=c", b"Origin: https://a.example"),
    ]
)
NEARLY_LINES = st.sampled_from(
    [b"POST /acp HTTP/1.1"] * 4
    + [b"GET /acp?a=b&c#d HTTP/1.1", b"DELETE /acp HTTP/1.1", b"PUT /acp HTTP/1.1", b"HEAD /acp HTTP/1.1"]
    + [
        b"POST http://h/acp HTTP/1.1",
        b"POST * HTTP/1.1",
        b"POST /acp HTTP/1.0",
        b"POST /acp HTTP/1.12",
        b"post / HTTP/1.1",
    ]
    + [
        b"POST  /acp HTTP/1.1",
        b"POST /acp HTTP/1.1 ",
        b"POST /a\xe9 HTTP/1.1",
        b"POST /a b HTTP/1.1",
        b"POST /acp\t HTTP/1.1",
    ]
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    fields = [b"Host: h", *draw(st.lists(NEARLY_PLAIN, max_size=5))]
    ends = st.sampled_from([b"\r\n"] * 30 + [b"\n", b"\r", b"\r\r\n", b"\r\n\r\n", b"\n\r\n"])
    head = [draw(NEARLY_LINES), *draw(st.permutations(fields))[draw(st.integers(0, 9)) == 0 :]]
    return b"".join(line + draw(ends) for line in head) + b"\r\n"


def agree(head: bytes) -> bool:
    """Hold a head that is read as a plain one against h11; return whether it is plain."""
    plain = read_plain(head)
    if plain is None:
        return False
    check_head(head, 0)
    reader = h11.Connection(h11.SERVER)
    body = b"0\r\n\r\n" * (plain.size // 5 + 1)
    reader.receive_data(head + body[: plain.size] + b"GET")
    request = reader.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (plain.method.encode(), plain.target.encode())
    assert request.http_version == b"1.1"
    fields = [(name, value) for name, value in request.headers if name != b"content-length"]
    assert fields == [(name.lower().encode(), value.encode()) for name, value in plain.headers.raw_items()]
    assert body_size(head, b"1.1") == plain.size
    found = b""
    while isinstance(event := reader.next_event(), h11.Data):
        found += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert found == body[: plain.size]
    # Neither a body, nor an upgrade, nor the end of the connection follows.
    assert (reader.trailing_data[0], reader.their_state) == (b"GET", h11.DONE)
    assert not reader.they_are_waiting_for_100_continue
    return True


@given(heads(), heads(), st.integers(0, 10**6), st.integers(0, 300), st.binary(max_size=3))
@effort(1000)
def test_a_plain_head_has_the_meaning_that_h11_finds_in_it(
    head: bytes, other: bytes, length: int, at: int, noise: bytes
) -> None:
    agree(head)
    agree(other)
    at %= len(head)
    agree(head[:at] + noise + head[at:])
    agree(head[:at] + head[at + len(noise) :])
    known = read_plain(head)
    if known is None:
        return
    # The next head of the connection: the same with another length, nearly the same, or another one.
    longer = re.sub(rb"(?i)(content-length: ?)[0-9]+", rb"\g<1>%d" % length, head)
    for following in (longer, head[:at] + noise + head[at:], head.replace(b": ", b":"), other, head):
        again = read_plain(following)
        if known.repeated(following):
            assert again is not None
            assert (again.method, again.target) == (known.method, known.target)
            assert (again.size, again.headers) == (known.size, known.headers)
        else:
            assert following != head


@given(
    st.lists(st.sampled_from([b"Accept: */*", b"X-Y: a b", b"Connection: keep-alive"]), max_size=4),
    st.integers(0, 65536),
)
@effort(50)
def test_what_clients_send_is_plain(fields: list[bytes], length: int) -> None:
    head = b"\r\n".join([b"POST /acp HTTP/1.1", b"Host: h", b"Content-Length: %d" % length, *fields, b"", b""])
    assert agree(head)
