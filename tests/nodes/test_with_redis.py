"""Gateways whose directory is in Redis: they find each other, and go on when it is killed, paused or emptied."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.control import list_sessions, request
from acp_gateway.client.dialing import dial
from acp_gateway.config.cluster import RedisAddress
from acp_gateway.errors import Unauthorized
from acp_gateway.nodes.redis_connection import RedisOptions
from acp_gateway.nodes.redis_store import CHANNEL, open_redis_store
from acp_gateway.nodes.store import Seal
from acp_gateway.protocol.methods import STATUS
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.websocket.stream import Timing
from tests.doubles import Editor
from tests.nodes.machines import control, until_agents
from tests.nodes.redis_server import RedisServer
from tests.nodes.test_membership import member_config
from tests.server.serving import serving

pytestmark = pytest.mark.cluster


@asynccontextmanager
async def cluster_of(folder: Path, redis: RedisServer, *names: str, **options: Any) -> AsyncIterator[list[str]]:
    """The unix sockets of nodes that know each other; `websocket` in the folder of each is its other address."""
    address = RedisAddress("127.0.0.1", redis.port, "", tls=False, db=0, user=None)
    async with AsyncExitStack() as stack:
        urls = []
        others = followers(redis)
        for number, name in enumerate(names, 1):
            values = {"renew": 0.1, "ttl": 1.0, "timeout": 0.5} | options
            config = member_config(folder, name, url=address, **values)
            websocket, url = await stack.enter_async_context(serving(config))
            (config.gateway.state_dir / "websocket").write_text(websocket)
            urls.append(url)
            # The next one is announced to it.
            while followers(redis) < others + number:
                await trio.lowlevel.checkpoint()
        for url, own in zip(urls, names, strict=True):
            await until_agents(url, *(f"{name}/memory" for name in names if name != own))
        yield urls


def followers(redis: RedisServer) -> int:
    """The number of nodes that follow the changes of the directory."""
    return int(redis.ask("PUBSUB", "NUMSUB", CHANNEL)[1])


async def problems_of(url: str) -> list[str]:
    status: dict[str, Any] = await request(control(url), STATUS, {}, time_limit=30)
    return list(status["problems"])


async def until_problems(url: str, wanted: Callable[[list[str]], bool]) -> list[str]:
    while not wanted(found := await problems_of(url)):
        await trio.lowlevel.checkpoint()
    return found


async def prompt(url: str, agent: str, session: str | None = None) -> str:
    """Say hello in a session, a new one without its id; return the id."""
    editor = Editor(await dial(control(url, agent=agent, control=False), Timing()))
    await editor.initialize()
    params: dict[str, Any] = {"cwd": "/", "mcpServers": []}
    if session is None:
        session = str((await editor.request("session/new", params))["result"]["sessionId"])
    else:
        await editor.request("session/load", params | {"sessionId": session})
    await editor.stream.aclose()
    return session


async def test_any_of_three_nodes_leads_to_the_others_and_knows_the_sessions_of_all(
    tmp_path: Path, redis: RedisServer
) -> None:
    names = ("gpu1", "gpu2", "gpu3")
    async with cluster_of(tmp_path, redis, *names) as urls:
        session = await prompt(urls[0], "gpu3/memory")
        for url, known in zip(urls, (f"gpu3/{session}", f"gpu3/{session}", session), strict=True):
            while known not in [it["sessionId"] for it in (await list_sessions(control(url), time_limit=30)).sessions]:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_nodes_go_on_without_redis_and_write_everything_again(
    how: str, tmp_path: Path, redis: RedisServer
) -> None:
    async with cluster_of(tmp_path, redis, "gpu1", "gpu2") as (url, _):
        assert await problems_of(url) == []
        getattr(redis, how)()
        (problem,) = await until_problems(url, bool)
        assert "the directory of the cluster is lost since" in problem
        session = await prompt(url, "gpu2/memory")
        await prompt(url, "gpu2/memory", session)
        redis.start() if how == "kill" else redis.go_on()
        await until_problems(url, lambda found: not found)


async def test_token_that_is_revoked_on_one_node_ends_its_connections_on_the_other_without_a_renewal(
    tmp_path: Path, redis: RedisServer
) -> None:
    tokens = TokenStore(tmp_path / "gpu1")
    async with cluster_of(tmp_path, redis, "gpu1", "gpu2", renew=3600.0, ttl=7200.0, timeout=10.0):
        secret = tmp_path / "laptop.token"
        secret.touch(0o600)
        token, text = tokens.create("laptop", "ann", None)
        secret.write_text(text)
        while token not in TokenStore(tmp_path / "gpu2").tokens():
            await trio.lowlevel.checkpoint()
        url = (tmp_path / "gpu2" / "websocket").read_text()
        editor = Editor(await dial(control(url, secret, agent="memory", control=False), Timing()))
        await editor.initialize()
        tokens.revoke(token.id)
        async for _batch in editor.stream:
            pass
        await editor.stream.aclose()
        with pytest.raises(Unauthorized):
            await list_sessions(control(url, secret), time_limit=30)


async def test_record_of_a_node_is_withdrawn_when_it_stops(tmp_path: Path, redis: RedisServer) -> None:
    options = RedisOptions(host="127.0.0.1", port=redis.port)
    member_config(tmp_path, "gpu1")
    async with open_redis_store(options, "x", Seal((tmp_path / "cluster.token").read_text())) as store:
        async with cluster_of(tmp_path, redis, "gpu1", "gpu2"):
            assert [record.name for record in (await store.nodes()).records] == ["gpu1", "gpu2"]
        assert (await store.nodes()).records == []
