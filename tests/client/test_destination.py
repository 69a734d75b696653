"""Destinations and tokens from the command line, the environment and hosts.toml."""

from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.destination import ConnectionOptions, find_destination
from acp_gateway.client.dialing import Destination
from acp_gateway.errors import ConfigError, Unauthorized, UsageError
from acp_gateway.security.token_format import mint


def find(
    target: str,
    *,
    agent: str | None = None,
    session: str | None = None,
    observe: bool = False,
    control: bool = False,
    **options: Any,
) -> Destination:
    given = ConnectionOptions(**options)
    return find_destination(target, given, 1, agent=agent, session=session, observe=observe, control=control)


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
        return find("box", token_file=option).token

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
        find(target)
    assert find(target, insecure_plaintext=True).token is not None


def test_a_pin_without_tls_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    with pytest.raises(UsageError, match="is for TLS"):
        find("tcp://127.0.0.1:1", pin="sha256:" + 64 * "0")


@pytest.fixture
def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Hosts with doors before them; returns the tokens of their files."""
    tokens = {name: mint() for name in ("gpu2", "door")}
    for name, token in tokens.items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(token)
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text(
        f'[hosts.gpu2]\nurl = ["gpu2.example", "ssh://gpu2.example"]\ntoken_file = "{tmp_path / "gpu2"}"\n'
        f'pin = "sha256:{64 * "2"}"\nvia = "door/box"\n'
        f'[hosts.door]\nurl = ["door.example", "ssh://door.example", "door.vpn"]\n'
        f'token_file = "{tmp_path / "door"}"\npin = "sha256:{64 * "d"}"\n'
        '[hosts.lines]\nurl = "tcp+tls://door.example:7443"\n[hosts.plain]\nurl = "ws://door.example:80"\n'
        '[hosts.behind]\nurl = "behind.example"\nvia = "door"\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ACP_GATEWAY_TOKEN_FILE", raising=False)
    monkeypatch.delenv("ACP_GATEWAY_TOKEN", raising=False)
    return tokens


def test_a_gateway_behind_a_door_is_reached_by_its_best_address_with_its_own_pin_and_token(
    doors: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find("gpu2")
    assert (str(found.address), found.others) == ("wss://gpu2.example:7443/acp", ())
    assert (found.token, found.pin) == (doors["gpu2"], "sha256:" + 64 * "2")
    assert found.via is not None
    door, node, _ = found.via
    assert (node, door.token, door.pin) == ("box", doors["door"], "sha256:" + 64 * "d")
    assert [str(address) for address in door.addresses] == ["wss://door.example:7443/acp", "wss://door.vpn:7443/acp"]
    # A token of the command line or of the environment is the gateway's.
    mine = mint()
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mine)
    other = find("other.example:7443", via="door")
    assert other.via is not None
    assert (other.token, other.via.door.token, other.via.node) == (mine, doors["door"], "other.example")


@pytest.mark.parametrize(
    ("target", "via", "why"),
    [
        ("wss://box", "absent.example", "is not in hosts.toml"),
        ("wss://box", "wss://door.example", "is not in hosts.toml"),
        ("wss://box", "lines", "can't be a door"),
        ("wss://box", "plain", "has no TLS"),
        ("wss://box", "behind", "can't be a door"),
        ("ws://127.0.0.1:80", "door", "must not read"),
        ("ssh://box", "door", "must not read"),
        ("unix:///socket", "door", "must not read"),
    ],
)
@pytest.mark.usefixtures("doors")
def test_a_door_must_be_known_and_must_not_be_able_to_read(target: str, via: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find(target, via=via)


CERT, KEY = Path("client.pem"), Path("client.key")


@pytest.fixture
def no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up a host `box` with a client certificate, and no token."""
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
    with pytest.raises((Unauthorized, ConfigError), match="no token"):
        find(target)
    found = find(target, cert=CERT, key=KEY)
    assert (found.token, found.cert, found.key) == (None, CERT, KEY)


@pytest.mark.usefixtures("no_token")
def test_the_client_certificate_comes_from_the_options_then_from_hosts_toml() -> None:
    found = find("box")
    assert (found.token, found.cert, found.key) == (None, Path("/hosts.pem"), Path("/hosts.key"))
    given = find("box", cert=CERT, key=KEY)
    assert (given.cert, given.key) == (CERT, KEY)


@pytest.mark.usefixtures("no_token")
def test_a_token_that_there_is_goes_along_with_a_client_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    token = mint()
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", token)
    found = find("box")
    assert (found.token, found.cert) == (token, Path("/hosts.pem"))


@pytest.mark.parametrize(
    ("half", "missing"), [({"cert": CERT}, "give --key"), ({"key": KEY}, "give --cert")], ids=["cert", "key"]
)
def test_half_a_client_certificate_is_an_error(half: dict[str, Any], missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        find("wss://box", **half)


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize("target", ["tcp://127.0.0.1:1", "ws://127.0.0.1:1", "unix:///socket", "plain"])
def test_a_client_certificate_without_tls_is_an_error(target: str) -> None:
    given: dict[str, Any] = {} if target == "plain" else {"cert": CERT, "key": KEY}
    with pytest.raises(UsageError, match="a client certificate is for TLS"):
        find(target, insecure_plaintext=True, **given)


def test_a_name_that_is_almost_in_hosts_toml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text('[hosts.box]\nurl = "box"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match='did you mean "box"'):
        find("bxo")


@pytest.mark.usefixtures("no_token")
def test_a_name_that_is_not_in_hosts_toml_and_has_no_token_is_told_what_is_there() -> None:
    with pytest.raises(ConfigError) as caught:
        find("nohost.example")
    assert str(caught.value).startswith(
        '"nohost.example" is not in hosts.toml (there: box, plain) and no token was given. New gateway? '
        "`acp-gateway pair nohost.example`"
    )


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host `other` with a token_file, a host `open` that wants none, and a token for a gateway in the environment."""
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text(
        f'[hosts.other]\nurl = "wss://box/acp"\ntoken_file = "{tmp_path}/token"\n'
        '[hosts.open]\nurl = "wss://box/acp"\ntoken = "none"\n'
    )
    (tmp_path / "token").touch(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ACP_GATEWAY_TOKEN", raising=False)
    return tmp_path / "token"


@pytest.mark.parametrize(
    "token", ["X!", "1a2b3c4d", "sk-a.b_c/d+e==", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "e" * 4096]
)
def test_the_token_of_another_server_may_have_any_form_where_hosts_toml_names_its_file(other: Path, token: str) -> None:
    other.write_text(f"\n{token}\n")
    found = find("other")
    assert found.token == token
    assert token not in repr(found)
    with pytest.raises(ConfigError, match=r"name the file by token_file in hosts\.toml"):
        find("wss://box", token_file=other)


@pytest.mark.parametrize("token", ["a b", "a\tb", "é", "a\x01b", "e" * 4097, "sha256:ab", "", "acpgw_" + "a" * 39])
def test_what_no_header_can_carry_or_is_a_torn_token_of_a_gateway_is_refused(other: Path, token: str) -> None:
    other.write_text(token)
    with pytest.raises(ConfigError) as caught:
        find("other")
    assert caught.value.file == str(other)
    assert not token or token not in caught.value.message


def test_no_token_goes_to_a_host_that_wants_none_unless_the_command_line_names_one(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    assert find("open").token is None
    other.write_text(token := mint())
    assert find("open", token_file=other).token == token


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize("target", ["ws://127.0.0.1:3284/acp", "tcp://[::1]:1", "ws://localhost:1", "wss://127.0.0.1"])
def test_on_this_machine_no_token_is_needed(target: str) -> None:
    assert find(target).token is None


def test_why_a_token_may_not_be_accepted_is_known_with_the_command_that_helps(other: Path) -> None:
    def hint(target: str) -> str:
        return find(target).token_hint

    other.write_text("1a2b3c4d")
    assert hint("other") == (
        "the token_file of [hosts.other] holds another server's, which is the id of a token, not the token itself"
    )
    assert hint("ws://127.0.0.1:1").startswith("no token was sent: give one by --token-file")
    other.write_text(mint())
    assert hint("other") == ""
    hosts = other.with_name("acp-gateway") / "hosts.toml"
    hosts.write_text(hosts.read_text().replace("token_file", 'token_id = "1a2b3c4d"\ntoken_file'))
    assert hint("other") == "this host was paired: `acp-gateway pair [USER@]box --name other` gets a new one"
    hosts.write_text(hosts.read_text().replace("wss://box/acp", "ssh://ann@other"))
    assert hint("other") == "this host was paired: `acp-gateway pair ann@other` gets a new one"


def test_a_tilde_in_the_variable_for_the_token_file_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = mint()
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN_FILE", "~/token")
    assert find("wss://box").token == token


def test_a_token_file_in_the_home_folder_of_an_unknown_user_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN_FILE", "~no-such-user-here/token")
    with pytest.raises(ConfigError, match="no home directory is known"):
        find("wss://box")


def test_the_agent_of_hosts_toml_is_for_who_begins_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text('[hosts.box]\nurl = "unix:///socket"\nagent = "demo"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def found(agent: str | None = None, **wanted: Any) -> dict[str, str | bool]:
        return find("box", agent=agent, **wanted).connect_params

    assert found() == {"agent": "demo"}
    assert found(observe=True) == {"agent": "demo", "observe": True}
    assert found(session="s") == {"session": "s"}
    assert found(control=True) == {"control": True}
    assert found("other", session="s") == {"agent": "other", "session": "s"}
    assert found("other", control=True) == {"agent": "other", "control": True}


@pytest.mark.parametrize("session", ["", "\udcff"])
def test_what_cannot_be_the_id_of_a_session_is_an_error_before_anything_is_sent(session: str) -> None:
    with pytest.raises(UsageError, match="acp-gateway sessions"):
        find("unix:///socket", session=session)


def test_through_ssh_no_token_is_needed_and_one_that_there_is_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text(
        '[hosts.box]\nurl = "ssh://ann@box"\ncommand = "/opt/x"\nssh_options = ["A=b"]\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ACP_GATEWAY_TOKEN", raising=False)

    found = find("box")
    assert (found.token, found.command, found.ssh_options) == (None, "/opt/x", ("A=b",))
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", token := mint())
    found = find("ssh://ann@box")
    assert (found.token, found.command, found.ssh_options) == (token, None, ())


def test_a_pin_for_ssh_is_an_error() -> None:
    with pytest.raises(UsageError, match="is for TLS"):
        find("ssh://box", pin="sha256:" + 64 * "0")


def write_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway" / "hosts.toml").write_text(f"[hosts.box]\n{options}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def find_box(*, insecure: bool = False) -> Destination:
    return find("box", insecure_plaintext=insecure)


PIN = "sha256:" + 64 * "0"


def test_all_addresses_of_a_host_are_those_of_its_destination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    write_hosts(tmp_path, monkeypatch, f'url = ["192.0.2.7", "ssh://ann@box"]\npin = "{PIN}"')
    found = find_box()
    assert [str(address) for address in found.addresses] == ["wss://192.0.2.7:7443/acp", "ssh://ann@box"]
    assert (found.pin, found.memory is None) == (PIN, False)
    assert find("wss://192.0.2.7").memory is None


def test_each_address_of_a_host_needs_tls_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", mint())
    write_hosts(tmp_path, monkeypatch, 'url = ["box", "ws://192.0.2.7"]')
    with pytest.raises(UsageError, match=r"would be sent to ws://192\.0\.2\.7:80/acp unencrypted"):
        find_box()
    assert len(find_box(insecure=True).addresses) == 2


def test_a_pin_needs_one_address_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hosts(tmp_path, monkeypatch, f'url = ["ssh://box", "unix:///socket"]\npin = "{PIN}"')
    with pytest.raises(UsageError, match="is for TLS, and ssh://box has none"):
        find_box()


@pytest.mark.parametrize("addresses", ['["ssh://box", "box"]', '["unix:///socket", "ws://192.0.2.7"]'])
def test_a_token_is_needed_if_one_address_needs_it(
    addresses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hosts(tmp_path, monkeypatch, f"url = {addresses}")
    with pytest.raises(Unauthorized, match="there is no token"):
        find_box(insecure=True)


def test_no_token_is_needed_if_no_address_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = 'cert = "/hosts.pem"\nkey = "/hosts.key"'
    write_hosts(tmp_path, monkeypatch, f'url = ["box", "ssh://box", "ws://127.0.0.1"]\n{certificate}')
    assert find_box().token is None
