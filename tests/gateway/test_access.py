"""Principals of connections and their scopes."""

from pathlib import Path

import pytest

from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.security.token_store import TokenStore


@pytest.fixture
def tokens(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state")


def test_access_by_a_token_is_its_identitys(tokens: TokenStore) -> None:
    token, _ = tokens.create("laptop", "ann", None)
    access = Access.of(token)
    assert (access.identity, access.token) == ("ann", token)


def test_a_token_for_no_agent_in_particular_allows_all(tokens: TokenStore) -> None:
    assert Access.of(tokens.create("laptop", "ann", None)[0]).may_use("any")


def test_a_token_for_some_agents_allows_these_and_no_other(tokens: TokenStore) -> None:
    access = Access.of(tokens.create("laptop", "ann", ["a", "b"])[0])
    assert [name for name in ("a", "b", "c", "", "A") if access.may_use(name)] == ["a", "b"]


def test_whom_the_kernel_vouches_for_may_use_everything() -> None:
    assert Access("me", None).may_use("any")


def test_no_repr_shows_what_is_at_rest_of_a_token(tokens: TokenStore) -> None:
    token, secret = tokens.create("laptop", "ann", None)
    assert token.sha256 not in repr(Access.of(token))
    assert secret not in repr(Access.of(token))


def test_an_empty_connect_request_names_no_agent_and_no_session() -> None:
    assert ConnectRequest() == ConnectRequest(agent=None, session=None, observe=False, control=False)
