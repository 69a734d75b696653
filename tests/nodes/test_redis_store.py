"""The directory in Redis: when it is lost, hangs, refuses, or has what others wrote."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.nodes import redis_store
from acp_gateway.nodes.redis_connection import RedisOptions
from acp_gateway.nodes.redis_store import open_redis_store
from acp_gateway.nodes.store import Change, ClusterLost, NodeRecord, Seal
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.tls import client_context
from tests.kit.doubles import TIMEOUT
from tests.kit.free_ports import free_port
from tests.kit.redis_server import RedisServer

SEAL = Seal("the token of the cluster")
NODE = NodeRecord(name="gpu1", url="wss://gpu1:8765", boot="b")


def options(server: RedisServer | int, timeout: float = TIMEOUT, password: str | None = None) -> RedisOptions:
    port = server if isinstance(server, int) else server.port
    return RedisOptions(host="127.0.0.1", port=port, timeout=timeout, password=password)


async def test_operation_without_a_server_is_lost() -> None:
    async with open_redis_store(options(free_port()), "gpu1", SEAL) as store:
        with pytest.raises(ClusterLost):
            await store.nodes()
        with pytest.raises(ClusterLost):
            async with store.changes():
                pass


async def test_server_that_hangs_from_the_start_holds_an_operation_up_for_its_timeout() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        async with open_redis_store(options(sock.getsockname()[1], 0.05), "gpu1", SEAL) as store:
            with pytest.raises(ClusterLost, match=r"cluster\.timeout"):
                await store.nodes()


@pytest.mark.cluster
async def test_store_goes_on_after_the_server_has_hung(redis: RedisServer, mock_clock: MockClock) -> None:
    async def pass_time() -> None:
        await wait_all_tasks_blocked()
        mock_clock.jump(TIMEOUT)

    async with open_redis_store(options(redis), "gpu1", SEAL) as store:
        await store.announce(NODE, 60)
        redis.pause()
        for _ in range(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pass_time)
                with pytest.raises(ClusterLost, match=r"cluster\.timeout"):
                    await store.nodes()
        redis.go_on()
        assert (await store.nodes()).records == [NODE]


@pytest.mark.cluster
async def test_store_goes_on_after_the_server_was_killed(redis: RedisServer) -> None:
    async with open_redis_store(options(redis), "gpu1", SEAL) as store:
        await store.announce(NODE, 60)
        redis.kill()
        for _ in range(5):
            with pytest.raises(ClusterLost):
                await store.nodes()
        redis.start()
        assert (await store.nodes()).records == []
        assert await store.announce(NODE, 60)


@pytest.mark.cluster
async def test_cancelled_operations_leave_the_store_usable(redis: RedisServer) -> None:
    async with open_redis_store(options(redis), "gpu1", SEAL) as store:
        await store.announce(NODE, 60)
        for _ in range(20):
            with trio.move_on_after(0):
                await store.nodes()
        assert (await store.nodes()).records == [NODE]


@pytest.mark.cluster
async def test_many_operations_at_once_share_few_connections(redis: RedisServer) -> None:
    async with open_redis_store(options(redis), "gpu1", SEAL) as store, store.changes():
        await store.announce(NODE, 60)
        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(store.nodes)


@pytest.mark.cluster
async def test_changes_end_when_the_server_is_killed(redis: RedisServer) -> None:
    async with open_redis_store(options(redis), "gpu1", SEAL) as store, store.changes() as changes:
        redis.kill()
        with pytest.raises(trio.EndOfChannel):
            await changes.receive()


@pytest.mark.cluster
async def test_changes_are_cancelled_together_with_the_store(redis: RedisServer) -> None:
    async def listen(task_status: trio.TaskStatus[None]) -> None:
        async with open_redis_store(options(redis), "gpu1", SEAL) as store, store.changes() as changes:
            task_status.started()
            async for _ in changes:
                pass

    for _ in range(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(listen)
            nursery.cancel_scope.cancel()


@pytest.mark.cluster
async def test_wrong_password_is_lost_and_not_in_the_error() -> None:
    with RedisServer("--requirepass", "right") as server:
        for password in ("hunter2", None):
            async with open_redis_store(options(server, password=password), "gpu1", SEAL) as store:
                with pytest.raises(ClusterLost) as raised:
                    await store.nodes()
                assert "hunter2" not in str(raised.value)
        async with open_redis_store(options(server, password="right"), "gpu1", SEAL) as store:
            assert (await store.nodes()).records == []


@pytest.mark.cluster
async def test_rediss_checks_the_certificate_by_ca(tmp_path: Path) -> None:
    create_certificate(["127.0.0.1"], tmp_path)
    cert, key, port = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"), str(free_port())
    tls = "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no"
    with RedisServer(*tls):
        trusted = client_context(ca=tmp_path / "cert.pem", pin=None)
        for context, reached in ((trusted, True), (client_context(ca=None, pin=None), False)):
            async with open_redis_store(replace(options(int(port)), tls=context), "gpu1", SEAL) as store:
                if reached:
                    assert (await store.nodes()).records == []
                else:
                    with pytest.raises(ClusterLost, match="certificate"):
                        await store.nodes()


@pytest.mark.cluster
async def test_values_that_are_sealed_with_another_token_are_left_out(redis: RedisServer) -> None:
    async with (
        open_redis_store(options(redis), "gpu1", SEAL) as store,
        open_redis_store(options(redis), "gpu2", Seal("another token")) as forger,
    ):
        await forger.announce(NODE, 60)
        await forger.put_token("t1", b"entry")
        await forger.revoke_token("t2")
        assert (await store.nodes()).records == []
        tokens = await store.tokens()
        assert (tokens.entries, tokens.revoked) == ({}, frozenset())


@pytest.mark.cluster
async def test_key_of_another_kind_is_lost_not_a_crash(redis: RedisServer) -> None:
    async with open_redis_store(options(redis), "gpu1", SEAL) as store:
        redis.ask("SET", "{acp}:tokens", "text")
        with pytest.raises(ClusterLost):
            await store.tokens()


@pytest.mark.cluster
async def test_texts_on_the_channel_that_are_not_changes_are_left_out(redis: RedisServer) -> None:
    async with (
        open_redis_store(options(redis), "gpu1", SEAL) as store,
        open_redis_store(options(redis), "gpu2", SEAL) as other,
        store.changes() as changes,
    ):
        for text in ("", "\xff", "[]", '["a","b"]', '["a","b",1]'):
            redis.ask("PUBLISH", "{acp}:changes", text)
        await other.publish(Change("node", "gpu2", "gpu2"))
        assert await changes.receive() == Change("node", "gpu2", "gpu2")


SCRIPTS = [text for name, text in vars(redis_store).items() if name[0].isalpha() and "redis.call" in str(text)]


def test_all_keys_of_the_scripts_have_the_hash_tag_of_the_prefix() -> None:
    assert redis_store.PREFIX.startswith("{acp}")
    assert len(SCRIPTS) >= 9
    assert all(f"prefix = '{redis_store.PREFIX}'" in script for script in SCRIPTS)


def test_no_script_searches_all_keys() -> None:
    assert not any("SCAN" in script or "'KEYS'" in script for script in SCRIPTS)


@pytest.mark.cluster
async def test_tokens_with_a_malformed_number_are_lost_not_a_crash(redis: RedisServer) -> None:
    async with open_redis_store(options(redis), "gpu1", Seal("t")) as store:
        redis.ask("SET", "{acp}:tokens-number", "word")
        with pytest.raises(ClusterLost, match="another form"):
            await store.tokens()
