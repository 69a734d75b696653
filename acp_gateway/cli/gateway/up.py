"""The command `up`: make what a gateway needs and does not have yet, say how to reach it, and serve."""

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import current_folder, print_line, print_wrapped, was_given
from acp_gateway.cli.gateway.browsers import is_terminal
from acp_gateway.cli.gateway.setting_up import (
    WhenStarted,
    address_option,
    check_address,
    check_workspace,
    describe_agents,
    find_agents_here,
    find_page_host,
    make_certificate,
    own_host_option,
    port_option,
    print_pairing,
    remembered_host,
    writes_to_journal,
    yes_option,
)
from acp_gateway.cli.quick_imports import quick_imports
from acp_gateway.errors import GatewayError, UsageError

if TYPE_CHECKING:
    from acp_gateway.config.load import Config

RELOAD_TIMEOUT = 15.0
"""Seconds to wait for a running gateway to read its configuration."""

EPILOG = """\b
Examples:
  acp-gateway up                          serve this folder, with the agents that are found
  acp-gateway up -- opencode acp          serve this folder, with this agent
  acp-gateway up -- npx -y @google/gemini-cli --acp
  acp-gateway up --add                    serve this folder besides those in the configuration
  acp-gateway up --port 7444              where 7443 is taken
  acp-gateway up --address 127.0.0.1      for connections over ssh alone
  acp-gateway up --door LINE              for connections through another gateway; see `nodes add`
"""


OF_OTHERS = {
    "--agent": "The command of an agent stands behind --: acp-gateway up -- COMMAND",
    "--config": "`acp-gateway serve` has it: `up` is for the configuration in the home folder",
    **dict.fromkeys(("-d", "--daemon", "--detach"), "`acp-gateway service install` keeps a gateway running"),
}
"""Answers to options that `up` has not, but others have."""


class _Up(click.Command):
    """Command whose arguments are another command, with options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            of_agent = f"Options of an agent stand behind --: acp-gateway up -- COMMAND {error.option_name}"
            text = f"{error.format_message()} {OF_OTHERS.get(error.option_name, of_agent)}"
            raise click.UsageError(text, ctx) from None


@click.command(cls=_Up, epilog=EPILOG, short_help="Set up what is missing, and serve this folder.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@port_option
@address_option
@own_host_option
@click.option(
    "--add",
    "adds",
    is_flag=True,
    help="Add this folder, and COMMAND, to the existing configuration. A running gateway uses them at once.",
)
@click.option(
    "--door",
    "line",
    metavar="LINE",
    help="Lend connections to the door that has printed LINE (`acp-gateway nodes add`). A new configuration opens no "
    "port.",
)
@yes_option
@click.option("--verbose", "-v", is_flag=True, help="Log the details of each connection too, but no message bodies.")
def up(
    command: tuple[str, ...],
    port: int,
    address: str,
    host: str | None,
    line: str | None,
    *,
    adds: bool,
    yes: bool,
    verbose: bool,
) -> None:
    """Serve the folder that you are in: make what is missing, print how to connect, and run the gateway.

    Without a configuration, `up` makes a certificate and ~/.config/acp-gateway/config.toml, with this folder as the
    workspace and the agents that it finds on PATH and where installers put them. With COMMAND, that is the agent. Then
    it prints the command for a laptop and a link for a phone, and serves until Ctrl-C. With a configuration it changes
    nothing and serves; --add adds this folder.

    The gateway listens at port 7443 of all addresses. All connections are encrypted (TLS), and need a token or a
    browser that is signed in. Sessions may only use the workspace. No root is needed.
    """
    with quick_imports():
        import logging

        import trio

        from acp_gateway.client.joining import parse_invitation
        from acp_gateway.client.local import LocalGateway
        from acp_gateway.config.directories import config_home
        from acp_gateway.config.load import load_config
        from acp_gateway.gateway.agent.hardening import harden
        from acp_gateway.gateway.storage.state_folder import find_holder
        from acp_gateway.logs import is_journal, log_to_stderr
        from acp_gateway.server import serve as server

    _check_command(command)
    file = config_home() / "config.toml"
    if line is not None:
        for option in ("port", "address", "host"):
            if was_given(option):
                raise UsageError(f"--{option} is for a listener, and --door needs none: leave one of them out")
        parse_invitation(line)
    is_new = not os.path.lexists(file)
    # A link that leads nowhere is not replaced either.
    if not is_new:
        for option in ("port", "address"):
            if was_given(option):
                raise UsageError(f"{file} exists already, and --{option} is for a new one: change its [[listen]]")
        settings = load_config(file)
        settings = _use(settings, file, command, adds=adds, yes=yes)
    else:
        settings = _set_up(file, command, port, None if line is not None else address, host, yes=yes)
    if line is not None:
        try:
            settings = join_door(file, line)
        except BaseException:
            # A gateway of it would be reached by no one.
            if is_new and not load_config(file).doors:
                file.unlink()
                print_wrapped(f"Removed {file} again.")
            raise
    announce = partial(_announce, settings, file, host)
    running = find_holder(settings.gateway.state_dir)
    if running is not None:
        LocalGateway(settings.gateway.state_dir).check_settled()
        print_wrapped(f"Nothing to start: {running}.")
        if adds or line is not None:
            _reload(settings)
        announce()
        return
    journal = is_journal(os.environ, sys.__stderr__.fileno() if sys.__stderr__ else -1)
    log_to_stderr(logging.DEBUG if verbose else logging.INFO, settings.log.format, journal=journal)
    harden()
    trio.run(partial(server.serve, settings, os.environ, file=file, task_status=WhenStarted(announce)))


def _check_command(command: tuple[str, ...]) -> None:
    """Raise `UsageError` if COMMAND is a folder or a port, as other programs take those that they serve."""
    if len(command) == 1 and command[0].isdecimal():
        raise UsageError(f"{command[0]} is not the command of an agent; a port is named so: --port {command[0]}")
    if len(command) == 1 and os.path.isdir(command[0]):
        there = "" if command[0] == "." else f"cd {shlex.quote(command[0])} && "
        raise UsageError(
            f"{command[0]} is a folder, not the command of an agent; `up` serves the one that you are in: "
            f"{there}acp-gateway up"
        )


def _set_up(
    file: Path, command: tuple[str, ...], port: int, address: str | None, host: str | None, *, yes: bool
) -> "Config":
    """Make the certificate and the configuration, and return it. Raises before anything is written, if possible."""
    from acp_gateway.config.directories import state_home
    from acp_gateway.config.editing.first_config import FirstConfig
    from acp_gateway.config.editing.section_writer import replace_file
    from acp_gateway.config.load import load_config
    from acp_gateway.fence.start import can_fence, check_programs

    folder = current_folder()
    check_workspace(folder, yes=yes)
    fence = can_fence(folder, state_home())
    if fence:
        check_programs(folder)
    agents = find_agents_here(command, folder)
    first = FirstConfig(
        host=address,
        port=port,
        cert="cert.pem",
        key="key.pem",
        state_dir=state_home(),
        workspace=folder,
        agents=agents,
        cwd=folder if command else None,
        public_host=host,
        fence=fence,
    )
    text = first.write()
    if address is not None:
        check_address(first.url, port)
        make_certificate(file.parent, host)
    replace_file(file, text)
    print_wrapped(f"Made {file}: sessions may use {folder}, and nothing above it.")
    for number, agent in enumerate(agents):
        default = " (the default)" if number == 0 and len(agents) > 1 else ""
        print_line(f"Agent {agent.name}: {shlex.join(agent.command)}{default}")
    if fence:
        print_wrapped("Agents are fenced: they use that folder, their own settings and the system's programs.")
    else:
        print_wrapped(
            "note: agents are not fenced here, and read all that you may: `acp-gateway files fence.md`", err=True
        )
    if len(agents) == 1 and agents[0].login:
        click.echo(f"Is it logged in? `{agents[0].login}` does that.")
    return load_config(file)


def _use(settings: "Config", file: Path, command: tuple[str, ...], *, adds: bool, yes: bool) -> "Config":
    """Use an existing configuration; add what it lacks for this call, or say so. Returns the configuration."""
    from acp_gateway.config.editing.first_config import add, agent_additions, workspace_additions
    from acp_gateway.fence.start import can_fence, check_programs

    print_wrapped(f"Using {file}; agents: {describe_agents(settings)}.")
    folder, roots = current_folder(), _roots(settings)
    additions, lacks = [], []
    if command and all(agent.command != command for agent in settings.agents.values()):
        (agent,) = find_agents_here(command, folder)
        additions += agent_additions(settings, agent, folder, fence=can_fence(folder, settings.gateway.state_dir))
        lacks.append(f"`{shlex.join(command)}` is not an agent in it")
    if not any(folder.is_relative_to(root) for root in roots):
        additions += workspace_additions(settings, folder, roots)
        lacks.append(f"{folder} is in no workspace of it")
    if additions and adds:
        if any(addition.keys[0] == "workspaces" for addition in additions):
            check_workspace(folder, yes=yes)
        if can_fence(folder, settings.gateway.state_dir):
            check_programs(folder)
        settings = add(file, additions)
        for addition in additions:
            click.echo(f"Added [{'.'.join(addition.keys)}] to it.")
    for what in [] if adds else lacks:
        print_wrapped(f"note: {what}: `acp-gateway up --add{_arguments(command)}` adds that", err=True)
    return settings


def _arguments(command: tuple[str, ...]) -> str:
    return f" -- {shlex.join(command)}" if command else ""


def _reload(settings: "Config") -> None:
    """Have the running gateway read the configuration, and print what has changed."""
    import trio

    from acp_gateway.client.local import LocalGateway

    gateway = LocalGateway(settings.gateway.state_dir)
    gateway.check_running()
    done = trio.run(partial(gateway.reload, time_limit=RELOAD_TIMEOUT))
    for line in (*done.get("changed", ()), *done.get("problems", ())):
        print_line(line)


def join_door(file: Path, line: str) -> "Config":
    """Exchange the code of a line for the token of a node, and write the section of the door; return the configuration.

    A section that is there for the door gets the new token: `nodes add` was run again, maybe with another name.
    Raises `GatewayError`; what could fail here is tried before the code is used.
    """
    import trio

    from acp_gateway.client import joining
    from acp_gateway.config.editing.first_config import Addition, add, free_name
    from acp_gateway.config.editing.section_writer import replace_file
    from acp_gateway.config.load import load_config
    from acp_gateway.config.schema import NAME

    invitation = joining.parse_invitation(line)
    settings = load_config(file)
    name = invitation.address.host if NAME.fullmatch(invitation.address.host) else "door"
    known = next((name for name, door in settings.doors.items() if door.url in invitation.addresses), None)
    if known is None:
        name = free_name(name, list(settings.doors))
        token_file = file.with_name(f"{name}.door")
        if token_file.exists():
            raise UsageError(f"{token_file} exists already: remove it")
    elif settings.doors[known].pin == invitation.pin:
        token_file = settings.doors[known].token_file
    else:
        raise UsageError(f"there is a section [doors.{known}] for it, with another pin: remove it if that is outdated")
    joined = trio.run(partial(joining.join, invitation))
    if joined.role != "node" or joined.address is None:
        raise UsageError("that line is for a guest: `acp-gateway join` takes it; `acp-gateway nodes add` makes another")
    replace_file(token_file, joined.token + "\n")
    if known is not None:
        print_wrapped(
            f"[doors.{known}] of {file} has the new token: {joined.address.host} has its name for this machine."
        )
        return settings
    options = {"url": str(joined.address), "token_file": token_file.name, "pin": invitation.pin}
    settings = add(file, [Addition(("doors", name), dict(options))])
    print_wrapped(f"Added [doors.{name}] to {file}: this machine is reached through {joined.address.host}.")
    return settings


def _announce(settings: "Config", file: Path, host: str | None) -> None:
    """Print the command for a laptop, and the link for a phone."""
    if settings.doors and not any(section.address.tls for section in settings.listen):
        doors = ", ".join(section.url.host for section in settings.doors.values())
        print_wrapped(
            f"No port is open here. Connect through the door {doors}: its `acp-gateway nodes` names this machine."
        )
        return
    host = host or remembered_host(settings)
    from acp_gateway.cli.gateway.browsers import LinkOptions, make_here, print_link
    from acp_gateway.gateway.page_address import make_link

    print_pairing(host, _folder_of(settings))
    try:
        if writes_to_journal():
            click.echo("For a phone or any browser: `acp-gateway open` makes a link.")
        else:
            click.echo("On a phone, or in any browser:")
            page, code = make_here(file, LinkOptions(host=find_page_host(settings, host)))
            print_link(make_link(page, code=code))
    except GatewayError as error:
        print_wrapped(f"No link for a browser: {error}", err=True)
    if is_terminal():
        from acp_gateway.cli.service import has_service_manager

        install = " As a service: `acp-gateway service install`." if has_service_manager() else ""
        click.echo(f"Ctrl-C stops the gateway.{install}\n")


def _roots(settings: "Config") -> list[str]:
    """Return the folders that sessions of the default agent may use, links followed."""
    from acp_gateway.gateway.workspaces import workspaces_of

    agent = settings.agents.get(settings.default_agent)
    workspaces = workspaces_of(settings.workspaces, agent.cwd if agent else None)
    return [os.path.realpath(workspace.root) for workspace in workspaces]


def _folder_of(settings: "Config") -> Path:
    """Return this folder if sessions may use it, else one that they may use."""
    folder, roots = current_folder(), _roots(settings)
    return folder if any(folder.is_relative_to(root) for root in roots) else Path(roots[0])
