"""Revoked tokens at nodes of a cluster that have lost the directory."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from acp_gateway.client.control import list_sessions, request
from acp_gateway.client.dialing import dial
from acp_gateway.config.cluster import ClusterSection
from acp_gateway.errors import Forbidden, Unauthorized, Unreachable
from acp_gateway.nodes import looks, token_exchange
from acp_gateway.nodes import membership as cluster
from acp_gateway.nodes.known_nodes import ClusterNodes
from acp_gateway.nodes.store import ClusterStore, NodesRead, SharedTokens
from acp_gateway.nodes.token_exchange import SharedTrust
from acp_gateway.nodes.token_sync import Hearsay
from acp_gateway.protocol.methods import CONFIRM, TOKENS
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import TIMEOUT, Editor
from tests.kit.machines import control, save_token, until_agents
from tests.kit.serving import serving
from tests.nodes.memory_store import MemoryDirectory
from tests.nodes.test_membership import member_config, status_of


class Directories:
    """One directory, which each node reaches by a way of its own."""

    def __init__(self) -> None:
        self.shared = MemoryDirectory()
        self.cut: set[str] = set()

    def lose(self, *names: str) -> None:
        """Cut the way of these nodes."""
        self.cut |= {*names}

    def store(self, name: str) -> ClusterStore:
        store = self.shared.store(name)
        reach = store._reach

        async def reach_if_connected(operation: str) -> MemoryDirectory:
            if name in self.cut:
                lost = MemoryDirectory()
                lost.reachable = False
                return await lost.store(name)._reach(operation)
            return await reach(operation)

        store._reach = reach_if_connected  # type: ignore[method-assign]
        return store


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> Directories:
    directories = Directories()

    @asynccontextmanager
    async def open_store(section: ClusterSection, _token: str) -> AsyncIterator[ClusterStore]:
        yield directories.store(section.name)

    monkeypatch.setattr(cluster.open_cluster, "__defaults__", (open_store,))
    monkeypatch.setattr(looks, "FRESH", 0.0)
    return directories


async def opened(url: str, secret: Path) -> Editor:
    """An editor with a session at work, by a token."""
    editor = Editor(await dial(control(url, secret, agent="memory", control=False), Timing()))
    await editor.initialize()
    return editor


async def until_shared(tokens: TokenStore, other: Path) -> None:
    while [token.id for token in TokenStore(other).tokens() if token.label == "laptop"] != [
        token.id for token in tokens.tokens() if token.label == "laptop"
    ]:
        await trio.lowlevel.checkpoint()


def ann(folder: Path) -> Path:
    return save_token(folder, "laptop", "ann")


async def confirm(url: str, token_id: str) -> dict[str, dict[str, Any]]:
    answer = await request(control(url), CONFIRM, {"id": token_id}, time_limit=30)
    return {node["name"]: node for node in answer["nodes"]}


async def test_revoked_token_ends_at_a_node_that_has_lost_the_directory_by_the_other_node(
    directories: Directories, tmp_path: Path
) -> None:
    first, second = member_config(tmp_path, "gpu1"), member_config(tmp_path, "gpu2")
    tokens = TokenStore(tmp_path / "gpu1")
    async with serving(first) as (_, url), serving(second) as (websocket, other):
        await until_agents(url, "gpu2/memory")
        await until_agents(other, "gpu1/memory")
        secret = ann(tmp_path / "gpu1")
        await until_shared(tokens, tmp_path / "gpu2")
        editor = await opened(websocket, secret)
        directories.lose("gpu2")
        (token,) = [token for token in tokens.tokens() if token.label == "laptop"]
        tokens.revoke(token.id)
        # No list and no renewal of that node brings it.
        async for _batch in editor.stream:
            pass
        await editor.stream.aclose()
        with pytest.raises(Unauthorized):
            await list_sessions(control(websocket, secret), time_limit=30)
        assert (await confirm(url, token.id))["gpu2"]["confirmed"]


@pytest.mark.parametrize("change", ["revoked", "rotated"])
async def test_new_node_hears_from_the_others_what_the_directory_hides(
    change: str, directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_exchange, "_FIRST", 0.1)
    looks: list[None] = []

    def spread() -> float:
        """Count how often the two look whether the directory was read."""
        looks.append(None)
        return 0.5

    async def until_looks(count: int) -> None:
        while len(looks) < count:
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(token_exchange, "random", SimpleNamespace(random=spread, shuffle=random.shuffle))
    first, second = member_config(tmp_path, "gpu1"), member_config(tmp_path, "gpu2")
    tokens, others = TokenStore(tmp_path / "gpu1"), TokenStore(tmp_path / "gpu2")
    async with serving(first) as (_, url):
        token, _secret = tokens.create("laptop", "ann", None)
        while token.id not in directories.shared.tokens:
            await trio.lowlevel.checkpoint()
        former = dict(directories.shared.tokens)
        if change == "revoked":
            tokens.revoke(token.id)
        else:
            tokens.rotate(token.id)
        await confirm(url, token.id)
        store = directories.store

        def store_that_hides(name: str) -> ClusterStore:
            hiding = store(name)

            async def read() -> SharedTokens:
                return SharedTokens(directories.shared.number, former, frozenset())

            async def read_late(since: int = 0) -> NodesRead:
                await until_looks(5)
                return await nodes(since)

            if name == "gpu2":
                nodes = hiding.nodes
                hiding.tokens = read  # type: ignore[method-assign]
                hiding.nodes = read_late  # type: ignore[method-assign]
            return hiding

        monkeypatch.setattr(directories, "store", store_that_hides)
        # The first does not look a second time soon.
        await until_looks(2)
        async with serving(second):
            with trio.fail_after(TIMEOUT):
                while not [each for each in others.tokens() if each.id == token.id]:
                    await trio.lowlevel.checkpoint()
                while token in others.tokens():
                    await trio.lowlevel.checkpoint()
            left = [each for each in others.tokens() if each.id == token.id]
            assert left == [each for each in tokens.tokens() if each.id == token.id]


async def test_node_that_was_not_reached_is_told_of_a_revocation_as_soon_as_it_is(
    directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_exchange, "_RETRY", 0.01)
    # No node asks by itself.
    monkeypatch.setattr(token_exchange, "_FIRST", 1000)
    attempts, stopped = trio.open_memory_channel[None](100)
    is_stopped = True

    async def request_if_it_runs(*args: Any, **options: Any) -> object:
        if is_stopped:
            attempts.send_nowait(None)
            raise Unreachable("it does not answer")
        return await request(*args, **options)

    first, second = member_config(tmp_path, "gpu1"), member_config(tmp_path, "gpu2")
    tokens = TokenStore(tmp_path / "gpu1")
    async with serving(first) as (_, url), serving(second) as (websocket, _other):
        await until_agents(url, "gpu2/memory")
        secret = ann(tmp_path / "gpu1")
        await until_shared(tokens, tmp_path / "gpu2")
        editor = await opened(websocket, secret)
        directories.lose("gpu1", "gpu2")
        monkeypatch.setattr(token_exchange, "request", request_if_it_runs)
        (token,) = [token for token in tokens.tokens() if token.label == "laptop"]
        tokens.revoke(token.id)
        with trio.fail_after(TIMEOUT):
            for _ in range(3):
                await stopped.receive()
            is_stopped = False
            async for _batch in editor.stream:
                pass
        await editor.stream.aclose()


async def test_confirm_names_the_node_that_is_away_and_since_when(
    directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_exchange, "CONFIRM_TIME", 0.5)
    first, second = member_config(tmp_path, "gpu1"), member_config(tmp_path, "gpu2")
    tokens = TokenStore(tmp_path / "gpu1")
    async with serving(first) as (_, url):
        async with serving(second):
            await until_agents(url, "gpu2/memory")
            token, _ = tokens.create("laptop", "ann", None)
            await until_shared(tokens, tmp_path / "gpu2")
        tokens.revoke(token.id)
        node = (await confirm(url, token.id))["gpu2"]
        assert not node["confirmed"]
        assert node["since"].endswith("Z")
        assert node["why"]


async def test_nothing_is_confirmed_where_the_file_of_shared_tokens_is_damaged(
    directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_exchange, "CONFIRM_TIME", 0.5)
    tokens = TokenStore(tmp_path / "gpu1")
    first, second = member_config(tmp_path, "gpu1"), member_config(tmp_path, "gpu2")
    async with serving(first) as (_, url), serving(second):
        await until_agents(url, "gpu2/memory")
        token, _ = tokens.create("laptop", "ann", None)
        await until_shared(tokens, tmp_path / "gpu2")
        (tmp_path / "gpu1" / "cluster-tokens.json").write_text("{")
        tokens.revoke(token.id)
        node = (await confirm(url, token.id))["gpu2"]
        assert not node["confirmed"]
        assert "cluster-tokens.json" in node["why"]
        assert any("cluster-tokens.json" in problem for problem in (await status_of(url))["problems"])


async def test_confirmation_comes_by_the_directory_where_no_node_reaches_the_other(
    directories: Directories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_exchange, "CONFIRM_TIME", 30)
    tokens = TokenStore(tmp_path / "gpu1")
    first, second = member_config(tmp_path, "gpu1"), member_config(tmp_path, "gpu2")
    async with serving(first) as (_, url), serving(second) as (_, other):
        await until_agents(url, "gpu2/memory")
        await until_agents(other, "gpu1/memory")
        monkeypatch.setattr(token_exchange, "read_news", lambda _: None)
        token, _ = tokens.create("laptop", "ann", None)
        await until_shared(tokens, tmp_path / "gpu2")
        tokens.revoke(token.id)
        assert (await confirm(url, token.id))["gpu2"]["confirmed"]


async def test_token_of_the_cluster_is_needed_to_tell_news_and_own_user_to_ask(
    directories: Directories, tmp_path: Path
) -> None:
    config = member_config(tmp_path, "gpu1")
    async with serving(config) as (websocket, url):
        secret = ann(tmp_path / "gpu1")
        for at in (control(websocket, secret), control(url)):
            with pytest.raises(Forbidden, match="only a node of the same cluster"):
                await request(at, TOKENS, {"node": "gpu9"}, time_limit=30)
        of_cluster = control(websocket, tmp_path / "cluster.token")
        assert (await request(of_cluster, TOKENS, {"node": "gpu9"}, time_limit=30))["node"] == "gpu1"
        for at in (control(websocket, secret), of_cluster):
            with pytest.raises(Forbidden, match="own user"):
                await request(at, CONFIRM, {"id": "00000001"}, time_limit=30)


async def test_isolated_node_ends_connections_by_shared_tokens_after_isolation_limit_and_lets_none_in(
    directories: Directories, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # It has known another node, which has gone for good.
    config = member_config(tmp_path, "gpu1", isolation_limit=1.0)
    async with serving(config) as (websocket, url):
        async with serving(member_config(tmp_path, "gpu2")):
            await until_agents(url, "gpu2/memory")
        secret = ann(tmp_path / "gpu1")
        local = save_token(tmp_path / "gpu1", "local", "bob", local=True)
        editor, kept = await opened(websocket, secret), await opened(websocket, local)
        directories.lose("gpu1")
        async for _batch in editor.stream:
            pass
        await editor.stream.aclose()
        # On a slow machine it may have been isolated for a moment before.
        while not any("cluster.isolation_limit" in line for line in (await status_of(url))["problems"]):
            await trio.lowlevel.checkpoint()
        with pytest.raises(Unreachable, match=r"cluster\.isolation_limit"):
            await list_sessions(control(websocket, secret), time_limit=30)
        # Tokens that count here only, the gateway's own user and other nodes do not depend on the others.
        await list_sessions(control(websocket, local), time_limit=30)
        await list_sessions(control(websocket, tmp_path / "cluster.token"), time_limit=30)
        assert (await status_of(url))["ready"]
        assert await kept.request("session/new", {"cwd": "/", "mcpServers": []})
        directories.cut.clear()
        while (await status_of(url))["problems"]:
            await trio.lowlevel.checkpoint()
        await list_sessions(control(websocket, secret), time_limit=30)
        await kept.stream.aclose()


async def test_node_that_hears_of_all_others_is_not_isolated(directories: Directories, tmp_path: Path) -> None:
    options: dict[str, Any] = {"isolation_limit": 30.0}
    first, second = member_config(tmp_path, "gpu1", **options), member_config(tmp_path, "gpu2", **options)
    async with serving(first) as (_, url), serving(second) as (_, other):
        await until_agents(url, "gpu2/memory")
        await until_agents(other, "gpu1/memory")
        directories.lose("gpu1", "gpu2")
        while not (await status_of(url))["problems"]:
            await trio.lowlevel.checkpoint()
        assert "isolation_limit" not in json.dumps((await status_of(url))["problems"])


async def test_isolation_is_logged_once_and_its_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hearsay = Hearsay(trio.current_time())
    trust = SharedTrust(hearsay, ClusterNodes("gpu1", Path("t")), 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trust.run)
        await trio.sleep(59.5)
        assert (trust.problem(), caplog.messages) == (None, [])
        await trio.sleep(100)
        assert len(caplog.messages) == 1
        hearsay.read(trio.current_time())
        await trio.sleep(2)
        assert caplog.messages[1:] == ["this node knows again which tokens were revoked: it accepts shared ones"]
        nursery.cancel_scope.cancel()
