"""Reads registries of agents for this machine, and offers their agents to install where there is none."""

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from acp_gateway.cli.common import print_table, waiting_for
from acp_gateway.errors import ConfigError, Unreachable
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.config.agents.registry import RegistryAgent

MAX_DOWNLOAD: Final = 512 * 1024 * 1024
"""Default maximum bytes of a download."""

MAX_UNPACKED: Final = 2048 * 1024 * 1024
"""Default maximum bytes of the files of an archive."""

DESCRIPTION_SIZE: Final = 60
"""Maximum characters of a description that is offered."""


def platform_here() -> str:
    """Return the registry's name of this platform."""
    from acp_gateway.config.agents.registry import platform_name

    return platform_name(sys.platform, platform.machine())


def runners_here() -> list[str]:
    """Return those of `npx` and `uvx` that this machine has."""
    return [name for name in ("npx", "uvx") if shutil.which(name)]


def read_agents(registry: str | None) -> "tuple[str, dict[str, RegistryAgent]]":
    """Return the source and the entries of a registry. Raises `ConfigError` and `Unreachable`, with another way."""
    from acp_gateway.config.agents.registry import PUBLIC_REGISTRY, read_registry
    from acp_gateway.gateway.agent.download import read_document

    source = registry or PUBLIC_REGISTRY
    if "://" not in source:
        source = os.path.abspath(source)
    try:
        with waiting_for(source):
            content = read_document(source)
    except Unreachable as error:
        raise Unreachable(
            f"{error}. Without the registry: install an agent by its own installer, then `acp-gateway up` finds it, or "
            "name its command, `acp-gateway up -- COMMAND` (beside a configuration `up --add -- COMMAND`); or give "
            "--registry with a file"
        ) from None
    return source, read_registry(content, source)


def find_agent(agent_id: str, source: str, entries: "Mapping[str, RegistryAgent]") -> "RegistryAgent":
    """Return an entry. Raises `ConfigError`, with the one that may be meant."""
    from acp_gateway.config.editing.toml_file import suggestion

    if agent_id not in entries:
        hint = suggestion(agent_id, entries) or "; `acp-gateway agents list --available` lists its agents"
        raise ConfigError(f"has no agent {agent_id[:64]!r}{hint}", file=source)
    return entries[agent_id]


def offer_agents() -> None:
    """Have the user choose an agent of the public registry that this machine can run, in a terminal, and install it.

    Raises `ConfigError` and `Unreachable`, and `click.Abort` if the user chooses none.
    """
    from acp_gateway.cli.agents.changes import Configuration, install_agent
    from acp_gateway.config.agents.registry import choose, kinds_for

    click.echo("No agent is found on this machine.", err=True)
    source, entries = read_agents(None)
    here, runners = platform_here(), runners_here()
    offered = {
        agent.id: agent
        for agent in entries.values()
        if any(kind == "binary" or kind in runners for kind in kinds_for(agent, here))
    }
    if not offered:
        raise ConfigError("has no agent that this machine can run without Node.js or uv: install one", file=source)
    rows: list[tuple[str, ...]] = [
        (agent.id, agent.version, agent.description[:DESCRIPTION_SIZE]) for agent in offered.values()
    ]
    click.echo("The public registry has these:", err=True)
    print_table(("ID", "VERSION", "DESCRIPTION"), rows)
    default = "opencode" if "opencode" in offered else None
    chosen = str(click.prompt("The agent to install, by ID (Ctrl-C: none)", default=default, err=True)).strip()
    choice = choose(find_agent(chosen, source, offered), here, None, runners)
    install_agent(Configuration(None), chosen, chosen, source, choice, (MAX_DOWNLOAD, MAX_UNPACKED), fetch=True)
    click.echo(f"{printable(chosen)} has to be logged in on this machine, as without a gateway.", err=True)
