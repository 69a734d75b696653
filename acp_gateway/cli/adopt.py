"""The command `sessions adopt`, for the gateway on this machine."""

from functools import partial
from pathlib import Path

import click

from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    examples,
    json_option,
    print_json,
    waiting_for,
)
from acp_gateway.printable import printable


@click.command(
    epilog=examples(
        "acp-gateway sessions adopt gpu1/7f3a9c --on gpu2",
        "acp-gateway sessions adopt gpu1/7f3a9c --agent opencode",
    ),
    short_help="Open a session of a node that is away on another one.",
)
@click.argument("session")
@click.option("--on", "node", metavar="NODE", help="The node that adopts it. Default: the gateway on this machine.")
@click.option("--agent", metavar="NAME", help="The agent there. Default: the one of the same name.")
@click.option("--force", is_flag=True, help="Adopt it though its node is there, which stops it there.")
@config_option
@connect_timeout_option(help="How long to wait until it is open.", default=90)
@json_option
def adopt(
    session: str,
    node: str | None,
    agent: str | None,
    config: Path | None,
    connect_timeout: float,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Open SESSION, `HOME/ID`, on another node of the cluster, with its agent there.

    The agent must be able to load the session: its files have to be on that machine too. The node that had it stops
    its part when it is back, and tells its clients where the session lives. The id stays as it is.
    """
    import trio

    from acp_gateway.client.local import find_local_gateway

    gateway = find_local_gateway(config)
    gateway.check_running()
    with waiting_for("the gateway"):
        done = trio.run(partial(gateway.adopt, session, node, agent, force=force, time_limit=connect_timeout))
    if as_json:
        print_json(done)
        return
    place, name = printable(str(done.get("node"))), printable(session, size=1024)
    click.echo(f"The session lives on {place}: acp-gateway connect HOST --attach {name}")
