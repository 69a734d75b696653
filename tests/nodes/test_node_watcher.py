"""A gateway in front of others: its nodes' agents, what a client is told of nodes that are away, circles."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway import __version__
from acp_gateway.client import uplink
from acp_gateway.client.control import Listing, list_sessions, request
from acp_gateway.client.dialing import Resume, dial, dial_link
from acp_gateway.client.reconnecting.held_link import HeldLink
from acp_gateway.errors import Forbidden, ProtocolError, UnknownAgent, UnknownSession, Unreachable
from acp_gateway.gateway.hub import agent_supervisor
from acp_gateway.made.machine import read_told
from acp_gateway.nodes import looks
from acp_gateway.protocol.methods import ACCESS, STATUS
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.websocket.stream import PASSED, Timing
from tests.kit.doubles import Editor
from tests.kit.faulty_proxy import QUICK, FaultyProxy
from tests.kit.http_client import Http
from tests.kit.machines import (
    control,
    front_config,
    node_config,
    node_section,
    port_of,
    save_token,
    two_nodes_and_a_front,
    until_agents,
)
from tests.kit.serving import serving

TIMING = Timing()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow one another at once, and agents start again at once."""
    monkeypatch.setattr(uplink, "BACKOFF_MIN", 0.001)
    monkeypatch.setattr(looks, "FRESH", 0.0)
    monkeypatch.setattr(agent_supervisor.RestartBackoff, "next_start", lambda _, now: now)


async def editor_at(url: str, agent: str | None, token_file: Path | None = None, **more: Any) -> Editor:
    """An editor that has asked for an agent."""
    return Editor(await dial(control(url, token_file, agent=agent, control=False, **more), TIMING))


async def prompted(editor: Editor, session: str, text: str) -> list[str]:
    """Have the agent say a text; return all that it has said since."""
    params = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
    await editor.send(id="turn", method="session/prompt", params=params)
    said = []
    while (message := await editor.receive()).get("id") != "turn":
        update = message.get("params", {}).get("update", {})
        if update.get("sessionUpdate") == "agent_message_chunk":
            said.append(update["content"]["text"])
    if message.get("error", {}).get("data", {}).get("reason") == "agent_ended":
        # The prompt was faster than the news of the end; the next one opens the session again.
        return await prompted(editor, session, text)
    assert message.get("result") == {"stopReason": "end_turn"}, message
    return said


class Unmarked(Editor):
    """A client at a link, which leaves the marks out."""

    async def receive(self) -> dict[str, Any]:
        while (message := await super().receive()).get("method") == "_acp-gateway/ack":
            pass
        return message


async def until_logged(caplog: pytest.LogCaptureFixture, words: str, begin: int = 0) -> None:
    """Wait for a line of the log with these words, behind its first lines."""
    while not any(words in message for message in caplog.messages[begin:]):
        await trio.lowlevel.checkpoint()


async def until_ended(editor: Editor) -> None:
    """Read until the connection ends, and raise that."""
    while True:
        await editor.receive()


async def new_session(editor: Editor, cwd: str = "/") -> str:
    await editor.initialize()
    opened = await editor.request("session/new", {"cwd": cwd, "mcpServers": []})
    session: str = opened["result"]["sessionId"]
    return session


async def test_the_agents_of_two_nodes_are_used_through_a_front(tmp_path: Path) -> None:
    async with two_nodes_and_a_front(tmp_path) as (front, _):
        for name in ("gpu1", "gpu2"):
            editor = await editor_at(front, f"{name}/memory")
            session = await new_session(editor)
            assert await prompted(editor, session, "hello") == ["hello"]
            assert (tmp_path / name / "sessions" / f"{session}.session").exists()
            await editor.stream.aclose()


async def test_the_directories_of_a_session_are_checked_by_the_node_and_not_by_the_front(tmp_path: Path) -> None:
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        config = front_config(tmp_path / "front", {"gpu1": node_section(tmp_path / "gpu1", url)})
        async with serving(replace(config, workspaces={})) as (front, _):
            await until_agents(front, "gpu1/memory")
            editor = await editor_at(front, "gpu1/memory")
            await new_session(editor, str(tmp_path))
            refused = await editor.request("session/new", {"cwd": "/no/such/folder", "mcpServers": []})
            assert refused["error"]["data"]["reason"] == "no_such_directory"
            await editor.stream.aclose()


async def test_a_session_without_a_cwd_is_placed_by_the_node_and_listed_there_by_the_front(tmp_path: Path) -> None:
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        config = front_config(tmp_path / "front", {"gpu1": node_section(tmp_path / "gpu1", url)})
        async with serving(replace(config, workspaces={})) as (front, _):
            await until_agents(front, "gpu1/memory")
            editor = await editor_at(front, "gpu1/memory")
            await editor.initialize()
            made = (await editor.request("session/new", {"cwd": ".", "mcpServers": []}))["result"]
            chosen = made["_meta"]["acp-gateway"]["cwd"]
            assert Path(chosen).is_absolute()
            listed = (await editor.request("session/list", {}))["result"]["sessions"]
            assert [entry["cwd"] for entry in listed if entry["sessionId"] == made["sessionId"]] == [chosen]
            await editor.stream.aclose()


async def test_an_agent_that_a_node_does_not_have_is_unknown(tmp_path: Path) -> None:
    async with two_nodes_and_a_front(tmp_path) as (front, _):
        for agent in ("gpu1/memori", "gpu3/memory", None):
            with pytest.raises(UnknownAgent, match="memory"):
                await editor_at(front, agent)


async def test_a_token_for_some_agents_or_for_workspaces_is_held_to_them(tmp_path: Path) -> None:
    some = save_token(tmp_path / "front", "some", agents=("gpu1/memory",))
    placed = save_token(tmp_path / "front", "placed", workspaces=("everything",))
    async with two_nodes_and_a_front(tmp_path) as (_, front):
        assert set((await until_agents(front, "gpu1/memory", token_file=some))["agents"]) == {"gpu1/memory"}
        editor = await editor_at(front, None, some)
        assert await prompted(editor, await new_session(editor), "hello") == ["hello"]
        await editor.stream.aclose()
        with pytest.raises(Forbidden, match="does not allow the agent gpu2/memory"):
            await editor_at(front, "gpu2/memory", some)
        with pytest.raises(Forbidden, match="workspaces of this machine"):
            await editor_at(front, "gpu2/memory", placed)
        assert (await until_agents(front, token_file=placed))["agents"] == {}


async def test_a_node_that_was_not_reached_yet_is_told_with_since_when_and_why(
    tmp_path: Path, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    node_config(tmp_path / "gpu1")
    node = node_section(tmp_path / "gpu1", "ws://127.0.0.1:1")
    async with serving(front_config(tmp_path / "front", {"gpu1": node})) as (front, _):
        with pytest.raises(Unreachable, match=r"the node gpu1 is away since \d{4}-.*Z: "):
            await editor_at(front, "gpu1/memory")
        await until_logged(caplog, "node gpu1 is away: cannot reach 127.0.0.1 port 1: ")
    assert sum("node gpu1 is away: " in message for message in caplog.messages) == 1


async def test_everything_else_goes_on_while_a_node_is_away_and_its_agents_come_back_with_it(
    tmp_path: Path, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        pass
    async with serving(node_config(tmp_path / "gpu2")) as (other,):
        nodes = {"gpu1": node_section(tmp_path / "gpu1", url), "gpu2": node_section(tmp_path / "gpu2", other)}
        async with serving(front_config(tmp_path / "front", nodes)) as (front, _):
            async with serving(node_config(tmp_path / "gpu1", url=url)):
                await until_agents(front, "gpu1/memory", "gpu2/memory")
                first = await editor_at(front, "gpu1/memory")
                session = await new_session(first)
                assert await prompted(first, session, "before") == ["before"]
                before = len(caplog.messages)
            await until_logged(caplog, "node gpu1 is away", before)
            second = await editor_at(front, "gpu2/memory")
            assert await prompted(second, await new_session(second), "later") == ["later"]
            # Its agents are not forgotten.
            assert "gpu1/memory" in (await until_agents(front))["agents"]
            async with serving(node_config(tmp_path / "gpu1", url=url)):
                await until_logged(caplog, "node gpu1 is there", before)
                with pytest.raises((trio.BrokenResourceError, trio.EndOfChannel)):
                    await until_ended(first)
                # The session is opened again in the node's new process.
                again = await editor_at(front, None, session=f"gpu1/{session}")
                assert await new_session(again) == session
                assert await prompted(again, session, "after") == ["before", "after"]
                for editor in (first, second, again):
                    await editor.stream.aclose()


async def test_cuts_on_both_hops_change_nothing_of_what_an_editor_is_told(
    tmp_path: Path, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    token = save_token(tmp_path / "front", "token")
    async with trio.open_nursery() as nursery, serving(node_config(tmp_path / "gpu1")) as (url,):
        far = FaultyProxy(port_of(url), seed=1, cuts=6, size=(2_000, 9_000), faults=QUICK)
        await nursery.start(far.run)
        node = node_section(tmp_path / "gpu1", f"ws://127.0.0.1:{far.port}/acp")
        async with serving(front_config(tmp_path / "front", {"gpu1": node})) as (unix, front):
            await until_agents(unix, "gpu1/memory")
            near = FaultyProxy(port_of(front), seed=2, cuts=6, size=(2_000, 9_000), faults=QUICK)
            await nursery.start(near.run)
            # A link as that of a shim.
            at = control(f"ws://127.0.0.1:{near.port}/acp", token, agent="gpu1/memory", control=False)
            dialed = await dial_link(at, TIMING, Resume())
            link = HeldLink("editor", dialed, lambda: at, TIMING, reconnect_timeout=30)
            nursery.start_soon(link.run)
            editor = Unmarked(link)
            session = await new_session(editor)
            number = 0
            while len(far.happened) + len(near.happened) < 12:
                number += 1
                assert await prompted(editor, session, f"{number} " * 500) == [f"{number} " * 500]
            await link.aclose()
        nursery.cancel_scope.cancel()
    assert any("editor: resumed after" in message for message in caplog.messages)


async def test_a_gateway_that_is_its_own_node_is_refused_and_says_so(
    tmp_path: Path, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    config = node_config(tmp_path / "gpu1")
    async with serving(config) as (url,):
        pass
    config = node_config(tmp_path / "gpu1", url=url)
    async with serving(replace(config, nodes={"self": node_section(tmp_path / "gpu1", url)})):
        await until_logged(caplog, "node self is away: ")


async def test_two_gateways_that_are_nodes_of_each_other_use_only_each_others_own_agents(
    tmp_path: Path, hurried: None
) -> None:
    async with serving(node_config(tmp_path / "one")) as (one,), serving(node_config(tmp_path / "two")) as (two,):
        pass
    configs = [
        replace(node_config(tmp_path / name, url=url), nodes={other: node_section(tmp_path / other, at)})
        for name, url, other, at in (("one", one, "two", two), ("two", two, "one", one))
    ]
    async with serving(configs[0]), serving(configs[1]):
        token = tmp_path / "one" / "node.token"
        assert set((await until_agents(one, "two/memory", token_file=token))["agents"]) == {"memory", "two/memory"}
        await until_agents(two, "one/memory", token_file=tmp_path / "two" / "node.token")
        through: dict[str, Any] = {"token_file": token, "origin": ((PASSED, "0123456789abcdef"),)}
        assert set((await request(control(one, **through), ACCESS, {}, time_limit=30))["agents"]) == {"memory"}
        with pytest.raises(UnknownAgent, match="another gateway can't use those"):
            await editor_at(one, "two/memory", **through)


@pytest.mark.parametrize(
    ("passed", "error", "why"),
    [
        (("0123456789abcdef", "fedcba9876543210"), Forbidden, "has come through 2 gateways, and 1 is the most"),
        (("forged",), ProtocolError, "must be ids of gateways"),
        (("0123456789abcdef,",), ProtocolError, "must be ids of gateways"),
    ],
)
async def test_forged_hops_are_refused(
    passed: tuple[str, ...], error: type[Exception], why: str, tmp_path: Path
) -> None:
    async with serving(node_config(tmp_path)) as (url,):
        with pytest.raises(error, match=why):
            await editor_at(url, "memory", tmp_path / "node.token", origin=((PASSED, ",".join(passed)),))
        # A link can't be begun by a second way either.
        with pytest.raises(error, match=why):
            await dial_link(
                control(url, tmp_path / "node.token", control=False, origin=((PASSED, ",".join(passed)),)),
                TIMING,
                Resume(),
            )


# Lists


async def listed(url: str, token_file: Path | None = None, **more: Any) -> Listing:
    return await list_sessions(control(url, token_file, **more), time_limit=30)


async def test_the_sessions_of_all_nodes_are_listed_once_and_can_be_joined(tmp_path: Path, hurried: None) -> None:
    async with two_nodes_and_a_front(tmp_path) as (front, _):
        through = await editor_at(front, "gpu2/memory")
        opened_here = await new_session(through)
        at_node = control((tmp_path / "gpu1" / "url").read_text(), tmp_path / "gpu1" / "node.token", control=False)
        direct = Editor(await dial(at_node, TIMING))
        opened_there = await new_session(direct)
        assert await prompted(direct, opened_there, "said before") == ["said before"]
        found = await listed(front)
        assert {session["sessionId"]: session["agent"] for session in found.sessions} == {
            f"gpu2/{opened_here}": "gpu2/memory",
            f"gpu1/{opened_there}": "gpu1/memory",
        }
        assert all(session["live"] for session in found.sessions)
        assert found.problems == ()
        late = await editor_at(front, None, session=f"gpu1/{opened_there}")
        await late.initialize()
        joined = await late.request("session/new", {"cwd": "/", "mcpServers": []})
        assert joined["result"]["sessionId"] == opened_there
        # The history is told, and both are in the same session of the same process.
        assert await prompted(late, opened_there, "said after") == ["said before", "said after"]
        while "said after" not in str(await direct.receive()):
            pass
        assert [it["sessionId"] for it in (await listed(front)).sessions].count(f"gpu1/{opened_there}") == 1
        for editor in (through, direct, late):
            await editor.stream.aclose()


async def test_other_identities_are_told_only_the_sessions_that_they_opened(tmp_path: Path, hurried: None) -> None:
    bob = save_token(tmp_path / "front", "bob", "bob")
    async with two_nodes_and_a_front(tmp_path) as (front, websocket):
        own = await editor_at(front, "gpu1/memory")
        session = await new_session(own)
        other = await editor_at(websocket, "gpu1/memory", bob)
        bobs = await new_session(other)
        assert [it["sessionId"] for it in (await listed(websocket, bob)).sessions] == [f"gpu1/{bobs}"]
        # At the node both are of one identity, but not here.
        assert [it["sessionId"] for it in (await listed(front)).sessions] == [f"gpu1/{session}"]
        with pytest.raises(UnknownSession):
            await editor_at(front, None, session=f"gpu1/{bobs}")
        with pytest.raises(UnknownSession):
            await editor_at(websocket, None, bob, session=f"gpu1/{session}")
        for editor in (own, other, await editor_at(websocket, None, bob, session=f"gpu1/{bobs}")):
            await editor.stream.aclose()


async def test_guests_and_observers_join_a_session_of_a_node_with_their_own_rights(tmp_path: Path) -> None:
    watcher = save_token(tmp_path / "front", "watcher", role="observer")
    async with two_nodes_and_a_front(tmp_path) as (front, websocket):
        own = await editor_at(front, "gpu1/memory")
        session = await new_session(own)
        guest = tmp_path / "guest"
        guest.touch(0o600)
        guest.write_text(
            TokenStore(tmp_path / "front").create_guest(f"gpu1/{session}", role="controller", lifetime=None)[1]
        )
        editors = [
            await editor_at(websocket, None, guest),
            await editor_at(websocket, None, guest, session=f"gpu1/{session}"),
            await editor_at(websocket, None, watcher, session=f"gpu1/{session}"),
        ]
        for editor in editors:
            await editor.initialize()
            joined = await editor.request("session/new", {"cwd": "/", "mcpServers": []})
            assert joined["result"]["sessionId"] == session
        params = {"sessionId": session, "prompt": [{"type": "text", "text": "hello"}]}
        assert "error" in await editors[2].request("session/prompt", params)
        assert await prompted(editors[0], session, "hello") == ["hello"]
        for other in (f"gpu2/{session}", "gpu1/other", "other"):
            with pytest.raises(UnknownSession):
                await editor_at(websocket, "gpu2/memory", guest, session=other)
        for editor in (own, *editors):
            await editor.stream.aclose()


async def test_an_observer_in_front_opens_what_is_live_at_a_node_alone_and_starts_nothing(tmp_path: Path) -> None:
    watcher = save_token(tmp_path / "front", "watcher", role="observer")
    async with two_nodes_and_a_front(tmp_path) as (_, websocket):
        node = tmp_path / "gpu1"
        direct = await editor_at((node / "url").read_text(), "memory", node / "node.token")
        session = await new_session(direct)
        assert await prompted(direct, session, "said before") == ["said before"]
        while [it["sessionId"] for it in (await listed(websocket, watcher)).sessions] != [f"gpu1/{session}"]:
            await trio.lowlevel.checkpoint()
        lists = await editor_at(websocket, "gpu1/memory", watcher)
        await lists.initialize()
        told = await lists.request("session/list")
        assert [it["sessionId"] for it in told["result"]["sessions"]] == [session]
        await lists.stream.aclose()
        eve = await editor_at(websocket, None, watcher, session=f"gpu1/{session}")
        await eve.initialize()
        assert (await eve.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"] == session
        while "said before" not in str(await eve.receive()):
            pass
        there = websocket.replace("/acp", "/nodes/gpu1/ws")
        page = Editor(await dial(control(there, watcher, control=False), TIMING))
        seen = await page.request("session/get", {"sessionId": session})
        assert "said before" in str(seen["result"]["updates"])
        # A session that the node knows, and that is not live there.
        (node / "sessions" / "past.session").touch()
        other = await editor_at(websocket, "gpu1/memory", watcher)
        await other.initialize()
        refused = await other.request("session/load", {"sessionId": "past", "cwd": "/", "mcpServers": []})
        assert refused["error"]["code"] == -32002
        for editor in (eve, other, page, direct):
            await editor.stream.aclose()


@pytest.mark.parametrize(
    ("session", "agent"),
    [("gpu1/unknown", None), ("gpu1/unknown", "gpu2/memory"), ("gpu3/unknown", None), ("gpu1/", None), ("s", None)],
)
async def test_a_session_that_no_node_has_is_unknown(session: str, agent: str | None, tmp_path: Path) -> None:
    bob = save_token(tmp_path / "front", "bob", "bob")
    async with two_nodes_and_a_front(tmp_path) as (_, front):
        with pytest.raises(UnknownSession):
            await editor_at(front, agent, bob, session=session)


async def test_a_list_says_since_when_a_node_is_away(
    tmp_path: Path, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        pass
    bob = save_token(tmp_path / "front", "bob", "bob")
    nodes = {"gpu1": node_section(tmp_path / "gpu1", url)}
    async with serving(front_config(tmp_path / "front", nodes)) as (front, websocket):
        async with serving(node_config(tmp_path / "gpu1", url=url)):
            await until_agents(front, "gpu1/memory")
            editor = await editor_at(front, "gpu1/memory")
            session = await new_session(editor)
            assert [it["sessionId"] for it in (await listed(front)).sessions] == [f"gpu1/{session}"]
            begin = len(caplog.messages)
        await until_logged(caplog, "node gpu1 is away: ", begin)
        found = await listed(front)
        assert found.sessions == []
        assert found.problems[0].startswith("the node gpu1 is away since 2")
        assert f"port {port_of(url)}" in found.problems[0] or "lost" in found.problems[0]
        # Addresses are for the gateway's own user.
        (problem,) = (await listed(websocket, bob)).problems
        assert problem.endswith("Z")
        await editor.stream.aclose()


async def test_the_page_offers_the_agents_of_nodes_in_the_directories_there(tmp_path: Path) -> None:
    token = save_token(tmp_path / "front", "token")
    async with two_nodes_and_a_front(tmp_path) as (_, websocket):
        at = control(websocket.replace("/acp", "/nodes/gpu2/ws"), token, control=False)
        page = Editor(await dial(at, TIMING))
        (agent,) = (await page.request("agents/list"))["result"]["agents"]
        assert (agent["name"], [it["path"] for it in agent["workspaces"]]) == ("memory", ["/"])
        session = (await page.request("session/new", {"agentType": "memory"}))["result"]["sessionId"]
        assert (tmp_path / "gpu2" / "sessions" / f"{session}.session").exists()
        await page.stream.aclose()


async def test_the_status_describes_all_nodes_and_a_node_that_is_away_does_not_make_the_gateway_unready(
    tmp_path: Path, hurried: None
) -> None:
    absent = node_section(tmp_path / "gpu1", "ws://127.0.0.1:1")
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        nodes = {"gpu1": node_section(tmp_path / "gpu1", url), "gpu2": absent}
        async with serving(front_config(tmp_path / "front", nodes)) as (front, websocket):
            await until_agents(front, "gpu1/memory")
            editor = await editor_at(front, "gpu1/memory")
            await new_session(editor)
            await listed(front)
            status = await request(control(front), STATUS, {}, time_limit=30)
            assert status["problems"] == []
            up, away = status["nodes"]
            assert (up["name"], up["url"], up["up"], up["why"]) == ("gpu1", url, True, None)
            assert (up["version"], up["agents"]) == (__version__, ["memory"])
            assert (up["sessions"], up["turns"], up["waiting"]) == (1, 0, 0)
            lag = up["load"].pop("lag")
            assert read_told(up["load"].pop("machine")) is not None
            assert up["load"] == {"sessions": 1, "turns": 0}
            assert isinstance(lag, int | float)
            assert away["load"] is None
            assert (away["up"], away["version"], away["agents"], away["sessions"]) == (False, None, None, 0)
            assert away["why"]
            token = save_token(tmp_path / "front", "token").read_text()
            async with await trio.open_tcp_stream("127.0.0.1", port_of(websocket)) as stream:
                answer = await Http(stream).ask("GET", "/readyz", Authorization=f"Bearer {token}")
            assert answer.status == 200
            assert b"the node gpu2 is away since " in answer.body
            await editor.stream.aclose()
