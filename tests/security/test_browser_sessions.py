"""Codes and cookies of browsers: made, exchanged once, bound to a token, expired, ended."""

import fcntl
import json
import logging
import stat
from pathlib import Path

import pytest

from acp_gateway.errors import ConfigError, Unauthorized
from acp_gateway.security import token_format
from acp_gateway.security.browser_sessions import (
    CODE_LIFETIME,
    DAY,
    LOCK_ATTEMPTS,
    MAX_CODES,
    NO_BROWSER,
    NO_CODE,
    USE_INTERVAL,
    Browser,
    BrowserStore,
    SignIn,
)
from acp_gateway.security.private_file import LOCK_PAUSE
from acp_gateway.security.token_store import Token, TokenStore
from tests.kit.clocks import Clock


class Scene:
    """A store of browsers with a token of ann's."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.clock = Clock()
        self.tokens = TokenStore(state_dir, self.clock)
        self.token, self.secret = self.tokens.create("laptop", "ann", None)
        self.browsers = self.another()

    def another(self) -> BrowserStore:
        """A store of the same folder, as another process has one."""
        return BrowserStore(self.state_dir, self.tokens, days=30, idle_days=7, most=3, now=self.clock)

    def code(self, token: Token | None = None) -> str:
        return self.browsers.make_code(token or self.token, "ann", label="phone")[1]

    def sign_in(self) -> SignIn:
        return self.browsers.sign_in(self.code())

    def is_in(self, signed_in: SignIn) -> bool:
        try:
            return self.browsers.authenticate(signed_in.cookie)[0] == signed_in.browser
        except Unauthorized as error:
            assert str(error) == NO_BROWSER  # noqa: PT017
            return False

    def refuses(self, code: str) -> bool:
        with pytest.raises(Unauthorized) as caught:
            self.browsers.sign_in(code)
        return str(caught.value) == NO_CODE


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "state")


# Codes


def test_a_code_signs_a_browser_in_with_the_rights_of_its_token(scene: Scene) -> None:
    signed_in = scene.sign_in()
    browser, token = scene.browsers.authenticate(signed_in.cookie)
    assert (browser, token) == (signed_in.browser, scene.token)
    assert (browser.identity, browser.label, browser.role, browser.session) == ("ann", "phone", "controller", None)


def test_a_code_carries_its_role_and_session_to_the_browser(scene: Scene) -> None:
    _, code = scene.browsers.make_code(scene.token, "ann", role="observer", session="s1", label="x")
    browser = scene.browsers.sign_in(code).browser
    assert (browser.role, browser.session) == ("observer", "s1")


def test_a_code_is_exchanged_once(scene: Scene) -> None:
    code = scene.code()
    scene.browsers.sign_in(code)
    assert scene.refuses(code)


def test_a_code_is_exchanged_once_by_two_processes_together(scene: Scene) -> None:
    code, other = scene.code(), scene.another()
    other.sign_in(code)
    assert scene.refuses(code)


def test_a_code_of_another_process_signs_in(scene: Scene) -> None:
    assert scene.browsers.sign_in(scene.another().make_code(None, "ann", label="x")[1]).browser.token_id is None


def test_a_code_expires_after_ten_minutes(scene: Scene) -> None:
    early, late = scene.code(), scene.code()
    scene.clock.now += CODE_LIFETIME - 1
    scene.browsers.sign_in(early)
    scene.clock.now += 1
    assert scene.refuses(late)


def test_a_code_that_was_never_made_is_refused_in_the_same_words_and_writes_nothing(scene: Scene) -> None:
    scene.code()
    before = (scene.state_dir / "browsers.json").stat()
    for wrong in ("", "x", token_format.mint("code"), token_format.mint(), "acpgwp_" + "é" * 39):
        assert scene.refuses(wrong)
    after = (scene.state_dir / "browsers.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_cookie_is_not_a_code_nor_a_code_a_cookie(scene: Scene) -> None:
    code, signed_in = scene.code(), scene.sign_in()
    assert scene.refuses(signed_in.cookie)
    assert scene.browsers.identify(code) is None
    assert scene.browsers.identify(scene.secret) is None


def test_a_code_of_a_revoked_token_is_refused(scene: Scene) -> None:
    code = scene.code()
    scene.tokens.revoke(scene.token.id)
    assert scene.refuses(code)


def test_more_codes_of_one_token_make_the_oldest_worthless(scene: Scene) -> None:
    other = scene.browsers.make_code(None, "ann", label="x")[1]
    codes = [scene.code() for _ in range(MAX_CODES + 1)]
    assert scene.refuses(codes[0])
    scene.browsers.sign_in(codes[1])
    scene.browsers.sign_in(other)


# Browsers


def test_browsers_are_told_apart(scene: Scene) -> None:
    one, other = scene.sign_in(), scene.sign_in()
    assert scene.browsers.identify(one.cookie) == one.browser
    assert scene.browsers.identify(other.cookie) == other.browser


def test_a_browser_ends_at_once_when_its_token_is_revoked(scene: Scene) -> None:
    signed_in = scene.sign_in()
    assert scene.is_in(signed_in)
    scene.tokens.revoke(scene.token.id)
    assert not scene.is_in(signed_in)


def test_a_browser_ends_when_its_token_expires(scene: Scene) -> None:
    token, _ = scene.tokens.create("short", "ann", None, lifetime=60)
    signed_in = scene.browsers.sign_in(scene.code(token))
    scene.clock.now += 60
    assert not scene.is_in(signed_in)


def test_a_browser_ends_with_the_grace_of_a_rotation_of_its_token(scene: Scene) -> None:
    signed_in = scene.sign_in()
    scene.tokens.rotate(scene.token.id, grace=60)
    assert scene.is_in(signed_in)
    scene.clock.now += 60
    assert not scene.is_in(signed_in)


def test_a_browser_of_the_gateways_own_user_needs_no_token(scene: Scene) -> None:
    signed_in = scene.browsers.sign_in(scene.browsers.make_code(None, "ann", label="x")[1])
    scene.tokens.revoke(scene.token.id)
    assert scene.browsers.authenticate(signed_in.cookie) == (signed_in.browser, None)


def test_ending_a_browser_ends_only_it(scene: Scene) -> None:
    one, other = scene.sign_in(), scene.sign_in()
    assert scene.another().end(one.browser.id) == one.browser
    assert not scene.is_in(one)
    assert scene.is_in(other)
    assert scene.browsers.end(one.browser.id) is None


def test_ending_all_browsers_of_a_token_leaves_those_of_others_and_drops_its_codes(scene: Scene) -> None:
    one, code = scene.sign_in(), scene.code()
    own = scene.browsers.sign_in(scene.browsers.make_code(None, "ann", label="x")[1])
    assert scene.browsers.end_all_of(scene.token.id) == [one.browser]
    assert not scene.is_in(one)
    assert scene.is_in(own)
    assert scene.refuses(code)
    assert scene.browsers.end_all_of("00000000") == []


def test_browser_days_end_a_browser_that_is_used_every_day(scene: Scene) -> None:
    signed_in = scene.sign_in()
    for _ in range(29):
        scene.clock.now += DAY
        assert scene.is_in(signed_in)
    scene.clock.now += DAY
    assert not scene.is_in(signed_in)


def test_browser_idle_days_end_a_browser_that_is_not_used(scene: Scene) -> None:
    signed_in = scene.sign_in()
    scene.clock.now += 7 * DAY - 1
    assert scene.another().identify(signed_in.cookie) is not None
    scene.clock.now += 1
    assert not scene.is_in(signed_in)


def test_the_use_of_a_browser_is_written_once_an_hour(scene: Scene) -> None:
    signed_in = scene.sign_in()
    file = scene.state_dir / "browsers.json"
    before = file.read_bytes()
    scene.clock.now += USE_INTERVAL - 1
    scene.browsers.note_use(signed_in.browser)
    assert file.read_bytes() == before
    scene.clock.now += USE_INTERVAL
    scene.browsers.note_use(signed_in.browser)
    assert scene.another().browsers() == [(signed_in.browser, "2026-03-01T13:59:59Z")]


def test_a_use_that_cannot_be_written_is_logged_once_an_hour(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    signed_in = scene.sign_in()
    scene.clock.now += 2 * USE_INTERVAL
    (scene.state_dir / "browsers.json").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        scene.browsers.note_use(signed_in.browser)
        scene.browsers.note_use(signed_in.browser)
    assert [record.getMessage()[:40] for record in caplog.records] == [
        f"the use of browser {signed_in.browser.id} is not noted: "[:40]
    ]


def test_browsers_per_token_end_the_one_that_was_unused_for_longest(scene: Scene) -> None:
    first = scene.sign_in()
    scene.clock.now += 1
    second, third = scene.sign_in(), scene.sign_in()
    scene.clock.now += 2 * USE_INTERVAL
    scene.browsers.note_use(first.browser)
    fourth = scene.sign_in()
    assert fourth.replaced == (second.browser,)
    assert [scene.is_in(each) for each in (first, second, third, fourth)] == [True, False, True, True]


def test_a_browser_that_signs_in_again_replaces_itself(scene: Scene) -> None:
    first, second, third = scene.sign_in(), scene.sign_in(), scene.sign_in()
    again = scene.browsers.sign_in(scene.code(), second.browser)
    assert again.replaced == (second.browser,)
    assert [scene.is_in(each) for each in (first, second, third, again)] == [True, False, True, True]


def test_a_process_that_keeps_the_lock_stops_no_other_for_good(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    signed_in, code = scene.sign_in(), scene.code()
    pauses: list[float] = []
    monkeypatch.setattr("acp_gateway.security.private_file.time.sleep", pauses.append)
    with (scene.state_dir / "browsers.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process keeps its lock"):
            scene.browsers.sign_in(code)
        assert scene.is_in(signed_in)
    assert pauses == [LOCK_PAUSE] * (LOCK_ATTEMPTS - 1)
    scene.browsers.sign_in(code)


# At rest


def test_neither_code_nor_cookie_is_in_the_file_or_in_a_repr(scene: Scene) -> None:
    made, code = scene.browsers.make_code(scene.token, "ann", label="x")
    signed_in = scene.sign_in()
    at_rest = (scene.state_dir / "browsers.json").read_text()
    assert stat.S_IMODE((scene.state_dir / "browsers.json").stat().st_mode) == 0o600
    for text in (at_rest, repr(made), repr(signed_in), repr(signed_in.browser)):
        assert code not in text
        assert signed_in.cookie not in text
    shown = repr(made) + repr(signed_in)
    assert made.sha256 not in shown
    assert signed_in.browser.sha256 not in shown


def test_what_has_expired_is_not_kept(scene: Scene) -> None:
    expired = scene.sign_in()
    scene.code()
    scene.clock.now += 8 * DAY
    signed_in = scene.sign_in()
    assert scene.browsers.take_expired() == [(expired.browser, "unused")]
    content = json.loads((scene.state_dir / "browsers.json").read_bytes())
    assert [browser["id"] for browser in content["browsers"]] == [signed_in.browser.id] == list(content["used"])
    assert content["codes"] == []


def test_an_expired_browser_is_taken_once_with_its_reason_by_one_process(scene: Scene) -> None:
    old = scene.sign_in()
    for _ in range(29):
        scene.clock.now += DAY
        scene.browsers.note_use(old.browser)
    idle = scene.sign_in()
    scene.clock.now += DAY
    assert scene.browsers.take_expired() == [(old.browser, "expired")]
    scene.clock.now += 6 * DAY
    other = scene.another()
    assert other.take_expired() == [(idle.browser, "unused")]
    assert scene.browsers.take_expired() == other.take_expired() == []


@pytest.mark.parametrize("change", ["code", "sign in", "end", "use"])
def test_an_expired_browser_stays_until_it_is_taken_whatever_else_is_written(scene: Scene, change: str) -> None:
    expired = scene.sign_in()
    scene.clock.now += 6 * DAY
    other = scene.sign_in()
    scene.clock.now += DAY
    match change:
        case "code":
            scene.code()
        case "sign in":
            scene.browsers.sign_in(scene.code(), expired.browser)
        case "end":
            scene.browsers.end(other.browser.id)
        case _:
            scene.browsers.note_use(other.browser)
    assert not scene.is_in(expired)
    assert scene.browsers.take_expired() == [(expired.browser, "unused")]


def test_taking_expired_browsers_writes_nothing_where_there_are_none(scene: Scene) -> None:
    assert scene.browsers.take_expired() == []
    assert not (scene.state_dir / "browsers.json").exists()
    scene.sign_in()
    before = (scene.state_dir / "browsers.json").stat()
    assert scene.browsers.take_expired() == []
    assert (scene.state_dir / "browsers.json").stat().st_ino == before.st_ino


def test_no_browser_is_taken_as_expired_from_an_untrusted_file(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    expired = scene.sign_in()
    scene.clock.now += 8 * DAY
    file = scene.state_dir / "browsers.json"
    file.chmod(0o644)
    assert scene.browsers.take_expired() == []
    assert [record.message.split(":")[0] for record in caplog.records] == ["no browser is accepted"]
    with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
        scene.browsers.check()
    file.chmod(0o600)
    scene.browsers.check()
    assert scene.browsers.take_expired() == [(expired.browser, "unused")]


def test_an_untrusted_file_signs_all_browsers_out_and_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    signed_in, code = scene.sign_in(), scene.code()
    (scene.state_dir / "browsers.json").chmod(0o644)
    with caplog.at_level(logging.ERROR):
        assert not scene.is_in(signed_in)
        assert not scene.is_in(signed_in)
        assert scene.refuses(code)
    assert [record.message.split(":")[0] for record in caplog.records] == ["no browser is accepted"]
    with pytest.raises(ConfigError, match="others may use it"):
        scene.browsers.browsers()


def test_an_unknown_member_of_the_file_is_refused(scene: Scene) -> None:
    signed_in = scene.sign_in()
    file = scene.state_dir / "browsers.json"
    content = json.loads(file.read_bytes())
    content["browsers"][0]["scope"] = "less"
    file.write_text(json.dumps(content))
    assert not scene.is_in(signed_in)


def test_a_list_of_browsers_has_only_those_that_are_signed_in(scene: Scene) -> None:
    signed_in = scene.sign_in()
    browsers: list[Browser] = [browser for browser, _ in scene.browsers.browsers()]
    assert browsers == [signed_in.browser]
    scene.tokens.revoke(scene.token.id)
    assert scene.browsers.browsers() == []
