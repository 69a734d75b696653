"""Makes what a new gateway needs, for `up` and `serve --agent`: agents, a free address, a certificate."""

import errno
import getpass
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.agent_changes import offer_agents, stored_agents
from acp_gateway.cli.common import check_host, host_option, print_warning, print_wrapped
from acp_gateway.config.addresses import DEFAULT_PORT, parse_address
from acp_gateway.errors import CannotListen, ConfigError, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.config.addresses import Address
    from acp_gateway.config.agent_search import FoundAgent
    from acp_gateway.config.load import Config

port_option = click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Listen at this port. For a new configuration.",
)
address_option = click.option(
    "--address",
    default="0.0.0.0",  # noqa: S104 - with TLS and tokens.
    show_default=True,
    metavar="IP",
    callback=check_host,
    help="Listen at this address of the machine; 0.0.0.0 is all of them. For a new configuration.",
)
own_host_option = host_option(
    help="The name or address by which others reach this machine, for the certificate and the printed lines. A new "
    "configuration keeps it, as public_url.",
)

yes_option = click.option("--yes", is_flag=True, help="Serve a folder that holds your whole home, without asking.")


def check_workspace(folder: Path, *, yes: bool) -> None:
    """Ask before the sessions of a new workspace may use the whole home folder; `yes` is the answer.

    Raises `UsageError` for the whole disk, and where it would have to ask and there is no terminal.
    """
    from acp_gateway.config.directories import expand_user

    if folder == Path(folder.anchor):
        raise UsageError(
            "this is the whole disk, and agents could change everything on it: go to a project's folder, and run this "
            "there"
        )
    home = os.path.realpath(expand_user("~"))
    if yes or not Path(home).is_relative_to(os.path.realpath(folder)):
        return
    what = f"{printable(str(folder), 500)} holds your whole home, where agents could read keys and change everything"
    if not _can_ask():
        raise UsageError(f"{what}: go to a project's folder, and run this there, or add --yes")
    click.confirm(f"{what}. Serve it all the same?", abort=True, err=True)


class WhenStarted:
    """Calls a function as soon as the gateway accepts connections. A missing reader of stdout does not end it."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce

    def started(self, value: list[str] | None = None) -> None:
        """Call it."""
        try:
            self._announce()
        except OSError:
            pass


def find_agents_here(command: tuple[str, ...], folder: Path) -> "tuple[FoundAgent, ...]":
    """Return the agent of the command line, or those of this machine. Raises `ConfigError` if there are none."""
    from acp_gateway.config.agent_search import advise, find_agents, find_command
    from acp_gateway.config.directories import expand_user

    search_path = os.environ.get("PATH", os.defpath)
    home = expand_user("~")
    if command:
        agent = find_command(command, search_path, home, folder)
        advice = advise(command)
        if advice is not None:
            print_warning(advice)
        return (agent,)
    search = find_agents(search_path, home)
    for hint in search.hints:
        print_wrapped(f"{hint}.", err=True)
    agents = _merge_agents(search.agents)
    if not agents and _can_ask():
        offer_agents()
        agents = _merge_agents(())
    if not agents:
        raise ConfigError(
            "no agent is found on PATH or in the usual folders, such as ~/.local/bin: install one, such as by "
            "`acp-gateway agents add opencode`, or name the command that starts it: `acp-gateway up -- opencode acp`"
        )
    return agents


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _merge_agents(found: "tuple[FoundAgent, ...]") -> "tuple[FoundAgent, ...]":
    """Return the agents that `agents add` has added, and the others that were found. The added ones were wanted."""
    from acp_gateway.config.agent_search import FoundAgent

    added = [
        FoundAgent(name, section.command, None, variables=section.env)
        for name, section in stored_agents()[1].items()
        if section.command is not None
    ]
    names = {agent.name for agent in added}
    return (*added, *(agent for agent in found if agent.name not in names))


def check_address(url: str, port: int) -> None:
    """Raise `CannotListen`, with the remedy, for an address that can't be listened at now."""
    from acp_gateway.server.sockets import check_free

    try:
        check_free(parse_address(url))
    except CannotListen as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            raise CannotListen(f"{error}; choose another one by --port, such as --port {port % 65535 + 1}") from None
        raise


def make_certificate(directory: Path, host: str | None) -> None:
    """Make `cert.pem` and `key.pem`, unless both are there. Raises `ConfigError`."""
    from acp_gateway.security.certificates import create_certificate, default_hosts
    from acp_gateway.server.sockets import find_own_addresses

    if all(os.path.exists(directory / name) for name in ("cert.pem", "key.pem")):
        print_wrapped(f"Using {directory / 'cert.pem'} and key.pem.")
        return
    hosts = [*([host] if host else []), *find_own_addresses(), *default_hosts()]
    created = create_certificate(list(dict.fromkeys(hosts)), directory)
    print_wrapped(f"Made {created.cert_path} and key.pem, for {', '.join(dict.fromkeys(hosts))}.")


def find_page_host(settings: "Config", host: str | None) -> str | None:
    """Return the host of the link to the page: this machine's address where its name is not for other networks."""
    from urllib.parse import urlsplit

    from acp_gateway.gateway.page_address import find_page

    page = find_page(settings.listen, host)
    wildcards = [section.address for section in settings.listen if section.address.wildcard]
    if host or page is None or not wildcards:
        return host
    name = urlsplit(page).hostname or ""
    return host if "." in name or ":" in name else _find_own_address(wildcards)


def remembered_host(settings: "Config") -> str | None:
    """Return the host that `up --host` has written into the configuration; None without one.

    A `public_url` of a listener without TLS is that of a proxy, which may be on another machine.
    """
    urls = (section.public for section in settings.listen if section.address.tls)
    return next((url.name.strip("[]") for url in urls if url is not None), None)


def describe_agents(settings: "Config") -> str:
    """Return which agents a gateway has, and the default one, in one line; nodes may have further ones."""
    nodes = [f"{name}/…" for name in settings.nodes]
    of_cluster = [] if settings.cluster is None else ["those of the cluster"]
    agents = ", ".join([*settings.agents, *nodes, *of_cluster])
    return f"{agents or 'none'}; default: {settings.default_agent or 'none'}"


def print_pairing(host: str | None, folder: Path) -> None:
    """Print the command that pairs a laptop, with the folder that its sessions are to use here."""
    # The shell of the laptop expands the tilde.
    local = f"~/{shlex.quote(folder.name)}" if folder.name else "~"
    command = f"acp-gateway pair {user_name()}@{own_host(host)} --map {local}={shlex.quote(str(folder))}"
    click.echo()
    print_wrapped("On a laptop that can log in here with ssh (the machine and the project may have other names there):")
    click.echo(f"    {printable(command, len(command))}")


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "USER"


def writes_to_journal() -> bool:
    """Return whether stdout is the journal, which others may read."""
    from acp_gateway.logs import is_journal

    return is_journal(os.environ, sys.__stdout__.fileno() if sys.__stdout__ else -1)


def own_host(host: str | None) -> str:
    """Return the name of this machine, or the one that was given."""
    return host or platform.node().lower() or "HOST"


def reachable_host(host: str | None, listener: "Address") -> str:
    """Return the name that was given, or this machine's if it has a domain, else the address of a wildcard listener."""
    name = host or platform.node()
    return (name if host or "." in name else _find_own_address([listener]) or name or "HOST").lower()


def _find_own_address(wildcards: Iterable["Address"]) -> str | None:
    """Return the first address of this machine, in its own network, at which one of these listeners is reached."""
    from acp_gateway.server.sockets import find_own_addresses

    own = find_own_addresses()
    return next((host for address in wildcards for host in address.reached_at(own)), None)
