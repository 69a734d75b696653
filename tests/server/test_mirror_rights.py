"""The owners of mirrored histories, where the node has all sessions of this gateway as those of one identity."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from acp_gateway.cluster.store import ClusterStore
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.journal import Journal
from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.server.mirrors import Mirrors
from tests.cluster.memory_store import MemoryDirectory


@pytest.fixture
def registry() -> Registry:
    return Registry("user", run="r")


@pytest.fixture
def mirrors(registry: Registry) -> Mirrors:
    nodes = NodeDirectory({"gpu1": NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/t"))}, 0.0)
    row: dict[str, Any] = {"sessionId": "1", "agent": "a", "owner": "door", "live": False, "connected": 0, "away": 0}
    nodes.set_up("gpu1", ["a"], "1.0", 1.0)
    nodes.set_rights("gpu1", "door", ())
    nodes.set_sessions("gpu1", [row | {"turn": False, "waiting": []}], 0)
    nodes.set_away("gpu1", "no answer", 2.0, "unreachable")
    gateway = cast("Gateway", SimpleNamespace(registry=registry))
    store = cast("ClusterStore", MemoryDirectory(lambda: 0.0).store("gpu2"))
    return Mirrors(gateway, store, nodes)


def opened_by(registry: Registry, *owners: str) -> None:
    for owner in owners:
        registry.restore(Session("gpu1/a", "1", owner, Journal(1000, "e")))


@pytest.mark.parametrize("owners", [("ann",), ("bob", "ann")])
def test_session_is_read_by_the_identity_that_has_opened_it_last(
    owners: tuple[str, ...], registry: Registry, mirrors: Mirrors
) -> None:
    opened_by(registry, *owners)
    assert mirrors.key_of("ann", "gpu1/a", "1") == "gpu1/1"
    # The user of the door is another identity, as while the node is there.
    assert [mirrors.key_of(other, "gpu1/a", "1") for other in ("bob", "user")] == [None, None]


def test_session_that_was_opened_elsewhere_is_read_by_the_gateways_own_user(mirrors: Mirrors) -> None:
    assert mirrors.key_of("user", "gpu1/a", "1") == "gpu1/1"
    assert mirrors.key_of("ann", "gpu1/a", "1") is None
