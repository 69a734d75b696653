"""Shell completion: the command `completion`, and the values of arguments.

A shell waits for the values at each Tab, so they come from files, or from a gateway within a second. Anything that goes
wrong means no values, and is not shown: it would be written into the line that is edited.
"""

import io
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.config.load import Config

TIME_LIMIT: Final = 1.0
"""Seconds to wait for a gateway's list of sessions. Users press Tab again after two."""

SHELLS: Final = ("bash", "zsh", "fish")

VARIABLE: Final = "_ACP_GATEWAY_COMPLETE"
"""Variable by which the shell's function asks the program for completions, as click names it."""

_HELP_SIZE: Final = 60
_SPECIAL: Final = frozenset(" \t'\"\\$`;&|<>()*?[]{}!#~,:")
"""Characters that have a meaning for a shell, or for the lines in which click passes values to it."""

Found = Iterable[tuple[str, str]]
"""Values and their descriptions."""

Finder = Callable[[click.Context], Found]
"""Finds the values for the arguments that have been typed so far."""


def _hosts(_ctx: click.Context) -> Found:
    from acp_gateway.config.hosts import hosts_path, load_hosts

    return [(name, str(host.address)) for name, host in load_hosts(hosts_path()).items()]


def _ssh_hosts(_ctx: click.Context) -> Found:
    from acp_gateway.cli.client.ssh_config import own_ssh_hosts

    return [(name, "") for name in own_ssh_hosts()]


def _configuration(ctx: click.Context) -> "Config":
    from acp_gateway.config.load import load_config

    return load_config(ctx.params.get("config"))


def _agents_here(ctx: click.Context) -> Found:
    agents = _configuration(ctx).agents
    return [(name, " ".join(section.command or [section.url or ""])) for name, section in agents.items()]


def _installed_agents(ctx: click.Context) -> Found:
    from acp_gateway.gateway.agent.installed import InstalledAgents

    settings = _configuration(ctx)
    store = InstalledAgents(settings.gateway.state_dir)
    return [(name, found.version) for name in settings.agents if (found := store.read(name))]


def _workspaces(ctx: click.Context) -> Found:
    return [(name, str(section.root)) for name, section in _configuration(ctx).workspaces.items()]


def _tokens(ctx: click.Context) -> Found:
    from acp_gateway.security.token_store import TokenStore

    return [(token.id, token.label) for token in TokenStore(_configuration(ctx).gateway.state_dir).tokens()]


def _sessions_here(ctx: click.Context) -> Found:
    from acp_gateway.gateway.gateway import DATABASE
    from acp_gateway.gateway.storage.database import read_session_ids

    return [
        (session, "") for session in sorted(read_session_ids(_configuration(ctx).gateway.state_dir / DATABASE) or ())
    ]


def _events(_ctx: click.Context) -> Found:
    from acp_gateway.gateway.events.audit import EVENTS

    return [(event, "") for event in sorted(EVENTS)]


def _files(_ctx: click.Context) -> Found:
    from acp_gateway.cli.files import find_files, share_root

    return [(name, "") for name in find_files(share_root())]


def _list_sessions(ctx: click.Context) -> list[dict[str, Any]]:
    """Ask the gateway that the arguments name for its sessions. Raises `GatewayError`."""
    import trio

    from acp_gateway.cli.plain_options import MAX_MESSAGE_SIZE, connection_of
    from acp_gateway.client import control
    from acp_gateway.client.destination import find_destination

    given = ctx.params
    # While the value of an option is typed, click has not assigned the arguments yet.
    target = given.get("target") or next((word for word in ctx.args if not word.startswith("-")), None)
    if target is None:
        return []
    destination = find_destination(target, connection_of(given), MAX_MESSAGE_SIZE, control=True)
    if destination.address.scheme == "ssh":
        return []  # It may ask for a password, in the middle of the edited line.
    return list(trio.run(partial(control.list_sessions, destination, time_limit=TIME_LIMIT)).sessions)


def _sessions_there(ctx: click.Context) -> Found:
    return [(each["sessionId"], str(each.get("title") or each.get("cwd") or "")) for each in _list_sessions(ctx)]


def _written_rules(ctx: click.Context) -> Found:
    from acp_gateway.security.rules_file import RulesFile

    return [(rule.id, str(rule)) for rule in RulesFile(_configuration(ctx).gateway.state_dir).rules()]


def _agents_there(ctx: click.Context) -> Found:
    return [(name, "") for name in sorted({str(each["agent"]) for each in _list_sessions(ctx) if "agent" in each})]


VALUES: Final[Mapping[str, Mapping[str, Finder]]] = {
    "agents": {"name": _agents_here, "names": _installed_agents},
    "audit": {"events": _events},
    "chat": {"target": _hosts, "session": _sessions_there},
    "connect": {"target": _hosts, "session": _sessions_there, "agent": _agents_there},
    "files": {"name": _files},
    "forward": {"target": _hosts},
    "open": {"target": _hosts, "session": _sessions_here, "agent": _agents_here, "token_id": _tokens},
    "pair": {"machine": _ssh_hosts},
    "ping": {"target": _hosts, "agent": _agents_there},
    "prompt": {"target": _hosts, "joined": _sessions_there, "agent": _agents_there},
    "sessions": {"target": _hosts, "agent": _agents_there},
    "rules": {"name": _written_rules, "agent": _agents_here, "workspace": _workspaces},
    "share": {"session": _sessions_here},
    "token": {
        "agents": _agents_here,
        "session": _sessions_here,
        "token_id": _tokens,
        "workspaces": _workspaces,
    },
    "usage": {"target": _hosts},
    "watch": {"target": _hosts, "session": _sessions_there, "agent": _agents_there},
}
"""Finders by command, or group of commands, and parameter. They are not part of the commands, because `connect` has to
start fast."""


def add_values(name: str, command: click.Command) -> None:
    """Let the parameters of a command, and of those in a group, complete their values."""
    for each in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        for param in each.params:
            find = VALUES.get(name, {}).get(param.name or "")
            if find is not None:
                setattr(param, "shell_complete", partial(complete, find))  # noqa: B010 - a method in its class.


def complete(find: Finder, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the values that begin as what was typed; none if they can't be found."""
    try:
        with redirect_stderr(io.StringIO()):
            found = list(find(ctx))
    except Exception:  # A bug or a damaged file must not be written into the edited line.
        return []
    return [
        CompletionItem(value, help=printable(text.replace(",", " "), _HELP_SIZE) or None)
        for value, text in found
        # What a shell or a terminal would take for something else is left to be typed.
        if value.startswith(incomplete) and value.isprintable() and not set(value) & _SPECIAL
    ]


EPILOG = """\b
Examples:
  eval "$(acp-gateway completion bash)"                in ~/.bashrc
  eval "$(acp-gateway completion zsh)"                 in ~/.zshrc, behind compinit
  acp-gateway completion fish | source                 in ~/.config/fish/config.fish
"""


@click.command(epilog=EPILOG, short_help="Print the shell's completion function.")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print a function for SHELL that completes commands, options, and values such as hosts, sessions and tokens.

    Without SHELL, it is for the one in the variable SHELL. The files `acp-gateway files completions` load it when it is
    needed first, from the folder in which a shell looks for completions.
    """
    from click.shell_completion import get_completion_class

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise click.UsageError(f"name the shell: {', '.join(SHELLS)}")
    root = click.get_current_context().find_root()
    found = get_completion_class(name)
    assert found is not None
    click.echo(found(root.command, {}, "acp-gateway", VARIABLE).source())
