"""Says which nodes of a cluster know that a token was revoked or rotated."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from acp_gateway.cli.common import print_line, print_warning, waiting_for
from acp_gateway.errors import GatewayError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.config.load import Config
    from acp_gateway.security.token_store import Token

_TIME_LIMIT: Final = 15.0
"""Seconds to wait for the gateway of this machine, which waits for the nodes for two."""


def confirm_elsewhere(settings: "Config", token: "Token") -> list[dict[str, Any]] | None:
    """Have the gateway on this machine tell the nodes of its cluster; return these with `confirmed`.

    None if the token counts on this gateway only. If the gateway does not run, no node has confirmed.
    """
    from acp_gateway.security.shared_tokens import is_shared

    if settings.cluster is None or not is_shared(token):
        return None
    import trio

    from acp_gateway.client.local import LocalGateway
    from acp_gateway.nodes.known_nodes import KnownNodesFile

    gateway = LocalGateway(settings.gateway.state_dir)
    try:
        gateway.check_running()
        with waiting_for("the other nodes"):
            answer = trio.run(partial(gateway.confirm, token.id, time_limit=_TIME_LIMIT))
        found = answer["nodes"]
        return [{name: node[name] for name in ("name", "confirmed", "since", "why")} for node in found]
    except (GatewayError, KeyError, TypeError) as error:
        why = str(error) if isinstance(error, GatewayError) else "the gateway here is of another version"
        print_warning(f"the other nodes are told when the gateway here runs: {why}")
        known = KnownNodesFile(settings.gateway.state_dir).read().nodes
        return [{"name": node.record.name, "confirmed": False, "since": None, "why": why} for node in known]


def print_confirmations(settings: "Config", nodes: list[dict[str, Any]], *, err: bool = False) -> bool:
    """Print which nodes have not confirmed a change of a token; return whether all have."""
    assert settings.cluster is not None
    waiting = [node for node in nodes if not node["confirmed"]]
    if nodes and not waiting:
        _print(f"Confirmed by {', '.join(node['name'] for node in nodes)}.", err=err)
    for node in waiting:
        away = "" if node["since"] is None else f"away since {node['since']}: "
        _print(
            f"{node['name']} has not confirmed: {away}{node['why']}; it refuses the token when it is back, or "
            f"when it has heard of no node for {settings.cluster.isolation_limit:g} s (cluster.isolation_limit)",
            err=err,
        )
    return not waiting


def _print(text: str, *, err: bool) -> None:
    if err:
        click.echo(printable(text, size=len(text)), err=True)
    else:
        print_line(text)
