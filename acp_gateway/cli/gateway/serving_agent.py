"""Serves agents of the command line without a configuration file: `serve --agent`.

The configuration is made for this run and is in the state folder while it lasts, so that `token`, `open`, `pair` and
`status` find the gateway.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import current_folder, print_secret
from acp_gateway.cli.gateway.setting_up import (
    check_address,
    find_agents_here,
    make_certificate,
    print_pairing,
    reachable_host,
    writes_to_journal,
)
from acp_gateway.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from acp_gateway.config.agents.search import FoundAgent
    from acp_gateway.config.load import Config

LABEL = "first client"
"""Label of the token that is made where there is none."""


@contextmanager
def temporary_config(
    commands: Sequence[str], port: int, address: str, host: str | None
) -> "Iterator[tuple[Path, Config]]":
    """Make the configuration of these commands for the duration of the block, and what it needs.

    Sessions may use the present folder. Raises `ConfigError`, `UsageError` and `CannotListen` before anything is made.
    """
    from acp_gateway.config.directories import config_home, state_home
    from acp_gateway.config.editing.first_config import FirstConfig
    from acp_gateway.config.editing.host_writer import replace_file
    from acp_gateway.config.load import RUNNING_CONFIG, load_config
    from acp_gateway.fence.start import can_fence
    from acp_gateway.gateway.storage.state_folder import check_state_folder, find_holder

    state_dir, folder = state_home(), current_folder()
    agents = _find_agents(commands, folder)
    check_state_folder(state_dir)
    running = find_holder(state_dir)
    if running is not None:
        raise ConfigError(f"{running}: stop it first", key="gateway.state_dir")
    keys = config_home() if (config_home() / "cert.pem").exists() else state_dir
    first = FirstConfig(
        host=address,
        port=port,
        cert=str(keys / "cert.pem"),
        key=str(keys / "key.pem"),
        state_dir=state_dir,
        workspace=folder,
        agents=agents,
        cwd=folder,
        public_host=host,
        fence=can_fence(folder, state_dir),
    )
    text = first.write()
    check_address(first.url, port)
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_certificate(keys, host)
    file = state_dir / RUNNING_CONFIG
    replace_file(file, text)
    try:
        yield file, load_config(file)
    finally:
        file.unlink(missing_ok=True)


def _find_agents(commands: Sequence[str], folder: Path) -> "list[FoundAgent]":
    """Return the agents that these commands start, each under a name of its own. Raises `UsageError`."""
    from acp_gateway.config.editing.first_config import free_name

    agents: list[FoundAgent] = []
    for command in commands:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--agent {command!r:.80}: {str(error).lower()}") from None
        if not words:
            raise UsageError("--agent is a command, such as --agent 'opencode acp'")
        (agent,) = find_agents_here(tuple(words), folder)
        agents.append(replace(agent, name=free_name(agent.name, [other.name for other in agents])))
    return agents


def announce(settings: "Config", host: str | None) -> None:
    """Print what a client needs: the address, the pin, and a new token where there is none."""
    from acp_gateway.cli.tokens.commands import record_token
    from acp_gateway.security.certificates import read_certificate
    from acp_gateway.security.token_store import TokenStore

    listener = settings.listen[0]
    assert listener.cert is not None
    place = reachable_host(host) if listener.address.wildcard else listener.address.host
    place = f"[{place}]" if ":" in place else place
    click.echo(f"\nAgents: {', '.join(settings.agents)}. Sessions may use {current_folder()}, and nothing above it.")
    print_pairing(host, current_folder())
    click.echo("On any other machine, with the token in a file of mode 600:")
    pin = read_certificate(listener.cert).pin
    click.echo(f"    acp-gateway connect {place}:{listener.address.port} --pin {pin} --token-file FILE")
    tokens = TokenStore(settings.gateway.state_dir)
    if tokens.tokens():
        click.echo("The token is one of those that there are; `acp-gateway token create --label NAME` makes another.\n")
    elif writes_to_journal():
        click.echo("`acp-gateway token create --label NAME` makes the token.\n")
    else:
        record, secret = tokens.create(LABEL, None, None)
        record_token(settings, "token_created", record)
        click.echo(f"Token {record.id}, which is shown only now:")
        print_secret(secret)
