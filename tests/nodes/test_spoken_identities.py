"""Identities across nodes: for whom a gateway may speak, and what it then shows to whom."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.control import list_sessions, request
from acp_gateway.client.dialing import Resume, dial_link
from acp_gateway.errors import Forbidden, LinkGone, UnknownSession
from acp_gateway.gateway.events.audit import read_audit
from acp_gateway.protocol.methods import ACCESS, OPEN
from acp_gateway.protocol.on_behalf import FOR, REQUEST, OnBehalf, write_claim
from acp_gateway.security.token_store import TokenStore, default_identity
from acp_gateway.transports.websocket.stream import PASSED, Timing
from tests.kit.doubles import Editor
from tests.kit.machines import control, front_config, node_config, node_section, port_of, save_token, until_agents
from tests.kit.serving import serving
from tests.nodes.test_node_watcher import editor_at, hurried, new_session, prompted

__all__ = ["hurried"]

WAY = (PASSED, "0123456789abcdef")


def claim(identity: str = "alice", **more: Any) -> tuple[str, str]:
    """The header of a gateway that acts for an identity."""
    return FOR, write_claim(OnBehalf(identity, more.get("role", "controller"), more.get("agents", ("memory",))))


class Machines:
    """A node, and a front that may speak for some identities there."""

    def __init__(self, folder: Path, node: str, front: str, own: str) -> None:
        self.folder = folder
        self.node = node
        self.front = front
        self.own = own

    async def at_front(self, identity: str, agent: str | None = "gpu1/memory", **more: Any) -> Editor:
        """An editor of an identity at the front."""
        return await editor_at(self.front, agent, self.token("front", identity), **more)

    async def at_node(self, identity: str, **more: Any) -> Editor:
        """An editor of an identity at the node itself."""
        return await editor_at(self.node, None if "session" in more else "memory", self.token("gpu1", identity), **more)

    def token(self, machine: str, identity: str) -> Path:
        """A token of an identity."""
        path = self.folder / machine / f"{identity}.token"
        return path if path.exists() else save_token(self.folder / machine, path.name, identity)

    async def owners(self, url: str, token: Path | None) -> dict[str, str]:
        """The sessions that a token is told, and the owner of each."""
        listing = await list_sessions(control(url, token), time_limit=30)
        return {it["sessionId"]: it["owner"] for it in listing.sessions}

    async def told(self, identity: str) -> dict[str, str]:
        """The sessions that an identity is told at the front."""
        return await self.owners(self.front, self.token("front", identity))

    def audit(self, machine: str, event: str) -> list[dict[str, Any]]:
        """The entries of an event."""
        return [it for it in read_audit(self.folder / machine / "audit.jsonl") if it["event"] == event]


@asynccontextmanager
async def machines(folder: Path, *may_speak_for: str) -> AsyncIterator[Machines]:
    """A node and a front; the front's token is that of the identity `speaker`."""
    config = node_config(folder / "gpu1")
    store = TokenStore(folder / "gpu1")
    store.revoke(store.tokens()[0].id)
    save_token(folder / "gpu1", "node.token", "door", may_speak_for=may_speak_for)
    async with serving(config) as (url,):
        config = front_config(folder / "front", {"gpu1": node_section(folder / "gpu1", url)})
        async with serving(config) as (own, websocket):
            await until_agents(own, "gpu1/memory")
            yield Machines(folder, url, websocket, own)


async def close(*editors: Editor) -> None:
    for editor in editors:
        await editor.stream.aclose()


async def test_identities_that_are_spoken_for_have_their_own_sessions_at_the_node(tmp_path: Path) -> None:
    async with machines(tmp_path, "alice", "bob") as all_of_them:
        editors = {name: await all_of_them.at_front(name) for name in ("alice", "bob", "carol")}
        ids = {name: await new_session(editor) for name, editor in editors.items()}
        for name in ("alice", "bob"):
            assert await all_of_them.owners(all_of_them.node, all_of_them.token("gpu1", name)) == {ids[name]: name}
            assert await all_of_them.told(name) == {f"gpu1/{ids[name]}": name}
        # The node's token says nothing of this one.
        assert await all_of_them.owners(all_of_them.node, all_of_them.token("gpu1", "carol")) == {}
        # A token is told no sessions of those whom it may speak for.
        assert await all_of_them.owners(all_of_them.node, all_of_them.folder / "gpu1" / "node.token") == {}
        assert await all_of_them.told("carol") == {f"gpu1/{ids['carol']}": "carol"}
        await close(*editors.values())


async def test_a_session_that_was_opened_at_the_node_is_listed_and_joined_by_its_own_identity_alone(
    tmp_path: Path, hurried: None
) -> None:
    async with machines(tmp_path, "*") as all_of_them:
        direct = await all_of_them.at_node("alice")
        session = await new_session(direct)
        while f"gpu1/{session}" not in await all_of_them.told("alice"):
            await trio.lowlevel.checkpoint()
        assert await all_of_them.told("bob") == {}
        # The own user of the front is another identity.
        assert await all_of_them.owners(all_of_them.own, None) == {}
        for stranger in ("bob", default_identity(tmp_path / "front")):
            with pytest.raises(UnknownSession):
                await all_of_them.at_front(stranger, None, session=f"gpu1/{session}")
        joined = await all_of_them.at_front("alice", None, session=f"gpu1/{session}")
        await joined.initialize()
        assert "error" not in await joined.request("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
        assert await prompted(joined, session, "through the front") == ["through the front"]
        # Its id alone is of no use to another identity.
        other = await all_of_them.at_front("bob")
        await other.initialize()
        assert "error" in await other.request("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
        await close(direct, joined, other)


async def test_a_guest_of_a_session_of_a_node_sees_that_session_alone(tmp_path: Path, hurried: None) -> None:
    async with machines(tmp_path, "*") as all_of_them:
        alice = await all_of_them.at_front("alice")
        shared, private = await new_session(alice), (await alice.request("session/new", {"cwd": "/", "mcpServers": []}))
        assert "error" not in private
        guest = tmp_path / "front" / "guest"
        guest.touch(0o600)
        guest.write_text(
            TokenStore(tmp_path / "front").create_guest(f"gpu1/{shared}", role="controller", lifetime=None)[1]
        )
        editor = await editor_at(all_of_them.front, None, guest, session=f"gpu1/{shared}")
        assert await all_of_them.owners(all_of_them.front, guest) == {f"gpu1/{shared}": "alice"}
        with pytest.raises(UnknownSession):
            await editor_at(all_of_them.front, None, guest, session=f"gpu1/{private['result']['sessionId']}")
        await close(alice, editor)


async def test_one_request_id_is_in_the_audits_of_both_gateways_with_the_token_and_the_identity(tmp_path: Path) -> None:
    async with machines(tmp_path, "alice") as all_of_them:
        editors = [await all_of_them.at_front(name) for name in ("alice", "carol")]
        for editor in editors:
            await new_session(editor)
        token = TokenStore(tmp_path / "gpu1").tokens()[0].id
        links = {it["identity"]: it for it in all_of_them.audit("front", "node_link")}
        attached = {it["request"]: it for it in all_of_them.audit("gpu1", "attached")}
        assert {(it["node"], it["path"]) for it in links.values()} == {("gpu1", "/acp")}
        there = {name: attached[it["request"]] for name, it in links.items()}
        assert (there["alice"]["identity"], there["alice"]["credential"]) == ("alice", f"token {token} for alice")
        assert (there["carol"]["identity"], there["carol"]["credential"]) == (
            "door/carol",
            f"token {token} for door/carol",
        )
        # A client's own connection has none.
        assert all("request" not in it for it in all_of_them.audit("front", "attached"))
        await close(*editors)


async def test_revoking_the_token_of_the_front_ends_all_of_its_connections(tmp_path: Path, hurried: None) -> None:
    async with machines(tmp_path, "*") as all_of_them:
        editors = [await all_of_them.at_front(name) for name in ("alice", "bob")]
        for editor in editors:
            await new_session(editor)
        direct = await all_of_them.at_node("alice")
        store = TokenStore(tmp_path / "gpu1")
        store.revoke(store.tokens()[0].id)
        while len(all_of_them.audit("gpu1", "detached")) < len(editors):
            await trio.lowlevel.checkpoint()
        ended = all_of_them.audit("gpu1", "detached")
        assert sorted((it["identity"], it["why"]) for it in ended) == [
            (name, "the token is not valid any more") for name in ("alice", "bob")
        ]
        assert "agentCapabilities" in await direct.initialize()
        await close(direct, *editors)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[tuple[str, Path, Path]]:
    """A node, an ordinary token of alice's, and one that may speak for her."""
    config = node_config(tmp_path)
    ordinary = save_token(tmp_path, "ordinary", "bob")
    speaker = save_token(tmp_path, "door", "door", may_speak_for=["alice"])
    async with serving(config) as (url,):
        yield url, ordinary, speaker


async def test_a_forged_claim_of_an_ordinary_token_is_refused(node: tuple[str, Path, Path]) -> None:
    url, ordinary, speaker = node
    for token, identity in ((ordinary, "alice"), (ordinary, "bob"), (speaker, "bob"), (speaker, "door")):
        with pytest.raises(Forbidden, match="may not speak for that identity"):
            await editor_at(url, "memory", token, origin=(WAY, claim(identity)))
    editor = await editor_at(url, "memory", speaker, origin=(WAY, claim()))
    assert "agentCapabilities" in await editor.initialize()
    await close(editor)


async def test_a_claim_narrows_agents_and_never_widens_them(node: tuple[str, Path, Path]) -> None:
    url, _, speaker = node
    with pytest.raises(Forbidden, match="does not allow the agent memory"):
        await editor_at(url, "memory", speaker, origin=(WAY, claim(agents=("other",))))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ((claim(),), "are for connections through a gateway"),
        (((REQUEST, "a1"),), "are for connections through a gateway"),
        ((WAY, (FOR, "x")), "is not understood"),
        ((WAY, (FOR, "")), "is not understood"),
        ((WAY, (FOR, "A" * 5000)), "is not understood"),
        ((WAY, claim(), claim()), "more than one"),
        ((WAY, claim("bob"), claim()), "more than one"),
        ((WAY, (REQUEST, "a"), (REQUEST, "b")), "more than one"),
        ((WAY, (REQUEST, "a b")), "at most 64 letters"),
        ((WAY, (REQUEST, "a" * 65)), "at most 64 letters"),
        ((WAY, (REQUEST, "")), "at most 64 letters"),
        ((WAY, WAY), "must be ids of gateways"),
        (((PASSED, ",".join(["0123456789abcdef"] * 40)),), "must be ids of gateways"),
        (((PASSED, "0123456789ABCDEF"),), "must be ids of gateways"),
        (((PASSED, ""),), "must be ids of gateways"),
    ],
)
async def test_forged_headers_of_gateways_are_refused_in_one_line(
    headers: tuple[tuple[str, str], ...], why: str, node: tuple[str, Path, Path]
) -> None:
    url, _, speaker = node
    head, _, body = (await upgrade(url, speaker, headers)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert why in body.decode()
    assert body.count(b"\n") <= 1


async def upgrade(url: str, token: Path, headers: tuple[tuple[str, str], ...], target: str = "/acp") -> bytes:
    """Ask for a WebSocket with these headers, also repeated ones, and return the whole answer."""
    secret = await trio.Path(token).read_text()
    fields = [
        *(("Host", "localhost"), ("Upgrade", "websocket"), ("Connection", "Upgrade")),
        *(("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")),
        *(("Authorization", f"Bearer {secret}"), *headers),
    ]
    text = f"GET {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(url))
    async with stream:
        await stream.send_all(text.encode())
        reply = b""
        while data := await stream.receive_some():
            reply += data
    return reply


async def test_a_control_connection_is_the_identitys_as_well(node: tuple[str, Path, Path]) -> None:
    url, _, speaker = node
    rights = await request(control(url, speaker, origin=(WAY, claim())), ACCESS, {}, time_limit=30)
    assert (rights["identity"], rights["role"], [*rights["agents"]]) == ("alice", "controller", ["memory"])
    with pytest.raises(Forbidden, match="sign in at the gateway"):
        await request(control(url, speaker, origin=(WAY, claim())), OPEN, {}, time_limit=30)


@pytest.mark.parametrize("member", [FOR, "for", "identity", "passed", "speaksFor"])
async def test_a_first_line_has_no_place_for_a_claim(member: str, tmp_path: Path) -> None:
    config = front_config(tmp_path / "front", {})
    node = node_config(tmp_path / "front")
    async with serving(type(config)(**{**vars_of(config), "agents": node.agents})) as (at, _):
        stream = await trio.open_unix_socket(at.removeprefix("unix://"))
        async with stream:
            hello = {"jsonrpc": "2.0", "id": 0, "method": "_acp-gateway/hello", "params": {member: "alice"}}
            await stream.send_all(json.dumps(hello).encode() + b"\n")
            answer = json.loads(await stream.receive_some())
    assert "has a member that is not known here" in answer["error"]["message"]


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


async def test_a_link_is_resumed_only_for_the_identity_that_it_was_opened_for(
    node: tuple[str, Path, Path], tmp_path: Path
) -> None:
    url, _, _ = node
    speaker = save_token(tmp_path, "both", "door", may_speak_for=["alice", "bob"])

    async def dial(resume: Resume, *headers: tuple[str, str]) -> Any:
        return await dial_link(control(url, speaker, control=False, origin=headers), Timing(), resume)

    first = await dial(Resume(), WAY, claim())
    again = Resume(first.connection_id, 0)
    for headers in ((), (WAY,), (WAY, claim("bob"))):
        with pytest.raises(LinkGone):
            await dial(again, *headers)
    with pytest.raises(LinkGone):
        await dial(again, WAY, claim(role="observer"))
    await first.stream.aclose()
    first = await dial(Resume(), WAY, claim())
    second = await dial(Resume(first.connection_id, 0), WAY, claim())
    assert second.received == 0
    for dialed in (first, second):
        await dialed.stream.aclose()
