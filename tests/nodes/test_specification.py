"""The behaviour of every directory of a cluster. Redis with the marker `cluster`: `make test-cluster`."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio

from acp_gateway.nodes.redis_connection import RedisOptions
from acp_gateway.nodes.redis_store import RedisStore, open_redis_store
from acp_gateway.nodes.store import Change, ClusterStore, NodeRecord, NodesRead, Seal
from tests.kit.doubles import TIMEOUT
from tests.nodes.memory_store import MemoryDirectory, MemoryStore


class Memory:
    """A directory in memory, with a time of its own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.directory = MemoryDirectory(lambda: self.now)

    async def store(self, node: str) -> ClusterStore:
        return self.directory.store(node)

    async def empty(self) -> None:
        self.directory.empty()

    async def wait(self, seconds: float) -> None:
        self.now += seconds


class Redis:
    """A directory in Redis, in real time."""

    def __init__(self, port: int, nursery: trio.Nursery) -> None:
        self._options = RedisOptions(host="127.0.0.1", port=port, timeout=TIMEOUT)
        self._nursery = nursery
        self.stores: list[RedisStore] = []

    async def store(self, node: str) -> ClusterStore:
        store: RedisStore = await self._nursery.start(self._open, node)
        self.stores.append(store)
        return store

    async def _open(self, node: str, task_status: trio.TaskStatus[RedisStore]) -> None:
        async with open_redis_store(self._options, node, Seal("secret")) as store:
            task_status.started(store)
            await trio.sleep_forever()

    async def empty(self) -> None:
        await self.stores[0]._client.ask("FLUSHALL")

    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.cluster)])
async def kind(request: pytest.FixtureRequest) -> AsyncIterator[Memory | Redis]:
    if request.param == "memory":
        yield Memory()
        return
    async with trio.open_nursery() as nursery:
        redis = Redis(request.getfixturevalue("shared_redis").port, nursery)
        await redis.store("cleaner")
        await redis.empty()
        yield redis
        nursery.cancel_scope.cancel()


@pytest.fixture
async def store(kind: Memory | Redis) -> ClusterStore:
    return await kind.store("gpu1")


@pytest.fixture
async def other(kind: Memory | Redis) -> ClusterStore:
    return await kind.store("gpu2")


def node(name: str = "gpu1", boot: str = "b1", **fields: object) -> NodeRecord:
    return msgspec.convert({"name": name, "url": f"wss://{name}:8765", "boot": boot, **fields}, NodeRecord)


# Nodes


async def test_announced_nodes_are_listed_by_name(store: ClusterStore, other: ClusterStore) -> None:
    records = [node("gpu1", agents=["a", "b"], sessions=3, lag=0.5), node("gpu2")]
    assert await other.announce(records[1], 15)
    assert await store.announce(records[0], 15)
    assert (await store.nodes()).records == records


async def test_announce_again_replaces_the_record(store: ClusterStore) -> None:
    await store.announce(node(sessions=1), 15)
    assert await store.announce(node(sessions=2), 15)
    assert [record.sessions for record in (await store.nodes()).records] == [2]


async def test_announce_is_refused_while_another_process_holds_the_name(
    store: ClusterStore, other: ClusterStore
) -> None:
    await store.announce(node(boot="b1"), 15)
    assert not await other.announce(node(boot="b2"), 15)
    assert [record.boot for record in (await store.nodes()).records] == ["b1"]


async def test_announced_node_expires_after_its_ttl_and_frees_its_name(
    store: ClusterStore, kind: Memory | Redis
) -> None:
    await store.announce(node(boot="b1"), 0.05)
    await kind.wait(0.1)
    assert (await store.nodes()).records == []
    assert await store.announce(node(boot="b2"), 15)


async def test_withdraw_removes_the_record_of_this_process_alone(store: ClusterStore) -> None:
    await store.announce(node(boot="b1"), 15)
    await store.withdraw("gpu1", "b2")
    assert len((await store.nodes()).records) == 1
    await store.withdraw("gpu1", "b1")
    assert (await store.nodes()).records == []


async def test_only_records_that_have_changed_since_a_version_are_read(
    store: ClusterStore, other: ClusterStore, kind: Memory | Redis
) -> None:
    await store.announce(node("gpu1"), 15)
    await other.announce(node("gpu2"), 0.05)
    first = await store.nodes()
    assert [record.name for record in first.records] == ["gpu1", "gpu2"]
    # The load is not a change.
    await store.announce(node("gpu1", sessions=3, turns=2, lag=0.5), 15)
    assert await other.nodes(first.version) == NodesRead(first.version, [])
    await store.announce(node("gpu1", agents=["new"], sessions=3), 15)
    second = await other.nodes(first.version)
    assert second.version > first.version
    assert second.records == [node("gpu1", agents=["new"], sessions=3)]
    await kind.wait(0.1)
    assert await store.nodes(second.version) == NodesRead(second.version, [])
    # What was away is read again.
    await other.announce(node("gpu2"), 15)
    assert [record.name for record in (await store.nodes(second.version)).records] == ["gpu2"]


async def test_record_of_another_process_of_a_node_is_read_again(store: ClusterStore) -> None:
    await store.announce(node(boot="b1"), 15)
    version = (await store.nodes()).version
    await store.withdraw("gpu1", "b1")
    assert await store.nodes(version) == NodesRead(version, [])
    await store.announce(node(boot="b2"), 15)
    assert [record.boot for record in (await store.nodes(version)).records] == ["b2"]


async def test_all_records_are_read_after_the_directory_was_emptied(
    store: ClusterStore, other: ClusterStore, kind: Memory | Redis
) -> None:
    await store.announce(node("gpu1"), 15)
    version = (await store.nodes()).version
    await kind.wait(0.001)
    await kind.empty()
    assert await other.nodes(version) == NodesRead(0, [])
    await store.announce(node("gpu1"), 15)
    assert [record.name for record in (await other.nodes(version)).records] == ["gpu1"]
    # Its clock may be behind.
    assert [record.name for record in (await other.nodes(version * 2)).records] == ["gpu1"]


# Tokens


async def test_put_tokens_are_listed_and_each_change_has_a_higher_number(store: ClusterStore) -> None:
    assert (await store.tokens()).number == 0
    assert await store.put_token("t1", b"one")
    first = await store.tokens()
    assert await store.put_token("t1", b"another")
    second = await store.tokens()
    assert first.entries == {"t1": b"one"}
    assert second.entries == {"t1": b"another"}
    assert second.number > first.number > 0
    assert await store.tokens_number() == second.number


async def test_revoked_token_is_removed_and_can_not_be_put_again(store: ClusterStore, other: ClusterStore) -> None:
    await store.put_token("t1", b"one")
    assert await store.revoke_token("t1")
    assert not await other.put_token("t1", b"stale")
    assert not await other.revoke_token("t1")
    tokens = await other.tokens()
    assert dict(tokens.entries) == {}
    assert tokens.revoked == {"t1"}


async def test_number_of_tokens_is_higher_after_the_directory_was_emptied(
    store: ClusterStore, kind: Memory | Redis
) -> None:
    await store.put_token("t1", b"one")
    before = (await store.tokens()).number
    await kind.empty()
    assert (await store.tokens()).number == 0
    await kind.wait(0.001)
    await store.put_token("t1", b"one")
    assert (await store.tokens()).number > before


# Changes


async def test_changes_of_other_nodes_arrive_and_own_ones_do_not(store: ClusterStore, other: ClusterStore) -> None:
    async with store.changes() as changes:
        await store.publish(Change("node", "gpu1", "gpu1"))
        await other.publish(Change("node", "gpu2", "gpu2"))
        assert await changes.receive() == Change("node", "gpu2", "gpu2")


async def test_changes_of_tokens_are_published(store: ClusterStore, other: ClusterStore) -> None:
    async with store.changes() as changes:
        await other.announce(node("gpu2"), 15)
        await other.put_token("t1", b"one")
        await other.revoke_token("t1")
        assert [await changes.receive() for _ in range(2)] == [Change("tokens", "", "gpu2")] * 2


def test_both_directories_have_all_operations() -> None:
    # The type checker compares them with the protocol.
    stores: list[type[ClusterStore]] = [MemoryStore, RedisStore]
    assert len(stores) == 2
