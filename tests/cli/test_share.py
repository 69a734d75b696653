"""The command `share`: for which sessions, what is printed where, and what the guest is told."""

import stat
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import Result

from acp_gateway.cli import tokens
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_format import explain_flaw
from acp_gateway.security.token_store import TokenStore
from tests.doubles import remember_session
from tests.doubles import run_command as run


@pytest.fixture
def store(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenStore:
    """The tokens of a gateway that knows the session `s1`."""
    monkeypatch.setattr(tokens, "SESSION_DELAY", 0.0)
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
    shared = run("share", "s1", "--config", config, *flags)
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
    shared = run("share", "s1", "--expires", "never", "--label", "Bob", "--config", config)
    (token,) = store.tokens()
    assert (token.label, token.expires) == ("Bob", None)
    assert "never expires" in shared.stderr


@pytest.mark.parametrize("session", ["s2", "nosuchsession", "", "two\nlines", "\x1b[2J", "x" * 2000])
def test_a_session_that_there_is_not_is_not_shared(config: Path, store: TokenStore, session: str) -> None:
    refused = run("share", session, "--config", config)
    assert (refused.exit_code, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith('acp-gateway: this gateway has no session "')
    assert "`acp-gateway sessions TARGET`" in line
    assert line.isprintable()
    assert store.tokens() == []


def test_a_session_that_is_written_a_moment_later_is_shared(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_: float) -> None:
        remember_session(tmp_path / "state", "s1")

    monkeypatch.setattr("time.sleep", sleep)
    assert run("share", "s1", "--config", config).exit_code == 0


def test_share_warns_of_an_unreadable_database_and_makes_the_token(
    config: Path, store: TokenStore, tmp_path: Path
) -> None:
    (tmp_path / "state/sessions.db").write_text("junk")
    shared = run("share", "s1", "--config", config)
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
    text = config.read_text()
    config.write_text(text.replace('[[listen]]\nurl = "tcp://127.0.0.1:7443"\n', sections))
    shared = run("share", "s1", "--config", config, *options)
    assert shared.exit_code == 0, shared.output
    assert command_of(shared) == f"acp-gateway connect {address.format(pin=pin)} --token-file guest.token"


def test_the_help_says_for_how_long_a_session_is_shared() -> None:
    assert "24h" in run("share", "--help").output
