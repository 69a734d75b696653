"""Gateways that find each other by a directory, in this process."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.control import Listing, list_sessions, request
from acp_gateway.client.dialing import Destination, dial
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.cluster import ClusterSection, RedisAddress
from acp_gateway.config.load import Config
from acp_gateway.errors import ConfigError, ProtocolError, Unauthorized, UnknownAgent, Unreachable
from acp_gateway.nodes import asking, looks
from acp_gateway.nodes import membership as cluster
from acp_gateway.nodes.membership import own_address, own_pin
from acp_gateway.nodes.store import ClusterStore
from acp_gateway.protocol.methods import STATUS
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.serve import serve
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import Editor
from tests.kit.machines import control, node_config, save_token, until_agents
from tests.kit.serving import secure, serving
from tests.nodes.memory_store import MemoryDirectory

REDIS = RedisAddress("127.0.0.1", 1, "", tls=False, db=0, user=None)


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> MemoryDirectory:
    """A directory that the gateways of the test use instead of Redis."""
    directory = MemoryDirectory()

    @asynccontextmanager
    async def open_store(section: ClusterSection, _token: str) -> AsyncIterator[ClusterStore]:
        yield directory.store(section.name)

    monkeypatch.setattr(cluster.open_cluster, "__defaults__", (open_store,))
    monkeypatch.setattr(looks, "FRESH", 0.0)
    return directory


def member_config(folder: Path, name: str, **options: Any) -> Config:
    """The configuration of a node of the cluster, with an agent of its own."""
    folder.mkdir(exist_ok=True)
    token = folder / "cluster.token"
    if not token.exists():
        token.touch(0o600)
        token.write_text(mint())
    config = node_config(folder / name)
    own = replace(config.listen[0], url=f"unix://{folder}/{name}.sock", local_user=True)
    values: dict[str, Any] = {"url": REDIS, "renew": 0.02, "ttl": 1.0} | options
    section = ClusterSection(name=name, token_file=token, **values)
    return replace(config, listen=(*config.listen, own), cluster=section)


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The unix sockets of two nodes of one cluster, which know each other."""
    async with AsyncExitStack() as stack:
        configs = [member_config(folder, name) for name in ("gpu1", "gpu2")]
        urls = []
        for config in configs:
            websocket, url = await stack.enter_async_context(serving(config))
            (config.gateway.state_dir / "websocket").write_text(websocket)
            urls.append(url)
        await until_agents(urls[0], "gpu2/memory")
        await until_agents(urls[1], "gpu1/memory")
        yield urls[0], urls[1]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


def remembers(folder: Path, name: str) -> bool:
    file = folder / "cluster-nodes.json"
    return file.exists() and name in file.read_text()


async def listed(destination: Destination) -> Listing:
    return await list_sessions(destination, time_limit=30)


async def status_of(url: str) -> dict[str, Any]:
    status: dict[str, Any] = await request(control(url), STATUS, {}, time_limit=30)
    return status


async def test_each_node_of_a_cluster_leads_to_the_others(directory: MemoryDirectory, tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as urls:
        for url, other in zip(urls, ("gpu2", "gpu1"), strict=True):
            editor = Editor(await dial(control(url, agent=f"{other}/memory", control=False), Timing()))
            await editor.initialize()
            session = (await editor.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"]
            assert (tmp_path / other / "sessions" / f"{session}.session").exists()
            await editor.stream.aclose()
        nodes = (await status_of(urls[0]))["nodes"]
        assert [(node["name"], node["up"], node["configured"]) for node in nodes] == [("gpu2", True, False)]


async def test_nodes_of_each_other_list_sessions_without_waiting_for_each_other(
    directory: MemoryDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LIST_TIMEOUT", 3600)
    async with two_nodes(tmp_path) as urls:
        for url in urls:
            # Raises after 30 seconds.
            assert not (await listed(control(url))).sessions


async def test_front_that_has_not_read_the_directory_yet_asks_clients_of_nodes_to_try_again(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    directory.lose()
    async with serving(member_config(tmp_path, "gpu1")) as (_, url):
        for wanted in (control(url, agent="gpu2/memory"), control(url, session="gpu2/x")):
            with pytest.raises(Unreachable, match="has just started"):
                await listed(wanted)
        with pytest.raises(UnknownAgent):
            await listed(control(url, agent="other"))
        directory.reachable = True
        while True:
            try:
                await listed(control(url, agent="gpu2/memory"))
            except Unreachable:
                continue
            except UnknownAgent:
                break


async def test_front_that_restarts_while_the_directory_is_lost_leads_to_the_nodes_that_it_knew(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    config = member_config(tmp_path, "gpu1")
    async with serving(member_config(tmp_path, "gpu2")) as (_, other):
        async with serving(config) as (_, url):
            await until_agents(url, "gpu2/memory")
            await until(lambda: remembers(tmp_path / "gpu1", "gpu2"))
        directory.lose()
        async with serving(config) as (_, url):
            editor = Editor(await dial(control(url, agent="gpu2/memory", control=False), Timing()))
            await editor.initialize()
            await editor.stream.aclose()
            with pytest.raises(UnknownAgent, match="the node gpu2 has no agent other"):
                await listed(control(url, agent="gpu2/other"))
    assert other


async def test_front_that_restarts_knows_a_node_that_is_away_and_says_since_when(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    config = member_config(tmp_path, "gpu1")
    async with serving(config) as (_, url), serving(member_config(tmp_path, "gpu2")):
        await until_agents(url, "gpu2/memory")
        await until(lambda: remembers(tmp_path / "gpu1", "gpu2"))
    async with serving(config) as (_, url):
        await until(lambda: "gpu1" in directory.nodes)
        (node,) = (await status_of(url))["nodes"]
        assert (node["name"], node["up"], node["agents"]) == ("gpu2", False, ["memory"])
        await listed(control(url, agent="gpu2/memory"))


async def test_node_that_has_stopped_stays_known_and_is_named(directory: MemoryDirectory, tmp_path: Path) -> None:
    async with serving(member_config(tmp_path, "gpu1")) as (_, url):
        async with serving(member_config(tmp_path, "gpu2")) as (_, other):
            await until_agents(url, "gpu2/memory")
            editor = Editor(await dial(control(other, agent="memory", control=False), Timing()))
            await editor.initialize()
            opened = await editor.request("session/new", {"cwd": "/", "mcpServers": []})
            key = f"gpu2/{opened['result']['sessionId']}"
            while key not in [it["sessionId"] for it in (await listed(control(url))).sessions]:
                await trio.lowlevel.checkpoint()
            await editor.stream.aclose()
        assert "gpu2" not in directory.nodes
        await until_agents(url, "gpu2/memory")
        while not (problems := (await listed(control(url))).problems):
            await trio.lowlevel.checkpoint()
        assert ["gpu2" in line for line in problems] == [True]


async def test_lost_directory_is_told_and_nodes_go_on(directory: MemoryDirectory, tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (url, _):
        assert (await status_of(url))["problems"] == []
        directory.lose()
        while not (await status_of(url))["problems"]:
            await trio.lowlevel.checkpoint()
        (problem,) = (await status_of(url))["problems"]
        assert "the directory of the cluster is lost since" in problem
        assert (await status_of(url))["ready"]
        assert any("is lost since" in line for line in (await listed(control(url))).problems)
        await until_agents(url, "gpu2/memory")
        editor = Editor(await dial(control(url, agent="gpu2/memory", control=False), Timing()))
        await editor.initialize()
        await editor.stream.aclose()
        directory.reachable = True
        while (await status_of(url))["problems"]:
            await trio.lowlevel.checkpoint()


async def test_emptied_directory_is_written_again(directory: MemoryDirectory, tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (url, _):
        directory.empty()
        await until(lambda: len(directory.nodes) == 2)
        assert (await status_of(url))["problems"] == []


async def test_token_of_the_cluster_is_accepted_and_another_one_is_not(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    config = member_config(tmp_path, "gpu1")
    async with serving(config) as (url, _):
        assert (await listed(control(url, tmp_path / "cluster.token"))).sessions == []
        wrong = tmp_path / "wrong"
        wrong.write_text(mint())
        with pytest.raises(ProtocolError, match="did not prove that it knows this token"):
            await listed(control(url, wrong))


async def test_token_of_one_node_counts_on_the_other_until_it_is_revoked_anywhere(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    tokens = TokenStore(tmp_path / "gpu1")
    async with two_nodes(tmp_path) as (_, url):
        secret = tmp_path / "laptop.token"
        secret.touch(0o600)
        token, text = tokens.create("laptop", "ann", None)
        secret.write_text(text)
        other = (tmp_path / "gpu2" / "websocket").read_text()
        while token.id not in directory.tokens or token not in TokenStore(tmp_path / "gpu2").tokens():
            await trio.lowlevel.checkpoint()
        editor = Editor(await dial(control(other, secret, agent="memory", control=False), Timing()))
        await editor.initialize()
        tokens.revoke(token.id)
        async for _batch in editor.stream:
            pass
        await editor.stream.aclose()
        with pytest.raises(Unauthorized):
            await listed(control(other, secret))
    assert url


async def test_identity_of_a_client_is_its_own_at_every_node(directory: MemoryDirectory, tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (first, _):
        secret = save_token(tmp_path / "gpu1", "ann.token", "ann")
        at = (tmp_path / "gpu1" / "websocket").read_text()
        editor = Editor(await dial(control(at, secret, agent="gpu2/memory", control=False), Timing()))
        await editor.initialize()
        opened = await editor.request("session/new", {"cwd": "/", "mcpServers": []})
        key = f"gpu2/{opened['result']['sessionId']}"
        (shown,) = [it for it in (await listed(control(at, secret))).sessions if it["sessionId"] == key]
        assert shown["owner"] == "ann"
        await editor.stream.aclose()
        assert key not in [it["sessionId"] for it in (await listed(control(first))).sessions]


async def test_cluster_without_its_token_file_does_not_start(tmp_path: Path) -> None:
    config = member_config(tmp_path, "gpu1")
    (tmp_path / "cluster.token").unlink()
    with pytest.raises(ConfigError, match="there is no such file"):
        await serve(config, {})


@pytest.mark.parametrize(
    ("advertise", "urls", "address"),
    [
        ("wss://front.example", ["tcp://127.0.0.1:1"], "wss://front.example:443/acp"),
        (None, ["ws://127.0.0.1:5", "wss://gpu1.example:7443"], "wss://gpu1.example:7443/acp"),
        (None, ["tcp://127.0.0.1:1", "ws://127.0.0.1:5"], "ws://127.0.0.1:5/acp"),
    ],
)
def test_advertise_is_by_default_the_first_listener_that_others_can_reach(
    advertise: str | None, urls: list[str], address: str
) -> None:
    section = ClusterSection(
        url=REDIS, name="a", token_file=Path("t"), advertise=None if advertise is None else parse_target(advertise)
    )
    assert str(own_address(section, urls)) == address


def test_advertise_of_a_wildcard_has_the_name_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "GPU1")
    section = ClusterSection(url=REDIS, name="a", token_file=Path("t"))
    assert str(own_address(section, ["wss://0.0.0.0:7443"])) == "wss://gpu1:7443/acp"


def test_advertise_is_required_without_a_listener_for_others() -> None:
    section = ClusterSection(url=REDIS, name="a", token_file=Path("t"))
    with pytest.raises(ConfigError, match="need an address of this one"):
        own_address(section, ["tcp://127.0.0.1:1", "unix:///s"])


def test_pin_is_by_default_that_of_the_listener(tmp_path: Path) -> None:
    config = secure(tmp_path, "wss://127.0.0.1:0")
    section = ClusterSection(url=REDIS, name="a", token_file=Path("t"))
    pin = own_pin(section, config.listen)
    assert pin is not None
    assert pin.startswith("sha256:")
    assert own_pin(replace(section, pin="none"), config.listen) is None
    assert own_pin(replace(section, pin="sha256:1"), config.listen) == "sha256:1"
    (tmp_path / "cert.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match="no certificate can be read"):
        own_pin(section, config.listen)
