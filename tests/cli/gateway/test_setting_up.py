"""Parts of a new gateway: its certificate, its names, and what is printed once it runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from acp_gateway.cli.gateway.setting_up import (
    WhenStarted,
    find_page_host,
    make_certificate,
    own_host,
    remembered_host,
    user_name,
)
from acp_gateway.config.load import ListenSection, load_config
from acp_gateway.errors import ConfigError
from acp_gateway.security.certificates import create_certificate, read_certificate
from tests.kit.doubles import make_config


def test_a_reader_of_stdout_that_has_gone_does_not_end_the_gateway() -> None:
    called = []

    def announce() -> None:
        called.append(1)
        raise BrokenPipeError

    WhenStarted(announce).started([])
    assert called == [1]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_addresses", lambda: ["192.0.2.7", "2001:db8::7"])
    monkeypatch.setattr("acp_gateway.security.certificates.default_hosts", lambda: ["box", "192.0.2.7"])
    monkeypatch.setattr("platform.node", lambda: "Box")


def test_a_certificate_is_for_the_given_name_the_own_addresses_and_the_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.server.sockets.find_own_addresses", lambda: ["192.0.2.7", "100.64.0.7"])
    make_certificate(tmp_path, "gpu.example")
    assert read_certificate(tmp_path / "cert.pem").names == ("gpu.example", "192.0.2.7", "100.64.0.7", "box")


def test_a_certificate_without_its_key_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").touch()
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        make_certificate(tmp_path, None)


@pytest.mark.parametrize(
    ("url", "names", "host", "expected"),
    [
        # A phone does not know the name of a machine, and an address of the same network leads there.
        ("wss://0.0.0.0:7443", ["box"], None, "192.0.2.7"),
        ("wss://[::]:7443", ["box"], None, "2001:db8::7"),
        ("wss://0.0.0.0:7443", ["box.example"], None, None),
        ("wss://0.0.0.0:7443", ["box"], "gpu", "gpu"),
        ("wss://127.0.0.1:7443", ["box"], None, None),
        ("tcp://127.0.0.1:7443", [], None, None),
    ],
)
def test_the_link_has_a_host_that_a_phone_reaches(
    tmp_path: Path, url: str, names: list[str], host: str | None, expected: str | None
) -> None:
    config = make_config(tmp_path)
    section = ListenSection(url=url)
    if names:
        create_certificate(names, tmp_path)
        section = replace(section, cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    assert find_page_host(replace(config, listen=(section,)), host) == expected


def test_the_own_name_is_in_lower_case_and_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (own_host(None), own_host("X")) == ("box", "X")
    monkeypatch.setattr("platform.node", lambda: "")
    assert own_host(None) == "HOST"


def test_a_user_without_a_name_has_a_placeholder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", fail)
    assert user_name() == "USER"


def test_the_host_that_is_remembered_is_that_of_tls_and_not_of_a_proxy(tmp_path: Path) -> None:
    def remembered(listener: str) -> str | None:
        path = tmp_path / "config.toml"
        path.write_text(f"[gateway]\nstate_dir = '{tmp_path}'\n[agents.a]\ncommand = ['a']\n[[listen]]\n{listener}")
        return remembered_host(load_config(path))

    tls = "url = 'wss://0.0.0.0:7443'\ncert = 'c'\nkey = 'k'\n"
    assert remembered(tls) is None
    assert remembered(f"{tls}public_url = 'https://[2001:db8::1]:7443'") == "2001:db8::1"
    assert remembered("url = 'ws://127.0.0.1:7443'\npublic_url = 'https://gpu.example'") is None
