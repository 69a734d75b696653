"""The sessions of an editor's composers: which one a composer has, what opens it, and what a restart does."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import WorkspaceSection
from acp_gateway.dialects.editor.service import EditorSection
from acp_gateway.gateway.agent.process import Spawner
from tests.dialects.editor.editing import EditingBench, HttpEditor, serving_editors, tells
from tests.dialects.editor.test_turns import of_method, prompts, started
from tests.kit.bridging import editor_in, ends_turn, section
from tests.kit.doubles import ServingAgent, ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed", "heads_at_once")

COMMANDS = [{"name": "plan", "description": "Make a plan"}]


def composer(name: str = "c", agent: str = "fake", **more: Any) -> dict[str, Any]:
    return {"provider": {"id": agent}, "composerId": name, **more}


async def session_of(editor: HttpEditor, name: str = "c", agent: str = "fake", **more: Any) -> str:
    session: str = (await editor.answer("getSession", composer(name, agent, **more)))["sessionId"]
    return session


async def answered(there: EditingBench, editor: HttpEditor, agents: ServingAgents, text: str, count: int = 1) -> str:
    """The session of a message whose turn has ended."""
    async with editor.sent(text) as turn:
        agent = await started(agents)
        prompt = (await prompts(agent, count))[-1]
        await ends_turn(agent)
        assert (await turn.rest())[-1]["type"] == "done"
    session: str = prompt["params"]["sessionId"]
    return session


async def test_a_composer_has_one_session_per_identity_and_agent(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(
        tmp_path, spawner, agents={"fake": section(), "other": section()}, gateway={"default_agent": "fake"}
    ) as there:
        ann, ben = there.http(), there.http("ben")
        first = await session_of(ann)
        assert await session_of(ann) == await session_of(there.http()) == first
        others = [await session_of(ann, "d"), await session_of(ben), await session_of(ann, agent="other")]
        assert len({first, *others}) == 4


async def test_messages_at_once_for_a_new_composer_open_one_session(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    found: set[str] = set()
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()

        async def look() -> None:
            found.add(await session_of(editor))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(look)
    assert len(found) == 1
    assert len(of_method(agents[0], "session/new")) == 1


async def test_a_composer_finds_its_session_again_after_a_restart_of_the_gateway(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        session = await answered(there, there.http(), loading_agents, "one")
    async with serving_editors(tmp_path, spawner) as there, there.http().sent("two") as turn:
        while len(loading_agents) < 2:
            await trio.lowlevel.checkpoint()
        agent = loading_agents[1]
        (prompt,) = await prompts(agent, 1)
        assert prompt["params"]["sessionId"] == session
        await ends_turn(agent)
        await turn.rest()
    assert [it["params"]["sessionId"] for it in of_method(agent, "session/load")] == [session]
    assert of_method(agent, "session/new") == []


@pytest.mark.parametrize("code", [-32601, -32002])
async def test_a_composer_whose_session_can_not_be_continued_begins_a_new_one(
    code: int, tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ServingAgent._answer

    async def forgets(agent: ServingAgent, to: Any, method: str) -> None:
        if method in ("session/resume", "session/load"):
            await agent.send(id=to, error={"code": code, "message": "not here"})
        else:
            await answer(agent, to, method)

    monkeypatch.setattr(ServingAgent, "_answer", forgets)
    async with serving_editors(tmp_path, spawner) as there:
        session = await answered(there, there.http(), agents, "one")
    async with serving_editors(tmp_path, spawner, limits=LimitsSection(subscribed_sessions=1)) as there:
        async with there.http().sent("two") as turn:
            while len(agents) < 2:
                await trio.lowlevel.checkpoint()
            (prompt,) = await prompts(agents[1], 1)
            new = prompt["params"]["sessionId"]
            await ends_turn(agents[1])
            assert (await turn.rest())[-1]["type"] == "done"
        assert (new != session, await session_of(there.http())) == (True, new)


async def test_a_composer_keeps_its_session_if_the_agent_fails_to_open_it(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, fails = ServingAgent._answer, True

    async def may_fail(agent: ServingAgent, to: Any, method: str) -> None:
        if fails and method in ("session/resume", "session/load"):
            await agent.send(id=to, error={"code": -32603, "message": "no disk"})
        else:
            await answer(agent, to, method)

    monkeypatch.setattr(ServingAgent, "_answer", may_fail)
    async with serving_editors(tmp_path, spawner) as there:
        session = await answered(there, there.http(), agents, "one")
    async with serving_editors(tmp_path, spawner) as there:
        reply = await there.http().ask("two")
        assert (reply.status, json.loads(reply.body)) == (500, {"error": True, "message": "no disk"})
        fails = False
        async with there.http().sent("three") as turn:
            (prompt,) = await prompts(agents[-1], 1)
            assert prompt["params"]["sessionId"] == session
            await ends_turn(agents[-1])
            await turn.rest()


async def test_a_session_that_was_deleted_is_followed_by_a_new_one(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        session = await session_of(there.http())
        (found,) = there.gateway.registry._by_id[session]
        there.gateway.registry.remove(found)
        assert await session_of(there.http()) != session


async def test_a_composer_beyond_composers_per_identity_is_forgotten(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner, options=EditorSection(composers_per_identity=1)) as there:
        editor = there.http()
        first = await session_of(editor, "a")
        assert await session_of(editor, "b") != first
        assert await session_of(editor, "a") != first


async def test_the_first_new_composer_gets_the_session_of_init_session(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there, trio.open_nursery() as nursery:
        editor, found = there.http(), []

        async def begin() -> None:
            found.append(await editor.answer("initSession", {"provider": {"id": "fake"}}))

        nursery.start_soon(begin)
        await (await started(agents)).got("session/new")
        await tells(agents[0], "s1.1", sessionUpdate="available_commands_update", availableCommands=COMMANDS)
        while not found:
            await trio.lowlevel.checkpoint()
        assert found == [{"sessionId": "s1.1", "commands": COMMANDS}]
        assert await editor.answer("initSession", {"provider": {"id": "fake"}}) == found[0]
        assert json.loads((await editor.get("/acp/getSlashCommands?providerId=fake")).body) == COMMANDS
        assert await session_of(editor, "a") == "s1.1"
        assert await session_of(editor, "b") == "s1.2"
        assert json.loads((await there.http("ben").get("/acp/getSlashCommands?providerId=fake")).body) == []


async def test_the_commands_are_known_after_a_restart_without_the_agent(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner) as there:
        session = await session_of(there.http())
        await tells(agents[0], session, sessionUpdate="available_commands_update", availableCommands=COMMANDS)
        await answered(there, there.http(), agents, "one")
    async with serving_editors(tmp_path, spawner) as there:
        assert json.loads((await there.http().get("/acp/getSlashCommands?providerId=fake")).body) == COMMANDS
        assert json.loads((await there.http("ben").get("/acp/getSlashCommands?providerId=fake")).body) == []
    assert len(agents) == 1


async def test_a_session_in_which_another_client_has_begun_is_given_to_no_composer(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.dialects.editor.sessions.COMMANDS_TIMEOUT", 0.0)
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        spare = (await editor.answer("initSession", {"provider": {"id": "fake"}}))["sessionId"]
        other = await editor_in(there, spare)
        text = [{"type": "text", "text": "mine"}]
        await other.send(id="p", method="session/prompt", params={"sessionId": spare, "prompt": text})
        await prompts(loading_agents[0], 1)
        assert await session_of(editor, "a") != spare
        await ends_turn(loading_agents[0])
        while (await other.receive()).get("id") != "p":
            pass
        assert await session_of(editor, "b") != spare


async def test_init_session_waits_for_commands_only_for_a_moment(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.dialects.editor.sessions.COMMANDS_TIMEOUT", 0.0)
    async with serving_editors(tmp_path, spawner) as there:
        found = await there.http().answer("initSession", {"provider": {"id": "fake"}})
    assert found == {"sessionId": "s1.1", "commands": []}


async def test_a_mode_is_set_only_when_it_is_asked_for(tmp_path: Path, spawner: Spawner, agents: ServingAgents) -> None:
    """The original sets `bypassPermissions`."""
    async with serving_editors(tmp_path, spawner) as there:
        editor = there.http()
        for number, mode in enumerate([None, "", "plan"], 1):
            async with editor.sent(modeId=mode) as turn:
                agent = await started(agents)
                await prompts(agent, number)
                await ends_turn(agent)
                await turn.rest()
        (mode_set,) = of_method(agent, "session/set_mode")
        assert mode_set["params"] == {"sessionId": "s1.1", "modeId": "plan"}
        methods = [it["method"] for it in agent.received if it.get("method", "").startswith("session/")]
        assert methods == ["session/new", *["session/prompt"] * 2, "session/set_mode", "session/prompt"]
        assert b"bypassPermissions" not in json.dumps(agent.received).encode()


async def test_a_session_begins_in_a_workspace_of_the_token(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    workspaces = {name: WorkspaceSection(root=tmp_path / name) for name in ("one", "two")}
    async with serving_editors(tmp_path, spawner, workspaces=workspaces) as there:
        await session_of(there.http())
        narrow = there.http(workspaces=("two",))
        # The session of the other token is not for this one.
        refused = await narrow.post("getSession", composer())
        assert (refused.status, refused.headers["acp-gateway"]) == (404, "unknown_session")
        await session_of(narrow, "d")
        await session_of(narrow, "e", cwd=str(tmp_path / "two"))
        outside = await narrow.post("getSession", composer("f", cwd=str(tmp_path / "one")))
        assert (outside.status, json.loads(outside.body)["error"]) == (500, True)
        assert [it["params"]["cwd"] for it in of_method(agents[0], "session/new")] == [
            str(tmp_path / name) for name in ("one", "two", "two")
        ]


async def test_a_session_of_init_session_is_given_only_where_a_new_one_would_be(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.dialects.editor.sessions.COMMANDS_TIMEOUT", 0.0)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    workspaces = {name: WorkspaceSection(root=tmp_path / name) for name in ("one", "two")}
    async with serving_editors(tmp_path, spawner, workspaces=workspaces) as there:
        wide, narrow = there.http(), there.http(workspaces=("two",))
        spare = (await narrow.answer("initSession", {"provider": {"id": "fake"}}))["sessionId"]
        assert await session_of(wide, "a") != spare
        assert await session_of(wide, "b", cwd=str(tmp_path / "two")) == spare
        spare = (await wide.answer("initSession", {"provider": {"id": "fake"}}))["sessionId"]
        # It is out of reach for this token, which gets one of its own.
        assert await session_of(narrow, "c") != spare
        assert await session_of(wide, "d") == spare


async def test_without_a_workspace_a_session_begins_where_its_agent_runs(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    there_too = {"fake": section(), "placed": section(cwd=tmp_path)}
    async with serving_editors(
        tmp_path, spawner, workspaces={}, agents=there_too, gateway={"default_agent": "fake"}
    ) as there:
        await session_of(there.http(), agent="placed")
        assert [it["params"]["cwd"] for it in of_method(agents[0], "session/new")] == [str(tmp_path)]
        # A service's user may have no home.
        monkeypatch.setattr("acp_gateway.gateway.workspaces.Path.home", lambda: Path("/"))
        nowhere = await there.http().post("getSession", composer())
        assert nowhere.status == 500
        assert "workspace" in json.loads(nowhere.body)["message"]


async def test_the_agent_of_a_connection_stays_between_two_messages(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with serving_editors(tmp_path, spawner, agents={"fake": section("connection")}) as there:
        editor = there.http()
        first = await answered(there, editor, agents, "one")
        assert await answered(there, editor, agents, "two", 2) == first
    assert len(agents) == 1
