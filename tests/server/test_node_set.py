"""Nodes that are added and removed while the gateway runs: lookups, connections and tasks follow."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.client.control import Listing
from acp_gateway.client.control_feed import Overview, Rights
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Unreachable
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.server import node_watcher
from acp_gateway.server.node_set import NodeSet, open_nodes
from tests.server.echoing import EchoingGateway

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))
OTHER = replace(SECTION, token_file=Path("/other"))
MOVED = replace(SECTION, url=parse_target("wss://moved.example"))


def session_row(session_id: str, **members: Any) -> dict[str, Any]:
    """A session as a node lists it."""
    row = {"sessionId": session_id, "agent": "a", "owner": "me", "live": False, "turn": False, "waiting": []}
    return row | {"connected": 0, "away": 0} | members


class Feed:
    """A connection to a node, which reports what a test says."""

    all: "list[Feed]" = []  # noqa: RUF012

    def __init__(self, destination: Any, handler: Any, **_: Any) -> None:
        self.section: NodeSection = destination.args[0]
        self._handler = handler
        self.cancelled = False
        self.refreshed = 0
        self._released = trio.Event()
        self.all.append(self)

    async def run(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled = True
            self._released.set()

    def refresh(self) -> trio.Event:
        self.refreshed += 1
        return self._released

    def report(self, *agents: str, sessions: Sequence[dict[str, Any]] = ()) -> None:
        self._handler.receive(Overview(Listing([*sessions]), Rights(agents=agents)))

    def lose(self) -> None:
        self._handler.lost(Unreachable("cut"))


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> list[Feed]:
    monkeypatch.setattr(Feed, "all", [])
    monkeypatch.setattr(node_watcher, "ControlFeed", Feed)
    return Feed.all


@asynccontextmanager
async def opened(gateway: Gateway) -> AsyncIterator[NodeSet]:
    """The nodes of a gateway that runs."""
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        yield open_nodes(gateway, "0123456789abcdef", lambda: 0.0)
        nursery.cancel_scope.cancel()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_a_discovered_node_is_watched_and_found_until_it_is_removed(
    gateway: EchoingGateway, feeds: list[Feed]
) -> None:
    async with opened(gateway) as nodes:
        assert gateway.config.find_agent("gpu1/a") is None
        nodes.add("gpu1", SECTION)
        await settle()
        section = gateway.config.find_agent("gpu1/a")
        assert section is not None
        assert section.url == str(SECTION.url)
        feeds[0].report("a")
        assert gateway.admissions.names[-1:] == ["gpu1/a"]
        # To be away is not to be removed.
        feeds[0].lose()
        assert gateway.admissions.names[-1:] == ["gpu1/a"]
        assert gateway.readiness.absent_nodes() == ["the node gpu1 is away since 1970-01-01T00:00:00Z"]
        nodes.remove("gpu1")
        await settle()
        assert feeds[0].cancelled
        assert gateway.config.find_agent("gpu1/a") is None
        assert gateway.readiness.absent_nodes() == []


async def test_a_node_with_another_section_is_connected_again_and_one_with_the_same_is_not(
    gateway: EchoingGateway, feeds: list[Feed]
) -> None:
    async with opened(gateway) as nodes:
        nodes.add("gpu1", SECTION)
        nodes.add("gpu2", OTHER)
        await settle()
        nodes.add("gpu1", MOVED)
        nodes.add("gpu2", replace(OTHER))
        await settle()
        # Tasks begin in any order.
        assert len(feeds) == 3
        assert {feed.section: feed.cancelled for feed in feeds} == {SECTION: True, OTHER: False, MOVED: False}


async def test_what_a_connection_reports_that_was_replaced_does_not_count(
    gateway: EchoingGateway, feeds: list[Feed], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(gateway) as nodes:
        nodes.add("gpu1", SECTION)
        await settle()
        nodes.add("gpu1", MOVED)
        # Its task has not run since.
        feeds[0].report("old")
        feeds[0].lose()
        assert nodes.directory.nodes["gpu1"].agents is None
        nodes.remove("gpu1")
        feeds[0].report("old")
        assert nodes.directory.nodes == {}
        assert caplog.messages == []


async def test_an_adoption_has_the_nodes_that_it_is_about_list_their_sessions(
    gateway: EchoingGateway, feeds: list[Feed]
) -> None:
    async with opened(gateway) as nodes:
        for name in ("gpu1", "gpu2", "gpu3"):
            nodes.add(name, replace(SECTION, token_file=Path(name)))
        await settle()
        of = {feed.section.token_file.name: feed for feed in feeds}
        nodes.note_adoption("gpu1/s", "gpu2")
        assert {name: of[name].refreshed for name in sorted(of)} == {"gpu1": 0, "gpu2": 1, "gpu3": 0}
        of["gpu2"].report("a", sessions=[session_row("s", home="gpu1")])
        # Another one adopts it from the one that has adopted it.
        nodes.note_adoption("gpu1/s", "gpu3")
        assert {name: of[name].refreshed for name in sorted(of)} == {"gpu1": 0, "gpu2": 2, "gpu3": 1}
        nodes.note_adoption("gpu9/s", "unknown")
        assert {name: of[name].refreshed for name in sorted(of)} == {"gpu1": 0, "gpu2": 2, "gpu3": 1}


async def test_a_list_waits_for_no_node_that_has_been_removed(gateway: EchoingGateway, feeds: list[Feed]) -> None:
    async with opened(gateway) as nodes, trio.open_nursery() as nursery:
        nodes.add("gpu1", SECTION)
        await settle()
        feeds[0].report("a")
        nursery.start_soon(nodes.watcher.refresh)
        await settle()
        assert (feeds[0].refreshed, len(nursery.child_tasks)) == (1, 1)
        nodes.remove("gpu1")
        await settle()
        assert not nursery.child_tasks
