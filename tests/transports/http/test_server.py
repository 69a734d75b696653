"""The server's side of HTTP: requests that are read, refused because they have two readings, and answered in order."""

import math
import re
from functools import partial

import pytest
import trio
import trio.testing

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.head import HEAD_SIZE, MAX_FIELDS, HttpError
from acp_gateway.transports.http.server import (
    BODY_SIZE,
    CHUNK_SIZE,
    CHUNKS_AT_ONCE,
    FREE_CHUNKS,
    MAX_FRAMING,
    MAX_PIECES,
    PLAIN_HEAD_SIZE,
    H11Exchange,
    HttpConnection,
    PlainExchange,
    Request,
    Response,
    read_plain,
)
from acp_gateway.transports.streams import Stalled, send_all
from tests.kit.wires import MIB, memory_wire

GET = b"GET /a?b=1 HTTP/1.1\r\nHost: h\r\n\r\n"


def post(*headers: str, body: bytes = b"", target: str = "/a", version: str = "1.1") -> bytes:
    return "\r\n".join([f"POST {target} HTTP/{version}", "Host: h", *headers, "", ""]).encode("latin-1") + body


async def serve(data: bytes, *, limit: int = MIB) -> tuple[list[tuple[str, str, bytes]], bytes]:
    """The requests that a server reads from these bytes, each answered with 200, and all that it writes."""
    client, server = memory_wire(MIB)
    client.send_nowait(memoryview(data))
    await client.send_eof()
    http = HttpConnection(server)
    found = []
    try:
        while (request := await http.receive_request()) is not None:
            found.append((request.method, request.path, await http.receive_body(limit)))
            if not await http.respond(Response.of_text(200, "ok")):
                break
    except HttpError as error:
        await http.respond(Response.of_text(error.status, str(error), close=True))
    await server.aclose()
    return found, bytes(client.inbox)


async def test_a_request_has_method_path_query_and_headers() -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(GET))
    request = await HttpConnection(server).receive_request()
    assert request is not None
    assert (request.method, request.path, request.query, request.headers["host"]) == ("GET", "/a", "b=1", "h")
    assert "h" not in repr(request).replace("path", "").replace("method", "")


@pytest.mark.parametrize("cut", range(1, len(GET), 5))
async def test_a_request_may_come_in_pieces(cut: int) -> None:
    client, server = memory_wire()
    http = HttpConnection(server)
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            assert await http.receive_request() is not None

        nursery.start_soon(read)
        for piece in (GET[:cut], GET[cut:]):
            client.send_nowait(memoryview(piece))
            await trio.testing.wait_all_tasks_blocked()


async def test_the_halves_of_an_empty_line_may_come_one_after_the_other() -> None:
    client, server = memory_wire()
    http = HttpConnection(server)
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            request = await http.receive_request()
            assert request is not None
            assert request.method == "GET"

        nursery.start_soon(read)
        for piece in (b"\r", b"\n" + GET):
            client.send_nowait(memoryview(piece))
            await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (GET + GET, [("GET", "/a", b"")] * 2),
        (post("Content-Length: 2", body=b"{}") + GET, [("POST", "/a", b"{}"), ("GET", "/a", b"")]),
        (
            post("Transfer-Encoding: chunked", body=b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n") + GET,
            [("POST", "/a", b"{}"), ("GET", "/a", b"")],
        ),
        (b"\r\n\r\n" + GET, [("GET", "/a", b"")]),
        (GET.replace(b"/a?b=1", b"http://h/a?b=1"), [("GET", "/a", b"")]),
        (GET.replace(b"/a?b=1", b"http://h"), [("GET", "/", b"")]),
    ],
)
async def test_pipelined_requests_are_answered_in_order(data: bytes, found: list[tuple[str, str, bytes]]) -> None:
    requests, written = await serve(data)
    assert requests == found
    assert written.count(b"HTTP/1.1 200 OK\r\n") == len(found)


@pytest.mark.parametrize(
    "data",
    [
        post("Content-Length: 2", "Content-Length: 2", body=b"{}"),
        post("Content-Length: 2, 2", body=b"{}"),
        post("Content-Length: +2", body=b"{}"),
        post("Content-Length: 2x", body=b"{}"),
        post("Content-Length: -0", body=b"{}"),
        post("Content-Length: 0x2", body=b"{}"),
        post("Content-Length:", body=b"{}"),
        post("Content-Length: 2", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
        post("Transfer-Encoding: identity", body=b"{}"),
        post("Transfer-Encoding: chunked", body=b"0\r\n\r\n", version="1.0"),
        post("Transfer-Encoding: chunked", body=b"z\r\n"),
        post("Transfer-Encoding: chunked", body=b"1\r\n{}\r\n0\r\n\r\n"),
        post("Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
        post("X: a\r\n Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post("X: a\nTransfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post("X: a\rTransfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post("X: a\0b"),
        post("Host: h"),
        post(target="http://other/a"),
        post(target="ftp://h/a"),
        post(target="a"),
        post(target="*"),
        b"POST /a HTTP/1.1\r\n\r\n",
        b"GET /a HTTP/1.1\nHost: h\n\n",
        b"GET  /a HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /a HTTP/2\r\nHost: h\r\n\r\n",
        b"GET /a HTTP/2.0\r\nHost: h\r\n\r\n",
        b"GET /a HTTP/1.2\r\nHost: h\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: h\r\nX: \x7f\r\n\r\n",
        b"GET /a\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\r\n" * HEAD_SIZE,
    ],
)
async def test_a_request_with_two_readings_reaches_no_route_and_ends_the_connection(data: bytes) -> None:
    found, written = await serve(data + GET)
    assert found == []
    assert written.count(b"\r\nDate: ") == 1
    assert written.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501 ", b"HTTP/1.1 505 "))
    assert b"\r\nConnection: close\r\n" in written


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 9000, 414),
        (GET[:-2] + b"X: " + b"x" * 9000, 431),
        (GET[:-2] + b"X: x\r\n" * (MAX_FIELDS + 1) + b"\r\n", 431),
        (GET[:-2] + (b"X: " + b"x" * 8000 + b"\r\n") * 9, 431),
        (post("Content-Length: 1000001"), 413),
        (post("Transfer-Encoding: chunked", body=b"f4241\r\n" + b"x" * 1_000_001), 413),
    ],
)
async def test_a_request_that_is_too_large_is_refused_before_its_end(data: bytes, status: int) -> None:
    found, written = await serve(data, limit=1_000_000)
    assert found == []
    assert written.startswith(b"HTTP/1.1 %d " % status)


def head_of(size: int) -> bytes:
    """A head of so many bytes."""
    lines = GET[:-2] + (b"X: " + b"x" * 8000 + b"\r\n") * 8
    return lines + b"Y: " + b"y" * (size - len(lines) - 7) + b"\r\n\r\n"


async def test_a_head_has_head_size_bytes_at_most() -> None:
    found, _ = await serve(head_of(HEAD_SIZE))
    assert len(found) == 1
    found, written = await serve(head_of(HEAD_SIZE + 1))
    assert found == []
    assert b"the head of a request must not be larger than 65536 bytes" in written


async def test_a_head_without_an_end_is_a_bad_request() -> None:
    found, written = await serve(GET[:-10])
    assert found == []
    assert written.startswith(b"HTTP/1.1 400 ")


async def test_expect_100_continue_is_answered_before_the_body_is_read() -> None:
    client, server = memory_wire()
    http = HttpConnection(server)
    client.send_nowait(memoryview(post("Expect: 100-continue", "Content-Length: 2")))
    await http.receive_request()
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            assert await http.receive_body(10) == b"{}"

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert client.inbox.startswith(b"HTTP/1.1 100 ")
        client.send_nowait(memoryview(b"{}"))


async def test_a_body_that_is_refused_unread_closes_the_connection() -> None:
    client, server = memory_wire()
    http = HttpConnection(server)
    client.send_nowait(memoryview(post("Content-Length: 2", body=b"{}")))
    await http.receive_request()
    assert not await http.respond(Response.of_text(401, "no"))
    assert b"\r\nConnection: close\r\n" in client.inbox


async def test_a_body_that_does_not_come_is_refused_in_time(autojump_clock: trio.testing.MockClock) -> None:
    client, server = memory_wire()
    http = HttpConnection(server)
    client.send_nowait(memoryview(post("Content-Length: 2", body=b"{")))
    await http.receive_request()
    with pytest.raises(HttpError) as refused:
        await http.receive_body(10, timeout=60.0)
    assert refused.value.status == 408
    assert 60 <= trio.current_time() < 61


async def test_head_is_answered_without_a_body() -> None:
    _, written = await serve(GET.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 3\r\n" in written
    assert written.endswith(b"\r\n\r\n")


async def test_a_head_request_that_is_refused_is_answered_without_a_body() -> None:
    found, written = await serve(post("Content-Length: 2", "Content-Length: 2").replace(b"POST", b"HEAD"))
    assert found == []
    assert written.startswith(b"HTTP/1.1 400 ")
    assert written.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("headers", ["Connection: close", "Connection: Close, x"])
async def test_connection_close_is_the_last_request(headers: str) -> None:
    found, _ = await serve(post(headers) + GET)
    assert len(found) == 1


async def test_http_1_0_is_answered_once() -> None:
    found, _ = await serve(b"GET /a HTTP/1.0\r\n\r\n" + GET)
    assert found == [("GET", "/a", b"")]


async def test_a_stream_is_sent_in_chunks_and_tells_what_is_not_confirmed() -> None:
    client, server = memory_wire(MIB)
    client.send_nowait(memoryview(GET))
    http = HttpConnection(server)
    await http.receive_request()
    await http.start(200, {"Content-Type": "text/event-stream"})
    await http.send(b"x" * 10)
    assert client.inbox.endswith(b"\r\na\r\nxxxxxxxxxx\r\n")
    assert http.unconfirmed_bytes == 0
    assert await http.end()
    assert client.inbox.endswith(b"0\r\n\r\n")


async def test_a_client_that_takes_nothing_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    client, server = memory_wire(MIB)
    client.send_nowait(memoryview(GET))
    client.room = 100
    http = HttpConnection(server, CLOSE_TIMEOUT)
    await http.receive_request()
    with pytest.raises(Stalled):
        await http.respond(Response.of_text(200, "x" * 1000))


async def test_a_client_that_leaves_in_the_middle_of_a_body_is_an_error() -> None:
    with pytest.raises(trio.BrokenResourceError):
        await serve(post("Content-Length: 3", body=b"{}"))


async def test_wait_left_keeps_the_request_behind_the_present_one() -> None:
    client, server = memory_wire()
    http = HttpConnection(server)
    client.send_nowait(memoryview(post("Content-Length: 2", body=b"{}" + GET[:10])))
    await http.receive_request()
    await http.receive_body(10)
    with trio.move_on_after(math.inf) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(http.wait_left)
            await trio.testing.wait_all_tasks_blocked()
            client.send_nowait(memoryview(GET[10:] + GET))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert await http.respond(Response.of_text(200, "ok"))
    for _ in range(2):
        request = await http.receive_request()
        assert request is not None
        assert request.path == "/a"
        await http.respond(Response.of_text(200, "ok"))


async def test_wait_left_returns_when_the_client_has_closed_its_side_and_reads_ahead_within_bounds() -> None:
    client, server = memory_wire(MIB)
    http = HttpConnection(server)
    client.send_nowait(memoryview(GET))
    await http.receive_request()
    client.send_nowait(memoryview(b"x" * (3 * HEAD_SIZE)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(http.wait_left)
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.inbox) >= HEAD_SIZE
        nursery.cancel_scope.cancel()
    other, server = memory_wire()
    other.send_nowait(memoryview(GET))
    http = HttpConnection(server)
    await http.receive_request()
    await other.send_eof()
    await http.wait_left()


async def test_wait_left_of_the_last_request_keeps_nothing_of_what_comes_behind() -> None:
    client, server = memory_wire(MIB)
    http = HttpConnection(server)
    client.send_nowait(memoryview(GET))
    await http.receive_request()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(http.wait_left, last=True))
        await trio.testing.wait_all_tasks_blocked()
        client.send_nowait(memoryview(b"x" * (3 * HEAD_SIZE)))
        await trio.testing.wait_all_tasks_blocked()
        assert not http.pipelined
        assert len(server.inbox) == 2 * HEAD_SIZE
        nursery.cancel_scope.cancel()


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


async def test_small_chunks_are_counted_and_let_other_tasks_have_their_turn() -> None:
    client, server = memory_wire(MIB)
    http = HttpConnection(server)
    body = chunked(*[b"x"] * 1000)
    client.send_nowait(memoryview(post("Transfer-Encoding: chunked", body=body + GET)))
    await http.receive_request()
    counted: list[tuple[int, int]] = []
    turns = 0

    async def count(size: int, pieces: int) -> None:
        counted.append((size, pieces))

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        assert await http.receive_body(MIB, count) == b"x" * 1000
        nursery.cancel_scope.cancel()
    assert counted == [(len(body), 1000 - FREE_CHUNKS)]
    assert turns >= 1000 // CHUNKS_AT_ONCE // 2


async def test_large_chunks_cost_no_pieces_and_extensions_cost_their_bytes() -> None:
    client, server = memory_wire(MIB)
    http = HttpConnection(server)
    body = chunked(*[b"x" * CHUNK_SIZE] * 100).replace(b"400\r\n", b"400;" + b"y" * 100 + b"\r\n")
    client.send_nowait(memoryview(post("Transfer-Encoding: chunked", body=body)))
    await http.receive_request()
    counted: list[tuple[int, int]] = []

    async def count(size: int, pieces: int) -> None:
        counted.append((size, pieces))

    await http.receive_body(MIB, count)
    assert sum(size for size, _ in counted) == len(body)
    assert sum(pieces for _, pieces in counted) == 0


@pytest.mark.parametrize(
    ("chunk", "data"),
    [
        pytest.param(b"1;" + b"y" * 4000 + b"\r\nx\r\n", 16, id="extensions"),
        pytest.param(b"1;" + b"y=z;" * 8 + b"\r\nx\r\n", 2000, id="short extensions"),
        pytest.param(b"1\r\nx\r\n", MAX_PIECES + CHUNK_SIZE, id="one byte each"),
        pytest.param(b"1;" + b"y" * 2 * MAX_FRAMING, 0, id="a chunk that does not begin"),
        pytest.param(b"0\r\n" + b"X: y\r\n" * MAX_FRAMING, 0, id="trailers"),
    ],
)
async def test_chunks_with_little_in_them_are_refused_soon_although_they_have_no_end(chunk: bytes, data: int) -> None:
    client, server = memory_wire(MIB)
    http = HttpConnection(server)
    taken = 0

    async def count(size: int, pieces: int) -> None:
        nonlocal taken
        taken += size

    async def send() -> None:
        await send_all(client, post("Transfer-Encoding: chunked"))
        while True:
            await send_all(client, chunk * max(1, 16384 // len(chunk)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await http.receive_request()
        with pytest.raises(HttpError) as refused:
            await http.receive_body(MIB, count)
        assert not await http.respond(Response.of_text(refused.value.status, str(refused.value), close=True))
        nursery.cancel_scope.cancel()
    assert 400 <= refused.value.status < 500
    assert taken <= 3 * MAX_FRAMING + 8 * data
    assert client.inbox.startswith(b"HTTP/1.1 4")
    assert b"\r\nConnection: close\r\n" in client.inbox


async def test_a_body_in_sound_chunks_of_any_size_is_read() -> None:
    pieces = [b"x" * (1 + number % 700) for number in range(2000)]
    found, _ = await serve(post("Transfer-Encoding: chunked", body=chunked(*pieces)), limit=2 * MIB)
    assert [body for _, _, body in found] == [b"".join(pieces)]


async def test_what_follows_from_a_head_alone_is_found_out_once_for_all_requests_that_repeat_it() -> None:
    client, server = memory_wire(MIB)
    http = HttpConnection(server)
    heads: list[str] = []
    refused = 0

    def note(request: Request) -> str:
        heads.append(request.headers["X"])
        return request.headers["X"].upper()

    def refuse(request: Request) -> str:
        nonlocal refused
        refused += 1
        raise ValueError(request.path)

    for value, body in (("a", b"1"), ("a", b"12"), ("b", b""), ("a", b"")):
        client.send_nowait(memoryview(post(f"X: {value}", f"Content-Length: {len(body)}", body=body)))
        request = await http.receive_request()
        assert request is not None
        assert (request.once(note), request.once(note)) == (value.upper(), value.upper())
        with pytest.raises(ValueError, match="/a"):
            request.once(refuse)
        assert await http.receive_body(10) == body
        assert await http.respond(Response.of_text(200, "ok"))
    assert heads == ["a", "b", "a"]
    assert refused == 4


async def test_the_body_of_a_plain_request_may_be_there_with_its_head() -> None:
    client, server = memory_wire()
    http = HttpConnection(server)
    for body, is_there in ((b"{}", True), (b"{", False), (b"", True)):
        client.send_nowait(memoryview(post(f"Content-Length: {2 if body else 0}", body=body)))
        await http.receive_request()
        assert http.body_is_there == is_there
        client.send_nowait(memoryview(b"" if is_there else b"}"))
        assert await http.receive_body(10) == (b"{}" if body else b"")
        assert await http.respond(Response.of_text(200, "ok"))
    client.send_nowait(memoryview(post("Transfer-Encoding: chunked", body=chunked(b"{}"))))
    await http.receive_request()
    assert not http.body_is_there


# Exchanges


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


# Plain requests


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


@pytest.mark.parametrize("exchange", [PlainExchange(0), reading(GET)], ids=["plain", "h11"])
def test_a_body_is_never_longer_than_announced(exchange: PlainExchange | H11Exchange) -> None:
    exchange.head(200, {"content-length": "5"}, chunked=False)
    assert exchange.data(b"abc") == b"abc"
    with pytest.raises(trio.BrokenResourceError, match="longer"):
        exchange.data(b"def")


@pytest.mark.parametrize("exchange", [PlainExchange(0), reading(GET)], ids=["plain", "h11"])
def test_no_request_follows_a_body_that_is_shorter_than_announced(exchange: PlainExchange | H11Exchange) -> None:
    exchange.head(200, {"Content-Length": "5"}, chunked=False)
    exchange.data(b"abc")
    assert (exchange.end(), exchange.may_be_followed) == (b"", False)


def test_a_response_without_a_length_has_no_body_and_none_has_two() -> None:
    bare = PlainExchange(0)
    bare.head(304, {}, chunked=False)
    with pytest.raises(trio.BrokenResourceError, match="longer"):
        bare.data(b"x")
    for fields, chunked in (
        ((("Content-Length", "5"), ("content-length", "6")), False),
        ((("Content-Length", "5"),), True),
    ):
        with pytest.raises(ValueError, match="one length"):
            PlainExchange(0).head(200, fields, chunked=chunked)


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


def test_a_plain_request_is_answered_once() -> None:
    exchange = PlainExchange(0)
    exchange.head(200, {}, chunked=False)
    with pytest.raises(trio.BrokenResourceError):
        exchange.head(200, {}, chunked=False)
