"""One node of a cluster: renewing, learning, losing the directory."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.config.cluster import ClusterSection, RedisAddress
from acp_gateway.config.nodes import NodeSection
from acp_gateway.nodes.known_nodes import ClusterNodes, KnownCluster, KnownNodesFile
from acp_gateway.nodes.member import Member
from acp_gateway.nodes.store import Change, NodeRecord
from tests.nodes.memory_store import MemoryDirectory

REDIS = RedisAddress("127.0.0.1", 1, "", tls=False, db=0, user=None)


class Nodes:
    """The nodes of a gateway."""

    def __init__(self) -> None:
        self.added: dict[str, NodeSection] = {}
        self.assumed: dict[str, NodeRecord] = {}

    def add(self, name: str, section: NodeSection) -> None:
        self.added[name] = section

    def remove(self, name: str) -> None:
        del self.added[name]

    def assume(self, record: NodeRecord) -> None:
        self.assumed[record.name] = record


class File(KnownNodesFile):
    """The file of known nodes, in memory."""

    def __init__(self) -> None:
        self.content = KnownCluster()

    def read(self) -> KnownCluster:
        return self.content

    async def write(self, known: KnownCluster) -> None:
        await trio.lowlevel.checkpoint()
        self.content = known


class Node:
    """A member with its nodes."""

    def __init__(self, directory: MemoryDirectory, name: str, boot: str = "b", **options: Any) -> None:
        section = ClusterSection(url=REDIS, name=name, token_file=Path("t"), **options)
        self.nodes = Nodes()
        self.file = File()
        self.record = NodeRecord(name=name, url=f"wss://{name}:1", boot=boot)
        self.member = Member(
            *(directory.store(name), section, boot, lambda: self.record, self.nodes),
            *(ClusterNodes(name, section.token_file), self.file),
            clock=lambda: 1e9 + trio.current_time(),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.member.run)
            await wait_all_tasks_blocked()
            yield self
            nursery.cancel_scope.cancel()


@pytest.fixture
def directory(mock_clock: MockClock) -> MemoryDirectory:
    return MemoryDirectory()


async def pass_time(clock: MockClock, seconds: float) -> None:
    """Let this time pass in small steps."""
    for _ in range(round(seconds * 4)):
        clock.jump(0.25)
        await wait_all_tasks_blocked()


async def test_nodes_learn_of_each_other_at_the_start_and_within_one_renewal(
    directory: MemoryDirectory, mock_clock: MockClock
) -> None:
    async with Node(directory, "gpu1").running() as first, Node(directory, "gpu2").running() as second:
        assert set(second.nodes.added) == {"gpu1"}
        await pass_time(mock_clock, 5)
        assert set(first.nodes.added) == {"gpu2"}


async def test_a_renewal_costs_the_same_for_each_node_however_many_there_are(
    directory: MemoryDirectory, mock_clock: MockClock
) -> None:
    count = 50
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Node(directory, f"gpu{number}").running()) for number in range(count)]
        await pass_time(mock_clock, 10)
        assert all(len(node.nodes.added) == count - 1 for node in nodes)
        directory.operations.clear()
        directory.read = 0
        await pass_time(mock_clock, 5)
        assert Counter(directory.operations) == {"announce": count, "nodes": count}
        assert directory.read == 0
        # A change is read once by each.
        await directory.store("gpu0").announce(NodeRecord(name="gpu0", url="wss://moved:1", boot="b"), 15)
        nodes[0].record = NodeRecord(name="gpu0", url="wss://moved:1", boot="b")
        await pass_time(mock_clock, 10)
        assert directory.read == count


async def test_a_node_whose_record_does_not_change_is_remembered(
    directory: MemoryDirectory, mock_clock: MockClock
) -> None:
    async with Node(directory, "gpu1", renew=36000.0, ttl=72000.0).running() as node:
        await directory.store("gpu2").announce(NodeRecord(name="gpu2", url="wss://gpu2:1", boot="b"), 1e9)
        for _ in range(90):
            mock_clock.jump(36000.0)
            await wait_all_tasks_blocked()
        assert set(node.nodes.added) == {"gpu2"}


async def test_record_is_renewed_before_its_ttl(directory: MemoryDirectory, mock_clock: MockClock) -> None:
    async with Node(directory, "gpu1").running():
        await pass_time(mock_clock, 60)
        assert [record.name for record in (await directory.store("x").nodes()).records] == ["gpu1"]


async def test_node_withdraws_when_it_stops_and_stays_known_to_others(
    directory: MemoryDirectory, mock_clock: MockClock
) -> None:
    async with Node(directory, "gpu1").running() as first:
        async with Node(directory, "gpu2").running():
            await pass_time(mock_clock, 5)
        assert set(directory.nodes) == {"gpu1"}
        await pass_time(mock_clock, 20)
        assert (set(first.nodes.added), set(first.nodes.assumed)) == ({"gpu2"}, {"gpu2"})


async def test_node_of_another_process_with_the_name_is_an_error_until_it_has_gone(
    directory: MemoryDirectory, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    caplog.set_level("INFO")
    first = Node(directory, "gpu1", "b1")
    running = trio.CancelScope()

    async def run_first() -> None:
        with running:
            await first.member.run()

    nursery.start_soon(run_first)
    await wait_all_tasks_blocked()
    async with Node(directory, "gpu1", "b2").running() as second:
        await pass_time(mock_clock, 30)
        assert second.member.problem is not None
        assert "another process is the node gpu1" in second.member.problem
        assert first.member.problem is None
        assert sum("another process is the node gpu1" in line for line in caplog.messages) == 1
        assert directory.nodes["gpu1"][0].boot == "b1"
        running.cancel()
        await pass_time(mock_clock, 10)
        assert directory.nodes["gpu1"][0].boot == "b2"
        assert second.member.problem is None
    assert "this gateway is the node gpu1 of the cluster" in caplog.messages


async def test_lost_directory_is_logged_once_and_the_record_is_written_again_when_it_is_back(
    directory: MemoryDirectory, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node = Node(directory, "gpu1")
    async with node.running():
        directory.lose()
        await pass_time(mock_clock, 60)
        assert node.member.contact.problem is not None
        directory.empty()
        directory.reachable = True
        await pass_time(mock_clock, 20)
        assert node.member.contact.problem is None
        assert set(directory.nodes) == {"gpu1"}
    assert sum("the directory of the cluster is lost; " in line for line in caplog.messages) == 1


async def test_directory_that_is_lost_for_longer_than_ttl_is_told_once_until_it_is_there(
    directory: MemoryDirectory, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node = Node(directory, "gpu1", ttl=20.0)
    async with node.running():
        await pass_time(mock_clock, 10)
        directory.lose()
        await pass_time(mock_clock, 15)
        assert "ttl" not in str(node.member.problem)
        await pass_time(mock_clock, 20)
        assert "longer than ttl (20 s)" in str(node.member.problem)
        await pass_time(mock_clock, 60)
        assert sum("longer than ttl (20 s)" in line for line in caplog.messages) == 1
        directory.reachable = True
        await pass_time(mock_clock, 10)
        assert node.member.problem is None
        assert caplog.messages[-1] == "the directory of the cluster is there"


async def test_nodes_and_the_loss_of_the_directory_are_remembered_on_change(
    directory: MemoryDirectory, mock_clock: MockClock
) -> None:
    async with Node(directory, "gpu1").running() as node:
        await directory.store("gpu2").announce(NodeRecord(name="gpu2", url="wss://gpu2:1", boot="b", lag=2.0), 60)
        await pass_time(mock_clock, 10)
        (known,) = node.file.content.nodes
        assert known.record == NodeRecord(name="gpu2", url="wss://gpu2:1", boot="")
        assert node.file.content.lost is None
        directory.lose()
        await pass_time(mock_clock, 10)
        assert node.file.content.nodes == (known,)
        assert node.file.content.lost == node.member.contact.since
        directory.reachable = True
        await pass_time(mock_clock, 10)
        assert node.file.content.lost is None


async def test_emptied_directory_has_the_record_again_within_one_renewal(
    directory: MemoryDirectory, mock_clock: MockClock
) -> None:
    async with Node(directory, "gpu1").running():
        directory.empty()
        await pass_time(mock_clock, 5)
        assert set(directory.nodes) == {"gpu1"}


async def test_changes_are_passed_on(directory: MemoryDirectory) -> None:
    heard: list[Change] = []
    node = Node(directory, "gpu1")
    node.member.listeners.append(heard.append)
    async with node.running():
        await directory.store("gpu2").put_token("t", b"")
        await wait_all_tasks_blocked()
        assert heard == [Change("tokens", "", "gpu2")]
