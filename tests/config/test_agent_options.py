"""The options of agents that read more than a value of one type."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.agent_options import AgentSection, read_agent_url, read_command
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.reached import read_pin
from acp_gateway.config.schema import Entry, read_section
from acp_gateway.errors import ConfigError


def read(source: str) -> tuple[AgentSection | None, list[str]]:
    file = TomlFile(Path("/srv/file.toml"), tomllib.loads(source), source)
    problems: list[ConfigError] = []
    return read_section(AgentSection, Entry(file, (), file.data), problems), [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("value", "policy"), [('"drop"', "drop"), ('"deny"', "deny"), ('"allow"', "allow"), ('["a", "b"]', ("a", "b"))]
)
def test_the_policy_for_mcp_servers_is_a_word_or_names(value: str, policy: Any) -> None:
    section, problems = read(f"mcp_servers = {value}")
    assert problems == []
    assert section is not None
    assert section.mcp_servers == policy


@pytest.mark.parametrize("value", ['"alow"', "1", '[""]', "[1]"])
def test_another_policy_is_refused(value: str) -> None:
    assert read(f"mcp_servers = {value}")[1]


def test_files_are_relative_to_the_configuration() -> None:
    section, _ = read('token_file = "t"\nca = "ca.pem"')
    assert section is not None
    assert (section.token_file, section.ca) == (Path("/srv/t"), Path("/srv/ca.pem"))


@pytest.mark.parametrize("name", ['"a b"', '""', "1"])
def test_far_agent_is_a_name(name: str) -> None:
    assert read(f"far_agent = {name}")[1]


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
