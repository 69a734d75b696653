import os
import subprocess
import sys
from pathlib import Path

import pytest

from acp_gateway.config.addresses import Address
from acp_gateway.config.hosts import Host, hosts_path, load_hosts
from acp_gateway.errors import ConfigError
from tests.kit.machine import needs_entry

PIN = "sha256:" + "0aB1" * 16


def write(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "hosts.toml"
    path.write_text(source)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_hosts(path)
    return str(caught.value).removeprefix(str(path))


def test_hosts_are_read_with_all_their_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/Users/ann")
    path = write(
        tmp_path,
        f"""
        [hosts.box]
        url = "box.example"
        agent = "demo"
        token_file = "~/.config/box.token"
        pin = "{PIN}"
        ca = "box-ca.pem"
        cert = "laptop.pem"
        key = "~/laptop.key"
        forward = "ask"
        maps = {{ "/Users/ann/proj" = "/srv/proj", "~/work" = "/work", 'C:\\code' = "/code" }}
        [hosts."b.2"]
        url = "unix:///run/acp/socket"
        """,
    )
    assert load_hosts(path) == {
        "box": Host(
            name="box",
            address=Address("wss", "box.example", 7443, "/acp"),
            agent="demo",
            token_file=Path("/Users/ann/.config/box.token"),
            pin=PIN.lower(),
            ca=tmp_path / "box-ca.pem",
            cert=tmp_path / "laptop.pem",
            key=Path("/Users/ann/laptop.key"),
            maps=(("/Users/ann/proj", "/srv/proj"), ("/Users/ann/work", "/work"), ("C:\\code", "/code")),
            forward="ask",
        ),
        "b.2": Host("b.2", Address("unix", "", 0, "/run/acp/socket"), None, None, None, None, ()),
    }


def test_url_may_be_an_array_of_addresses_best_first(tmp_path: Path) -> None:
    host = load_hosts(write(tmp_path, "[hosts.box]\nurl = ['box', 'tcp+tls://[::1]:1', 'ssh://ann@box']"))["box"]
    assert [str(address) for address in (host.address, *host.others)] == [
        "wss://box:7443/acp",
        "tcp+tls://[::1]:1",
        "ssh://ann@box",
    ]


def test_url_may_be_an_array_of_one_address(tmp_path: Path) -> None:
    host = load_hosts(write(tmp_path, "[hosts.box]\nurl = ['box']"))["box"]
    assert host == load_hosts(write(tmp_path, "[hosts.box]\nurl = 'box'"))["box"]


def test_what_pairing_writes_is_read(tmp_path: Path) -> None:
    options = """command = '~/x/acp-gateway'\nssh_options = ['A=b', 'C=d']\ntoken_id = '1a2b3c4d'"""
    host = load_hosts(write(tmp_path, f"[hosts.box]\nurl = 'ssh://ann@box'\n{options}"))["box"]
    assert host.address == Address("ssh", "box", 0, "", "ann")
    assert (host.command, host.ssh_options, host.token_id) == ("~/x/acp-gateway", ("A=b", "C=d"), "1a2b3c4d")


def test_a_file_that_is_not_there_has_no_hosts(tmp_path: Path) -> None:
    assert load_hosts(tmp_path / "hosts.toml") == {}


def test_an_empty_file_has_no_hosts(tmp_path: Path) -> None:
    assert load_hosts(write(tmp_path, "")) == {}


def test_a_link_to_nowhere_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.symlink_to(tmp_path / "none")
    assert error_of(path) == ": cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("[host.box]", ':1: host: unknown option; did you mean "hosts"?'),
        ("hosts = 1", ":1: hosts: expected a table, found a whole number"),
        ("[hosts]\nbox = 'box.example'", ":2: hosts.box: expected a section, found a string: write [hosts.box], "),
        ("[hosts.box]\nhost = 'box'", ':2: hosts.box.host: unknown option: it is part of url = "box.example:7443"'),
        ("[hosts.box]", ":1: hosts.box.url: this option is required"),
        ("[hosts.box]\nurl = 1", ":2: hosts.box.url: expected a URL, host[:port], or an array of these, found"),
        ("[hosts.box]\nurl = []", ":2: hosts.box.url: expected at least one address"),
        ("[hosts.box]\nurl = [\n'box',\n'box:0']", ":4: hosts.box.url[1]: the address 'box:0' has port 0"),
        ("[hosts.box]\nurl = [\n'box',\n1]", ":4: hosts.box.url[1]: expected a URL or host[:port], found a whole"),
        (
            "[hosts.box]\nurl = [\n'box',\n'wss://BOX:7443']",
            ":4: hosts.box.url[1]: the address wss://box:7443/acp is there twice",
        ),
        (
            f"[hosts.box]\nurl = {[f'box{number}' for number in range(9)]}",
            ":2: hosts.box.url[8]: a gateway has at most 8 addresses",
        ),
        ("[hosts.box]\nurl = 'ftp://box'", ":2: hosts.box.url: the address 'ftp://box' has the unknown scheme"),
        ("[hosts.box]\nurl = 'box'\ntoken_id = 'x'", ":3: hosts.box.token_id: expected the id of a token, 8 hex"),
        ("[hosts.box]\nurl = 'box'\ncommand = ''", ":3: hosts.box.command: expected a string that is not empty"),
        ("[hosts.box]\nurl = 'box'\nssh_options = 'x'", ":3: hosts.box.ssh_options: expected an array of strings"),
        ("[hosts.box]\nurl = 'box:0'", ":2: hosts.box.url: the address 'box:0' has port 0"),
        ("[hosts.box]\nurl = 'box'\nagents = 'x'", ':3: hosts.box.agents: unknown option; did you mean "agent"?'),
        ("[hosts.box]\nurl = 'box'\nagent = 'a b'", ":3: hosts.box.agent: a name is 1 to 64 letters"),
        ("[hosts.'a b']\nurl = 'box'", ':1: hosts."a b": a name is 1 to 64 letters'),
        ("[hosts.box]\nurl = 'box'\nmaps = ['/a=/b']", ":3: hosts.box.maps: expected a table, such as { "),
        ("url = 'box'", ":1: url: unknown option: it belongs below a header [hosts.NAME]"),
        ("[box]\nurl = 'box'", ":1: box: unknown option: a host has the header [hosts.box]"),
        (
            "[hosts.box.example]\nurl = 'box'",
            ':1: hosts.box.example: unknown option: a name with a dot has quotes, [hosts."box.example"]',
        ),
        ("[hosts.box]\nurl = 'box'\nmaps = { a = '/b' }", ":3: hosts.box.maps.a: expected an absolute path of this"),
        (
            "[hosts.box]\nurl = 'box'\nmaps = { '/a' = 'b' }",
            ':3: hosts.box.maps."/a": expected an absolute path of the',
        ),
        (
            "[hosts.box]\nurl = 'box'\nmaps = { '/a' = '~/b' }",
            ':3: hosts.box.maps."/a": expected an absolute path of the',
        ),
        ("[hosts.box]\nurl = 'box'\nmaps = { '/a' = 1 }", ':3: hosts.box.maps."/a": expected an absolute path of the'),
        ("[hosts.box]\nurl = 'box'\ncert = 'x'", ":3: hosts.box.cert: a client certificate is two files: cert and key"),
        ("[hosts.box]\nkey = 'x'\nurl = 'box'", ":2: hosts.box.key: a client certificate is two files: cert and key"),
        ("[hosts.box]\nulr = 'box'", ':2: hosts.box.ulr: unknown option; did you mean "url"?'),
        (
            "[hosts.box]\nurl = 'box'\ntoken = 'acpgw_x'",
            ":3: hosts.box.token: tokens don't go into hosts.toml: save it",
        ),
        ("[hosts.box]\nurl = 'box'\ntoken = true", ":3: hosts.box.token: tokens don't go into hosts.toml: save it"),
        (
            "[hosts.box]\nurl = 'box'\ntoken = 'none'\ntoken_file = 'x'",
            ':3: hosts.box.token: token = "none" and a token_file exclude each other',
        ),
        ("[hosts.b]\nurl = 'x'\nca = 1\n[hosts.a]\nurl = 1", ":3: hosts.b.ca: expected a string, found a whole number"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(source: str, error: str, tmp_path: Path) -> None:
    assert error_of(write(tmp_path, source)).startswith(error)


@pytest.mark.parametrize(
    "pin", ["0" * 64, "sha256:" + "0" * 63, "sha256:" + "0" * 65, "sha256:" + "g" * 64, "sha1:00", ""]
)
def test_a_pin_is_sha256_and_64_digits(pin: str, tmp_path: Path) -> None:
    error = error_of(write(tmp_path, f"[hosts.box]\nurl = 'box'\npin = '{pin}'"))
    assert error.startswith(':3: hosts.box.pin: expected "sha256:" and 64 hexadecimal digits')


def test_the_file_is_found_in_the_user_s_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    assert hosts_path() == Path("/c/acp-gateway/hosts.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ann")
    assert hosts_path() == Path("/home/ann/.config/acp-gateway/hosts.toml")


@needs_entry
def test_without_a_home_the_user_database_has_the_folder_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("HOME")
    assert hosts_path().is_absolute()


def test_reading_hosts_imports_nothing_of_weight_and_nothing_of_unix() -> None:
    program = (
        "import acp_gateway.config.hosts, sys; print([m for m in ('msgspec', 'trio', 'fcntl') if m in sys.modules])"
    )
    # -S: site-packages may load modules of their own at start.
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666])
def test_a_file_that_others_may_change_is_refused_with_the_command_that_mends_it(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text('[hosts.box]\nurl = "gpu.example"')
    path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        load_hosts(path)
    assert str(refused.value) == f"{path}: other users may change it (mode {mode:04o}): chmod go-w {path}"
    path.chmod(0o644)
    assert list(load_hosts(path)) == ["box"]


def test_a_file_in_a_folder_that_others_may_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text('[hosts.box]\nurl = "gpu.example"')
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=f"chmod go-w {tmp_path}$"):
        load_hosts(path)


def test_a_file_behind_a_link_is_checked_where_it_is(tmp_path: Path) -> None:
    real, path = tmp_path / "dotfiles.toml", tmp_path / "hosts.toml"
    real.write_text('[hosts.box]\nurl = "gpu.example"')
    path.symlink_to(real)
    assert list(load_hosts(path)) == ["box"]
    real.chmod(0o666)
    with pytest.raises(ConfigError, match="other users may change it"):
        load_hosts(path)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text('[hosts.box]\nurl = "gpu.example"')
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = list(real(path, follow_symlinks=follow_symlinks))
        status[4] = os.geteuid() + 1
        return os.stat_result(status)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load_hosts(path)
