"""The command `open`: which link it prints, whom the browser is, and how it is listed and ended."""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from click.testing import Result

from acp_gateway.cli import browsers as command
from acp_gateway.cli import tokens as token_commands
from acp_gateway.cli.browsers import find_page, page_at
from acp_gateway.client import control
from acp_gateway.config.addresses import parse_address, parse_target
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import UsageError
from acp_gateway.security import token_format
from acp_gateway.security.browser_sessions import BrowserStore, SignIn
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_store import TokenStore, default_identity
from tests.doubles import make_config, remember_session
from tests.doubles import run_command as run


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
        return self.browsers.sign_in(urlsplit(opened.stdout.strip()).fragment)

    def events(self) -> list[dict[str, Any]]:
        lines = (self.state_dir / "audit.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"].startswith("browser_")]


@pytest.fixture
def scene(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(token_commands, "SESSION_DELAY", 0.0)
    text = config.read_text()
    config.write_text(f'{text}\n[[listen]]\nurl = "ws://127.0.0.1:7444"\n')
    remember_session(tmp_path / "state", "s1")
    return Scene(config, tmp_path / "state")


# The code


def test_open_prints_a_link_with_a_code_that_signs_in_the_gateways_own_user(scene: Scene) -> None:
    opened = scene.run("open")
    assert (opened.exit_code, opened.stderr) == (0, "This link signs one browser in, once, within 10 minutes:\n")
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
    assert opened.stdout == f"https://box.example:7443/#{code}\n"
    params = {"session": "s1", "observe": True, "label": "phone"}
    assert asked == [("wss://box.example:7443/acp", True, "_acp-gateway/open", params, 3.0)]


@pytest.mark.parametrize("answer", [None, {}, {"code": 1}, {"code": "https://evil.example"}, {"code": "acpgwp_x"}])
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


# The address


@pytest.mark.parametrize(
    ("sections", "host", "page"),
    [
        ([{"url": "wss://box.example:7443"}], None, "https://box.example:7443/"),
        ([{"url": "wss://0.0.0.0:7443"}], None, "https://cert.example:7443/"),
        ([{"url": "wss://0.0.0.0:7443", "allowed_hosts": ("box",)}], None, "https://box:7443/"),
        ([{"url": "wss://0.0.0.0:443"}], "box", "https://box/"),
        ([{"url": "wss://[::]:7443"}], "2001:db8::1", "https://[2001:db8::1]:7443/"),
        ([{"url": "ws://127.0.0.1:7443"}, {"url": "wss://box:7444"}], None, "https://box:7444/"),
        ([{"url": "ws://127.0.0.1:7443", "allowed_hosts": ("box.example",)}], None, "https://box.example/"),
        ([{"url": "ws://localhost:80"}], None, "http://localhost/"),
        ([{"url": "ws://[::1]:7443"}, {"url": "unix:///run/s"}], None, "http://[::1]:7443/"),
    ],
)
def test_the_link_names_the_listener_that_a_browser_can_reach(
    sections: list[dict[str, Any]], host: str | None, page: str, tmp_path: Path
) -> None:
    create_certificate(["localhost", "*.example", "cert.example"], tmp_path)
    config = make_config(tmp_path)
    tls: dict[str, Any] = {"cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    listen = [ListenSection(**each, **(tls if each["url"].startswith("wss") else {})) for each in sections]
    object.__setattr__(config, "listen", tuple(listen))
    assert find_page(config, host) == page


@pytest.mark.parametrize(
    "section",
    [
        ListenSection(url="unix:///run/s"),
        ListenSection(url="ws://127.0.0.1:0"),
        ListenSection(url="ws://127.0.0.1:7443", serves=("acp",)),
        ListenSection(url="ws://box:7443", insecure_plaintext=True),
    ],
)
def test_without_a_listener_with_a_page_there_is_no_link(section: ListenSection, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    object.__setattr__(config, "listen", (section,))
    with pytest.raises(UsageError, match="no listener serves a page"):
        find_page(config, None)


def test_the_link_of_a_target_is_its_address() -> None:
    assert page_at(parse_target("box"), None) == "https://box:7443/"
    assert page_at(parse_address("wss://box:443"), "name") == "https://name/"
    for url in ("tcp+tls://box:7443", "unix:///run/s", "ssh://box"):
        with pytest.raises(UsageError, match="run `acp-gateway open` there"):
            page_at(parse_target(url), None)


# The QR code


def test_a_terminal_gets_a_qr_code(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("segno")
    command._print_qr_code("https://box:7443/#acpgwp_x")
    assert "\u2580" in capsys.readouterr().out


def test_without_segno_a_line_says_how_to_get_a_qr_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "segno", None)
    command._print_qr_code("https://box:7443/#acpgwp_x")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "For a QR code, install acp-remote-gateway[page].\n")


def test_open_in_a_terminal_shows_the_qr_code_of_the_link(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(command, "_print_qr_code", shown.append)
    monkeypatch.setattr(command, "_is_terminal", lambda: True)
    opened = scene.run("open")
    assert shown == [opened.stdout.strip()]


# token list, token revoke


def test_token_list_shows_browsers_behind_the_tokens(scene: Scene) -> None:
    token, _ = scene.tokens.create("laptop", "bob", None)
    browser = scene.sign_in("--token", token.id, "--label", "phone").browser
    listed = scene.run("token", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [token.id, browser.id]
    created = browser.created
    fields = [browser.id, "bob", "controller", token.id, "-", created, browser.expires, f"{created[:13]}Z", "phone"]
    assert listed[1].split() == fields


def test_token_list_shows_browsers_without_any_token(scene: Scene) -> None:
    browser = scene.sign_in().browser
    listed = scene.run("token", "list")
    assert "There are no tokens" in listed.stderr
    assert listed.stdout.startswith(browser.id)


def test_token_revoke_signs_out_one_browser(scene: Scene) -> None:
    one, other = scene.sign_in("--label", "phone"), scene.sign_in()
    revoked = scene.run("token", "revoke", one.browser.id)
    assert revoked.stdout == f"Signed out {one.browser.id} (phone).\n"
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


def test_open_is_listed_among_the_commands() -> None:
    assert isinstance(command.open_browser, click.Command)
    assert "open " in run("--help").stdout
