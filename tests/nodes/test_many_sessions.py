"""Thousands of sessions of nodes: all are listed and joined at the gateway in front."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.control import Listing, list_sessions
from acp_gateway.client.dialing import dial
from acp_gateway.config.limits import LimitsSection
from acp_gateway.errors import UnknownSession
from acp_gateway.nodes import asking
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import Editor
from tests.kit.machines import control, front_config, node_config, node_section, until_agents
from tests.kit.serving import serving

SIZE = 32 * 1024 * 1024

AT_ONCE = 100
"""Sessions that are opened at a time, so that thousands take seconds on a busy machine."""

LIMITS = LimitsSection(sessions_per_identity=4096, max_open_requests=4096)


class Fleet:
    """A gateway in front of nodes with sessions."""

    def __init__(self, front: str, sessions: dict[str, list[str]]) -> None:
        self.front = front
        self.sessions = sessions
        """By node: the ids of its sessions, in the order in which they were opened."""

    async def until_listed(self, count: int) -> Listing:
        """The list of the front, once it has so many sessions: it does not wait for a slow node."""
        while len((found := await list_sessions(self._control(), time_limit=60)).sessions) != count:
            await trio.lowlevel.checkpoint()
        return found

    def _control(self) -> Any:
        return replace(control(self.front), max_message_size=SIZE)

    async def at_front(self, **more: Any) -> Editor:
        """An editor at the front."""
        destination = replace(control(self.front, control=False, **more), max_message_size=SIZE)
        return Editor(await dial(destination, Timing()))

    async def says(self, node: str, session: str, *, agent: str | None = None) -> str:
        """Join a session by its name, and return what the agent says to a prompt."""
        editor = await self.at_front(session=f"{node}/{session}", agent=agent)
        await editor.initialize()
        opened = await editor.request("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})
        assert "error" not in opened
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": f"hello {session}"}]}
        await editor.send(id="turn", method="session/prompt", params=prompt)
        said = []
        while (message := await editor.receive()).get("id") != "turn":
            update = message.get("params", {}).get("update", {})
            if update.get("sessionUpdate") == "agent_message_chunk":
                said.append(update["content"]["text"])
        assert message["result"] == {"stopReason": "end_turn"}
        await editor.stream.aclose()
        return "".join(said)


async def opened(url: str, count: int) -> list[str]:
    """Open sessions at a node; its clients leave then."""
    editor = Editor(await dial(replace(control(url, control=False), agent="memory"), Timing()))
    await editor.initialize()
    made: dict[int, str] = {}
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        for number in numbers:
            await editor.send(id=number, method="session/new", params={"cwd": "/", "mcpServers": []})
        while len(made) < numbers.stop:
            response = await editor.receive()
            made[response["id"]] = response["result"]["sessionId"]
    await editor.stream.aclose()
    return [made[number] for number in range(count)]


@asynccontextmanager
async def fleet(
    folder: Path, counts: dict[str, int], limits: LimitsSection = LIMITS, front_limits: LimitsSection = LIMITS
) -> AsyncIterator[Fleet]:
    """A front with nodes of so many live sessions each."""
    async with AsyncExitStack() as stack:
        nodes, sessions = {}, {}
        for name, count in counts.items():
            config = replace(node_config(folder / name, url=f"unix://{folder}/{name}/socket"), limits=limits)
            own, url = await stack.enter_async_context(
                serving(replace(config, listen=(*config.listen, *node_config(folder / name).listen)))
            )
            sessions[name] = await opened(own, count)
            nodes[name] = node_section(folder / name, url)
        config = replace(front_config(folder / "front", nodes), limits=front_limits)
        front, _ = await stack.enter_async_context(serving(config))
        await until_agents(front, *(f"{name}/memory" for name in counts))
        yield Fleet(front, sessions)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [{"gpu1": 1000, "gpu2": 1000, "gpu3": 1000}, {"gpu1": 3000}])
async def test_three_thousand_sessions_are_listed_and_joined_at_the_front(
    tmp_path: Path, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LIST_TIMEOUT", 60)
    async with fleet(tmp_path, counts) as it:
        listing = await it.until_listed(3000)
        assert listing.more == 0
        names = {f"{node}/{session}" for node, ids in it.sessions.items() for session in ids}
        assert {session["sessionId"] for session in listing.sessions} == names
        for node, ids in it.sessions.items():
            for session in (ids[0], ids[-1]):
                assert await it.says(node, session) == f"hello {session}"
        editor = await it.at_front(agent="gpu1/memory")
        await editor.initialize()
        listed = (await editor.request("session/list", {}))["result"]["sessions"]
        assert {one["sessionId"] for one in listed} == {*it.sessions["gpu1"]}
        await editor.stream.aclose()


async def test_a_session_beyond_max_node_sessions_is_counted_and_joined_by_its_name(tmp_path: Path) -> None:
    limits = replace(LIMITS, max_node_sessions=3)
    for folder, counts, at_node, at_front in (("node", 5, limits, LIMITS), ("front", 5, LIMITS, limits)):
        async with fleet(tmp_path / folder, {"gpu1": counts}, at_node, at_front) as it:
            listing = await it.until_listed(3)
            oldest, latest = it.sessions["gpu1"][0], it.sessions["gpu1"][-3:]
            assert [session["sessionId"] for session in listing.sessions] == [f"gpu1/{session}" for session in latest]
            assert listing.more == 2
            assert await it.says("gpu1", oldest) == f"hello {oldest}"
            assert await it.says("gpu1", it.sessions["gpu1"][1], agent="gpu1/memory") != ""
            with pytest.raises(UnknownSession):
                await it.at_front(session="gpu2/1")


async def test_sessions_without_a_prompt_are_listed_after_a_restart_of_their_node(tmp_path: Path) -> None:
    config = node_config(tmp_path / "gpu1", url=f"unix://{tmp_path}/gpu1/socket")
    config = replace(config, listen=(*config.listen, *node_config(tmp_path / "gpu1").listen))
    async with serving(config) as (own, _):
        ids = await opened(own, 3)
    async with serving(config) as (own, url):
        at_node = await list_sessions(control(own), time_limit=60)
        assert [(it["sessionId"], it["live"]) for it in at_node.sessions] == [(name, False) for name in ids]
        nodes = {"gpu1": node_section(tmp_path / "gpu1", url)}
        async with serving(front_config(tmp_path / "front", nodes)) as (front, _):
            await until_agents(front, "gpu1/memory")
            found = await Fleet(front, {"gpu1": ids}).until_listed(3)
            assert [it["sessionId"] for it in found.sessions] == [f"gpu1/{name}" for name in ids]
