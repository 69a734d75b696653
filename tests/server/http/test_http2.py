"""Connections of HTTP/2 at a listener: what they count as, and what ends one request or all. Each status code of a
request is in `test_http_statuses`."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.http.link import HttpLinks
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.listener import Listener
from acp_gateway.transports.http.http2_frames import BUDGET, ENHANCE_YOUR_CALM
from tests.kit.doubles import TIMEOUT, ServingAgents, make_config
from tests.kit.echoing import WS, listening, port_of, with_tls
from tests.kit.http2_client import Http2Client, connect_http2
from tests.kit.http_client import INITIALIZE, NEW, Reply

JSON = ("content-type", "application/json")
EVENTS = ("accept", "text/event-stream")


@dataclass
class Scene:
    """A gateway with a listener for HTTP/2, and one client of it."""

    gateway: Gateway
    listener: Listener
    client: Http2Client
    token: tuple[str, str]
    link: tuple[tuple[str, str], ...] = ()

    async def ask(self, method: str, path: str, *more: tuple[str, str], message: Any = None) -> Reply:
        body = b"" if message is None else json.dumps(message).encode()
        size = ("content-length", str(len(body)))
        return await self.client.ask(method, path, size, *more, body=body, host="localhost")

    async def post(self, message: Any, *more: tuple[str, str]) -> Reply:
        return await self.ask("POST", "/acp", self.token, JSON, *self.link, *more, message=message)

    async def initialize(self) -> None:
        reply = await self.post(INITIALIZE)
        assert reply.status == 200, reply
        self.link = (("acp-connection-id", reply.headers["acp-connection-id"]),)

    async def open_stream(self, session: str | None = None) -> int:
        named = () if session is None else (("acp-session-id", session),)
        number = await self.client.begin("GET", "/acp", self.token, EVENTS, *self.link, *named, host="localhost")
        assert (await self.client.head(number)).status == 200
        return number

    async def messages(self, number: int, count: int) -> list[Any]:
        """The first messages of an event stream."""
        reply = self.client.replies[number]
        while reply.body.count(b"data: ") < count:
            assert await self.client.receive()
        lines = [line for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line.removeprefix(b"data: ")) for line in lines]

    @property
    def pending(self) -> int:
        """Connections that count as unauthenticated."""
        return self.limiter._pending

    @property
    def limiter(self) -> HandshakeLimiter:
        return self.listener._limiter


@pytest.fixture
def section(certificate: Path) -> ListenSection:
    return replace(with_tls("wss://127.0.0.1:0", certificate), serves=("acp", "page"))


@asynccontextmanager
async def opened(gateway: Gateway, section: ListenSection, certificate: Path) -> AsyncIterator[Scene]:
    async with listening(section, gateway) as listener:
        token = gateway.tokens.create("laptop", "ann", None)[1]
        client = await connect_http2(port_of(listener), certificate)
        await client.flush()
        yield Scene(gateway, listener, client, ("authorization", f"Bearer {token}"))


@pytest.fixture
def gateway(tmp_path: Path, spawner: Spawner, agents: ServingAgents) -> Gateway:
    state = tmp_path / "state"
    return Gateway(make_config(state, WS, handshake_timeout=TIMEOUT), TokenStore(state), spawner, {})


@pytest.fixture
async def scene(gateway: Gateway, section: ListenSection, certificate: Path) -> AsyncIterator[Scene]:
    async with opened(gateway, section, certificate) as scene:
        yield scene
        await scene.client.stream.aclose()


async def test_ten_sessions_have_their_event_streams_over_one_connection(scene: Scene, agents: ServingAgents) -> None:
    await scene.initialize()
    connection = await scene.open_stream()
    streams: dict[str, int] = {}
    for count in range(1, 11):
        assert (await scene.post(NEW)).status == 202
        session = (await scene.messages(connection, count))[-1]["result"]["sessionId"]
        streams[session] = await scene.open_stream(session)
    for session in streams:
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]}
        message = {"jsonrpc": "2.0", "id": session, "method": "session/prompt", "params": prompt}
        assert (await scene.post(message)).status == 202
        await agents[0].got("session/prompt")
        await scene.post({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}})
    for session, number in streams.items():
        assert session in [message.get("id") for message in await scene.messages(number, 1)]
    assert not scene.client.ended & {connection, *streams.values()}
    assert (await scene.ask("DELETE", "/acp", scene.token, *scene.link)).status == 202
    for number in (connection, *streams.values()):
        await scene.client.reply(number)


async def test_a_connection_is_unauthenticated_while_no_request_with_a_token_is_served(scene: Scene) -> None:
    assert (await scene.ask("GET", "/healthz")).status == 200
    assert scene.pending == 1
    (turns,) = scene.limiter._by_network.values()
    (connection,) = turns.connections
    await scene.initialize()
    number = await scene.open_stream()
    assert (scene.pending, connection.scope.deadline) == (0, inf)
    # Others without a token come and go beside it.
    assert (await scene.ask("GET", "/healthz")).status == 200
    assert (await scene.ask("GET", "/acp")).status == 401
    assert (scene.pending, scene.limiter._refused) == (0, {})
    scene.client.h2.reset_stream(number)
    await scene.client.flush()
    while not scene.pending:
        await trio.lowlevel.checkpoint()
    number = await scene.open_stream()
    assert (scene.pending, connection.scope.deadline) == (0, inf)
    scene.client.h2.reset_stream(number)
    await scene.client.flush()
    while not scene.pending:
        await trio.lowlevel.checkpoint()
    # Its time is over.
    connection.scope.deadline = trio.current_time()
    await scene.client.receive_all()
    assert scene.client.goaway == (0, "")


async def test_a_token_that_was_shown_over_the_connection_is_known(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.initialize()
    monkeypatch.delattr(TokenStore, "authenticate")
    await scene.open_stream()


async def test_an_event_stream_whose_request_is_reset_has_another_reader_at_once(scene: Scene) -> None:
    await scene.initialize()
    for _ in range(3):
        number = await scene.open_stream()
        scene.client.h2.reset_stream(number)
        await scene.client.flush()


@pytest.mark.usefixtures("hasty")
async def test_who_guesses_tokens_is_refused_and_the_connection_goes_on(scene: Scene) -> None:
    await scene.initialize()
    number = await scene.open_stream()
    limit = scene.gateway.config.limits.failed_attempts
    guesses = [("authorization", f"Bearer acpgw_{guess}") for guess in range(limit + 1)]
    statuses = [(await scene.ask("GET", "/acp", guess)).status for guess in guesses]
    assert statuses == [401] * limit + [429]
    assert number not in scene.client.ended
    assert scene.limiter._refused == {}


async def test_a_cookie_in_several_fields_signs_a_browser_in(scene: Scene) -> None:
    token = scene.gateway.tokens.authenticate(scene.token[1].removeprefix("Bearer "))
    code = scene.gateway.browsers.make_code(token, "ann", label="phone")[1]
    origin = ("origin", "https://localhost")
    signed = await scene.ask("POST", "/login", origin, JSON, message={"code": code})
    assert signed.status == 200, signed
    cookie = signed.headers["set-cookie"].partition(";")[0]
    fields = [("cookie", each) for each in ("theme=dark", cookie, "a=b; c=d")]
    assert (await scene.ask("POST", "/acp", origin, JSON, *fields, message=INITIALIZE)).status == 200
    # It counts only with the page's origin.
    assert (await scene.ask("POST", "/acp", JSON, *fields, message=INITIALIZE)).status == 403


async def test_a_bug_ends_the_request_in_which_it_shows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.initialize()
    number = await scene.open_stream()

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(HttpLinks, "find", fail)
    failed = await scene.client.begin("GET", "/acp", scene.token, EVENTS, *scene.link, host="localhost")
    while failed not in scene.client.resets:
        await scene.client.receive()
    assert "internal error, request ended" in caplog.text
    caplog.clear()
    assert (await scene.ask("GET", "/healthz")).status == 200
    assert number not in scene.client.ended | set(scene.client.resets)


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_flood_ends_the_connection_with_its_limit_in_answer_and_log(
    trusted: bool,
    scene: Scene,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if trusted:
        await scene.initialize()
        await scene.open_stream()
    for _ in range(3 * BUDGET):
        scene.client.h2.ping(bytes(8))
    await scene.client.flush()
    await scene.client.receive_all()
    assert scene.client.goaway is not None
    assert scene.client.goaway[0] == ENHANCE_YOUR_CALM
    assert f"too many PING frames: {BUDGET}" in scene.client.goaway[1]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"refused: HTTP/2: too many PING frames: {BUDGET}" in line
    assert scene.limiter.refusals.counts["protocol"] == 1
    await scene.client.stream.aclose()
    while scene.pending:
        await trio.lowlevel.checkpoint()
    assert scene.limiter._refused == {}


async def test_a_connection_that_gives_way_to_others_is_told(scene: Scene) -> None:
    assert (await scene.ask("GET", "/healthz")).status == 200
    scene.limiter.evict_one()
    await scene.client.receive_all()
    assert scene.client.goaway == (0, "")


async def test_a_gateway_that_stops_tells_its_clients(
    gateway: Gateway, section: ListenSection, certificate: Path
) -> None:
    async with opened(gateway, section, certificate) as scene:
        await scene.initialize()
        number = await scene.open_stream()
    await scene.client.receive_all()
    assert (scene.client.goaway, number in scene.client.ended) == ((0, ""), False)
    await scene.client.stream.aclose()
