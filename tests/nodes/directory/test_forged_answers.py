"""The directory in Redis where another program has written what is of another form."""

import pytest

from acp_gateway.nodes.directory.records import Seal
from acp_gateway.nodes.directory.redis_connection import RedisOptions
from acp_gateway.nodes.directory.redis_store import open_redis_store
from acp_gateway.nodes.directory.store import ClusterLost
from tests.nodes.directory.redis_server import RedisServer


@pytest.mark.cluster
async def test_tokens_with_a_malformed_number_are_lost_not_a_crash(redis: RedisServer) -> None:
    async with open_redis_store(RedisOptions(host="127.0.0.1", port=redis.port), "gpu1", Seal("t")) as store:
        redis.ask("SET", "{acp}:tokens-number", "word")
        with pytest.raises(ClusterLost, match="another form"):
            await store.tokens()
