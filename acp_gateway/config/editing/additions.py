"""Adds a workspace or an agent to an existing configuration, and leaves everything else in it as it is written."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from acp_gateway.config.agents.search import FoundAgent
from acp_gateway.config.editing.first_config import free_name, workspace_name
from acp_gateway.config.editing.host_writer import replace_file
from acp_gateway.config.editing.section_writer import Keys, Value, change_section
from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.config.load import Config, collect
from acp_gateway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Addition:
    """A section to be added, or options of one."""

    keys: Keys
    """Its path, such as `("workspaces", "proj")`."""
    options: dict[str, Value | None]


def workspace_additions(config: Config, folder: Path, roots: list[str]) -> list[Addition]:
    """Return what lets sessions use a folder besides the `roots` that they may use now.

    Without any [workspaces] the roots are added too: they are only a default.
    """
    taken = list(config.workspaces)
    additions = []
    for root in [folder] if taken else [*map(Path, roots), folder]:
        name = free_name(workspace_name(root), taken)
        taken.append(name)
        additions.append(Addition(("workspaces", name), {"root": str(root)}))
    return additions


def agent_additions(config: Config, agent: FoundAgent, cwd: Path, *, fence: bool) -> list[Addition]:
    """Return what adds an agent, fenced or not, which starts in a folder. The default agent stays the same."""
    name = free_name(agent.name, list(config.agents))
    options: dict[str, Value | None] = {
        "command": agent.command,
        "env": agent.env or None,
        "cwd": str(cwd),
        "fence": "on" if fence else None,
        "login": agent.login,
    }
    additions = [Addition(("agents", name), options)]
    if config.gateway.default_agent is None:
        # With several agents, one of them has to be named.
        additions.insert(0, Addition(("gateway",), {"default_agent": config.default_agent}))
    return additions


def add(path: Path, additions: list[Addition]) -> Config:
    """Write additions to a configuration file, all or none; return the new configuration.

    Raises `ConfigError` if the file can't be read, written, or changed in that way.
    """
    file = TomlFile.read(path)
    for addition in additions:
        text = change_section(file, addition.keys, addition.options)
        file = TomlFile(path, tomllib.loads(text), text)
    config, problems = collect(file)
    if config is None:
        raise problems[0]
    real = path.resolve()
    try:
        status = real.stat()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    replace_file(real, file.source, status)
    return config
