"""The values of options about listeners, read from TOML, and what is said of wrong ones."""

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.listeners import read_hosts, read_listen_url, read_networks, read_origins, read_services
from acp_gateway.config.schema import Entry
from acp_gateway.errors import ConfigError

Read = Callable[[Callable[[Entry], Any], str], Any]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a value of TOML."""

    def read_value(reader: Callable[[Entry], Any], value: str) -> Any:
        path = tmp_path / "config.toml"
        path.write_text(f"option = {value}\n")
        file = TomlFile.read(path)
        return reader(Entry(file, (), file.data).child("option", None))

    return read_value


def error_of(read: Read, reader: Callable[[Entry], Any], value: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(reader, value)
    return str(caught.value).partition("option")[2]


@pytest.mark.parametrize(
    ("serves", "error"),
    [
        ('"acp"', ': expected an array of "acp", "page", "chat", "metrics", "tap" or "editor", found a string'),
        ("[]", ': expected at least one of "acp", "page", "chat", "metrics", "tap" or "editor"'),
        (
            '["acp", "metric"]',
            (
                '[1]: expected "acp", "page", "chat", "metrics", "tap" or "editor", found "metric"; '
                'did you mean "metrics"?'
            ),
        ),
        ("[1]", '[0]: expected "acp", "page", "chat", "metrics", "tap" or "editor", found a whole number'),
        ('["acp", "tap"]', ': "tap" has an address of its own: its lines are not messages of ACP'),
        ('["page"]', ': "page" needs "acp" beside it: the page connects to the endpoint at its own address'),
    ],
)
def test_what_is_wrong_with_serves_is_said_with_the_words_that_are_known(serves: str, error: str, read: Read) -> None:
    assert error_of(read, read_services, serves) == error


@pytest.mark.parametrize("origin", ["*", "null", "editor.example", "https://editor.example/", "https://Editor.example"])
def test_an_origin_is_what_a_browser_sends(origin: str, read: Read) -> None:
    assert read(read_origins, '["https://a.example"]') == ("https://a.example",)
    assert error_of(read, read_origins, f'["https://a.example", "{origin}"]').startswith("[1]: expected an origin")


@pytest.mark.parametrize("host", ["Box.example", "box:7443", "https://box", ""])
def test_an_allowed_host_is_in_lower_case_and_without_a_port(host: str, read: Read) -> None:
    assert read(read_hosts, '["box.example", "[::1]"]') == ("box.example", "[::1]")
    assert error_of(read, read_hosts, f'["{host}"]').startswith("[0]: expected a host")


@pytest.mark.parametrize("network", ['"box"', '"10.0.0.1/8"', "1"])
def test_a_trusted_proxy_is_an_address_or_a_network(network: str, read: Read) -> None:
    assert read(read_networks, '["10.0.0.0/8"]') == (ipaddress.ip_network("10.0.0.0/8"),)
    assert error_of(read, read_networks, f"[{network}]").startswith("[0]: expected an IP address or a network")


def test_the_url_of_a_listener_is_kept_as_it_stands_if_it_can_be_parsed(read: Read) -> None:
    assert read(read_listen_url, '"wss://box"') == "wss://box"
    assert error_of(read, read_listen_url, '"box"').startswith(": ")
    assert error_of(read, read_listen_url, "1") == ": expected a URL, found a whole number"
