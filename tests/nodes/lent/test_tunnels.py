"""Tunnels through a door to the gateway of a node: what the door sees, what it can spoil, and who may open one."""

import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.client.control import request
from acp_gateway.client.dialing import Destination, Resume, Via, dial, dial_link
from acp_gateway.client.reaching.tunnelling import open_tunnel
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Forbidden, GatewayError, ProtocolError, TrustError, UnknownAgent, Unreachable
from acp_gateway.nodes.lent import tunnels
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.security.certificates import read_certificate
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import ByteStream
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.machines import SIZE, front_config, node_config, save_token
from tests.kit.serving import secure, serving


class SeenBytes(ByteStream):
    """A connection of the door to a node; all that passes is kept, and may be changed."""

    def __init__(self, below: ByteStream, seen: list[bytes], change: Callable[[bytes], bytes]) -> None:
        self._below = below
        self._seen = seen
        self._change = change

    async def receive_some(self) -> bytes:
        data = self._change(await self._below.receive_some())
        self._seen.append(data)
        return data

    def send_nowait(self, data: memoryview) -> int:
        sent = self._below.send_nowait(data)
        self._seen.append(bytes(data[:sent]))
        return sent

    async def send_some(self, data: memoryview) -> int:
        sent = await self._below.send_some(data)
        self._seen.append(bytes(data[:sent]))
        return sent

    async def send_eof(self) -> None:
        await self._below.send_eof()

    async def aclose(self) -> None:
        await self._below.aclose()


@dataclass
class Place:
    """A node, its door, and what the door has seen."""

    folder: Path
    node: str
    door: str
    seen: list[bytes] = field(default_factory=list)
    change: Callable[[bytes], bytes] = lambda data: data

    def pin(self, name: str) -> str:
        return read_certificate(self.folder / name / "cert.pem").pin

    def destination(self, **more: Any) -> Destination:
        """The node through the door, by a token that allows the tunnel alone."""
        return replace(
            Destination(
                parse_target(self.node),
                "memory",
                (self.folder / "gpu2" / "node.token").read_text(),
                self.pin("gpu2"),
                None,
                SIZE,
                via=Via(self.at_door(), "gpu2", open_tunnel),
            ),
            **more,
        )

    def at_door(self, token: Path | None = None, **more: Any) -> Destination:
        """The door itself."""
        text = (token or self.folder / "door" / "tunnel").read_text()
        return replace(Destination(parse_target(self.door), None, text, self.pin("door"), None, SIZE), **more)

    def through(self, **more: Any) -> Destination:
        """The node through the door, by another way to ask the door."""
        door = self.at_door(**{name: more.pop(name) for name in [*more] if name == "token"})
        return self.destination(via=Via(door, more.pop("name", "gpu2"), open_tunnel), **more)

    async def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "door" / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    """A node `gpu2` with an agent, and a door that has a section for it."""
    async with running(tmp_path, monkeypatch) as place:
        yield place


@asynccontextmanager
async def running(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, sections: dict[str, str] | None = None
) -> AsyncIterator[Place]:
    for name in ("gpu2", "door"):
        (folder / name).mkdir()
    save_token(folder / "door", "tunnel", role="tunnel", nodes=["gpu2"])
    at_node = secure(folder / "gpu2", "wss://127.0.0.1:0")
    async with serving(replace(node_config(folder / "gpu2"), listen=at_node.listen)) as (node,):
        urls = {"gpu2": node, **(sections or {})}
        nodes = {
            name: NodeSection(
                url=parse_target(url),
                token_file=folder / "gpu2" / "node.token",
                pin=read_certificate(folder / "gpu2" / "cert.pem").pin if url.startswith("wss") else None,
            )
            for name, url in urls.items()
        }
        listen = secure(folder / "door", "wss://127.0.0.1:0").listen
        async with serving(replace(front_config(folder / "door", nodes), listen=listen)) as (door,):
            place = Place(folder, node, door)
            open_way = tunnels.open_way

            async def watched(section: NodeSection) -> ByteStream:
                return SeenBytes(await open_way(section), place.seen, lambda data: place.change(data))

            monkeypatch.setattr(tunnels, "open_way", watched)
            yield place


class Dialog:
    """A client's requests, one after another."""

    def __init__(self, stream: MaintainedStream) -> None:
        self._stream = stream
        self._ids = 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._ids += 1
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        await self._stream.send(json.dumps(message).encode())
        while True:
            reply = json.loads(await self._stream.receive())
            if reply.get("id") == self._ids and "method" not in reply:
                result: dict[str, Any] = reply["result"]
                return result

    async def open(self) -> str:
        await self.ask("initialize", protocolVersion=1)
        return str((await self.ask("session/new", cwd="/", mcpServers=[]))["sessionId"])

    async def say(self, session: str, text: str) -> str:
        prompt = [{"type": "text", "text": text}]
        return str((await self.ask("session/prompt", sessionId=session, prompt=prompt))["stopReason"])


SECRET = "no door may read this sentence"


async def test_a_door_that_records_all_has_no_line_of_the_conversation_and_no_token_of_the_node(place: Place) -> None:
    stream = await dial(place.destination(), Timing())
    dialog = Dialog(stream)
    assert await dialog.say(await dialog.open(), SECRET) == "end_turn"
    await stream.aclose()
    seen = b"".join(place.seen)
    token = (place.folder / "gpu2" / "node.token").read_bytes().strip()
    assert len(seen) > 2000
    for secret in (SECRET.encode(), token, hashlib.sha256(token).hexdigest().encode(), b"session/prompt", b"jsonrpc"):
        assert secret not in seen
    # Nor has it any of that in its files.
    for path in (place.folder / "door").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()
    opened = [entry for entry in await place.audit() if entry["event"] == "tunnel_opened"]
    assert [(entry["node"], entry["credential"].partition(" ")[0]) for entry in opened] == [("gpu2", "token")]


async def test_a_link_is_resumed_over_another_tunnel(place: Place) -> None:
    destination = place.destination()
    first = await dial_link(destination, Timing(), Resume())
    await first.aclose()
    second = await dial_link(destination, Timing(), Resume(first.connection_id, 0))
    assert second.connection_id == first.connection_id
    await second.aclose()


async def test_a_door_that_leads_elsewhere_is_refused_before_the_token_is_sent(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "false").mkdir()
    listen = secure(tmp_path / "false", "wss://127.0.0.1:0").listen
    async with serving(replace(node_config(tmp_path / "false"), listen=listen)) as (false,):

        async def open_false(section: NodeSection) -> ByteStream:
            return await connect_tcp("127.0.0.1", parse_target(false).port, None)

        monkeypatch.setattr(tunnels, "open_way", open_false)
        with pytest.raises(TrustError, match=r"gpu2 through 127.0.0.1 .* the door may have answered in its place"):
            await dial(place.destination(), Timing())
    assert not (tmp_path / "false" / "audit.jsonl").exists()


async def test_a_door_that_is_lost_before_its_proof_is_one_that_can_not_be_reached(place: Place) -> None:
    async def leave(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, leave, 0, host="127.0.0.1"))
        door = replace(place.at_door(), address=parse_target(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}"))
        with pytest.raises(Unreachable, match="ws://127"):
            await dial(place.destination(via=Via(door, "gpu2", open_tunnel)), Timing())
        nursery.cancel_scope.cancel()


async def test_without_a_pin_the_certificate_of_the_node_itself_has_to_be_trusted(place: Place) -> None:
    await (await dial(place.destination(pin=None, ca=place.folder / "gpu2" / "cert.pem"), Timing())).aclose()
    with pytest.raises(TrustError, match=r"certificate of gpu2 through 127.0.0.1 .* is not trusted"):
        await dial(place.destination(pin=None, ca=place.folder / "door" / "cert.pem"), Timing())


@pytest.mark.parametrize("number", [0, 1])
async def test_a_byte_that_the_door_changes_in_the_handshake_is_refused(place: Place, number: int) -> None:
    pieces = 0

    def change(data: bytes) -> bytes:
        nonlocal pieces
        pieces += 1
        return data if pieces - 1 != number or not data else data[:-1] + bytes([data[-1] ^ 1])

    place.change = change
    with pytest.raises((Unreachable, ProtocolError), match=r"gpu2 through|wss://"):
        await dial(place.destination(), Timing())


async def test_a_byte_that_the_door_changes_later_ends_the_connection_with_the_cause(place: Place) -> None:
    stream = await dial(place.destination(), Timing())
    dialog = Dialog(stream)
    session = await dialog.open()
    place.change = lambda data: data[:-1] + bytes([data[-1] ^ 1]) if data else data
    with pytest.raises(trio.BrokenResourceError, match="changed on the way"):
        await dialog.say(session, "hello")
    await stream.abort()


# Who may open one


async def test_a_token_for_tunnels_allows_nothing_else_at_the_door(place: Place) -> None:
    for asked in ({}, {"control": True}, {"agent": "gpu2/memory"}, {"observe": True}):
        with pytest.raises(Forbidden, match="for tunnels to nodes and nothing else"):
            await dial(place.at_door(**asked), Timing())
    for path in ("/ws", "/chat", "/metrics", "/nodes/gpu2", "/nodes/gpu2/acp"):
        address = replace(parse_target(place.door), path=path)
        with pytest.raises(GatewayError, match=r"nothing else|but not at"):
            await dial(place.at_door(address=address), Timing())
    with pytest.raises(Forbidden, match="for tunnels to nodes and nothing else"):
        await dial_link(place.at_door(), Timing(), Resume("x" * 22, 0))


@pytest.mark.parametrize(
    "limits",
    [
        {"role": "tunnel", "nodes": ["gpu1"]},
        {"role": "observer"},
        {"agents": ["gpu2/memory"]},
        {"workspaces": ["everything"]},
        {"session": "gpu2/1"},
        {"role": "metrics"},
    ],
    ids=lambda limits: "-".join(limits),
)
async def test_a_tunnel_needs_a_token_for_the_node_or_one_without_limits(place: Place, limits: dict[str, Any]) -> None:
    token = save_token(place.folder / "door", "other", **limits)
    with pytest.raises(Forbidden, match="a tunnel to gpu2 needs a token"):
        await dial(place.through(token=token), Timing())


async def test_a_token_of_the_door_without_limits_opens_tunnels(place: Place) -> None:
    await (await dial(place.through(token=save_token(place.folder / "door", "other")), Timing())).aclose()


async def test_the_token_of_the_node_is_needed_inside(place: Place) -> None:
    with pytest.raises(GatewayError, match="no valid token"):
        await dial(place.destination(token=(place.folder / "door" / "tunnel").read_text()), Timing())


async def test_a_tunnel_ends_within_a_second_when_its_token_is_revoked(place: Place) -> None:
    stream = await dial(place.destination(), Timing())
    store = TokenStore(place.folder / "door")
    (token,) = store.tokens()
    store.revoke(token.id)
    with pytest.raises(trio.BrokenResourceError, match="the token is not valid any more"):
        await stream.receive()
    await stream.abort()


async def test_unknown_nodes_and_those_without_tls_have_no_tunnel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(
        tmp_path, monkeypatch, sections={"plain": "ws://127.0.0.1:1", "away": "wss://127.0.0.1:1"}
    ) as place:
        token = save_token(tmp_path / "door", "other")
        with pytest.raises(UnknownAgent, match="no node gpu9"):
            await dial(place.through(token=token, name="gpu9"), Timing())
        with pytest.raises(Forbidden, match="the node plain has no TLS"):
            await dial(place.through(token=token, name="plain"), Timing())
        with pytest.raises(Unreachable, match="the node away can't be reached from here"):
            await dial(place.through(token=token, name="away"), Timing())


async def test_commands_that_ask_the_gateway_go_through_the_tunnel_too(place: Place) -> None:
    rights = await request(place.destination(control=True, agent=None), ACCESS, {}, time_limit=30)
    assert list(rights["agents"]) == ["memory"]


async def test_a_page_of_another_origin_can_not_open_a_tunnel(place: Place) -> None:
    context = ssl.create_default_context(cafile=str(place.folder / "door" / "cert.pem"))
    address = parse_target(place.door)
    stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", address.port, ssl_context=context)
    token = (place.folder / "door" / "tunnel").read_text().strip()
    await stream.send_all(
        f"GET /nodes/gpu2/tunnel HTTP/1.1\r\nHost: 127.0.0.1:{address.port}\r\nOrigin: https://evil.example\r\n"
        f"Authorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode()
    )
    assert b" 403 " in await stream.receive_some()
    await trio.aclose_forcefully(stream)
