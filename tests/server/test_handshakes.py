"""Handshakes over real sockets: WebSocket upgrades, hellos, and links that are resumed."""

import json
import logging
import re
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
import trio.testing
from websockets.uri import WebSocketURI

from acp_gateway.client.dialing import Resume, dial_link
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import (
    AccessError,
    Forbidden,
    LinkExpired,
    LinkGone,
    TooFarBehind,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
)
from acp_gateway.gateway.access import ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.handshake_limits import LINGER_SIZE, LINGER_TIME, ThrottledStream
from acp_gateway.server.hello import CONNECTION_ID_SIZE, QUERY_FIELDS, SESSION_ID_SIZE
from acp_gateway.server.listener import HELLO_SIZE, open_listener
from acp_gateway.server.pending import ARRIVAL_COST
from acp_gateway.transports.parts import NO_PART, PartSum
from acp_gateway.transports.sockets import connect_tcp, take_socket
from acp_gateway.transports.websocket.client import connect_websocket
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import TIMEOUT
from tests.kit.echoing import (
    BROKEN_LINKS,
    LINK,
    PING,
    SESSION,
    TCP,
    WS,
    EchoingGateway,
    answer_to,
    ask,
    bearer,
    connected,
    destination,
    hello,
    listening,
    open_next,
    port_of,
    resuming,
    upgrade,
    with_tls,
)

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def test_a_right_token_opens_a_websocket_and_the_answer_names_the_connection(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as listener:
        response = await ask(listener, "/acp", *upgrade(bearer(gateway.token())))
    assert response.status == 101
    assert len(response.headers["acp-connection-id"][0]) >= 22
    assert "sec-websocket-protocol" not in response.headers


async def test_no_extension_is_agreed_to(gateway: EchoingGateway) -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    async with listening(WS, gateway) as listener:
        response = await ask(listener, "/acp", *upgrade(bearer(gateway.token()), offer))
    assert response.status == 101
    assert "sec-websocket-extensions" not in response.headers


async def test_messages_pass_over_a_websocket(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as listener, trio.open_nursery() as nursery:
        websocket = await connect_websocket(
            await connect_tcp("127.0.0.1", port_of(listener)),
            WebSocketURI(False, "127.0.0.1", port_of(listener), "/acp", "agent=second"),
            {"Authorization": f"Bearer {gateway.token()}"},
            max_message_size=1 << 20,
            timing=Timing(),
        )
        nursery.start_soon(websocket.run)
        await websocket.send_batch([PING, PING])
        assert [await websocket.receive(), await websocket.receive()] == [PING, PING]
        await websocket.aclose()
        nursery.cancel_scope.cancel()
    (served,) = gateway.served
    assert (served.access.identity, served.agent) == ("ann", "second")


@pytest.mark.parametrize("prefix", ["acp.bearer.", "bearer."])
async def test_a_token_may_come_as_a_subprotocol_and_is_not_repeated(prefix: str, gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as listener:
        token = gateway.token()
        response = await ask(listener, "/acp", *upgrade(f"Sec-WebSocket-Protocol: acp.v1, {prefix}{token}"))
    assert (response.status, response.headers["sec-websocket-protocol"]) == (101, ["acp.v1"])
    assert token not in str(response)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Authorization: Bearer",),
        ("Authorization: Bearer ",),
        ("Authorization: Bearer acpgw_wrong",),
        ("Authorization: {token}",),
        ("Authorization: Basic {token}",),
        ("Authorization: Bearer {token}x",),
        ("Authorization: Bearer {other}",),
        ("Sec-WebSocket-Protocol: acp.bearer.{token}",),
        ("Sec-WebSocket-Protocol: acp.v1, acp.bearer.",),
        ("Sec-WebSocket-Protocol: acp.v1, {token}",),
        ("Cookie: token={token}",),
    ],
)
async def test_an_upgrade_without_a_valid_bearer_token_is_refused(
    headers: Sequence[str], gateway: EchoingGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = gateway.token()
    other = TokenStore(tmp_path / "other").create("x", "x", None)[1]
    async with listening(WS, gateway) as listener:
        response = await ask(
            listener, "/acp", *upgrade(*(header.format(token=token, other=other) for header in headers))
        )
    assert (response.status, response.headers["www-authenticate"]) == (401, ["Bearer"])
    assert "acp-connection-id" not in response.headers
    assert gateway.served == []
    for secret in (token, other):
        assert secret not in caplog.text
        assert secret not in str(response)


async def test_a_token_in_the_query_is_not_accepted_and_not_logged(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = gateway.token()
    async with listening(WS, gateway) as listener:
        for query in (f"token={token}", f"access_token={token}", f"agent={token}"):
            assert (await ask(listener, f"/acp?{query}", *upgrade())).status == 401
    assert token not in caplog.text


@pytest.mark.parametrize(
    ("query", "agents", "status"),
    [
        ("", (), 101),
        ("?agent=second", (), 101),
        ("?agent=first", ("first",), 101),
        ("?agent=second", ("first",), 403),
        ("", ("second",), 101),
        ("?agent=third", (), 404),
        ("?agent=third", ("first",), 404),
        ("?agent=", (), 404),
        ("?agent=first&agent=second", (), 400),
        (f"?agent={quote('ü/ö')}", (), 404),
        ("?agent=%ff", (), 404),
        ("?other=x", (), 101),
    ],
)
async def test_the_query_chooses_an_agent_that_the_token_allows(
    query: str, agents: Sequence[str], status: int, gateway: EchoingGateway
) -> None:
    async with listening(WS, gateway) as listener:
        response = await ask(listener, f"/acp{query}", *upgrade(bearer(gateway.token(*agents))))
    assert response.status == status
    assert len(gateway.served) == (status == 101)


@pytest.mark.parametrize(
    ("query", "connect_request"),
    [
        ("", ConnectRequest()),
        ("?agent=second", ConnectRequest("second")),
        (f"?session={quote(SESSION, safe='')}", ConnectRequest(session=SESSION)),
        ("?observe=1", ConnectRequest(observe=True)),
        (f"?observe=1&session={quote(SESSION, safe='')}&agent=first", ConnectRequest("first", SESSION, observe=True)),
        ("?control=1", ConnectRequest(control=True)),
        ("?control=1&observer=1&attach=x&session1=x", ConnectRequest(control=True)),
    ],
)
async def test_the_query_says_what_is_wanted(
    query: str, connect_request: ConnectRequest, gateway: EchoingGateway
) -> None:
    async with listening(WS, gateway) as listener:
        assert (await ask(listener, f"/acp{query}", *upgrade(bearer(gateway.token())))).status == 101
    assert gateway.connect_requests == [connect_request]


@pytest.mark.parametrize(
    "query",
    [
        "session=a&session=a",
        "session=" + "x" * (SESSION_ID_SIZE + 1),
        "control=1&control=1",
        *(
            f"{flag}{value}"
            for flag in ("observe", "control")
            for value in ("", "=", "=0", "=true", "=1%20", "=%EF%BC%91")
        ),
    ],
    ids=lambda query: query[:20],
)
async def test_a_query_that_is_not_understood_is_bad_for_those_with_a_token(
    query: str, gateway: EchoingGateway
) -> None:
    async with listening(WS, gateway) as listener:
        refused = await ask(listener, f"/acp?{query}", *upgrade(bearer(gateway.token())))
        assert (await ask(listener, f"/acp?{query}", *upgrade())).status == 401
    assert (refused.status, refused.headers["acp-gateway"]) == (400, ["protocol"])
    assert gateway.connect_requests == []


@pytest.mark.parametrize("session", ["", "no-session", "x" * SESSION_ID_SIZE])
async def test_a_session_that_is_not_there_is_told_from_an_agent_that_is_not(
    session: str, gateway: EchoingGateway
) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as listener, open_next(TCP, gateway) as lines:
        answers = [
            await ask(listener, f"/acp?{query}", *upgrade(bearer(token)))
            for query in (f"session={session}", f"session={session}&observe=1", "agent=third")
        ]
        by_line = await answer_to(lines, hello(token=token, session=session))
    assert [answer.status for answer in answers] == [404, 404, 404]
    marks = [answer.headers["acp-gateway"] for answer in answers]
    assert marks == [["unknown_session"], ["unknown_session"], ["unknown_agent"]]
    assert (by_line["error"]["code"], by_line["error"]["data"]) == (404, {"reason": "unknown_session"})
    assert answers[0].body == by_line["error"]["message"] + "\n"
    assert gateway.served == []


async def test_an_agent_is_not_named_to_those_without_a_token(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as listener:
        there, not_there = [await ask(listener, f"/acp?agent={name}", *upgrade()) for name in ("first", "third")]
    assert (there.status, there.body) == (not_there.status, not_there.body)


@pytest.mark.parametrize(
    "name", ["Observe", "OBSERVE", "observe%20", "%20observe", "observe[]", "obs_erve", "observe%00"]
)
async def test_a_query_with_a_parameter_that_is_nearly_a_known_one_is_bad_and_says_which(
    name: str, gateway: EchoingGateway
) -> None:
    async with listening(WS, gateway) as listener:
        refused = await ask(listener, f"/acp?{name}=1", *upgrade(bearer(gateway.token())))
    assert (refused.status, refused.headers["acp-gateway"]) == (400, ["protocol"])
    assert refused.body == "the query has a parameter that is nearly observe: it is spelled observe\n"
    assert gateway.served == []


async def test_a_query_with_very_many_parameters_is_bad(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as listener:
        refused = await ask(listener, "/acp?" + "&".join("a" * (QUERY_FIELDS + 1)), *upgrade(bearer(gateway.token())))
    assert (refused.status, refused.body) == (400, f"the query has more than {QUERY_FIELDS} parameters\n")


@pytest.mark.parametrize("url", [WS, TCP])
async def test_a_refused_stranger_who_goes_on_is_read_no_further_than_a_little(
    url: str, gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded = 0
    finish = ThrottledStream._may_discard

    def count(stream: ThrottledStream, size: int) -> bool:
        nonlocal discarded
        discarded += size
        return finish(stream, size)

    monkeypatch.setattr(ThrottledStream, "_may_discard", count)
    async with listening(url, gateway) as listener:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        await stream.send_all(b"POST /acp HTTP/1.1\r\n\r\n" if url == WS else b"{}\n")
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(bytes(65536))
        await stream.aclose()
    assert LINGER_SIZE <= discarded < 2 * LINGER_SIZE


async def test_a_refused_stranger_who_does_not_leave_is_not_waited_for(
    gateway: EchoingGateway, unix: str, autojump_clock: trio.testing.MockClock
) -> None:
    listener = await open_listener(ListenSection(url=unix), gateway)
    here, there = socket.socketpair()
    here.setblocking(False)
    there.sendall(b"{}\n")
    await listener.serve(here)
    assert trio.current_time() == LINGER_TIME
    assert b"error" in there.recv(4096)
    there.close()
    listener.close()


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x00\xf5\x01\x00", b"POST /acp HTTP/1.1\r\n\r\n", b"hello\n\r\n\r\n"])
async def test_what_is_not_a_request_for_a_websocket_is_answered_and_closed(
    data: bytes, gateway: EchoingGateway
) -> None:
    async with listening(WS, gateway) as listener:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        await stream.send_all(data + b"\r\n" * 10)
        assert b"".join([part async for part in stream]).startswith(b"HTTP/1.1 4")
        await stream.aclose()
    assert gateway.served == []


async def test_a_hello_is_answered_with_the_connections_id_and_messages_follow(gateway: EchoingGateway) -> None:
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send(hello(token=gateway.token(), agent="second"))
        answer = json.loads(await lines.receive())
        assert answer["id"] == "h"
        assert len(answer["result"]["connectionId"]) >= 22
        await lines.send(PING)
        assert await lines.receive() == PING
    (served,) = gateway.served
    assert (served.access.identity, served.agent) == ("ann", "second")
    assert served.name == f"{answer['result']['connectionId'][:8]} (127.0.0.1:{served.name.rpartition(':')[2]}"


async def test_a_message_may_be_larger_than_a_hello(gateway: EchoingGateway) -> None:
    big = b'"' + b"x" * (10 * HELLO_SIZE) + b'"'
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send_batch([hello(token=gateway.token()), big])
        await lines.receive()
        assert await lines.receive() == big


@pytest.mark.parametrize(
    ("params", "connect_request"),
    [
        ({}, ConnectRequest()),
        ({"agent": None, "session": None, "observe": False, "control": False}, ConnectRequest()),
        ({"agent": "second", "session": SESSION, "observe": True}, ConnectRequest("second", SESSION, observe=True)),
        ({"control": True}, ConnectRequest(control=True)),
    ],
)
async def test_a_hello_says_what_is_wanted(
    params: dict[str, Any], connect_request: ConnectRequest, gateway: EchoingGateway
) -> None:
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send(hello(token=gateway.token(), **params))
        assert "result" in json.loads(await lines.receive())
    assert gateway.connect_requests == [connect_request]


@pytest.mark.parametrize(
    ("params", "code", "reason"),
    [
        ({}, 401, "unauthorized"),
        ({"token": None}, 401, "unauthorized"),
        ({"token": ""}, 401, "unauthorized"),
        ({"token": "wrong"}, 401, "unauthorized"),
        ({"token": "{token}x"}, 401, "unauthorized"),
        ({"token": "{token}", "agent": "third"}, 404, "unknown_agent"),
        ({"token": "{token}", "agent": ""}, 404, "unknown_agent"),
        ({"token": "{token}", "agent": "second"}, 403, "forbidden"),
    ],
)
async def test_a_hello_that_opens_nothing_is_refused_with_the_number_of_http(
    params: dict[str, str | None], code: int, reason: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    token = gateway.token("first")
    given = {name: value and value.format(token=token) for name, value in params.items()}
    async with listening(TCP, gateway) as listener:
        answer = await answer_to(listener, hello(**given))
    assert answer["id"] == "h"
    assert (answer["error"]["code"], answer["error"]["data"]) == (code, {"reason": reason})
    assert gateway.served == []
    assert token not in caplog.text
    assert token not in json.dumps(answer)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"GET /acp HTTP/1.1", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"\xff"}}', -32700),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}', -32600),
        (b'{"jsonrpc":"2.0","method":"_acp-gateway/hello","params":{"token":"{token}"}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{"token":"{token}"}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"x","token":"{token}"}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{},"Params":{"token":"{token}"}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":["{token}"]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":["{token}"]}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"\\ud800"}}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","Observe":true}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","other":1}}', -32602),
        (b'{"id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","resume":{"Received":0}}}', -32602),
        (b'{"jsonrpc":"1.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}"}}', -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"_acp-gateway/hello","params":{"token":"{token}"}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","observe":1}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","observe":"1"}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","control":null}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","session":7}}', -32602),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","session":"%b"}}'
            % (b"x" * (SESSION_ID_SIZE + 1)),
            -32602,
        ),
        (b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":' + b"[" * 1900 + b"]" * 1900 + b"}", -32700),
        (b"x" * (HELLO_SIZE + 1), -32600),
    ],
    ids=lambda value: value.decode(errors="replace")[:80] if isinstance(value, bytes) else str(value),
)
async def test_a_first_line_that_is_not_a_hello_is_answered_and_the_connection_closed(
    line: bytes, code: int, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    token = gateway.token()
    async with listening(TCP, gateway) as listener:
        answer = await answer_to(listener, line.replace(b"{token}", token.encode()))
    assert answer["error"]["code"] == code
    assert gateway.served == []
    assert token not in caplog.text
    assert token not in json.dumps(answer)


async def test_blank_lines_may_come_before_a_hello(gateway: EchoingGateway) -> None:
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.bytes.send_some(memoryview(b"\r\n \n" + hello(token=gateway.token()) + b"\r\n" + PING + b"\r\n"))
        assert "result" in json.loads(await lines.receive())
        assert await lines.receive() == PING


async def test_a_first_line_that_is_too_large_is_refused_before_it_is_read(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("acp_gateway.server.listener.read_hello")
    for line in (b"[" * (HELLO_SIZE + 1), b"\n" * (HELLO_SIZE + 1) + hello(token=gateway.token())):
        async with listening(TCP, gateway) as listener:
            answer = await answer_to(listener, line)
        assert answer["error"]["message"] == (
            f"the first line of a connection, a hello, must not be larger than {HELLO_SIZE} bytes"
        )


async def test_a_refusal_reaches_a_client_that_has_sent_much_behind_its_hello(gateway: EchoingGateway) -> None:
    # Closing with unread bytes resets a TCP connection, and what was sent last may be lost with it.
    def talk() -> bytes:
        with socket.create_connection(("127.0.0.1", port_of(listener)), timeout=TIMEOUT) as sock:
            sock.sendall(hello(token="wrong") + b"\n" + PING * 1000)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(partial(sock.recv, 65536), b""))

    async with listening(TCP, gateway) as listener:
        received = await trio.to_thread.run_sync(talk)
    assert json.loads(received)["error"]["code"] == 401


async def test_a_client_that_goes_without_a_word_is_not_an_event(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(TCP, gateway) as listener:
        async with connected(listener):
            pass
        async with connected(listener) as lines:
            await lines.bytes.send_some(memoryview(b'{"half'))
        assert (await answer_to(listener, b"{}"))["error"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


@pytest.mark.parametrize("url", [WS, TCP])
@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_connection_reset_before_its_handshake_is_not_logged(
    url: str, when: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    listener = await open_listener(ListenSection(url=url), gateway)
    client = socket.create_connection(("127.0.0.1", port_of(listener)))
    stream = await listener._bound.listeners[0].accept()
    # Closing sends a reset then.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            if when == "before":
                client.close()
                await trio.lowlevel.wait_readable(stream.socket)
            nursery.start_soon(listener.serve, take_socket(stream))
            await trio.testing.wait_all_tasks_blocked()
            client.close()
    listener.close()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "left during the handshake: the connection was lost" in record.getMessage()
    assert ("gone already" in record.getMessage()) == (when == "before")


@pytest.mark.usefixtures("free_handshakes")
async def test_a_connection_lost_during_its_welcome_is_charged_as_a_short_one(
    gateway: EchoingGateway, unix: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    seen_off: list[tuple[float, float]] = []
    listener = await open_listener(ListenSection(url=unix), gateway)
    monkeypatch.setattr(listener._limiter, "release", lambda *released: seen_off.append(released))
    here, there = socket.socketpair()
    here.setblocking(False)
    there.sendall(hello(token=gateway.token()) + b"\n")
    there.close()
    with trio.fail_after(TIMEOUT):
        await listener.serve(here)
    listener.close()
    ((cost, since),) = seen_off
    assert cost > ARRIVAL_COST
    assert since == trio.current_time()
    assert len(gateway.connections) == 0


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (WS, b""),
        (WS, b"GET /acp HTTP/1.1\r\nHost: gate"),
        (TCP, b""),
        (TCP, b'{"jsonrpc":'),
        ("wss://127.0.0.1:0", b""),
        ("wss://127.0.0.1:0", b"\x16\x03\x01"),
        ("tcp+tls://127.0.0.1:0", b"\x16\x03\x01"),
    ],
)
async def test_who_says_nothing_whole_in_time_is_closed(
    url: str, said: bytes, tmp_path: Path, spawner: Spawner, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway = EchoingGateway(tmp_path / "state", spawner, handshake_timeout=0.01)
    section = with_tls(url, certificate)
    async with listening(section, gateway) as listener:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        try:
            await stream.send_all(said)
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
        await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert gateway.served == []
    assert caplog.messages[-1].endswith("not authenticated within handshake_timeout")
    assert {record.levelno for record in caplog.records} == {logging.INFO}


@pytest.mark.parametrize("count", ["0", "000000000000000"])
async def test_an_upgrade_asks_for_a_link_that_can_be_resumed(count: str, gateway: EchoingGateway) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as listener:
        response = await ask(listener, "/acp?agent=second", *upgrade(bearer(token), *resuming(count, None)))
    assert response.status == 101
    assert (response.headers["acp-gateway-resume"], response.headers["acp-gateway-probe"]) == (["0"], ["1"])
    assert response.headers["acp-gateway-part"] == ["0 00000000"]
    (link_id,) = response.headers["acp-connection-id"]
    (served,) = gateway.served
    assert (served.agent, served.link_id) == ("second", link_id)
    assert gateway.resumed == []


async def test_an_upgrade_that_does_not_ask_for_a_link_that_can_be_resumed_sees_none_of_it(
    gateway: EchoingGateway,
) -> None:
    gateway.links[LINK] = 7
    token = gateway.token()
    async with listening(WS, gateway) as listener:
        for header in ("User-Agent: x", f"Acp-Connection-Id: {LINK}", "Acp-Connection-Id: " + "x" * 100):
            response = await ask(listener, "/acp", *upgrade(bearer(token), header, header))
            assert response.status == 101
            assert "acp-gateway-resume" not in response.headers
            assert response.headers["acp-connection-id"] != [LINK]
    assert [served.link_id for served in gateway.served] == [None, None, None]
    assert gateway.resumed == []


@pytest.mark.parametrize(("received", "count"), [("0", 0), ("007", 7), ("17", 17), ("9" * 15, 10**15 - 1)])
@pytest.mark.parametrize("query", ["", "?agent=third&session=x", "?observe=7&agent=a&agent=b", "?control=0"])
async def test_an_upgrade_resumes_a_link_whatever_its_query_says(
    received: str, count: int, query: str, gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 4711
    token = gateway.token("first")
    async with listening(WS, gateway) as listener:
        response = await ask(listener, f"/acp{query}", *upgrade(bearer(token), *resuming(received)))
    assert (response.status, response.headers["acp-connection-id"]) == (101, [LINK])
    assert response.headers["acp-gateway-resume"] == ["4711"]
    (resumed,) = gateway.resumed
    assert (resumed.access.identity, resumed.link_id, resumed.received_there) == ("ann", LINK, count)
    assert re.fullmatch(r"the-link \(127\.0\.0\.1:\d+\)", resumed.name)
    assert (gateway.served, gateway.connect_requests) == ([], [])


@pytest.mark.parametrize("headers", BROKEN_LINKS, ids=lambda headers: " ".join(headers)[:50])
async def test_an_invalid_resume_header_is_answered_400_only_with_a_valid_token(
    headers: list[str], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 0
    async with listening(WS, gateway) as listener:
        refused = await ask(listener, "/acp", *upgrade(bearer(gateway.token()), *headers))
        assert (await ask(listener, "/acp", *upgrade(*headers))).status == 401
    assert (refused.status, refused.headers["acp-gateway"]) == (400, ["protocol"])
    assert (gateway.served, gateway.resumed, gateway.connect_requests) == ([], [], [])


@pytest.mark.parametrize("headers", [*BROKEN_LINKS, resuming(0), resuming(3), resuming(0, None)])
async def test_a_control_connection_has_no_link_that_could_be_resumed(
    headers: list[str], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 0
    async with listening(WS, gateway) as listener:
        response = await ask(listener, "/acp?control=1", *upgrade(bearer(gateway.token()), *headers))
    assert response.status == 101
    assert "acp-gateway-resume" not in response.headers
    assert response.headers["acp-connection-id"] != [LINK]
    assert gateway.resumed == []
    assert (gateway.connect_requests, gateway.links) == ([ConnectRequest(control=True)], {LINK: 0})


async def test_a_link_is_resumed_with_a_token_that_is_valid_now(gateway: EchoingGateway) -> None:
    gateway.links[LINK] = 0
    token, secret = gateway.tokens.create("laptop", "ann", None)
    gateway.tokens.revoke(token.id)
    async with listening(WS, gateway) as listener, open_next(TCP, gateway) as lines:
        for headers in ([], [bearer(secret)]):
            response = await ask(listener, "/acp", *upgrade(*headers, *resuming(3)))
            assert (response.status, response.headers["acp-gateway"]) == (401, ["unauthorized"])
        link = {"connectionId": LINK, "received": 3}
        for answer in [await answer_to(lines, hello(token=shown, resume=link)) for shown in (None, secret)]:
            assert answer["error"]["code"] == 401
    assert gateway.resumed == []


async def test_a_hello_asks_for_a_link_that_can_be_resumed(gateway: EchoingGateway) -> None:
    token = gateway.token()
    async with listening(TCP, gateway) as listener:
        for connect_request in ({}, {"connectionId": None}, {"received": 0}):
            async with connected(listener) as lines:
                await lines.send(hello(token=token, agent="second", resume=connect_request))
                result = json.loads(await lines.receive())["result"]
                limit = f"{gateway.config.gateway.max_message_size} max_message_size"
                expected = {"received": 0, "part": "0 00000000", "probe": True, "limit": limit}
                assert result == {"connectionId": gateway.served[-1].link_id, **expected}
                assert gateway.served[-1].agent == "second"
    assert len(set(gateway.links)) == 3


@pytest.mark.parametrize("params", [{}, {"resume": None}])
async def test_a_hello_that_does_not_ask_for_a_link_that_can_be_resumed_sees_none_of_it(
    params: dict[str, Any], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 7
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send(hello(token=gateway.token(), **params))
        result = json.loads(await lines.receive())["result"]
    assert list(result) == ["connectionId"]
    assert result["connectionId"] != LINK
    assert [served.link_id for served in gateway.served] == [None]
    assert gateway.resumed == []


@pytest.mark.parametrize("link", [{"connectionId": LINK}, {"connectionId": LINK, "received": 10**15 - 1}])
async def test_a_hello_resumes_a_link_whatever_else_it_asks_for(link: dict[str, Any], gateway: EchoingGateway) -> None:
    gateway.links[LINK] = 4711
    token = gateway.token("first")
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send_batch([hello(token=token, agent="third", session="x", resume=link), PING])
        limit = f"{gateway.config.gateway.max_message_size} max_message_size"
        expected = {"connectionId": LINK, "received": 4711, "part": "0 00000000", "probe": True, "limit": limit}
        assert json.loads(await lines.receive())["result"] == expected
        assert await lines.receive() == PING
    (resumed,) = gateway.resumed
    assert (resumed.access.identity, resumed.received_there) == ("ann", link.get("received", 0))
    assert resumed.name.startswith("the-link (127.0.0.1:")
    assert (gateway.served, gateway.connect_requests) == ([], [])


@pytest.mark.parametrize("section", [TCP, WS], ids=["lines", "websocket"])
@pytest.mark.parametrize("there", [NO_PART, PartSum(70_000, 0xBADCAFE)], ids=["none there", "one there"])
async def test_each_end_of_a_resumed_link_tells_the_part_of_a_message_that_it_has(
    section: ListenSection, there: PartSum, gateway: EchoingGateway
) -> None:
    gateway.links[LINK], gateway.part = 0, PartSum(65_536, 1)
    async with listening(section, gateway) as listener:
        asking = Resume(LINK, ask=lambda: 0, tell_part=lambda: there)
        dialed = await dial_link(destination(listener, gateway.token()), Timing(), asking)
        await dialed.aclose()
    assert dialed.part == gateway.part
    assert [resumed.part_there for resumed in gateway.resumed] == [there]


@pytest.mark.parametrize("part", ["", "70000", "70000 0BADCAFE", "70000 0badcafe\n", 70_000, {}])
async def test_a_part_that_is_not_one_is_refused(part: Any, gateway: EchoingGateway) -> None:
    gateway.links[LINK] = 0
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send(hello(token=gateway.token(), resume={"connectionId": LINK, "received": 1, "part": part}))
        assert json.loads(await lines.receive())["error"]["code"] == -32602
    assert gateway.resumed == []


@pytest.mark.parametrize("link", [{}, {"connectionId": LINK, "received": 3}])
async def test_a_hello_for_a_control_connection_has_no_link_that_could_be_resumed(
    link: dict[str, Any], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 0
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send(hello(token=gateway.token(), control=True, resume=link))
        assert list(json.loads(await lines.receive())["result"]) == ["connectionId"]
    assert gateway.connect_requests == [ConnectRequest(control=True)]
    assert (gateway.resumed, gateway.links) == ([], {LINK: 0})


@pytest.mark.parametrize(
    "link",
    [
        True,
        0,
        "",
        [],
        {"received": 1},
        {"connectionId": None, "received": 1},
        {"connectionId": 7},
        {"connectionId": "x" * (CONNECTION_ID_SIZE + 1)},
        {"connectionId": LINK, "received": "1"},
        {"connectionId": LINK, "received": 1.0},
        {"connectionId": LINK, "received": True},
        {"connectionId": LINK, "received": None},
        {"connectionId": LINK, "received": -1},
        {"connectionId": LINK, "received": 10**15},
    ],
    ids=lambda link: str(link)[:50],
)
async def test_an_invalid_resume_request_in_a_hello_is_an_invalid_params_error(
    link: object, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.links[LINK] = 0
    token = gateway.token()
    async with listening(TCP, gateway) as listener:
        answer = await answer_to(listener, hello(token=token, resume=link))
    assert (answer["error"]["code"], answer["error"]["data"]) == (-32602, {"reason": "protocol"})
    assert (gateway.served, gateway.resumed) == ([], [])
    assert token not in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "reason", "level"),
    [
        (Unauthorized("because"), 401, "unauthorized", logging.WARNING),
        (Forbidden("because"), 403, "forbidden", logging.WARNING),
        (UnknownAgent("because"), 404, "unknown_agent", logging.WARNING),
        (UnknownSession("because"), 404, "unknown_session", logging.WARNING),
        (TooFarBehind("because"), 409, "too_far_behind", logging.INFO),
        (LinkGone("because"), 410, "unknown", logging.INFO),
        (LinkExpired("because"), 410, "expired", logging.INFO),
    ],
)
async def test_a_link_that_cannot_be_resumed_is_refused_with_the_same_number_on_either_way(
    error: AccessError, status: int, reason: str, level: int, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway.links[LINK] = error
    token = gateway.token()
    async with listening(WS, gateway) as listener, open_next(TCP, gateway) as lines:
        by_upgrade = await ask(listener, "/acp", *upgrade(bearer(token), *resuming(3)))
        by_line = await answer_to(lines, hello(token=token, resume={"connectionId": LINK, "received": 3}))
    assert (by_upgrade.status, by_upgrade.headers["acp-gateway"], by_upgrade.body) == (status, [reason], "because\n")
    assert ("www-authenticate" in by_upgrade.headers) == (status == 401)
    assert "acp-connection-id" not in by_upgrade.headers
    assert by_line["error"] == {"code": status, "message": "because", "data": {"reason": reason}}
    refusals = [record for record in caplog.records if record.getMessage().endswith(": refused: because")]
    assert [record.levelno for record in refusals] == [level, level]
    assert gateway.served == []


@pytest.mark.parametrize("url", [WS, TCP])
async def test_a_bug_in_a_link_that_is_resumed_is_logged_and_the_connection_closed(
    url: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.links[LINK] = 0
    gateway.bug = ZeroDivisionError
    async with listening(url, gateway) as listener:
        link = await dial_link(destination(listener, gateway.token()), Timing(), Resume(LINK))
        with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
            await link.stream.receive()
        await link.stream.aclose()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("the-link (")
    caplog.clear()
