"""Connecting, authenticating and being refused, against servers of the tests on loopback."""

import base64
import hashlib
import json
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import trio
import trio.testing

from acp_gateway.client import dialing
from acp_gateway.client.dialing import Destination, Dialed, Resume, dial, dial_link, explain_silence
from acp_gateway.config.addresses import Address, parse_address, parse_target
from acp_gateway.errors import (
    AccessError,
    Forbidden,
    GatewayError,
    LinkExpired,
    LinkGone,
    ProtocolError,
    TooFarBehind,
    TrustError,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
)
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.security.certificates import CreatedCertificate, create_certificate
from acp_gateway.security.tls import certificate_subject, server_context
from acp_gateway.server.http.routes import NOTHING_HERE
from acp_gateway.transports.parts import PartSum, read_part_sum
from acp_gateway.transports.sockets import start_tls, take_socket
from acp_gateway.transports.streams import ByteStream
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.authority import ANN, BEGIN, Authority

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


def destination(url: str, *, pin: str | None = None, agent: str | None = None, **wanted: Any) -> Destination:
    return Destination(parse_address(url), agent, TOKEN, pin, None, 1024, **wanted)


async def failure(url: str, *, pin: str | None = None) -> GatewayError:
    """Return the error of dialing this."""
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
    ("wanted", "sent"),
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
async def test_connect_parameters_are_in_the_hello_and_in_the_query(
    wanted: dict[str, Any], sent: dict[str, Any]
) -> None:
    heard = []

    async def listen(stream: trio.SocketStream) -> None:
        heard.append((await stream.receive_some()).decode())

    async with serving(listen) as port:
        for scheme in ("tcp", "ws"):
            with pytest.raises(Unreachable):
                await dial(destination(f"{scheme}://127.0.0.1:{port}", **wanted), Timing())
    hello, upgrade = heard
    assert json.loads(hello)["params"] == {"token": TOKEN} | sent
    query = urlsplit(upgrade.split()[1]).query
    assert parse_qsl(query, strict_parsing=bool(sent)) == [
        (name, "1" if value is True else value) for name, value in sent.items()
    ]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(b'"unknown_session"', UnknownSession), (b'"unknown_agent"', UnknownAgent), (b'"forbidden"', UnknownAgent)],
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


@pytest.mark.parametrize("code", ["[]", "{}", '"404"', "null", "404.5", "404.0", "true", '"a\\nb"'])
async def test_a_refusal_with_a_malformed_number_is_an_error_of_the_protocol(code: str) -> None:
    async with serving(answering(b'{"id":0,"error":{"code":%b,"data":7}}\n' % code.encode())) as port:
        error = await failure(f"tcp://127.0.0.1:{port}")
    assert type(error) is ProtocolError
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (401, Unauthorized),
        (403, Forbidden),
        (404, UnknownAgent),
        (409, TooFarBehind),
        (410, LinkGone),
        (503, Unreachable),
        (418, ProtocolError),
    ],
)
async def test_a_refusal_means_the_same_over_lines_and_over_websockets(code: int, kind: type[GatewayError]) -> None:
    lines = b'{"jsonrpc":"2.0","id":0,"error":{"code":%d,"message":"because","data":{"reason":"x"}}}\n' % code
    http = b"HTTP/1.1 %d No\r\nAcp-Gateway: x\r\nContent-Length: 7\r\n\r\nbecause" % code
    for scheme, text in (("tcp", lines), ("ws", http)):
        async with serving(answering(text)) as port:
            error = await failure(f"{scheme}://127.0.0.1:{port}")
        assert type(error) is kind
        assert "because" in str(error)


@pytest.mark.parametrize(
    "text", [b"SSH-2.0-OpenSSH_9.2\r\n", b"{}\n", b"[]\n", b'{"error":7}\n', b"\xff\n", b"[" * 1000 + b"\n"]
)
async def test_a_server_that_does_not_answer_a_hello_with_one_is_a_protocol_error(text: bytes) -> None:
    async with serving(answering(text)) as port:
        assert type(await failure(f"tcp://127.0.0.1:{port}")) is ProtocolError


@pytest.mark.parametrize(
    "text", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"]
)
async def test_a_server_that_does_not_answer_an_upgrade_with_one_is_a_protocol_error(text: bytes) -> None:
    async with serving(answering(text)) as port:
        assert type(await failure(f"ws://127.0.0.1:{port}")) is ProtocolError


async def test_a_refusal_of_another_server_is_not_taken_for_the_gateways() -> None:
    for code in (401, 403, 404, 409, 410):
        async with serving(answering(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % code)) as port:
            error = await failure(f"ws://127.0.0.1:{port}")
        assert type(error) is ProtocolError
        assert f"HTTP {code}" in str(error)
        assert f"127.0.0.1:{port}" in str(error)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
            Unreachable,
            "answers, but the gateway behind it does not (HTTP 502: <html>): is `acp-gateway serve` running there?",
        ),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", Unreachable, "the gateway behind it does not"),
        (b"HTTP/1.1 429 No\r\nContent-Length: 4\r\n\r\nwait", Unreachable, "not now (429): wait"),
        (
            b"HTTP/1.1 404 No\r\nContent-Length: 6\r\n\r\n<html>",
            ProtocolError,
            "has nothing at /x (HTTP 404: <html>); the path of an acp-gateway is normally /acp",
        ),
        (
            b"HTTP/1.1 404 No\r\nContent-Length: %d\r\n\r\n%b" % (len(NOTHING_HERE), NOTHING_HERE.encode()),
            ProtocolError,
            ", but not at /x: leave the path out",
        ),
    ],
)
async def test_what_a_proxy_or_another_path_answers_is_told_with_what_to_do(
    answer: bytes, kind: type[GatewayError], words: str
) -> None:
    async with serving(answering(answer)) as port:
        error = await failure(f"ws://127.0.0.1:{port}/x")
    assert type(error) is kind
    assert words in str(error)
    assert f"127.0.0.1:{port}" in str(error)


async def test_lines_to_a_port_that_speaks_websocket_are_told_the_address() -> None:
    async with serving(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        error = await failure(f"tcp://127.0.0.1:{port}")
    assert type(error) is ProtocolError
    assert str(error).endswith(f"this port speaks WebSocket: use ws://127.0.0.1:{port}")


@pytest.mark.parametrize(("scheme", "secure"), [("ws", "wss"), ("tcp", "tcp+tls")])
async def test_a_port_that_hangs_up_without_a_word_may_want_tls(scheme: str, secure: str) -> None:
    async def reset(stream: trio.SocketStream) -> None:
        # What a TLS server does that has not understood the first bytes: it leaves the rest unread.
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with serving(reset) as port:
        error = await failure(f"{scheme}://127.0.0.1:{port}")
    assert type(error) is Unreachable
    assert str(error).endswith(f"; if this port wants TLS, use {secure}://")


async def test_a_refused_connection_is_told_with_what_may_not_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert str(await failure(f"tcp://127.0.0.1:{port}")).endswith(
        "connection refused; is `acp-gateway serve` running on 127.0.0.1?"
    )


def test_silence_is_explained_by_the_way_there() -> None:
    assert explain_silence("ssh://gpu@box:22/run/s") == (
        "ssh://gpu@box:22/run/s: ssh logged in, but nothing came back: does a profile there (.bashrc) wait for input? "
        "Try: ssh gpu@box acp-gateway --version"
    )
    assert "no answer; is it the gateway's port" in explain_silence("wss://box:1/acp")


async def test_a_refused_token_is_told_with_what_may_help() -> None:
    text = b'{"id":0,"error":{"code":%d,"message":"because","data":{"reason":"x"}}}\n'
    for code, end in ((401, ": because; pair again"), (403, ": because")):
        async with serving(answering(text % code)) as port:
            with pytest.raises(AccessError) as caught:
                await dial(destination(f"tcp://127.0.0.1:{port}", token_hint="pair again"), Timing())
        assert str(caught.value).endswith(end)


@pytest.mark.parametrize("code", [401, 403, 404, 409, 410])
@pytest.mark.parametrize(
    "data", [b"", b',"data":null', b',"data":{}', b',"data":{"reason":7}', b',"data":"unauthorized"']
)
async def test_an_error_without_a_reason_is_not_a_refusal_of_a_gateway(code: int, data: bytes) -> None:
    line = b'{"id":0,"error":{"code":%d,"message":"because"%b}}\n' % (code, data)
    async with serving(answering(line)) as port:
        error = await failure(f"tcp://127.0.0.1:{port}")
    assert type(error) is ProtocolError
    assert str(error).endswith(f"refused with {code}: because")


@pytest.mark.parametrize("message", [b"", b',"message":[["x"]]', b',"message":7'])
async def test_a_refusal_without_a_text_is_a_refusal(message: bytes) -> None:
    line = b'{"id":0,"error":{"code":401,"data":{"reason":"unauthorized"}%b}}\n' % message
    async with serving(answering(line)) as port:
        error = await failure(f"tcp://127.0.0.1:{port}")
    assert type(error) is Unauthorized
    assert str(error).endswith("without a reason")


async def test_what_a_stranger_says_is_one_line_without_control_characters() -> None:
    text = b'{"id":0,"error":{"code":401,"message":"a\\nb\\u001b[31m","data":{"reason":"unauthorized"}}}\n'
    async with serving(answering(text)) as port:
        assert str(await failure(f"tcp://127.0.0.1:{port}")).endswith("a b\\x1b[31m")


@pytest.mark.parametrize("scheme", ["tcp", "ws", "tcp+tls", "wss"])
async def test_a_server_that_hangs_up_is_not_there_yet(scheme: str) -> None:
    async with serving(answering(b"")) as port:
        assert type(await failure(f"{scheme}://127.0.0.1:{port}", pin="sha256:" + 64 * "0")) is Unreachable


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


@pytest.mark.parametrize("scheme", ["tcp+tls", "wss"])
@pytest.mark.parametrize("resume", [None, Resume(), Resume("the-links-id", 1)], ids=["stock", "new link", "old link"])
async def test_a_wrong_pin_ends_it_and_shows_both_on_every_way(
    scheme: str, resume: Resume | None, certificate: CreatedCertificate
) -> None:
    context = server_context(certificate.cert_path, certificate.key_path)
    wrong = "sha256:" + 64 * "0"
    async with serving(tls_answering(context, b"")) as port:
        target = destination(f"{scheme}://127.0.0.1:{port}", pin=wrong)
        with pytest.raises(TrustError) as caught:
            await (dial(target, Timing()) if resume is None else dial_link(target, Timing(), resume))
    assert wrong in str(caught.value)
    assert certificate.pin in str(caught.value)


async def test_of_several_addresses_the_one_that_accepts_is_used_though_another_has_a_wrong_pin(
    certificate: CreatedCertificate,
) -> None:
    context = server_context(certificate.cert_path, certificate.key_path)
    link = b'{"jsonrpc":"2.0","id":0,"result":{"connectionId":"x","received":0}}\n'
    async with serving(tls_answering(context, b"")) as wrong, serving(answering(link)) as right:
        works = parse_address(f"tcp://127.0.0.1:{right}")
        target = destination(f"tcp+tls://127.0.0.1:{wrong}", pin="sha256:" + 64 * "0", others=(works,))
        dialed = await dial_link(target, Timing(), Resume())
        await dialed.aclose()
    assert (dialed.connection_id, dialed.address) == ("x", works)


# Client certificates

WELCOME = b'{"jsonrpc":"2.0","id":0,"result":{}}\n'


def tls_answering(context: ssl.SSLContext, text: bytes) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A server with TLS that reads something and answers this, once the handshake went well."""

    async def answer(stream: trio.SocketStream) -> None:
        try:
            tls = await start_tls(take_socket(stream), context, server_side=True)
        except ssl.SSLError:
            return
        try:
            await tls.receive_some()
            await tls.send_some(memoryview(text or b" "))
            await tls.finish()
        except trio.BrokenResourceError:
            pass
        finally:
            await tls.aclose()

    return answer


@pytest.fixture(scope="module")
def clients() -> Authority:
    return Authority("the clients' authority")


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
def asking(
    request: pytest.FixtureRequest, certificate: CreatedCertificate, clients: Authority, tmp_path: Path
) -> ssl.SSLContext:
    """The certificates of a gateway with client_ca."""
    context = server_context(certificate.cert_path, certificate.key_path, clients.write(tmp_path / "clients.pem"))
    context.minimum_version = context.maximum_version = request.param
    return context


def certified(url: str, pin: str, cert: Path | None, key: Path | None) -> Destination:
    """Return a destination with a client certificate, or without credentials."""
    return Destination(parse_address(url), None, None, pin, None, 1024, cert=cert, key=key)


async def test_a_client_certificate_is_shown_in_place_of_a_token(
    asking: ssl.SSLContext, certificate: CreatedCertificate, clients: Authority, tmp_path: Path
) -> None:
    cert, key = clients.issue(tmp_path, ANN)
    shown = []

    async def gateway(stream: trio.SocketStream) -> None:
        tls = await start_tls(take_socket(stream), asking, server_side=True)
        try:
            shown.append((json.loads(await tls.receive_some())["params"], tls.peer_certificate))
            await tls.send_some(memoryview(WELCOME))
            await tls.finish()
        finally:
            await tls.aclose()

    async with serving(gateway) as port:
        stream = await dial(certified(f"tcp+tls://127.0.0.1:{port}", certificate.pin, cert, key), Timing())
        await stream.aclose()
    ((params, der),) = shown
    assert params == {}
    assert der is not None
    assert certificate_subject(der) == "CN=ann,O=Example"


@pytest.mark.parametrize("scheme", ["tcp+tls", "wss"])
async def test_a_client_certificate_that_is_refused_is_a_matter_of_trust_and_says_what_to_do(
    scheme: str, asking: ssl.SSLContext, certificate: CreatedCertificate, clients: Authority, tmp_path: Path
) -> None:
    strangers = Authority("the clients' authority")
    yesterday = clients.issue(tmp_path / "old", ANN, end=BEGIN + timedelta(days=1))
    for (cert, key), why in (
        (strangers.issue(tmp_path / "other", ANN), "unknown ca"),
        (yesterday, "certificate expired"),
    ):
        async with serving(tls_answering(asking, WELCOME)) as port:
            with pytest.raises(TrustError) as caught:
                await dial(certified(f"{scheme}://127.0.0.1:{port}", certificate.pin, cert, key), Timing())
        assert f"127.0.0.1:{port}" in str(caught.value)
        assert f"the gateway does not accept the client certificate {cert} (" in str(caught.value)
        assert re.search(rf"\(({why})\)", str(caught.value))
        assert f"`acp-gateway certs show {cert}`" in str(caught.value)


@pytest.mark.parametrize("scheme", ["tcp+tls", "wss"])
async def test_a_server_that_demands_a_client_certificate_says_so(
    scheme: str, certificate: CreatedCertificate, clients: Authority, tmp_path: Path
) -> None:
    asking = server_context(certificate.cert_path, certificate.key_path, clients.write(tmp_path / "clients.pem"))
    asking.verify_mode = ssl.CERT_REQUIRED
    async with serving(tls_answering(asking, WELCOME)) as port:
        error = await failure(f"{scheme}://127.0.0.1:{port}", pin=certificate.pin)
    assert type(error) is TrustError
    assert "wants a client certificate: give --cert and --key" in str(error)


class LeftStream(ByteStream):
    """A connection whose far side has said something and gone, before anything could be written."""

    peer_certificate = None

    def __init__(self, *read: bytes | ssl.SSLError) -> None:
        self._read = iter(read)
        self.closed = False

    def send_nowait(self, data: memoryview) -> int:
        raise trio.BrokenResourceError("the connection was lost: broken pipe")

    async def send_some(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        return self.send_nowait(data)

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data = next(self._read, None)
        if data is None:
            await trio.sleep_forever()
        if isinstance(data, bytes):
            return data
        raise trio.BrokenResourceError("the connection was lost") from data

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def finish(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "refused")
    error.reason = reason
    return error


@pytest.mark.parametrize("scheme", ["tcp+tls", "wss"])
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ([b"a ticket", alert("TLSV1_ALERT_UNKNOWN_CA")], TrustError),
        ([alert("SSLV3_ALERT_HANDSHAKE_FAILURE")], Unreachable),
        ([b"a ticket", b""], Unreachable),
        ([], Unreachable),
    ],
    ids=["a refusal", "another alert", "an end", "nothing"],
)
async def test_a_refusal_that_came_before_anything_was_written_is_looked_for(
    scheme: str,
    said: list[bytes | ssl.SSLError],
    kind: type[GatewayError],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    left = LeftStream(*said)

    async def connect(_: Destination) -> LeftStream:
        await trio.lowlevel.checkpoint()
        return left

    monkeypatch.setattr(dialing, "open_connection", connect)
    target = Destination(parse_address(f"{scheme}://box"), None, TOKEN, None, None, 1024, cert=Path("c"), key=Path("k"))
    with pytest.raises(GatewayError) as caught:
        await dial(target, Timing())
    assert type(caught.value) is kind
    assert left.closed


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_where_the_certificate_is_accepted_and_its_owner_unknown_the_subject_is_what_to_compare(
    token: str | None, asking: ssl.SSLContext, certificate: CreatedCertificate, clients: Authority, tmp_path: Path
) -> None:
    cert, key = clients.issue(tmp_path, ANN)
    refusal = b'{"id":0,"error":{"code":401,"message":"no","data":{"reason":"unauthorized"}}}\n'
    async with serving(tls_answering(asking, refusal)) as port:
        target = certified(f"tcp+tls://127.0.0.1:{port}", certificate.pin, cert, key)
        with pytest.raises(Unauthorized) as caught:
            await dial(replace(target, token=token), Timing())
    assert (f"`acp-gateway certs show {cert}` prints" in str(caught.value)) == (token is None)


def test_a_destination_shows_no_token() -> None:
    shown = repr(Destination(Address("wss", "box", 7443, "/acp"), None, TOKEN, None, None, 1))
    assert "box" in shown
    assert TOKEN not in shown


# Links that can be resumed

ID = "the-links-id"


def upgrading(*headers: str) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Run a server that accepts each WebSocket, with these headers in its response."""

    async def upgrade(stream: trio.SocketStream) -> None:
        key = re.search("Sec-WebSocket-Key: (.*)\r\n", (await stream.receive_some()).decode())
        assert key is not None
        # RFC 6455, 4.2.2: what shows that the server has understood.
        proof = hashlib.sha1(f"{key[1]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False)
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {base64.b64encode(proof.digest()).decode()}",
            *headers,
        ]
        await stream.send_all("".join(f"{line}\r\n" for line in [*lines, ""]).encode())

    return upgrade


def cut_to(size: int, handler: Callable[[Any], Awaitable[None]]) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Run a server whose connection is lost after so many bytes of its response."""

    class Cut:
        def __init__(self, stream: trio.SocketStream) -> None:
            self.receive_some = stream.receive_some
            self._stream = stream

        async def send_all(self, text: bytes) -> None:
            assert size < len(text)
            await self._stream.send_all(text[:size])

    return lambda stream: handler(Cut(stream))


@pytest.mark.parametrize("size", [0, 1, 8, 20, 31, 32, 40])
@pytest.mark.parametrize("scheme", ["tcp", "ws"])
async def test_a_connection_that_is_lost_within_the_response_may_be_tried_again(scheme: str, size: int) -> None:
    answer = upgrading() if scheme == "ws" else welcoming({"connectionId": ID, "received": 0})
    async with serving(cut_to(size, answer)) as port:
        assert type(await failure(f"{scheme}://127.0.0.1:{port}")) is Unreachable


def welcoming(result: object) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A server that answers every hello with this."""
    return answering(json.dumps({"jsonrpc": "2.0", "id": 0, "result": result}).encode() + b"\n")


async def dialed(scheme: str, handler: Callable[[trio.SocketStream], Awaitable[None]], resume: Resume) -> Dialed:
    """Request a link of this server, close its stream, and return the result."""
    outcome: Dialed | GatewayError
    async with serving(handler) as port:
        try:
            outcome = await dial_link(destination(f"{scheme}://127.0.0.1:{port}"), Timing(), resume)
            await outcome.stream.aclose()
        except GatewayError as error:
            outcome = error
    if isinstance(outcome, GatewayError):
        raise outcome
    return outcome


@pytest.mark.parametrize(
    ("resume", "headers", "params"),
    [
        (None, {}, None),
        (Resume(), {"acp-gateway-resume": "0"}, {}),
        (Resume(received=3), {"acp-gateway-resume": "0"}, {}),
        (Resume(ID), {"acp-gateway-resume": "0", "acp-connection-id": ID}, {"connectionId": ID, "received": 0}),
        (Resume(ID, 17), {"acp-gateway-resume": "17", "acp-connection-id": ID}, {"connectionId": ID, "received": 17}),
        (
            Resume(ID, part=PartSum(65_536, 1)),
            {"acp-gateway-resume": "0", "acp-connection-id": ID, "acp-gateway-part": "65536 00000001"},
            {"connectionId": ID, "received": 0, "part": "65536 00000001"},
        ),
    ],
)
async def test_a_resume_request_is_in_the_headers_and_in_the_hello(
    resume: Resume | None, headers: dict[str, str], params: dict[str, Any] | None
) -> None:
    heard = []

    async def listen(stream: trio.SocketStream) -> None:
        heard.append((await stream.receive_some()).decode())

    async with serving(listen) as port:
        for scheme in ("tcp", "ws"):
            target = destination(f"{scheme}://127.0.0.1:{port}")
            dialing = dial(target, Timing()) if resume is None else dial_link(target, Timing(), resume)
            with pytest.raises(Unreachable):
                await dialing
    hello, upgrade = heard
    assert json.loads(hello)["params"] == {"token": TOKEN} | ({} if params is None else {"resume": params})
    sent = dict(line.lower().split(": ", 1) for line in upgrade.strip().split("\r\n")[1:])
    assert {name: value for name, value in sent.items() if name.startswith("acp-")} == headers


@pytest.mark.parametrize(
    ("resume", "connection_id", "received"),
    [(Resume(), ID, 0), (Resume(ID, 5), ID, 0), (Resume(ID), ID, 7), (Resume(ID, 5), ID, 10**15 - 1)],
)
async def test_the_answer_to_a_link_has_its_id_and_the_gateways_count(
    resume: Resume, connection_id: str, received: int
) -> None:
    by_line = await dialed("tcp", welcoming({"connectionId": connection_id, "received": received, "x": 1}), resume)
    for names in (("Acp-Connection-Id", "Acp-Gateway-Resume"), ("acp-connection-ID", "ACP-GATEWAY-resume")):
        upgraded = await dialed("ws", upgrading(f"{names[0]}: {connection_id}", f"{names[1]}: {received}"), resume)
        assert (upgraded.connection_id, upgraded.received) == (connection_id, received)
    assert (by_line.connection_id, by_line.received) == (connection_id, received)
    assert not by_line.probes


@pytest.mark.parametrize("resume", [Resume(), Resume(ID, 5)])
async def test_the_answer_to_a_link_says_that_probes_are_answered(resume: Resume) -> None:
    link = {"connectionId": ID, "received": 0}
    assert (await dialed("tcp", welcoming(link | {"probe": True}), resume)).probes
    for other in (False, None, 1, "yes"):
        assert not (await dialed("tcp", welcoming(link | {"probe": other}), resume)).probes
    headers = [f"Acp-Connection-Id: {ID}", "Acp-Gateway-Resume: 0"]
    assert (await dialed("ws", upgrading(*headers, "acp-gateway-PROBE: 1"), resume)).probes
    assert not (await dialed("ws", upgrading(*headers), resume)).probes


async def test_the_answer_to_a_link_tells_the_size_limit_of_the_gateway() -> None:
    link = {"connectionId": ID, "received": 0}
    by_line = await dialed("tcp", welcoming(link | {"limit": "4096 max_message_size"}), Resume())
    headers = [f"Acp-Connection-Id: {ID}", "Acp-Gateway-Resume: 0"]
    upgraded = await dialed("ws", upgrading(*headers, "acp-gateway-LIMIT: 8192 observer_message_size"), Resume())
    assert by_line.limit == SizeLimit(4096, "max_message_size")
    assert upgraded.limit == SizeLimit(8192, "observer_message_size")
    for other in (None, 4096, "4096", "-1 max", "0 max", "1" * 16 + " max", "4096 max\r\nX: y", "x max"):
        assert (await dialed("tcp", welcoming(link | {"limit": other}), Resume())).limit is None
    assert (await dialed("ws", upgrading(*headers), Resume())).limit is None


@pytest.mark.parametrize("part", [None, "0 00000000", "65536 00000001", "65536", 65_536])
async def test_the_answer_to_a_link_says_whether_parts_are_understood_and_what_was_kept(part: Any) -> None:
    link = {"connectionId": ID, "received": 0}
    headers = [f"Acp-Connection-Id: {ID}", "Acp-Gateway-Resume: 0"]
    told = (
        await dialed("tcp", welcoming(link if part is None else link | {"part": part}), Resume(ID)),
        await dialed("ws", upgrading(*headers, *([] if part is None else [f"acp-gateway-PART: {part}"])), Resume(ID)),
    )
    assert [each.part for each in told] == [read_part_sum(part)] * 2


async def test_without_a_link_probes_are_not_for_a_connection() -> None:
    assert not (await dialed("tcp", welcoming({"connectionId": ID, "probe": True}), Resume())).probes
    assert not (await dialed("ws", upgrading(f"Acp-Connection-Id: {ID}", "Acp-Gateway-Probe: 1"), Resume())).probes


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
async def test_the_count_of_a_link_that_is_resumed_is_the_one_when_the_gateway_is_asked(scheme: str) -> None:
    heard = []

    async def listen(stream: trio.SocketStream) -> None:
        heard.append((await stream.receive_some()).decode())

    counts = iter([17])
    async with serving(listen) as port:
        with pytest.raises(Unreachable):
            await dial_link(destination(f"{scheme}://127.0.0.1:{port}"), Timing(), Resume(ID, 3, lambda: next(counts)))
    assert list(counts) == []
    assert ('"received": 17' if scheme == "tcp" else "Acp-Gateway-Resume: 17") in heard[0]


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
@pytest.mark.parametrize(("resume", "end"), [(None, "closed"), (Resume(), "closed"), (Resume(ID, 5), "reset")])
async def test_a_request_for_a_link_that_was_given_up_is_not_sent_again(
    scheme: str, resume: Resume | None, end: str
) -> None:
    found: list[str] = []
    attempt = trio.CancelScope()

    async def listen(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        attempt.cancel()
        try:
            assert not await stream.receive_some()
            found.append("closed")
        except trio.BrokenResourceError:
            found.append("reset")

    async with serving(listen) as port:
        target = destination(f"{scheme}://127.0.0.1:{port}")
        with attempt:
            await (dial(target, Timing()) if resume is None else dial_link(target, Timing(), resume))
        while not found:
            await trio.lowlevel.checkpoint()
    assert found == [end]


async def test_a_link_that_was_resumed_is_not_reset_when_it_is_closed() -> None:
    found: list[bytes] = []

    async def listen(stream: trio.SocketStream) -> None:
        await upgrading(f"Acp-Connection-Id: {ID}", "Acp-Gateway-Resume: 0")(stream)
        found.append(await stream.receive_some())

    async with serving(listen) as port:
        await (await dial_link(destination(f"ws://127.0.0.1:{port}"), Timing(), Resume(ID, 5))).stream.abort()
        while not found:
            await trio.lowlevel.checkpoint()
    assert found == [b""]


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
async def test_an_attempt_that_is_given_up_when_it_is_to_ask_asks_for_nothing(scheme: str) -> None:
    heard: list[bytes] = []
    attempt = trio.CancelScope()

    async def listen(stream: trio.SocketStream) -> None:
        try:
            heard.append(await stream.receive_some())
        except trio.BrokenResourceError:
            heard.append(b"")

    def ask() -> int:
        attempt.cancel()
        return 17

    async with serving(listen) as port:
        with attempt:
            await dial_link(destination(f"{scheme}://127.0.0.1:{port}"), Timing(), Resume(ID, 3, ask))
        while not heard:
            await trio.lowlevel.checkpoint()
    assert heard == [b""]


async def test_an_attempt_that_was_given_up_is_not_asked_for_its_count() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(3)
        return 3

    assert await Resume(ID, 1, ask).asked() == Resume(ID, 3)
    with trio.CancelScope() as attempt:
        attempt.cancel()
        await Resume(ID, 1, ask).asked()
    assert attempt.cancelled_caught
    assert asked == [3]


@pytest.mark.parametrize(
    ("result", "headers", "connection_id"),
    [
        ({"connectionId": ID}, [f"Acp-Connection-Id: {ID}"], ID),
        ({"connectionId": ID, "received": None}, [f"Acp-Connection-Id: {ID}", "Acp-Gateway: x"], ID),
        ({}, [], None),
        (None, [], None),
        ([], [], None),
        ({"connectionId": "a\r\nb"}, ["Acp-Connection-Id: a b"], None),
        ({"connectionId": 7}, ["Acp-Connection-Id: "], None),
        ({"connectionId": "x" * 65}, [f"Acp-Connection-Id: {'x' * 65}"], None),
    ],
)
async def test_a_server_without_links_gets_a_connection_without_resumption(
    result: object, headers: list[str], connection_id: str | None
) -> None:
    for scheme, handler in (("tcp", welcoming(result)), ("ws", upgrading(*headers))):
        link = await dialed(scheme, handler, Resume())
        assert (link.connection_id, link.received) == (connection_id, None)


@pytest.mark.parametrize("resume", [Resume(), Resume(ID), Resume(ID, 3)])
@pytest.mark.parametrize(
    ("received", "count"),
    [("", ""), ("x", "x"), (-1, "-1"), (1.5, "1.5"), (True, "1e3"), ([], "0x1"), ("0", "٣"), (10**15, str(10**15))],
)
async def test_an_answer_with_a_malformed_count_is_an_error_of_the_protocol(
    resume: Resume, received: object, count: str
) -> None:
    for scheme, handler in (
        ("tcp", welcoming({"connectionId": ID, "received": received})),
        ("ws", upgrading(f"Acp-Connection-Id: {ID}", f"Acp-Gateway-Resume: {count}")),
    ):
        with pytest.raises(ProtocolError, match="no message count"):
            await dialed(scheme, handler, resume)


@pytest.mark.parametrize(
    ("resume", "answer", "why"),
    [
        (Resume(ID), {}, "no message count"),
        (Resume(ID), {"connectionId": ID}, "no message count"),
        (Resume(ID), {"received": 3}, "another link"),
        (Resume(ID), {"connectionId": ID + "x", "received": 3}, "another link"),
        (Resume(ID), {"connectionId": ID.upper(), "received": 3}, "another link"),
        (Resume(), {"received": 0}, "another link"),
        (Resume(), {"connectionId": "a b", "received": 0}, "another link"),
        (Resume(), {"connectionId": ID, "received": 1}, "counts 1 messages on a new link"),
    ],
)
async def test_an_answer_that_does_not_fit_the_resume_request_is_a_protocol_error(
    resume: Resume, answer: dict[str, Any], why: str
) -> None:
    names = {"connectionId": "Acp-Connection-Id", "received": "Acp-Gateway-Resume"}
    for scheme, handler in (
        ("tcp", welcoming(answer)),
        ("ws", upgrading(*(f"{names[name]}: {value}" for name, value in answer.items()))),
    ):
        with pytest.raises(ProtocolError, match=why) as caught:
            await dialed(scheme, handler, resume)
        assert f"{scheme}://127.0.0.1:" in str(caught.value)


async def test_who_does_not_ask_for_a_link_does_not_care_what_is_said_of_one() -> None:
    for scheme, handler in (
        ("tcp", welcoming({"connectionId": 7, "received": "x"})),
        ("ws", upgrading("Acp-Gateway-Resume: x")),
    ):
        async with serving(handler) as port:
            await (await dial(destination(f"{scheme}://127.0.0.1:{port}"), Timing())).aclose()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (409, "too_far_behind", TooFarBehind),
        (410, "unknown", LinkGone),
        (410, "expired", LinkExpired),
        (410, "something_new", LinkGone),
        (401, "unauthorized", Unauthorized),
        (403, "forbidden", Forbidden),
        (404, "unknown_agent", UnknownAgent),
    ],
)
async def test_why_a_link_is_not_resumed_is_told_on_either_way(
    code: int, reason: str, kind: type[GatewayError]
) -> None:
    lines = json.dumps({"id": 0, "error": {"code": code, "message": "because", "data": {"reason": reason}}}) + "\n"
    http = f"HTTP/1.1 {code} No\r\nAcp-Gateway: {reason}\r\nContent-Length: 7\r\n\r\nbecause"
    for scheme, text in (("tcp", lines), ("ws", http)):
        with pytest.raises(GatewayError, match="because") as caught:
            await dialed(scheme, answering(text.encode()), Resume(ID, 3))
        assert type(caught.value) is kind


async def test_what_comes_right_behind_the_answer_belongs_to_the_link() -> None:
    hello = b'{"jsonrpc":"2.0","id":0,"result":{"connectionId":"%b","received":2}}\n{"n":1}\n' % ID.encode()
    async with serving(answering(hello)) as port:
        link = await dial_link(destination(f"tcp://127.0.0.1:{port}"), Timing(), Resume(ID, 1))
        assert await link.stream.receive() == b'{"n":1}'
        await link.stream.aclose()


@pytest.mark.parametrize(
    ("scheme", "handler"), [("ws", upgrading("Acp-Gateway-Resume: x")), ("tcp", welcoming({"received": "x"}))]
)
async def test_a_connection_whose_answer_is_not_understood_is_closed(
    scheme: str, handler: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    ended = trio.Event()

    async def wait_for_end(stream: trio.SocketStream) -> None:
        await handler(stream)
        assert await stream.receive_some() == b""
        ended.set()

    async with serving(wait_for_end) as port:
        with pytest.raises(ProtocolError):
            await dial_link(destination(f"{scheme}://127.0.0.1:{port}"), Timing(), Resume(ID))
        await ended.wait()


async def test_a_gateway_is_said_hello_to_through_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f"""#!/bin/sh
        printf '%s\\n' "$@" > '{tmp_path}/arguments'
        for last; do :; done; nonce=${{last##*"--nonce "}}
        printf 'hello\\r\\n=== acp-gateway relay 1 BEGIN %s ===\\n' $nonce
        read hello; echo "$hello" > '{tmp_path}/hello'
        echo '{{"jsonrpc":"2.0","id":0,"result":{{"connectionId":"x","received":0}}}}'
        read line; echo "$line"; echo gone >&2; exit 255
        """
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    target = Destination(
        parse_target("ssh://ann@box"), "demo", TOKEN, None, None, 1024, command="/opt/x", ssh_options=("A=b",)
    )
    with trio.fail_after(60):
        dialed = await dial_link(target, Timing(), Resume())
        assert (dialed.connection_id, dialed.received) == ("x", 0)
        await dialed.stream.send(b'{"first":1}')
        assert await dialed.stream.receive() == b'{"first":1}'
        with pytest.raises(trio.BrokenResourceError, match="gone"):
            await dialed.stream.receive()
        await dialed.stream.aclose()
    arguments = (tmp_path / "arguments").read_text()
    assert "A=b\n" in arguments
    assert " /opt/x relay --nonce " in arguments
    assert TOKEN not in arguments
    assert json.loads((tmp_path / "hello").read_text())["params"] == {"token": TOKEN, "agent": "demo", "resume": {}}


# Servers that open no WebSocket


def http_target(port: int, scheme: str = "http", **wanted: Any) -> Destination:
    return Destination(parse_target(f"{scheme}://127.0.0.1:{port}"), None, TOKEN, None, None, 1024, **wanted)


def refusing(status: int, text: str = "no", fields: str = "") -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A server that answers this to an upgrade."""
    return answering(f"HTTP/1.1 {status} No\r\n{fields}Content-Length: {len(text)}\r\n\r\n{text}".encode())


@pytest.mark.parametrize("status", [200, 400, 401, 404, 405, 406, 426, 501])
async def test_streamable_http_is_used_with_an_http_target_that_opens_no_websocket(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(refusing(status)) as port:
        dialed = await dial_link(http_target(port), Timing(), Resume())
        assert type(dialed.stream).__name__ == "HttpClientStream"
        assert (dialed.connection_id, dialed.received) == (None, None)
        await dialed.stream.aclose()
    assert f"(HTTP {status}): using Streamable HTTP" in caplog.text


async def test_streamable_http_is_never_used_for_a_link_that_is_to_be_resumed() -> None:
    async with serving(refusing(302, "log in here")) as port:
        with pytest.raises(ProtocolError, match="is a proxy in between"):
            await dial_link(http_target(port), Timing(), Resume("c1", 5))


async def test_streamable_http_is_never_used_with_a_ws_target() -> None:
    async with serving(refusing(404)) as port:
        with pytest.raises(ProtocolError, match="HTTP 404"):
            await dial_link(http_target(port, "ws"), Timing(), Resume())


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_server_that_is_down_for_now_is_not_taken_for_one_of_streamable_http(status: int) -> None:
    async with serving(refusing(status)) as port:
        with pytest.raises(Unreachable):
            await dial_link(http_target(port), Timing(), Resume())


async def test_a_gateways_own_refusal_is_that_of_an_http_target_too() -> None:
    async with serving(refusing(401, fields="Acp-Gateway: unauthorized\r\n")) as port:
        with pytest.raises(Unauthorized):
            await dial_link(http_target(port), Timing(), Resume())
    async with serving(refusing(404, NOTHING_HERE)) as port:
        with pytest.raises(ProtocolError, match="there is an acp-gateway"):
            await dial_link(http_target(port), Timing(), Resume())


@pytest.mark.parametrize("wanted", [{"session": "s"}, {"observe": True}])
async def test_attach_and_observe_are_not_for_streamable_http(wanted: dict[str, Any]) -> None:
    async with serving(refusing(404)) as port:
        with pytest.raises(ProtocolError, match="--attach and --observe are not for it"):
            await dial_link(http_target(port, **wanted), Timing(), Resume())


async def test_a_control_connection_is_not_opened_over_streamable_http() -> None:
    async with serving(refusing(404)) as port:
        with pytest.raises(ProtocolError, match="HTTP 404"):
            await dial(http_target(port, control=True), Timing())
