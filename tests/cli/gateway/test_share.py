"""The command `share`: for which sessions, what is printed where, and what the guest is told."""

import json
import stat
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import Result

from acp_gateway.cli import tokens as tokens
from acp_gateway.cli.gateway import browsers as page_links
from acp_gateway.client.joining import parse_invitation
from acp_gateway.client.local import LocalGateway
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.invitations import InvitationStore
from acp_gateway.security.token_format import explain_flaw
from acp_gateway.security.token_store import TokenStore
from tests.kit.doubles import remember_session
from tests.kit.doubles import run_command as run


@pytest.fixture
def store(config: Path, tmp_path: Path) -> TokenStore:
    """The tokens of a gateway that knows the session `s1`."""
    remember_session(tmp_path / "state", "s1")
    return TokenStore(tmp_path / "state")


def command_of(shared: Result) -> str:
    """The command that the guest is to run."""
    return shared.stderr.splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("flags", "role"), [([], "controller"), (["--observe"], "observer")], ids=["controller", "observer"]
)
def test_a_shared_sessions_token_is_a_guests_and_lives_for_a_day(
    config: Path, store: TokenStore, flags: list[str], role: str
) -> None:
    shared = run("share", "s1", "--token", "--config", config, *flags)
    assert shared.exit_code == 0
    (token,) = store.tokens()
    assert (token.session, token.role, token.agents) == ("s1", role, None)
    assert token.expires is not None
    lifetime = datetime.fromisoformat(token.expires) - datetime.fromisoformat(token.created)
    assert lifetime.total_seconds() // 60 == 24 * 60
    assert store.authenticate(shared.stdout.strip()) == token
    assert shared.stdout.startswith("acpgwg_")
    assert shared.stderr.startswith(f"Token {token.id}, {role}, expires {token.expires}, for this session alone. ")
    assert shared.stdout.strip() not in shared.stderr


def test_a_shared_sessions_token_may_have_a_label_and_live_until_it_is_revoked(config: Path, store: TokenStore) -> None:
    shared = run("share", "s1", "--token", "--expires", "never", "--label", "Bob", "--config", config)
    (token,) = store.tokens()
    assert (token.label, token.expires) == ("Bob", None)
    assert "never expires" in shared.stderr


def test_a_session_of_a_node_is_shared_by_its_name_which_the_node_alone_can_check(
    config: Path, store: TokenStore
) -> None:
    node = '[nodes.gpu1]\nurl = "wss://gpu1.example"\ntoken_file = "gpu1.token"\n'
    config.write_text(f"{config.read_text()}\n{node}")
    assert run("share", "gpu1/7f#/é", "--token", "--config", config).exit_code == 0
    (token,) = store.tokens()
    assert (token.session, token.agents) == ("gpu1/7f#/é", None)
    for session in ("gpu2/7f", "gpu1/", "gpu1"):
        assert "no session" in run("share", session, "--token", "--config", config).stderr


@pytest.mark.parametrize("session", ["s2", "nosuchsession", "", "two\nlines", "\x1b[2J", "x" * 2000])
def test_a_session_that_there_is_no_is_not_shared(config: Path, store: TokenStore, session: str) -> None:
    refused = run("share", session, "--token", "--config", config)
    assert (refused.exit_code, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith('acp-gateway: this gateway has no session "')
    assert "`acp-gateway sessions` lists them" in line
    assert line.isprintable()
    assert store.tokens() == []


def test_a_session_that_the_running_gateway_has_yet_to_write_is_shared(
    config: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def knows(self: LocalGateway, session_id: str, *, time_limit: float) -> bool:
        return session_id == "new"

    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    monkeypatch.setattr(LocalGateway, "knows", knows)
    assert run("share", "new", "--token", "--config", config).exit_code == 0
    assert run("share", "other", "--token", "--config", config).exit_code == 2
    assert [token.session for token in store.tokens()] == ["new"]


def test_share_warns_of_an_unreadable_database_and_makes_the_token(
    config: Path, store: TokenStore, tmp_path: Path
) -> None:
    (tmp_path / "state/sessions.db").write_text("junk")
    shared = run("share", "s1", "--token", "--config", config)
    assert shared.exit_code == 0
    assert shared.stderr.startswith("warning: ")
    assert len(store.tokens()) == 1


def test_a_token_is_saved_in_a_new_file_of_its_owners(config: Path, store: TokenStore, tmp_path: Path) -> None:
    out = tmp_path / "guest.token"
    shared = run("share", "s1", "--config", config, "--out", out)
    assert (shared.exit_code, shared.stdout) == (0, "")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert store.authenticate(out.read_text().strip())
    assert explain_flaw(out.read_text().strip()) is None
    assert command_of(shared).endswith("--token-file guest.token")
    again = run("share", "s1", "--config", config, "--out", out)
    assert again.exit_code == 3
    assert "this file exists already" in again.stderr
    assert run("share", "s1", "--config", config, "--out", tmp_path / "no/where").exit_code == 3
    assert len(store.tokens()) == 1


def test_where_no_token_can_be_made_no_file_is_left(config: Path, store: TokenStore, tmp_path: Path) -> None:
    (tmp_path / "state/tokens.json").write_text("junk")
    assert run("share", "s1", "--config", config, "--out", tmp_path / "out").exit_code == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("listeners", "options", "address"),
    [
        (["wss://0.0.0.0:7443"], [], "wss://laptop.local:7443/acp --pin {pin}"),
        (["wss://0.0.0.0:7443"], ["--host", "box.example"], "wss://box.example:7443/acp --pin {pin}"),
        (["wss://127.0.0.1:1", "wss://[::]:2"], [], "wss://laptop.local:2/acp --pin {pin}"),
        (["tcp+tls://10.0.0.1:1", "wss://10.0.0.1:2"], [], "wss://10.0.0.1:2/acp --pin {pin}"),
        (["tcp+tls://10.0.0.1:1"], [], "tcp+tls://10.0.0.1:1 --pin {pin}"),
        (["ws://127.0.0.1:80"], [], "wss://gpu.example/acp"),
        (["ws://127.0.0.1:80"], ["--host", "box.example"], "wss://box.example/acp"),
        (["tcp://127.0.0.1:80"], [], "wss://HOST/acp"),
    ],
)
def test_the_guest_is_told_the_address_and_the_pin(
    config: Path,
    store: TokenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listeners: list[str],
    options: list[str],
    address: str,
) -> None:
    monkeypatch.setattr("platform.node", lambda: "Laptop.local")
    pin = create_certificate(["box"], tmp_path).pin
    sections = ""
    for url in listeners:
        tls = "tls" in url or url.startswith("wss")
        sections += f'[[listen]]\nurl = "{url}"\n' + ('cert = "cert.pem"\nkey = "key.pem"\n' if tls else "")
        sections += 'allowed_hosts = ["gpu.example"]\n' if url.startswith("ws:") else ""
    config.write_text(config.read_text().replace('[[listen]]\nurl = "tcp://127.0.0.1:7443"\n', sections))
    shared = run("share", "s1", "--token", "--config", config, *options)
    assert shared.exit_code == 0, shared.output
    assert command_of(shared) == f"acp-gateway connect {address.format(pin=pin)} --token-file guest.token"


@pytest.mark.parametrize(
    ("listener", "public", "options", "address"),
    [
        ("ws://127.0.0.1:80", "https://gpu.example/gateway", [], "wss://gpu.example:443/gateway/acp"),
        ("ws://127.0.0.1:80", "https://gpu.example:8443", ["--host", "Box"], "wss://box:8443/acp"),
        ("wss://127.0.0.1:80", "https://gpu.example/gateway", [], "wss://gpu.example:443/gateway/acp"),
        ("wss://127.0.0.1:80", "https://gpu.example", [], "wss://gpu.example:443/acp --pin {pin}"),
    ],
)
def test_the_guest_is_told_the_public_url_with_the_pin_only_where_no_proxy_removes_a_path(
    config: Path, store: TokenStore, tmp_path: Path, listener: str, public: str, options: list[str], address: str
) -> None:
    pin = create_certificate(["box"], tmp_path).pin
    tls = 'cert = "cert.pem"\nkey = "key.pem"\n' if listener.startswith("wss") else ""
    section = f'[[listen]]\nurl = "{listener}"\npublic_url = "{public}"\n{tls}'
    config.write_text(config.read_text().replace('[[listen]]\nurl = "tcp://127.0.0.1:7443"\n', section))
    shared = run("share", "s1", "--token", "--config", config, *options)
    assert shared.exit_code == 0, shared.output
    assert command_of(shared) == f"acp-gateway connect {address.format(pin=pin)} --token-file guest.token"


@pytest.mark.parametrize(
    ("name", "listens", "own", "host"),
    [
        ("box", "wss://0.0.0.0:7444", ["192.0.2.7", "2001:db8::7"], "192.0.2.7"),
        ("box", "wss://[::]:7444", ["192.0.2.7", "2001:db8::7"], "[2001:db8::7]"),
        ("box", "wss://[::]:7444", ["192.0.2.7"], "box"),
        ("box", "wss://0.0.0.0:7444", [], "box"),
        ("", "wss://0.0.0.0:7444", [], "host"),
    ],
)
def test_a_guest_gets_the_address_of_a_machine_whose_name_has_no_domain(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, listens: str, own: list[str], host: str
) -> None:
    wss_of(config, tmp_path, listens)
    remember_session(tmp_path / "state", "s1")
    monkeypatch.setattr("platform.node", lambda: name)
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_addresses", lambda: own)
    line = run("share", "s1", "--config", config).stdout.split()[-1]
    assert [str(address) for address in parse_invitation(line).addresses] == [f"wss://{host}:7444/acp"]


def test_a_guest_gets_the_addresses_in_networks_behind_a_name_with_a_domain(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wss_of(config, tmp_path)
    remember_session(tmp_path / "state", "s1")
    monkeypatch.setattr("platform.node", lambda: "Box.example")
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_addresses", lambda: ["192.0.2.7", "100.64.0.7"])

    def invited(*options: str) -> list[str]:
        line = run("share", "s1", "--config", config, *options).stdout.split()[-1]
        return [str(address) for address in parse_invitation(line).addresses]

    assert invited() == ["wss://box.example:7444/acp", "wss://192.0.2.7:7444/acp", "wss://100.64.0.7:7444/acp"]
    assert invited("--host", "other.example") == ["wss://other.example:7444/acp"]
    assert "connect wss://box.example:7444/acp --pin" in run("share", "s1", "--config", config, "--token").output


def test_the_help_says_for_how_long_a_session_is_shared() -> None:
    assert "24h" in run("share", "--help").output


# Invitations


def wss_of(config: Path, tmp_path: Path, url: str = "wss://0.0.0.0:7444") -> str:
    """Give the gateway a TLS listener; return the pin of its key."""
    section = f'\n[[listen]]\nurl = "{url}"\ncert = "cert.pem"\nkey = "key.pem"\n'
    config.write_text(config.read_text() + section)
    return create_certificate(["box"], tmp_path).pin


@pytest.mark.parametrize(("flags", "role"), [([], "controller"), (["--observe"], "observer")])
def test_a_guest_is_invited_by_one_line_without_a_token(
    config: Path, store: TokenStore, tmp_path: Path, flags: list[str], role: str
) -> None:
    pin = wss_of(config, tmp_path)
    shared = run("share", "s1", "--host", "Box", "--label", "Bob", "--expires", "2h", "--config", config, *flags)
    assert shared.exit_code == 0, shared.output
    command, line = shared.stdout.strip().rsplit(" ", 1)
    assert command == "acp-gateway join"
    assert not set(line) & set(" &;|<>()$`\\\"'*?[]!~=%{}")
    invitation = parse_invitation(line)
    assert (str(invitation.address), invitation.pin) == ("wss://box:7444/acp", pin)
    (token,) = store.tokens()
    assert (token.session, token.role, token.label) == ("s1", role, "Bob")
    assert token.id in shared.stderr
    assert "it holds no token" in shared.stderr
    assert "acpgwg_" not in shared.output
    accepted, secret = InvitationStore(tmp_path / "state", store).accept(invitation.code)
    assert store.authenticate(secret) == accepted
    assert (accepted.id, accepted.expires) == (token.id, token.expires)
    events = [json.loads(line) for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["token_created", "invitation_created"]
    assert (events[1]["id"], events[1]["session"]) == (token.id, "s1")


def test_in_a_terminal_the_invitation_is_a_qr_code_too(
    config: Path, store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wss_of(config, tmp_path)
    shown: list[str] = []
    monkeypatch.setattr(page_links, "is_terminal", lambda: True)
    monkeypatch.setattr(page_links, "print_qr_code", shown.append)
    shared = run("share", "s1", "--host", "127.0.0.1", "--config", config)
    assert shared.stdout == f"acp-gateway join {shown[0]}\n"
    assert "Only this machine reaches that address" in shared.stderr


def test_a_session_that_there_is_no_has_no_invitation(config: Path, store: TokenStore, tmp_path: Path) -> None:
    wss_of(config, tmp_path)
    refused = run("share", "s2", "--config", config)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert 'no session "s2"' in refused.stderr
    assert store.tokens() == []


def test_without_a_listener_for_invitations_the_other_ways_are_named(config: Path, store: TokenStore) -> None:
    for url in ("tcp://127.0.0.1:7443", "ws://127.0.0.1:7443"):
        config.write_text(config.read_text().replace("tcp://127.0.0.1:7443", url))
        refused = run("share", "s1", "--config", config)
        assert refused.exit_code == 2
        assert "--token" in refused.stderr
        assert "--out FILE" in refused.stderr
        assert store.tokens() == []


@pytest.mark.parametrize("flags", [["--link", "--out", "x"], ["--link", "--token"], ["--token", "--out", "x"]])
def test_one_way_of_sharing_is_chosen(config: Path, store: TokenStore, flags: list[str]) -> None:
    refused = run("share", "s1", "--config", config, *flags)
    assert refused.exit_code == 2
    assert "exclude each other" in refused.stderr
    assert store.tokens() == []


# Links


def page_of(config: Path) -> None:
    config.write_text(config.read_text() + '\n[[listen]]\nurl = "ws://127.0.0.1:7444"\n')


@pytest.mark.parametrize(("flags", "role"), [([], "controller"), (["--observe"], "observer")])
def test_share_with_link_prints_a_link_that_signs_a_guests_browser_in(
    config: Path, store: TokenStore, tmp_path: Path, flags: list[str], role: str
) -> None:
    page_of(config)
    shared = run("share", "s1", "--link", "--label", "Bob", "--expires", "2h", "--config", config, *flags)
    assert shared.exit_code == 0, shared.stderr
    link, _, place = shared.stdout.strip().partition("#")
    code, _, session = place.partition("/s/")
    assert (link, session) == ("http://127.0.0.1:7444/", "s1")
    (token,) = store.tokens()
    assert (token.session, token.role, token.label) == ("s1", role, "Bob")
    browser = BrowserStore(tmp_path / "state", store).sign_in(code).browser
    assert (browser.token_id, browser.role, browser.label) == (token.id, role, "Bob")
    assert token.id in shared.stderr
    assert "acpgwg_" not in shared.output
    events = [json.loads(line)["event"] for line in (tmp_path / "state" / "audit.jsonl").read_text().splitlines()]
    assert events == ["token_created", "browser_code_created"]


def test_share_with_link_makes_no_token_where_there_is_no_page(config: Path, store: TokenStore) -> None:
    config.write_text(config.read_text() + '\n[[listen]]\nurl = "tcp://127.0.0.1:7444"\n')
    refused = run("share", "s1", "--link", "--config", config)
    assert (refused.exit_code, refused.stdout, store.tokens()) == (2, "", [])
    assert "no listener serves a page" in refused.stderr


def test_share_with_link_takes_no_out(config: Path, store: TokenStore, tmp_path: Path) -> None:
    page_of(config)
    refused = run("share", "s1", "--link", "--out", tmp_path / "x", "--config", config)
    assert (refused.exit_code, store.tokens(), (tmp_path / "x").exists()) == (2, [], False)


# JSON


def test_share_with_json_prints_the_invitation_and_no_token(config: Path, store: TokenStore, tmp_path: Path) -> None:
    wss_of(config, tmp_path)
    shared = run("share", "s1", "--host", "box", "--config", config, "--json")
    assert (shared.exit_code, shared.stderr) == (0, "")
    value = json.loads(shared.stdout)
    (token,) = store.tokens()
    assert (value["id"], value["role"], value["session"], value["expires"]) == (
        *(token.id, token.role, token.session, token.expires),
    )
    assert parse_invitation(value["command"]).address.host == "box"
    assert datetime.fromisoformat(value["commandExpires"]) < datetime.fromisoformat(value["expires"])
    assert "acpgwg_" not in shared.stdout


def test_share_with_json_has_the_token_only_where_it_would_be_printed(
    config: Path, store: TokenStore, tmp_path: Path
) -> None:
    wss_of(config, tmp_path)
    out = tmp_path / "guest.token"
    printed, saved, linked = (
        run("share", "s1", "--host", "box", "--json", "--config", config, *options)
        for options in (["--token"], ["--out", str(out)], ["--link"])
    )
    value = json.loads(printed.stdout)
    assert store.authenticate(value["token"]).id == value["id"]
    assert value["command"].endswith("--token-file guest.token")
    assert json.loads(saved.stdout)["tokenFile"] == str(out)
    assert out.read_text().strip() not in saved.output
    assert json.loads(linked.stdout)["link"].startswith("https://box:7444/")
    assert "acpgwg_" not in printed.stderr + linked.output
