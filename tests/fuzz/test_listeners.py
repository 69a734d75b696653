"""Anything sent to the listeners gets an answer or an end as documented, and harms no other client."""

import json
import logging
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import AgentSection, Config, GatewaySection, ListenSection
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.listener import Listener, open_listener
from tests.fuzz import reference, texts
from tests.fuzz.corpus import METHODS, Raw, message, mutations
from tests.fuzz.effort import effort
from tests.kit.doubles import INITIALIZE, TIMEOUT, ServingAgents, encode
from tests.kit.frames import CLOSE, CONT, KEY, PONG, TEXT, close_payload, take_frames

MESSAGE: Final = 20_000
"""Bytes of a message at most, here."""

TOKEN: Final = b"$TOKEN"
"""Stands for the attacker's own token, which is a right one, until it is sent."""

LONG: Final = b"$LONG"
"""Stands for more than a message may hold, or a first line, or a line of HTTP."""
LENGTH: Final = 70_000

STATUSES: Final = frozenset({101, 200, 400, 401, 403, 404, 405, 409, 410, 414, 426, 429, 431, 503, 505})
"""Statuses of a listener over HTTP; over lines the errors of refused connections have the same numbers."""

CLOSE_CODES: Final = frozenset({1000, 1001, 1002, 1007, 1008, 1009, 1011})
TLS_RECORDS: Final = range(20, 24)
RECORD_SIZE: Final = 16384 + 2048

IDLE: Final = 0.01
"""Seconds of real time without anything to do, after which what is on its way is there, and time may go on faster."""

JUMP: Final = 5.5
"""Seconds that pass then at once."""

HOUR: Final = 3600.0
SILENCE: Final = 15.0
"""Seconds of silence: more than an unauthenticated connection has."""

# What is sent


@dataclass(frozen=True)
class Attack:
    """Data that a client sends, cut into pieces, and the way in which it ends the connection."""

    data: bytes
    cuts: tuple[int, ...] = ()
    end: str = "eof"
    handshake: bool = True
    """True if a TLS handshake comes first, where the listener requires one."""

    def pieces(self, token: str) -> Iterator[bytes]:
        data = self.data.replace(TOKEN, token.encode()).replace(LONG, b"x" * LENGTH)
        at = 0
        for cut in sorted({cut % (len(data) + 1) for cut in self.cuts}):
            yield data[at:cut]
            at = cut
        yield data[at:]


UPGRADE: Final = (
    b"Host: 127.0.0.1",
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: " + KEY.encode(),
    b"Authorization: Bearer " + TOKEN,
)
GOOD_LINES: Final = (
    *(b"GET /acp HTTP/1.1", b"GET /acp?agent=fake HTTP/1.1", b"GET /acp?observe=1 HTTP/1.1"),
    *(b"GET /acp?control=1 HTTP/1.1", b"GET /acp?control=1&agent=fake HTTP/1.1", b"GET /acp?other=%ff HTTP/1.1"),
)
LINES: Final = (
    *GOOD_LINES * 4,
    *(
        b"GET /healthz HTTP/1.1",
        b"GET / HTTP/1.1",
        b"POST /acp HTTP/1.1",
        b"GET /acp HTTP/1.0",
        b"GET /acp",
        b"",
        b"\r\n",
    ),
    *(b"GET http://127.0.0.1/acp HTTP/1.1", b"PRI * HTTP/2.0", b"GET /acp HTTP/9.9", b"G\x00T /acp HTTP/1.1"),
    *(b"GET /acp?session=%ff%00&observe=1 HTTP/1.1", b"GET /acp?agent=\xff HTTP/1.1", b"GET /" + LONG + b" HTTP/1.1"),
    *(b"GET /acp?agent=fake&agent=fake HTTP/1.1", b"GET /acp?session=" + b"s" * 2000 + b" HTTP/1.1"),
    *(b"GET /acp?session=nowhere HTTP/1.1", b"GET /acp?control=0 HTTP/1.1", b"GET /acp?agent=other HTTP/1.1"),
)
HEADERS: Final = (
    *(b"Host: example.com", b"Host: 127.0.0.1\r\nHost: localhost", b"Host: [::1]:7", b"Host:", b"Host: \xff"),
    *(b"Origin: https://example.com", b"Origin: null", b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    *(b"Content-Length: -1", b"Expect: 100-continue", b"X-Forwarded-For: 1.2.3.4, \xff", b"X: " + LONG),
    *(
        b"Authorization: Bearer wrong",
        b"Authorization: Bearer \xff\xfe",
        b"Authorization: Basic Og==",
        b"Authorization",
    ),
    *(b"Sec-WebSocket-Protocol: acp.v1, acp.bearer." + TOKEN, b"Sec-WebSocket-Protocol: chat", b"Upgrade: h2c"),
    *(b"Sec-WebSocket-Protocol: acp.v1, acp.bearer.\xc3\xa9, acp.bearer.x", b"Sec-WebSocket-Key: short"),
    *(b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits", b"Sec-WebSocket-Version: 8"),
    *(
        b"Acp-Gateway-Resume: 0",
        b"Acp-Gateway-Resume: 9" * 2,
        b"Acp-Gateway-Resume: -1",
        b"Acp-Gateway-Resume: \xc2\xb2",
    ),
    *(b"Acp-Connection-Id: x", b"Acp-Connection-Id: \xff", b"Acp-Connection-Id: " + b"x" * 99, b" folded", b": empty"),
    *(b"no colon", b"Nul: \x00", b"\x0b: x", b"Connection: close", b"Connection: keep-alive, Upgrade", b"Cookie: x=1"),
)


def _request(line: bytes, changes: list[tuple[int, bytes]], newline: bytes, end: bytes) -> bytes:
    """An upgrade in which some headers are others: in the place of that number, of the one of that name, or added."""
    headers = list(UPGRADE)
    for at, header in changes:
        name = header.partition(b":")[0]
        named = [index for index, it in enumerate(headers) if it.startswith(name + b":")]
        if at >= len(UPGRADE) and named:
            at = named[0]
        headers[at : at + 1] = [header]
    return newline.join([line, *headers]) + end


requests = st.builds(
    _request,
    st.sampled_from(LINES),
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from((*HEADERS, b"X: y"))), max_size=2),
    st.sampled_from((*(b"\r\n",) * 9, b"\n")),
    st.sampled_from((*(b"\r\n\r\n",) * 12, b"\n\n", b"", b"\r\n")),
)

_requests_made = st.builds(
    lambda method, how: message(how, id=7, method=method, params={"sessionId": "s", "cwd": "/srv"}),
    st.sampled_from(METHODS),
    st.lists(mutations, max_size=2),
)
speech = st.one_of(
    _requests_made,
    _requests_made,
    texts.nearly_messages,
    st.just(encode({"id": 0, "method": "initialize", "params": INITIALIZE})),
    st.just(encode({"id": 2, "method": "session/list", "params": {"all": True}})),
    st.just(encode({"id": 1, "method": "session/new", "params": {"cwd": "/srv", "mcpServers": []}})),
)


@dataclass(frozen=True)
class Lie:
    """Faults of a frame."""

    opcode: int = TEXT
    first: int = 0
    """More bits of the first byte."""
    fin: bool = True
    masked: bool = True
    size: int | None = None
    """The length that is told, in eight bytes; None for the true one."""


def _frame(payload: bytes, lie: Lie) -> bytes:
    payload = payload.replace(LONG, b"x" * LENGTH)
    head = bytes([lie.opcode | lie.first | (0x80 if lie.fin else 0)])
    mask = 0x80 if lie.masked else 0
    if lie.size is not None:
        head += struct.pack("!BQ", mask | 127, lie.size)
    elif len(payload) < 126:
        head += bytes([mask | len(payload)])
    elif len(payload) < 65536:
        head += struct.pack("!BH", mask | 126, len(payload))
    else:
        head += struct.pack("!BQ", mask | 127, len(payload))
    # A mask of zeros is one as well.
    return head + (bytes(4) if lie.masked else b"") + payload


_lies = st.one_of(
    st.just(Lie()),
    st.just(Lie()),
    st.just(Lie(fin=False)),
    st.just(Lie(opcode=CONT)),
    st.builds(Lie, st.integers(0, 15), st.sampled_from((0, 0, 0x40, 0x20, 0x10)), st.booleans(), st.booleans()),
    st.builds(Lie, size=st.sampled_from((0, 1, 125, 65536, MESSAGE + 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1))),
)
_payloads = st.one_of(
    speech,
    speech,
    st.sampled_from((b"", b"\xff", b"\x03", close_payload(1000), close_payload(999), close_payload(1005, "x" * 200))),
    st.just(LONG),
)
frames = st.lists(st.builds(_frame, _payloads, _lies), min_size=1, max_size=6).map(b"".join)

HELLO: Final = "_acp-gateway/hello"
_PARAMETERS: Final[tuple[dict[str, Any], ...]] = (
    *({}, {"agent": "fake"}, {"observe": True}, {"control": True}, {"control": True, "agent": "fake"}, {"resume": {}}),
    *({"agent": "other"}, {"agent": 5}, {"session": "nowhere"}, {"session": "s" * 2000}, {"control": "1"}, {"x": []}),
    *({"resume": {"connectionId": "x", "received": 3}}, {"resume": {"received": 1}}, {"resume": []}, {"observe": 1}),
    *({"resume": {"received": -1}}, {"token": "wrong"}, {"token": ""}, {"token": None}, {"token": 5}),
)
_hellos = st.builds(
    lambda parameters, how: message(how, id=Raw(b'"h"'), method=HELLO, params={"token": TOKEN.decode()} | parameters),
    st.sampled_from(_PARAMETERS),
    st.one_of(st.just(()), st.just(()), st.lists(mutations, max_size=1)),
)
_right_hello = message(id=0, method=HELLO, params={"token": TOKEN.decode()})
lines = st.builds(
    lambda hello, said, newline: newline.join([hello, *said, b""]),
    st.one_of(st.just(_right_hello), _hellos, _hellos, speech, st.just(LONG)),
    st.lists(speech | st.just(LONG), max_size=6),
    st.sampled_from((b"\n", b"\n", b"\r\n", b"\n\n")),
)

_hello_of_tls = bytes.fromhex(
    "16030100a1"
    "0100009d0303" + "42" * 32 + "20" + "43" * 32 + "0008130213031301c02f"
    "0100004c002b0003020304000d00080006040308040403000a00040002001d"
    "00330026002400" + "1d0020" + "44" * 32
)
tls_garbage = st.one_of(
    st.binary(min_size=1, max_size=60),
    texts.mutated(st.just(_hello_of_tls)),
    st.sampled_from((b"GET /acp HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + LONG, b"\x80\x2e\x01\x00\x02")),
)
_GOOD_HEADERS: Final[tuple[list[tuple[int, bytes]], ...]] = (
    *([], [], [(9, b"Acp-Gateway-Resume: 0")], [(5, b"Authorization: bEARER  " + TOKEN)]),
    [(5, b"Sec-WebSocket-Protocol: acp.v1, acp.bearer." + TOKEN)],
    [(9, b"Sec-WebSocket-Extensions: permessage-deflate")],
    [(9, b"X-Forwarded-For: [::1]:9, 1.2.3.4")],
)
_let_in = st.builds(
    lambda line, headers, said: _request(line, headers, b"\r\n", b"\r\n\r\n") + said,
    st.sampled_from(GOOD_LINES),
    st.sampled_from(_GOOD_HEADERS),
    frames,
)
_http = st.one_of(requests, requests, texts.mutated(requests), _let_in, _let_in, _let_in)


def plans(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Attack]]:
    """Generate what a listener is sent, mostly of such data."""
    cuts = st.lists(st.integers(0, 5000), max_size=3).map(tuple)
    ends = st.sampled_from((*("eof",) * 6, "abort", "silence"))
    said = st.builds(Attack, st.one_of(*[data] * 4, st.binary(max_size=40)), cuts, ends)
    unsecured = st.builds(Attack, tls_garbage, cuts, ends, st.just(False))
    return st.lists(st.one_of(*[said] * 4, unsecured), min_size=5, max_size=14).map(_unlike_each_other)


def _unlike_each_other(plan: list[Attack]) -> list[Attack]:
    return list({attack.data: attack for attack in plan}.values())


# Who is there


@dataclass(frozen=True)
class Setup:
    """Set-up shared by all examples."""

    folder: Path
    tokens: TokenStore
    spawner: Spawner
    honest: str
    other: str
    """The attackers' token: another identity's."""
    context: ssl.SSLContext
    """Return a client's context that trusts any certificate."""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("setup")
    create_certificate(["127.0.0.1"], folder)
    tokens = TokenStore(folder / "tokens")
    honest, other = tokens.create("a", "me", None)[1], tokens.create("b", "you", None)[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with Spawner(ProcessRegistry(folder / "agents")) as spawner:
        yield Setup(folder, tokens, spawner, honest, other, context)


class Log(logging.Handler):
    """Log messages of the gateway, as text, at any level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.worst = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        self.worst = max(self.worst, record.levelno)


@contextmanager
def logged() -> Iterator[Log]:
    log, logger = Log(), logging.getLogger("acp_gateway")
    before = logger.level
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    try:
        yield log
    finally:
        logger.setLevel(before)
        logger.removeHandler(log)


@dataclass
class Site:
    """An open listener, and who is behind it."""

    scheme: str
    port: int
    setup: Setup
    log: Log
    clock: trio.testing.MockClock
    listener: Listener
    session: str = "?"
    """Id of a session that only an honest client may know."""
    sockets: list[trio.SocketStream] = field(default_factory=list)

    @property
    def secured(self) -> bool:
        """Return True if the listener uses TLS."""
        return self.scheme in ("wss", "tcp+tls")

    async def hurry(self) -> None:
        """Skip every wait for time to pass, until cancelled."""
        while True:
            await trio.testing.wait_all_tasks_blocked(IDLE)
            self.clock.jump(JUMP)

    async def connect(self, *, handshake: bool = True) -> trio.SocketStream | trio.SSLStream[trio.SocketStream]:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.sockets.append(stream)
        if not handshake or not self.secured:
            return stream
        secured = trio.SSLStream(stream, self.setup.context, server_hostname="127.0.0.1", https_compatible=True)
        await secured.do_handshake()
        return secured


@asynccontextmanager
async def site(
    scheme: str, setup: Setup, folder: Path, clock: trio.testing.MockClock, *, patient: bool
) -> AsyncIterator[Site]:
    """Run a gateway with one listener and an agent that all clients share."""
    section = ListenSection(url=f"{scheme}://127.0.0.1:0")
    if scheme in ("wss", "tcp+tls"):
        section = replace(section, cert=setup.folder / "cert.pem", key=setup.folder / "key.pem")
    settings = GatewaySection(state_dir=folder, max_message_size=MESSAGE, ping_interval=HOUR)
    limits = LimitsSection()
    if not patient:
        settings = replace(settings, trusted_proxies=(IPv4Network("127.0.0.0/8"),))
        limits = LimitsSection(failed_attempts=1, max_handshakes=2)
    config = Config(
        gateway=settings,
        listen=(section,),
        agents={"fake": AgentSection(command=("fake",), scope="shared", cwd=Path("/"))},
        limits=limits,
    )
    gateway = Gateway(config, setup.tokens, setup.spawner, {}, Audit(folder / "audit.jsonl", max_size=10**6, files=1))
    with logged() as log, trio.fail_after(100 * TIMEOUT):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            listener = await open_listener(section, gateway)
            nursery.start_soon(listener.run, nursery)
            port = urlsplit(listener.urls[0]).port
            assert port is not None
            there = Site(scheme, port, setup, log, clock, listener)
            try:
                yield there
            finally:
                for stream in there.sockets:
                    stream.socket.close()
                nursery.cancel_scope.cancel()
                listener.close()


class Honest:
    """A client that does nothing wrong, over a connection that lasts."""

    def __init__(self, site: Site, stream: Any) -> None:
        self._site = site
        self._stream = stream
        self._received = bytearray()
        self._websocket = site.scheme in ("ws", "wss")
        self._last_id = 0
        self.session = ""

    async def come_in(self) -> None:
        token = self._site.setup.honest
        if self._websocket:
            await self._stream.send_all(_request(LINES[0], [], b"\r\n", b"\r\n\r\n").replace(TOKEN, token.encode()))
            head = await self._until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 "), head
        else:
            await self._stream.send_all(_right_hello.replace(TOKEN, token.encode()) + b"\n")
            assert b'"result"' in await self._until(b"\n")
        assert "result" in await self.request("initialize", **INITIALIZE)
        self.session = (await self.request("session/new", cwd="/", mcpServers=[]))["result"]["sessionId"]

    async def request(self, method: str, **params: Any) -> Any:
        """A round trip."""
        self._last_id += 1
        text = encode({"id": self._last_id, "method": method, "params": params})
        await self._stream.send_all(_frame(text, Lie()) if self._websocket else text + b"\n")
        answer = json.loads(await self._message())
        assert answer["id"] == self._last_id
        return answer

    async def _until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._received += await self._more()
        at = self._received.index(end) + len(end)
        taken = bytes(self._received[:at])
        del self._received[:at]
        return taken

    async def _message(self) -> bytes:
        if not self._websocket:
            return await self._until(b"\n")
        while True:
            for seen in take_frames(self._received, masked=False):
                if seen.opcode == TEXT:
                    return seen.payload
                await self._stream.send_all(_frame(seen.payload, Lie(opcode=PONG)))
            self._received += await self._more()

    async def _more(self) -> bytes:
        data = bytes(await self._stream.receive_some())
        assert data, "an honest client is cut off"
        return data


# What must come of it


async def commit(site: Site, attack: Attack) -> bytes:
    """Do it, and return all that is answered until the listener has ended it."""
    received = bytearray()
    try:
        stream = await site.connect(handshake=attack.handshake)
    except trio.BrokenResourceError:
        return b""
    socket_stream = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream

    async def listen() -> None:
        try:
            while data := await stream.receive_some():
                received.extend(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        try:
            for piece in attack.pieces(site.setup.other):
                await stream.send_all(piece)
                await trio.lowlevel.checkpoint()
            if attack.end == "eof":
                await socket_stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        if attack.end == "abort":
            nursery.cancel_scope.cancel()
        elif attack.end == "silence":
            # Who came in is not thrown out for saying nothing.
            nursery.cancel_scope.deadline = trio.current_time() + SILENCE
    socket_stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    socket_stream.socket.close()
    return bytes(received)


def check(site: Site, attack: Attack, received: bytes) -> None:
    """Check that an answer is a documented one."""
    for secret in (site.setup.honest, site.setup.other):
        assert secret.encode() not in received
    # Not that of another session, whose id goes on behind it.
    assert re.search(rb"%b\b" % re.escape(site.session).encode(), received) is None
    if not attack.handshake and site.scheme == "wss" and received.startswith(b"HTTP/"):
        # A request in plain HTTP is redirected, or told that the port speaks TLS.
        assert re.match(rb"HTTP/1\.1 (307|400) [A-Z]", received)
        assert re.match(rb"[A-Z]+ /", attack.data)
    elif not attack.handshake and site.secured:
        check_records(received, whole=attack.end == "eof")
    elif site.scheme in ("ws", "wss"):
        check_http(received, whole=attack.end == "eof")
    else:
        check_lines(received, whole=attack.end == "eof")


def check_records(received: bytes, *, whole: bool) -> None:
    at = 0
    while at < len(received):
        kind, major, size = received[at], received[at + 1], int.from_bytes(received[at + 3 : at + 5])
        assert kind in TLS_RECORDS
        assert major == 3
        assert size <= RECORD_SIZE
        at += 5 + size
    assert at == len(received) or not whole


def check_http(received: bytes, *, whole: bool) -> None:
    # A sound request may be followed by another one.
    while received:
        head, end, rest = received.partition(b"\r\n\r\n")
        assert end or not whole
        status = re.match(rb"HTTP/1\.1 (\d{3}) [A-Z]", head)
        assert status is not None, head
        assert int(status[1]) in STATUSES, head
        if status[1] == b"101":
            break
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None, head
        assert len(rest) >= int(length[1]) or not whole
        received = rest[int(length[1]) :]
    else:
        return
    data = bytearray(rest)
    seen = take_frames(data, masked=False)
    assert not data or not whole
    for frame in seen[:-1]:
        assert frame.opcode != CLOSE, "something is said behind a goodbye"
    for frame in seen:
        if frame.opcode == TEXT:
            assert isinstance(reference.envelope(frame.payload), reference.Envelope)
        elif frame.opcode == CLOSE and frame.payload:
            assert int.from_bytes(frame.payload[:2]) in CLOSE_CODES
            assert frame.payload[2:].decode().isprintable()


def check_lines(received: bytes, *, whole: bool) -> None:
    *lines, rest = received.split(b"\n")
    assert not rest or not whole
    for number, line in enumerate(lines):
        envelope = reference.envelope(line)
        assert isinstance(envelope, reference.Envelope), line
        if number == 0 and envelope.error:
            error = json.loads(line)["error"]
            assert error["code"] in STATUSES or error["code"] < -32000
            assert error["message"].isprintable()
            assert len(lines) == 1
        elif number == 0:
            assert json.loads(line)["result"]["connectionId"]


async def storm(
    scheme: str, setup: Setup, folder: Path, plan: list[Attack], clock: trio.testing.MockClock, *, patient: bool
) -> None:
    async with site(scheme, setup, folder, clock, patient=patient) as there:
        honest = Honest(there, await there.connect())
        await honest.come_in()
        there.session = honest.session
        answers: dict[int, bytes] = {}

        async def attack_it(number: int) -> None:
            answers[number] = await commit(there, plan[number])

        async with trio.open_nursery() as hurrying:
            hurrying.start_soon(there.hurry)
            async with trio.open_nursery() as attacking:
                for number in range(len(plan)):
                    if patient:
                        await attack_it(number)
                    else:
                        attacking.start_soon(attack_it, number)
            if there.listener._limiter._by_network:
                await trio.sleep(SILENCE)
                assert not there.listener._limiter._by_network
            hurrying.cancel_scope.cancel()
        for number, answer in answers.items():
            check(there, plan[number], answer)
        # The connected client goes on, and a new one with a valid token gets in.
        assert "result" in await honest.request("session/list")
        await Honest(there, await there.connect()).come_in()
        log = there.log
    assert log.worst < logging.ERROR, log.lines
    text = "\n".join(log.lines)
    assert all(line.isprintable() for line in log.lines), [line for line in log.lines if not line.isprintable()]
    audit = (folder / "audit.jsonl").read_text()
    for secret in (setup.honest, setup.other):
        assert secret not in text
        assert secret not in audit
    assert all(json.loads(line)["event"] for line in audit.splitlines())


def withstand(scheme: str, setup: Setup, folder: Path, plan: list[Attack], *, patient: bool) -> None:
    agents, clock = ServingAgents(), trio.testing.MockClock(rate=1.0)
    agents.session_id = "secret-{}.{}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "run_agent", agents.run)
        trio.run(lambda: storm(scheme, setup, folder, plan, clock, patient=patient), clock=clock)


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@effort(10)
@given(plans(_http), st.booleans())
def test_websocket_listeners_withstand_random_input(
    scheme: str, setup: Setup, tmp_path_factory: pytest.TempPathFactory, plan: list[Attack], patient: bool
) -> None:
    withstand(scheme, setup, tmp_path_factory.mktemp("state"), plan, patient=patient)


@pytest.mark.parametrize("scheme", ["tcp", "tcp+tls"])
@effort(10)
@given(plans(lines), st.booleans())
def test_line_listeners_withstand_random_input(
    scheme: str, setup: Setup, tmp_path_factory: pytest.TempPathFactory, plan: list[Attack], patient: bool
) -> None:
    withstand(scheme, setup, tmp_path_factory.mktemp("state"), plan, patient=patient)
