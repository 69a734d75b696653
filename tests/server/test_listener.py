"""The doors: who gets in, who doesn't and what they are told, over real sockets."""

import base64
import json
import logging
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

import pytest
import trio
import trio.testing
from websockets.uri import WebSocketURI

from acp_gateway.client.dialing import Destination, Dialed, Resume, dial, dial_link
from acp_gateway.config.addresses import parse_address
from acp_gateway.config.load import AgentSection, ListenSection
from acp_gateway.errors import (
    AccessError,
    ConfigError,
    Forbidden,
    LinkExpired,
    LinkGone,
    TooFarBehind,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
)
from acp_gateway.gateway import gateway as gateway_module
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner, run_agent
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.tls import client_context, create_certificate
from acp_gateway.security.token_store import TokenStore, default_identity
from acp_gateway.server.handshake_limits import ARRIVAL_COST, LINGER_SIZE, LINGER_TIME, ThrottledStream
from acp_gateway.server.hello import CONNECTION_ID_SIZE, QUERY_FIELDS, SESSION_ID_SIZE
from acp_gateway.server.listener import HELLO_SIZE, SPEAKS_WEBSOCKET, Listener, open_listener
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import connect_tcp, connect_unix, take_socket
from acp_gateway.transports.streams import MessageStream
from acp_gateway.transports.websocket import Timing, WebSocketStream, connect_websocket
from tests.doubles import TIMEOUT, Editor, ServingAgents, make_config, python

WS = "ws://127.0.0.1:0"
TCP = "tcp://127.0.0.1:0"

SESSION = "s 1/ü+&"
"""The only session that can be joined."""

PING = b'{"jsonrpc":"2.0","method":"ping"}'


@dataclass
class Served:
    """A client that came in."""

    access: Access
    agent: str
    name: str
    link_id: str | None = None
    """What its link can be resumed by."""


@dataclass
class Resumed:
    """A link that somebody came back to: what a door knows of a resumption, and what it was made of."""

    access: Access
    link_id: str
    received_there: int
    received: int
    name: str = ""
    """Of the connection; empty until it is served."""


class EchoingGateway(Gateway):
    """Notes who came in, and sends back what they send. No agent is started by anybody."""

    def __init__(self, state_dir: Path, spawner: Spawner, **settings: Any) -> None:
        agents = {name: AgentSection(command=("cat",)) for name in ("first", "second")}
        config = make_config(state_dir, WS, agents=agents, default_agent="first", **settings)
        super().__init__(config, TokenStore(state_dir), spawner, {})
        self.served: list[Served] = []
        self.wishes: list[ConnectRequest] = []
        """What those who showed who they are have asked for."""
        self.bug: type[Exception] | None = None
        """Raised where a client is served."""
        self.resumed: list[Resumed] = []
        self.links: dict[str, int | AccessError] = {}
        """How many messages came over each link that there is, or why it can't be resumed."""

    def admit(self, access: Access, wish: ConnectRequest) -> Grant:
        self.wishes.append(wish)
        return super().admit(access, replace(wish, session=None) if wish.session == SESSION else wish)

    def resume(self, access: Access, link_id: str, received: int) -> Any:
        link = self.links.get(link_id, LinkGone("there is no link of that id, or it is not yours"))
        if isinstance(link, AccessError):
            raise link
        self.resumed.append(Resumed(access, link_id, received, link))
        return self.resumed[-1]

    async def serve_resumed(self, client: MessageStream, resumption: Any, name: str) -> None:
        resumption.name = name
        await self._echo(client)

    async def serve(self, client: MessageStream, admission: Grant, name: str, link_id: str | None = None) -> None:
        self.served.append(Served(admission.access, admission.agent, name, link_id))
        if link_id is not None:
            self.links[link_id] = 0
        await self._echo(client)

    async def _echo(self, client: MessageStream) -> None:
        try:
            if self.bug is not None:
                raise self.bug
            try:
                while True:
                    await client.send_batch(await client.receive_batch())
            except (trio.EndOfChannel, trio.BrokenResourceError):
                pass
        finally:
            with trio.CancelScope(shield=True):
                await client.aclose()

    def token(self, *agents: str) -> str:
        """A new token of Ann's."""
        return self.tokens.create("laptop", "ann", agents or None)[1]


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    with Spawner(ProcessRegistry(tmp_path / "state" / "agents")) as spawner:
        yield spawner


@pytest.fixture
def gateway(tmp_path: Path, spawner: Spawner) -> EchoingGateway:
    return EchoingGateway(tmp_path / "state", spawner)


@pytest.fixture(autouse=True)
def no_bug_showed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Doors log bugs and go on: a test that provokes one clears the log."""
    yield
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]


@pytest.fixture
def unix(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/socket"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    create_certificate(["127.0.0.1"], folder)
    return folder


@asynccontextmanager
async def open_next(section: ListenSection | str, gateway: Gateway) -> AsyncIterator[Listener]:
    """Another open door of a gateway that has one already."""
    section = ListenSection(url=section) if isinstance(section, str) else section
    door = await open_listener(section, gateway)
    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
        accepting.start_soon(door.run, connections)
        yield door
        accepting.cancel_scope.cancel()
        connections.cancel_scope.cancel()


@asynccontextmanager
async def listening(section: ListenSection | str, gateway: Gateway) -> AsyncIterator[Listener]:
    """An open door of a gateway that runs."""
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as hubs:
            await hubs.start(gateway.run)
            async with open_next(section, gateway) as door:
                yield door
            hubs.cancel_scope.cancel()


def port_of(door: Listener) -> int:
    port = urlsplit(door.urls[0]).port
    assert port is not None
    return port


def open_sockets() -> set[str]:
    """Those that this process has open at the moment; the database's files come and go by themselves."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            pass  # That of the list itself.
    return {name for name in found if name.startswith("socket:")}


# WebSocket


@dataclass
class Response:
    status: int
    headers: dict[str, list[str]]
    body: str


async def ask(
    door: Listener, target: str, *headers: str, method: str = "GET", host: str = "localhost", body: str = ""
) -> Response:
    """One HTTP request over a connection of its own."""
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(door))
    async with stream:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", body]
        await stream.send_all("\r\n".join(lines).encode())
        received = b""
        while not received.startswith(b"HTTP/1.1 101") or b"\r\n\r\n" not in received:
            data = await stream.receive_some()
            if not data:
                break
            received += data
    head, _, body = received.decode().partition("\r\n\r\n")
    status, *fields = head.split("\r\n")
    collected: dict[str, list[str]] = {}
    for field in fields:
        name, _, value = field.partition(": ")
        collected.setdefault(name.lower(), []).append(value)
    return Response(int(status.split()[1]), collected, body)


def upgrade(*headers: str) -> tuple[str, ...]:
    key = base64.b64encode(bytes(16)).decode()
    return (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        *headers,
    )


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


async def test_a_right_token_opens_a_websocket_and_the_answer_names_the_connection(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        response = await ask(door, "/acp", *upgrade(bearer(gateway.token())))
    assert response.status == 101
    assert len(response.headers["acp-connection-id"][0]) >= 22
    assert "sec-websocket-protocol" not in response.headers


async def test_no_extension_is_agreed_to(gateway: EchoingGateway) -> None:
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
    async with listening(WS, gateway) as door:
        response = await ask(door, "/acp", *upgrade(bearer(gateway.token()), offer))
    assert response.status == 101
    assert "sec-websocket-extensions" not in response.headers


async def test_messages_pass_over_a_websocket(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door, trio.open_nursery() as nursery:
        websocket = await connect_websocket(
            await connect_tcp("127.0.0.1", port_of(door)),
            WebSocketURI(False, "127.0.0.1", port_of(door), "/acp", "agent=second"),
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


async def test_connections_have_ids_of_their_own(gateway: EchoingGateway) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as door:
        ids = [(await ask(door, "/acp", *upgrade(bearer(token)))).headers["acp-connection-id"][0] for _ in range(10)]
    assert len(set(ids)) == 10
    assert {served.name.partition(" ")[0] for served in gateway.served} == {name[:8] for name in ids}


async def test_a_token_may_come_as_a_subprotocol_and_is_not_repeated(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        token = gateway.token()
        response = await ask(door, "/acp", *upgrade(f"Sec-WebSocket-Protocol: acp.v1, acp.bearer.{token}"))
    assert response.status == 101
    assert response.headers["sec-websocket-protocol"] == ["acp.v1"]
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
        ("Authorization: Bearer wrong", "Sec-WebSocket-Protocol: acp.v1, acp.bearer.{token}"),
        ("Sec-WebSocket-Protocol: acp.bearer.{token}",),
        ("Sec-WebSocket-Protocol: acp.v1, acp.bearer.",),
        ("Sec-WebSocket-Protocol: acp.v1, {token}",),
        ("Cookie: token={token}",),
    ],
)
async def test_without_a_right_token_in_the_right_place_nobody_gets_in(
    headers: Sequence[str], gateway: EchoingGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = gateway.token()
    other = TokenStore(tmp_path / "other").create("x", "x", None)[1]
    async with listening(WS, gateway) as door:
        response = await ask(door, "/acp", *upgrade(*(header.format(token=token, other=other) for header in headers)))
    assert response.status == 401
    assert response.headers["www-authenticate"] == ["Bearer"]
    assert "acp-connection-id" not in response.headers
    assert gateway.served == []
    for secret in (token, other):
        assert secret not in caplog.text
        assert secret not in str(response)


async def test_where_there_are_no_tokens_nobody_gets_in(gateway: EchoingGateway, tmp_path: Path) -> None:
    token = TokenStore(tmp_path / "other").create("x", "x", None)[1]
    async with listening(WS, gateway) as door:
        for headers in ((), (bearer(token),), (bearer(""),)):
            assert (await ask(door, "/acp", *upgrade(*headers))).status == 401
    assert gateway.served == []


async def test_a_token_in_the_query_is_not_accepted_and_not_logged(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = gateway.token()
    async with listening(WS, gateway) as door:
        for query in (f"token={token}", f"access_token={token}", f"agent={token}"):
            assert (await ask(door, f"/acp?{query}", *upgrade())).status == 401
    assert token not in caplog.text


async def test_a_token_counts_from_its_creation_to_its_revocation(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        token, secret = gateway.tokens.create("laptop", "ann", None)
        assert (await ask(door, "/acp", *upgrade(bearer(secret)))).status == 101
        gateway.tokens.revoke(token.id)
        assert (await ask(door, "/acp", *upgrade(bearer(secret)))).status == 401


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
    async with listening(WS, gateway) as door:
        response = await ask(door, f"/acp{query}", *upgrade(bearer(gateway.token(*agents))))
    assert response.status == status
    assert len(gateway.served) == (status == 101)


@pytest.mark.parametrize(
    ("query", "wish"),
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
async def test_the_query_says_what_is_wanted(query: str, wish: ConnectRequest, gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        assert (await ask(door, f"/acp{query}", *upgrade(bearer(gateway.token())))).status == 101
    assert gateway.wishes == [wish]


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
    async with listening(WS, gateway) as door:
        refused = await ask(door, f"/acp?{query}", *upgrade(bearer(gateway.token())))
        assert (await ask(door, f"/acp?{query}", *upgrade())).status == 401
    assert refused.status == 400
    assert refused.headers["acp-gateway"] == ["protocol"]
    assert gateway.wishes == []


@pytest.mark.parametrize("session", ["", "nobodys", "x" * SESSION_ID_SIZE])
async def test_a_session_that_is_not_there_is_told_from_an_agent_that_is_not(
    session: str, gateway: EchoingGateway
) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as door, open_next(TCP, gateway) as lines:
        answers = [
            await ask(door, f"/acp?{query}", *upgrade(bearer(token)))
            for query in (f"session={session}", f"session={session}&observe=1", "agent=third")
        ]
        by_line = await answer_to(lines, hello(token=token, session=session))
    assert [answer.status for answer in answers] == [404, 404, 404]
    marks = [answer.headers["acp-gateway"] for answer in answers]
    assert marks == [["unknown_session"], ["unknown_session"], ["unknown_agent"]]
    assert by_line["error"]["code"] == 404
    assert by_line["error"]["data"] == {"reason": "unknown_session"}
    assert answers[0].body == by_line["error"]["message"] + "\n"
    assert gateway.served == []


async def test_an_agent_is_not_named_to_those_without_a_token(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        there, not_there = [await ask(door, f"/acp?agent={name}", *upgrade()) for name in ("first", "third")]
    assert (there.status, there.body) == (not_there.status, not_there.body)


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        ((), 101),
        (("https://editor.example",), 101),
        (("http://localhost",), 403),
        (("http://127.0.0.1:7443",), 403),
        (("null",), 403),
        (("",), 403),
        (("https://editor.example.evil.example",), 403),
        (("https://editor.example", "https://evil.example"), 403),
        (("https://editor.example", "https://editor.example"), 403),
    ],
)
async def test_a_browser_gets_in_from_allowed_origins_only_on_loopback_as_well(
    origins: Sequence[str], status: int, gateway: EchoingGateway
) -> None:
    section = ListenSection(url=WS, allowed_origins=("https://editor.example",))
    async with listening(section, gateway) as door:
        headers = [f"Origin: {origin}" for origin in origins]
        response = await ask(door, "/acp", *upgrade(bearer(gateway.token()), *headers))
    assert response.status == status
    assert len(gateway.served) == (status == 101)


@pytest.mark.parametrize(
    "headers",
    [
        ("Authorization: Bearer {token}", "Authorization: Bearer wrong"),
        ("Sec-WebSocket-Protocol: acp.v1, acp.bearer.{token}, acp.bearer.wrong",),
        ("Sec-WebSocket-Protocol: acp.v1, acp.bearer.{token}", "Sec-WebSocket-Protocol: acp.bearer.wrong"),
        ("Authorization: Bearer {token}", "Sec-WebSocket-Protocol: chat"),
    ],
)
async def test_a_request_that_can_be_understood_in_two_ways_or_in_none_is_bad(
    headers: Sequence[str], gateway: EchoingGateway
) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as door:
        response = await ask(door, "/acp", *upgrade(*(header.format(token=token) for header in headers)))
    assert response.status == 400
    assert gateway.served == []


async def test_health_is_told_to_anybody_and_changes_nothing(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(WS, gateway) as door:
        response = await ask(door, "/healthz")
    assert (response.status, response.body) == (200, "ok\n")
    assert gateway.served == []
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/", "/acp/", "/ACP", "/acp2", "/healthz/x", "/../acp", "//acp", "/%61cp"])
async def test_there_is_nothing_on_any_other_path(path: str, gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        response = await ask(door, path, *upgrade(bearer(gateway.token())))
    assert response.status == 404
    assert gateway.served == []


@pytest.mark.parametrize(
    "name", ["Observe", "OBSERVE", "observe%20", "%20observe", "observe[]", "obs_erve", "observe%00"]
)
async def test_a_query_with_a_parameter_that_is_nearly_a_known_one_is_bad_and_says_which(
    name: str, gateway: EchoingGateway
) -> None:
    async with listening(WS, gateway) as door:
        refused = await ask(door, f"/acp?{name}=1", *upgrade(bearer(gateway.token())))
    assert (refused.status, refused.headers["acp-gateway"]) == (400, ["protocol"])
    assert refused.body == "the query has a parameter that is nearly observe: it is spelled observe\n"
    assert gateway.served == []


async def test_a_query_with_very_many_parameters_is_bad(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        refused = await ask(door, "/acp?" + "&".join("a" * (QUERY_FIELDS + 1)), *upgrade(bearer(gateway.token())))
    assert (refused.status, refused.body) == (400, f"the query has more than {QUERY_FIELDS} parameters\n")


async def test_a_request_without_an_upgrade_is_told_to_upgrade_before_anybody_comes_in(gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        for headers in ([], [bearer(gateway.token())], ["Connection: Upgrade", "Upgrade: h2c"]):
            response = await ask(door, "/acp?session=x", *headers, "Accept: text/event-stream")
            assert response.status == 426
            assert response.headers["upgrade"] == ["websocket"]
            assert response.body == SPEAKS_WEBSOCKET + "\n"
    assert gateway.wishes == []


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "OPTIONS"])
@pytest.mark.parametrize("body", ["", '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}', "x" * 50_000])
async def test_a_client_of_acp_over_http_is_told_that_a_websocket_is_spoken_here(
    method: str, body: str, gateway: EchoingGateway
) -> None:
    length = (f"Content-Length: {len(body)}", "Content-Type: application/json", "Transfer-Encoding: chunked")
    async with listening(WS, gateway) as door:
        response = await ask(door, "/acp", bearer(gateway.token()), *length, method=method, body=body)
        assert response.status == 405
        assert (response.headers["allow"], response.headers["upgrade"]) == (["GET"], ["websocket"])
        assert response.body == SPEAKS_WEBSOCKET + "\n"
        assert (await ask(door, "/elsewhere", *length, method=method, body=body)).status == 404
        assert (await ask(door, "/healthz", method=method)).headers["allow"] == ["GET"]
    assert gateway.wishes == []


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
    async with listening(url, gateway) as door:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(door))
        await stream.send_all(b"POST /acp HTTP/1.1\r\n\r\n" if url == WS else b"{}\n")
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(bytes(65536))
        await stream.aclose()
    assert LINGER_SIZE <= discarded < 2 * LINGER_SIZE


async def test_a_refused_stranger_who_does_not_leave_is_not_waited_for(
    gateway: EchoingGateway, unix: str, autojump_clock: trio.testing.MockClock
) -> None:
    door = await open_listener(ListenSection(url=unix), gateway)
    here, there = socket.socketpair()
    here.setblocking(False)
    there.sendall(b"{}\n")
    await door.serve(here)
    assert trio.current_time() == LINGER_TIME
    assert b"error" in there.recv(4096)
    there.close()
    door.close()


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x00\xf5\x01\x00", b"POST /acp HTTP/1.1\r\n\r\n", b"hello\n\r\n\r\n"])
async def test_what_is_no_request_for_a_websocket_is_answered_and_closed(data: bytes, gateway: EchoingGateway) -> None:
    async with listening(WS, gateway) as door:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(door))
        await stream.send_all(data + b"\r\n" * 10)
        assert b"".join([part async for part in stream]).startswith(b"HTTP/1.1 4")
        await stream.aclose()
    assert gateway.served == []


# Lines


@asynccontextmanager
async def connected(door: Listener) -> AsyncIterator[LineStream]:
    """A connection for lines, without a hello yet."""
    url = urlsplit(door.urls[0])
    stream = await (connect_unix(url.path) if url.scheme == "unix" else connect_tcp("127.0.0.1", port_of(door)))
    lines = LineStream(stream, max_message_size=1 << 30)
    try:
        yield lines
    finally:
        await lines.aclose()


def hello(**params: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": "h", "method": "_acp-gateway/hello", "params": params}
    return json.dumps(message).encode()


async def answer_to(door: Listener, *lines: bytes) -> dict[str, Any]:
    """The only answer to these lines, after which the connection is closed."""
    async with connected(door) as stream:
        await stream.send_batch(lines)
        answer: dict[str, Any] = json.loads(await stream.receive())
        with pytest.raises(trio.EndOfChannel):
            await stream.receive()
    return answer


async def test_a_hello_is_answered_with_the_connections_id_and_messages_follow(gateway: EchoingGateway) -> None:
    async with listening(TCP, gateway) as door, connected(door) as lines:
        await lines.send(hello(token=gateway.token(), agent="second"))
        answer = json.loads(await lines.receive())
        assert answer["id"] == "h"
        assert len(answer["result"]["connectionId"]) >= 22
        await lines.send(PING)
        assert await lines.receive() == PING
    (served,) = gateway.served
    assert (served.access.identity, served.agent) == ("ann", "second")
    assert served.name == f"{answer['result']['connectionId'][:8]} (127.0.0.1:{served.name.rpartition(':')[2]}"


async def test_what_comes_right_behind_the_hello_is_not_lost(gateway: EchoingGateway) -> None:
    async with listening(TCP, gateway) as door, connected(door) as lines:
        await lines.send_batch([hello(token=gateway.token()), PING, b'{"n":2}', b'{"n":3}'])
        assert "result" in json.loads(await lines.receive())
        assert [await lines.receive() for _ in range(3)] == [PING, b'{"n":2}', b'{"n":3}']


async def test_a_message_may_be_larger_than_a_hello(gateway: EchoingGateway) -> None:
    big = b'"' + b"x" * (10 * HELLO_SIZE) + b'"'
    async with listening(TCP, gateway) as door, connected(door) as lines:
        await lines.send_batch([hello(token=gateway.token()), big])
        await lines.receive()
        assert await lines.receive() == big


@pytest.mark.parametrize(
    ("params", "wish"),
    [
        ({}, ConnectRequest()),
        ({"agent": None, "session": None, "observe": False, "control": False}, ConnectRequest()),
        ({"agent": "second", "session": SESSION, "observe": True}, ConnectRequest("second", SESSION, observe=True)),
        ({"control": True}, ConnectRequest(control=True)),
    ],
)
async def test_a_hello_says_what_is_wanted(
    params: dict[str, Any], wish: ConnectRequest, gateway: EchoingGateway
) -> None:
    async with listening(TCP, gateway) as door, connected(door) as lines:
        await lines.send(hello(token=gateway.token(), **params))
        assert "result" in json.loads(await lines.receive())
    assert gateway.wishes == [wish]


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
    async with listening(TCP, gateway) as door:
        answer = await answer_to(door, hello(**given))
    assert answer["id"] == "h"
    assert answer["error"]["code"] == code
    assert answer["error"]["data"] == {"reason": reason}
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
        (
            b'{"id":1,"method":"_acp-gateway/hello","params":{"token":"{token}","resume":{"Received":0}}}',
            -32602,
        ),
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
        (
            b'{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/hello","params":' + b"[" * 1900 + b"]" * 1900 + b"}",
            -32700,
        ),
        (b"x" * (HELLO_SIZE + 1), -32600),
    ],
    ids=lambda value: value.decode(errors="replace")[:80] if isinstance(value, bytes) else str(value),
)
async def test_a_first_line_that_is_no_hello_is_answered_and_the_connection_closed(
    line: bytes, code: int, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    token = gateway.token()
    async with listening(TCP, gateway) as door:
        answer = await answer_to(door, line.replace(b"{token}", token.encode()))
    assert answer["error"]["code"] == code
    assert gateway.served == []
    assert token not in caplog.text
    assert token not in json.dumps(answer)


async def test_blank_lines_may_come_before_a_hello(gateway: EchoingGateway) -> None:
    async with listening(TCP, gateway) as door, connected(door) as lines:
        await lines.bytes.send_some(memoryview(b"\r\n \n" + hello(token=gateway.token()) + b"\r\n" + PING + b"\r\n"))
        assert "result" in json.loads(await lines.receive())
        assert await lines.receive() == PING


async def test_a_first_line_that_is_too_large_is_refused_before_it_is_read(
    gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("acp_gateway.server.listener.read_hello")
    for line in (b"[" * (HELLO_SIZE + 1), b"\n" * (HELLO_SIZE + 1) + hello(token=gateway.token())):
        async with listening(TCP, gateway) as door:
            answer = await answer_to(door, line)
        assert answer["error"]["message"] == (
            f"the first line of a connection, a hello, must not be larger than {HELLO_SIZE} bytes"
        )


async def test_a_refusal_reaches_a_client_that_has_sent_much_behind_its_hello(gateway: EchoingGateway) -> None:
    # Closing with unread bytes resets a TCP connection, and what was sent last may be lost with it.
    def talk() -> bytes:
        with socket.create_connection(("127.0.0.1", port_of(door)), timeout=TIMEOUT) as sock:
            sock.sendall(hello(token="wrong") + b"\n" + PING * 1000)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(partial(sock.recv, 65536), b""))

    async with listening(TCP, gateway) as door:
        received = await trio.to_thread.run_sync(talk)
    assert json.loads(received)["error"]["code"] == 401


async def test_a_client_that_goes_without_a_word_is_no_event(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(TCP, gateway) as door:
        async with connected(door):
            pass
        async with connected(door) as lines:
            await lines.bytes.send_some(memoryview(b'{"half'))
        assert (await answer_to(door, b"{}"))["error"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


@pytest.mark.parametrize("url", [WS, TCP])
@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_connection_that_is_reset_at_the_door_is_no_event(
    url: str, when: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    door = await open_listener(ListenSection(url=url), gateway)
    client = socket.create_connection(("127.0.0.1", port_of(door)))
    stream = await door._bound.listeners[0].accept()
    # Closing sends a reset then.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            if when == "before":
                client.close()
                await trio.lowlevel.wait_readable(stream.socket)
            nursery.start_soon(door.serve, take_socket(stream))
            await trio.testing.wait_all_tasks_blocked()
            client.close()
    door.close()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "left at the door: the connection was lost" in record.getMessage()
    assert ("gone already" in record.getMessage()) == (when == "before")


async def test_who_goes_while_being_told_that_they_are_in_is_paid_for_as_a_brief_visit(
    gateway: EchoingGateway, unix: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    seen_off: list[tuple[float, float]] = []
    door = await open_listener(ListenSection(url=unix), gateway)
    monkeypatch.setattr(door._entrance, "release", lambda *visit: seen_off.append(visit))
    here, there = socket.socketpair()
    here.setblocking(False)
    there.sendall(hello(token=gateway.token()) + b"\n")
    there.close()
    with trio.fail_after(TIMEOUT):
        await door.serve(here)
    door.close()
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
    url: str,
    said: bytes,
    tmp_path: Path,
    spawner: Spawner,
    certificate: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    gateway = EchoingGateway(tmp_path / "state", spawner, handshake_timeout=0.01)
    section = with_tls(url, certificate)
    async with listening(section, gateway) as door:
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(door))
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


async def test_a_connection_that_is_open_outlives_the_handshake_timeout(
    unix: str, tmp_path: Path, spawner: Spawner, autojump_clock: trio.testing.MockClock
) -> None:
    gateway = EchoingGateway(tmp_path / "state", spawner, handshake_timeout=TIMEOUT / 10)
    async with listening(unix, gateway) as door, connected(door) as lines:
        await lines.send(hello())
        await lines.receive()
        await trio.sleep(TIMEOUT / 2)
        await lines.send(PING)
        assert await lines.receive() == PING


# Links that can be resumed

LINK = "the-links-id"

BROKEN_LINKS = [
    ["Acp-Gateway-Resume: "],
    ["Acp-Gateway-Resume: x"],
    ["Acp-Gateway-Resume: -1"],
    ["Acp-Gateway-Resume: +1"],
    ["Acp-Gateway-Resume: 1.0"],
    ["Acp-Gateway-Resume: 1e3"],
    ["Acp-Gateway-Resume: 1_0"],
    ["Acp-Gateway-Resume: 0, 0"],
    ["Acp-Gateway-Resume: ٣"],
    ["Acp-Gateway-Resume: " + "0" * 16],
    ["Acp-Gateway-Resume: 1"],
    ["Acp-Gateway-Resume: 0", "Acp-Gateway-Resume: 0"],
    [f"Acp-Connection-Id: {LINK}", "Acp-Gateway-Resume: 1", "ACP-GATEWAY-RESUME: 1"],
    [f"Acp-Connection-Id: {LINK}", f"acp-connection-id: {LINK}", "Acp-Gateway-Resume: 1"],
    ["Acp-Connection-Id: " + "x" * (CONNECTION_ID_SIZE + 1), "Acp-Gateway-Resume: 1"],
    ["Acp-Connection-Id: lïnk", "Acp-Gateway-Resume: 1"],
]


def resuming(received: object, link_id: str | None = LINK) -> list[str]:
    """The headers with which a link is resumed, or asked for where it has no id."""
    named = [] if link_id is None else [f"Acp-Connection-Id: {link_id}"]
    return [*named, f"Acp-Gateway-Resume: {received}"]


@pytest.mark.parametrize("count", ["0", "000000000000000"])
async def test_an_upgrade_asks_for_a_link_that_can_be_resumed(count: str, gateway: EchoingGateway) -> None:
    token = gateway.token()
    async with listening(WS, gateway) as door:
        response = await ask(door, "/acp?agent=second", *upgrade(bearer(token), *resuming(count, None)))
    assert response.status == 101
    assert response.headers["acp-gateway-resume"] == ["0"]
    (link_id,) = response.headers["acp-connection-id"]
    (served,) = gateway.served
    assert (served.agent, served.link_id) == ("second", link_id)
    assert gateway.resumed == []


async def test_an_upgrade_that_does_not_ask_for_a_link_that_can_be_resumed_sees_none_of_it(
    gateway: EchoingGateway,
) -> None:
    gateway.links[LINK] = 7
    token = gateway.token()
    async with listening(WS, gateway) as door:
        for header in ("User-Agent: x", f"Acp-Connection-Id: {LINK}", "Acp-Connection-Id: " + "x" * 100):
            response = await ask(door, "/acp", *upgrade(bearer(token), header, header))
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
    async with listening(WS, gateway) as door:
        response = await ask(door, f"/acp{query}", *upgrade(bearer(token), *resuming(received)))
    assert response.status == 101
    assert response.headers["acp-connection-id"] == [LINK]
    assert response.headers["acp-gateway-resume"] == ["4711"]
    (resumed,) = gateway.resumed
    assert (resumed.access.identity, resumed.link_id, resumed.received_there) == ("ann", LINK, count)
    assert re.fullmatch(r"the-link \(127\.0\.0\.1:\d+\)", resumed.name)
    assert gateway.served == []
    assert gateway.wishes == []


@pytest.mark.parametrize("headers", BROKEN_LINKS, ids=lambda headers: " ".join(headers)[:50])
async def test_a_wish_for_a_link_that_is_not_understood_is_bad_for_those_with_a_token(
    headers: list[str], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 0
    async with listening(WS, gateway) as door:
        refused = await ask(door, "/acp", *upgrade(bearer(gateway.token()), *headers))
        assert (await ask(door, "/acp", *upgrade(*headers))).status == 401
    assert refused.status == 400
    assert refused.headers["acp-gateway"] == ["protocol"]
    assert (gateway.served, gateway.resumed, gateway.wishes) == ([], [], [])


@pytest.mark.parametrize("headers", [*BROKEN_LINKS, resuming(0), resuming(3), resuming(0, None)])
async def test_a_control_connection_has_no_link_that_could_be_resumed(
    headers: list[str], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 0
    async with listening(WS, gateway) as door:
        response = await ask(door, "/acp?control=1", *upgrade(bearer(gateway.token()), *headers))
    assert response.status == 101
    assert "acp-gateway-resume" not in response.headers
    assert response.headers["acp-connection-id"] != [LINK]
    assert gateway.resumed == []
    assert gateway.wishes == [ConnectRequest(control=True)]
    assert gateway.links == {LINK: 0}


async def test_a_link_is_resumed_with_a_token_that_is_valid_now(gateway: EchoingGateway) -> None:
    gateway.links[LINK] = 0
    token, secret = gateway.tokens.create("laptop", "ann", None)
    gateway.tokens.revoke(token.id)
    async with listening(WS, gateway) as door, open_next(TCP, gateway) as lines:
        for headers in ([], [bearer(secret)]):
            response = await ask(door, "/acp", *upgrade(*headers, *resuming(3)))
            assert (response.status, response.headers["acp-gateway"]) == (401, ["unauthorized"])
        link = {"connectionId": LINK, "received": 3}
        for answer in [await answer_to(lines, hello(token=shown, resume=link)) for shown in (None, secret)]:
            assert answer["error"]["code"] == 401
    assert gateway.resumed == []


async def test_a_hello_asks_for_a_link_that_can_be_resumed(gateway: EchoingGateway) -> None:
    token = gateway.token()
    async with listening(TCP, gateway) as door:
        for wish in ({}, {"connectionId": None}, {"received": 0}):
            async with connected(door) as lines:
                await lines.send(hello(token=token, agent="second", resume=wish))
                result = json.loads(await lines.receive())["result"]
                assert result == {"connectionId": gateway.served[-1].link_id, "received": 0}
                assert gateway.served[-1].agent == "second"
    assert len(set(gateway.links)) == 3


@pytest.mark.parametrize("params", [{}, {"resume": None}])
async def test_a_hello_that_does_not_ask_for_a_link_that_can_be_resumed_sees_none_of_it(
    params: dict[str, Any], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 7
    async with listening(TCP, gateway) as door, connected(door) as lines:
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
    async with listening(TCP, gateway) as door, connected(door) as lines:
        await lines.send_batch([hello(token=token, agent="third", session="x", resume=link), PING])
        assert json.loads(await lines.receive())["result"] == {"connectionId": LINK, "received": 4711}
        assert await lines.receive() == PING
    (resumed,) = gateway.resumed
    assert (resumed.access.identity, resumed.received_there) == ("ann", link.get("received", 0))
    assert resumed.name.startswith("the-link (127.0.0.1:")
    assert gateway.served == []
    assert gateway.wishes == []


@pytest.mark.parametrize("link", [{}, {"connectionId": LINK, "received": 3}])
async def test_a_hello_for_a_control_connection_has_no_link_that_could_be_resumed(
    link: dict[str, Any], gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = 0
    async with listening(TCP, gateway) as door, connected(door) as lines:
        await lines.send(hello(token=gateway.token(), control=True, resume=link))
        assert list(json.loads(await lines.receive())["result"]) == ["connectionId"]
    assert gateway.wishes == [ConnectRequest(control=True)]
    assert gateway.resumed == []
    assert gateway.links == {LINK: 0}


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
async def test_a_hellos_wish_for_a_link_that_is_not_understood_is_an_error_in_its_parameters(
    link: object, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.links[LINK] = 0
    token = gateway.token()
    async with listening(TCP, gateway) as door:
        answer = await answer_to(door, hello(token=token, resume=link))
    assert answer["error"]["code"] == -32602
    assert answer["error"]["data"] == {"reason": "protocol"}
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
    error: AccessError,
    status: int,
    reason: str,
    level: int,
    gateway: EchoingGateway,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    gateway.links[LINK] = error
    token = gateway.token()
    async with listening(WS, gateway) as door, open_next(TCP, gateway) as lines:
        by_upgrade = await ask(door, "/acp", *upgrade(bearer(token), *resuming(3)))
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
    async with listening(url, gateway) as door:
        link = await dial_link(destination(door, gateway.token()), Timing(), Resume(LINK))
        with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
            await link.stream.receive()
        await link.stream.aclose()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("the-link (")
    caplog.clear()


def destination(door: Listener, token: str | None, **wish: Any) -> Destination:
    """Where the program's own client finds a door."""
    return Destination(parse_address(door.urls[0]), None, token, None, None, 1 << 20, **wish)


@asynccontextmanager
async def running(link: Dialed) -> AsyncIterator[MessageStream]:
    """The stream of a link in use."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.stream.run)
        yield link.stream
        await link.stream.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", ["unix", "tcp", "ws"])
async def test_the_programs_own_client_opens_a_link_and_resumes_it(
    scheme: str, unix: str, gateway: EchoingGateway
) -> None:
    token = None if scheme == "unix" else gateway.token()
    async with listening({"unix": unix, "tcp": TCP, "ws": WS}[scheme], gateway) as door:
        target = replace(destination(door, token), agent="second")
        link = await dial_link(target, Timing(), Resume())
        assert link.connection_id is not None
        assert link.received == 0
        async with running(link) as stream:
            await stream.send(PING)
            assert await stream.receive() == PING
        gateway.links[link.connection_id] = 1
        again = await dial_link(target, Timing(), Resume(link.connection_id, 2))
        assert (again.connection_id, again.received) == (link.connection_id, 1)
        async with running(again) as stream:
            await stream.send_batch([PING, b'{"n":2}'])
            assert [await stream.receive(), await stream.receive()] == [PING, b'{"n":2}']
    (served,), (resumed,) = gateway.served, gateway.resumed
    assert (served.agent, served.link_id) == ("second", link.connection_id)
    assert resumed.access == served.access
    assert (resumed.access.token is None) == (scheme == "unix")
    assert (resumed.link_id, resumed.received_there) == (link.connection_id, 2)
    assert resumed.name.partition(" ")[0] == served.name.partition(" ")[0]


@pytest.mark.parametrize("scheme", ["unix", "tcp", "ws"])
@pytest.mark.parametrize(
    "error",
    [
        Unauthorized("because"),
        Forbidden("because"),
        UnknownAgent("because"),
        UnknownSession("because"),
        TooFarBehind("because"),
        LinkGone("because"),
        LinkExpired("because"),
    ],
    ids=lambda error: error.reason,
)
async def test_the_programs_own_client_learns_why_a_link_is_not_resumed(
    scheme: str, error: AccessError, unix: str, gateway: EchoingGateway
) -> None:
    gateway.links[LINK] = error
    token = None if scheme == "unix" else gateway.token()
    async with listening({"unix": unix, "tcp": TCP, "ws": WS}[scheme], gateway) as door:
        with pytest.raises(AccessError, match="because") as caught:
            await dial_link(destination(door, token), Timing(), Resume(LINK, 3))
    assert type(caught.value) is type(error)


@pytest.mark.parametrize("url", [TCP, WS])
async def test_the_programs_own_client_need_not_ask_for_a_link(url: str, gateway: EchoingGateway) -> None:
    token = gateway.token()
    async with listening(url, gateway) as door:
        await (await dial(destination(door, token), Timing())).aclose()
        asking = await dial_link(destination(door, token, control=True), Timing(), Resume())
        await asking.stream.aclose()
    assert asking.received is None
    assert gateway.links == {}


# TLS


def with_tls(url: str, certificate: Path) -> ListenSection:
    if url.startswith(("wss", "tcp+tls")):
        return ListenSection(url=url, cert=certificate / "cert.pem", key=certificate / "key.pem")
    return ListenSection(url=url)


async def test_lines_over_tls(gateway: EchoingGateway, certificate: Path) -> None:
    context = client_context(ca=certificate / "cert.pem", pin=None)
    async with listening(with_tls("tcp+tls://127.0.0.1:0", certificate), gateway) as door:
        lines = LineStream(await connect_tcp("127.0.0.1", port_of(door), context), max_message_size=1 << 20)
        await lines.send_batch([hello(token=gateway.token()), PING])
        await lines.receive()
        assert await lines.receive() == PING
        await lines.aclose()


async def test_a_refusal_over_tls_reaches_a_client_that_has_sent_more(
    gateway: EchoingGateway, certificate: Path
) -> None:
    context = client_context(ca=certificate / "cert.pem", pin=None)
    async with listening(with_tls("tcp+tls://127.0.0.1:0", certificate), gateway) as door:
        lines = LineStream(await connect_tcp("127.0.0.1", port_of(door), context), max_message_size=1 << 20)
        await lines.send_batch([hello(token="wrong"), PING, PING])
        assert json.loads(await lines.receive())["error"]["code"] == 401
        await lines.aclose()


@pytest.mark.parametrize("how", ["late", "bug"])
async def test_a_tls_connection_over_which_nobody_comes_in_is_closed(
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
    async with listening(with_tls("tcp+tls://127.0.0.1:0", certificate), gateway) as door:
        before = open_sockets()
        stream = await connect_tcp("127.0.0.1", port_of(door), context)
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


async def test_who_does_not_speak_tls_is_closed_without_a_fuss(
    gateway: EchoingGateway, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listening(with_tls("wss://127.0.0.1:0", certificate), gateway) as door:
        with pytest.raises((ValueError, IndexError, trio.BrokenResourceError)):
            await ask(door, "/acp", *upgrade(bearer(gateway.token())))
    assert "no TLS handshake" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert gateway.served == []


async def test_a_certificate_that_cannot_be_used_is_an_error_of_the_configuration(
    gateway: EchoingGateway, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        await open_listener(with_tls("wss://127.0.0.1:0", tmp_path), gateway)


# The unix socket


async def test_the_gateways_own_user_needs_no_token_and_may_use_every_agent(
    unix: str, gateway: EchoingGateway, tmp_path: Path
) -> None:
    async with listening(unix, gateway) as door:
        for agent in ("first", "second"):
            async with connected(door) as lines:
                await lines.send(hello(agent=agent))
                assert "result" in json.loads(await lines.receive())
    assert [served.agent for served in gateway.served] == ["first", "second"]
    assert {served.access for served in gateway.served} == {Access(default_identity(tmp_path / "state"), None)}
    assert all(served.name.endswith(" (unix)") for served in gateway.served)


async def test_a_token_counts_on_a_unix_socket_too_also_when_it_is_wrong(unix: str, gateway: EchoingGateway) -> None:
    async with listening(unix, gateway) as door:
        assert (await answer_to(door, hello(token="wrong")))["error"]["code"] == 401
        assert (await answer_to(door, hello(token="")))["error"]["code"] == 401
        async with connected(door) as lines:
            await lines.send(hello(token=gateway.token("first")))
            assert "result" in json.loads(await lines.receive())
    (served,) = gateway.served
    assert served.access.identity == "ann"
    assert not served.access.may_use("second")


async def test_the_gateways_own_user_needs_a_token_where_that_is_configured(unix: str, gateway: EchoingGateway) -> None:
    async with listening(ListenSection(url=unix, peer_uid=False), gateway) as door:
        assert (await answer_to(door, hello()))["error"]["code"] == 401
    assert gateway.served == []


async def test_another_user_needs_a_token(unix: str, gateway: EchoingGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    async with listening(unix, gateway) as door:
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
        answer = await answer_to(door, hello())
    assert answer["error"]["code"] == 401
    assert gateway.served == []


KNOCK = """
import os, socket, sys
def knock():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect({path!r})
        sock.sendall(b'{{"jsonrpc":"2.0","id":"h","method":"_acp-gateway/hello","params":{{}}}}\\n')
        os.write(1, sock.makefile("rb").readline())
"""

AS_CHILD = "knock()"

AS_GRANDCHILD = """
if os.fork() == 0:
    knock()
    os._exit(0)
os.wait()
"""

AS_ORPHAN = """
if os.fork() == 0:
    here, there = os.pipe()
    if os.fork() == 0:
        os.close(there)
        os.read(here, 1)  # Until the parent is gone.
        knock()
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("how", [AS_CHILD, AS_GRANDCHILD, AS_ORPHAN], ids=["child", "grandchild", "orphan"])
async def test_an_agent_that_comes_to_the_unix_socket_is_refused(
    how: str, unix: str, gateway: EchoingGateway, spawner: Spawner, tmp_path: Path
) -> None:
    answer = await knock(how, unix, gateway, spawner)
    assert answer["id"] == "h"
    assert answer["error"]["code"] == 403
    assert answer["error"]["message"] == "an agent can't let itself in: a token is needed here"
    assert gateway.served == []


@pytest.mark.parametrize("how", [AS_CHILD, AS_GRANDCHILD], ids=["child", "grandchild"])
async def test_an_agent_that_comes_to_the_unix_socket_before_the_news_of_its_start_is_refused(
    how: str, unix: str, gateway: EchoingGateway, spawner: Spawner
) -> None:
    spawner.ancestors = Forgetful(spawner.ancestors)
    assert (await knock(how, unix, gateway, spawner))["error"]["code"] == 403
    assert gateway.served == []


async def test_who_is_no_descendant_of_the_gateway_is_no_agent(
    unix: str, gateway: EchoingGateway, spawner: Spawner
) -> None:
    # What knocks is a descendant in truth; here the gateway does not know itself.
    spawner.ancestors = Forgetful()
    assert "result" in await knock(AS_CHILD, unix, gateway, spawner)
    assert len(gateway.served) == 1


class Forgetful(set[int]):
    """As if the news of an agent's start never came."""

    def add(self, element: int) -> None:
        """Forget it."""


async def knock(how: str, unix: str, gateway: EchoingGateway, spawner: Spawner) -> dict[str, Any]:
    """The answer that an agent gets which comes to the gateway's own socket."""
    launch = Launch(
        name="intruder",
        command=python(KNOCK.format(path=urlsplit(unix).path) + how + "\nsys.stdin.read()"),
        environment={},
        cwd=None,
        max_message_size=1 << 20,
        eof_grace=TIMEOUT,
        term_grace=TIMEOUT,
    )
    async with listening(unix, gateway), trio.open_nursery() as nursery:
        agent: Agent = await nursery.start(partial(run_agent, launch, spawner))
        answer: dict[str, Any] = json.loads(await agent.messages.receive())
        nursery.cancel_scope.cancel()
    return answer


async def test_the_socket_is_removed_when_the_door_closes(unix: str, gateway: EchoingGateway, tmp_path: Path) -> None:
    async with listening(unix, gateway):
        assert (tmp_path / "socket").exists()
    assert not (tmp_path / "socket").exists()


async def test_a_door_that_is_closed_twice_does_not_close_the_next_gateways(
    unix: str, gateway: EchoingGateway, tmp_path: Path
) -> None:
    door = await open_listener(ListenSection(url=unix), gateway)
    door.close()
    async with listening(unix, gateway):
        door.close()
        assert (tmp_path / "socket").exists()


# All doors


async def test_where_a_door_is_can_be_learned_when_the_system_has_chosen(
    unix: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listening(WS, gateway) as door, open_next(unix, gateway) as other:
        await trio.testing.wait_all_tasks_blocked()
        assert door.urls == [f"ws://127.0.0.1:{port_of(door)}/acp"]
        assert port_of(door) != 0
        assert other.urls == [unix]
    assert set(caplog.messages) == {f"listening on {door.urls[0]}", f"listening on {unix}"}


@pytest.mark.parametrize("url", [WS, TCP])
async def test_a_bug_in_one_connection_is_logged_and_the_others_go_on(
    url: str, gateway: EchoingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    token = gateway.token()
    async with listening(TCP, gateway) as door, connected(door) as other:
        await other.send(hello(token=token))
        await other.receive()
        gateway.bug = ZeroDivisionError
        async with connected(door) as lines:
            await lines.send(hello(token=token))
            assert "result" in json.loads(await lines.receive())
            with pytest.raises(trio.EndOfChannel):
                await lines.receive()
        await other.send(PING)
        assert await other.receive() == PING
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().endswith("internal error, connection closed")
    assert record.exc_info is not None
    caplog.clear()


async def test_a_bug_before_anybody_is_in_is_logged_and_the_others_go_on(
    gateway: EchoingGateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def authenticate(*_: object) -> None:
        raise ZeroDivisionError

    async with listening(WS, gateway) as door:
        with monkeypatch.context() as patch:
            patch.setattr(gateway.tokens, "authenticate", authenticate)
            with pytest.raises((IndexError, trio.BrokenResourceError)):
                await ask(door, "/acp", *upgrade(bearer("x")))
        assert (await ask(door, "/acp", *upgrade(bearer(gateway.token())))).status == 101
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
    async with listening(TCP, gateway) as door:
        lines = LineStream(await connect_tcp("127.0.0.1", port_of(door)), max_message_size=1 << 20)
        await lines.send(hello(token=gateway.token()))
        await inside.wait()
    await lines.aclose()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    caplog.clear()


# With agents


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> ServingAgents:
    """All agents are in memory."""
    agents = ServingAgents()
    monkeypatch.setattr(gateway_module, "run_agent", agents.run)
    return agents


@asynccontextmanager
async def websocket_editor(door: Listener, token: str, **wish: str) -> AsyncIterator[Editor]:
    """An editor that came in over a WebSocket."""
    websocket = await connect_websocket(
        await connect_tcp("127.0.0.1", port_of(door)),
        WebSocketURI(False, "127.0.0.1", port_of(door), "/acp", urlencode(wish)),
        {"Authorization": f"Bearer {token}"},
        max_message_size=1 << 20,
        timing=Timing(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(websocket.run)
        try:
            yield Editor(websocket)
        finally:
            await websocket.aclose()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def line_editor(door: Listener, **params: Any) -> AsyncIterator[Editor]:
    """An editor that came in by its first line."""
    async with connected(door) as lines:
        await lines.send(hello(**params))
        assert "result" in json.loads(await lines.receive())
        yield Editor(lines)


@pytest.mark.parametrize("scope", ["connection", "identity", "shared"])
async def test_a_session_is_joined_by_whichever_door_one_comes(
    scope: Literal["connection", "identity", "shared"], agents: ServingAgents, spawner: Spawner, tmp_path: Path
) -> None:
    section = AgentSection(command=("cat",), scope=scope)
    config = make_config(tmp_path / "state", WS, agents={"fake": section})
    gateway = Gateway(config, TokenStore(tmp_path / "state"), spawner, {})
    token = gateway.tokens.create("laptop", "ann", None)[1]
    new = {"cwd": "/", "mcpServers": []}
    async with listening(WS, gateway) as web, open_next(TCP, gateway) as tcp, websocket_editor(web, token) as owner:
        await owner.initialize()
        session = (await owner.request("session/new", new))["result"]["sessionId"]
        guest = gateway.tokens.create_guest(session, role="observer", lifetime=None)[1]
        async with (
            websocket_editor(web, token, session=session) as phone,
            line_editor(tcp, token=token, session=session, observe=True) as viewer,
            line_editor(tcp, token=guest) as guests_viewer,
            line_editor(tcp, token=guest, control=True) as asking,
        ):
            for editor in (phone, viewer, guests_viewer):
                await editor.initialize()
                assert (await editor.request("session/new", new))["result"]["sessionId"] == session
            for editor in (viewer, guests_viewer):
                prompt = await editor.request("session/prompt", {"sessionId": session, "prompt": []})
                assert prompt["error"]["code"] == -32601
            (told,) = (await asking.request("_acp-gateway/sessions"))["result"]["sessions"]
            assert (told["sessionId"], told["owner"], told["connected"]) == (session, "ann", 4)
    assert len(agents) == 1


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
            secure = await connect_tcp("127.0.0.1", port_of(tls), context)
            await secure.aclose()
        # Some may not be through yet.
        while open_sockets() != before:
            await trio.lowlevel.checkpoint()
