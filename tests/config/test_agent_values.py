"""Values of options that say how an agent is reached."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.agents.options import read_agent_url, read_command
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.reached import read_pin
from acp_gateway.config.schema import Entry
from acp_gateway.errors import ConfigError


def entry(value: Any) -> Entry:
    source = f"value = {value}"
    file = TomlFile(Path("file.toml"), tomllib.loads(source), source)
    return Entry(file, ("value",), file.data["value"])


@pytest.mark.parametrize(
    "url",
    [
        *("tcp://127.0.0.1:3000", "tcp+tls://box:3000", "unix:///run/agent", "ws://[::1]/acp", "wss://box/acp"),
        *("http://127.0.0.1:8080/acp", "https://box/acp"),
    ],
)
def test_an_agent_listens_at_any_transport_but_ssh(url: str) -> None:
    assert read_agent_url(entry(f'"{url}"')) == url


@pytest.mark.parametrize(
    "value",
    ['"ssh://box"', '"box:3000"', '"box"', '"ws://u:p@box"', '"ws://box/acp?token=x"', '"tcp://box:0"', "3000", '""'],
)
def test_another_address_is_refused(value: str) -> None:
    with pytest.raises(ConfigError):
        read_agent_url(entry(value))


def test_a_pin_is_read_in_lower_case() -> None:
    assert read_pin(entry(f'"sha256:{"A" * 64}"')) == "sha256:" + "a" * 64
    with pytest.raises(ConfigError):
        read_pin(entry('"sha256:a"'))


@pytest.mark.parametrize("value", ["[]", '[""]', "[1]", '["x", 1]', '"x"'])
def test_a_command_is_a_program_and_its_arguments(value: str) -> None:
    assert read_command(entry('["x", "y"]')) == ("x", "y")
    with pytest.raises(ConfigError):
        read_command(entry(value))
