"""Listeners over real sockets: TLS, unix sockets, errors, and agents behind them."""

import contextlib
import json
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.tls import client_context
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.authentication import AcceptedRequest, Client
from acp_gateway.server.listener import Listener, open_listener
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.websocket.stream import WebSocketStream
from tests.kit.doubles import TIMEOUT, make_config
from tests.kit.echoing import (
    PING,
    TCP,
    WS,
    EchoingGateway,
    answer_to,
    ask,
    bearer,
    connected,
    hello,
    line_editor,
    listening,
    open_next,
    open_sockets,
    port_of,
    upgrade,
    websocket_editor,
    with_tls,
)

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def test_lines_over_tls(gateway: EchoingGateway, certificate: Path) -> None:
    context = client_context(ca=certificate / "cert.pem", pin=None)
    async with listening(with_tls("tcp+tls://127.0.0.1:0", certificate), gateway) as listener:
        lines = LineStream(await connect_tcp("127.0.0.1", port_of(listener), context), max_message_size=1 << 20)
        await lines.send_batch([hello(token=gateway.token()), PING])
        await lines.receive()
        assert await lines.receive() == PING
        await lines.aclose()


async def test_a_refusal_over_tls_reaches_a_client_that_has_sent_more(
    gateway: EchoingGateway, certificate: Path
) -> None:
    context = client_context(ca=certificate / "cert.pem", pin=None)
    async with listening(with_tls("tcp+tls://127.0.0.1:0", certificate), gateway) as listener:
        lines = LineStream(await connect_tcp("127.0.0.1", port_of(listener), context), max_message_size=1 << 20)
        await lines.send_batch([hello(token="wrong"), PING, PING])
        assert json.loads(await lines.receive())["error"]["code"] == 401
        await lines.aclose()


@pytest.mark.parametrize("how", ["late", "bug"])
async def test_a_tls_connection_without_a_finished_handshake_is_closed(
    how: str,
    tmp_path: Path,
    spawner: Spawner,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A handshake takes milliseconds of computing: less time than this would end it before it is through.
    gateway = EchoingGateway(tmp_path / "state", spawner, handshake_timeout=0.3 if how == "late" else TIMEOUT)
    context = client_context(ca=certificate / "cert.pem", pin=None)
    async with listening(with_tls("tcp+tls://127.0.0.1:0", certificate), gateway) as listener:
        before = open_sockets()
        stream = await connect_tcp("127.0.0.1", port_of(listener), context)
        if how == "bug":
            monkeypatch.delattr(TokenStore, "authenticate")
            await stream.send_some(memoryview(hello(token="x") + b"\n"))
        assert await stream.receive_some() == b""
        await stream.aclose()
        while open_sockets() != before:
            await trio.lowlevel.checkpoint()
    assert gateway.served == []
    assert [record.levelname for record in caplog.records] == (["ERROR"] if how == "bug" else [])
    caplog.clear()


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET /s HTTP/1.1\r\nHost: gpu.example:7443\r\n\r\n", b"Location: https://gpu.example:7443/s\r\n"),
        (b"POST /acp HTTP/1.1\r\nHost: gpu.example:7443\r\n\r\n", b"This port speaks TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", b""),
    ],
)
async def test_a_client_without_tls_is_told_and_closed_without_a_warning(
    said: bytes, answer: bytes, gateway: EchoingGateway, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listening(with_tls("wss://127.0.0.1:0", certificate), gateway) as listener:
        stream = await connect_tcp("127.0.0.1", port_of(listener))
        await stream.send_some(memoryview(said))
        received = b""
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await stream.receive_some():
                received += data
        assert answer in received
        assert received or not answer
        await stream.aclose()
    assert "no TLS handshake" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert gateway.served == []


async def test_a_certificate_that_cannot_be_used_is_an_error_of_the_configuration(
    gateway: EchoingGateway, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        await open_listener(with_tls("wss://127.0.0.1:0", tmp_path), gateway)


@pytest.mark.parametrize("url", [WS, TCP])
async def test_a_bug_in_one_connection_is_logged_and_the_others_go_on(
    url: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    token = gateway.token()
    async with listening(TCP, gateway) as listener, connected(listener) as other:
        await other.send(hello(token=token))
        await other.receive()
        gateway.bug = ZeroDivisionError
        async with connected(listener) as lines:
            await lines.send(hello(token=token))
            assert "result" in json.loads(await lines.receive())
            with pytest.raises(trio.EndOfChannel):
                await lines.receive()
        await other.send(PING)
        assert await other.receive() == PING
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().endswith(": internal error, connection closed")
    assert record.exc_info is not None
    caplog.clear()


@pytest.mark.parametrize("lost", [trio.BrokenResourceError, trio.ClosedResourceError])
async def test_a_loss_that_a_task_of_a_connection_notices_is_not_a_bug(
    lost: type[Exception], gateway: EchoingGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise lost

    async def serve(*_: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    monkeypatch.setattr(gateway, "serve", serve)
    async with listening(TCP, gateway) as listener, connected(listener) as lines:
        await lines.send(hello(token=gateway.token()))
        assert "result" in json.loads(await lines.receive())
        with pytest.raises(trio.EndOfChannel):
            await lines.receive()
    assert "internal error" not in caplog.text


async def test_a_bug_during_authentication_is_logged_and_other_connections_go_on(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def authenticate(*_: object) -> None:
        raise ZeroDivisionError

    async with listening(WS, gateway) as listener:
        with monkeypatch.context() as patch:
            patch.setattr(gateway.tokens, "authenticate", authenticate)
            with pytest.raises((IndexError, trio.BrokenResourceError)):
                await ask(listener, "/acp", *upgrade(bearer("x")))
        assert (await ask(listener, "/acp", *upgrade(bearer(gateway.token())))).status == 101
    assert "ZeroDivisionError" in caplog.text
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    caplog.clear()


async def test_a_bug_while_the_gateway_stops_does_not_keep_it_from_stopping(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = trio.Event()

    async def serve(*_: object) -> None:
        async def fail() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ZeroDivisionError

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail)
            inside.set()

    monkeypatch.setattr(gateway, "serve", serve)
    async with listening(TCP, gateway) as listener:
        lines = LineStream(await connect_tcp("127.0.0.1", port_of(listener)), max_message_size=1 << 20)
        await lines.send(hello(token=gateway.token()))
        await inside.wait()
    await lines.aclose()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    caplog.clear()


async def test_who_asks_the_gateway_itself_too_much_at_once_is_told_so(spawner: Spawner, tmp_path: Path) -> None:
    config = make_config(tmp_path / "state", WS, max_message_size=100)
    gateway = Gateway(config, TokenStore(tmp_path / "state"), spawner, {})
    token = gateway.tokens.create("laptop", "ann", None)[1]
    async with listening(WS, gateway) as web, open_next(TCP, gateway) as tcp:
        async with websocket_editor(web, token, control="1") as editor:
            await editor.send(method="x" * 100)
            assert await editor.receive_rest() == []
            assert isinstance(editor.stream, WebSocketStream)
            assert editor.stream.close_code == 1009
        async with line_editor(tcp, token=token, control=True) as editor:
            await editor.send(method="x" * 100)
            (answer,) = await editor.receive_rest()
            assert answer["error"]["code"] == -32600
            assert "max_message_size (100 bytes)" in answer["error"]["message"]


async def test_connections_leave_no_descriptor_open(gateway: EchoingGateway, certificate: Path) -> None:
    token = gateway.token()
    context = client_context(ca=certificate / "cert.pem", pin=None)
    async with (
        listening(WS, gateway) as web,
        open_next(TCP, gateway) as plain,
        open_next(with_tls("tcp+tls://127.0.0.1:0", certificate), gateway) as tls,
    ):
        before = open_sockets()
        for _ in range(3):
            await ask(web, "/acp", *upgrade(bearer(token)))
            await ask(web, "/acp", *upgrade())
            await answer_to(plain, b"{}")
            async with connected(plain) as lines:
                await lines.send(hello(token=token))
                await lines.receive()
            with socket.create_connection(("127.0.0.1", port_of(tls))) as sock:
                sock.sendall(b"no TLS")
            await (await connect_tcp("127.0.0.1", port_of(tls), context)).aclose()
        # Some may not be through yet.
        while open_sockets() != before:
            await trio.lowlevel.checkpoint()


# Requests behind each other over one connection


class SlowRequest(AcceptedRequest):
    """A request that takes a minute to be served."""

    async def serve(self) -> bool:
        await trio.sleep(60)
        return True


async def serve_requests(listener: Listener, upcoming: Sequence[Callable[[], object]]) -> tuple[int, list[float]]:
    """Serve a request and those behind it, and call a function for each when it has been read.

    After them the client sends nothing. Returns the number of served requests, and the times of their begin and the
    end.
    """
    unused: Any = None
    connection = PendingConnection(name="x7Kd01ab (c)", peer="c", listener="l", network="c", limited=True)
    stream: Any = SimpleNamespace(aclose=trio.lowlevel.checkpoint)
    request = SlowRequest(Client(connection, unused, stream), unused, unused)
    times, calls = [trio.current_time()], iter(upcoming)

    async def next_request(former: AcceptedRequest) -> AcceptedRequest:
        assert former.client.connection is connection
        assert connection in listener._limiter._by_network["c"].connections
        call = next(calls, None)
        if call is None:
            await trio.sleep_forever()
        else:
            call()
        listener._limiter.authenticated(connection)
        times.append(trio.current_time())
        return request

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listener._handshakes, "next_request", next_request)
        assert await listener._serve_requests(request) is None
    assert "c" not in listener._limiter._by_network
    return len(times), [*times, trio.current_time()]


async def test_a_connection_that_waits_for_a_request_is_closed_in_time_and_one_that_serves_it_is_not(
    gateway: EchoingGateway, autojump_clock: trio.testing.MockClock
) -> None:
    timeout = gateway.config.gateway.handshake_timeout
    assert timeout < 60
    with closing(await open_listener(ListenSection(url=WS), gateway)) as listener:
        served, times = await serve_requests(listener, [int, int])
    assert served == 3
    assert [end - start for start, end in pairwise(times)] == [60, 60, 60 + timeout]


async def test_a_request_of_a_connection_that_was_evicted_when_it_was_read_is_not_served(
    gateway: EchoingGateway, autojump_clock: trio.testing.MockClock
) -> None:
    with closing(await open_listener(ListenSection(url=WS), gateway)) as listener:
        served, times = await serve_requests(listener, [int, listener._limiter.evict_one])
    # Two were served; the third was read, and ended the connection.
    assert (served, times[-1] - times[-2]) == (3, 0)
