"""Requests over a connection."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from acp_gateway.errors import ProtocolError
from acp_gateway.transports.http.client import Head, HttpClientConnection
from acp_gateway.transports.streams import TrioBytes


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
            await then(http, await http.request("POST", "/acp", {"A": "b"}, b"{}"))
    await http.aclose()
    return received


async def test_a_request_has_a_host_and_a_length_and_the_response_its_body() -> None:
    async def check(http: HttpClientConnection, head: Head) -> None:
        assert head.status == 202
        assert head.headers["x"] == "y"
        assert head.cookies == ("a=1", "b=2")
        assert await http.read_all(100) == b"abc"
        assert http.reusable

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
        assert not http.reusable

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


async def test_a_refusal_that_comes_before_the_whole_request_is_read() -> None:
    class Refusing(TrioBytes):
        async def send_some(self, data: memoryview) -> int:
            raise trio.BrokenResourceError("the server has closed")

    here, there = trio.testing.memory_stream_pair()
    await there.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    sent = False

    def note() -> None:
        nonlocal sent
        sent = True

    http = HttpClientConnection(Refusing(here), "host")
    assert (await http.request("POST", "/acp", {}, b"{}", note)).status == 413
    assert not sent
    await http.aclose()
