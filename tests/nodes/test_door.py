"""Requests for `/nodes/NAME/…` at a gateway in front: passed on to the node, with the rights of their sender alone."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h11
import pytest
import trio

from acp_gateway.client import dialing
from acp_gateway.client.control import list_sessions, request, try_rules
from acp_gateway.client.dialing import Dialed, Resume, dial, dial_link
from acp_gateway.client.local import LocalGateway
from acp_gateway.errors import (
    Forbidden,
    GatewayError,
    LinkGone,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
)
from acp_gateway.gateway import control_channel
from acp_gateway.gateway.events.audit import read_audit
from acp_gateway.gateway.session_api.requests import GATEWAY_INFO, PORTS
from acp_gateway.nodes import looks, reaching
from acp_gateway.nodes.copying import links, passage
from acp_gateway.nodes.looks import NodeLooks
from acp_gateway.nodes.reaching import NodeReacher, Reached
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.protocol.on_behalf import FOR, REQUEST, OnBehalf, write_claim
from acp_gateway.rules.rule import CommandPattern, Rule
from acp_gateway.security.rules_file import RulesFile, has_ended
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import MessageStream, TrioBytes
from acp_gateway.transports.websocket.stream import PASSED, Timing, WebSocketStream
from tests.kit.doubles import Editor
from tests.kit.faulty_proxy import QUICK, FaultyProxy
from tests.kit.http_client import EVENTS, INITIALIZE, JSON, NEW, Events, Http, Reply
from tests.kit.machines import (
    SIZE,
    control,
    front_config,
    node_config,
    node_section,
    port_of,
    save_token,
    until_agents,
)
from tests.kit.serving import serving
from tests.kit.wires import memory_wire
from tests.nodes.test_node_watcher import Unmarked, editor_at, hurried, new_session, prompted

__all__ = ["hurried"]

OWN = "own"
"""Stands for the own user of the front."""


class Front:
    """A gateway in front of the node `gpu1`, whose token there is that of the identity `door`."""

    def __init__(self, folder: Path, node: str, url: str, at: str) -> None:
        self.folder = folder
        self.node = node
        self.url = url
        self.at = at
        """Its unix socket."""

    def token(self, identity: str = OWN, **limits: Any) -> Path:
        """A new token at the front."""
        folder = self.folder / "front"
        name = f"{len(list(folder.glob('*.token')))}.token"
        return save_token(folder, name, None if identity == OWN else identity, **limits)

    def at_node(self, identity: str) -> Path:
        """A new token at the node."""
        return save_token(self.folder / "gpu1", f"{identity.replace('/', '-')}.token", identity)

    def destination(self, token: Path, *, node: str = "gpu1", **more: Any) -> Any:
        """The way to the node through the front."""
        url = self.url.removesuffix("/acp")
        return control(f"{url}/nodes/{node}/acp", token, **{"control": False} | more)

    async def editor(self, token: Path, **more: Any) -> Editor:
        """An editor that resumes nothing."""
        return Editor(await dial(self.destination(token, **more), Timing()))

    async def link(self, token: Path, resume: Resume | None = None) -> Dialed:
        """A link to the node."""
        return await dial_link(self.destination(token), Timing(), resume or Resume())

    async def owners(self, url: str, token: Path) -> dict[str, str]:
        """The sessions that a token is told, and the owner of each."""
        listing = await list_sessions(control(url, token), time_limit=30)
        return {it["sessionId"]: it["owner"] for it in listing.sessions}

    async def listed(self, token: Path) -> dict[str, str]:
        """The sessions of the node that a token is told through the front."""
        return await self.owners(self.destination(token).address.__str__(), token)

    def audit(self, machine: str, event: str) -> list[dict[str, Any]]:
        """The entries of an event."""
        return [it for it in read_audit(self.folder / machine / "audit.jsonl") if it["event"] == event]


@asynccontextmanager
async def fronted(
    folder: Path,
    *may_speak_for: str,
    way: Callable[[str], Any] | None = None,
    serves: tuple[Any, ...] | None = None,
    **options: Any,
) -> AsyncIterator[Front]:
    """A node and a front with it, which serve the same; `way` opens what stands between."""
    config = node_config(folder / "gpu1")
    config = replace(config, listen=tuple(replace(it, serves=serves) for it in config.listen))
    store = TokenStore(folder / "gpu1")
    store.revoke(store.tokens()[0].id)
    save_token(folder / "gpu1", "node.token", "door", may_speak_for=may_speak_for)
    async with serving(replace(config, **options)) as (url,):
        front = front_config(folder / "front", {"gpu1": node_section(folder / "gpu1", way(url) if way else url)})
        lines, websocket = front.listen
        async with serving(replace(front, listen=(lines, replace(websocket, serves=serves)))) as (at, reached):
            yield Front(folder, url, reached, at)


async def until_ended(stream: MessageStream) -> None:
    """Read until the stream raises its end."""
    while True:
        await stream.receive()


async def test_an_editor_uses_an_agent_of_a_node_through_its_path(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        editor = await front.editor(front.token())
        assert await prompted(editor, await new_session(editor), "hello") == ["hello"]
        await editor.stream.aclose()


async def test_rules_of_the_node_decide_through_a_front_and_one_written_so_ends_with_the_doors_token(
    tmp_path: Path,
) -> None:
    deny = Rule(id="rules[0]", decision="deny", command=CommandPattern(("rm",), True))
    async with fronted(tmp_path, "alice", rules=(deny,)) as front:
        editor = await front.editor(front.token("alice"))
        session = await new_session(editor)
        said = await prompted(editor, session, "ask rm -r a")
        assert said == ["[acp-gateway: denied by a rule of the configuration (rules[0]: deny `rm …`): rm -r a]", "no"]
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "ask pytest -q"}]}
        await editor.send(id="turn", method="session/prompt", params=prompt)
        while (asked := await editor.receive()).get("method") != "session/request_permission":
            pass
        wanted = {"acp-gateway": {"rule": {"subject": "`pytest …`", "for": "project"}}}
        outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}, "_meta": wanted}
        await editor.send(id=asked["id"], result=outcome)
        texts = ""
        while '"turn"' not in texts or "alice has written a rule" not in texts:
            texts += json.dumps(await editor.receive())
        said = await prompted(editor, session, "ask pytest -x")
        assert ("allowed by a rule of alice (rule-1: " in said[0], said[1:]) == (True, ["yes"])
        (entry,), tokens = front.audit("gpu1", "rule_written"), TokenStore(front.folder / "gpu1")
        (door,), (rule,) = tokens.valid_ids(), RulesFile(front.folder / "gpu1").rules()
        assert (entry["identity"], entry["credential"]) == ("alice", f"token {door}")
        assert entry["says"].startswith("allow `pytest …` (agent memory, ")
        there = front.destination(front.token("alice"), control=True)
        for command, decision, name in (("rm a", "deny", "rules[0]"), ("pytest -x", "allow", "rule-1")):
            tried = await try_rules(there, command, "/", None, time_limit=30)
            assert (tried["decision"], tried["rule"]["id"]) == (decision, name)
        tokens.revoke(door)
        assert has_ended(rule, tokens.valid_ids(), ())
        await editor.stream.aclose()


async def test_a_program_that_dials_by_itself_takes_up_a_session_through_a_door_with_its_cursor(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        token = front.token()
        asks = {"protocolVersion": 1, "clientCapabilities": {"_meta": {"acp-gateway": {"cursors": True}}}}

        async def exchange(editor: Editor, method: str, **params: Any) -> list[tuple[str, str]]:
            """Send a request; return the texts that come before its response, and their cursors."""
            await editor.send(id="asked", method=method, params=params)
            found = []
            while (message := await editor.receive()).get("id") != "asked":
                update = message["params"].get("update", {})
                if update.get("sessionUpdate") == "agent_message_chunk":
                    cursor = message["params"]["_meta"]["acp-gateway"]["cursorId"]
                    found.append((update["content"]["text"], cursor))
            assert "result" in message, message
            return found

        first = await front.editor(token)
        await first.request("initialize", asks)
        opened = await first.request("session/new", {"cwd": "/", "mcpServers": []})
        session = opened["result"]["sessionId"]
        prompt = [{"type": "text", "text": words} for words in ("one", "two", "three")]
        said = await exchange(first, "session/prompt", sessionId=session, prompt=prompt)
        await first.stream.aclose()
        for nth in range(3):
            again = await front.editor(token)
            await again.request("initialize", asks)
            replay = {"acp-gateway": {"replayFrom": {"type": "cursor", "cursorId": said[nth][1]}}}
            missed = await exchange(again, "session/load", sessionId=session, cwd="/", mcpServers=[], _meta=replay)
            assert missed == said[nth + 1 :]
            await again.stream.aclose()


async def test_a_link_through_a_front_is_the_nodes_and_resumes_over_any_way_to_it(tmp_path: Path) -> None:
    async with fronted(tmp_path, "alice") as front:
        token, direct = front.token("alice"), front.at_node("alice")
        first = await front.link(token)
        assert (first.received, first.probes, first.limit is not None, first.part is not None) == (0, True, True, True)
        editor = Unmarked(first.stream)
        await editor.send(id=1, **{key: INITIALIZE[key] for key in ("method", "params")})
        await editor.receive()
        await first.stream.abort()
        second = await front.link(token, Resume(first.connection_id, 1))
        assert (second.connection_id, second.received) == (first.connection_id, 1)
        # The node keeps it for the door's token, and not for another one of the same person.
        with pytest.raises(LinkGone):
            await dial_link(control(front.node, direct, control=False), Timing(), Resume(first.connection_id, 1))
        await second.stream.aclose()


async def test_a_link_is_not_resumed_with_other_rights_of_the_same_person(tmp_path: Path) -> None:
    async with fronted(tmp_path, "alice") as front:
        first = await front.link(front.token("alice"))
        for limits in ({"role": "observer"}, {"agents": ["gpu1/memory"]}):
            with pytest.raises(LinkGone):
                await front.link(front.token("alice", **limits), Resume(first.connection_id, 0))
        second = await front.link(front.token("alice"), Resume(first.connection_id, 0))
        assert second.connection_id == first.connection_id
        for each in (second, first):
            await each.stream.aclose()


async def test_people_are_kept_apart_at_a_node_with_and_without_the_right_to_speak_for_them(tmp_path: Path) -> None:
    async with fronted(tmp_path, "alice") as front:
        tokens = {name: front.token(name) for name in ("alice", "bob", OWN)}
        ids = {}
        for name, token in tokens.items():
            editor = await front.editor(token)
            ids[name] = await new_session(editor)
            await editor.stream.aclose()
        owners = {"alice": "alice", "bob": "door/bob", OWN: "door"}
        for name, token in tokens.items():
            assert await front.listed(token) == {ids[name]: owners[name]}
        assert await front.owners(front.node, front.at_node("alice")) == {ids["alice"]: "alice"}
        # A name with the separator in it leads to another one.
        assert await front.listed(front.token("door/bob")) == {}
        with pytest.raises(UnknownSession):
            await front.editor(tokens["bob"], session=ids["alice"])


async def test_no_claim_leads_below_an_identity_to_one_that_has_a_token_itself(tmp_path: Path) -> None:
    async with fronted(tmp_path, "door/carol") as front:
        # The node knows another bob by the name that the door's would have, and so does it another guest's owner.
        bob, carol = front.at_node("door/bob"), front.at_node("door/carol")
        own = Editor(await dial(control(front.node, bob, control=False), Timing()))
        session = await new_session(own)
        with pytest.raises(Forbidden, match="this identity has a token"):
            await front.editor(front.token("bob"))
        for owner in (None, "bob"):
            claim = OnBehalf("guest-1", "controller", None, "below", session, True, owner)
            said = ((PASSED, 16 * "0"), (FOR, write_claim(claim)))
            to_node = control(front.node, tmp_path / "gpu1" / "node.token", control=False, origin=said)
            with pytest.raises((Forbidden, UnknownSession)):
                await dial(to_node, Timing())
        # For this one the door may speak.
        editor = await front.editor(front.token("door/carol"))
        assert await new_session(editor) in await front.owners(front.node, carol)
        for each in (editor, own):
            await each.stream.aclose()


async def test_roles_and_agents_of_a_token_hold_at_the_node(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        owner = await front.editor(front.token("ann"))
        session = await new_session(owner)
        observer = await front.editor(front.token("ann", role="observer"), session=session)
        await observer.initialize()
        refused = await observer.request("session/prompt", {"sessionId": session, "prompt": []})
        assert "observer" in refused["error"]["message"], refused
        rights = await request(
            front.destination(front.token("ann", agents=["gpu1/memory", "gpu2/x"]), control=True),
            ACCESS,
            {},
            time_limit=30,
        )
        assert (rights["identity"], rights["role"], [*rights["agents"]]) == ("door/ann", "controller", ["memory"])
        for agent, error in (("gpu1/other", UnknownAgent), ("gpu2/memory", Forbidden), ("gpu10/memory", Forbidden)):
            with pytest.raises(error):
                await front.editor(front.token("ann", agents=[agent]))
        for editor in (owner, observer):
            await editor.stream.aclose()


async def test_a_guest_joins_its_session_and_no_other(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        own, other = await front.editor(front.token()), await front.editor(front.token("ann"))
        session, secret = await new_session(own), await new_session(other)
        store = TokenStore(tmp_path / "front")

        def guest(name: str, *, may: bool = False) -> Path:
            token = tmp_path / "front" / f"guest-{len(name)}.token"
            token.touch(0o600)
            made = store.create_guest(name, role="controller", lifetime=None, files=may, ports=may)
            token.write_text(made[1])
            return token

        for may in False, True:
            place = front.destination(guest(f"gpu1/{session}", may=may), control=True)
            assert (await request(place, GATEWAY_INFO, {}, time_limit=30))["mayUseFiles"] is may
            if may:
                assert await request(place, PORTS, {}, time_limit=30) == {"ports": [], "previews": False}
            else:
                with pytest.raises(Forbidden, match="--ports"):
                    await request(place, PORTS, {}, time_limit=30)

        for shared in (session, secret):
            joined = await front.editor(guest(f"gpu1/{shared}"))
            assert await new_session(joined) == shared
            await joined.stream.aclose()
        for named, wanted in (
            (f"gpu1/{session}", secret),
            (f"gpu1/{session}x", None),
            (session, None),
            (f"gpu2/{session}", None),
        ):
            with pytest.raises(UnknownSession):
                await front.editor(guest(named), session=wanted)
        for editor in (own, other):
            await editor.stream.aclose()


async def test_a_token_that_is_revoked_at_the_front_ends_its_connections_there_and_is_refused(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        token = front.token("ann")
        link = await front.link(token)
        follower = await dial(front.destination(token, control=True), Timing())
        store = TokenStore(tmp_path / "front")
        store.revoke(store.tokens()[-1].id)
        with pytest.raises(trio.BrokenResourceError):
            await until_ended(link.stream)
        with pytest.raises(Unauthorized):
            await front.link(token, Resume(link.connection_id, 0))
        with pytest.raises(trio.EndOfChannel):
            await until_ended(follower)
        assert isinstance(follower, WebSocketStream)
        assert (follower.close_code, follower.close_text) == (1008, "the token is not valid any more")
        for stream in (link.stream, follower):
            await stream.aclose()


async def test_a_link_is_cut_by_the_rotation_of_its_token_and_resumed_with_the_new_one(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        token = front.token("ann")
        link = await front.link(token)
        store = TokenStore(tmp_path / "front")
        token.write_text(store.rotate(store.tokens()[-1].id)[1])
        with pytest.raises(trio.BrokenResourceError):
            await until_ended(link.stream)
        again = await front.link(token, Resume(link.connection_id, 0))
        assert again.connection_id == link.connection_id
        for each in (again, link):
            await each.stream.aclose()


async def test_a_front_whose_own_token_is_refused_says_so_and_not_that_the_clients_is_wrong(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        link = await front.link(front.token())
        store = TokenStore(tmp_path / "gpu1")
        store.revoke(store.tokens()[-1].id)
        with pytest.raises(trio.EndOfChannel):
            await until_ended(link.stream)
        assert getattr(link.stream, "close_code", None) == 1008
        await link.stream.aclose()
        with pytest.raises(Unreachable, match="does not accept this gateway's token"):
            await front.link(front.token())
        with pytest.raises(Unreachable, match="the node gpu1 is away") as raised:
            await front.link(front.token("ann"))
        assert "token" not in str(raised.value)


@pytest.mark.parametrize(
    ("node", "limits", "error"),
    [
        ("gpu3", {}, UnknownAgent),
        ("gpu1", {"role": "metrics"}, Forbidden),
        ("gpu1", {"workspaces": ["here"]}, Forbidden),
    ],
)
async def test_what_a_front_refuses_itself(
    node: str, limits: dict[str, Any], error: type[GatewayError], tmp_path: Path
) -> None:
    async with fronted(tmp_path) as front:
        with pytest.raises(error):
            await front.editor(front.token("ann", **limits), node=node)
        assert front.audit("gpu1", "attached") == []


async def test_a_node_that_is_away_is_a_refusal_that_passes(tmp_path: Path) -> None:
    closed = trio.socket.socket()
    await closed.bind(("127.0.0.1", 0))
    url = f"ws://127.0.0.1:{closed.getsockname()[1]}/acp"
    async with fronted(tmp_path, way=lambda _: url) as front:
        with pytest.raises(Unreachable, match="the node gpu1 is away"):
            await front.editor(front.token())
    closed.close()


async def test_a_node_that_knows_no_doors_is_refused_until_it_was_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = control_channel.describe_access

    def describe_as_before(*args: Any) -> dict[str, Any]:
        return {name: value for name, value in described(*args).items() if name != "claims"}

    monkeypatch.setattr(control_channel, "describe_access", describe_as_before)
    async with fronted(tmp_path) as front:
        token = front.token()
        (node,) = (await LocalGateway(tmp_path / "front").status(time_limit=30, nodes=True))["nodes"]
        assert (node["up"], node["reason"]) == (False, "too_old")
        with pytest.raises(Unreachable, match="the node gpu1 is too old for this gateway"):
            await front.editor(token)
        assert front.audit("gpu1", "attached") == []
        monkeypatch.undo()
        await LocalGateway(tmp_path / "front").status(time_limit=30, nodes=True)
        await (await front.editor(token)).stream.aclose()


# HTTP


class Asking:
    """Asks the node's endpoint through the front, each time over a connection of its own."""

    def __init__(self, front: Front, token: Path) -> None:
        self.front = front
        self.bearer = {"Authorization": f"Bearer {token.read_text()}"}

    async def ask(self, method: str, path: str = "/acp", body: Any = None, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with await trio.open_tcp_stream("127.0.0.1", port_of(self.front.url)) as stream:
            return await Http(stream).ask(method, f"/nodes/gpu1{path}", body, **self.bearer, **named)


async def test_streamable_http_through_a_front_is_a_link_of_the_node(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        ask = Asking(front, front.token("ann")).ask
        began = await ask("POST", body=INITIALIZE, **JSON)
        assert (began.status, json.loads(began.body)["id"]) == (200, 0)
        named = {"Acp_Connection_Id": began.headers["acp-connection-id"]}
        bearer = Asking(front, front.token("ann")).bearer
        async with await trio.open_tcp_stream("127.0.0.1", port_of(front.url)) as stream:
            http = Http(stream)
            head = {**EVENTS, **bearer, "Acp-Connection-Id": named["Acp_Connection_Id"]}
            # A token of the same identity is another credential at the door, and the same at the node.
            events = Events(http, await http.begin("GET", "/nodes/gpu1/acp", None, head))
            assert (await ask("POST", body=NEW, **JSON, **named)).status == 202
            session = (await events.next())["result"]["sessionId"]
        assert await front.listed(front.token("ann")) == {session: "door/ann"}
        assert (await ask("DELETE", **named)).status == 202
        assert (await ask("DELETE", **named)).status == 404


async def test_requests_follow_one_another_over_one_connection(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        bearer = Asking(front, front.token()).bearer
        async with await trio.open_tcp_stream("127.0.0.1", port_of(front.url)) as stream:
            http = Http(stream)
            for _ in range(2):
                reply = await http.ask("POST", "/nodes/gpu1/acp", INITIALIZE, **JSON, **bearer)
                assert reply.status == 200
            reply = await http.ask("POST", "/nodes/gpu1/acp", {"a": 1}, **JSON, **bearer)
            assert reply.status == 400


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/login", "/join", "/assets/main.js", "/nodes/gpu1/acp"])
async def test_only_what_the_front_itself_serves_and_passes_on_is_there(path: str, tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        assert (await Asking(front, front.token()).ask("GET", path)).status == 404


@pytest.mark.parametrize("name", [PASSED, FOR, REQUEST])
async def test_a_client_can_not_say_itself_for_whom_it_asks(name: str, tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        ask = Asking(front, front.token()).ask
        reply = await ask("POST", body=INITIALIZE, **JSON, **{name.replace("-", "_"): "0123456789abcdef"})
        assert reply.status == 400
        assert front.audit("gpu1", "attached") == []


# By name


@pytest.mark.parametrize("lines", [False, True], ids=["websocket", "lines"])
async def test_an_agent_and_a_session_of_a_node_are_used_by_name_by_clients_that_resume_nothing(
    lines: bool, tmp_path: Path
) -> None:
    async with fronted(tmp_path) as front:
        url, token = front.at if lines else front.url, front.token("ann")
        editor = await editor_at(url, "gpu1/memory", token)
        session = await new_session(editor)
        assert await prompted(editor, session, "hello") == ["hello"]
        other = await editor_at(url, None, token, session=f"gpu1/{session}")
        assert await new_session(other) == session
        for each in (editor, other):
            await each.stream.aclose()
        assert await front.listed(token) == {session: "door/ann"}
        links = {it["request"] for it in front.audit("front", "node_link") if it["identity"] == "ann"}
        assert len(links) >= 2
        assert {it["request"] for it in front.audit("gpu1", "attached")} <= links


async def hello(at: str, token: Path, **params: Any) -> tuple[dict[str, Any], trio.SocketStream]:
    """The answer to a first line with these members, and the connection."""
    stream = await trio.open_unix_socket(at.removeprefix("unix://"))
    members = {"token": await trio.Path(token).read_text(), **params}
    line = {"jsonrpc": "2.0", "id": 0, "method": "_acp-gateway/hello", "params": members}
    await stream.send_all(json.dumps(line).encode() + b"\n")
    answer: dict[str, Any] = json.loads(await stream.receive_some())
    return answer, stream


async def test_a_hello_names_the_node_for_names_that_this_uses_itself(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        token = front.token("ann")
        for more in ({}, {"agent": "memory"}):
            answer, stream = await hello(front.at, token, node="gpu1", **more)
            assert "connectionId" in answer["result"]
            editor = Editor(LineStream(TrioBytes(stream), max_message_size=SIZE))
            session = await new_session(editor)
            assert session in await front.listed(token)
            await editor.stream.aclose()
        answer, stream = await hello(front.at, token, node="gpu1", session=session, resume={})
        assert answer["result"]["received"] == 0
        await stream.aclose()
        for member, code in (
            ({"node": "gpu2"}, 404),
            ({"node": "gpu1", "agent": "other"}, 404),
            ({"node": "gpu1", "control": True}, -32602),
            ({"node": 1}, -32602),
        ):
            answer, stream = await hello(front.at, token, **member)
            assert answer["error"]["code"] == code, answer
            await stream.aclose()
        limited = front.token("ann", agents=["gpu2/memory"])
        answer, stream = await hello(front.at, limited, node="gpu1")
        assert answer["error"]["code"] == 403
        await stream.aclose()


async def test_a_gateway_without_nodes_refuses_a_hello_that_names_one(tmp_path: Path) -> None:
    async with serving(node_config(tmp_path / "gpu1", url=f"unix://{tmp_path}/socket")) as (at,):
        answer, stream = await hello(at, tmp_path / "gpu1" / "node.token", node="gpu2")
        assert (answer["error"]["code"], "has no nodes" in answer["error"]["message"]) == (404, True)
        await stream.aclose()


@pytest.mark.parametrize("lines", [False, True], ids=["websocket", "lines"])
async def test_a_link_by_name_is_the_nodes(lines: bool, tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        token = front.token("ann")
        destination = control(front.at if lines else front.url, token, agent="gpu1/memory", control=False)
        first = await dial_link(destination, Timing(), Resume())
        assert (first.received, first.probes, first.limit is not None, first.part is not None) == (0, True, True, True)
        session = await new_session(Unmarked(first.stream))
        await first.stream.abort()
        again = await dial_link(destination, Timing(), Resume(first.connection_id, 2))
        assert (again.connection_id, again.received) == (first.connection_id, 2)
        assert await prompted(Unmarked(again.stream), session, "hello") == ["hello"]
        await again.stream.abort()
        # The same link by the path.
        third = await front.link(token, Resume(first.connection_id, 4))
        assert third.received == 3
        await third.stream.aclose()


@pytest.mark.parametrize("lines", [False, True], ids=["websocket", "lines"])
@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"agent": "gpu1/other"}, UnknownAgent),
        ({"agent": None, "session": "gpu1/unknown"}, UnknownSession),
        ({"agent": "gpu1/memory", "session": "gpu2/unknown"}, GatewayError),
    ],
)
@pytest.mark.parametrize("resumes", [False, True])
async def test_the_node_refuses_what_it_does_not_have_and_its_address_is_not_told(
    lines: bool, wanted: dict[str, Any], error: type[GatewayError], resumes: bool, tmp_path: Path
) -> None:
    async with fronted(tmp_path) as front:
        destination = control(front.at if lines else front.url, front.token("ann"), control=False, **wanted)
        with pytest.raises(error) as raised:
            await (dial_link(destination, Timing(), Resume()) if resumes else dial(destination, Timing()))
        assert front.node.removesuffix("/acp") not in str(raised.value)


@pytest.mark.parametrize("agent", ["memory", "other"], ids=["granted", "refused"])
@pytest.mark.parametrize("resumes", [False, True])
async def test_a_client_over_lines_that_left_before_the_node_answered_is_not_an_error(
    agent: str, resumes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, left, answered = trio.Event(), trio.Event(), trio.Event()

    async def upgrade(*args: Any) -> Dialed:
        asked.set()
        await left.wait()
        try:
            return await dialing.upgrade(*args)
        finally:
            answered.set()

    async with fronted(tmp_path) as front:
        monkeypatch.setattr(links, "upgrade", upgrade)
        destination = control(front.at, front.token("ann"), agent=f"gpu1/{agent}", control=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                *((dial_link, destination, Timing(), Resume()) if resumes else (dial, destination, Timing()))
            )
            await asked.wait()
            nursery.cancel_scope.cancel()
        left.set()
        await answered.wait()
        # The front has closed its connection to the node.
        await (await front.editor(front.token("ann"))).stream.aclose()
    assert "internal error" not in caplog.text


async def test_http_by_name_has_ids_of_links_that_begin_with_the_node(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        bearer = Asking(front, front.token("ann")).bearer

        async def ask(method: str, target: str = "/acp", body: Any = None, **headers: str) -> Reply:
            async with await trio.open_tcp_stream("127.0.0.1", port_of(front.url)) as stream:
                return await Http(stream).ask(method, target, body, **bearer, **headers)

        link = (await ask("POST", "/acp?agent=gpu1/memory", INITIALIZE, **JSON)).headers["acp-connection-id"]
        assert link.startswith("gpu1/")
        named = {"Acp-Connection-Id": link}
        assert (await ask("POST", "/acp", NEW, **JSON, **named)).status == 202
        assert (await ask("DELETE", "/acp", **named)).status == 202
        assert (await ask("DELETE", "/acp", **named)).status == 404
        assert (
            await ask("POST", "/acp", NEW, **JSON, **{"Acp-Connection-Id": link.removeprefix("gpu1/")})
        ).status == 404


@asynccontextmanager
async def cut_off(
    folder: Path, cuts: int, size: tuple[int, int]
) -> AsyncIterator[tuple[FaultyProxy, str, Path, trio.Nursery]]:
    """A front whose way to the node is cut so often, after so many bytes: the way, URL and token, and a nursery."""
    async with serving(node_config(folder / "gpu1")) as (url,):
        cut = FaultyProxy(port_of(url), seed=1, cuts=cuts, size=size, faults=QUICK)
        async with trio.open_nursery() as nursery:
            await nursery.start(cut.run)
            at_cut = url.replace(f":{port_of(url)}", f":{cut.port}")
            front = front_config(folder / "front", {"gpu1": node_section(folder / "gpu1", at_cut)})
            token = save_token(folder / "front", "own.token")
            async with serving(front) as (_, websocket):
                yield cut, websocket, token, nursery
            nursery.cancel_scope.cancel()


async def test_a_cut_between_door_and_node_is_not_felt_by_a_client_that_resumes_nothing(
    tmp_path: Path, hurried: None
) -> None:
    async with cut_off(tmp_path, 5, (3000, 6000)) as (cut, websocket, token, _):
        editor = await editor_at(websocket, "gpu1/memory", token)
        session = await new_session(editor)
        for number in range(40):
            assert await prompted(editor, session, f"{number} {'x' * 500}") == [f"{number} {'x' * 500}"]
        await cut.reached(5)
        await editor.stream.aclose()


class Remote:
    """A client over HTTP that opens no event stream a second time."""

    def __init__(self, url: str, token: Path, nursery: trio.Nursery) -> None:
        self._port = port_of(url)
        self._fields = {"Authorization": f"Bearer {token.read_text()}"}
        self._nursery = nursery
        self.told: list[dict[str, Any]] = []
        """Messages of all of its streams."""
        self.open = 0
        self.last_ids: dict[str, str] = {}
        """The last event of each session's stream, and of the connection's."""
        self._news = trio.lowlevel.ParkingLot()

    async def post(self, body: Any, target: str = "/acp") -> Reply:
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            reply = await Http(stream).ask("POST", target, body, **JSON, **self._fields)
        if "acp-connection-id" in reply.headers:
            self._fields["Acp-Connection-Id"] = reply.headers["acp-connection-id"]
        return reply

    async def read(
        self, session: str | None = None, last_id: str | None = None, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Read the stream of a session, or that of the connection, until it ends."""
        named = {} if session is None else {"Acp-Session-Id": session}
        named |= {} if last_id is None else {"Last-Event-ID": last_id}
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            http = Http(stream)
            events = Events(http, await http.begin("GET", "/acp", None, EVENTS | self._fields | named))
            assert events.reply.status == 200
            self.open += 1
            task_status.started()
            try:
                while True:
                    self.told.append(await events.next())
                    self.last_ids[session or ""] = events.last
                    self._news.unpark_all()
            except (EOFError, trio.BrokenResourceError, h11.RemoteProtocolError):
                self.open -= 1
                self._news.unpark_all()

    async def response(self, its_id: int) -> dict[str, Any]:
        """Wait for the response to a request."""
        while not (found := [it for it in self.told if it.get("id") == its_id and "method" not in it]):
            await self._news.park()
        return found[0]

    async def news(self) -> None:
        """Wait until something has come, or a stream has ended."""
        await self._news.park()

    async def new_session(self) -> str:
        assert (await self.post(INITIALIZE, "/acp?agent=gpu1/memory")).status == 200
        await self._nursery.start(self.read)
        assert (await self.post(NEW)).status == 202
        session: str = (await self.response(1))["result"]["sessionId"]
        await self._nursery.start(self.read, session)
        return session

    async def prompt(self, session: str, its_id: int, text: str) -> None:
        params = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        body = {"jsonrpc": "2.0", "id": its_id, "method": "session/prompt", "params": params}
        assert (await self.post(body)).status == 202

    def said(self) -> list[str]:
        """The texts of the agent."""
        updates = [it["params"]["update"] for it in self.told if it.get("method") == "session/update"]
        return [it["content"]["text"] for it in updates if it["sessionUpdate"] == "agent_message_chunk"]


async def test_a_cut_between_door_and_node_is_not_felt_over_http_by_a_client_that_opens_no_stream_again(
    tmp_path: Path, hurried: None
) -> None:
    async with cut_off(tmp_path, 8, (4000, 9000)) as (cut, websocket, token, nursery):
        remote = Remote(websocket, token, nursery)
        session = await remote.new_session()
        texts: list[str] = []
        while len(cut.happened) < 6:
            texts.append(f"{len(texts)} {'x' * 500}")
            await remote.prompt(session, len(texts) + 1, texts[-1])
            assert (await remote.response(len(texts) + 1))["result"] == {"stopReason": "end_turn"}
        assert remote.said() == texts
        assert remote.open == 2


async def test_an_event_stream_ends_for_the_client_when_its_link_is_gone_at_the_node(
    tmp_path: Path, hurried: None
) -> None:
    config = node_config(tmp_path / "gpu1")
    async with serving(config) as (url,):
        pass
    config = node_config(tmp_path / "gpu1", url=url)
    front = front_config(tmp_path / "front", {"gpu1": node_section(tmp_path / "gpu1", url)})
    token = save_token(tmp_path / "front", "own.token")
    async with trio.open_nursery() as nursery, serving(front) as (_, websocket):
        remote = Remote(websocket, token, nursery)
        async with serving(config):
            await remote.new_session()
            assert remote.open == 2
        async with serving(config):
            while remote.open:
                await remote.news()
        nursery.cancel_scope.cancel()


async def test_an_event_stream_that_its_client_opens_again_is_not_taken_back(tmp_path: Path, hurried: None) -> None:
    async with fronted(tmp_path) as front, trio.open_nursery() as nursery:
        remote = Remote(front.url, front.token("ann"), nursery)
        session = await remote.new_session()
        await remote.prompt(session, 2, "before")
        await remote.response(2)
        await nursery.start(remote.read, session, remote.last_ids[session])
        while remote.open > 2:
            await remote.news()
        await remote.prompt(session, 3, "after")
        await remote.response(3)
        assert (remote.said(), remote.open) == (["before", "after"], 2)
        nursery.cancel_scope.cancel()


async def test_a_message_over_http_waits_for_a_node_that_comes_back(tmp_path: Path, hurried: None) -> None:
    reached = reaching.NodeReacher.reach
    failures: list[None] = []

    async def reach(self: reaching.NodeReacher, name: str) -> Reached:
        if failures:
            failures.pop()
            raise Unreachable("no route")
        return await reached(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reaching.NodeReacher, "reach", reach)
        async with fronted(tmp_path) as front, trio.open_nursery() as nursery:
            remote = Remote(front.url, front.token("ann"), nursery)
            session = await remote.new_session()
            failures.extend([None] * 3)
            await remote.prompt(session, 2, "hello")
            assert (await remote.response(2))["result"] == {"stopReason": "end_turn"}
            # One that has no link there is told at once.
            failures.append(None)
            refused = await Remote(front.url, front.token("ann"), nursery).post(INITIALIZE, "/acp?agent=gpu1/memory")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            nursery.cancel_scope.cancel()


async def test_a_client_without_a_link_can_not_speak_for_the_one_that_is_held_for_it(tmp_path: Path) -> None:
    async with fronted(tmp_path) as front:
        editor = await editor_at(front.url, "gpu1/memory", front.token("ann"))
        await editor.stream.send(b'{"jsonrpc":"2.0","method":"_acp-gateway/goodbye","params":{}}')
        await editor.stream.send(b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":99}}')
        assert await prompted(editor, await new_session(editor), "hello") == ["hello"]
        await editor.stream.aclose()


def test_no_repr_shows_the_token_of_a_door() -> None:
    here, _ = memory_wire()
    assert "secret" not in repr(Reached(here, "gpu1:7443", "/acp", "secret"))


@asynccontextmanager
async def in_front_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[trio.SocketStream], Awaitable[None]]
) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """A front of a node that answers so; what it yields posts to that, and returns all that comes back."""

    async def trust(*_: object) -> None:
        """Take every peer for one that knows the token."""

    monkeypatch.setattr(reaching, "demand_proof", trust)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        false = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/acp"
        async with fronted(folder, way=lambda _: false) as front:
            token = front.token().read_text()

            async def post() -> bytes:
                async with await trio.open_tcp_stream("127.0.0.1", port_of(front.url)) as client:
                    head = f"POST /nodes/gpu1/acp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
                    await client.send_all(f"{head}Connection: close\r\nContent-Length: 0\r\n\r\n".encode())
                    return b"".join([part async for part in client])

            yield post
        nursery.cancel_scope.cancel()


async def stay_silent(stream: trio.SocketStream) -> None:
    """Take what comes, and answer nothing."""
    async with stream:
        while await stream.receive_some():
            pass


async def test_a_node_that_answers_nothing_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage, "SILENCE", 0.01)
    monkeypatch.setattr(looks, "LOOK_TIMEOUT", 0.01)
    async with in_front_of(tmp_path, monkeypatch, stay_silent) as post:
        received = await post()
    assert received.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n"), received
    assert b"the node gpu1 is silent" in received
    # It may have got the request.
    assert b"retry-after" not in received.lower()


async def test_a_header_of_a_node_with_a_control_character_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; a=\x1b[2Jb\r\nContent-Length: 0\r\n\r\n"
            await stream.send_all(head)
            await stay_silent(stream)

    async with in_front_of(tmp_path, monkeypatch, answer) as post:
        received = await post()
    assert received.startswith(b"HTTP/1.1 502 Bad Gateway\r\n"), received
    assert b"the node gpu1: the header Content-Type of its response has a control character" in received
    assert b"\x1b" not in received


async def test_a_node_that_answers_others_may_take_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answers(_: NodeLooks, name: str) -> bool:
        asked.append(name)
        await trio.lowlevel.checkpoint()
        return len(asked) < 3

    monkeypatch.setattr(passage, "SILENCE", 0.01)
    monkeypatch.setattr(NodeLooks, "answers", answers)
    async with in_front_of(tmp_path, monkeypatch, stay_silent) as post:
        assert (await post()).startswith(b"HTTP/1.1 504")
    assert asked == ["gpu1"] * 3


@pytest.mark.parametrize("reached", [True, False])
async def test_what_a_lost_node_may_have_got_is_not_to_be_sent_again(
    reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_and_go(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()

    async def fail(*_: object) -> Reached:
        await trio.lowlevel.checkpoint()
        raise Unreachable("no route")

    if not reached:
        monkeypatch.setattr(NodeReacher, "reach", fail)
    async with in_front_of(tmp_path, monkeypatch, read_and_go) as post:
        received = await post()
    assert received.startswith(b"HTTP/1.1 503"), received
    assert (b"retry-after" in received.lower()) is not reached


@pytest.mark.parametrize(
    "body", [b"2\r\nhi\r\n", b"2\r\nhi\r\nzz\r\n", b"2\r\nhi\r\n1\r\nab\r\n"], ids=["cut", "size", "longer"]
)
async def test_an_unsound_body_of_a_node_is_cut_off_for_the_client(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
            await stream.send_eof()
            # What was sent arrives before the end.
            while await stream.receive_some():
                pass

    async with in_front_of(tmp_path, monkeypatch, answer) as post:
        received = await post()
    assert received.startswith(b"HTTP/1.1 200 OK\r\n"), received
    assert not received.endswith(b"\r\n0\r\n\r\n"), received
    assert "internal error" not in caplog.text


async def test_an_event_stream_of_a_node_that_announces_a_length_goes_on_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None
) -> None:
    parts = [b": " + b"x" * 69_990 + b"\n\n", b"data: more\n\n" + b" " * 60_000]

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 70001\r\n\r\n"
            await stream.send_all(head + (parts.pop(0) if parts else b"x" * 70_001))

    async with in_front_of(tmp_path, monkeypatch, answer) as post:
        received = await post()
    head = received.partition(b"\r\n\r\n")[0].lower()
    assert b"transfer-encoding: chunked" in head
    assert b"content-length" not in head
    assert b"data: more" in received


# Chat widgets and editors over HTTP

SERVES = ("acp", "chat", "editor")


class Widget:
    """A chat widget at the front."""

    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream

    async def send(self, kind: str, **members: Any) -> None:
        await self.stream.send(json.dumps({"type": kind, **members}).encode())

    async def next(self, kind: str) -> dict[str, Any]:
        """The next event of a type."""
        while True:
            event: dict[str, Any] = json.loads(await self.stream.receive())
            if event["type"] == kind:
                return event


async def widget_at(front: Front, token: Path, **wanted: Any) -> Widget:
    wanted = {"agent": None, "control": False} | wanted
    return Widget(await dial(control(front.url.replace("/acp", "/chat"), token, **wanted), Timing()))


async def test_a_chat_widget_uses_an_agent_and_a_session_of_a_node_by_name(tmp_path: Path) -> None:
    async with fronted(tmp_path, serves=SERVES) as front:
        token = front.token("ann")
        widget = await widget_at(front, token, agent="gpu1/memory")
        await widget.send("new_session")
        created = await widget.next("session_created")
        session = created["sessionId"]
        assert created["agent"] == "memory"
        await widget.send("send_message", sessionId=session, content="hello")
        while (await widget.next("message_chunk"))["role"] != "assistant":
            pass
        assert (await widget.next("turn_complete"))["stopReason"] == "end_turn"
        assert await front.listed(token) == {session: "door/ann"}
        other = await widget_at(front, token, session=f"gpu1/{session}")
        await other.send("load_session", sessionId=session)
        assert (await other.next("session_loaded"))["sessionId"] == session
        assert (await other.next("message_chunk"))["content"] == "hello"
        for each in (widget, other):
            await each.stream.aclose()
        assert "/chat" in {it["path"] for it in front.audit("front", "node_link") if it["identity"] == "ann"}


async def test_a_chat_widget_without_a_name_is_at_the_machine_of_the_only_agent_of_its_token(tmp_path: Path) -> None:
    async with fronted(tmp_path, serves=SERVES) as front:
        widget = await widget_at(front, front.token("ann", agents=["gpu1/memory"]))
        await widget.send("new_session")
        assert (await widget.next("session_created"))["agent"] == "memory"
        await widget.stream.aclose()


async def test_an_agent_of_a_node_that_a_message_names_is_refused_with_the_address_that_has_it(tmp_path: Path) -> None:
    async with fronted(tmp_path, serves=SERVES) as front:
        token = front.token("ann")
        await until_agents(front.at, "gpu1/memory")
        widget = await widget_at(front, token, observe=False)
        await widget.send("new_session", agent="gpu1/memory")
        assert "/nodes/gpu1/" in (await widget.next("error"))["message"]
        await widget.stream.aclose()
        bearer = Asking(front, token).bearer
        body = {"provider": {"id": "gpu1/memory"}, "message": "hello", "composerId": "c"}
        async with await trio.open_tcp_stream("127.0.0.1", port_of(front.url)) as stream:
            http = Http(stream)
            for ask in (
                http.ask("POST", "/acp/sendMessage", body, **JSON, **bearer),
                http.ask("GET", "/acp/getSlashCommands?providerId=gpu1/memory", None, **bearer),
            ):
                reply = await ask
                assert (reply.status, b"/nodes/gpu1/" in reply.body) == (404, True)


async def test_an_editor_over_http_uses_an_agent_of_a_node_by_its_path(tmp_path: Path) -> None:
    async with fronted(tmp_path, serves=SERVES) as front:
        token = front.token("ann")
        body = {"provider": {"id": "memory"}, "message": "hello", "composerId": "c"}
        reply = await Asking(front, token).ask("POST", "/acp/sendMessage", body, **JSON)
        assert reply.status == 200, reply.body
        assert json.loads(reply.body)["choices"][0]["message"]["content"] == "hello"
        assert [*(await front.listed(token)).values()] == ["door/ann"]
