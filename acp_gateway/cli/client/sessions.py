"""The command `sessions`."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    connection_options,
    examples,
    plain_option,
    print_json,
    print_table,
    print_warning,
    refuse,
    waiting_for,
)
from acp_gateway.cli.plain_options import CONNECTION, MAX_MESSAGE_SIZE
from acp_gateway.errors import ConfigError, Unreachable, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from acp_gateway.client.control import SearchAnswer
    from acp_gateway.client.destination import ConnectionOptions
    from acp_gateway.client.dialing import Destination
    from acp_gateway.terminal.session_lines import Session


class _SessionsCommand(click.Command):
    """The command `sessions TARGET`. `sessions adopt` was a command of earlier versions."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["adopt"]:
            raise UsageError(
                "sessions do not move between nodes any more: this one is there again when its node is; where the "
                "machines share a file system, the agent of another node lists and loads it (docs/many-machines.md)"
            )
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=_SessionsCommand,
    epilog=examples(
        "acp-gateway sessions                           on the gateway's machine",
        "acp-gateway sessions box",
        "acp-gateway sessions box --search 'divides \"by zero\"'",
        "acp-gateway sessions box --remove-worktree ID    what is not committed stays",
        "acp-gateway sessions box --json | jq -r '.sessions[0].sessionId'",
    ),
    short_help="List the sessions that can be joined or opened again.",
)
@click.argument("target", required=False)
@config_option
@click.option("--agent", help="Only this agent's sessions.")
@connection_options
@connect_timeout_option(help="How long to wait for the answer.")
@plain_option
@click.option(
    "--all", "complete", is_flag=True, help="List all sessions. Default: those that are live, and the last 200 others."
)
@click.option(
    "--search", metavar="WORDS", help='Only sessions with all these words in their history; "..." is a phrase.'
)
@click.option(
    "--remove-worktree",
    "tree_of",
    metavar="SESSION",
    help="Remove the git worktree of a session, unless something in it is not committed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the sessions, and how many more there are.")
def sessions(
    target: str | None,
    config: Path | None,
    agent: str | None,
    connection: "ConnectionOptions",
    connect_timeout: float,
    search: str | None,
    tree_of: str | None,
    *,
    complete: bool,
    as_json: bool,
) -> None:
    """List the sessions at TARGET that your token may join, one per row, with the id first.

    Without TARGET, on the gateway's machine, list those of its own user; elsewhere, those of the only host of
    hosts.toml. `connect TARGET --attach ID` joins one. If it
    is not live, it is reopened if its agent supports that. TARGET has the same meaning as for `connect`.
    """
    import trio

    from acp_gateway.client import control
    from acp_gateway.terminal.session_lines import by_use

    destination = find_gateway(target, config, connection, agent=agent)
    if tree_of is not None:
        with waiting_for(str(destination.address)):
            kept = trio.run(partial(control.remove_worktree, destination, tree_of, time_limit=connect_timeout))
        if as_json:
            print_json({"removed": True, "kept": kept})
        else:
            click.echo("The worktree is removed." + (f" {kept}" if kept else ""))
        return
    if search is not None:
        with waiting_for(str(destination.address)):
            answer = trio.run(partial(control.search, destination, search, time_limit=connect_timeout))
        _print_found(answer, as_json=as_json)
        return
    with waiting_for(str(destination.address)):
        ask = partial(
            control.list_sessions, destination, time_limit=connect_timeout, complete=complete, with_ports=True
        )
        listing = trio.run(ask)
    found = listing.sessions
    for problem in listing.problems:
        print_warning(f"{problem}")
    if listing.more > 0:
        click.echo(
            f"Not shown: {listing.more} more, used longer ago: --all lists them; `connect --attach ID` joins these too",
            err=True,
        )
    if as_json:
        print_json({"sessions": found, "more": listing.more})
    elif found:
        name = target or ("unix:" if destination.address.scheme == "unix" else known_hosts()[0])
        _print_sessions(by_use(found), name)
    else:
        click.echo("There are no sessions; the first that an editor opens will be one.", err=True)


def _print_sessions(sessions: "Sequence[Session]", target: str) -> None:
    """Print sessions in a table, with a column for the ports of their programs where there are any."""
    from datetime import UTC, datetime

    from acp_gateway.client import control
    from acp_gateway.terminal.port_lines import name_ports, node_of, read_ports, way_to

    columns, rows = control.SESSION_COLUMNS, control.session_rows(sessions, datetime.now(UTC))
    listening = [(session["sessionId"], ports) for session in sessions if (ports := read_ports(session))]
    if not listening:
        print_table(columns, rows)
        return
    cells = [name_ports(read_ports(session)) or "-" for session in sessions]
    print_table((*columns, "PORTS"), [(*row, cell) for row, cell in zip(rows, cells, strict=True)])
    name, (port, *_) = listening[0]
    click.echo(f"To see {port} here: {way_to(target, port.number, node_of(name))}", err=True)


def _print_found(answer: "SearchAnswer", *, as_json: bool) -> None:
    from acp_gateway.client import control

    found = answer.found
    if not answer.complete:
        print_warning("the gateway still reads former histories; later, there may be more")
    if answer.missing:
        print_warning(f"not searched, as they did not answer: {', '.join(map(printable, answer.missing))}")
    if as_json:
        print_json({"found": found, "complete": answer.complete, "missing": list(answer.missing)})
    elif found:
        print_table(control.FOUND_COLUMNS, control.found_rows(found))
    else:
        click.echo("No session has these words.", err=True)


def find_gateway(
    target: str | None, config: Path | None, connection: "ConnectionOptions", *, agent: str | None = None
) -> "Destination":
    """Return the gateway to ask: that of TARGET, without it the one of `find_here`, for all agents or one.

    Raises as `find_destination`, and `UsageError` for options that do not fit.
    """

    from acp_gateway.client.destination import find_destination

    if target is not None and config is not None:
        raise UsageError("--config is for the gateway on this machine: leave it out, or TARGET")
    place = find_here(config) if target is None else target
    if not isinstance(place, str):
        return replace(place, agent=agent)
    return find_destination(place, connection, MAX_MESSAGE_SIZE, agent=agent, control=True)


def find_here(config: Path | None) -> "Destination | str":
    """Return the gateway on this machine, or the name of the only host of hosts.toml where none runs.

    Raises `UsageError` if there is neither, or for options of a connection.
    """
    refuse(CONNECTION, "name it, as for `connect`")
    try:
        # It needs modules that Windows lacks, where no gateway runs.
        from acp_gateway.client.local import find_local_gateway

        gateway = find_local_gateway(config)
        gateway.check_running()
    except (ConfigError, Unreachable, ModuleNotFoundError) as error:
        if config is None and (names := known_hosts()):
            if len(names) == 1:
                return names[0]
            raise UsageError(f"which gateway? There are in hosts.toml: {', '.join(names)}") from None
        if isinstance(error, ModuleNotFoundError):
            raise
        raise UsageError(f"name a gateway, as for `connect`: {error}") from None
    return gateway.destination


def known_hosts() -> list[str]:
    """Return the names in hosts.toml; none if there is no such file that can be read."""
    from acp_gateway.config.hosts import hosts_path, load_hosts

    try:
        return list(load_hosts(hosts_path()))
    except ConfigError:
        return []
