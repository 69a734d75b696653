"""Agents that listen: on TCP, at a unix socket, behind WebSocket, and behind another gateway."""

import contextlib
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.config.load import AgentSection, GatewaySection
from acp_gateway.errors import ConfigError, TrustError, Unreachable
from acp_gateway.gateway.events.audit import read_audit
from acp_gateway.gateway.hub import agent_supervisor
from acp_gateway.security.certificates import CreatedCertificate, create_certificate
from acp_gateway.security.tls import server_context
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server import agent_dialer
from acp_gateway.server import serve as serve_module
from acp_gateway.server.agent_dialer import connect_to_agent
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import SocketBytes
from acp_gateway.transports.streams import TrioBytes
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.accepting import Accept, accept_websocket
from tests.kit.authority import Authority
from tests.kit.doubles import TIMEOUT, make_config
from tests.kit.foreign_http import sdk_server
from tests.kit.serving import serving
from tests.server.test_serve import connect_lines

DEMO_AGENT = (sys.executable, str(Path(__file__).parents[2] / "examples/demo_agent.py"))
WS = "ws://127.0.0.1:0"


class LineAgent:
    """An agent that serves connections with messages in lines; one that was stopped can listen again."""

    def __init__(self) -> None:
        self.received: list[list[Any]] = []
        """Messages that came, by connection."""
        self.streams: list[MaintainedStream] = []

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection until its end."""
        await self.take_messages(LineStream(TrioBytes(stream), max_message_size=1 << 20))

    async def take_messages(self, stream: MaintainedStream) -> None:
        """Answer each message."""
        messages: list[Any] = []
        self.received.append(messages)
        self.streams.append(stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            try:
                async for batch in stream:
                    for text in batch:
                        messages.append(json.loads(text))
                        if b'"close"' in text:
                            await stream.aclose()
                        elif "id" in messages[-1]:
                            await stream.send(self._answer(messages[-1]))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                pass
            await stream.aclose()
            nursery.cancel_scope.cancel()

    def _answer(self, message: Any) -> bytes:
        results: dict[str, Any] = {
            "initialize": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}},
            "session/new": {"sessionId": "s1"},
            "session/load": {},
            "session/prompt": {"stopReason": "end_turn"},
        }
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}).encode()

    async def lose(self) -> None:
        """Close the last connection."""
        await self.streams[-1].aclose()

    def methods(self, connection: int) -> list[str]:
        """Return the methods of what a connection has brought."""
        return [message["method"] for message in self.received[connection]]


class WebSocketAgent(LineAgent):
    """The same behind the protocol's WebSocket profile, of a server that is not a gateway."""

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve a connection until its end."""
        assert isinstance(stream, trio.SocketStream)
        plain = socket.socket(fileno=stream.socket.detach())
        websocket = await accept_websocket(SocketBytes(plain), lambda _: Accept(), timing=Timing())
        assert websocket is not None
        await self.take_messages(websocket)


@asynccontextmanager
async def listening(agent: LineAgent, listeners: list[trio.SocketListener]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, agent.serve, listeners)
        yield
        nursery.cancel_scope.cancel()


async def at_tcp(_: Path) -> tuple[str, list[trio.SocketListener]]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return f"tcp://127.0.0.1:{listeners[0].socket.getsockname()[1]}", list(listeners)


async def at_unix(folder: Path) -> tuple[str, list[trio.SocketListener]]:
    path = folder / "agent"
    path.unlink(missing_ok=True)
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(str(path))
    sock.listen()
    return f"unix://{path}", [trio.SocketListener(sock)]


async def at_websocket(folder: Path) -> tuple[str, list[trio.SocketListener]]:
    url, listeners = await at_tcp(folder)
    return f"{url.replace('tcp', 'ws')}/acp", listeners


Place = Callable[[Path], Any]
PLACES = pytest.mark.parametrize(
    ("place", "kind"),
    [(at_tcp, LineAgent), (at_unix, LineAgent), (at_websocket, WebSocketAgent)],
    ids=["tcp", "unix", "websocket"],
)


@pytest.fixture
def front(tmp_path: Path) -> Path:
    """The folder of the gateway that editors use."""
    folder = tmp_path / "front"
    folder.mkdir()
    return folder


def front_config(folder: Path, url: str, **agent: Any) -> Any:
    return make_config(folder, f"unix://{folder}/socket", agents={"far": AgentSection(url=url, **agent)})


def audited(folder: Path) -> list[dict[str, Any]]:
    names = ("agent_started", "agent_ended", "agent_not_started")
    return [entry for entry in read_audit(folder / "audit.jsonl") if entry["event"] in names]


@PLACES
async def test_an_agent_that_listens_gets_messages_without_a_hello(
    place: Place, kind: type[LineAgent], front: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url, listeners = await place(front)
    agent = kind()
    async with listening(agent, listeners), serving(front_config(front, url)) as (at,):
        editor = await connect_lines(at)
        assert (await editor.initialize())["protocolVersion"] == 1
        assert (await editor.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"] == "s1"
        prompt = {"sessionId": "s1", "prompt": [{"type": "text", "text": "hello"}]}
        assert (await editor.request("session/prompt", prompt))["result"] == {"stopReason": "end_turn"}
        await editor.stream.aclose()
    assert agent.methods(0) == ["initialize", "session/new", "session/prompt"]
    started, ended = audited(front)
    assert (started["url"], ended["how"]) == (url, "stopped")
    assert ended["url"] == url
    assert "pid" not in started | ended
    assert f"agent far is connected at {url}" in caplog.messages
    assert "the connection to the agent far has ended" in caplog.messages


@PLACES
async def test_an_agent_whose_connection_was_lost_is_connected_again_and_its_session_opened(
    place: Place, kind: type[LineAgent], front: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_supervisor.RestartBackoff, "next_start", lambda _, now: now)
    url, listeners = await place(front)
    agent = kind()
    async with listening(agent, listeners), serving(front_config(front, url)) as (at,):
        editor = await connect_lines(at)
        await editor.initialize()
        await editor.request("session/new", {"cwd": "/", "mcpServers": []})
        prompt = {"sessionId": "s1", "prompt": [{"type": "text", "text": "close"}]}
        error = (await editor.request("session/prompt", prompt))["error"]
        assert error["data"] == {"reason": "agent_ended", "agent": "far"}
        prompt = {"sessionId": "s1", "prompt": [{"type": "text", "text": "hello"}]}
        assert (await editor.request("session/prompt", prompt))["result"] == {"stopReason": "end_turn"}
        await editor.stream.aclose()
    assert agent.methods(1) == ["initialize", "session/load", "session/prompt"]
    assert [entry.get("how") for entry in audited(front)] == [None, "exited", None, "stopped"]


async def test_a_lost_agent_ends_the_connection_that_it_belongs_to_alone(front: Path) -> None:
    url, listeners = await at_tcp(front)
    agent = LineAgent()
    async with listening(agent, listeners), serving(front_config(front, url, scope="connection")) as (at,):
        editor = await connect_lines(at)
        await editor.initialize()
        await agent.lose()
        await editor.leave()


async def test_an_agent_that_is_not_there_yet_is_tried_again(
    front: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(agent_supervisor, "FIRST_PAUSE", 0.001)
    agent = LineAgent()
    url, listeners = await at_unix(front)
    attempts = 0

    async def connect(
        name: str, section: AgentSection, settings: GatewaySection, *more: Any, **names: Any
    ) -> MaintainedStream:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise Unreachable("not yet")
        return await connect_to_agent(name, section, settings, *more, **names)

    monkeypatch.setattr(serve_module, "connect_to_agent", connect)
    async with listening(agent, listeners), serving(front_config(front, url, connect_timeout=TIMEOUT)) as (at,):
        editor = await connect_lines(at)
        await editor.initialize()
        await editor.stream.aclose()
    pauses = [message.rpartition(" in ")[2] for message in caplog.messages if "the next attempt follows" in message]
    assert pauses == ["0.001 s", "0.002 s", "0.004 s"]
    assert [entry["event"] for entry in audited(front)] == ["agent_started", "agent_ended"]


async def test_an_agent_that_does_not_come_is_an_error_after_connect_timeout(
    front: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_supervisor, "FIRST_PAUSE", 0.001)
    async with serving(front_config(front, f"unix://{front}/agent", connect_timeout=0.01)) as (at,):
        editor = await connect_lines(at)
        error = (await editor.request("initialize", {"protocolVersion": 1}))["error"]
        assert error["data"]["reason"] == "agent_not_started"
        assert "cannot be reached" in error["message"]
        await editor.stream.aclose()
    assert [entry["event"] for entry in audited(front)] == ["agent_not_started"]


async def test_an_agent_without_websocket_is_reached_by_streamable_http(front: Path) -> None:
    with sdk_server() as (_, port):
        url = f"http://127.0.0.1:{port}/acp"
        async with serving(front_config(front, url)) as (at,):
            editor = await connect_lines(at)
            await editor.initialize()
            assert "sessionId" in (await editor.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]
            await editor.stream.aclose()
    assert [entry["event"] for entry in audited(front)] == ["agent_started", "agent_ended"]


@pytest.mark.slow
async def test_an_agent_over_streamable_http_is_lost_and_back(front: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_supervisor.RestartBackoff, "next_start", lambda _, now: now)
    with contextlib.ExitStack() as servers:
        process, port = servers.enter_context(sdk_server())
        url = f"http://127.0.0.1:{port}/acp"
        async with serving(front_config(front, url, connect_timeout=TIMEOUT)) as (at,):
            editor = await connect_lines(at)
            await editor.initialize()
            params = {"cwd": "/", "mcpServers": []}
            session = (await editor.request("session/new", params))["result"]["sessionId"]
            process.kill()
            while [entry["event"] for entry in audited(front)] != ["agent_started", "agent_ended"]:
                await trio.lowlevel.checkpoint()
            again, _ = servers.enter_context(sdk_server(port))
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "stream 1"}]}
            # The server itself accepts no prompt in a session that was loaded.
            error = (await editor.request("session/prompt", prompt))["error"]["message"]
            assert error.startswith(f"the server does not know the session {session}: HTTP 404")
            another = (await editor.request("session/new", params))["result"]["sessionId"]
            await editor.send(id="p", method="session/prompt", params=prompt | {"sessionId": another})
            while (message := await editor.receive()).get("id") != "p":
                assert message["method"] == "session/update"
            assert message["result"]["stopReason"] == "end_turn"
            await editor.stream.aclose()
        assert again.stdout is not None
        assert again.stdout.readline() == f"loaded {session}\n"
    assert [entry.get("how") for entry in audited(front)] == [None, "exited", None, "stopped"]


async def test_a_refused_token_is_told_at_once_and_not_tried_again(
    front: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    far = tmp_path / "far"
    TokenStore(far).create("front", None, None)
    token_file = tmp_path / "token"
    token_file.touch(0o600)
    token_file.write_text("of another server")
    async with (
        serving(make_config(far, WS)) as (url,),
        serving(front_config(front, url, token_file=token_file)) as (at,),
    ):
        editor = await connect_lines(at)
        error = (await editor.request("initialize", {"protocolVersion": 1}))["error"]
        assert "cannot be reached" in error["message"]
        assert "of another server" not in error["message"]
        await editor.stream.aclose()
    assert not any("next attempt" in message for message in caplog.messages)


@asynccontextmanager
async def at_tls(folder: Path, agent: LineAgent) -> AsyncIterator[tuple[str, CreatedCertificate]]:
    """An agent that serves lines over TLS."""
    created = create_certificate(["127.0.0.1"], folder)
    context = server_context(folder / "cert.pem", folder / "key.pem", None)
    (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, agent.serve, [trio.SSLListener(plain, context)])
        yield f"tcp+tls://127.0.0.1:{plain.socket.getsockname()[1]}", created
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trust", ["pin", "ca"])
async def test_an_agent_over_tls_is_trusted_by_its_pin_or_an_authority(trust: str, front: Path) -> None:
    agent = LineAgent()
    async with at_tls(front, agent) as (url, created):
        options: dict[str, Any] = {"pin": created.pin} if trust == "pin" else {"ca": front / "cert.pem"}
        async with serving(front_config(front, url, **options)) as (at,):
            editor = await connect_lines(at)
            assert (await editor.initialize())["protocolVersion"] == 1
            await editor.stream.aclose()
    assert agent.methods(0) == ["initialize"]


@pytest.mark.parametrize("scheme", ["wss", "tcp+tls"])
@pytest.mark.parametrize("trust", ["pin", "ca", "no ca"])
async def test_another_certificate_is_an_error_and_the_token_is_not_sent(
    scheme: str, trust: str, front: Path, tmp_path: Path
) -> None:
    other = Authority("another").write(tmp_path / "other.pem")
    choices: dict[str, dict[str, Any]] = {"pin": {"pin": "sha256:" + "0" * 64}, "ca": {"ca": other}, "no ca": {}}
    settings = GatewaySection(state_dir=tmp_path)
    agent = LineAgent()
    async with at_tls(front, agent) as (url, _):
        with pytest.raises(TrustError, match="key" if trust == "pin" else "certificate"):
            await connect_to_agent("far", AgentSection(url=url.replace("tcp+tls", scheme), **choices[trust]), settings)
    assert [messages for messages in agent.received if messages] == []


async def test_a_ca_that_cannot_be_read_is_an_error_that_names_it(front: Path) -> None:
    section = AgentSection(url="wss://127.0.0.1:1", ca=front / "missing.pem")
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        await connect_to_agent("far", section, GatewaySection(state_dir=front))


async def test_an_attempt_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def hang(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(agent_dialer, "open_connection", hang)
    with pytest.raises(Unreachable, match="no answer within 5 s"):
        await connect_to_agent("far", AgentSection(url="tcp://127.0.0.1:1"), GatewaySection(state_dir=tmp_path))
