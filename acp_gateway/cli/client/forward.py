"""The command `forward`."""

from functools import partial
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import (
    connect_timeout_option,
    connection_options,
    examples,
    json_option,
    plain_option,
    print_json,
    print_line,
    print_table,
    print_warning,
    waiting_for,
)
from acp_gateway.cli.plain_options import MAX_MESSAGE_SIZE
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.client.destination import ConnectionOptions
    from acp_gateway.client.dialing import Destination
    from acp_gateway.client.ports.forwarding import Port

_LINE_SIZE = 400
"""Characters of a reason that is printed."""


@click.command(
    epilog=examples(
        "acp-gateway forward box                      list the ports of the agents' programs",
        "acp-gateway forward box 6006                 http://127.0.0.1:6006 here is port 6006 there",
        "acp-gateway forward box 6006 --local 7000",
        "acp-gateway forward door 8888 --node gpu2    a node of a gateway",
    ),
    short_help="Reach a port on which an agent's program listens.",
)
@click.argument("target")
@click.argument("port", type=click.IntRange(1, 65535), required=False)
@click.option(
    "--local", type=click.IntRange(0, 65535), metavar="N", help="The port here. Default: the same; 0 for any free one."
)
@click.option("--node", metavar="NAME", help="At this node of TARGET.")
@connection_options
@connect_timeout_option(help="How long to wait for the answer.")
@plain_option
@json_option
def forward(
    target: str,
    port: int | None,
    local: int | None,
    node: str | None,
    connection: "ConnectionOptions",
    connect_timeout: float,
    *,
    as_json: bool,
) -> None:
    """List the ports at TARGET on which programs of your agents listen, or forward PORT to this machine.

    It is reached at 127.0.0.1 here, by all programs of this machine, until Ctrl-C. After a change of the network, new
    connections work again. TARGET has the same meaning as for `connect`.
    """
    import trio

    from acp_gateway.client.destination import find_destination
    from acp_gateway.client.ports import forwarding

    def destination() -> "Destination":
        found = find_destination(target, connection, MAX_MESSAGE_SIZE, control=True)
        return found if node is None else forwarding.at_node(found, node)

    place = destination()
    if port is not None:
        forwarding.check_forwardable(place, port)
    with waiting_for(str(place.address)):
        found = trio.run(partial(forwarding.list_ports, place, time_limit=connect_timeout))
    if port is None:
        _print(found, as_json=as_json)
        return
    there = forwarding.check_offered(found, port, target)
    name = f" ({printable(there.program)})" if there.program else ""

    def report(why: str) -> None:
        print_warning(printable(why, size=_LINE_SIZE))

    async def run() -> None:
        listener = await forwarding.listen(port if local is None else local, port, target)
        async with listener:
            print_line(f"http://{forwarding.LOCALHOST}:{forwarding.port_of(listener)}")
            click.echo(f"That is port {port}{name} at {target}. Ctrl-C ends it.", err=True)
            await forwarding.forward(listener, destination, port, report)

    trio.run(run)


def _print(found: "list[Port]", *, as_json: bool) -> None:
    from acp_gateway.client.ports.forwarding import COLUMNS

    if as_json:
        print_json({"ports": [port.as_json for port in found]})
    elif found:
        print_table(COLUMNS, [port.row for port in found])
    else:
        click.echo("No program of your agents listens on a port there.", err=True)
