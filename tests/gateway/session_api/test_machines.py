"""The news to a browser of the nodes of its gateway, to which it has connections of its own."""

from collections import Counter
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import UnknownSession
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.search import service
from acp_gateway.gateway.search.elsewhere import FoundAtNodes, FoundElsewhere
from acp_gateway.gateway.session_api.listing import INTERVAL
from acp_gateway.gateway.session_api.requests import LIST
from acp_gateway.gateway.sessions.elsewhere import ListedAtNodes
from acp_gateway.gateway.viewing.session_connection import LARGE_RESPONSES
from acp_gateway.nodes.door import NodeAdmission
from acp_gateway.nodes.reaching import NodeReacher
from acp_gateway.protocol import jsonrpc
from tests.kit.bridging import Bench, ends_turn, prompted, running, says, section
from tests.kit.doubles import ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))


@asynccontextmanager
async def door(tmp_path: Path, spawner: Spawner) -> AsyncIterator[tuple[Bench, NodeDirectory]]:
    """A gateway with two nodes, whose default agent is at one of them."""
    async with running(tmp_path, spawner, own=section()) as bench:
        gateway = bench.gateway
        directory = NodeDirectory({"gpu2": SECTION, "gpu1": SECTION}, 0.0)
        config = replace(gateway.config.gateway, default_agent="gpu2/a")
        gateway.reconfigure(replace(gateway.config, nodes=directory.sections, gateway=config), ())
        gateway.extensions.directory = directory
        admission = NodeAdmission(gateway, NodeReacher(lambda: directory.sections).reach)
        gateway.extensions.led_to = admission.led_to
        yield bench, directory


async def test_a_browser_is_told_the_nodes_that_it_may_use_and_their_absence(tmp_path: Path, spawner: Spawner) -> None:
    async with door(tmp_path, spawner) as (bench, directory):
        directory.set_up("gpu1", ["a"], "1.0", 10.0)
        directory.set_away("gpu2", "no route", 20.0)
        page = await bench.page(bench.access())
        told = (await page.result("gateway/info"))["machines"]
        away: dict[str, Any] = {"unreachableSince": "1970-01-01T00:00:00Z"}
        assert told == [{"name": "gpu1"}, {"name": "gpu2", "defaultAgent": "gpu2/a"} | away]
        only = await bench.page(replace(bench.access(), agents=("own", "gpu1/a")), "only")
        assert (await only.result("gateway/info"))["machines"] == [{"name": "gpu1"}]
        assert [it["name"] for it in (await page.result("agents/list"))["agents"]] == ["own"]
        places = await bench.page(replace(bench.access(), workspaces=("w",)), "places")
        assert (await places.result("gateway/info"))["machines"] == []


async def test_changes_of_the_nodes_are_told_to_a_browser_that_watches(tmp_path: Path, spawner: Spawner) -> None:
    async with door(tmp_path, spawner) as (bench, directory):
        page = await bench.page(bench.access())
        await page.result("gateway/info")
        await page.result("session/list", watch=True)
        directory.set_away("gpu2", "no route", 20.0)
        (told,) = await page.until(lambda: page.of("machines/changed"))
        assert [(it["name"], "unreachableSince" in it) for it in told["machines"]] == [("gpu1", False), ("gpu2", True)]
        # The same again is not told.
        directory.set_away("gpu2", "no route", 30.0)
        directory.configure({"gpu2": SECTION}, 40.0)
        further = await page.until(lambda: page.of("machines/changed")[1:])
        assert [[it["name"] for it in one["machines"]] for one in further] == [["gpu2"]]


async def test_a_guest_of_a_session_at_a_node_is_told_that_session_and_node(tmp_path: Path, spawner: Spawner) -> None:
    async with door(tmp_path, spawner) as (bench, _):
        page = await bench.page(bench.access())
        made = await page.result("session/share", sessionId="gpu1/7/f", observe=True)
        assert made["link"].endswith("/s/gpu1%2F7%2Ff")
        (token,) = [it for it in bench.gateway.tokens.tokens() if it.session is not None]
        assert token.session == "gpu1/7/f"
        guest = await bench.page(Access.of(token), "guest")
        info = await guest.result("gateway/info")
        assert (info["session"], info["machines"]) == ("gpu1/7/f", [{"name": "gpu1"}])
        assert (await guest.result("session/list"))["sessions"] == []
        code, _ = await page.error("session/share", sessionId="gpu3/1")
        assert code == jsonrpc.INVALID_PARAMS


async def test_sessions_that_a_node_has_are_not_told_here(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with door(tmp_path, spawner) as (bench, _):
        page = await bench.page(bench.access())
        loading_agents.session_id = "1"
        assert await page.new_session(agentType="own", cwd="/") == "1"
        assert (await page.error("session/get", sessionId="gpu1/1"))[0] == jsonrpc.INVALID_PARAMS
        assert [it["id"] for it in (await page.result("session/list"))["sessions"]] == ["1"]


class NodesDouble:
    """Nodes that find one session, and have a file of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.answers = trio.Event()
        """Set when they answer."""
        self.answers.set()
        self.listed = ListedAtNodes()
        """Their sessions."""

    async def sessions(
        self, access: Access, reach: SessionReach, agents: Container[str], *, with_ports: bool = False
    ) -> ListedAtNodes:
        self.asked.append((access.identity, reach.identity, LIST, str("gpu1/a" in agents)))
        await self.answers.wait()
        return self.listed

    async def search(self, access: Access, reach: SessionReach, agents: Container[str], words: str) -> FoundAtNodes:
        self.asked.append((access.identity, reach.identity, words, str("gpu1/a" in agents)))
        await self.answers.wait()
        return FoundAtNodes([FoundElsewhere("gpu1/1", "gpu1/a", "ann", "t", 2, "zero")], ["gpu2"], complete=False)

    async def export(self, access: Access, name: str, form: str, *, redacted: bool) -> bytes | None:
        self.asked.append((access.identity, name, form, str(redacted)))
        if name == "gpu1/2":
            raise UnknownSession("no session of that id")
        if not name.startswith("gpu1/"):
            return None
        await self.answers.wait()
        return b'{"name":"f","mimeType":"text/markdown","text":"# t"}'


async def test_nodes_are_searched_if_that_is_asked_for_and_write_files_of_their_sessions(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GATHERING", 0.0)
    monkeypatch.setattr(service, "PAUSE", 0.0)
    async with door(tmp_path, spawner) as (bench, directory):
        directory.set_up("gpu1", ["a"], "1.0", 0.0)
        nodes: Any = NodesDouble()
        bench.gateway.extensions.questions = nodes
        page = await bench.page(bench.access())
        session = await page.new_session(agentType="own", cwd="/", title="mine")
        await prompted(page, loading_agents[0], session)
        await says(loading_agents[0], session, "divide by zero")
        await ends_turn(loading_agents[0])
        while not (own := (await page.result("session/search", words="zero"))["found"]):
            await trio.lowlevel.checkpoint()
        assert nodes.asked == []
        told = await page.result("session/search", words="zero", nodes=True)
        about = {"agentType": "own", "owner": "ann", "title": "mine"}
        elsewhere = {
            "sessionId": "gpu1/1",
            "texts": 2,
            "text": "zero",
            "agentType": "gpu1/a",
            "owner": "ann",
            "title": "t",
        }
        assert told == {"found": [own[0] | about, elsewhere], "complete": False, "missing": ["gpu2"]}
        other = await bench.page(bench.access(), "other", agent="gpu1/a")
        assert (await other.result("session/search", words="zero", nodes=True))["found"] == [elsewhere]
        few = await page.result("session/search", words="zero", nodes=True, limit=1)
        assert few["found"] == [own[0] | about]
        file = await page.result("session/export", sessionId="gpu1/1", format="markdown", redact=True)
        assert file["text"] == "# t"
        error = (await page.ask("session/export", sessionId="gpu1/2", format="json"))["error"]
        assert (error["code"], error["data"]) == (jsonrpc.INVALID_PARAMS, {"reason": "unknown_session"})
        assert "by zero" in (await page.result("session/export", sessionId=session, format="json"))["text"]
        assert nodes.asked == [
            *[("ann", "ann", "zero", "True")] * 3,
            ("ann", "gpu1/1", "markdown", "True"),
            ("ann", "gpu1/2", "json", "False"),
            ("ann", session, "json", "False"),
        ]
        # Gateways that are nodes of each other would wait for each other.
        through = await bench.page(bench.access(), "through", passed=("0123456789abcdef",))
        assert await through.result("session/search", words="zero", nodes=True) == {
            "found": [own[0] | about],
            "complete": True,
        }
        assert (await through.error("session/export", sessionId="gpu1/1", format="json"))[0] == jsonrpc.INVALID_PARAMS
        assert len(nodes.asked) == 6


async def test_nodes_that_do_not_answer_hold_up_their_own_files_and_searches_alone(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with door(tmp_path, spawner) as (bench, _):
        nodes: Any = NodesDouble()
        nodes.answers = trio.Event()
        bench.gateway.extensions.questions = nodes
        page = await bench.page(bench.access())
        session = await page.new_session(agentType="own", cwd="/")
        calls = range(100, 100 + LARGE_RESPONSES + 2)
        for call in calls:
            file = {"sessionId": f"gpu1/{call}", "format": "json"}
            await page.send(id=call, method="session/export", params=file)
            await page.send(id=-call, method="session/search", params={"words": "zero", "nodes": True})
        while len(nodes.asked) < LARGE_RESPONSES + 1:
            await trio.lowlevel.checkpoint()
        assert "epoch" in await page.result("session/get", sessionId=session)
        assert "text" in await page.result("session/export", sessionId=session, format="json")
        # So many files at a time, and one search of a connection, which opens connections to all nodes.
        assert Counter(it[2] for it in nodes.asked if it[1] != session) == {"json": LARGE_RESPONSES, "zero": 1}
        nodes.answers.set()
        for call in calls:
            assert "result" in await page.response(call)
            assert "result" in await page.response(-call)


async def test_a_connection_that_its_address_binds_to_a_session_gets_no_file_of_a_node(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with door(tmp_path, spawner) as (bench, _):
        nodes: Any = NodesDouble()
        bench.gateway.extensions.questions = nodes
        page = await bench.page(bench.access())
        session = await page.new_session(agentType="own", cwd="/")
        bound = await bench.page(bench.access(), "bound", session=session)
        assert (await bound.error("session/export", sessionId="gpu1/1", format="json"))[0] == jsonrpc.INVALID_PARAMS
        assert nodes.asked == []


def at_node(name: str, **members: Any) -> dict[str, Any]:
    """A session at the node `gpu1`."""
    return {"id": f"gpu1/{name}", "agentType": "gpu1/a", "machine": "gpu1", "owner": "ann", "live": True} | members


async def test_with_all_sessions_of_nodes_are_listed_between_live_and_former_ones_here(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with door(tmp_path, spawner) as (bench, _):
        nodes: Any = NodesDouble()
        bench.gateway.extensions.questions = nodes
        page = await bench.page(bench.access())
        session = await page.new_session(agentType="own", cwd="/")
        nodes.listed = ListedAtNodes([at_node("b"), at_node("a", live=False), at_node("c")], 3, ["gpu2"], ["no gpu2"])
        assert [it["id"] for it in (await page.result("session/list"))["sessions"]] == [session]
        told = await page.result("session/list", all=True)
        assert [it["id"] for it in told.pop("sessions")] == ["gpu1/c", "gpu1/b", session, "gpu1/a"]
        assert told == {"more": 3, "missing": ["gpu2"], "problems": ["no gpu2"]}
        bound = await bench.page(bench.access(), "bound", session=session)
        assert [it["id"] for it in (await bound.result("session/list", all=True))["sessions"]] == [session]
        # Gateways that are nodes of each other would wait for each other.
        through = await bench.page(bench.access(), "through", passed=("0123456789abcdef",))
        told = await through.result("session/list", all=True)
        assert ([it["id"] for it in told["sessions"]], "missing" in told) == ([session], False)
        assert nodes.asked == [("ann", "ann", LIST, "True")]


async def test_changes_of_sessions_at_nodes_are_told_to_a_client_that_watches_all(
    tmp_path: Path, spawner: Spawner, autojump_clock: trio.testing.MockClock
) -> None:
    async with door(tmp_path, spawner) as (bench, _):
        nodes: Any = NodesDouble()
        bench.gateway.extensions.questions = nodes
        watching = await bench.page(bench.access(), "watching")
        nodes.listed = ListedAtNodes([at_node("a"), at_node("b")])
        await watching.result("session/list", all=True)
        await trio.sleep(2 * INTERVAL)
        assert len(nodes.asked) == 1

        async def news(*sessions: dict[str, Any], missing: tuple[str, ...] = ()) -> list[dict[str, Any]]:
            nodes.listed, before = ListedAtNodes([*sessions], missing=missing), len(watching.told)
            await trio.sleep(INTERVAL)
            return [it["params"] for it in watching.told[before:]]

        for _ in range(2):
            await watching.result("session/list", all=True, watch=True)
        await trio.sleep(INTERVAL / 2)
        assert await news(at_node("a", title="new"), at_node("c")) == [
            {"sessionId": "gpu1/b"},
            {"session": at_node("a", title="new")},
            {"session": at_node("c")},
        ]
        assert await news(at_node("a", title="new"), at_node("c")) == []
        away = await news(missing=("gpu1",))
        assert [it["session"]["id"] for it in away] == ["gpu1/a", "gpu1/c"]
        assert all(it["session"]["unreachableSince"].endswith("Z") for it in away)
        assert await news(missing=("gpu1",)) == []
        assert await news(at_node("a", title="new")) == [
            {"sessionId": "gpu1/c"},
            {"session": at_node("a", title="new")},
        ]
