"""Limits of unauthenticated connections, over real listeners and sockets."""

import ipaddress
import json
import logging
import re
import resource
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing
from websockets.uri import WebSocketURI

from acp_gateway.config.load import CertificateSection, LimitsSection, ListenSection
from acp_gateway.errors import Busy, ConfigError
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.connections import REVOKED_CERTIFICATE
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.tls import certificate_end, client_context, spki_pin
from acp_gateway.security.token_format import mint
from acp_gateway.server import handshake_limits
from acp_gateway.server.listener import Listener
from acp_gateway.transports.http.head import HEAD_SIZE
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import SocketBytes, connect_tcp
from acp_gateway.transports.websocket.client import connect_websocket
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream
from tests.kit.authority import ANN, END, Authority, name
from tests.kit.doubles import open_descriptors
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
    listening,
    open_next,
    port_of,
    upgrade,
    with_tls,
)
from tests.kit.frames import TEXT, frame
from tests.kit.machine import many_descriptors
from tests.server.test_refusals import AuditLog

WSS = "wss://127.0.0.1:0"
TLS = "tcp+tls://127.0.0.1:0"

Shown: TypeAlias = tuple[Path, Path]
"""A client's certificate and its key."""


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    with Spawner(ProcessRegistry(tmp_path / "state" / "agents")) as spawner:
        yield spawner


@pytest.fixture
def gateway(tmp_path: Path, spawner: Spawner) -> EchoingGateway:
    return EchoingGateway(tmp_path / "state", spawner)


pytestmark = pytest.mark.usefixtures("no_bug_showed")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    create_certificate(["127.0.0.1"], folder)
    return folder


@pytest.fixture
def audit_log(gateway: EchoingGateway) -> AuditLog:
    """The gateway's audit."""
    gateway.audit = AuditLog()
    return gateway.audit


def limit(gateway: EchoingGateway, **limits: Any) -> None:
    """Give a gateway other limits, before its listeners open."""
    gateway.config = replace(gateway.config, limits=LimitsSection(**limits))


async def is_let_in(lines: LineStream, **params: Any) -> bool:
    """Return whether a hello is accepted; a message passes then."""
    await lines.send(hello(**params))
    if "error" in json.loads(await lines.receive()):
        return False
    await lines.send(PING)
    return await lines.receive() == PING


# Names


async def ask_over_tls(
    listener: Listener, authority: Path, target: str, *headers: str, host: str = "localhost", shown: Shown | None = None
) -> str:
    """The answer to one HTTP request, up to the end or to where the frames begin."""
    stream = await secure(listener, authority, shown)
    lines = [f"GET {target} HTTP/1.1", f"Host: {host}", *headers, "", ""]
    await stream.send_some(memoryview("\r\n".join(lines).encode()))
    received = b""
    while not received.startswith(b"HTTP/1.1 101") or b"\r\n\r\n" not in received:
        try:
            data = await stream.receive_some()
        except trio.BrokenResourceError:
            break
        if not data:
            break
        received += data
    await stream.aclose()
    return received.decode()


async def secure(listener: Listener, authority: Path, shown: Shown | None = None) -> SocketBytes:
    """A TLS connection to a listener, whose certificate is in this folder."""
    cert, key = shown or (None, None)
    context = client_context(ca=authority / "cert.pem", pin=None, cert=cert, key=key)
    return await connect_tcp("127.0.0.1", port_of(listener), context)


async def test_a_name_that_is_listed_is_one_of_the_gateways(gateway: EchoingGateway) -> None:
    section = ListenSection(url=WS, allowed_hosts=("gpu.example",))
    async with listening(section, gateway) as listener:
        for host in ("gpu.example:7443", "localhost", "127.0.0.1:1"):
            assert (await ask(listener, "/acp", *upgrade(bearer(gateway.token())), host=host)).status == 101


# Refusals


async def test_nothing_tells_one_wrong_token_from_another(
    gateway: EchoingGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked, once = gateway.tokens.create("a", "ann", None)
    _, over = gateway.tokens.create("b", "ann", None, lifetime=1)
    gateway.tokens.revoke(revoked.id)
    now = gateway.tokens._now()
    monkeypatch.setattr(gateway.tokens, "_now", lambda: now + 10)
    answers = set()
    shown = [once, over, mint(), mint("observer"), mint("guest"), "acpgw_x", "x", "", gateway.token()[:-1]]
    async with listening(WS, gateway) as listener, open_next(TCP, gateway) as lines:
        for token in shown:
            response = await ask(listener, "/acp", *upgrade(bearer(token)))
            response.headers.pop("date")
            by_line = (await answer_to(lines, hello(token=token)))["error"]
            answers.add((response.status, str(response.headers), response.body, str(by_line)))
    assert len(answers) == 1


@pytest.mark.usefixtures("hasty")
async def test_a_flood_of_wrong_tokens_does_not_lock_out_a_right_one(
    gateway: EchoingGateway, audit_log: AuditLog, caplog: pytest.LogCaptureFixture
) -> None:
    limit(gateway, failed_attempts=3)
    token = gateway.token()
    async with listening(WS, gateway) as listener:
        answers = [await ask(listener, "/acp", *upgrade(bearer(mint()))) for _ in range(50)]
        assert [answer.status for answer in answers] == [401] * 3 + [429] * 47
        assert answers[3].headers["acp-gateway"] == ["too_many_attempts"]
        assert (await ask(listener, "/acp", *upgrade(bearer(token)))).status == 101
        assert (await ask(listener, "/acp", *upgrade(bearer(mint())))).status == 429
    assert [entry["event"] for entry in audit_log.entries] == ["refused"] * 3 + ["authenticated", "refused"]
    assert audit_log.entries[-1]["count"] == 48
    assert len(caplog.records) == 4


@pytest.mark.usefixtures("hasty")
async def test_a_right_token_that_asks_for_the_wrong_thing_is_slowed_down_alone(gateway: EchoingGateway) -> None:
    limit(gateway, failed_attempts=2)
    token, other = gateway.token("first"), gateway.token("first")
    async with listening(TCP, gateway) as listener:
        codes = [
            (await answer_to(listener, hello(token=each, agent=agent)))["error"]["code"]
            for each, agent in ((token, "second"), (token, "none"), (token, "second"), (other, "second"))
        ]
        assert codes == [403, 404, 429, 403]
        async with connected(listener) as lines:
            assert await is_let_in(lines, token=token)


async def test_the_answer_waits_and_the_socket_is_idle_until_then(
    gateway: EchoingGateway, autojump_clock: trio.testing.MockClock
) -> None:
    limit(gateway, failed_attempts=1)
    async with listening(TCP, gateway) as listener:
        assert (await answer_to(listener, hello(token="x")))["error"]["code"] == 401
        began = trio.current_time()
        assert (await answer_to(listener, hello(token="x")))["error"]["code"] == 429
        assert 1.0 <= trio.current_time() - began < 1.5


@pytest.mark.usefixtures("hasty")
async def test_failed_attempts_behind_a_trusted_proxy_are_counted_per_forwarded_address(
    tmp_path: Path, spawner: Spawner, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    proxies = (ipaddress.ip_network("127.0.0.1"),)
    gateway = EchoingGateway(tmp_path / "state", spawner, trusted_proxies=proxies)
    gateway.audit = audit_log = AuditLog()
    limit(gateway, failed_attempts=2, handshakes_per_address=1)
    async with listening(WS, gateway) as listener, connected(listener), connected(listener):

        async def wrong(address: str) -> int:
            return (await ask(listener, "/acp", *upgrade(f"X-Forwarded-For: {address}"))).status

        assert [await wrong("made up, 192.0.2.1") for _ in range(3)] == [401, 401, 429]
        assert await wrong("192.0.2.2") == 401
        assert await wrong("nonsense") == 401
        response = await ask(listener, "/acp", *upgrade(bearer(gateway.token()), "X-Forwarded-For: 192.0.2.1"))
        assert response.status == 101
    addresses = [entry["address"] for entry in audit_log.entries]
    assert addresses == ["192.0.2.1", "192.0.2.1", "192.0.2.2", "127.0.0.1", "192.0.2.1", "192.0.2.1"]
    assert re.search(r"[\w-]{8} \(192\.0\.2\.1 by way of 127\.0\.0\.1:\d+\): refused: no valid token", caplog.text)


@pytest.mark.usefixtures("hasty")
async def test_who_is_not_a_trusted_proxy_does_not_choose_an_address(gateway: EchoingGateway) -> None:
    limit(gateway, failed_attempts=1)
    async with listening(WS, gateway) as listener:
        answers = [await ask(listener, "/acp", *upgrade(f"X-Forwarded-For: 192.0.2.{number}")) for number in range(3)]
    assert [answer.status for answer in answers] == [401, 429, 429]


async def test_a_gateway_that_is_full_says_so_with_the_same_number_on_either_way(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def admit(*_: object) -> None:
        raise Busy("max_connections (2) are connected")

    monkeypatch.setattr(gateway, "admit", admit)
    token = gateway.token()
    async with listening(WS, gateway) as listener, open_next(TCP, gateway) as lines:
        by_upgrade = await ask(listener, "/acp", *upgrade(bearer(token)))
        by_line = (await answer_to(lines, hello(token=token)))["error"]
    assert (by_upgrade.status, by_upgrade.headers["acp-gateway"]) == (503, ["busy"])
    assert (by_line["code"], by_line["data"]) == (503, {"reason": "busy"})


# Audit


async def test_the_audit_knows_who_came_in_and_who_did_not(
    gateway: EchoingGateway, audit_log: AuditLog, tmp_path: Path
) -> None:
    entry, token = gateway.tokens.create("laptop", "ann", None, role="observer")
    async with listening(WS, gateway) as listener, open_next(f"unix://{tmp_path}/socket", gateway) as local:
        await ask(listener, "/acp", *upgrade(bearer(token)))
        await ask(listener, "/acp?agent=none", *upgrade(bearer(token)))
        await ask(listener, "/acp", *upgrade(bearer("wrong")))
        await ask(listener, "/healthz")
        async with connected(local) as lines:
            await lines.send(hello())
            await lines.receive()
    first, second, third, fourth = audit_log.entries
    assert first == {
        "event": "authenticated",
        "connection": gateway.served[0].name,
        "address": "127.0.0.1",
        "listener": listener.urls[0],
        "credential": f"token {entry.id}",
        "identity": "ann",
        "role": "observer",
    }
    assert (second["event"], second["reason"], second["credential"]) == (
        "refused",
        "unknown_agent",
        f"token {entry.id}",
    )
    assert (third["event"], third["reason"]) == ("refused", "unauthorized")
    assert "credential" not in third
    assert (fourth["event"], fourth["address"], fourth["credential"]) == ("authenticated", "unix", "the system")
    assert token not in str(audit_log.entries)


async def test_a_link_that_goes_on_is_known_to_the_audit_by_its_name(
    gateway: EchoingGateway, audit_log: AuditLog
) -> None:
    gateway.links["the-links-id"] = 7
    headers = ["Acp-Connection-Id: the-links-id", "Acp-Gateway-Resume: 3"]
    async with listening(WS, gateway) as listener:
        await ask(listener, "/acp", *upgrade(bearer(gateway.token()), *headers))
    (entry,) = audit_log.entries
    assert entry["connection"] == gateway.resumed[0].name
    assert entry["connection"].startswith("the-link (127.0.0.1:")


# Room


@asynccontextmanager
async def silent(listener: Listener, count: int, said: bytes = b"") -> AsyncIterator[list[trio.SocketStream]]:
    """So many connections that say no more than this."""
    streams = []
    for _ in range(count):
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        streams.append(stream)
        try:
            await stream.send_all(said)
        except trio.BrokenResourceError:
            pass  # Others needed the room already.
    try:
        yield streams
    finally:
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def is_closed(stream: trio.SocketStream) -> bool:
    """Return whether the other end has closed a connection."""
    try:
        return not await stream.receive_some()
    except trio.BrokenResourceError:
        return True


@pytest.mark.parametrize("url", [TCP, WS, WSS])
async def test_a_thousand_silent_connections_do_not_keep_valid_tokens_out(
    url: str, gateway: EchoingGateway, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    count = 1000 if url == TCP else 200
    token = gateway.token()
    before = len(open_descriptors())
    with many_descriptors():
        async with listening(TCP, gateway) as line_listener, connected(line_listener) as inside:
            assert await is_let_in(inside, token=token)
            async with open_next(with_tls(url, certificate), gateway) as listener, silent(listener, count) as streams:
                async with connected(line_listener) as newcomer:
                    assert await is_let_in(newcomer, token=token)
                if url == WS:
                    assert (await ask(listener, "/acp", *upgrade(bearer(token)))).status == 101
                if url == WSS:
                    answer = await ask_over_tls(listener, certificate, "/acp", *upgrade(bearer(token)))
                    assert answer.startswith("HTTP/1.1 101 ")
                for stream in streams[: count - 40]:
                    assert await is_closed(stream)
                await inside.send(PING)
                assert await inside.receive() == PING
                # Theirs, and of the gateway's own ends as many as one address may have.
                assert len(open_descriptors()) - before < count + 60
    assert len(caplog.records) < 40


async def test_of_an_address_with_too_many_the_oldest_is_closed_at_once(gateway: EchoingGateway) -> None:
    limit(gateway, handshakes_per_address=2)
    async with listening(TCP, gateway) as listener, silent(listener, 3) as streams:
        assert await is_closed(streams[0])
        for stream in streams[1:]:
            lines = LineStream(SocketBytes(detached(stream)), max_message_size=1 << 20)
            assert await is_let_in(lines, token=gateway.token())
            await lines.aclose()


def detached(stream: trio.SocketStream) -> socket.socket:
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


async def test_who_has_come_in_is_never_closed_for_others(gateway: EchoingGateway) -> None:
    limit(gateway, handshakes_per_address=2, max_handshakes=2)
    token = gateway.token()
    async with listening(TCP, gateway) as listener, connected(listener) as one, connected(listener) as other:
        assert await is_let_in(one, token=token)
        assert await is_let_in(other, token=token)
        async with silent(listener, 20):
            for lines in (one, other):
                await lines.send(PING)
                assert await lines.receive() == PING


async def test_where_the_system_has_no_more_descriptors_those_who_are_in_go_on(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        """Lines of the listener: storage and index need descriptors as well, whenever their threads come to it."""
        return [record.getMessage() for record in caplog.records if record.name == handshake_limits.log.name]

    token = gateway.token()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with listening(TCP, gateway) as listener, connected(listener) as inside:
        assert await is_let_in(inside, token=token)
        newcomer = socket.socket()
        # None at all, so that a file that is closed makes no room.
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            newcomer.connect(("127.0.0.1", port_of(listener)))
            while not said():
                await inside.send(PING)
                assert await inside.receive() == PING
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        newcomer.setblocking(False)
        lines = LineStream(SocketBytes(newcomer), max_message_size=1 << 20)
        assert await is_let_in(lines, token=token)
        await lines.aclose()
    assert said() == ["accept failed: too many open files; open connections are not affected"]
    caplog.clear()


# Time


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (TCP, b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":{"token":"' + b"x" * 100),
        (WS, b"GET /acp HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100),
        (WSS, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100),
        (TLS, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100),
    ],
)
async def test_who_sends_byte_after_byte_is_closed_in_time(
    url: str, said: bytes, gateway: EchoingGateway, certificate: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with listening(with_tls(url, certificate), gateway) as listener:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        with pytest.raises(trio.BrokenResourceError):
            await trickle(stream, said)
        assert 10 <= trio.current_time() <= 13
        await stream.aclose()


async def trickle(stream: trio.SocketStream, data: bytes) -> None:
    """Send a byte a second."""
    for byte in data:
        await trio.sleep(1)
        await stream.send_all(bytes([byte]))


# Bytes


HEADERS = {
    "a line that is too long": ([f"Cookie: {'x' * 9000}"], 431),
    "too many headers": ([f"X-{number}: x" for number in range(200)], 431),
    "too much in all": ([f"X-{number}: {'x' * 8000}" for number in range(20)], 431),
}


@pytest.mark.parametrize(("headers", "status"), HEADERS.values(), ids=HEADERS)
async def test_a_request_that_is_too_large_is_refused_before_it_is_read_to_its_end(
    headers: list[str], status: int, gateway: EchoingGateway
) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as listener:
        assert (await ask(listener, "/acp", *upgrade(bearer(token)), *headers)).status == status
        assert (await ask(listener, "/" + "x" * 9000)).status == 414
        # A head of the size that all the token's and editors' headers together may have.
        small = [f"X-{number}: {'x' * 5000}" for number in range(HEAD_SIZE // 6000)]
        assert (await ask(listener, "/acp", *upgrade(bearer(token)), *small)).status == 101
    assert len(gateway.served) == 1


async def test_nothing_is_unpacked_that_a_client_has_packed(gateway: EchoingGateway) -> None:
    packer = zlib.compressobj(wbits=-15)
    bomb = packer.compress(bytes(100 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
    offer = {"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits"}
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with listening(WS, gateway) as listener:
        websocket = await connect_websocket(
            await connect_tcp("127.0.0.1", port_of(listener)),
            WebSocketURI(False, "127.0.0.1", port_of(listener), "/acp", ""),
            {"Authorization": f"Bearer {gateway.token()}"} | offer,
            max_message_size=1 << 20,
            timing=Timing(),
        )
        assert "sec-websocket-extensions" not in {name.lower() for name in websocket.headers}
        assert await last_words(websocket, frame(TEXT, bomb, masked=True, first=0x40)) == 1002
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 50_000


async def last_words(websocket: WebSocketStream, data: bytes) -> int | None:
    """The code with which the other end closes when it gets this."""
    view = memoryview(data)
    while view:
        view = view[await websocket.bytes.send_some(view) :]
    with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
        await websocket.receive()
    code = websocket.close_code
    await websocket.aclose()
    return code


# Certificates of clients


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the clients' authority")


@pytest.fixture
def vouched(gateway: EchoingGateway, authority: Authority, certificate: Path, tmp_path: Path) -> ListenSection:
    """A listener where Ann's certificate is as good as a token."""
    known = CertificateSection(subject="CN=ann,O=Example", identity="ann", role="observer", agents=("second",))
    gateway.config = replace(gateway.config, certificates={"laptop": known})
    return replace(with_tls(WSS, certificate), client_ca=authority.write(tmp_path / "clients.pem"))


async def test_a_certificate_is_as_good_as_a_token(
    gateway: EchoingGateway,
    audit_log: AuditLog,
    vouched: ListenSection,
    authority: Authority,
    certificate: Path,
    tmp_path: Path,
) -> None:
    async with listening(vouched, gateway) as listener:
        answer = await ask_over_tls(
            listener, certificate, "/acp", *upgrade(), shown=authority.issue(tmp_path / "ann", ANN)
        )
    assert answer.startswith("HTTP/1.1 101 ")
    (served,) = gateway.served
    assert (served.access.identity, served.access.role, served.agent) == ("ann", "observer", "second")
    assert served.access.credential == "certificate laptop"
    assert served.access.expires == END.timestamp()
    assert (audit_log.entries[0]["event"], audit_log.entries[0]["credential"]) == (
        "authenticated",
        "certificate laptop",
    )


async def test_a_client_certificate_authenticates_line_connections_as_well(
    gateway: EchoingGateway, vouched: ListenSection, authority: Authority, certificate: Path, tmp_path: Path
) -> None:
    async with listening(replace(vouched, url=TLS), gateway) as listener:
        stream = await secure(listener, certificate, shown=authority.issue(tmp_path / "ann", ANN))
        lines = LineStream(stream, max_message_size=1 << 20)
        assert await is_let_in(lines)
        await lines.aclose()
    assert gateway.served[0].access.certificate == "laptop"


async def test_a_token_goes_before_the_certificate_that_is_shown_with_it(
    gateway: EchoingGateway, vouched: ListenSection, authority: Authority, certificate: Path, tmp_path: Path
) -> None:
    ann = authority.issue(tmp_path / "ann", ANN)
    token = gateway.tokens.create("phone", "bob", None)[1]
    async with listening(vouched, gateway) as listener:
        right = await ask_over_tls(listener, certificate, "/acp", *upgrade(bearer(token)), shown=ann)
        wrong = await ask_over_tls(listener, certificate, "/acp", *upgrade(bearer(mint())), shown=ann)
    assert (right.split()[1], wrong.split()[1]) == ("101", "401")
    (served,) = gateway.served
    assert (served.access.identity, served.access.certificate, served.access.expires) == ("bob", None, None)


async def test_a_client_certificate_that_is_not_listed_does_not_authenticate(
    gateway: EchoingGateway,
    vouched: ListenSection,
    authority: Authority,
    certificate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stranger = authority.issue(tmp_path / "stranger", name())
    ann = authority.issue(tmp_path / "ann", ANN)
    async with listening(vouched, gateway) as listener:
        answers = [
            await ask_over_tls(listener, certificate, "/acp", *upgrade()),
            await ask_over_tls(listener, certificate, "/acp", *upgrade(), shown=stranger),
            await ask_over_tls(listener, certificate, "/acp", *upgrade(bearer(mint())), shown=stranger),
        ]
        # One whose time is over, in a TLS session that began before.
        monkeypatch.setattr(
            "acp_gateway.server.authentication.certificate_end", lambda der: min(certificate_end(der), 1.0)
        )
        answers.append(await ask_over_tls(listener, certificate, "/acp", *upgrade(), shown=ann))
    assert {re.sub("Date: .*", "", answer) for answer in answers} == {re.sub("Date: .*", "", answers[0])}
    assert answers[0].startswith("HTTP/1.1 401 ")
    assert gateway.served == []


async def test_a_revoked_certificate_opens_nothing_and_a_reload_ends_what_it_has_open(
    gateway: EchoingGateway, vouched: ListenSection, authority: Authority, tmp_path: Path, certificate: Path
) -> None:
    ann, again = authority.issue(tmp_path / "ann", ANN), authority.issue(tmp_path / "again", ANN)
    crl = authority.revoke(tmp_path / "revoked.pem")
    section = replace(vouched, client_crl=crl)
    async with listening(section, gateway) as listener:
        assert (await ask_over_tls(listener, certificate, "/acp", *upgrade(), shown=ann)).startswith("HTTP/1.1 101 ")
        (served,) = gateway.served
        assert gateway.connections._closing_reason(served.access) is None
        authority.revoke(crl, ann[0])
        listener.reload()
        assert gateway.connections._closing_reason(served.access) is REVOKED_CERTIFICATE
        refused = await ask_over_tls(listener, certificate, "/acp", *upgrade(), shown=ann)
        assert refused.startswith("HTTP/1.1 401 ")
        assert "this client certificate was revoked" in refused
        # A token beside it still counts, and so does a certificate of the same name with another number.
        answers = [
            await ask_over_tls(listener, certificate, "/acp", *upgrade(bearer(gateway.token())), shown=ann),
            await ask_over_tls(listener, certificate, "/acp", *upgrade(), shown=again),
        ]
        assert [answer[:13] for answer in answers] == ["HTTP/1.1 101 "] * 2
        crl.write_bytes(b"")
        with pytest.raises(ConfigError, match="holds no certificate revocation list"):
            listener.reload()
        assert gateway.connections._closing_reason(served.access) is REVOKED_CERTIFICATE


async def test_a_reload_reads_the_revocations_whatever_is_wrong_with_its_own_certificate_and_the_other_way_round(
    gateway: EchoingGateway, vouched: ListenSection, authority: Authority, tmp_path: Path, certificate: Path
) -> None:
    ann = authority.issue(tmp_path / "ann", ANN)
    crl = authority.revoke(tmp_path / "revoked.pem")
    used = tmp_path / "used"
    used.symlink_to(certificate)
    section = replace(vouched, client_crl=crl, cert=used / "cert.pem", key=used / "key.pem")
    async with listening(section, gateway) as listener:
        authority.revoke(crl, ann[0])
        used.unlink()
        with pytest.raises(ConfigError, match=r"cert\.pem: cannot be read"):
            listener.reload()
        refused = await ask_over_tls(listener, certificate, "/acp", *upgrade(), shown=ann)
        assert "this client certificate was revoked" in refused
        create_certificate(["127.0.0.1"], tmp_path / "new")
        used.symlink_to("new")
        crl.write_bytes(b"")
        with pytest.raises(ConfigError, match="holds no certificate revocation list"):
            listener.reload()
        await (await secure(listener, tmp_path / "new")).aclose()


async def test_a_certificate_of_another_authority_opens_nothing(
    gateway: EchoingGateway, vouched: ListenSection, certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = Authority("the clients' authority").issue(tmp_path / "other", ANN)
    async with listening(vouched, gateway) as listener:
        assert await ask_over_tls(listener, certificate, "/acp", *upgrade(), shown=other) == ""
    assert gateway.served == []
    assert "no TLS handshake" in caplog.text


# The listener's own certificate


async def test_a_reloaded_certificate_is_shown_to_new_connections_and_keeps_open_ones(
    gateway: EchoingGateway, tmp_path: Path
) -> None:
    token = gateway.token()
    pins = {folder: create_certificate(["127.0.0.1"], tmp_path / folder).pin for folder in ("old", "new")}
    used = tmp_path / "used"
    used.symlink_to("old")
    section = ListenSection(url=TLS, cert=used / "cert.pem", key=used / "key.pem")
    pins = {
        folder: spki_pin(ssl.PEM_cert_to_DER_cert((tmp_path / folder / "cert.pem").read_text()))
        for folder in ("old", "new")
    }
    async with listening(section, gateway) as listener:
        before = await secure(listener, tmp_path / "old")
        assert spki_pin(before.peer_certificate or b"") == pins["old"]
        inside = LineStream(before, max_message_size=1 << 20)
        assert await is_let_in(inside, token=token)
        used.unlink()
        used.symlink_to("nowhere")
        with pytest.raises(ConfigError, match=r"cert\.pem: cannot be read"):
            listener.reload()
        await (await secure(listener, tmp_path / "old")).aclose()
        used.unlink()
        used.symlink_to("new")
        listener.reload()
        after = await secure(listener, tmp_path / "new")
        assert spki_pin(after.peer_certificate or b"") == pins["new"]
        lines = LineStream(after, max_message_size=1 << 20)
        assert await is_let_in(lines, token=token)
        await inside.send(PING)
        assert await inside.receive() == PING
        await lines.aclose()
        await inside.aclose()
