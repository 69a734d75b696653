"""The description of a credential for its client."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway import __version__
from acp_gateway.config.load import AgentSection, WorkspaceSection
from acp_gateway.core.sessions.session import Role, SessionScope
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.control_channel import describe_access
from acp_gateway.security.token_store import TokenStore
from tests.doubles import make_config


def describe(
    access: Access, state_dir: Path, *, only: str | None = None, role: Role = Role.CONTROLLER
) -> dict[str, Any]:
    agents = {"a": AgentSection(command=("a",), scope="connection"), "b": AgentSection(command=("b",))}
    workspaces = {name: WorkspaceSection(root=Path(f"/srv/{name}")) for name in ("w", "v")}
    config = make_config(state_dir, "tcp://127.0.0.1:1", agents=agents, default_agent="b")
    config = replace(config, workspaces=workspaces)
    scope = SessionScope(access.identity, only, access.session is not None)
    return describe_access(Grant(access, ConnectRequest(control=True), "", scope, role), config)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path, now=lambda: 1_800_000_000.0)


def test_a_token_is_described_with_what_it_allows(tokens: TokenStore, tmp_path: Path) -> None:
    token, secret = tokens.create("laptop", "ann", None, lifetime=60.0, workspaces=["w"])
    told = describe(Access.of(token), tmp_path)
    assert told == {
        "version": __version__,
        "identity": "ann",
        "credential": f"token {token.id}",
        "role": "controller",
        "agents": {"a": "connection", "b": "identity"},
        "defaultAgent": "b",
        "label": "laptop",
        "workspaces": ["w"],
        "folders": ["/srv/w"],
        "expires": "2027-01-15T08:01:00Z",
    }
    assert secret not in str(told)


def test_a_token_for_one_agent_is_told_of_no_other(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create("x", "ann", ["a"])[0]), tmp_path, role=Role.OBSERVER)
    assert (told["agents"], told["defaultAgent"], told["role"]) == ({"a": "connection"}, "a", "observer")
    assert "expires" not in told
    assert told["folders"] == ["/srv/w", "/srv/v"]


def test_a_token_for_an_agent_that_was_removed_has_none(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create("x", "ann", ["gone"])[0]), tmp_path)
    assert told["agents"] == {}
    assert "defaultAgent" not in told


def test_a_guest_is_told_of_its_session_and_no_agent(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create_guest("s1", role="observer", lifetime=None)[0]), tmp_path, only="s1")
    assert (told["session"], told["agents"]) == ("s1", {})
    assert "defaultAgent" not in told
    assert "folders" not in told


def test_a_client_certificate_is_described_with_its_end(tmp_path: Path) -> None:
    told = describe(replace(Access("ann", None), certificate="ann", expires=1_800_000_000.0), tmp_path)
    assert (told["credential"], told["expires"]) == ("certificate ann", "2027-01-15T08:00:00Z")
    assert "label" not in told
