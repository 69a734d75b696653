"""Sessions that only an agent has on its disk, as browsers see them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.load import WorkspaceSection
from acp_gateway.dialects.browser.pages import MAX_REPLY
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.session_api import disk_sessions
from acp_gateway.gateway.session_api.disk_sessions import AT_ONCE, TEXT, DiskSession, DiskSessions, ToldOnDisk, listed
from acp_gateway.gateway.viewing.session_connection import HIGH_WATER, LARGE_RESPONSES
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.transports.streams import CloseReason
from tests.kit.bridging import prompted, running, section
from tests.kit.doubles import ServingAgent, ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")

OLD = {"sessionId": "old", "cwd": "/", "title": "Mend it", "updatedAt": "2026-01-01T00:00:00Z"}


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> ServingAgents:
    """Agents that list the session `old`."""
    agents = ServingAgents(loadSession=True, sessionCapabilities={"list": {}})
    monkeypatch.setattr(startup, "run_agent", agents.run)
    monkeypatch.setattr(ServingAgent, "listed", [OLD])
    return agents


async def test_a_session_on_an_agents_disk_is_listed_once_and_opened_by_its_id(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access(bench.gateway.registry.own_identity))
        (name,) = bench.gateway.config.agents
        assert "error" in await page.ask("session/get", sessionId="old")
        result = await page.result("agents/sessions", agentType=name)
        told = {"id": "old", "agentType": name, "cwd": "/", "title": "Mend it", "updatedAt": OLD["updatedAt"]}
        assert result == {"sessions": [told], "nextCursor": "more"}
        assert (await page.result("session/list"))["sessions"] == []
        await page.result("agents/sessions", agentType=name, cursor="more")
        assert (await agents[0].got("session/list"))["params"] == {"cursor": "more"}
        got = await page.result("session/get", sessionId="old")
        assert (got["session"]["id"], got["session"]["title"], got["session"]["live"]) == ("old", "Mend it", True)
        assert (await agents[0].got("session/load"))["params"]["sessionId"] == "old"
        await prompted(page, agents[0], "old")
        # It is in the gateway's list since, and not here as well.
        assert [it["id"] for it in (await page.result("session/list"))["sessions"]] == ["old"]
        assert (await page.result("agents/sessions", agentType=name))["sessions"] == []


async def test_sessions_on_disk_are_for_those_who_may_open_them(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        (name,) = bench.gateway.config.agents
        session = await (await bench.page(bench.access(bench.gateway.registry.own_identity), "own")).new_session()
        # They belong to the gateway's own user.
        ben = await bench.page(bench.access("ben"), "ben")
        assert (await ben.result("agents/sessions", agentType=name))["sessions"] == []
        assert "error" in await ben.ask("session/get", sessionId="old")
        guest = await bench.page(bench.guest(session), "guest")
        code, text = await guest.error("agents/sessions", agentType=name)
        assert (code, "for one session only" in text) == (jsonrpc.INVALID_REQUEST, True)
        narrow = await bench.page(bench.access(bench.gateway.registry.own_identity, agents=["other"]), "narrow")
        assert (await narrow.error("agents/sessions", agentType=name))[0] == 403


async def test_a_session_on_disk_is_opened_in_its_directory_or_not_at_all(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    entries = [{"sessionId": name, "cwd": cwd} for name, cwd in (("in", f"{inside}"), ("out", "/"), ("odd", "inside"))]
    monkeypatch.setattr(ServingAgent, "listed", entries)
    async with running(tmp_path, spawner) as bench:
        workspaces = {"first": WorkspaceSection(root=tmp_path / "first"), "second": WorkspaceSection(root=inside)}
        bench.gateway.services.config = replace(bench.gateway.config, workspaces=workspaces)
        page = await bench.page(bench.access(bench.gateway.registry.own_identity))
        (name,) = bench.gateway.config.agents
        await page.result("agents/sessions", agentType=name)
        for refused in ("out", "odd"):
            assert (await page.error("session/get", sessionId=refused))[0] == jsonrpc.INVALID_PARAMS
        got = await page.result("session/get", sessionId="in")
        assert (got["session"]["cwd"], got["session"]["workspace"]) == (f"{inside}", "second")
        loaded = await agents[0].got("session/load")
        assert (loaded["params"]["sessionId"], loaded["params"]["cwd"]) == ("in", f"{inside}")


def test_damaged_entries_of_an_agents_list_are_left_out_and_long_texts_cut() -> None:
    entries: list[Any] = [7, {}, {"sessionId": 1}, {"sessionId": "x" * 5000}, {"sessionId": "known"}]
    entries.append({"sessionId": "s", "title": "t" * 5000, "cwd": 1})
    response = jsonrpc.parse(jsonrpc.result(jsonrpc.RawId(b"1"), {"sessions": entries}))
    assert list(listed(response, "a", lambda name: name == "known")) == [[DiskSession("s", "a", title="t" * TEXT)]]
    empty = jsonrpc.parse(jsonrpc.result(jsonrpc.RawId(b"1"), {"sessions": {}}))
    assert list(listed(empty, "a", lambda _: False)) == []


@pytest.mark.parametrize("value", ["1e999", '"\\ud800"', "9" * 5000, "[" * 300 + "]" * 300])
def test_an_agents_list_may_have_any_json_in_its_entries(value: str) -> None:
    entries = f'[{{"sessionId":"s","title":"t","_meta":{value}}},{{"sessionId":"u"}}]'
    response = jsonrpc.parse(f'{{"jsonrpc":"2.0","id":1,"result":{{"sessions":{entries}}}}}'.encode())
    found = [DiskSession("s", "a", title="t"), DiskSession("u", "a")]
    assert list(listed(response, "a", lambda _: False)) == [found]


async def test_a_page_opens_a_session_on_disk_that_it_was_told_over_an_earlier_connection(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServingAgent, "listed", [OLD, {**OLD, "sessionId": "older"}])
    monkeypatch.setattr(disk_sessions, "MAX_SIZE", disk_sessions.OVERHEAD + 60)
    async with running(tmp_path, spawner) as bench:
        access = bench.access(bench.gateway.registry.own_identity)
        (name,) = bench.gateway.config.agents
        first = await bench.page(access, "first", page_id="p" * 16)
        assert len((await first.result("agents/sessions", agentType=name))["sessions"]) == 2
        second = await bench.page(access, "second", page_id="p" * 16)
        assert (await second.result("session/get", sessionId="older"))["session"]["live"]
        # Beyond the limit only the last ones are kept.
        assert "error" in await second.ask("session/get", sessionId="old")


@pytest.mark.parametrize("page_id", [None, "p" * 16])
async def test_sessions_on_disk_that_a_browser_was_told_count_in_the_memory_limit(
    page_id: str | None, tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access(bench.gateway.registry.own_identity), page_id=page_id)
        (name,) = bench.gateway.config.agents
        inputs = bench.gateway.services.inputs
        await page.result("agents/sessions", agentType=name)
        await trio.testing.wait_all_tasks_blocked()
        told = disk_sessions.OVERHEAD + len(name) + sum(map(len, OLD.values()))
        # The response, which a page may need again, is shorter.
        assert sum(it.input_bytes for it in inputs) >= told
        for it in list(inputs):
            it.close(Disconnect(CloseReason.POLICY, "memory_limit"))
        assert not any(it.input_bytes for it in inputs)


def test_the_sessions_on_disk_that_were_told_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_sessions, "MAX_SIZE", 2 * (disk_sessions.OVERHEAD + 2))
    told = ToldOnDisk()
    first, other, third = (DiskSession(name, agent) for name, agent in ("1a", "1b", "2a"))
    assert told.add([first, other]) == disk_sessions.MAX_SIZE
    assert told.add([first, third]) == 0
    assert list(told.sessions) == [first, third]
    told.clear()
    assert (told.size, list(told.sessions)) == (0, [])


@pytest.mark.parametrize(("named", "other"), [("a", "b"), ("b", "a")])
async def test_of_two_agents_with_a_session_of_one_id_on_disk_the_one_that_is_named_opens_it(
    named: str, other: str, tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServingAgent, "listed", [OLD])
    async with running(tmp_path, spawner, a=section(), b=section()) as bench:
        page = await bench.page(bench.access(bench.gateway.registry.own_identity))
        for name in ("a", "b"):
            assert len((await page.result("agents/sessions", agentType=name))["sessions"]) == 1
        code, why = await page.error("session/get", sessionId="old")
        assert (code, why.startswith("the agents a and b have a session")) == (jsonrpc.INVALID_PARAMS, True)
        for members in ({"agentType": named}, {}, {"agentType": named}):
            got = await page.result("session/get", sessionId="old", **members)
            assert (got["session"]["agentType"], got["session"]["live"]) == (named, True)
        # Both may be one program, with one disk.
        _, why = await page.error("session/get", sessionId="old", agentType=other)
        assert why == f"the agent {named} has a session of this id open, so that of {other} can't be opened"


async def test_lists_that_a_browser_does_not_read_are_as_few_as_histories(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [{**OLD, "sessionId": f"{number}", "title": "t" * TEXT} for number in range(2 * HIGH_WATER // TEXT)]
    monkeypatch.setattr(ServingAgent, "listed", many)
    composed: list[int] = []
    compose = DiskSessions._compose

    async def counted(of: DiskSessions, response: Message, agent: str) -> bytes:
        composed.append(1)
        return await compose(of, response, agent)

    monkeypatch.setattr(DiskSessions, "_compose", counted)
    async with running(tmp_path, spawner) as bench:
        (name,) = bench.gateway.config.agents
        access = bench.access(bench.gateway.registry.own_identity)
        lazy = [await bench.page(access, f"lazy{number}", reads=False) for number in range(2)]
        for page in lazy:
            for number in range(2 * LARGE_RESPONSES):
                await page.send(id=number, method="agents/sessions", params={"agentType": name})
        await trio.testing.wait_all_tasks_blocked()
        assert len(composed) <= LARGE_RESPONSES
        for page in lazy:
            bench.nursery.start_soon(page.read)
        for page in lazy:
            for number in range(2 * LARGE_RESPONSES):
                assert len((await page.response(number))["result"]["sessions"]) == len(many)


def test_other_tasks_get_their_turn_while_a_long_list_is_read() -> None:
    entries = [{"sessionId": f"{number}"} for number in range(2 * AT_ONCE + 1)]
    response = jsonrpc.parse(jsonrpc.result(jsonrpc.RawId(b"1"), {"sessions": entries}))
    assert [len(it) for it in listed(response, "a", lambda _: False)] == [AT_ONCE, AT_ONCE, 1]


async def test_a_page_that_calls_for_a_long_list_again_on_another_connection_gets_it(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [{**OLD, "sessionId": f"{number}"} for number in range(MAX_REPLY // 10)]
    monkeypatch.setattr(ServingAgent, "listed", many)
    async with running(tmp_path, spawner) as bench:
        (name,) = bench.gateway.config.agents
        access = bench.access(bench.gateway.registry.own_identity)
        for connection in ("first", "second"):
            page = await bench.page(access, connection, page_id="p" * 16)
            await page.send(id="c", method="agents/sessions", params={"agentType": name})
            assert len((await page.response("c"))["result"]["sessions"]) == len(many)
