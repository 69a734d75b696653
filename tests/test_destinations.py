"""Where to go and with which token, by everything that may say so."""

from pathlib import Path
from typing import Any

import pytest

from acp_gateway.destinations import find_destination
from acp_gateway.errors import ConfigError, Unauthorized, UsageError
from acp_gateway.tokens import mint


def test_the_token_comes_from_the_option_then_the_environment_then_hosts_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {name: mint() for name in ("option", "file", "variable", "hosts")}
    for name, token in tokens.items():
        path = tmp_path / name
        path.touch(0o600)
        path.write_text(token)
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text(
        f'[hosts.box]\nurl = "box"\ntoken_file = "{tmp_path / "hosts"}"\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN_FILE", str(tmp_path / "file"))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", tokens["variable"])

    def found(option: Path | None = None) -> str | None:
        return find_destination("box", None, option, None, None, 1, insecure=False).token

    assert found(tmp_path / "option") == tokens["option"]
    assert found() == tokens["file"]
    monkeypatch.delenv("ACP_GATEWAY_TOKEN_FILE")
    assert found() == tokens["variable"]
    monkeypatch.delenv("ACP_GATEWAY_TOKEN")
    assert found() == tokens["hosts"]


@pytest.mark.parametrize("target", ["ws://box:80", "tcp://192.0.2.1:7443"])
def test_a_token_goes_to_another_machine_without_tls_only_when_told_to(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    with pytest.raises(UsageError, match="--insecure-plaintext"):
        find_destination(target, None, None, None, None, 1, insecure=False)
    assert find_destination(target, None, None, None, None, 1, insecure=True).token is not None


def test_a_pin_without_tls_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    with pytest.raises(UsageError, match="is for TLS"):
        find_destination("tcp://127.0.0.1:1", None, None, None, "sha256:" + 64 * "0", 1, insecure=False)


CERT, KEY = Path("client.pem"), Path("client.key")


@pytest.fixture
def no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has a token, and there is a host `box` with a client certificate."""
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text(
        '[hosts.box]\nurl = "box"\ncert = "/hosts.pem"\nkey = "/hosts.key"\n'
        '[hosts.plain]\nurl = "tcp://127.0.0.1:1"\ncert = "/hosts.pem"\nkey = "/hosts.key"\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ACP_GATEWAY_TOKEN", raising=False)
    monkeypatch.delenv("ACP_GATEWAY_TOKEN_FILE", raising=False)


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize("target", ["wss://box", "tcp+tls://box", "other:7443"])
def test_with_a_client_certificate_no_token_is_needed(target: str) -> None:
    with pytest.raises(Unauthorized, match="there is no token"):
        find_destination(target, None, None, None, None, 1, insecure=False)
    found = find_destination(target, None, None, None, None, 1, insecure=False, cert=CERT, key=KEY)
    assert (found.token, found.cert, found.key) == (None, CERT, KEY)


@pytest.mark.usefixtures("no_token")
def test_the_client_certificate_comes_from_the_options_then_from_hosts_toml() -> None:
    found = find_destination("box", None, None, None, None, 1, insecure=False)
    assert (found.token, found.cert, found.key) == (None, Path("/hosts.pem"), Path("/hosts.key"))
    given = find_destination("box", None, None, None, None, 1, insecure=False, cert=CERT, key=KEY)
    assert (given.cert, given.key) == (CERT, KEY)


@pytest.mark.usefixtures("no_token")
def test_a_token_that_there_is_goes_along_with_a_client_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    token = mint()
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", token)
    found = find_destination("box", None, None, None, None, 1, insecure=False)
    assert (found.token, found.cert) == (token, Path("/hosts.pem"))


@pytest.mark.parametrize(
    ("half", "missing"), [({"cert": CERT}, "give --key"), ({"key": KEY}, "give --cert")], ids=["cert", "key"]
)
def test_half_a_client_certificate_is_an_error(half: dict[str, Any], missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        find_destination("wss://box", None, None, None, None, 1, insecure=False, **half)


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize("target", ["tcp://127.0.0.1:1", "ws://127.0.0.1:1", "unix:///socket", "plain"])
def test_a_client_certificate_without_tls_is_an_error(target: str) -> None:
    given: dict[str, Any] = {} if target == "plain" else {"cert": CERT, "key": KEY}
    with pytest.raises(UsageError, match="a client certificate is for TLS"):
        find_destination(target, None, None, None, None, 1, insecure=True, **given)


def test_a_name_that_is_almost_in_hosts_toml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text('[hosts.box]\nurl = "box"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UsageError, match='did you mean "box"'):
        find_destination("bxo", None, None, None, None, 1, insecure=False)


def test_a_home_in_the_environments_token_file_is_expanded_as_no_shell_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = mint()
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN_FILE", "~/token")
    assert find_destination("wss://box", None, None, None, None, 1, insecure=False).token == token


def test_a_home_that_nobody_has_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN_FILE", "~no-such-user-here/token")
    with pytest.raises(ConfigError, match="no home directory is known"):
        find_destination("wss://box", None, None, None, None, 1, insecure=False)


def test_the_agent_of_hosts_toml_is_for_who_begins_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text('[hosts.box]\nurl = "unix:///socket"\nagent = "demo"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def found(agent: str | None = None, **wish: Any) -> dict[str, str | bool]:
        return find_destination("box", agent, None, None, None, 1, insecure=False, **wish).wish

    assert found() == {"agent": "demo"}
    assert found(observe=True) == {"agent": "demo", "observe": True}
    assert found(session="s") == {"session": "s"}
    assert found(control=True) == {"control": True}
    assert found("other", session="s") == {"agent": "other", "session": "s"}
    assert found("other", control=True) == {"agent": "other", "control": True}


@pytest.mark.parametrize("session", ["", "\udcff"])
def test_what_can_be_no_sessions_id_is_an_error_before_anything_is_sent(session: str) -> None:
    with pytest.raises(UsageError, match="acp-gateway sessions"):
        find_destination("unix:///socket", None, None, None, None, 1, insecure=False, session=session)


def test_through_ssh_no_token_is_needed_and_one_that_there_is_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text(
        '[hosts.box]\nurl = "ssh://ann@box"\ncommand = "/opt/x"\nssh_options = ["A=b"]\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ACP_GATEWAY_TOKEN", raising=False)

    found = find_destination("box", None, None, None, None, 1, insecure=False)
    assert (found.token, found.command, found.ssh_options) == (None, "/opt/x", ("A=b",))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", token := mint())
    found = find_destination("ssh://ann@box", None, None, None, None, 1, insecure=False)
    assert (found.token, found.command, found.ssh_options) == (token, None, ())


def test_a_pin_for_ssh_is_an_error() -> None:
    with pytest.raises(UsageError, match="is for TLS"):
        find_destination("ssh://box", None, None, None, "sha256:" + 64 * "0", 1, insecure=False)
