"""The group `rules`: list the rules for permissions, try a command against them, remove one that was written."""

import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acp_gateway.cli.client.gateway_options import folder_there
from acp_gateway.cli.client.sessions import known_hosts
from acp_gateway.cli.common import (
    config_option,
    connect_timeout_option,
    connection_options,
    current_folder,
    examples,
    json_option,
    plain_option,
    print_json,
    print_line,
    print_table,
    refuse,
    waiting_for,
)
from acp_gateway.cli.gateway.browsers import open_audit
from acp_gateway.cli.gateway.known_names import check_agents
from acp_gateway.cli.plain_options import CONNECTION, MAX_MESSAGE_SIZE
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.client.destination import ConnectionOptions
    from acp_gateway.config.load import Config
    from acp_gateway.rules.rule import Rule


@click.group(epilog=examples("acp-gateway rules list", "acp-gateway rules try -- pytest -q"))
def rules() -> None:
    """List the rules that decide permission requests, try a command against them, and remove written ones."""


@rules.command("list", epilog=examples("acp-gateway rules list"))
@config_option
@plain_option
@json_option
def list_rules(config: Path | None, *, as_json: bool) -> None:
    """List the rules in their order: the first that is for a request decides it.

    Those of the configuration come first, then those that people have written from a question, which end with the
    token that was used.
    """
    from acp_gateway.gateway.session_api.rule_trials import describe_rule, end_of

    settings = _load(config)
    found = _all_rules(settings)
    over = _over(settings, found)
    if as_json:
        print_json({"rules": [describe_rule(rule) | {"over": rule.id in over} for rule in found]})
    elif not found:
        click.echo("There are no rules: a person is asked each time.", err=True)
    else:
        ends = ["over" if rule.id in over else end_of(rule) or "-" for rule in found]
        rows: list[tuple[str, ...]] = [
            (rule.id, rule.author or "-", end, str(rule)) for rule, end in zip(found, ends, strict=True)
        ]
        print_table(("ID", "AUTHOR", "UNTIL", "RULE"), rows)


@rules.command(
    "try",
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "acp-gateway rules try -- git push",
        "acp-gateway rules try --json 'pytest; ls'",
        "acp-gateway rules try box 'git push'          those of a gateway elsewhere",
    ),
)
@click.option("--agent", metavar="NAME", help="Agent that asks. Default: the default agent.")
@click.option("--workspace", metavar="NAME", help="Workspace of the session. Default: none that has a name.")
@click.option("--identity", metavar="NAME", help="Owner of the session. Default: the gateway's own user.")
@click.option("--folder", metavar="DIR", help="Folder of the session. Default: this; elsewhere as path maps have it.")
@click.argument("command", metavar="[HOST] COMMAND...", nargs=-1, type=click.UNPROCESSED)
@config_option
@connection_options
@connect_timeout_option(help="How long to wait for the answer of HOST.")
@json_option
def try_command(
    command: tuple[str, ...],
    agent: str | None,
    workspace: str | None,
    identity: str | None,
    folder: str | None,
    config: Path | None,
    connection: "ConnectionOptions",
    connect_timeout: float,
    *,
    as_json: bool,
) -> None:
    """Say what the rules decide if an agent asks for COMMAND. Nothing is run.

    COMMAND is one text as an agent gives it to a shell, or several words. Behind HOST, which is a name in hosts.toml or
    a URL, it is one text: then it is asked what that gateway decides for your sessions.
    """
    if not command:
        raise UsageError("there is no command: write it behind --, or in quotes behind HOST")
    if len(command) == 2 and ("://" in command[0] or command[0] in known_hosts()):
        if workspace is not None or identity is not None or config is not None:
            raise UsageError("--workspace, --identity and --config are for the gateway on this machine: leave them out")
        told = _try_there(*command, agent, folder, connection, connect_timeout)
    else:
        refuse(CONNECTION, "name it before the command, which stands in quotes then")
        text = command[0] if len(command) == 1 else shlex.join(command)
        told = _try_here(text, agent, workspace, identity, folder, config)
    if as_json:
        print_json(told)
    else:
        print_line(f"{told['decision']}: {told['why']}")


def _try_here(
    text: str, agent: str | None, workspace: str | None, identity: str | None, folder: str | None, config: Path | None
) -> dict[str, Any]:
    """Return what the rules of this machine decide on a command. Raises `GatewayError`."""
    from acp_gateway.gateway.session_api.rule_trials import try_command as try_it
    from acp_gateway.rules.deciding import Place
    from acp_gateway.security.token_store import default_identity

    settings = _load(config)
    if agent is not None:
        check_agents(settings, (agent,))
    cwd = str(Path(folder).absolute() if folder is not None else current_folder())
    owner = identity or default_identity(settings.gateway.state_dir)
    known = _all_rules(settings)
    over = _over(settings, known)
    found = [rule for rule in known if rule.id not in over]
    place = Place(agent or settings.default_agent, "", owner, workspace, cwd)
    return try_it(found, text, place, int(time.time() * 1000)).describe()


def _try_there(
    host: str, text: str, agent: str | None, folder: str | None, connection: "ConnectionOptions", connect_timeout: float
) -> dict[str, Any]:
    """Return what a gateway elsewhere decides on a command, or its node if the agent is there.

    Raises `GatewayError`.
    """
    import trio

    from acp_gateway.client import control
    from acp_gateway.client.destination import find_destination
    from acp_gateway.client.ports.forwarding import at_node

    destination = find_destination(host, connection, MAX_MESSAGE_SIZE, control=True)
    node, _, name = (agent or find_destination(host, connection, MAX_MESSAGE_SIZE).agent or "").rpartition("/")
    if node:
        destination = at_node(destination, node)
    with waiting_for(str(destination.address)):
        ask = partial(control.try_rules, destination, text, folder_there(host, folder), name or None)
        return trio.run(partial(ask, time_limit=connect_timeout))


@rules.command("remove", epilog=examples("acp-gateway rules remove rule-7"))
@click.argument("name", metavar="ID")
@config_option
@json_option
def remove_rule(name: str, config: Path | None, *, as_json: bool) -> None:
    """Remove a rule that was written from a question; it counts from the next request on."""
    from acp_gateway.gateway.events.audit import entry_of_rule
    from acp_gateway.gateway.session_api.rule_trials import describe_rule
    from acp_gateway.security.rules_file import RulesFile

    settings = _load(config)
    removed = RulesFile(settings.gateway.state_dir).remove(name)
    if removed is None:
        where = ": it is in the configuration" if any(rule.id == name for rule in settings.rules) else ""
        raise UsageError(f"no rule {name} was written from a question{where}; `acp-gateway rules list` lists them")
    audit = open_audit(settings)
    audit.record("rule_removed", **entry_of_rule(removed))
    audit.close()
    if as_json:
        print_json(describe_rule(removed))
    else:
        print_line(f"Removed {removed.id}: {removed}")


def _load(config: Path | None) -> "Config":
    from acp_gateway.config.load import load_config

    return load_config(config)


def _all_rules(settings: "Config") -> "list[Rule]":
    """Return the rules in their order, also those that are over. Raises `ConfigError`."""
    from acp_gateway.security.rules_file import RulesFile

    return [*settings.rules, *RulesFile(settings.gateway.state_dir).rules()]


def _over(settings: "Config", rules: "Sequence[Rule]") -> set[str]:
    """Return the ids of the rules that do not count any more: by their time, or as their token is not valid now."""
    from acp_gateway.security.rules_file import has_ended
    from acp_gateway.security.token_store import TokenStore

    now, tokens = int(time.time() * 1000), TokenStore(settings.gateway.state_dir).valid_ids()
    return {rule.id for rule in rules if rule.is_over(now) or has_ended(rule, tokens, settings.certificates)}
