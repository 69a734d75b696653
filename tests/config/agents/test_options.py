"""The options of agents that read more than a value of one type."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.config.agents.options import AgentSection
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.schema import Entry, read_section
from acp_gateway.errors import ConfigError


def read(source: str) -> tuple[AgentSection | None, list[str]]:
    file = TomlFile(Path("/srv/file.toml"), tomllib.loads(source), source)
    problems: list[ConfigError] = []
    section = read_section(AgentSection, Entry(file, (), file.data), problems)
    return section, [str(problem) for problem in problems]


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
