"""The server's side of the upgrade: accepted requests, and the answers to all others."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.server import Request
from acp_gateway.transports.websocket.stream import WebSocketStream
from tests.kit.accepting import Accept, Respond, accept_websocket
from tests.kit.frames import CLOSE, CONT, PING, PONG, TEXT, Seen, accept_by_hand, close_payload, frame, request
from tests.kit.wires import MIB, NEVER, MemoryBytes, accept_all, memory_wire

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


async def test_of_subprotocols_ours_is_chosen_and_a_token_is_never_echoed() -> None:
    answer = await ask(request(Sec_WebSocket_Protocol=f"acp.bearer.{TOKEN}, acp.v1"))
    assert answer.status == 101
    assert answer.header("Sec-WebSocket-Protocol") == ["acp.v1"]
    assert TOKEN.encode() not in answer.raw


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
    peer = await accept_by_hand(behind=frame(TEXT, b"1", masked=True) + frame(TEXT, b"2", fin=False, masked=True))
    assert await peer.stream.receive_batch() == [b"1"]
    peer.send(peer.frame(CONT, b"3"))
    assert await peer.stream.receive_batch() == [b"23"]


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


# Being told something else


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
    assert (await ask(request(method="POST"))).header("Allow") == ["GET"]


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


async def test_a_client_that_stays_after_its_answer_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    client, server = memory_wire()
    client.send_nowait(memoryview(request()))
    assert await accept_websocket(server, refuse(403, "no"), max_message_size=MIB, timing=NEVER) is None
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
