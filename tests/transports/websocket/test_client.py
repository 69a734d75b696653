"""The client's side of the WebSocket handshake."""

import pytest
import trio
import trio.testing
from websockets.uri import WebSocketURI

from acp_gateway.errors import ProtocolError
from acp_gateway.transports.websocket.client import ANSWER_SIZE, SLICE, UpgradeRefused, connect_websocket
from acp_gateway.transports.websocket.stream import REFUSAL_HEADER, WebSocketStream
from tests.kit.frames import CLOSE, PING, PONG, TEXT, Seen, close_payload, connect_by_hand, frame, response_101
from tests.kit.wires import MIB, NEVER, URI, memory_wire


async def handshake(*answer: bytes, uri: WebSocketURI = URI, headers: dict[str, str] | None = None) -> bytes:
    """Send these pieces as the server's answer, then its end; returns the request. Raises what the client does."""
    client, server = memory_wire()
    server_done = trio.Event()
    sent = b""

    async def serve() -> None:
        nonlocal sent
        sent = await server.receive_some()
        for piece in answer:
            server.send_nowait(memoryview(piece.replace(b"(101)", response_101(sent))))
            await trio.testing.wait_all_tasks_blocked()
        await server.send_eof()
        server_done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            await connect_websocket(client, uri, headers or {}, max_message_size=MIB, timing=NEVER)
        except Exception as error:
            # It is the caller's to close.
            assert not client.closed
            nursery.cancel_scope.cancel()
            failure = error
        else:
            await server_done.wait()
            return sent
    raise failure


async def test_the_clients_request_names_host_path_query_and_headers() -> None:
    uri = WebSocketURI(True, "gateway.example", 7443, "/acp", "agent=demo")
    sent = await handshake(b"(101)", uri=uri, headers={"Authorization": "Bearer t", "User-Agent": "me"})
    lines = sent.decode().split("\r\n")
    assert lines[0] == "GET /acp?agent=demo HTTP/1.1"
    for line in (
        "Host: gateway.example:7443",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Authorization: Bearer t",
        "User-Agent: me",
    ):
        assert line in lines
    assert "Sec-WebSocket-Extensions" not in sent.decode()


async def test_the_servers_headers_are_kept() -> None:
    assert (await connect_by_hand()).stream.headers["Acp-Connection-Id"] == "c1"


@pytest.mark.parametrize("cut", [1, 20, -1])
async def test_the_answer_may_come_in_pieces(cut: int) -> None:
    client, server = memory_wire()
    streams: list[WebSocketStream] = []

    async def connect() -> None:
        streams.append(await connect_websocket(client, URI, {}, max_message_size=MIB, timing=NEVER))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect)
        answer = response_101(await server.receive_some()) + frame(TEXT, b"{}", masked=False)
        server.send_nowait(memoryview(answer[:cut]))
        await trio.testing.wait_all_tasks_blocked()
        server.send_nowait(memoryview(answer[cut:]))
    assert await streams[0].receive() == b"{}"


async def test_messages_that_come_along_with_the_answer_are_not_lost() -> None:
    behind = frame(TEXT, b"1", masked=False) + frame(PING, b"p", masked=False) + frame(TEXT, b"2", masked=False)
    peer = await connect_by_hand(behind=behind)
    assert await peer.stream.receive_batch() == [b"1", b"2"]
    assert peer.frames() == [Seen(PONG, b"p")]


async def test_a_close_frame_right_after_the_response_is_not_lost() -> None:
    peer = await connect_by_hand(behind=frame(CLOSE, close_payload(1001), masked=False))
    with pytest.raises(trio.EndOfChannel):
        await peer.stream.receive()
    assert peer.stream.close_code == 1001


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ("401 Unauthorized\r\nContent-Length: 15\r\n\r\nno such token\r\n", 401, "no such token"),
        ("404 Not Found\r\nContent-Length: 9\r\n\r\none\ntwo\r\n", 404, "one"),
        ("503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", 503, "Service Unavailable"),
        ("302 Found\r\nLocation: /elsewhere\r\n\r\n", 302, "Found"),
        ("200 OK\r\n\r\n<html>" + "x" * 300, 200, "<html>" + "x" * 194),
        ("403 Forbidden\r\nContent-Length: 8\r\n\r\n\x1b[2Jboo\xff", 403, "\\x1b[2Jboo\ufffd"),
    ],
)
async def test_an_upgrade_that_is_refused_tells_the_status_and_a_line_of_text(
    answer: str, status: int, text: str
) -> None:
    with pytest.raises(UpgradeRefused) as refused:
        await handshake(b"HTTP/1.1 " + answer.encode("latin-1"))
    assert (refused.value.status, refused.value.text) == (status, text)
    assert str(refused.value) == f"the server answered HTTP {status} instead of opening a WebSocket: {text}"


async def test_a_refusal_that_repeats_the_token_is_told_without_it() -> None:
    answer = b"HTTP/1.1 401 Unauthorized\r\n\r\n" + b"x" * 180 + b" no such key: key-12345678901234567890"
    with pytest.raises(UpgradeRefused) as refused:
        await handshake(answer, headers={"Authorization": "Bearer key-12345678901234567890"})
    assert refused.value.text == "x" * 180 + " no such key: …"


@pytest.mark.parametrize(
    ("header", "refusal"),
    [
        (f"{REFUSAL_HEADER}: unauthorized\r\n", "unauthorized"),
        (f"{REFUSAL_HEADER.lower()}: unknown_session\r\n", "unknown_session"),
        (f"{REFUSAL_HEADER}:\r\n", ""),
        (f"{REFUSAL_HEADER}: one\r\n{REFUSAL_HEADER}: two\r\n", "one"),
        ("", None),
    ],
)
async def test_the_refusal_header_tells_a_gateway_from_a_proxy(header: str, refusal: str | None) -> None:
    with pytest.raises(UpgradeRefused) as raised:
        await handshake(f"HTTP/1.1 401 Unauthorized\r\n{header}Content-Length: 0\r\n\r\n".encode())
    assert raised.value.refusal == refusal


@pytest.mark.parametrize(
    "answer",
    [
        b"220 mail.example ESMTP\r\n\r\n",
        b"x" * 20_000,
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n",
        b"HTTP/1.1 101 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: not of the key\r\n\r\n",
    ],
)
async def test_a_malformed_answer_is_an_error_of_the_protocol(answer: bytes) -> None:
    with pytest.raises(ProtocolError, match="the server there does not speak WebSocket"):
        await handshake(answer)


@pytest.mark.parametrize("answer", [[], [b"HTTP/1.1 101 Swi"], [b"HTTP/1.1 101 Switching Protocols\r\nUpgra"]])
async def test_a_server_that_hangs_up_in_the_handshake_is_a_lost_connection(answer: list[bytes]) -> None:
    with pytest.raises(trio.BrokenResourceError, match="closed the connection during the handshake"):
        await handshake(*answer)


CHUNKED = b"HTTP/1.1 502 Bad Gateway\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\na\r\n"


async def test_other_tasks_get_their_turn_while_tiny_chunks_of_a_refusal_are_read() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    client, server = memory_wire()
    server.send_nowait(memoryview(CHUNKED + 10 * SLICE // len(TINY) * TINY + b"0\r\n\r\n"))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            with pytest.raises(UpgradeRefused, match=r"HTTP 502 .*: aaa"):
                await connect_websocket(client, URI, {}, max_message_size=MIB, timing=NEVER)
            scope.cancel()
    assert turns >= 9


async def test_a_refusal_without_end_is_an_error_of_the_protocol() -> None:
    part = 10_000 * TINY
    with pytest.raises(ProtocolError, match=f"more than {ANSWER_SIZE} bytes"):
        await handshake(CHUNKED, *(ANSWER_SIZE // len(part) + 1) * [part])


async def test_a_cancelled_handshake_leaves_the_stream_to_the_caller() -> None:
    client, _ = memory_wire(room=10)
    async with trio.open_nursery() as nursery:

        async def connect() -> None:
            await connect_websocket(client, URI, {}, max_message_size=MIB, timing=NEVER)

        nursery.start_soon(connect)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not client.closed
