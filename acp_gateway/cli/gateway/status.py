"""The commands `status` and `reload`, for the gateway on this machine."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    json_option,
    plain_option,
    print_json,
    print_line,
    print_table,
    print_text,
    print_wrapped,
    waiting_for,
)
from acp_gateway.errors import ConfigError, ProtocolError
from acp_gateway.printable import counted, printable

_AWAY_SHOWN = 10
"""Maximum number of nodes that are away with a line of their own; `acp-gateway nodes` lists all."""

COLUMNS = ("AGENT", "PID", "MEMORY", "FENCE", "SESSIONS", "TURNS", "CONNECTED", "AWAY", "WAITING")


@click.command(
    epilog="""\b
Examples:
  acp-gateway status
  acp-gateway status --json | jq .waiting
""",
    short_help="Show what the gateway on this machine does.",
)
@config_option
@connect_timeout_option(help="How long to wait for the answer.")
@plain_option
@json_option
def status(config: Path | None, connect_timeout: float, *, as_json: bool) -> None:
    """Show the gateway that runs on this machine: listeners, nodes, agents, clients, decisions that wait, and how busy
    the machine is: processors, memory, disks, and each GPU with the sessions that hold it.

    The gateway is the one of the configuration, and has to be your own. The exit code is 6 if it does not run. Agents
    are shown with their processes, and with the memory of all that they have started.
    """
    import trio

    from acp_gateway.client.local import find_local_gateway

    gateway = find_local_gateway(config)
    gateway.check_running()
    with waiting_for("the gateway"):
        shown = trio.run(partial(gateway.status, time_limit=connect_timeout))
    if as_json:
        print_json(shown)
        return
    try:
        _print_status(shown)
    except (KeyError, TypeError, ValueError):
        raise ProtocolError("the gateway's response is not understood: it is of another version; use --json") from None


def _print_status(shown: dict[str, Any]) -> None:
    from acp_gateway.cli.gateway.machine_lines import machine_lines

    # One of an older version does not tell warnings from problems.
    ready = "ready" if shown.get("ready", not shown["problems"]) else "NOT READY"
    memory = "" if shown["memory"] is None else f", {_size(shown['memory'])}"
    print_wrapped(
        f"acp-gateway {shown['version']}, process {shown['pid']}, up {_duration(shown['uptime'])}{memory}: {ready}"
    )
    for problem in shown["problems"]:
        print_wrapped(f"problem: {problem}")
    for url in shown["listeners"]:
        print_wrapped(f"listening on {url}")
    print_wrapped(f"configuration: {shown['config'] or 'none'}; state: {shown['stateDir']}")
    print_wrapped(
        f"{shown['connected']} connected, {shown['away']} away, {shown['waiting']} waiting for a decision"
        + (" (`acp-gateway sessions` shows them)" if shown["waiting"] else "")
    )
    for line in machine_lines(shown.get("machine")):
        print_wrapped(line)
    _print_nodes(shown.get("nodes", []))
    for door in shown.get("doors", []):
        why = "" if door["why"] is None else f": {door['why']}"
        print_wrapped(f"door {door['name']}: {counted(door['parked'], 'connection')} lent{why}")
    print_table(COLUMNS, [_row(agent) for agent in shown["agents"]])


def _print_nodes(nodes: list[dict[str, Any]]) -> None:
    away = [node for node in nodes if node.get("watched", True) and not node["up"]]
    if nodes:
        hint = " (`acp-gateway doctor` says what to do)" if away else " (`acp-gateway nodes` shows them)"
        print_wrapped(f"{counted(len(nodes), 'node')}, {len(away)} away{hint}")
    for node in away[:_AWAY_SHOWN]:
        print_wrapped(f"away: node {node['name']} since {node['since']}: {node['why']}")


def _row(agent: dict[str, Any]) -> tuple[str, ...]:
    place = agent.get("url") or ("-" if agent["pid"] is None else str(agent["pid"]))
    memory = "-" if agent["memory"] is None else _size(agent["memory"])
    return (
        agent["name"],
        place,
        memory,
        agent.get("fence", "-"),
        *(str(agent[name]) for name in ("sessions", "turns", "connected", "away", "waiting")),
    )


def _size(size: int) -> str:
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def _duration(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"


@click.command(
    epilog="""\b
Example:
  acp-gateway check-config && acp-gateway reload
""",
    short_help="Have the gateway on this machine read its files again.",
)
@config_option
@connect_timeout_option(help="How long to wait for the answer.")
@json_option
def reload(config: Path | None, connect_timeout: float, *, as_json: bool) -> None:
    """Have the gateway that runs on this machine read its configuration again, without an end of any turn.

    It says what has changed, and what needs a restart besides. Nothing changes if the configuration has an error. The
    same happens at a SIGHUP, with these lines in the log.
    """
    import trio

    from acp_gateway.client.local import find_local_gateway

    gateway = find_local_gateway(config)
    gateway.check_running()
    with waiting_for("the gateway"):
        done = trio.run(partial(gateway.reload, time_limit=connect_timeout))
    for line in done.get("changed", ()):
        print_line(line)
    for name in done.get("restart", ()):
        print_line(f"{name}: changed, and needs a restart, which ends the agents")
    problems = done.get("problems", ())
    for problem in problems:
        click.echo(f"problem: {printable(str(problem), size=1000)}", err=True)
    if as_json:
        print_json(reload_as_json(done))
    if problems:
        click.get_current_context().exit(ConfigError.exit_code)
    print_text("Reloaded.")


def reload_as_json(done: dict[str, Any]) -> dict[str, list[str]]:
    """Return the gateway's answer to a reload with each of its lists, which may be empty."""
    return {name: list(done.get(name, ())) for name in ("changed", "restart", "problems")}
