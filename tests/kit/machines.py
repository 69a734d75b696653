"""Several gateways in this process: nodes with an agent each, and a gateway in front of them."""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from acp_gateway.client.control import request
from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import AgentSection, Config
from acp_gateway.config.nodes import NodeSection
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import make_config
from tests.kit.running import AGENTS
from tests.kit.serving import serving

WS = "ws://127.0.0.1:0"
SIZE = 1_000_000


def node_config(folder: Path, *, url: str = WS) -> Config:
    """The configuration of a node, whose agent keeps its sessions in files; `node.token` is its user's token."""
    (folder / "sessions").mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-I", "-S", str(AGENTS / "remembering_agent.py"), str(folder / "sessions"))
    save_token(folder)
    return make_config(folder, url, agents={"memory": AgentSection(command=command, eof_grace=0.1)})


def save_token(
    folder: Path,
    name: str = "node.token",
    identity: str | None = None,
    agents: Sequence[str] | None = None,
    **limits: Any,
) -> Path:
    """Make a token of a gateway, of its own user unless another identity is given."""
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_text(TokenStore(folder).create(name, identity, agents, **limits)[1])
    return path


def node_section(folder: Path, url: str, **options: Any) -> NodeSection:
    """The section for a node."""
    return NodeSection(url=parse_target(url), token_file=folder / "node.token", **options)


def front_config(folder: Path, nodes: Mapping[str, NodeSection]) -> Config:
    """The configuration of a gateway in front, without an agent of its own; it listens for lines and for WebSockets."""
    folder.mkdir(exist_ok=True)
    return replace(make_config(folder, f"unix://{folder}/socket", WS), agents={}, nodes=nodes)


def port_of(url: str) -> int:
    """The port of a URL."""
    port = urlsplit(url).port
    assert port is not None
    return port


def control(url: str, token_file: Path | None = None, **more: Any) -> Destination:
    """A control connection to a gateway."""
    token = None if token_file is None else token_file.read_text().strip()
    more = {"agent": None, "control": True} | more
    return Destination(parse_target(url), more.pop("agent"), token, None, None, SIZE, **more)


async def until_agents(url: str, *names: str, token_file: Path | None = None) -> dict[str, Any]:
    """Ask a gateway until it knows these agents of its nodes, and return the rights."""
    while True:
        rights: dict[str, Any] = await request(control(url, token_file), ACCESS, {}, time_limit=30)
        if set(names) <= set(rights["agents"]):
            return rights
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def two_nodes_and_a_front(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The unix socket and the WebSocket of a gateway in front of the nodes `gpu1` and `gpu2`, which it has found."""
    async with AsyncExitStack() as stack:
        nodes = {}
        for name in ("gpu1", "gpu2"):
            (url,) = await stack.enter_async_context(serving(node_config(folder / name)))
            nodes[name] = node_section(folder / name, url)
            (folder / name / "url").write_text(url)
        at, websocket = await stack.enter_async_context(serving(front_config(folder / "front", nodes)))
        await until_agents(at, "gpu1/memory", "gpu2/memory")
        yield at, websocket
