"""The command `nodes`: the other gateways that this one leads to, and those that lend it their connections."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    examples,
    host_option,
    json_option,
    plain_option,
    print_json,
    print_secret,
    print_table,
    waiting_for,
)
from acp_gateway.errors import ProtocolError, TooOld, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.security.token_store import Token, TokenStore

NODE_COLUMNS = (
    "NODE",
    "FROM",
    "STATE",
    "SINCE",
    "VERSION",
    "AGENTS",
    "SESSIONS",
    "TURNS",
    "WAITING",
    "LAG",
    "FREE",
    "CAUSE",
)


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "acp-gateway nodes",
        "acp-gateway nodes add gpu2",
        "acp-gateway nodes --json | jq -r '.[] | select(.up | not) | .name'",
    ),
    short_help="List, add and remove the gateways that this one leads to.",
)
@config_option
@connect_timeout_option(help="How long to wait for the answer.")
@plain_option
@click.option("--json", "as_json", is_flag=True, help="Print the nodes as JSON.")
@click.pass_context
def nodes(context: click.Context, config: Path | None, connect_timeout: float, *, as_json: bool) -> None:
    """List the nodes of the gateway that runs on this machine, one per row: state, agents, live sessions, open turns.

    A node is another gateway: of a section [nodes.NAME], of the cluster, or one that lends its connections (itself).
    SESSIONS and TURNS are of all who use the node, LAG is the most by which its event loop was late in the last
    seconds; a node of another version only tells the sessions of this gateway. FREE is what its machine has: idle GPUs
    and processors, and memory; --json has the rest. One that is away is listed as it was, with the cause; one that is
    silent has not answered within two seconds. The exit code is 6 if the gateway on this machine does not run.
    """
    if context.invoked_subcommand is not None:
        return
    import trio

    from acp_gateway.client.local import find_local_gateway

    gateway = find_local_gateway(config)
    gateway.check_running()
    with waiting_for("the gateway"):
        shown = trio.run(partial(gateway.status, time_limit=connect_timeout, nodes=True))
    try:
        found = shown["nodes"]
        rows = [_node_row(node) for node in found]
    except (KeyError, TypeError, ValueError):
        raise ProtocolError("the gateway's response is not understood: it is of another version") from None
    if as_json:
        print_json(found)
    elif rows:
        print_table(NODE_COLUMNS, rows)
    else:
        click.echo(
            "There are no nodes; `acp-gateway nodes add NAME`, or a section [nodes.NAME] or [cluster], makes some.",
            err=True,
        )


def _node_row(node: dict[str, Any]) -> tuple[str, ...]:
    since = datetime.fromisoformat(node["since"]).astimezone(UTC)
    return (
        printable(node["name"]),
        "config" if node.get("configured") is not False else "itself" if node.get("lends") else "cluster",
        "too old" if node.get("reason") == TooOld.reason else _state(node),
        f"{since:%Y-%m-%d %H:%M:%S} UTC",
        printable(node["version"] or "-"),
        printable(", ".join(node["agents"] or ()) or "-"),
        *(str((node.get("load") or node)[name]) for name in ("sessions", "turns")),
        str(node["waiting"]),
        f"{node['load']['lag'] * 1000:.0f} ms" if node.get("load") else "-",
        _free(node),
        printable(node["why"] or "-"),
    )


def _free(node: dict[str, Any]) -> str:
    from acp_gateway.made.machine import free_text, read_told

    machine = read_told((node.get("load") or {}).get("machine"))
    return "-" if machine is None else free_text(machine)


def _state(node: dict[str, Any]) -> str:
    return "away" if not node["up"] else "silent" if node["why"] else "up"


@nodes.command("add", epilog=examples("acp-gateway nodes add gpu2", "acp-gateway nodes add gpu2 --host door.example"))
@click.argument("name")
@host_option(help="The name or address by which the node reaches this gateway.")
@config_option
@json_option
def add_node(name: str, host: str | None, config: Path | None, *, as_json: bool) -> None:
    """Print the command by which another machine becomes the node NAME, without an open port of its own.

    It is run there within 10 minutes, once. Run this on the machine of this gateway, the door. The line holds a code
    for a token that lets the node lend its connections, by that name, and nothing else.
    """
    from acp_gateway.cli.gateway.share import find_invitation
    from acp_gateway.cli.tokens import record_token, warn_of_running
    from acp_gateway.config.load import load_config
    from acp_gateway.config.nodes import lent_file
    from acp_gateway.config.schema import NAME
    from acp_gateway.security.token_store import TokenStore

    if not NAME.fullmatch(name):
        raise UsageError(f"a node's name has letters, digits, '.', '_' and '-': not {printable(name)!r}")
    settings = load_config(config)
    if name in settings.nodes:
        raise UsageError(f"there is a section [nodes.{name}] already: choose another name, or remove it")
    tokens = TokenStore(settings.gateway.state_dir)
    if _tokens_of(tokens, name):
        raise UsageError(f"there is a node {name} already: `acp-gateway nodes remove {name}` ends it")
    invite = find_invitation(settings, host)
    # What another machine of this name has told.
    lent_file(settings.gateway.state_dir, name).unlink(missing_ok=True)
    record, _ = tokens.create(f"the node {name}", f"node {name}", None, role="node", nodes=[name])
    record_token(settings, "token_created", record)
    warn_of_running(settings)
    line, expires = invite(tokens, record)
    command = f"acp-gateway up --door '{line}'"
    if as_json:
        print_json({"node": name, "tokenId": record.id, "command": command, "commandExpires": expires}, secret=True)
        return
    click.echo(f"On the machine of {name}, in the folder of a project, once, until {expires}:", err=True)
    print_secret(command)


@nodes.command("remove", epilog=examples("acp-gateway nodes remove gpu2"))
@click.argument("name")
@config_option
@json_option
def remove_node(name: str, config: Path | None, *, as_json: bool) -> None:
    """Revoke the token of the node NAME, which lends its connections: within a second they end."""
    from acp_gateway.cli.tokens import record_token
    from acp_gateway.config.load import load_config
    from acp_gateway.config.nodes import lent_file
    from acp_gateway.security.token_store import TokenStore

    settings = load_config(config)
    tokens = TokenStore(settings.gateway.state_dir)
    found = _tokens_of(tokens, name)
    if not found:
        hint = f": remove the section [nodes.{name}]" if name in settings.nodes else ""
        raise UsageError(f"no node {printable(name)!r} was added by `acp-gateway nodes add`{hint}")
    for token in found:
        tokens.revoke(token.id)
        record_token(settings, "token_revoked", token)
    lent_file(settings.gateway.state_dir, name).unlink(missing_ok=True)
    if as_json:
        print_json({"node": name, "revoked": [token.id for token in found]})
    else:
        click.echo(f"Removed {name}.", err=True)
    if settings.default_agent.partition("/")[0] == name:
        click.echo(
            f"default_agent is {settings.default_agent}: set another one, or the gateway can't be started again",
            err=True,
        )


def _tokens_of(tokens: "TokenStore", name: str) -> "list[Token]":
    return [token for token in tokens.tokens() if token.role == "node" and token.nodes == (name,)]
