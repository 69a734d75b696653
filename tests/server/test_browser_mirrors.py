"""Mirrored histories on `/ws`, of sessions whose node is away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.core.journal import Journal
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.history import Mirror
from acp_gateway.protocol.gaps import gap
from acp_gateway.server.browser_mirrors import CLOCKS
from tests.doubles import ServingAgents
from tests.gateway.test_node_sessions import session
from tests.server.bridging import TEXT, Page, says
from tests.server.test_browser_nodes import Front, front

pytestmark = pytest.mark.usefixtures("no_bug_showed")

TOLD = "the node gpu1 is away"


class AwayFront(Front):
    """A gateway whose node gpu1 is away, and which has mirrors."""

    def __init__(self, front: Front) -> None:
        self.bench, self.directory, self.sessions = front.bench, front.directory, front.sessions
        self.mirrors: dict[str, list[str]] = {}
        self.time = 1
        self.asked: list[tuple[str, str, str]] = []
        self.bench.gateway.read_mirror = self._read
        self.away()

    async def _read(self, access: Access, agent: str, session_id: str) -> Mirror | None:
        self.asked.append((access.identity, agent, session_id))
        if session_id not in self.mirrors:
            return None
        journal = Journal(10_000, "j me")
        for text in self.mirrors[session_id]:
            journal.append(gap(session_id, text), time=self.time)
        journal.append(gap(session_id, f"[acp-gateway: {TOLD}]"))
        return Mirror(journal, TOLD)

    def away(self) -> None:
        """Have gpu1 not answer."""
        self.directory.set_away("gpu1", "refused", 60.0, "unreachable")
        self.sessions.note_report()

    def back(self) -> None:
        """Have gpu1 answer again."""
        self.directory.set_up("gpu1", ["a"], "1.0", 90.0)
        self.sessions.note_report()


@asynccontextmanager
async def away_front(folder: Path, spawner: Spawner) -> AsyncIterator[AwayFront]:
    async with front(folder, spawner) as it:
        yield AwayFront(it)


def texts(answer: dict[str, Any]) -> list[str]:
    return [update["payload"]["content"]["text"] for update in answer["updates"]]


async def test_session_get_has_the_mirrored_history_and_says_what_it_is(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with away_front(tmp_path, spawner) as it:
        it.lists("gpu1", session("s", title="there"))
        it.mirrors["s"] = ["one", "two"]
        page = await it.bench.page(it.access)
        answer = await page.result("session/get", sessionId="gpu1/s")
        assert texts(answer) == ["one", "two", f"[acp-gateway: {TOLD}]"]
        shown = answer["session"]
        assert (shown["id"], shown["title"], shown["mayControl"]) == ("gpu1/s", "there", False)
        assert shown["unreachableSince"] == "1970-01-01T00:01:00Z"
        assert it.asked == [(it.access.identity, "gpu1/a", "s")]
        (last,) = (await page.result("session/get", sessionId="gpu1/s", limit=1))["updates"]
        assert last["seq"] == 3
        assert not loading_agents.started


@pytest.mark.parametrize("method", ["session/prompt", "session/set_mode", "session/delete", "session/archive"])
async def test_session_of_a_mirror_cannot_be_changed(
    method: str, tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with away_front(tmp_path, spawner) as it:
        it.lists("gpu1", session("s"))
        it.mirrors["s"] = ["one"]
        page = await it.bench.page(it.access)
        await page.result("session/get", sessionId="gpu1/s")
        error = await refused(page, method, sessionId="gpu1/s", prompt=TEXT, modeId="m", archived=True)
        assert (error["message"], error["data"]["reason"]) == (TOLD, "node_away")


async def refused(page: Page, method: str, **params: Any) -> dict[str, Any]:
    error: dict[str, Any] = (await page.ask(method, **params))["error"]
    return error


async def test_page_is_told_to_ask_again_when_the_node_is_back(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with away_front(tmp_path, spawner) as it:
        it.lists("gpu1", session("s"))
        it.mirrors["s"] = ["one"]
        page = await it.bench.page(it.access)
        await page.result("session/get", sessionId="gpu1/s")
        it.sessions.note_report()
        await page.result("session/list")
        assert page.of("session/reset") == []
        it.back()
        await page.until(lambda: page.of("session/reset") or None)
        assert page.of("session/reset") == [{"sessionId": "gpu1/s", "epoch": ""}]
        answer = await page.result("session/get", sessionId="gpu1/s")
        assert TOLD not in str(answer)
        (agent,) = loading_agents.started
        await agent.got("session/load")


@pytest.mark.parametrize(("later", "shows_mirror"), [(0, False), (CLOCKS + 1000, True)])
async def test_own_history_that_is_as_recent_wins_over_the_mirror(
    later: int, shows_mirror: bool, tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with away_front(tmp_path, spawner) as it:
        it.back()
        page = await it.bench.page(it.access)
        loading_agents.session_id = "s"
        assert (await page.result("session/new", agentType="gpu1/a", cwd="/"))["sessionId"] == "gpu1/s"
        await says(loading_agents[0], "s", "here")
        await page.result("session/get", sessionId="gpu1/s")
        (known,) = it.bench.gateway.registry.by_id("s")
        await page.until(lambda: known.active_at)
        hub = it.bench.gateway.hubs[0]
        hub.end()
        await page.until(lambda: not known.live or None)
        it.lists("gpu1", session("s"))
        it.away()
        it.mirrors["s"], it.time = ["there"], (known.active_at or 0) + later
        answer = await page.result("session/get", sessionId="gpu1/s")
        assert texts(answer) == (["there", f"[acp-gateway: {TOLD}]"] if shows_mirror else ["here"])
