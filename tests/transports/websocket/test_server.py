"""The server's side of the upgrade: accepted requests, and the answers to all others."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.head import HEAD_SIZE
from acp_gateway.transports.http.server import Request
from acp_gateway.transports.streams import Stalled
from acp_gateway.transports.websocket.frames import JOINED
from acp_gateway.transports.websocket.stream import WebSocketStream
from tests.accepting import Accept, Respond, accept_websocket
from tests.transports.conftest import Tls
from tests.transports.frames import (
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    Seen,
    accept_by_hand,
    close_payload,
    frame,
    request,
    take_frames,
)
from tests.transports.wires import MIB, NEVER, MemoryBytes, accept_all, close_at_once, memory_wire, tls_wire

TOKEN = "acpgw_secret"

Decide = Callable[[Request], Accept | Respond]


class Answer:
    """The server's answer, and the stream where there is one."""

    def __init__(self, data: bytes, stream: WebSocketStream | None, server: MemoryBytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        assert status_line.startswith("HTTP/1.1 ")
        self.status = int(status_line.split()[1])
        self.headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
        self.stream = stream
        self.server = server
        self.raw = data

    def header(self, name: str) -> list[str]:
        """The values of a header."""
        return [value for given, value in self.headers if given.lower() == name.lower()]


async def ask(*pieces: bytes, decide: Decide = accept_all, ends: bool = True) -> Answer:
    """Send these pieces to the server and return its answer; the client ends its side when it has read it."""
    client, server = memory_wire(MIB)
    streams: list[WebSocketStream | None] = []

    async def accept() -> None:
        streams.append(await accept_websocket(server, decide, max_message_size=MIB, timing=NEVER))

    data = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        for piece in pieces:
            client.send_nowait(memoryview(piece))
            await trio.testing.wait_all_tasks_blocked()
        if not client.inbox and not streams:
            await client.send_eof()
        while not streams or streams[0] is None:
            more = await client.receive_some()
            data += more
            if not more:
                break
            await trio.testing.wait_all_tasks_blocked()
        await client.send_eof()
    data += client.inbox
    return Answer(data, streams[0], server)


def refuse(status: int, text: str, headers: dict[str, str] | None = None) -> Decide:
    return lambda _: Respond(status, text, headers or {})


# Getting in


async def test_an_upgrade_is_accepted_with_the_headers_that_were_decided() -> None:
    answer = await ask(request())
    assert answer.status == 101
    assert answer.header("Sec-WebSocket-Accept") == ["s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]
    assert answer.header("Acp-Connection-Id") == ["c1"]
    assert answer.stream is not None
    assert not answer.server.closed


async def test_a_request_may_come_byte_by_byte() -> None:
    answer = await ask(*(bytes([byte]) for byte in request()))
    assert answer.status == 101


async def test_decide_gets_the_whole_request() -> None:
    seen: list[Request] = []

    def decide(request: Request) -> Accept:
        seen.append(request)
        return Accept()

    await ask(request(path="/acp?agent=demo", Authorization="Bearer t", Origin="https://a.example"), decide=decide)
    (asked,) = seen
    assert asked.method == "GET"
    assert (asked.path, asked.query) == ("/acp", "agent=demo")
    assert asked.headers.get_all("authorization") == ["Bearer t"]
    assert asked.headers.get_all("origin") == ["https://a.example"]


@pytest.mark.parametrize(
    ("asked", "texts"), [("1", [b"1\n2"]), (None, [b"1", b"2"]), ("0", [b"1", b"2"]), ("1, 1", [b"1", b"2"])]
)
async def test_messages_are_joined_for_a_client_that_asks_for_it(asked: str | None, texts: list[bytes]) -> None:
    answer = await ask(request(Acp_Gateway_Joined=asked))
    assert answer.header(JOINED) == (["1"] if len(texts) == 1 else [])
    assert answer.stream is not None
    answer.stream.send_nowait([b"1", b"2"])
    assert answer.server.written[-1] == b"".join(frame(TEXT, text, masked=False) for text in texts)


async def test_a_text_of_a_client_is_one_message() -> None:
    peer = await accept_by_hand(behind=frame(TEXT, b"1\n2", masked=True), Acp_Gateway_Joined="1")
    assert await peer.stream.receive_batch() == [b"1\n2"]


async def test_of_subprotocols_ours_is_chosen_and_a_token_is_never_echoed() -> None:
    answer = await ask(request(Sec_WebSocket_Protocol=f"acp.bearer.{TOKEN}, acp.v1"))
    assert answer.status == 101
    assert answer.header("Sec-WebSocket-Protocol") == ["acp.v1"]
    assert TOKEN.encode() not in answer.raw


async def test_without_subprotocols_none_is_chosen() -> None:
    answer = await ask(request())
    assert answer.header("Sec-WebSocket-Protocol") == []


@pytest.mark.parametrize("offered", ["chat", f"acp.bearer.{TOKEN}", "acp.v2, graphql-ws"])
async def test_subprotocols_without_ours_are_refused_with_the_reason(offered: str) -> None:
    answer = await ask(request(Sec_WebSocket_Protocol=offered))
    assert answer.status == 400
    assert b"none of the subprotocols is known here; offer acp.v1" in answer.body
    assert TOKEN.encode() not in answer.raw
    assert answer.header("Acp-Connection-Id") == []


async def test_no_extension_is_negotiated() -> None:
    answer = await ask(request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"))
    assert answer.status == 101
    assert answer.header("Sec-WebSocket-Extensions") == []


# What comes along with the request


async def test_messages_behind_the_request_are_not_lost() -> None:
    behind = frame(TEXT, b"1", masked=True) + frame(TEXT, b"2", fin=False, masked=True)
    peer = await accept_by_hand(behind=behind)
    assert await peer.stream.receive_batch() == [b"1"]
    peer.send(peer.frame(CONT, b"3"))
    assert await peer.stream.receive_batch() == [b"23"]


@pytest.mark.parametrize("cut", [-1, -2, -3, -4, -5, -20])
async def test_a_request_may_be_cut_anywhere_before_the_frames_after_it(cut: int) -> None:
    data = request() + frame(TEXT, b"{}", masked=True)
    cut += len(request())
    answer = await ask(data[:cut], data[cut:])
    assert answer.stream is not None
    assert await answer.stream.receive() == b"{}"


async def test_a_ping_behind_the_request_is_answered_behind_the_answer() -> None:
    peer = await accept_by_hand(behind=frame(PING, b"p", masked=True) + frame(TEXT, b"1", masked=True))
    assert await peer.stream.receive_batch() == [b"1"]
    assert peer.frames() == [Seen(PONG, b"p")]


async def test_a_close_frame_right_after_the_request_closes_the_stream() -> None:
    peer = await accept_by_hand(behind=frame(CLOSE, close_payload(1000), masked=True))
    with pytest.raises(trio.EndOfChannel):
        await peer.stream.receive()
    assert peer.frames() == [Seen(CLOSE, close_payload(1000))]


async def test_bytes_behind_the_request_that_are_not_frames_end_the_websocket() -> None:
    peer = await accept_by_hand(behind=b"GET /acp HTTP/1.1\r\n\r\n")
    with pytest.raises(trio.BrokenResourceError, match="violated the protocol"):
        await peer.stream.receive()
    assert [got.payload[:2] for got in peer.frames()] == [close_payload(1002)]


@pytest.mark.parametrize("behind", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000, frame(CLOSE, masked=True)])
async def test_bytes_after_a_refused_request_are_ignored(behind: bytes) -> None:
    answer = await ask(request() + behind, decide=refuse(401, "no"))
    assert answer.status == 401


# Being told something else


async def test_another_answer_than_the_upgrade_is_given_and_the_connection_closed() -> None:
    answer = await ask(request(), decide=refuse(401, "a token is needed", {"WWW-Authenticate": "Bearer"}))
    assert answer.status == 401
    assert answer.header("WWW-Authenticate") == ["Bearer"]
    assert answer.header("Connection") == ["close"]
    assert answer.header("Content-Length") == ["18"]
    assert answer.body == b"a token is needed\n"
    assert answer.stream is None
    assert answer.server.closed


async def test_a_plain_request_can_be_answered() -> None:
    # As a load balancer asks.
    answer = await ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", decide=refuse(200, "ok"))
    assert answer.status == 200
    assert answer.body == b"ok\n"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param(b"GET /acp HTTP/1.1\r\nHost: localhost\r\n\r\n", 426, id="no upgrade"),
        pytest.param(request(Upgrade="h2c"), 426, id="another upgrade"),
        pytest.param(request(Connection="keep-alive"), 426, id="no connection upgrade"),
        pytest.param(request(method="POST"), 405, id="POST"),
        pytest.param(request(method="POST", Content_Length="2") + b"{}", 405, id="POST with a body"),
        pytest.param(request(method="POST", Transfer_Encoding="chunked") + b"0\r\n\r\n", 405, id="POST in chunks"),
        pytest.param(request(method="DELETE"), 405, id="DELETE"),
        pytest.param(request(version="HTTP/1.0"), 505, id="HTTP/1.0"),
        pytest.param(b"GET /acp HTTP/1.0\r\n\r\n", 505, id="plain HTTP/1.0"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
        pytest.param(request(Sec_WebSocket_Version="8"), 426, id="another version"),
        pytest.param(request(Sec_WebSocket_Version=None), 400, id="no version"),
        pytest.param(request(Sec_WebSocket_Key="short"), 400, id="a wrong key"),
        pytest.param(request(Sec_WebSocket_Key=None), 400, id="no key"),
    ],
)
async def test_an_invalid_upgrade_request_gets_its_http_status(asked: bytes, status: int) -> None:
    answer = await ask(asked)
    assert answer.status == status
    assert answer.header("Connection") == ["close"]
    assert answer.header("Acp-Connection-Id") == []
    assert answer.stream is None
    assert answer.server.closed


async def test_a_post_request_gets_the_allowed_methods() -> None:
    answer = await ask(request(method="POST"))
    assert answer.header("Allow") == ["GET"]


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS"),
        pytest.param(b'{"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello"}\n', id="a line of JSON"),
        pytest.param(b"x" * 10_000, id="a line without an end"),
        pytest.param(request().replace(b"\r\n", b"\n"), id="line feeds only"),
        pytest.param(b"GET /acp\r\n\r\n", id="HTTP/0.9"),
        pytest.param(request(Evil="a\x00b"), id="a NUL in a header"),
        pytest.param(request().replace(b"Upgrade: ", b"Upgrade : "), id="a space before the colon"),
        pytest.param(request()[:-10], id="half a request"),
    ],
)
async def test_garbage_is_a_bad_request(garbage: bytes) -> None:
    asked: list[Request] = []

    def decide(request: Request) -> Accept:
        asked.append(request)
        return Accept()

    answer = await ask(garbage, decide=decide)
    assert answer.status == 400
    assert answer.server.closed
    assert asked == []


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param(b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", 414, id="a long path"),
        pytest.param(b"GET /" + b"x" * 10_000, 414, id="a line without an end"),
        pytest.param(request(Cookie="x" * 10_000), 431, id="a long header"),
        pytest.param(request(**{f"X_{n}": "x" for n in range(200)}), 431, id="many headers"),
        pytest.param(request(**{f"X_{n}": "x" * 8000 for n in range(9)}), 431, id="long headers"),
        pytest.param(request(**{f"X_{n}": "x" * 8000 for n in range(50)})[:-4], 431, id="long headers without an end"),
    ],
)
async def test_a_request_that_is_too_large_is_refused_before_it_is_complete(asked: bytes, status: int) -> None:
    answer = await ask(asked)
    assert answer.status == status
    assert answer.server.closed


def request_of(size: int) -> bytes:
    """An upgrade of so many bytes."""
    long = {f"X_{n}": "x" * 8000 for n in range(8)}
    missing = size - len(request(**long, Y=""))
    return request(**long, Y="y" * missing)


@pytest.mark.parametrize("behind", [b"", frame(TEXT, b"x" * 70_000, masked=True)], ids=["alone", "with a message"])
@pytest.mark.parametrize(("size", "status"), [(HEAD_SIZE, 101), (HEAD_SIZE + 1, 431)])
async def test_a_request_may_have_so_many_bytes_however_they_come(size: int, status: int, behind: bytes) -> None:
    data = request_of(size)
    assert len(data) == size
    for pieces in ([data + behind], [data[:-1], data[-1:] + behind], [data[:30_000], data[30_000:] + behind]):
        answer = await ask(*pieces)
        assert answer.status == status
        assert (b"the head of a request must not be larger than 65536 bytes" in answer.body) == (status == 431)


def refuse_late(_: Request) -> Respond:
    return Respond(429, "no", delay=3.0)


async def test_an_answer_may_wait(autojump_clock: trio.testing.MockClock) -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(request()))
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            assert await accept_websocket(server, refuse_late, max_message_size=MIB, timing=NEVER) is None

        nursery.start_soon(accept)
        await trio.sleep(2.9)
        assert not client.inbox
        await trio.sleep(0.2)
        assert client.inbox.startswith(b"HTTP/1.1 429 ")
        await client.send_eof()


async def test_a_request_without_end_is_not_read_on() -> None:
    client, server = memory_wire(MIB)
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            assert await accept_websocket(server, accept_all, max_message_size=MIB, timing=NEVER) is None

        nursery.start_soon(accept)
        sent = 0
        while not client.inbox:
            client.send_nowait(memoryview(b"x" * 1000))
            sent += 1000
            await trio.testing.wait_all_tasks_blocked()
        assert sent <= 10_000
        await client.send_eof()


@pytest.mark.parametrize("asked", [b"", request()[:20]])
async def test_a_client_that_has_gone_gets_no_answer_and_no_error(asked: bytes) -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(asked))
    await client.aclose()
    assert await accept_websocket(server, accept_all, max_message_size=MIB, timing=NEVER) is None
    assert server.closed


async def test_a_client_that_does_not_read_its_answer_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    client, server = memory_wire(room=MIB)
    client.send_nowait(memoryview(request()))
    client.room = 10
    with pytest.raises(Stalled):
        await accept_websocket(server, refuse(403, "no"), max_message_size=MIB, timing=NEVER)
    assert trio.current_time() == CLOSE_TIMEOUT


async def test_a_client_that_stays_after_its_answer_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(request()))
    decide = refuse(403, "no")
    assert await accept_websocket(server, decide, max_message_size=MIB, timing=NEVER) is None
    assert trio.current_time() == CLOSE_TIMEOUT
    assert b"no\n" in client.inbox
    assert server.closed


async def test_a_lost_connection_is_an_error() -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(request()))
    await client.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await accept_websocket(server, accept_all, max_message_size=MIB, timing=NEVER)


async def test_a_cancelled_handshake_leaves_the_stream_to_the_caller() -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(request()[:20]))
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            await accept_websocket(server, accept_all, max_message_size=MIB, timing=NEVER)

        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not server.closed


async def test_an_error_in_decide_is_raised_in_the_caller() -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(request()))

    def decide(request: Request) -> Accept:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        await accept_websocket(server, decide, max_message_size=MIB, timing=NEVER)


async def test_over_tls_an_answer_is_read_to_its_end(tls: Tls) -> None:
    client, server = await tls_wire(tls)
    client.send_nowait(memoryview(request() + b"x" * 5000))
    received = b""
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            decide = refuse(401, "y" * 100_000)
            assert await accept_websocket(server, decide, max_message_size=MIB, timing=NEVER) is None

        nursery.start_soon(accept)
        while more := await client.receive_some():
            received += more
        await client.finish()
    assert received.endswith(b"y" * 100_000 + b"\n")
    await close_at_once(client)


async def test_the_servers_answers_are_never_masked() -> None:
    peer = await accept_by_hand()
    peer.stream.send_nowait([b"{}"])
    assert take_frames(bytearray(peer.wire.inbox), masked=False) == [Seen(TEXT, b"{}")]
