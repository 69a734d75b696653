"""How a client gets in, and how it finds out that it can't: against servers of the test's own, on loopback."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import trio

from acp_gateway.addresses import Address, parse_address
from acp_gateway.dialing import Destination, dial, printable
from acp_gateway.errors import (
    Forbidden,
    GatewayError,
    ProtocolError,
    TrustError,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
)
from acp_gateway.tls import CreatedCertificate, create_certificate, server_context
from acp_gateway.transports.websocket import Timing

TOKEN = "acpgw_this-is-the-token"


@asynccontextmanager
async def serving(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    """A server on loopback that does this with each connection; its port."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await handler(stream)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            yield listener.socket.getsockname()[1]
            nursery.cancel_scope.cancel()


def destination(url: str, *, pin: str | None = None, agent: str | None = None, **wish: Any) -> Destination:
    return Destination(parse_address(url), agent, TOKEN, pin, None, 1024, **wish)


async def failure(url: str, *, pin: str | None = None) -> GatewayError:
    """What dialling this fails with."""
    with pytest.raises(GatewayError) as caught:
        await dial(destination(url, pin=pin), Timing())
    assert TOKEN not in str(caught.value)
    return caught.value


def answering(text: bytes) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A server that reads something and answers this, whatever it was."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(text)

    return answer


async def test_a_hello_names_the_agent_and_shows_the_token() -> None:
    heard = []

    async def gateway(stream: trio.SocketStream) -> None:
        heard.append(await stream.receive_some())
        await stream.send_all(b'{"jsonrpc":"2.0","id":0,"result":{"connectionId":"x"}}\n{"first":1}\n')

    async with serving(gateway) as port:
        stream = await dial(destination(f"tcp://127.0.0.1:{port}", agent="demo"), Timing())
        assert await stream.receive() == b'{"first":1}'
        await stream.aclose()
    assert b'"_acp-gateway/hello"' in heard[0]
    assert TOKEN.encode() in heard[0]
    assert b'"demo"' in heard[0]


@pytest.mark.parametrize(
    ("wish", "sent"),
    [
        ({}, {}),
        ({"agent": "a b/ü+&"}, {"agent": "a b/ü+&"}),
        ({"session": "s 1/ü+&=?#"}, {"session": "s 1/ü+&=?#"}),
        (
            {"agent": "demo", "session": "s", "observe": True, "control": True},
            {"agent": "demo", "session": "s", "observe": True, "control": True},
        ),
    ],
)
async def test_what_is_wanted_is_said_in_the_hello_and_in_the_query(wish: dict[str, Any], sent: dict[str, Any]) -> None:
    heard = []

    async def listen(stream: trio.SocketStream) -> None:
        heard.append((await stream.receive_some()).decode())

    async with serving(listen) as port:
        for scheme in ("tcp", "ws"):
            with pytest.raises(Unreachable):
                await dial(destination(f"{scheme}://127.0.0.1:{port}", **wish), Timing())
    hello, upgrade = heard
    assert json.loads(hello)["params"] == {"token": TOKEN} | sent
    query = urlsplit(upgrade.split()[1]).query
    assert parse_qsl(query, strict_parsing=bool(sent)) == [
        (name, "1" if value is True else value) for name, value in sent.items()
    ]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (b'"unknown_session"', UnknownSession),
        (b'"unknown_agent"', UnknownAgent),
        (b'"forbidden"', UnknownAgent),
        (b"[]", UnknownAgent),
    ],
)
async def test_a_session_that_is_not_there_is_told_from_an_agent_that_is_not(
    reason: bytes, kind: type[GatewayError]
) -> None:
    lines = b'{"id":0,"error":{"code":404,"message":"because","data":{"reason":%b}}}\n' % reason
    http = b"HTTP/1.1 404 No\r\nAcp-Gateway: %b\r\nContent-Length: 7\r\n\r\nbecause" % reason.strip(b'"')
    for scheme, text in (("tcp", lines), ("ws", http)):
        async with serving(answering(text)) as port:
            error = await failure(f"{scheme}://127.0.0.1:{port}")
        assert type(error) is kind
        assert "because" in str(error)


async def test_the_reason_does_not_outweigh_the_number() -> None:
    text = b'{"id":0,"error":{"code":401,"message":"because","data":{"reason":"unknown_session"}}}\n'
    async with serving(answering(text)) as port:
        assert type(await failure(f"tcp://127.0.0.1:{port}")) is Unauthorized


@pytest.mark.parametrize("code", ["[]", "{}", '"404"', "null", "404.5"])
async def test_a_refusal_with_a_number_that_is_none_is_an_error_of_the_protocol(code: str) -> None:
    async with serving(answering(b'{"id":0,"error":{"code":%b,"data":7}}\n' % code.encode())) as port:
        assert type(await failure(f"tcp://127.0.0.1:{port}")) is ProtocolError


@pytest.mark.parametrize(
    ("code", "kind"),
    [(401, Unauthorized), (403, Forbidden), (404, UnknownAgent), (503, Unreachable), (418, ProtocolError)],
)
async def test_a_refusal_means_the_same_over_lines_and_over_websockets(code: int, kind: type[GatewayError]) -> None:
    lines = b'{"jsonrpc":"2.0","id":0,"error":{"code":%d,"message":"because"}}\n' % code
    http = b"HTTP/1.1 %d No\r\nAcp-Gateway: x\r\nContent-Length: 7\r\n\r\nbecause" % code
    for scheme, text in (("tcp", lines), ("ws", http)):
        async with serving(answering(text)) as port:
            error = await failure(f"{scheme}://127.0.0.1:{port}")
        assert type(error) is kind
        assert "because" in str(error)


@pytest.mark.parametrize("text", [b"SSH-2.0-OpenSSH_9.2\r\n", b"{}\n", b"[]\n", b'{"error":7}\n', b"\xff\n"])
async def test_whoever_answers_a_hello_with_something_else_is_no_gateway(text: bytes) -> None:
    async with serving(answering(text)) as port:
        assert type(await failure(f"tcp://127.0.0.1:{port}")) is ProtocolError


@pytest.mark.parametrize(
    "text", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"]
)
async def test_whoever_answers_an_upgrade_with_something_else_is_no_gateway(text: bytes) -> None:
    async with serving(answering(text)) as port:
        assert type(await failure(f"ws://127.0.0.1:{port}")) is ProtocolError


async def test_a_refusal_of_another_server_is_not_taken_for_the_gateways() -> None:
    for code in (401, 403, 404):
        async with serving(answering(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % code)) as port:
            error = await failure(f"ws://127.0.0.1:{port}")
        assert type(error) is ProtocolError
        assert f"HTTP {code}" in str(error)
        assert f"127.0.0.1:{port}" in str(error)


async def test_what_a_stranger_says_is_one_line_without_control_characters() -> None:
    text = b'{"id":0,"error":{"code":401,"message":"a\\nb\\u001b[31m"}}\n'
    async with serving(answering(text)) as port:
        assert str(await failure(f"tcp://127.0.0.1:{port}")).endswith("a b [31m")


def test_what_is_printable_has_no_line_ends_no_escapes_and_no_turned_direction() -> None:
    assert printable("\x1b[2Jone\r\n\x85two\u2028\u202ethree\u2066\ud800\x7f.") == "[2Jone two three ."
    assert printable("Zürich 机器 👩‍💻") == "Zürich 机器 👩‍💻"
    assert printable("x" * 1000) == "x" * 300
    assert printable("x" * 1000, size=1000) == "x" * 1000


@pytest.mark.parametrize("scheme", ["tcp", "ws", "tcp+tls", "wss"])
async def test_a_server_that_hangs_up_is_not_there_yet(scheme: str) -> None:
    async with serving(answering(b"")) as port:
        assert type(await failure(f"{scheme}://127.0.0.1:{port}", pin="sha256:" + 64 * "0")) is Unreachable


async def test_a_port_that_nobody_listens_at_is_named() -> None:
    async with serving(answering(b"")) as port:
        pass
    error = await failure(f"tcp://127.0.0.1:{port}")
    assert type(error) is Unreachable
    assert f"127.0.0.1 port {port}: connection refused" in str(error)


async def test_a_unix_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = await failure(f"unix://{tmp_path}/socket")
    assert type(error) is Unreachable
    assert f"{tmp_path}/socket: no such file or directory" in str(error)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> CreatedCertificate:
    return create_certificate(["127.0.0.1"], tmp_path_factory.mktemp("certificate"))


@pytest.mark.parametrize("scheme", ["tcp+tls", "wss"])
@pytest.mark.parametrize("pin", [None, "sha256:" + 64 * "0"])
async def test_the_token_is_not_sent_to_a_server_that_is_not_trusted(
    scheme: str, pin: str | None, certificate: CreatedCertificate
) -> None:
    context = server_context(certificate.cert_path, certificate.key_path)
    heard = []

    async def impostor(stream: trio.SocketStream) -> None:
        try:
            heard.append(await trio.SSLStream(stream, context, server_side=True, https_compatible=True).receive_some())
        except trio.BrokenResourceError:
            heard.append(b"")

    async with serving(impostor) as port:
        assert type(await failure(f"{scheme}://127.0.0.1:{port}", pin=pin)) is TrustError
    assert heard in ([b""], [])


def test_a_destination_shows_no_token() -> None:
    shown = repr(Destination(Address("wss", "box", 7443, "/acp"), None, TOKEN, None, None, 1))
    assert "box" in shown
    assert TOKEN not in shown
