"""Codes for browsers that clients of control connections ask for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.listeners import Service
from acp_gateway.config.load import ListenSection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role, Session, SessionScope
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import AccessError, Busy, Forbidden, UnknownSession, UsageError
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.browsers import LABEL_SIZE, SignInCodes, find_public_page
from acp_gateway.gateway.events.audit import NO_AUDIT
from acp_gateway.security.browser_sessions import Browser, BrowserStore
from acp_gateway.security.token_store import TokenStore


class Scene:
    """A gateway with a session of ann's and one of bob's."""

    public_url: str | None = None

    def __init__(self, tmp_path: Path) -> None:
        self.tokens = TokenStore(tmp_path)
        self.browsers = BrowserStore(tmp_path, self.tokens)
        self.registry = Registry("ann")
        for name, owner in (("s1", "ann"), ("s2", "bob")):
            self.registry.restore(Session("agent", name, owner, Journal(1)))
        self.ann = Access.of(self.tokens.create("laptop", "ann", None)[0])

    def ask(self, access: Access, params: Any, role: Role = Role.CONTROLLER) -> dict[str, Any]:
        """Ask for a code over a control connection of this principal."""
        scope = SessionScope(access.identity, access.session, access.session is not None)
        grant = Grant(access, ConnectRequest(control=True), "", scope, role)
        section = ListenSection(url="ws://127.0.0.1:1", public_url=self.public_url)
        codes = SignInCodes(grant, self.registry, self.browsers, NO_AUDIT, [section])
        return codes.make(params if isinstance(params, bytes) else json.dumps(params).encode())

    def browser(self, access: Access, **params: Any) -> Browser:
        """Sign in with such a code."""
        return self.browsers.sign_in(self.ask(access, params)["code"]).browser


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_code_is_bound_to_the_token_of_the_connection(scene: Scene) -> None:
    browser = scene.browser(scene.ann)
    assert scene.ann.token is not None
    assert (browser.token_id, browser.identity, browser.role) == (scene.ann.token.id, "ann", "controller")
    assert (browser.session, browser.label) == (None, "browser")


def test_a_code_of_the_gateways_own_user_is_bound_to_no_token(scene: Scene) -> None:
    browser = scene.browser(Access("ann", None), label="phone")
    assert (browser.token_id, browser.identity, browser.label) == (None, "ann", "phone")


def test_a_code_may_be_for_observing_and_is_on_a_connection_that_observes(scene: Scene) -> None:
    assert scene.browser(scene.ann, observe=True).role == "observer"
    code = scene.ask(scene.ann, {}, Role.OBSERVER)["code"]
    assert scene.browsers.sign_in(code).browser.role == "observer"


def test_a_code_may_be_for_a_session_of_the_identity_and_for_no_other(scene: Scene) -> None:
    assert scene.browser(scene.ann, session="s1").session == "s1"
    for session in ("s2", "s3", ""):
        with pytest.raises(UnknownSession):
            scene.ask(scene.ann, {"session": session})
    with pytest.raises(UnknownSession):
        scene.ask(replace(scene.ann, agents=("other",)), {"session": "s1"})


def test_a_browser_makes_no_codes(scene: Scene) -> None:
    browser = scene.browser(scene.ann)
    with pytest.raises(Forbidden, match="a browser can't sign in another one"):
        scene.ask(Access.of_browser(browser, scene.ann.token), {})


def test_a_client_certificate_makes_no_codes(scene: Scene) -> None:
    with pytest.raises(Forbidden, match="use a token"):
        scene.ask(Access("ann", None, "laptop"), {})


@pytest.mark.parametrize(
    "params",
    [b"[]", b"1", {"x": 1}, {"observe": 1}, {"label": ""}, {"label": "a\nb"}, {"label": "x" * (LABEL_SIZE + 1)}],
)
def test_params_that_are_not_understood_are_refused(params: Any, scene: Scene) -> None:
    with pytest.raises(UsageError):
        scene.ask(scene.ann, params)


def test_a_file_that_cannot_be_trusted_is_not_named_to_the_client(scene: Scene, tmp_path: Path) -> None:
    scene.ask(scene.ann, {})
    (tmp_path / "browsers.json").chmod(0o644)
    with pytest.raises(Busy) as caught:
        scene.ask(scene.ann, {})
    assert isinstance(caught.value, AccessError)
    assert "browsers.json" not in str(caught.value)


@pytest.mark.parametrize(
    ("serves", "public_url", "page"),
    [
        (None, None, None),
        (None, "https://gpu.example", "https://gpu.example/"),
        (None, "https://gpu.example:8443/gateway", "https://gpu.example:8443/gateway/"),
        (("acp",), "https://gpu.example", None),
    ],
)
def test_the_public_page_is_the_public_url_of_a_listener_with_a_page(
    serves: tuple[Service, ...] | None, public_url: str | None, page: str | None
) -> None:
    section = ListenSection(url="ws://127.0.0.1:1", serves=serves, public_url=public_url)
    assert find_public_page([ListenSection(url="unix:///s"), section]) == page


def test_a_code_comes_with_the_public_page_if_there_is_one(scene: Scene) -> None:
    assert "page" not in scene.ask(scene.ann, {})
    scene.public_url = "https://gpu.example"
    assert scene.ask(scene.ann, {})["page"] == "https://gpu.example/"
