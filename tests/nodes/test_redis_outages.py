"""Nodes of a cluster through a thousand cuts of their connections and a hundred restarts of Redis.

Each comes back with its next renewal: no answer is lost for longer, and none goes to another command.
"""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from acp_gateway.config.cluster import ClusterSection, RedisAddress
from acp_gateway.nodes.known_nodes import ClusterNodes
from acp_gateway.nodes.member import Member
from acp_gateway.nodes.redis_connection import RedisOptions
from acp_gateway.nodes.redis_store import RedisStore, open_redis_store
from acp_gateway.nodes.store import Change, ClusterLost, NodeRecord, Seal
from tests.kit.redis_server import RedisServer
from tests.nodes.test_member import File, Nodes

pytestmark = pytest.mark.cluster

CUTS = 1000
RESTARTS = 100
NAMES = ("gpu1", "gpu2", "gpu3")


class CuttingProxy:
    """Passes bytes between nodes and Redis, and cuts all connections after a number of bytes.

    Args:
        nursery: runs it.
        port: that of Redis.
    """

    def __init__(self, nursery: trio.Nursery, port: int) -> None:
        self._nursery = nursery
        self._port = port
        self._ends: set[trio.SocketStream] = set()
        self.left: int | None = None
        """Bytes until the cut; None for no cut."""
        self.cuts = 0
        self.port = 0

    async def listen(self) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        self._nursery.start_soon(trio.serve_listeners, self._serve, [listener])

    async def _serve(self, client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with client, server, trio.open_nursery() as nursery:
            self._ends |= {client, server}
            nursery.start_soon(self._pass, client, server, nursery)
            nursery.start_soon(self._pass, server, client, nursery)
        self._ends -= {client, server}

    async def _pass(self, source: trio.SocketStream, target: trio.SocketStream, nursery: trio.Nursery) -> None:
        try:
            while data := await source.receive_some():
                if self.left is not None and len(data) >= self.left:
                    await target.send_all(data[: self.left])
                    self.cut()
                    break
                if self.left is not None:
                    self.left -= len(data)
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        nursery.cancel_scope.cancel()

    def cut(self) -> None:
        """Close all connections."""
        self.left = None
        self.cuts += 1
        for end in self._ends:
            end.socket.close()


@dataclass
class Machine:
    """A node, whose renewals are those of the test."""

    member: Member
    store: RedisStore

    async def renew(self) -> bool:
        """Renew, and subscribe as well; return False for a loss."""
        try:
            await self.member.renew()
            async with self.store.changes():
                pass
        except ClusterLost:
            return False
        return True


@asynccontextmanager
async def machines(port: int) -> AsyncIterator[list[Machine]]:
    """The nodes of a cluster."""
    options = RedisOptions(host="127.0.0.1", port=port, timeout=30.0)
    async with AsyncExitStack() as stack:
        found = []
        for name in NAMES:
            store = await stack.enter_async_context(open_redis_store(options, name, Seal("secret")))
            address = RedisAddress("127.0.0.1", port, "", tls=False, db=0, user=None)
            section = ClusterSection(url=address, name=name, token_file=Path("t"), ttl=600.0)
            record = NodeRecord(name=name, url=f"wss://{name}:1", boot="b")
            known = ClusterNodes(name, section.token_file)

            def describe(record: NodeRecord = record) -> NodeRecord:
                return record

            found.append(Machine(Member(store, section, "b", describe, Nodes(), known, File()), store))
        yield found


async def renew_all(nodes: list[Machine]) -> list[bool]:
    """Renew all nodes at the same time; return which have reached Redis."""
    outcomes = []

    async def renew(node: Machine) -> None:
        outcomes.append(await node.renew())

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(renew, node)
    return outcomes


async def test_each_node_is_back_with_its_next_renewal_after_each_of_a_thousand_cuts(
    redis: RedisServer, nursery: trio.Nursery
) -> None:
    draw = random.Random(1)  # noqa: S311
    proxy = CuttingProxy(nursery, redis.port)
    await proxy.listen()
    lost = 0
    async with machines(proxy.port) as nodes:
        assert await renew_all(nodes) == [True] * len(nodes)
        while proxy.cuts < CUTS:
            # A renewal of all has some thousand bytes.
            proxy.left = draw.randrange(8000)
            lost += (await renew_all(nodes)).count(False)
            proxy.left = None
            assert await renew_all(nodes) == [True] * len(nodes)
        assert {*nodes[0].member.known.records} == {"gpu2", "gpu3"}
    assert lost


async def test_each_node_is_back_with_its_next_renewal_after_each_of_a_hundred_restarts(redis: RedisServer) -> None:
    async with machines(redis.port) as nodes:
        for number in range(RESTARTS):
            async with trio.open_nursery() as nursery:
                if number % 2:
                    nursery.start_soon(renew_all, nodes)
                    for _ in range(number % 20):
                        await trio.lowlevel.checkpoint()
                redis.kill()
            assert await renew_all(nodes) == [False] * len(nodes)
            redis.start()
            assert await renew_all(nodes) == [True] * len(nodes)
            assert len((await nodes[0].store.nodes()).records) == len(nodes)


async def test_restart_between_two_renewals_does_not_count_as_a_loss(redis: RedisServer) -> None:
    async with machines(redis.port) as nodes:
        assert await renew_all(nodes) == [True] * len(nodes)
        redis.kill()
        redis.start()
        assert await renew_all(nodes) == [True] * len(nodes)


async def test_load_with_cancelled_operations_stops_no_node(redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        stores = []
        for number in range(21):
            options = RedisOptions(host="127.0.0.1", port=redis.port, timeout=60.0)
            stores.append(await stack.enter_async_context(open_redis_store(options, f"gpu{number}", Seal("secret"))))

        async def use(store: RedisStore, number: int) -> None:
            with trio.CancelScope() as scope:
                if number % 2:
                    nursery.start_soon(cancel_later, scope, number)
                await store.publish(Change("tokens", "", "x"))
                await store.nodes()
                await store.tokens()

        async def cancel_later(scope: trio.CancelScope, number: int) -> None:
            for _ in range(number * 3):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            for store in stores:
                for number in range(50):
                    nursery.start_soon(use, store, number)
        for store in stores:
            assert (await store.nodes()).records == []
