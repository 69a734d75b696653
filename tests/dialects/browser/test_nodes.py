"""The sessions of nodes on `/ws`: the list and its changes, and sessions that the gateway did not know before."""

from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.dialing import dial
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.nodes import NodeSection
from acp_gateway.config.options import ListenSection
from acp_gateway.core.output import HookEvent
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.events.hooks import Hooks
from acp_gateway.gateway.node_directory import MAX_MORE, NodeDirectory
from acp_gateway.gateway.search.elsewhere import FoundAtNodes, FoundElsewhere
from acp_gateway.gateway.sessions.node_sessions import NodeSessions
from acp_gateway.protocol import jsonrpc
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.websocket.stream import Timing
from tests.dialects.bridging import TEXT, Bench, Page, running, says, section, texts
from tests.doubles import Editor, ServingAgents
from tests.gateway.sessions.test_node_sessions import session
from tests.nodes.machines import control, save_token, two_nodes_and_a_front

pytestmark = pytest.mark.usefixtures("no_bug_showed")

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))


class Front:
    """A gateway with nodes whose lists a test writes."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        gateway = bench.gateway
        self.directory = NodeDirectory({"gpu1": SECTION, "gpu2": SECTION}, 0.0)
        self.sessions = NodeSessions(self.directory, gateway.registry, trio.lowlevel.checkpoint)
        gateway.reconfigure(replace(gateway.config, nodes=self.directory.sections), ())
        gateway.extensions.directory = self.directory
        gateway.extensions.node_sessions = self.sessions
        for name in self.directory.nodes:
            self.directory.set_up(name, ["a"], "1.0", 0.0)

    @property
    def access(self) -> Access:
        """That of the gateway's own user."""
        return self.bench.access(self.bench.gateway.registry.own_identity)

    def lists(self, node: str, *listed: dict[str, Any]) -> None:
        """A node tells its sessions."""
        self.directory.set_sessions(node, [it | {"agent": "a"} for it in listed], 0)
        self.sessions.note_report()


@asynccontextmanager
async def front(tmp_path: Path, spawner: Spawner) -> AsyncIterator[Front]:
    agents: Any = dict.fromkeys(("own", "gpu1/a", "gpu2/a"), section())
    async with running(tmp_path, spawner, **agents) as bench:
        yield Front(bench)


async def listed(page: Page, **params: Any) -> dict[str, dict[str, Any]]:
    found = (await page.result("session/list", **params))["sessions"]
    by_id = {it["id"]: it for it in found}
    assert len(by_id) == len(found)
    return by_id


async def test_the_list_has_the_sessions_of_all_nodes_once_each(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "1"
    async with front(tmp_path, spawner) as it:
        page = await it.bench.page(it.access)
        for agent, name in (("own", "1"), ("gpu1/a", "gpu1/1")):
            assert (await page.result("session/new", agentType=agent, cwd="/"))["sessionId"] == name
        asked = {"method": "session/request_permission", "since": "2026-11-22T09:48:00Z", "title": "Run it"}
        it.lists("gpu1", session("1", title="there"), session("past", live=False))
        it.lists("gpu2", session("1", turn=True, waiting=[asked], title="Two", cwd="/w"))
        found = await listed(page)
        assert {name: (one["machine"], one["agentType"], one["status"]) for name, one in found.items()} == {
            "1": (None, "own", "completed"),
            "gpu1/1": ("gpu1", "gpu1/a", "completed"),
            "gpu1/past": ("gpu1", "gpu1/a", "exited"),
            "gpu2/1": ("gpu2", "gpu2/a", "waiting"),
        }
        assert set(found["gpu2/1"]) == set(found["1"])
        assert found["gpu2/1"]["waiting"] == [{"requestId": None, **asked}]
        assert (found["gpu2/1"]["title"], found["gpu2/1"]["cwd"], found["gpu2/1"]["mayControl"]) == ("Two", "/w", True)
        assert not await listed(page, archived=True)
        assert list(await listed(page, status=["waiting"])) == ["gpu2/1"]
        # Others are told those that they have opened through the gateway.
        assert not await listed(await it.bench.page(it.bench.access("ben"), "ben"))
        limited = replace(it.access, agents=("own", "gpu2/a"))
        assert [*await listed(await it.bench.page(limited, "limited"))] == ["1", "gpu2/1"]


async def test_a_search_has_what_nodes_find_in_the_sessions_that_one_is_told(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    asked: list[list[str]] = []

    async def find(reach: SessionReach, agents: Container[str], words: str) -> FoundAtNodes:
        asked.append([name for name in ("own", "gpu1/a", "gpu2/a") if name in agents])
        found = [
            FoundElsewhere(name, agent, "me", "", 2, "divides by zero")
            for name, agent in (("gpu1/1", "gpu1/a"), ("gpu1/1", "gpu1/b"), ("gpu2/1", "gpu2/a"), ("gpu2/2", "gpu2/a"))
        ]
        return FoundAtNodes(found, ["gpu2"], complete=True)

    async with front(tmp_path, spawner) as it:
        page = await it.bench.page(it.access)
        it.lists("gpu1", session("1"))
        it.lists("gpu2", session("1"))
        assert await page.result("session/search", words="zero") == {"found": [], "complete": True, "missing": []}
        it.bench.gateway.extensions.search_nodes = find
        told = await page.result("session/search", words="zero")
        one = {"texts": 2, "text": "divides by zero", "marks": [[11, 15]]}
        assert told == {
            "found": [{"sessionId": name, **one} for name in ("gpu1/1", "gpu2/1")],
            "complete": True,
            "missing": ["gpu2"],
        }
        assert len((await page.result("session/search", words="zero", limit=1))["found"]) == 1
        limited = await it.bench.page(replace(it.access, agents=("own", "gpu2/a")), "limited")
        told = await limited.result("session/search", words="zero")
        assert [one["sessionId"] for one in told["found"]] == ["gpu2/1"]
        assert asked[-1] == ["own", "gpu2/a"]


async def test_a_node_that_tells_an_impossible_number_of_sessions_costs_no_page_its_list(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    # A larger number has more digits than Python writes.
    most = 10**4300 - 1
    async with front(tmp_path, spawner) as it:
        for node in it.directory.nodes:
            it.directory.set_sessions(node, [session("1") | {"agent": "a"}], most)
        it.sessions.note_report()
        page = await it.bench.page(it.access)
        told = await page.result("session/list")
        assert ([one["id"] for one in told["sessions"]], told["more"]) == (["gpu2/1", "gpu1/1"], 2 * MAX_MORE)


async def test_changes_at_nodes_are_told_to_pages_that_watch(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with front(tmp_path, spawner) as it:
        page, idle = await it.bench.page(it.access), await it.bench.page(it.access, "idle")
        it.lists("gpu1", session("1"), session("2"))
        assert len(await listed(page, watch=True)) == len(await listed(idle)) == 2
        it.lists("gpu1", session("1"), session("2"))
        it.lists("gpu1", session("1", turn=True), session("3"))
        await page.until(lambda: len(page.told) == 3 or None)
        changed = {params["session"]["id"]: params["session"] for params in page.of("session/changed")}
        assert {name: one["status"] for name, one in changed.items()} == {"gpu1/1": "running", "gpu1/3": "completed"}
        assert page.of("session/removed") == [{"sessionId": "gpu1/2"}]
        del page.told[:]
        it.directory.set_away("gpu1", "gone", 60.0)
        it.sessions.note_report()
        await page.until(lambda: len(page.told) == 2 or None)
        since = {params["session"]["unreachableSince"] for params in page.of("session/changed")}
        assert since == {"1970-01-01T00:01:00Z"}
        assert {one["unreachableSince"] for one in (await listed(page)).values()} == since
        assert not idle.told


async def test_a_session_that_only_its_node_knew_is_opened_through_the_gateway(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with front(tmp_path, spawner) as it:
        it.lists("gpu1", session("x/y", title="there", cwd="/w"))
        it.lists("gpu2", session("x/y"))
        page = await it.bench.page(it.access)
        await page.result("session/list", watch=True)
        opened = await page.result("session/get", sessionId="gpu1/x/y")
        assert (opened["session"]["id"], opened["session"]["agentType"]) == ("gpu1/x/y", "gpu1/a")
        (agent,) = loading_agents.started
        loaded = await agent.got("session/load")
        assert (loaded["params"]["sessionId"], loaded["params"]["cwd"]) == ("x/y", "/w")
        assert [client["you"] for client in opened["session"]["clients"]] == [True]
        await says(agent, "x/y", "news")
        assert texts(await page.until_updates("gpu1/x/y", 1)) == ["news"]
        await page.result("session/prompt", sessionId="gpu1/x/y", prompt=TEXT)
        assert (await agent.got("session/prompt"))["params"]["sessionId"] == "x/y"
        assert sorted(await listed(page)) == ["gpu1/x/y", "gpu2/x/y"]
        it.lists("gpu1", session("x/y", live=False))
        assert (await listed(page))["gpu1/x/y"]["live"]
        assert not page.of("session/removed")


async def test_a_session_that_goes_on_only_at_its_node_is_shown_so_and_joined_again(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with front(tmp_path, spawner) as it:
        page = await it.bench.page(it.access)
        name = await page.new_session(agentType="gpu1/a", cwd="/")
        its_id = name.partition("/")[2]
        it.bench.gateway.hubs[0].end()
        await page.until_status(name, "exited")
        await page.result("session/unsubscribe", sessionId=name)
        it.lists("gpu1", session(its_id, turn=True))
        found = (await listed(page))[name]
        assert (found["status"], found["live"], found["turn"]) == ("running", True, True)
        it.directory.set_away("gpu1", "gone", 0.0)
        it.sessions.note_report()
        found = (await listed(page))[name]
        assert (found["status"], found["unreachableSince"]) == ("running", "1970-01-01T00:00:00Z")
        await page.result("session/get", sessionId=name)
        assert len(loading_agents) == 1
        it.directory.set_up("gpu1", ["a"], "1.0", 0.0)
        it.sessions.note_report()
        got = await page.result("session/get", sessionId=name)
        assert (got["session"]["live"], len(loading_agents)) == (True, 2)


async def test_who_is_bound_to_a_session_of_a_node_sees_that_alone(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "1"
    async with front(tmp_path, spawner) as it:
        for node in ("gpu1", "gpu2"):
            it.lists(node, session("1"), session("2"))
        own = await it.bench.page(it.access)
        await own.result("session/new", agentType="own")
        bound = await it.bench.page(replace(it.access, only="gpu2/1"), "bound")
        assert (await bound.result("gateway/info"))["session"] == "gpu2/1"
        assert [*await listed(bound)] == ["gpu2/1"]
        guest = await it.bench.page(it.bench.guest("gpu2/1", "observer"), "guest")
        assert not await listed(guest)
        assert (await guest.error("session/get", sessionId="gpu2/1"))[0] == jsonrpc.INVALID_PARAMS
        await bound.result("session/get", sessionId="gpu2/1")
        assert [*await listed(guest)] == ["gpu2/1"]
        assert (await guest.result("gateway/info"))["session"] == "gpu2/1"
        await guest.result("session/get", sessionId="gpu2/1")
        for page in (bound, guest):
            for other in ("1", "gpu1/1", "gpu2/2"):
                assert (await page.error("session/get", sessionId=other))[0] == jsonrpc.INVALID_PARAMS
        link = (await own.result("session/share", sessionId="gpu1/2"))["link"]
        assert link.endswith("/s/gpu1%2F2")


async def asked(end: Editor, method: str, **params: Any) -> Any:
    """The result of a request, whatever comes before it."""
    await end.send(id=method, method=method, params=params)
    while (message := await end.receive()).get("id") != method:
        pass
    return message["result"]


async def ws(url: str, token: Path) -> Editor:
    """A connection to `/ws` of a gateway."""
    return Editor(await dial(control(url.replace("/acp", "/ws"), token, control=False), Timing()))


async def test_a_page_at_the_front_joins_a_session_that_was_begun_at_its_node(tmp_path: Path) -> None:
    token = save_token(tmp_path / "front", "token")
    async with two_nodes_and_a_front(tmp_path) as (_, websocket):
        node_url = (tmp_path / "gpu2" / "url").read_text()
        there = Editor(
            await dial(control(node_url, tmp_path / "gpu2" / "node.token", agent="memory", control=False), Timing())
        )
        await there.initialize()
        session_id = (await asked(there, "session/new", cwd="/", mcpServers=[]))["sessionId"]
        prompt = [{"type": "text", "text": "said at the node"}]
        await asked(there, "session/prompt", sessionId=session_id, prompt=prompt)
        name = f"gpu2/{session_id}"
        page = await ws(websocket, token)
        (listed,) = (await asked(page, "session/list"))["sessions"]
        assert (listed["id"], listed["machine"], listed["live"]) == (name, "gpu2", True)
        got = await asked(page, "session/get", sessionId=name)
        assert "said at the node" in str(got["updates"])
        prompt = [{"type": "text", "text": "said at the front"}]
        assert await asked(page, "session/prompt", sessionId=name, prompt=prompt)
        while "said at the front" not in str(await there.receive()):
            pass
        link = (await asked(page, "session/share", sessionId=name))["link"]
        assert link.endswith(f"/s/gpu2%2F{session_id}")
        secret = TokenStore(tmp_path / "front").create_guest(name, role="observer", lifetime=None)[1]
        (tmp_path / "front" / "guest").write_text(secret)
        guest = await ws(websocket, tmp_path / "front" / "guest")
        assert (await asked(guest, "gateway/info"))["session"] == name
        got = await asked(guest, "session/get", sessionId=name)
        assert "said at the node" in str(got["updates"])
        for connection in (there, page, guest):
            await connection.stream.aclose()


async def test_the_link_of_a_hook_leads_to_the_session_of_the_machine(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(Hooks, "fire", lambda *about: told.append(about[-1]))
    async with front(tmp_path, spawner) as it:
        services = it.bench.gateway.services
        listener = ListenSection(url="ws://127.0.0.1:0", public_url="https://front.example")
        services.config = replace(services.config, listen=(listener,))
        page = await it.bench.page(it.access)
        await page.new_session(agentType="gpu1/a", cwd="/")
        (there,) = it.bench.gateway.registry
        services.notify(HookEvent("turn_end", there, {"seconds": 1.0}))
    (about,) = told
    assert (about["sessionId"], about["agent"]) == (there.id, "gpu1/a")
    assert about["link"] == f"https://front.example/#/s/gpu1%2F{there.id}"


async def test_a_list_has_max_browser_sessions_of_nodes_and_tells_how_many_more_there_are(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with front(tmp_path, spawner) as it:
        gateway = it.bench.gateway
        gateway.reconfigure(replace(gateway.config, limits=LimitsSection(max_browser_sessions=2)), ())
        page = await it.bench.page(it.access)
        it.lists("gpu1", *(session(f"a{number}") for number in range(3)))
        assert (await page.result("session/list"))["more"] == 1
        it.directory.set_sessions("gpu2", [session("b", "a", live=False)], 40)
        it.sessions.note_report()
        told = await page.result("session/list")
        assert ([one["id"] for one in told["sessions"]], told["more"]) == (["gpu1/a2", "gpu1/a1"], 2 + 40)
        gateway.reconfigure(replace(gateway.config, limits=LimitsSection()), ())
        assert (await page.result("session/list"))["more"] == 40
        it.directory.set_sessions("gpu2", [], 0)
        it.sessions.note_report()
        assert "more" not in await page.result("session/list")
