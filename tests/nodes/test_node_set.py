"""Nodes that are added and removed while the gateway runs: lookups, connections and tasks follow."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from acp_gateway.client.control import Listing
from acp_gateway.client.control_feed import Overview, Rights
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import Busy, Unreachable
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.nodes import node_set
from acp_gateway.nodes.node_set import NodeSet, open_nodes
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
    monkeypatch.setattr(node_set, "ControlFeed", Feed)
    return Feed.all


@asynccontextmanager
async def opened(gateway: Gateway, *, used: bool = True) -> AsyncIterator[NodeSet]:
    """The nodes of a gateway that runs, whose clients use nodes."""
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        nodes = open_nodes(gateway, "0123456789abcdef", lambda: 0.0)
        await settle()
        if used:
            nodes.watcher.need()
        yield nodes
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
        assert gateway.extensions.absent_nodes == ["the node gpu1 is away since 1970-01-01T00:00:00Z"]
        nodes.remove("gpu1")
        await settle()
        assert feeds[0].cancelled
        assert gateway.config.find_agent("gpu1/a") is None
        assert gateway.extensions.absent_nodes == []


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


def ask_for_a_list(gateway: Gateway, nursery: trio.Nursery) -> None:
    assert gateway.extensions.questions is not None
    asked = gateway.extensions.questions.merge
    nursery.start_soon(asked, Access("me", None), SessionReach("me"), (), {"sessions": []})


def ask_for_an_agent(gateway: Gateway, _nursery: trio.Nursery) -> None:
    gateway.admissions.authorize(Access("me", None), ConnectRequest(agent="gpu1/a"))


def ask_for_a_session(gateway: Gateway, _nursery: trio.Nursery) -> None:
    own = gateway.registry.own_identity
    with pytest.raises(Busy, match="not reached yet"):
        gateway.admissions.authorize(Access(own, None), ConnectRequest(session="gpu1/s"))


@pytest.mark.parametrize("ask", [ask_for_a_list, ask_for_an_agent, ask_for_a_session])
async def test_discovered_nodes_are_watched_from_the_first_use_until_nothing_uses_them_for_long(
    ask: Callable[[Gateway, trio.Nursery], None],
    gateway: EchoingGateway,
    feeds: list[Feed],
    nursery: trio.Nursery,
    mock_clock: MockClock,
) -> None:
    gateway.reconfigure(replace(gateway.config, nodes={"conf": OTHER}), ())
    async with opened(gateway, used=False) as nodes:
        nodes.add("gpu1", SECTION)
        nodes.directory.assume("gpu1", ["a"], may_speak_for=["*"])
        await settle()
        # One that the configuration names is watched always.
        assert [feed.section for feed in feeds] == [OTHER]
        assert gateway.extensions.absent_nodes == ["the node conf is away since 1970-01-01T00:00:00Z"]
        assert {node["name"]: node["watched"] for node in nodes.directory.describe()} == {"conf": True, "gpu1": False}
        ask(gateway, nursery)
        await settle()
        assert [feed.section for feed in feeds] == [OTHER, SECTION]
        feeds[1].report("b", sessions=[session_row("s", agent="b")])
        mock_clock.jump(node_set.IDLE - 1)
        await settle()
        assert not feeds[1].cancelled
        mock_clock.jump(1)
        await settle()
        assert [feed.cancelled for feed in feeds] == [False, True]
        # What it told is kept, and it counts neither as there nor as away.
        node = nodes.directory.nodes["gpu1"]
        assert (node.up, node.asked, node.agents, len(node.sessions)) == (False, False, ("b",), 1)
        assert gateway.extensions.absent_nodes == ["the node conf is away since 1970-01-01T00:00:00Z"]
        ask_for_a_list(gateway, nursery)
        await settle()
        assert [feed.cancelled for feed in feeds] == [False, True, False]


async def test_discovered_nodes_are_watched_while_a_browser_or_a_link_uses_them(
    gateway: EchoingGateway, feeds: list[Feed], mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(gateway, used=False) as nodes:
        nodes.add("gpu1", SECTION)
        assert gateway.extensions.node_sessions is not None
        with gateway.extensions.node_sessions.listening(lambda: None):
            for _ in range(3):
                mock_clock.jump(node_set.IDLE)
                await settle()
            assert [feed.cancelled for feed in feeds] == [False]
        monkeypatch.setattr(EchoingGateway, "hubs", [SimpleNamespace(name="gpu1/a")])
        for _ in range(3):
            mock_clock.jump(node_set.IDLE)
            await settle()
        assert [feed.cancelled for feed in feeds] == [False]
        monkeypatch.setattr(EchoingGateway, "hubs", [SimpleNamespace(name="a")])
        mock_clock.jump(node_set.IDLE)
        await settle()
        assert [feed.cancelled for feed in feeds] == [True]


async def test_a_list_waits_for_the_first_answer_of_a_node_and_not_for_one_that_is_away(
    gateway: EchoingGateway, feeds: list[Feed]
) -> None:
    async with opened(gateway, used=False) as nodes, trio.open_nursery() as nursery:
        nodes.add("gpu1", SECTION)
        nodes.add("gpu2", OTHER)
        nursery.start_soon(nodes.watcher.refresh)
        await settle()
        of = {feed.section: feed for feed in feeds}
        of[SECTION].report("a")
        await settle()
        assert nursery.child_tasks
        of[OTHER].lose()
        await settle()
        assert not nursery.child_tasks
        nursery.start_soon(nodes.watcher.refresh)
        await settle()
        assert (of[SECTION].refreshed, of[OTHER].refreshed) == (1, 0)
        nursery.cancel_scope.cancel()


async def test_a_node_that_does_not_answer_the_request_for_a_list_is_silent_until_it_does(
    gateway: EchoingGateway, feeds: list[Feed], autojump_clock: trio.testing.MockClock
) -> None:
    async with opened(gateway) as nodes:
        nodes.add("gpu1", SECTION)
        await settle()
        feeds[0].report("a")
        assert [node["why"] for node in nodes.directory.describe()] == [None]
        await nodes.watcher.refresh()
        assert [(node["up"], node["why"]) for node in nodes.directory.describe()] == [(True, "it does not answer now")]
        feeds[0].report("a")
        assert [node["why"] for node in nodes.directory.describe()] == [None]
