"""Reading event streams and requests of the load generator for Streamable HTTP."""

import socket
from collections.abc import Iterator

import pytest

from benchmarks.bare import Failed
from benchmarks.http_load import EventReader, HttpClient, parse
from benchmarks.load import HTTP_LOAD, Endpoint


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_updates_are_counted_once_wherever_reads_cut_the_stream(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.settimeout(10)
    data = b"<update>--<update><update>--<end>"
    for cut in range(len(data)):
        reader = EventReader(ours, data[:cut])
        theirs.sendall(data[cut:])
        assert reader.count_until(b"<end>", b"<update>") == 3
        assert reader.received == len(data)


def test_a_single_read_byte_by_byte_is_counted_like_one_read(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.settimeout(10)

    class OneByte(EventReader):
        def _read(self) -> bytes:
            self.received += 1
            return self._sock.recv(1)

    theirs.sendall(b"<update><update>-<update><end>")
    assert OneByte(ours, b"").count_until(b"<end>", b"<update>") == 3


def test_an_event_stream_that_ends_fails_the_run(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"<update>")
    theirs.close()
    with pytest.raises(Failed, match="has ended"):
        EventReader(ours, b"").count_until(b"<end>", b"<update>")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nAcp-Connection-Id: c1\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nacp-connection-id: c1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_requests_name_the_connection_that_initialize_has_begun(
    answer: bytes, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    ours.settimeout(10)
    theirs.settimeout(10)
    client = HttpClient("127.0.0.1:1/acp", "secret", ours)
    theirs.sendall(answer)
    client.initialize()
    assert b"Acp-Connection-Id" not in theirs.recv(65536)
    theirs.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
    client.send("session/prompt", {}, "s")
    head, _, body = theirs.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /acp HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer secret\r\n")
    assert b"\r\nAcp-Connection-Id: c1\r\nAcp-Session-Id: s\r\n" in head
    assert b"\r\nContent-Length: %d" % len(body) in head


def test_another_status_than_the_expected_one_fails_the_run(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
    with pytest.raises(Failed, match="401"):
        HttpClient("127.0.0.1:1/acp", None, ours).initialize()


def test_an_endpoint_of_http_is_given_with_its_option_and_its_token_is_not() -> None:
    endpoint = Endpoint("http", "127.0.0.1:1/acp", token="secret")
    asked = parse(["stream", "--count", "7", *endpoint.arguments()])
    assert (asked.mode, asked.count, asked.http) == ("stream", 7, "127.0.0.1:1/acp")
    assert endpoint.environment()["LOAD_TOKEN"] == "secret"
    assert HTTP_LOAD[-1] == "benchmarks.http_load"
