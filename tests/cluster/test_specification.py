"""The behaviour of every directory of a cluster. Redis with the marker `cluster`: `make test-cluster`."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio

from acp_gateway.cluster.records import NodeRecord, SessionRecord
from acp_gateway.cluster.redis_connection import RedisOptions
from acp_gateway.cluster.redis_store import RedisStore, open_redis_store
from acp_gateway.cluster.seal import Seal
from acp_gateway.cluster.store import MAX_LISTED, Change, ClusterStore
from tests.cluster.memory_store import MemoryDirectory, MemoryStore

LIMIT = 200


class Memory:
    """A directory in memory, with a time of its own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.directory = MemoryDirectory(lambda: self.now, LIMIT)

    async def store(self, node: str) -> ClusterStore:
        return self.directory.store(node)

    async def empty(self) -> None:
        self.directory.empty()

    async def wait(self, seconds: float) -> None:
        self.now += seconds


class Redis:
    """A directory in Redis, in real time."""

    def __init__(self, port: int, nursery: trio.Nursery) -> None:
        self._options = RedisOptions(host="127.0.0.1", port=port, mirror_limit=LIMIT)
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


def session(number: int = 1, at: str = "gpu1", epoch: int = 0, **fields: object) -> SessionRecord:
    values = {"key": f"gpu1/s{number}", "node": at, "agent": "opencode", "owner": "ann", "epoch": epoch, **fields}
    return msgspec.convert(values, SessionRecord)


# Nodes


async def test_announced_nodes_are_listed_by_name(store: ClusterStore, other: ClusterStore) -> None:
    records = [node("gpu1", agents=["a", "b"], sessions=3, lag=0.5), node("gpu2")]
    assert await other.announce(records[1], 15)
    assert await store.announce(records[0], 15)
    assert await store.nodes() == records


async def test_announce_again_replaces_the_record(store: ClusterStore) -> None:
    await store.announce(node(sessions=1), 15)
    assert await store.announce(node(sessions=2), 15)
    assert [record.sessions for record in await store.nodes()] == [2]


async def test_announce_is_refused_while_another_process_holds_the_name(
    store: ClusterStore, other: ClusterStore
) -> None:
    await store.announce(node(boot="b1"), 15)
    assert not await other.announce(node(boot="b2"), 15)
    assert [record.boot for record in await store.nodes()] == ["b1"]


async def test_announced_node_expires_after_its_ttl_and_frees_its_name(
    store: ClusterStore, kind: Memory | Redis
) -> None:
    await store.announce(node(boot="b1"), 0.05)
    await kind.wait(0.1)
    assert await store.nodes() == []
    assert await store.announce(node(boot="b2"), 15)


async def test_withdraw_removes_the_record_of_this_process_alone(store: ClusterStore) -> None:
    await store.announce(node(boot="b1"), 15)
    await store.withdraw("gpu1", "b2")
    assert len(await store.nodes()) == 1
    await store.withdraw("gpu1", "b1")
    assert await store.nodes() == []


async def test_former_nodes_are_those_that_have_expired_or_were_withdrawn(
    store: ClusterStore, kind: Memory | Redis
) -> None:
    for name in ("gpu1", "gpu2", "gpu3"):
        await store.announce(node(name, agents=["a"]), 0.05 if name == "gpu2" else 15)
    await store.withdraw("gpu1", "b1")
    await kind.wait(0.1)
    assert await store.former_nodes() == [node("gpu1", agents=["a"]), node("gpu2", agents=["a"])]
    assert await store.nodes() == [node("gpu3", agents=["a"])]


async def test_era_is_the_first_proposal_until_the_directory_is_emptied(
    store: ClusterStore, other: ClusterStore, kind: Memory | Redis
) -> None:
    assert await store.era("a") == "a"
    assert await other.era("b") == "a"
    await kind.empty()
    assert await other.era("b") == "b"


async def test_sessions_outlive_the_record_of_their_node(store: ClusterStore) -> None:
    await store.announce(node(), 15)
    await store.claim(session())
    await store.withdraw("gpu1", "b1")
    assert [record.key for record in await store.sessions("gpu1")] == ["gpu1/s1"]


# Sessions


async def test_claim_begins_a_higher_epoch_each_time(store: ClusterStore) -> None:
    first = await store.claim(session())
    second = await store.claim(session())
    assert first.granted
    assert second.granted
    assert second.epoch > first.epoch
    assert await store.session("gpu1/s1") == session(epoch=second.epoch)


async def test_claim_begins_a_higher_epoch_after_the_directory_was_emptied(
    store: ClusterStore, kind: Memory | Redis
) -> None:
    first = await store.claim(session())
    await kind.wait(0.001)
    await kind.empty()
    second = await store.claim(session())
    assert second.epoch > first.epoch


async def test_claim_of_a_session_of_another_node_is_refused_unless_adopt(
    store: ClusterStore, other: ClusterStore
) -> None:
    first = await store.claim(session())
    refused = await other.claim(session(at="gpu2"))
    assert (refused.granted, refused.epoch, refused.node) == (False, first.epoch, "gpu1")
    adopted = await other.claim(session(at="gpu2"), adopt=True)
    assert adopted.granted
    assert adopted.epoch > first.epoch
    assert await store.sessions("gpu1") == []
    assert [record.node for record in await store.sessions("gpu2")] == ["gpu2"]


async def test_claim_that_knows_an_older_epoch_is_refused(store: ClusterStore) -> None:
    first = await store.claim(session())
    second = await store.claim(session(epoch=first.epoch))
    assert second.granted
    refused = await store.claim(session(epoch=first.epoch), adopt=True)
    assert (refused.granted, refused.epoch) == (False, second.epoch)


async def test_write_replaces_the_record_in_its_epoch(store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    record = session(epoch=epoch, title="Fix it", cwd="/src", updated="2026-01-01T00:00:00Z", live=True, turn=True)
    assert (await store.write(record)).granted
    assert await store.session("gpu1/s1") == record


async def test_write_of_a_lower_epoch_is_refused_and_tells_the_holder(store: ClusterStore, other: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    adopted = await other.claim(session(at="gpu2"), adopt=True)
    refused = await store.write(session(epoch=epoch, title="late"))
    assert (refused.granted, refused.epoch, refused.node) == (False, adopted.epoch, "gpu2")
    kept = await store.session("gpu1/s1")
    assert kept is not None
    assert kept.title is None


async def test_write_of_another_node_in_the_same_epoch_is_refused(store: ClusterStore, other: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    assert not (await other.write(session(at="gpu2", epoch=epoch))).granted


async def test_write_to_an_emptied_directory_is_taken_as_it_is(store: ClusterStore, kind: Memory | Redis) -> None:
    epoch = (await store.claim(session())).epoch
    await kind.empty()
    assert (await store.write(session(epoch=epoch))).granted
    assert await store.session("gpu1/s1") == session(epoch=epoch)


async def test_write_of_a_higher_epoch_replaces_that_of_an_older_holder(
    store: ClusterStore, other: ClusterStore
) -> None:
    await store.write(session(epoch=5))
    assert (await other.write(session(at="gpu2", epoch=6))).granted
    assert await store.sessions("gpu1") == []


async def test_write_of_the_holder_keeps_a_higher_epoch(store: ClusterStore) -> None:
    await store.write(session(epoch=5))
    written = await store.write(session(epoch=1, title="again"))
    assert (written.granted, written.epoch, written.node) == (True, 5, "gpu1")
    assert await store.session("gpu1/s1") == session(epoch=5, title="again")


async def test_write_that_replaces_an_older_holder_is_published_as_an_adoption(
    store: ClusterStore, other: ClusterStore
) -> None:
    async with store.changes() as changes:
        await store.write(session(epoch=1))
        await other.write(session(at="gpu2", epoch=6))
        await other.write(session(at="gpu2", epoch=6))
        await other.publish(Change("session", "end", "gpu2"))
        found = [await changes.receive() for _ in range(2)]
    assert found == [Change("adopt", "gpu1/s1", "gpu2"), Change("session", "end", "gpu2")]


async def test_remove_is_for_the_holder_in_its_epoch_alone(store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(None, b"x")])
    await store.remove("gpu1/s1", "gpu2", epoch)
    await store.remove("gpu1/s1", "gpu1", epoch - 1)
    assert await store.session("gpu1/s1") is not None
    await store.remove("gpu1/s1", "gpu1", epoch)
    assert await store.session("gpu1/s1") is None
    assert await store.sessions("gpu1") == []
    assert await store.journal("gpu1/s1") is None


async def test_sessions_are_listed_by_their_last_write_up_to_a_limit(store: ClusterStore) -> None:
    for number in range(MAX_LISTED + 1):
        await store.write(session(number, epoch=1))
    await store.write(session(1, epoch=1, title="again"))
    listed = await store.sessions("gpu1")
    assert len(listed) == MAX_LISTED
    assert listed[0].id == "s2"
    assert listed[-1].title == "again"


async def test_unknown_sessions_and_journals_are_none(store: ClusterStore) -> None:
    assert await store.session("gpu1/none") is None
    assert await store.journal("gpu1/none") is None
    assert not await store.is_mirrored("gpu1/none")
    assert await store.sessions("none") == []


# Journals


async def test_mirrored_journal_has_what_was_appended(store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    assert (await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(1, b"a"), (None, b"b\0:\xff")])).granted
    assert (await store.append("gpu1/s1", "gpu1", epoch, "j", 2, [(3, b"c")])).granted
    journal = await store.journal("gpu1/s1")
    assert journal is not None
    assert (journal.epoch, journal.first, journal.complete) == ("j", 0, True)
    assert journal.messages == [(1, b"a"), (None, b"b\0:\xff"), (3, b"c")]
    assert journal.as_of > 0
    assert await store.is_mirrored("gpu1/s1")


async def test_append_leaves_out_what_is_mirrored_already(store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(1, b"a"), (1, b"b")])
    await store.append("gpu1/s1", "gpu1", epoch, "j", 1, [(1, b"b"), (1, b"c")])
    await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(1, b"a")])
    journal = await store.journal("gpu1/s1")
    assert journal is not None
    assert [message for _, message in journal.messages] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("word", "first"), [("j", 2), ("other", 2)])
async def test_append_after_a_gap_or_of_another_journal_begins_anew(word: str, first: int, store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(1, b"a")])
    await store.append("gpu1/s1", "gpu1", epoch, word, first, [(1, b"c")])
    journal = await store.journal("gpu1/s1")
    assert journal is not None
    assert (journal.epoch, journal.first, journal.complete) == (word, first, False)
    assert journal.messages == [(1, b"c")]


@pytest.mark.parametrize(("word", "first"), [("j", 2), ("other", 1)])
async def test_append_that_continues_a_mirror_is_refused_in_its_epoch_where_the_rest_is_lost(
    word: str, first: int, store: ClusterStore
) -> None:
    epoch = (await store.claim(session())).epoch
    await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(1, b"a")])
    refused = await store.append("gpu1/s1", "gpu1", epoch, word, first, [(1, b"c")], continues=True)
    assert (refused.granted, refused.epoch, refused.node) == (False, epoch, "gpu1")
    journal = await store.journal("gpu1/s1")
    assert journal is not None
    assert journal.messages == [(1, b"a")]


async def test_append_that_continues_a_mirror_is_granted_where_the_rest_is_there(store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(1, b"a")])
    assert (await store.append("gpu1/s1", "gpu1", epoch, "j", 1, [(1, b"b")], continues=True)).granted
    journal = await store.journal("gpu1/s1")
    assert journal is not None
    assert [message for _, message in journal.messages] == [b"a", b"b"]


async def test_append_beyond_mirror_limit_removes_the_oldest(store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    for number in range(5):
        await store.append("gpu1/s1", "gpu1", epoch, "j", number, [(1, b"%d" % number * 30)])
    journal = await store.journal("gpu1/s1")
    assert journal is not None
    assert (journal.first, journal.complete) == (2, False)
    assert [message[:1] for _, message in journal.messages] == [b"2", b"3", b"4"]


async def test_empty_message_stands_for_one_that_is_left_out(store: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    await store.append("gpu1/s1", "gpu1", epoch, "j", 0, [(1, b"a"), (1, b""), (None, b"c")])
    journal = await store.journal("gpu1/s1")
    assert journal is not None
    assert (journal.messages, journal.complete) == ([(1, b"a"), (None, b"c")], False)


async def test_append_of_another_epoch_or_node_is_refused(store: ClusterStore, other: ClusterStore) -> None:
    epoch = (await store.claim(session())).epoch
    assert not (await other.append("gpu1/s1", "gpu2", epoch, "j", 0, [(1, b"a")])).granted
    assert not (await store.append("gpu1/s1", "gpu1", epoch - 1, "j", 0, [(1, b"a")])).granted
    assert await store.journal("gpu1/s1") is None


async def test_append_to_a_session_that_the_directory_lacks_is_refused_in_epoch_0(store: ClusterStore) -> None:
    refused = await store.append("gpu1/s1", "gpu1", 7, "j", 0, [(1, b"a")])
    assert (refused.granted, refused.epoch, refused.node) == (False, 0, "")


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
        await store.publish(Change("session", "gpu1/s1", "gpu1"))
        await other.publish(Change("session", "gpu2/s1", "gpu2"))
        assert await changes.receive() == Change("session", "gpu2/s1", "gpu2")


async def test_announce_withdraw_tokens_and_adoption_are_published(store: ClusterStore, other: ClusterStore) -> None:
    await store.claim(session())
    async with store.changes() as changes:
        await other.announce(node("gpu2"), 15)
        await other.announce(node("gpu2", sessions=2), 15)
        await other.withdraw("gpu2", "b1")
        await other.put_token("t1", b"one")
        await other.revoke_token("t1")
        await other.claim(session(at="gpu2"), adopt=True)
        assert [await changes.receive() for _ in range(5)] == [
            Change("node", "gpu2", "gpu2"),
            Change("node", "gpu2", "gpu2"),
            Change("tokens", "", "gpu2"),
            Change("tokens", "", "gpu2"),
            Change("adopt", "gpu1/s1", "gpu2"),
        ]


def test_both_directories_have_all_operations() -> None:
    # The type checker compares them with the protocol.
    stores: list[type[ClusterStore]] = [MemoryStore, RedisStore]
    assert len(stores) == 2
