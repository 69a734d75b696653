"""The command `ping`: try each step of a connection to a gateway, and name the remedy of the one that fails."""

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.client.gateway_options import only_host
from acp_gateway.cli.common import (
    check_finite,
    connection_options,
    current_folder,
    print_any_character,
    print_check,
    waiting_for,
)
from acp_gateway.cli.plain_options import MAX_MESSAGE_SIZE
from acp_gateway.errors import GatewayError

if TYPE_CHECKING:
    from acp_gateway.client.destination import ConnectionOptions
    from acp_gateway.diagnosis.checks import Line

EPILOG = """
\b
Examples:
  acp-gateway ping                      the only host of hosts.toml, with a session in this folder
  acp-gateway ping box --quick          up to the token; no agent is started
  acp-gateway ping box --cwd ~/proj     a session in another folder
  acp-gateway ping box --json | jq '.checks[] | select(.status == "fault")'

Exit codes are those of `connect`: 3 configuration, 4 refused, 5 certificate or pin, 6 no answer, 7 not an acp-gateway,
8 the agent. 0: all is well.
"""


@click.command(epilog=EPILOG, short_help="Try a connection step by step, and say what is wrong.")
@click.argument("target", required=False, metavar="[HOST]")
@click.option("--agent", help="The agent to start. Default: the gateway's own default.")
@click.option(
    "--cwd",
    type=click.Path(path_type=Path),
    help="The folder of this machine for the session. Default: the current one.",
)
@connection_options
@click.option("--map", "maps", multiple=True, metavar="LOCAL=REMOTE", help="Map a folder, as for connect.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    callback=check_finite,
    show_default=True,
    metavar="SECONDS",
    help="How long the agent may take to start, and to open a session.",
)
@click.option("--quick", is_flag=True, help="Stop after the token: no agent is started.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def ping(
    target: str | None,
    agent: str | None,
    cwd: Path | None,
    connection: "ConnectionOptions",
    maps: tuple[str, ...],
    timeout: float,
    *,
    quick: bool,
    as_json: bool,
) -> None:
    """Try each step of a connection to HOST: name, port, TLS and pin, token, agent, and a session in this folder.

    HOST has the same meaning as TARGET of `connect`; it may be left out if hosts.toml has only one. Each line has its
    time, or what is wrong and what to do. The session is closed again and not listed.
    """
    import trio

    from acp_gateway.client.destination import find_destination, find_host
    from acp_gateway.diagnosis.checks import exit_code_of, report_of
    from acp_gateway.diagnosis.ping import NetworkProbes, Ping, PingSettings
    from acp_gateway.diagnosis.ping_checks import judge_settings
    from acp_gateway.protocol.path_maps import PathMaps, parse_map

    lines: list[Line] = []

    def report(line: "Line") -> None:
        lines.append(line)
        if not as_json:
            print_check(line)

    print_any_character()
    if target is None:
        target = only_host()
    pairs = [*map(parse_map, maps)]
    try:
        host = find_host(target)
        pairs += host.maps if host else ()
        destination = find_destination(target, connection, MAX_MESSAGE_SIZE, agent=agent)
    except GatewayError as error:
        report(judge_settings(error, None, 0))
    else:
        report(judge_settings(destination, host.name if host else None, len(pairs)))
        folder = os.path.abspath(cwd or current_folder())
        settings = PingSettings(folder, PathMaps(pairs), timeout, "token" if quick else "session")
        trio.run(partial(Ping(destination, settings, report, NetworkProbes(), waiting_for).run))
    if as_json:
        click.echo(json.dumps(report_of(lines, host=target)))
    click.get_current_context().exit(exit_code_of(lines))
