"""Browsers of a gateway: their codes, their ends in the audit, and the public page."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.config.load import ListenSection
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import AccessError, Busy, Forbidden, UnknownSession, UsageError
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.browsers import (
    CHECK_INTERVAL,
    LABEL_SIZE,
    SignInCodes,
    browser_details,
    end_expired_browsers,
    find_public_page,
    record_ends,
)
from acp_gateway.gateway.events.audit import NO_AUDIT, Audit
from acp_gateway.security.browser_sessions import DAY, Browser, BrowserStore
from acp_gateway.security.token_store import TokenStore


class Scene:
    """A store of browsers whose time begins in 2026, and an audit."""

    def __init__(self, state_dir: Path) -> None:
        self.seconds = 1.8e9
        self.state_dir = state_dir
        self.browsers = BrowserStore(
            state_dir, TokenStore(state_dir), days=30, idle_days=7, most=16, now=lambda: self.seconds
        )
        self.audit = Audit(state_dir / "audit.jsonl", max_size=1 << 20, files=2)

    def sign_in(self, label: str) -> Browser:
        return self.browsers.sign_in(self.browsers.make_code(None, "ann", label=label)[1]).browser

    def ends(self) -> list[dict[str, Any]]:
        """The entries, without their time."""
        if not (self.state_dir / "audit.jsonl").exists():
            return []
        entries = [json.loads(line) for line in (self.state_dir / "audit.jsonl").read_text().splitlines()]
        return [{name: value for name, value in entry.items() if name != "time"} for entry in entries]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "state")


def test_the_end_of_a_browser_is_recorded_with_what_is_known_about_it(scene: Scene) -> None:
    browser = scene.sign_in("phone")
    record_ends(scene.audit, [browser], "replaced")
    known = {"id": browser.id, "label": "phone", "identity": "ann"}
    assert scene.ends() == [{"event": "browser_ended", **known, "why": "replaced"}]


def test_a_code_has_no_id_among_its_details(scene: Scene) -> None:
    code, _ = scene.browsers.make_code(None, "ann", label="phone")
    assert browser_details(code) == {"label": "phone", "identity": "ann", "token": None}


async def test_an_expired_browser_is_recorded_once_within_check_interval(
    scene: Scene, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    old = scene.sign_in("old")
    nursery.start_soon(end_expired_browsers, scene.browsers, scene.audit)
    await trio.sleep(1)
    assert scene.ends() == []
    for _ in range(29):
        scene.seconds += DAY
        scene.browsers.note_use(old)
    idle = scene.sign_in("idle")
    scene.seconds += DAY
    await trio.sleep(CHECK_INTERVAL)
    scene.seconds += 6 * DAY
    await trio.sleep(10 * CHECK_INTERVAL)
    assert [(entry["id"], entry["why"]) for entry in scene.ends()] == [(old.id, "expired"), (idle.id, "unused")]


async def test_a_browser_that_expired_while_no_gateway_ran_is_recorded_at_the_start(
    scene: Scene, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    browser = scene.sign_in("phone")
    scene.seconds += 8 * DAY
    nursery.start_soon(end_expired_browsers, scene.browsers, scene.audit)
    await trio.testing.wait_all_tasks_blocked()
    assert [entry["id"] for entry in scene.ends()] == [browser.id]


async def test_a_file_that_cannot_be_written_is_logged_once_and_tried_again(
    scene: Scene, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    browser = scene.sign_in("phone")
    scene.seconds += 8 * DAY
    # What a writer that was killed leaves behind is removed; a folder is not.
    blocking = scene.state_dir / "browsers.json.new"
    blocking.mkdir()
    with caplog.at_level(logging.WARNING):
        nursery.start_soon(end_expired_browsers, scene.browsers, scene.audit)
        await trio.sleep(3.5 * CHECK_INTERVAL)
        assert [record.message.split(":")[0] for record in caplog.records] == ["expired browsers are not removed"]
        assert scene.ends() == []
        blocking.rmdir()
        await trio.sleep(CHECK_INTERVAL)
    assert [entry["id"] for entry in scene.ends()] == [browser.id]


class CodeScene:
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
        reach = SessionReach(access.identity, access.session, access.session is not None)
        grant = Grant(access, ConnectRequest(control=True), "", reach, role)
        section = ListenSection(url="ws://127.0.0.1:1", public_url=self.public_url)
        codes = SignInCodes(grant, self.registry, self.browsers, NO_AUDIT, [section], ["gpu1"])
        return codes.make(params if isinstance(params, bytes) else json.dumps(params).encode())

    def browser(self, access: Access, **params: Any) -> Browser:
        """Sign in with such a code."""
        return self.browsers.sign_in(self.ask(access, params)["code"]).browser


@pytest.fixture
def codes(tmp_path: Path) -> CodeScene:
    return CodeScene(tmp_path)


def test_a_code_is_bound_to_the_token_of_the_connection(codes: CodeScene) -> None:
    browser = codes.browser(codes.ann)
    assert codes.ann.token is not None
    assert (browser.token_id, browser.identity, browser.role) == (codes.ann.token.id, "ann", "controller")
    assert (browser.session, browser.label) == (None, "browser")


def test_a_code_may_be_for_a_session_of_a_node_which_says_itself_whether_there_is_one(codes: CodeScene) -> None:
    assert codes.browser(codes.ann, session="gpu1/7/f").session == "gpu1/7/f"
    with pytest.raises(UnknownSession):
        codes.ask(codes.ann, {"session": "gpu2/1"})


def test_a_code_of_the_gateways_own_user_is_bound_to_no_token(codes: CodeScene) -> None:
    browser = codes.browser(Access("ann", None), label="phone")
    assert (browser.token_id, browser.identity, browser.label) == (None, "ann", "phone")


def test_a_code_may_be_for_observing_and_is_on_a_connection_that_observes(codes: CodeScene) -> None:
    assert codes.browser(codes.ann, observe=True).role == "observer"
    code = codes.ask(codes.ann, {}, Role.OBSERVER)["code"]
    assert codes.browsers.sign_in(code).browser.role == "observer"


def test_a_code_may_be_for_a_session_of_the_identity_and_for_no_other(codes: CodeScene) -> None:
    assert codes.browser(codes.ann, session="s1").session == "s1"
    for session in ("s2", "s3", ""):
        with pytest.raises(UnknownSession):
            codes.ask(codes.ann, {"session": session})
    with pytest.raises(UnknownSession):
        codes.ask(replace(codes.ann, agents=("other",)), {"session": "s1"})


def test_a_browser_makes_no_codes(codes: CodeScene) -> None:
    browser = codes.browser(codes.ann)
    with pytest.raises(Forbidden, match="a browser can't sign in another one"):
        codes.ask(Access.of_browser(browser, codes.ann.token), {})


def test_a_program_that_local_user_lets_in_makes_no_codes(codes: CodeScene) -> None:
    with pytest.raises(Forbidden, match="local_user"):
        codes.ask(Access("ann", None, by_port=True), {})


def test_a_client_certificate_makes_no_codes(codes: CodeScene) -> None:
    with pytest.raises(Forbidden, match="use a token"):
        codes.ask(Access("ann", None, "laptop"), {})


@pytest.mark.parametrize(
    "params",
    [b"[]", b"1", {"x": 1}, {"observe": 1}, {"label": ""}, {"label": "a\nb"}, {"label": "x" * (LABEL_SIZE + 1)}],
)
def test_params_that_are_not_understood_are_refused(params: Any, codes: CodeScene) -> None:
    with pytest.raises(UsageError):
        codes.ask(codes.ann, params)


def test_a_file_that_cannot_be_trusted_is_not_named_to_the_client(codes: CodeScene, tmp_path: Path) -> None:
    codes.ask(codes.ann, {})
    (tmp_path / "browsers.json").chmod(0o644)
    with pytest.raises(Busy) as caught:
        codes.ask(codes.ann, {})
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
    serves: tuple[str, ...] | None, public_url: str | None, page: str | None
) -> None:
    section = ListenSection(url="ws://127.0.0.1:1", serves=serves, public_url=public_url)
    assert find_public_page([ListenSection(url="unix:///s"), section]) == page


def test_a_code_comes_with_the_public_page_if_there_is_one(codes: CodeScene) -> None:
    assert "page" not in codes.ask(codes.ann, {})
    codes.public_url = "https://gpu.example"
    assert codes.ask(codes.ann, {})["page"] == "https://gpu.example/"
