"""The command `nodes`, for the gateway on this machine."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    examples,
    plain_option,
    print_json,
    print_table,
    waiting_for,
)
from acp_gateway.errors import ProtocolError
from acp_gateway.printable import printable

COLUMNS = ("NODE", "FROM", "STATE", "SINCE", "VERSION", "AGENTS", "SESSIONS", "TURNS", "WAITING", "LAG", "CAUSE")


@click.command(
    epilog=examples(
        "acp-gateway nodes",
        "acp-gateway nodes --json | jq -r '.[] | select(.up | not) | .name'",
    ),
    short_help="List the other gateways that this one leads to.",
)
@config_option
@connect_timeout_option(help="How long to wait for the answer.")
@plain_option
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as JSON.")
def nodes(config: Path | None, connect_timeout: float, *, as_json: bool) -> None:
    """List the nodes of the gateway that runs on this machine, one per row: state, agents, live sessions, open turns.

    A node is another gateway: of a section [nodes.NAME], or of the cluster. SESSIONS and TURNS are of all who use the
    node, LAG is the most by which its event loop was late in the last seconds; a node of another version only tells the
    sessions of this gateway. One that is away is listed as it was, with the cause. The exit code is 6 if the gateway on
    this machine does not run.
    """
    import trio

    from acp_gateway.client.local import find_local_gateway

    gateway = find_local_gateway(config)
    gateway.check_running()
    with waiting_for("the gateway"):
        shown = trio.run(partial(gateway.status, time_limit=connect_timeout, nodes=True))
    try:
        found = shown["nodes"]
        rows = [_row(node) for node in found]
    except (KeyError, TypeError, ValueError):
        raise ProtocolError("the gateway's response is not understood: it is of another version") from None
    if as_json:
        print_json(found)
    elif rows:
        print_table(COLUMNS, rows)
    else:
        click.echo("There are no nodes; a section [nodes.NAME] or [cluster] of the configuration makes some.", err=True)


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    since = datetime.fromisoformat(node["since"]).astimezone(UTC)
    return (
        printable(node["name"]),
        "config" if node.get("configured") is not False else "cluster",
        "up" if node["up"] else "away",
        f"{since:%Y-%m-%d %H:%M:%S} UTC",
        printable(node["version"] or "-"),
        printable(", ".join(node["agents"] or ()) or "-"),
        *(str((node.get("load") or node)[name]) for name in ("sessions", "turns")),
        str(node["waiting"]),
        f"{node['load']['lag'] * 1000:.0f} ms" if node.get("load") else "-",
        printable(node["why"] or "-"),
    )
