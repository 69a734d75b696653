"""Commands for tokens in a cluster: which nodes have confirmed a revocation."""

import json
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.local import LocalGateway
from acp_gateway.nodes.directory.known_nodes import KnownCluster, KnownNode, KnownNodesFile
from acp_gateway.nodes.directory.records import NodeRecord
from acp_gateway.security.token_store import TokenStore
from tests.doubles import run_command as run

UP = {"name": "gpu2", "confirmed": True, "since": None, "why": None}
AWAY = {"name": "gpu3", "confirmed": False, "since": "2026-11-24T12:03:00Z", "why": "refused"}


@pytest.fixture
def member(config: Path, tmp_path: Path) -> Path:
    """The configuration of a node of a cluster."""
    with config.open("a") as file:
        file.write('[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "t"\n')
    return config


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state")


def answer(monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, Any]) -> list[str]:
    """Let a gateway run that answers so; the ids that it is asked for."""
    asked: list[str] = []

    async def confirm(_: LocalGateway, token_id: str, *, time_limit: float) -> dict[str, Any]:
        assert time_limit > 2
        asked.append(token_id)
        return {"nodes": [*nodes]}

    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    monkeypatch.setattr(LocalGateway, "confirm", confirm)
    return asked


def test_revoke_that_all_nodes_have_confirmed_says_so(
    member: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, UP)
    token, _ = store.create("laptop", "ann", None)
    revoked = run("token", "revoke", token.id, "--config", member)
    assert (revoked.exit_code, asked) == (0, [token.id])
    assert revoked.stdout.splitlines() == [f"Revoked {token.id} (laptop).", "Confirmed by gpu2."]


def test_revoke_names_the_nodes_that_have_not_confirmed_and_when_they_will_refuse(
    member: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, UP, AWAY)
    token, _ = store.create("laptop", "ann", None)
    revoked = run("token", "revoke", token.id, "--config", member)
    assert revoked.exit_code == 6
    (line,) = revoked.stdout.splitlines()[1:]
    assert line == (
        "gpu3 has not confirmed: away since 2026-11-24T12:03:00Z: refused; it refuses the token when it is back, or "
        "when it has heard of no node for 3600 s (cluster.isolation_limit)"
    )
    assert store.tokens() == []


def test_revoke_and_rotate_tell_the_nodes_as_json(
    member: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, UP, AWAY)
    token, _ = store.create("laptop", "ann", None)
    rotated = run("token", "rotate", token.id, "--json", "--config", member)
    assert rotated.exit_code == 0
    assert json.loads(rotated.stdout)["nodes"] == [UP, AWAY]
    revoked = run("token", "revoke", token.id, "--json", "--config", member)
    assert revoked.exit_code == 6
    assert json.loads(revoked.stdout) == {
        "revoked": "token",
        "id": token.id,
        "label": "laptop",
        "nodes": [UP, AWAY],
    }


def test_rotate_prints_the_token_alone_on_stdout_and_names_nodes_on_stderr(
    member: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, AWAY)
    token, _ = store.create("laptop", "ann", None)
    rotated = run("token", "rotate", token.id, "--config", member)
    assert rotated.exit_code == 0
    assert store.authenticate(rotated.stdout.strip()).id == token.id
    assert "gpu3 has not confirmed" in rotated.stderr


async def test_nothing_is_confirmed_while_the_gateway_here_does_not_run(
    member: Path, store: TokenStore, tmp_path: Path
) -> None:
    record = NodeRecord(name="gpu2", url="wss://gpu2", boot="")
    await KnownNodesFile(tmp_path / "state").write(KnownCluster((KnownNode(record, 0.0),)))
    token, _ = store.create("laptop", "ann", None)
    revoked = run("token", "revoke", token.id, "--config", member)
    assert revoked.exit_code == 6
    assert "gpu2 has not confirmed: no gateway runs on" in revoked.stdout
    assert "the other nodes are told when the gateway here runs" in revoked.stderr


def test_token_that_counts_here_only_asks_no_node(
    member: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer(monkeypatch, AWAY)
    token, _ = store.create("laptop", "ann", None, local=True)
    revoked = run("token", "revoke", token.id, "--json", "--config", member)
    assert (revoked.exit_code, asked) == (0, [])
    assert "nodes" not in json.loads(revoked.stdout)


def test_token_without_a_cluster_asks_no_node(config: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch, AWAY)
    token, _ = store.create("laptop", "ann", None)
    assert run("token", "revoke", token.id, "--config", config).exit_code == 0
    assert asked == []
