"""The state of nodes: found out when the gateway starts, when a client asks, and by every attempt to reach one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Unauthorized, Unreachable
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.nodes import looks
from acp_gateway.nodes.looks import NodeLooks, Told
from acp_gateway.nodes.node_set import NodeSet
from tests.kit.fake_gateway import DESTINATION

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))
MOVED = replace(SECTION, url=parse_target("wss://moved.example"))
STATE = {"sessions": [], "access": {"agents": {"a": "identity"}, "version": "1.0", "identity": "door", "claims": 1}}
AWAY = Unreachable("no route")


class Nodes:
    """Nodes that answer as a test says."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        """By name: a result, an exception, or None for no answer at all."""
        self.asked: list[str] = []

    async def ask(self, name: str) -> tuple[Destination, Told]:
        self.asked.append(name)
        answer = self.answers.get(name, STATE)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await trio.sleep_forever()
        return DESTINATION, Told(answer["access"], answer, answer.get("machine"))


@asynccontextmanager
async def looking(*names: str, **answers: Any) -> AsyncIterator[tuple[Nodes, NodeSet]]:
    """The nodes of a configuration, once they were looked at."""
    nodes, directory = Nodes(), NodeDirectory(dict.fromkeys(names, SECTION), 0.0)
    nodes.answers |= answers
    its = NodeLooks(directory, nodes.ask, lambda: 60.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its.run)
        await settle()
        yield nodes, NodeSet(directory, its, lambda: 0.0)
        nursery.cancel_scope.cancel()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_nodes_of_the_configuration_are_looked_at_once_with_the_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with looking("gpu1", "gpu2", gpu2=AWAY) as (nodes, its):
        up, away = its.directory.nodes["gpu1"], its.directory.nodes["gpu2"]
        assert (up.up, up.agents, up.version) == (True, ("a",), "1.0")
        assert (away.up, away.why, away.agents) == (False, "no route", None)
        assert sorted(nodes.asked) == ["gpu1", "gpu2"]
        assert sorted(caplog.messages) == ["node gpu1 is there; its agents: a", "node gpu2 is away: no route"]


@pytest.mark.parametrize("access", [None, {"agents": {"a": "identity"}}, {"claims": "1"}, {"claims": 0}])
async def test_a_node_that_knows_no_doors_is_too_old_until_it_was_upgraded(access: Any) -> None:
    async with looking("gpu1", gpu1={"sessions": [], "access": access}) as (nodes, its):
        node = its.directory.nodes["gpu1"]
        assert (node.up, node.is_too_old) == (False, True)
        assert node.away == "the node gpu1 is too old for this gateway: upgrade acp-gateway there"
        (described,) = its.directory.describe()
        assert (described["reason"], described["why"]) == ("too_old", "it is too old: upgrade acp-gateway there")
        nodes.answers["gpu1"] = STATE
        its.looks.look_at("gpu1")
        await settle()
        assert (node.up, node.is_too_old) == (True, False)


async def test_the_load_of_a_node_has_its_machine_without_who_holds_its_gpus() -> None:
    holder = {"memory": 1, "sessionId": "s"}
    gpu = {"name": "A", "use": 0.5, "total": 2, "used": 1, "temperature": None, "holders": [holder]}
    load = {"sessions": 3, "turns": 1, "lag": 0.5}
    machine = {"name": "gpu", "cpus": 8, "busy": 0.5, "gpus": [gpu]}
    async with looking("gpu1", "gpu2", gpu1=STATE | {"load": load, "machine": machine}) as (_, its):
        (told, other) = its.directory.describe()
        assert {name: told["load"][name] for name in load} == load
        assert (told["load"]["machine"]["cpus"], other["load"]) == (8, None)
        assert not told["load"]["machine"]["gpus"][0]["holders"]


async def test_a_bug_of_a_look_is_logged_and_the_gateway_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with looking("gpu1", "gpu2", gpu1=ZeroDivisionError()) as (nodes, its):
        hit, other = its.directory.nodes["gpu1"], its.directory.nodes["gpu2"]
        assert (hit.up, other.up) == (False, True)
        assert "ZeroDivisionError" in caplog.text
        nodes.answers.clear()
        await its.looks.refresh()
        assert hit.up


async def test_a_node_that_is_added_or_moves_is_looked_at_and_a_discovered_one_when_a_client_asks() -> None:
    async with looking("gpu1") as (nodes, its):
        its.configure({"gpu1": MOVED, "gpu2": SECTION})
        await settle()
        assert sorted(nodes.asked) == ["gpu1", "gpu1", "gpu2"]
        its.add("gpu3", SECTION)
        await settle()
        assert "gpu3" not in nodes.asked
        its.looks.look_soon()
        await settle()
        assert its.directory.nodes["gpu3"].up
        its.remove("gpu3")
        assert "gpu3" not in its.directory.nodes


async def test_those_who_do_not_wait_have_nodes_looked_at_once_in_a_while(autojump_clock: MockClock) -> None:
    async with looking("gpu1") as (nodes, its):
        for _ in range(3):
            its.looks.look_soon()
            await settle()
        assert len(nodes.asked) == 1
        await trio.sleep(looks.FRESH)
        its.looks.look_soon()
        await settle()
        assert len(nodes.asked) == 2


async def test_who_asks_waits_for_all_nodes_together_and_a_silent_one_is_noted(autojump_clock: MockClock) -> None:
    async with looking("gpu1", "gpu2") as (nodes, its):
        nodes.answers = {"gpu1": AWAY, "gpu2": None}
        begin = trio.current_time()
        await its.looks.refresh()
        assert trio.current_time() - begin == looks.PATIENCE
        up, silent = its.directory.nodes["gpu1"], its.directory.nodes["gpu2"]
        assert (up.up, silent.up, silent.silent) == (False, True, True)
        # One look at a time.
        await its.looks.refresh()
        assert nodes.asked.count("gpu2") == 2
        await trio.sleep(looks.LOOK_TIMEOUT)
        assert (silent.up, silent.why) == (False, "it did not answer within 10 seconds")


async def test_an_attempt_for_a_client_shows_that_a_node_is_away_and_then_there_again() -> None:
    async with looking("gpu1") as (nodes, its):
        results: list[Any] = [AWAY, object()]

        async def reach(name: str) -> Any:
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            return result

        noting: Callable[[str], Awaitable[Any]] = its.looks.noting(reach)
        nodes.answers["gpu1"] = None
        with pytest.raises(Unreachable):
            await noting("gpu1")
        assert its.directory.nodes["gpu1"].why == "no route"
        nodes.answers["gpu1"] = STATE
        await noting("gpu1")
        await settle()
        assert its.directory.nodes["gpu1"].up


@pytest.mark.parametrize("answer", [Unauthorized("x"), {"sessions": "x"}, [], {"sessions": [{}]}], ids=repr)
async def test_a_node_that_refuses_or_is_not_understood_is_away(answer: Any) -> None:
    async with looking("gpu1", gpu1=answer) as (_, its):
        assert its.directory.nodes["gpu1"].asked
        assert not its.directory.nodes["gpu1"].up


async def test_the_answer_of_a_node_that_was_moved_before_it_does_not_count() -> None:
    async with looking("gpu1") as (nodes, its):
        go = trio.Event()

        async def late(name: str) -> tuple[Destination, Told]:
            await go.wait()
            return DESTINATION, Told({"agents": {"old": "identity"}, "claims": 1}, STATE)

        its.looks._ask = late
        async with trio.open_nursery() as nursery:
            nursery.start_soon(its.looks.refresh)
            await settle()
            its.looks._ask = nodes.ask
            its.configure({"gpu1": MOVED})
            assert not its.directory.nodes["gpu1"].up
            go.set()
        await settle()
        assert (its.directory.nodes["gpu1"].up, its.directory.nodes["gpu1"].agents) == (True, ("a",))
