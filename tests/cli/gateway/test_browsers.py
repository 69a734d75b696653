"""The command `open`: which link it prints, whom the browser is, and how it is listed and ended."""

import json
import os
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
import pytest
from click.testing import Result

from acp_gateway.cli.gateway import browsers
from acp_gateway.cli.gateway import browsers as command
from acp_gateway.cli.gateway import browsers as page_links
from acp_gateway.cli.gateway.browsers import (
    INTERVAL,
    READ_GRACE,
    READ_TIMEOUT,
    advise,
    open_in_browser,
    print_link,
    require_page,
)
from acp_gateway.client import control
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import UsageError
from acp_gateway.security import token_format
from acp_gateway.security.browser_sessions import BrowserStore, SignIn
from acp_gateway.security.token_store import TokenStore, default_identity
from tests.kit.doubles import make_config, remember_session
from tests.kit.doubles import run_command as run


class Scene:
    """A gateway's machine with a page at a port of loopback, and the session `s1`."""

    def __init__(self, config: Path, state_dir: Path) -> None:
        self.config = config
        self.state_dir = state_dir
        self.tokens = TokenStore(state_dir)
        self.browsers = BrowserStore(state_dir, self.tokens)

    def run(self, *arguments: str) -> Result:
        return run(*arguments, "--config", self.config)

    def sign_in(self, *arguments: str) -> SignIn:
        """Sign in with the link that the command prints."""
        opened = self.run("open", *arguments)
        assert opened.exit_code == 0, opened.stderr
        return self.browsers.sign_in(urlsplit(opened.stdout.strip()).fragment.partition("/")[0])

    def events(self) -> list[dict[str, Any]]:
        lines = (self.state_dir / "audit.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"].startswith("browser_")]


@pytest.fixture
def scene(config: Path, tmp_path: Path) -> Scene:
    text = config.read_text()
    config.write_text(f'{text}\n[[listen]]\nurl = "ws://127.0.0.1:7444"\n')
    remember_session(tmp_path / "state", "s1")
    return Scene(config, tmp_path / "state")


# The code


def test_open_prints_a_link_with_a_code_that_signs_in_the_gateways_own_user(scene: Scene) -> None:
    opened = scene.run("open")
    assert opened.exit_code == 0
    assert opened.stderr.startswith("This link signs one browser in, once, within 10 minutes:\nOnly a browser on this ")
    link, end = opened.stdout[:-1], opened.stdout[-1:]
    assert (link.partition("#")[0], end) == ("http://127.0.0.1:7444/", "\n")
    browser = scene.browsers.sign_in(link.partition("#")[2]).browser
    assert (browser.identity, browser.token_id) == (default_identity(scene.state_dir), None)
    assert (browser.role, browser.session, browser.label) == ("controller", None, "browser")
    assert link.partition("#")[2] not in (scene.state_dir / "audit.jsonl").read_text()
    assert scene.events()[0]["event"] == "browser_code_created"


def test_open_takes_a_session_a_label_and_observe(scene: Scene) -> None:
    browser = scene.sign_in("s1", "--observe", "--label", "phone").browser
    assert (browser.role, browser.session, browser.label) == ("observer", "s1", "phone")


def test_open_binds_the_browser_to_a_token(scene: Scene) -> None:
    token, _ = scene.tokens.create("laptop", "bob", None)
    signed_in = scene.sign_in("--token", token.id)
    assert (signed_in.browser.identity, signed_in.browser.token_id) == ("bob", token.id)
    scene.tokens.revoke(token.id)
    assert scene.browsers.identify(signed_in.cookie) is None


@pytest.mark.parametrize(
    ("arguments", "flaw"),
    [
        (["s2"], "has no session"),
        (["--label", ""], "a label has to be one line"),
        (["--label", "x" * 101], "a label has to be one line"),
        (["--token", "00000000"], "no token has that id"),
        (["--token-file", "x"], "--token-file is for a gateway elsewhere"),
        (["--pin", "x"], "--pin is for a gateway elsewhere"),
        (["--agent", "other\n"], "there is no agent 'other\\n' in the configuration"),
        (["s1", "--agent", "demo"], "--agent is for a new session"),
        (["--observe", "--agent", "demo"], "--agent is for a new session"),
    ],
)
def test_open_refuses_what_cannot_be_and_makes_no_code(arguments: list[str], flaw: str, scene: Scene) -> None:
    refused = scene.run("open", *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert flaw in refused.stderr
    assert not (scene.state_dir / "browsers.json").exists()


def test_open_refuses_a_token_for_metrics(scene: Scene) -> None:
    token, _ = scene.tokens.create("prometheus", "bob", None, role="metrics")
    assert "for reading metrics and nothing else" in scene.run("open", "--token", token.id).stderr


def test_open_refuses_an_expired_token(scene: Scene) -> None:
    token, _ = TokenStore(scene.state_dir, lambda: 1.0).create("old", "bob", None, lifetime=1)
    assert "expired at" in scene.run("open", "--token", token.id).stderr


def test_open_with_a_session_links_to_it(scene: Scene) -> None:
    assert scene.run("open", "s1").stdout.strip().partition("/s/")[2] == "s1"


def test_open_with_agent_links_to_a_new_session(scene: Scene) -> None:
    code, _, place = scene.run("open", "--agent", "demo").stdout.strip().partition("#")[2].partition("/")
    assert (place, scene.browsers.sign_in(code).browser.session) == ("new/demo", None)


def test_open_leaves_the_agents_of_a_cluster_to_the_running_gateway(scene: Scene) -> None:
    with scene.config.open("a") as file:
        file.write('[cluster]\nurl = "redis://127.0.0.1"\nname = "gpu1"\ntoken_file = "cluster.token"\n')
    link = scene.run("open", "--agent", "gpu2/opencode").stdout.strip()
    assert link.partition("#")[2].partition("/")[2] == "new/gpu2%2Fopencode"
    for name in ("gpu2", "gpu2/", "/opencode", "gpu2/a/b"):
        refused = scene.run("open", "--agent", name)
        assert f"there is no agent {name!r} in the configuration" in refused.stderr


def test_open_with_browser_prints_the_link_and_opens_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("acp_gateway.cli.gateway.browsers.open_in_browser", lambda link, _: opened.append(link))
    assert scene.run("open", "--browser").stdout.strip() == opened[0]
    assert scene.run("open").exit_code == 0
    assert len(opened) == 1


# At another gateway


def test_open_with_a_target_asks_the_gateway_there(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    code = token_format.mint("code")

    async def request(destination: Any, method: str, params: Any, *, time_limit: float) -> Any:
        asked.append((str(destination.address), destination.control, method, params, time_limit))
        return {"code": code}

    monkeypatch.setattr(control, "request", request)
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", token_format.mint())
    target = ("--target", "wss://box.example:7443", "--connect-timeout", "3")
    opened = run("open", "s1", "--observe", "--label", "phone", *target)
    assert opened.stdout == f"https://box.example:7443/#{code}/s/s1\n"
    params = {"session": "s1", "observe": True, "label": "phone"}
    assert asked == [("wss://box.example:7443/acp", True, "_acp-gateway/open", params, 3.0)]


@pytest.mark.parametrize(
    ("target", "options", "page"),
    [
        ("wss://10.0.0.1:7443", (), "https://gpu.example/gateway/"),
        ("ssh://box", (), "https://gpu.example/gateway/"),
        ("wss://10.0.0.1:7443", ("--host", "box.example"), "https://box.example/gateway/"),
    ],
)
def test_open_with_a_target_takes_the_page_that_the_gateway_names(
    target: str, options: tuple[str, ...], page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = token_format.mint("code")

    async def request(*_: Any, time_limit: float) -> Any:
        return {"code": code, "page": "https://gpu.example/gateway/"}

    monkeypatch.setattr(control, "request", request)
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", token_format.mint())
    assert run("open", "--target", target, *options).stdout == f"{page}#{code}\n"


def test_open_with_a_target_over_ssh_needs_a_page_that_the_gateway_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def request(*_: Any, time_limit: float) -> Any:
        return {"code": token_format.mint("code")}

    monkeypatch.setattr(control, "request", request)
    refused = run("open", "--target", "ssh://box")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "run `acp-gateway open` there" in refused.stderr


CODE = token_format.mint("code")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"code": 1},
        {"code": "https://evil.example"},
        {"code": "acpgwp_x"},
        {"code": CODE, "page": 1},
        {"code": CODE, "page": "javascript:x"},
    ],
)
def test_open_with_a_target_prints_nothing_but_a_code(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def request(*_: Any, time_limit: float) -> Any:
        return answer

    monkeypatch.setattr(control, "request", request)
    opened = run("open", "--target", "ws://localhost:1")
    assert (opened.exit_code, opened.stdout) == (7, "")


@pytest.mark.parametrize("option", ["--token", "--config"])
def test_open_with_a_target_takes_no_option_of_this_machine(option: str) -> None:
    opened = run("open", "--target", "ws://localhost:1", option, "x")
    assert opened.exit_code == 2
    assert "are for the gateway's machine" in opened.stderr


# token list, token revoke


def test_token_list_shows_browsers_behind_the_tokens(scene: Scene) -> None:
    token, _ = scene.tokens.create("laptop", "bob", None)
    browser = scene.sign_in("--token", token.id, "--label", "phone").browser
    listed = scene.run("token", "list", "--plain").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [token.id, browser.id]
    created = browser.created
    fields = [browser.id, "bob", "controller", token.id, "-", created, browser.expires, f"{created[:13]}Z", "phone"]
    assert listed[1].split() == fields


def test_token_list_shows_browsers_without_any_token(scene: Scene) -> None:
    browser = scene.sign_in().browser
    listed = scene.run("token", "list", "--plain")
    assert "There are no tokens" in listed.stderr
    assert listed.stdout.startswith(browser.id)


def test_token_revoke_signs_out_one_browser(scene: Scene) -> None:
    one, other = scene.sign_in("--label", "phone"), scene.sign_in()
    assert scene.run("token", "revoke", one.browser.id).stdout == f"Signed out {one.browser.id} (phone).\n"
    assert scene.browsers.identify(one.cookie) is None
    assert scene.browsers.identify(other.cookie) == other.browser
    event = scene.events()[-1]
    assert (event["event"], event["id"], event["why"]) == ("browser_ended", one.browser.id, "revoked")


def test_token_revoke_of_a_token_signs_out_its_browsers(scene: Scene) -> None:
    token, _ = scene.tokens.create("laptop", "bob", None)
    bound, own = scene.sign_in("--token", token.id), scene.sign_in()
    assert scene.run("token", "revoke", token.id).exit_code == 0
    assert [browser for browser, _ in scene.browsers.browsers()] == [own.browser]
    event = scene.events()[-1]
    assert (event["id"], event["token"], event["why"]) == (bound.browser.id, token.id, "token revoked")


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_token_revoke_revokes_a_token_whatever_is_wrong_with_the_browsers(scene: Scene, mode: int) -> None:
    token, _ = scene.tokens.create("laptop", "bob", None)
    signed_in = scene.sign_in("--token", token.id)
    file = scene.state_dir / "browsers.json"
    good = file.read_bytes()
    file.write_text("[")
    file.chmod(mode)
    revoked = scene.run("token", "revoke", token.id)
    assert (revoked.exit_code, revoked.stdout) == (0, f"Revoked {token.id} (laptop).\n")
    assert revoked.stderr.startswith(f"warning: the browsers of this token are not removed: {file}: ")
    assert scene.tokens.tokens() == []
    file.write_bytes(good)
    file.chmod(0o600)
    assert scene.browsers.identify(signed_in.cookie) is None


def test_token_revoke_of_a_label_names_the_ids_of_its_browsers(scene: Scene) -> None:
    labelled = {scene.sign_in("--label", "phone").browser.id for _ in range(2)}
    refused = scene.run("token", "revoke", "phone")
    assert (refused.exit_code, refused.stdout, len(scene.browsers.browsers())) == (2, "", 2)
    told = refused.stderr.partition("that is the label of a browser, not its id: ")[2]
    assert set(told.split()) == {"or", *labelled}


def test_token_revoke_of_an_unknown_id_names_the_flaw_of_the_list_of_browsers(scene: Scene) -> None:
    scene.state_dir.mkdir(exist_ok=True)
    file = scene.state_dir / "browsers.json"
    file.touch(0o600)
    file.write_text("[")
    refused = scene.run("token", "revoke", "00000000")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert f"{file}: is not a list of browsers" in refused.stderr


def test_open_is_listed_among_the_commands() -> None:
    assert isinstance(command.open_browser, click.Command)
    assert "open " in run("--help").stdout


def test_open_with_json_prints_an_object_with_the_link(scene: Scene) -> None:
    opened = scene.run("open", "--json")
    assert opened.exit_code == 0
    (link,) = json.loads(opened.stdout).values()
    assert scene.browsers.sign_in(urlsplit(link).fragment)
    assert urlsplit(link).fragment not in opened.stderr


def test_token_revoke_with_json_tells_tokens_and_browsers_apart(scene: Scene) -> None:
    browser = scene.sign_in("--label", "phone").browser
    token, _ = scene.tokens.create("laptop", "bob", None)
    for revoked, value in ((browser, "browser"), (token, "token")):
        done = scene.run("token", "revoke", revoked.id, "--json")
        assert done.exit_code == 0
        assert json.loads(done.stdout) == {"revoked": value, "id": revoked.id, "label": revoked.label}


def test_a_link_is_printed_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_link("https://box.example/#acpgwp_x")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("https://box.example/#acpgwp_x\n", f"{page_links.SIGNS_IN}\n")


def test_in_a_terminal_the_qr_code_of_the_link_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(page_links, "print_qr_code", shown.append)
    monkeypatch.setattr(page_links, "is_terminal", lambda: True)
    print_link("https://box.example/#acpgwp_x")
    assert shown == ["https://box.example/#acpgwp_x"]


def test_a_terminal_gets_a_qr_code(capsys: pytest.CaptureFixture[str]) -> None:
    page_links.print_qr_code("https://box:7443/#acpgwp_x")
    assert "\u2580" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "advice"),
    [
        ("http://127.0.0.1:7080/", "Only a browser on this machine reaches the page. "),
        ("https://localhost/", "Only a browser on this machine reaches the page. "),
        ("https://[::1]:7443/", "Only a browser on this machine reaches the page. "),
        (
            "http://box.example:7080/",
            "Only a browser on this machine reaches the page, and box.example leads nowhere. ",
        ),
        ("https://[::]/", ":: is not an address to go to"),
        ("https://box:7443/", "If a phone does not know the name box"),
        ("https://192.168.1.2:7443/", None),
        ("https://[2001:db8::1]/", None),
        ("https://box.tail1234.ts.net/gateway/", None),
    ],
)
def test_a_link_that_a_phone_does_not_reach_comes_with_advice(page: str, advice: str | None) -> None:
    given = advise(f"{page}#acpgwp_x")
    assert given is None if advice is None else (given or "").startswith(advice)


def test_without_a_listener_with_a_page_the_error_says_what_is_needed(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    object.__setattr__(config, "listen", (ListenSection(url="unix:///run/s"),))
    with pytest.raises(UsageError, match="no listener serves a page"):
        require_page(config, None)


LINK = "https://box.example/gateway/#acpgwp_x/s/a%26b"
SCREEN = {"DISPLAY": ":0"}


class Browser:
    """A browser that looks at a file when it is opened, or after a number of pauses."""

    def __init__(self, reads_after: int = 0) -> None:
        self.url = ""
        self.text = ""
        self.modes: list[int] = []
        self.pauses: list[float] = []
        self._reads_after = reads_after

    @property
    def file(self) -> Path:
        return Path(unquote(urlsplit(self.url).path))

    def open(self, url: str) -> bool:
        self.url = url
        self.modes = [stat.S_IMODE(path.stat().st_mode) for path in (self.file.parent, self.file)]
        self._look()
        return True

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._look()

    def _look(self) -> None:
        if len(self.pauses) == self._reads_after:
            self.text = self.file.read_text()
            # The file system of the tests may note no readings.
            os.utime(self.file)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(browsers, "SNAPS", tmp_path / "snap")
    return tmp_path


def test_the_browser_gets_a_private_file_and_not_the_link(temporary: Path) -> None:
    browser = Browser()
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert (urlsplit(browser.url).scheme, browser.file.parent.parent) == ("file", temporary)
    assert "acpgwp_" not in browser.url
    assert browser.modes == [0o700, 0o600]


def test_the_file_leads_to_the_link_and_nowhere_else() -> None:
    browser = Browser()
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value or "" for name, value in attrs if name in ("href", "content") and "box" in (value or ""))

    Reader().feed(browser.text)
    assert found == [f"0; url={LINK}", LINK]


@pytest.mark.parametrize("reads_after", [0, 7])
def test_the_file_is_removed_once_it_was_read(reads_after: int, temporary: Path) -> None:
    browser = Browser(reads_after)
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert browser.pauses == [*[INTERVAL] * reads_after, READ_GRACE]
    assert list(temporary.iterdir()) == []


def test_a_file_that_is_not_read_is_removed_after_a_while(temporary: Path) -> None:
    browser = Browser(reads_after=10**6)
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert sum(browser.pauses) == pytest.approx(READ_TIMEOUT)
    assert list(temporary.iterdir()) == []


def test_where_browsers_may_be_snaps_the_file_is_in_the_users_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = temporary / "home"
    home.mkdir()
    monkeypatch.setattr(browsers, "SNAPS", temporary)
    monkeypatch.setenv("HOME", str(home))
    browser = Browser()
    open_in_browser(LINK, SCREEN, open_url=browser.open, sleep=browser.sleep)
    assert browser.file.parent.parent == home
    assert list(home.iterdir()) == []


def test_without_a_browser_the_file_is_removed_and_an_error_says_what_to_do(temporary: Path) -> None:
    with pytest.raises(UsageError, match="open the link yourself"):
        open_in_browser(LINK, SCREEN, open_url=lambda _: False)
    assert list(temporary.iterdir()) == []


def test_without_a_screen_no_browser_is_tried(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(UsageError, match="no screen here"):
        open_in_browser(LINK, {}, open_url=lambda _: pytest.fail("tried"))
    assert list(temporary.iterdir()) == []
