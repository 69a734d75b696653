"""The directory in Redis where another program has written what is of another form."""

import pytest
import trio

from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.redis_connection import RedisOptions
from acp_gateway.cluster.redis_store import RedisStore, open_redis_store
from acp_gateway.cluster.seal import Seal
from acp_gateway.cluster.store import ClusterLost, mirror_word
from tests.cluster.redis_server import RedisServer

KEY = "gpu1/s"
RECORD = SessionRecord(key=KEY, node="gpu1", agent="a", owner="ann", epoch=1)


@pytest.mark.cluster
@pytest.mark.parametrize("epoch", ["word", "inf", "9" * 5000, None])
async def test_session_with_an_epoch_that_is_no_number_is_left_out(epoch: str | None, redis: RedisServer) -> None:
    other = "gpu1/other"
    async with open_redis_store(RedisOptions(host="127.0.0.1", port=redis.port), "gpu1", Seal("t")) as store:
        for key in (KEY, other):
            await store.write(SessionRecord(key=key, node="gpu1", agent="a", owner="ann", epoch=1))
        if epoch is None:
            redis.ask("HDEL", f"{{acp}}:session:{KEY}", "epoch")
        else:
            redis.ask("HSET", f"{{acp}}:session:{KEY}", "epoch", epoch)
        assert await store.session(KEY) is None
        assert [record.key for record in await store.sessions("gpu1")] == [other]


@pytest.mark.cluster
async def test_claim_of_a_session_with_an_endless_epoch_is_lost_not_a_crash(redis: RedisServer) -> None:
    async with open_redis_store(RedisOptions(host="127.0.0.1", port=redis.port), "gpu1", Seal("t")) as store:
        await store.write(RECORD)
        redis.ask("HSET", f"{{acp}}:session:{KEY}", "epoch", "inf")
        with pytest.raises(ClusterLost, match="another form"):
            await store.write(RECORD)
        with pytest.raises(ClusterLost, match="another form"):
            await store.claim(RECORD, adopt=True)


@pytest.mark.cluster
@pytest.mark.parametrize("member", ["first", "as_of"])
async def test_mirror_with_a_position_that_is_no_number_is_lost_not_a_crash(member: str, redis: RedisServer) -> None:
    async with open_redis_store(RedisOptions(host="127.0.0.1", port=redis.port), "gpu1", Seal("t")) as store:
        await store.write(RECORD)
        await store.append(KEY, "gpu1", 1, mirror_word("e", "ann"), 0, [(1, b"{}")])
        redis.ask("HSET", f"{{acp}}:mirror:{KEY}", member, "word")
        with pytest.raises(ClusterLost, match="another form"):
            await store.journal(KEY)


@pytest.mark.cluster
async def test_tokens_with_a_number_that_is_none_are_lost_not_a_crash(redis: RedisServer) -> None:
    async with open_redis_store(RedisOptions(host="127.0.0.1", port=redis.port), "gpu1", Seal("t")) as store:
        redis.ask("SET", "{acp}:tokens-number", "word")
        with pytest.raises(ClusterLost, match="another form"):
            await store.tokens()


async def test_list_without_an_end_leaves_other_tasks_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: object) -> list[object]:
        await trio.lowlevel.checkpoint()
        return [b"e ann", b"0", b"1", [b""] * 10_000]

    monkeypatch.setattr(RedisStore, "_run", run)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with open_redis_store(RedisOptions(), "gpu1", Seal("t")) as store, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        mirrored = await store.journal(KEY)
        nursery.cancel_scope.cancel()
    assert mirrored is not None
    assert not mirrored.complete
    assert turns >= 10
