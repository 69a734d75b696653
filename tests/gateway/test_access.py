"""Principals of connections and their scopes."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from acp_gateway.errors import Forbidden
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.protocol.on_behalf import OnBehalf, Otherwise
from acp_gateway.security.browser_sessions import Browser, BrowserRole, BrowserStore
from acp_gateway.security.token_store import Role, Token, TokenStore


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


# Gateways that act for others


def claim(identity: str = "alice", **more: Any) -> OnBehalf:
    return OnBehalf(identity, more.get("role", "controller"), more.get("agents", ("a",)))


@pytest.mark.parametrize("may_speak_for", [[], ["bob"], ["Alice"], ["alic", "alice2"]])
def test_a_token_without_may_speak_for_that_identity_acts_for_none(
    tokens: TokenStore, may_speak_for: list[str]
) -> None:
    access = Access.of(tokens.create("door", "alice", None, may_speak_for=may_speak_for)[0])
    with pytest.raises(Forbidden, match="may not speak for that identity"):
        access.acting_for(claim())


@pytest.mark.parametrize("may_speak_for", [["alice"], ["bob", "alice"], ["*"]])
def test_may_speak_for_makes_a_connection_that_identitys_and_names_the_token(
    tokens: TokenStore, may_speak_for: list[str]
) -> None:
    token, _ = tokens.create("door", "me", None, may_speak_for=may_speak_for)
    access = Access.of(token).acting_for(claim())
    assert (access.identity, access.agents, access.role) == ("alice", ("a",), "controller")
    assert access.credential == f"token {token.id} for alice"
    assert not access.is_own_user
    with pytest.raises(Forbidden):
        access.acting_for(claim("bob"))


@pytest.mark.parametrize(
    ("role", "asked", "granted"),
    [
        ("controller", "controller", "controller"),
        ("controller", "observer", "observer"),
        ("observer", "controller", "observer"),
        ("observer", "observer", "observer"),
    ],
)
def test_an_identity_that_is_spoken_for_has_the_lesser_role(
    tokens: TokenStore, role: Role, asked: str, granted: str
) -> None:
    access = Access.of(tokens.create("door", "me", None, role=role, may_speak_for=["*"])[0])
    assert access.acting_for(claim(role=asked)).role == granted


def test_an_identity_that_is_spoken_for_has_the_agents_of_both_and_the_workspaces_of_the_token(
    tokens: TokenStore,
) -> None:
    token, _ = tokens.create("door", "me", ["a", "b"], workspaces=["w"], may_speak_for=["*"])
    access = Access.of(token).acting_for(claim(agents=("b", "c")))
    assert (access.agents, access.workspaces) == (("b",), ("w",))
    assert not Access.of(token).acting_for(claim(agents=("c",))).may_use("c")


@pytest.mark.parametrize(
    ("identity", "otherwise", "found"),
    [
        ("bob", "below", "door/bob"),
        ("bob", "own", "door"),
        ("door", "below", "door/door"),
        ("alice", "below", "alice"),
        ("alice", "own", "alice"),
        ("door/alice", "below", "door/door/alice"),
    ],
)
def test_an_identity_that_is_not_spoken_for_is_below_the_tokens_own_or_that_itself(
    identity: str, otherwise: Otherwise, found: str, tokens: TokenStore
) -> None:
    token = tokens.create("door", "door", None, may_speak_for=["alice"])[0]
    access = Access.of(token).acting_for(OnBehalf(identity, "controller", otherwise=otherwise), ["a", "b"])
    assert (access.identity, access.agents, access.session, access.only) == (found, ("a", "b"), None, None)
    assert not access.may_use("gpu1/a")


def test_a_guest_of_another_gateway_is_for_one_session_of_its_owner_and_below_the_token(tokens: TokenStore) -> None:
    token = tokens.create("door", "door", None)[0]
    for owner, otherwise, found in (("bob", "below", "door/bob"), ("me", "own", "door")):
        claim = OnBehalf("guest-1", "controller", None, cast("Otherwise", otherwise), "s", True, owner, 5)
        access = Access.of(token).acting_for(claim)
        assert (access.identity, access.session, access.granted_by, access.since) == ("door/guest-1", "s", found, 5)
    browser = Access.of(token).acting_for(OnBehalf("bob", "observer", None, "below", "s"))
    assert (browser.session, browser.only, browser.role) == (None, "s", "observer")


@pytest.mark.parametrize(
    ("door", "claimed", "granted"),
    [
        ({}, {}, (False, False)),
        ({}, {"files": True}, (True, False)),
        ({}, {"files": True, "ports": True}, (True, True)),
        ({"role": "observer"}, {"files": True, "ports": True}, (True, False)),
        ({"role": "observer", "ports": True}, {"ports": True}, (False, True)),
        ({"role": "observer", "ports": True}, {}, (False, False)),
    ],
)
def test_a_guest_of_another_gateway_has_the_files_and_ports_that_both_tokens_allow(
    door: dict[str, Any], claimed: dict[str, Any], granted: tuple[bool, bool], tokens: TokenStore
) -> None:
    access = Access.of(tokens.create("door", "door", None, **door)[0])
    guest = OnBehalf("guest-1", "observer", None, "below", "s", guest=True)
    acting, without = access.acting_for(msgspec.structs.replace(guest, **claimed)), access.acting_for(guest)
    assert (acting.may_use_files, acting.may_use_ports) == granted
    # What one of them has open is not the other's.
    assert (acting.principal == without.principal) == (not claimed)


def test_a_guests_token_speaks_for_no_identity(tokens: TokenStore) -> None:
    token = tokens.create_guest("s", role="controller", lifetime=None)[0]
    with pytest.raises(Forbidden):
        Access.of(token).acting_for(OnBehalf("bob", "controller", otherwise="below"))


def test_a_browser_of_a_token_speaks_for_no_identity(tokens: TokenStore, tmp_path: Path) -> None:
    token, _ = tokens.create("door", "ann", None, may_speak_for=["*"])
    with pytest.raises(Forbidden):
        Access.of_browser(sign_in(tokens, tmp_path, token), token).acting_for(claim())


# Browsers


def sign_in(tokens: TokenStore, tmp_path: Path, token: Token | None, **options: Any) -> Browser:
    browsers = BrowserStore(tmp_path / "state", tokens)
    return browsers.sign_in(browsers.make_code(token, "ann", label="phone", **options)[1]).browser


def test_a_browser_has_the_access_of_its_token(tokens: TokenStore, tmp_path: Path) -> None:
    token, _ = tokens.create("laptop", "ann", ["a"], workspaces=["w"])
    browser = sign_in(tokens, tmp_path, token)
    access = Access.of_browser(browser, token)
    assert access == replace(Access.of(token), browser=browser)
    assert access.credential == f"browser {browser.id}"


def test_a_browser_without_a_token_is_the_gateways_own_user(tokens: TokenStore, tmp_path: Path) -> None:
    browser = sign_in(tokens, tmp_path, None)
    assert Access.of_browser(browser, None) == replace(Access("ann", None), browser=browser)


@pytest.mark.parametrize(
    ("of_token", "of_code", "granted"),
    [
        ("controller", "controller", "controller"),
        ("controller", "observer", "observer"),
        ("observer", "controller", "observer"),
        ("observer", "observer", "observer"),
        ("metrics", "controller", "metrics"),
        ("metrics", "observer", "metrics"),
    ],
)
def test_a_browser_has_the_lesser_role_of_its_token_and_its_code(
    of_token: Role, of_code: BrowserRole, granted: Role, tokens: TokenStore, tmp_path: Path
) -> None:
    token, _ = tokens.create("laptop", "ann", None, role=of_token)
    assert Access.of_browser(sign_in(tokens, tmp_path, token, role=of_code), token).role == granted


def test_a_session_of_the_code_is_one_of_the_identity_and_a_guests_stays_the_guests(
    tokens: TokenStore, tmp_path: Path
) -> None:
    token, _ = tokens.create("laptop", "ann", None)
    access = Access.of_browser(sign_in(tokens, tmp_path, token, session="s1"), token)
    assert (access.session, access.only) == (None, "s1")
    guest, _ = tokens.create_guest("s2", role="controller", lifetime=None)
    access = Access.of_browser(sign_in(tokens, tmp_path, guest, session="s2"), guest)
    assert (access.session, access.only) == ("s2", None)
