"""Requests over a connection, connections that are used again, and endpoints."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from acp_gateway.client.http.connections import IDLE_MAX, KEPT_MAX, Endpoint, HttpPool
from acp_gateway.client.http.cookies import CookieJar
from acp_gateway.config.addresses import parse_target
from acp_gateway.errors import ProtocolError
from acp_gateway.transports.http.client import MAX_INTERIM, PARTS_AT_ONCE, Head, HttpClientConnection, Request
from acp_gateway.transports.http.server import Response
from acp_gateway.transports.streams import ByteStream, TrioBytes
from tests.client.http.foreign_server import ENDPOINT, foreign_server

DELETE, POST = Request("DELETE", {}), Request("POST", {})


async def asked(answer: bytes, then: Callable[[HttpClientConnection, Head], Awaitable[None]]) -> bytes:
    """Make a request that is answered by these bytes and the end; return what the server has received."""
    here, there = trio.testing.memory_stream_pair()
    http = HttpClientConnection(TrioBytes(here), "host")
    received = b""

    async def serve() -> None:
        nonlocal received
        received = bytes(await there.receive_some())
        await there.send_all(answer)
        await there.aclose()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await then(http, await http.send("/acp", Request("POST", {"A": "b"}, b"{}")))
    await http.aclose()
    return received


async def test_a_request_has_a_host_and_a_length_and_the_response_its_body() -> None:
    async def check(http: HttpClientConnection, head: Head) -> None:
        assert (head.status, head.headers["x"]) == (202, "y")
        assert head.cookies == ("a=1", "b=2")
        assert await http.read_all(100) == b"abc"
        assert http.start_next()

    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 202 Accepted\r\nX: y\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 3\r\n\r\nabc"
    )
    received = await asked(answer, check)
    assert received.startswith(b"POST /acp HTTP/1.1\r\nHost: host\r\n")
    assert b"Content-Length: 2\r\n\r\n{}" in received


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async def check(http: HttpClientConnection, head: Head) -> None:
        assert head.status == 400
        assert await http.read_all(100) == b"why"
        assert not http.start_next()

    await asked(b"HTTP/1.1 400 No\r\n\r\nwhy", check)


@pytest.mark.parametrize("fields", [b"", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 9\r\n"])
async def test_a_stream_that_ends_with_the_connection_counts_as_cut_off(fields: bytes) -> None:
    async def check(http: HttpClientConnection, head: Head) -> None:
        with pytest.raises(trio.BrokenResourceError):
            [part async for part in parts(http)]

    await asked(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n1\r\na\r\n", check)


async def test_a_chunked_stream_that_is_ended_is_complete() -> None:
    async def check(http: HttpClientConnection, head: Head) -> None:
        assert await http.read() == b"a"
        assert await http.read() == b""

    await asked(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", check)


async def parts(http: HttpClientConnection) -> AsyncIterator[bytes]:
    while part := await http.read():
        yield part


async def never(http: HttpClientConnection, head: Head) -> None:
    raise AssertionError


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nA:"])
async def test_a_connection_that_closes_without_a_response_is_lost(answer: bytes) -> None:
    with pytest.RaisesGroup(trio.BrokenResourceError):
        await asked(answer, never)


async def test_what_is_not_http_is_an_error_of_protocol() -> None:
    with pytest.RaisesGroup(ProtocolError):
        await asked(b"SSH-2.0-x\r\n\r\n", never)


async def test_interim_responses_without_end_are_an_error_of_protocol() -> None:
    few, many = (count * b"HTTP/1.1 103 Early Hints\r\n\r\n" for count in (MAX_INTERIM, MAX_INTERIM + 1))
    last = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"

    async def check(http: HttpClientConnection, head: Head) -> None:
        assert head.status == 202

    await asked(few + last, check)
    with pytest.RaisesGroup(ProtocolError):
        await asked(many + last, never)


async def test_a_response_with_two_lengths_is_an_error_of_protocol() -> None:
    fields = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"
    with pytest.RaisesGroup(ProtocolError):
        await asked(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n5\r\nabcde\r\n0\r\n\r\n", never)


async def test_other_tasks_get_their_turn_between_the_parts_of_one_read() -> None:
    turns = 0

    async def check(http: HttpClientConnection, head: Head) -> None:
        async with trio.open_nursery() as nursery:

            async def take_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(take_turns)
            assert len([part async for part in parts(http)]) == 10 * PARTS_AT_ONCE
            nursery.cancel_scope.cancel()

    chunks = 10 * PARTS_AT_ONCE * b"1\r\na\r\n"
    await asked(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", check)
    assert turns >= 5


class Refusing(TrioBytes):
    """A connection whose server reads nothing."""

    async def send_some(self, data: memoryview) -> int:
        raise trio.BrokenResourceError("the server has closed")


async def test_a_request_that_is_neither_written_nor_answered_fails_by_the_error_of_writing() -> None:
    here, there = trio.testing.memory_stream_pair()
    await there.aclose()
    with pytest.raises(trio.BrokenResourceError, match="the server has closed"):
        await HttpClientConnection(Refusing(here), "host").send("/acp", DELETE)


async def test_a_refusal_that_comes_before_the_whole_request_is_read() -> None:
    here, there = trio.testing.memory_stream_pair()
    await there.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    sent = False

    def note() -> None:
        nonlocal sent
        sent = True

    http = HttpClientConnection(Refusing(here), "host")
    assert (await http.send("/acp", Request("POST", {}, b"{}", note))).status == 413
    assert not sent
    await http.aclose()


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("https://host/acp", "host", "/acp"),
        ("https://host:443", "host", "/acp"),
        ("https://host:80/ä b".replace(" ", ""), "host:80", "/%C3%A4b"),
        ("http://[::1]/a%20b", "[::1]", "/a%20b"),
        ("http://localhost:3000/acp", "localhost:3000", "/acp"),
    ],
)
def test_an_endpoint_has_the_host_and_the_target_of_its_url(url: str, host: str, target: str) -> None:
    endpoint = Endpoint.at(parse_target(url), "", {"A": "b"})
    assert (endpoint.host, endpoint.target, endpoint.tls) == (host, target, url.startswith("https"))
    assert endpoint.headers == {"A": "b", "Accept-Encoding": "identity"}
    assert Endpoint.at(parse_target(url), "agent=x", {}).target == f"{target}?agent=x"


async def test_a_connection_is_used_again_unless_it_was_idle_for_long(autojump_clock: trio.testing.MockClock) -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)
        for pause in (0.0, IDLE_MAX / 2, IDLE_MAX):
            await trio.sleep(pause)
            assert (await pool.ask(DELETE, limit=10)).status == 202
        assert server.connections == 2
        await pool.aclose()


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)
        server.answers.append(Response(202, close=True))
        for _ in range(2):
            await pool.ask(DELETE, limit=10)
        assert server.connections == 2
        await pool.aclose()


async def test_a_body_above_the_limit_is_not_read_to_its_end() -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)
        server.answers.append(Response(400, bytes(1_000_000)))
        reply = await pool.ask(DELETE, limit=10)
        assert 10 < len(reply.body) < 1_000_000
        await pool.ask(DELETE, limit=10)
        assert server.connections == 2
        await pool.aclose()


@pytest.mark.parametrize(("status", "body"), [(401, "no such key: …"), (202, "no such key: key-1234")])
async def test_a_refusal_that_repeats_the_token_is_read_without_it(status: int, body: str) -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT._replace(headers={"Authorization": "Bearer key-1234"}), server.connect)
        server.answers.append(Response(status, b"no such key: key-1234"))
        assert (await pool.ask(DELETE, limit=100)).body.decode() == body
        await pool.aclose()


async def test_cookies_outlive_a_pool_in_their_jar() -> None:
    async with foreign_server() as server:
        jar = CookieJar()
        for cookies in (jar, jar, None):
            pool = HttpPool(ENDPOINT, server.connect, cookies)
            server.answers.append(Response(202, headers={"Set-Cookie": "node=7"}))
            await pool.ask(DELETE, limit=10)
            await pool.aclose()
    assert [one.headers.get("cookie") for one in server.requests] == [None, "node=7", None]


class AnsweringOnce(TrioBytes):
    """A connection whose server answers one request with 202, and is gone without a sign."""

    def __init__(self, received: list[bytes]) -> None:
        super().__init__(trio.testing.memory_stream_pair()[0])
        self._received = received
        self._answered = False

    async def send_some(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        self._received += [word for word in (b"POST", b"DELETE") if bytes(data).startswith(word)]
        return len(data)

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._answered:
            raise trio.BrokenResourceError("lost")
        self._answered = True
        return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("idempotent", [False, True])
async def test_an_idempotent_request_alone_is_repeated_if_an_idle_connection_was_lost(*, idempotent: bool) -> None:
    received: list[bytes] = []

    async def connect() -> ByteStream:
        await trio.lowlevel.checkpoint()
        return AnsweringOnce(received)

    pool = HttpPool(ENDPOINT, connect)
    await pool.ask(POST, limit=10)
    if idempotent:
        assert (await pool.ask(DELETE._replace(idempotent=True), limit=10)).status == 202
    else:
        with pytest.raises(trio.BrokenResourceError):
            await pool.ask(DELETE, limit=10)
    assert received == [b"POST", b"DELETE"] + [b"DELETE"] * idempotent
    await pool.aclose()


@pytest.mark.parametrize("encoding", ["gzip", "BR", "identity, gzip"])
async def test_an_encoded_answer_that_was_not_asked_for_is_an_error(encoding: str) -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)
        encoded = {"Content-Encoding": encoding}
        server.answers += [Response(200, b"\x1f\x8b", encoded)] * 2
        with pytest.raises(ProtocolError, match=f"server.example: .* is encoded \\({encoding}\\), unasked"):
            await pool.ask(POST, limit=10)
        with pytest.raises(ProtocolError, match="is encoded"):
            async with pool.begin({}):
                pass
        server.answers.append(Response(400, b"\x1f\x8b", encoded))
        assert (await pool.ask(POST, limit=10)).reason == "without a reason"
        server.answers.append(Response(200, b"{}", {"Content-Encoding": "identity"}))
        assert (await pool.ask(POST, limit=10)).body == b"{}"
        await pool.aclose()


async def test_few_idle_connections_are_kept() -> None:
    async with foreign_server() as server:
        pool = HttpPool(ENDPOINT, server.connect)

        async def ask_together() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(KEPT_MAX + 2):
                    nursery.start_soon(lambda: pool.ask(DELETE, limit=10))

        await ask_together()
        assert server.connections == KEPT_MAX + 2
        await ask_together()
        assert server.connections == KEPT_MAX + 4
        await pool.aclose()
