"""The group `rules`: list the rules for permissions, try a command against them, remove one that was written."""

import dataclasses
import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acp_gateway.cli.common import (
    config_option,
    current_folder,
    examples,
    json_option,
    plain_option,
    print_json,
    print_line,
    print_table,
)
from acp_gateway.cli.gateway.browsers import open_audit
from acp_gateway.cli.gateway.known_names import check_agents
from acp_gateway.errors import UsageError

if TYPE_CHECKING:
    from acp_gateway.config.load import Config
    from acp_gateway.rules.asked import Asked
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
    settings = _load(config)
    found = _all_rules(settings)
    over = _over(settings, found)
    if as_json:
        print_json({"rules": [_as_json(rule) | {"over": rule.id in over} for rule in found]})
    elif not found:
        click.echo("There are no rules: a person is asked each time.", err=True)
    else:
        ends = ["over" if rule.id in over else _end_of(rule) or "-" for rule in found]
        rows: list[tuple[str, ...]] = [
            (rule.id, rule.author or "-", end, str(rule)) for rule, end in zip(found, ends, strict=True)
        ]
        print_table(("ID", "AUTHOR", "UNTIL", "RULE"), rows)


@rules.command(
    "try",
    context_settings={"ignore_unknown_options": True},
    epilog=examples("acp-gateway rules try -- git push", "acp-gateway rules try --json 'pytest; ls'"),
)
@click.option("--agent", metavar="NAME", help="Agent that asks. Default: the default agent.")
@click.option("--workspace", metavar="NAME", help="Workspace of the session. Default: none that has a name.")
@click.option("--identity", metavar="NAME", help="Owner of the session. Default: the gateway's own user.")
@click.option("--folder", metavar="DIR", type=click.Path(path_type=Path), help="Folder of the session. Default: this.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@config_option
@json_option
def try_command(
    command: tuple[str, ...],
    agent: str | None,
    workspace: str | None,
    identity: str | None,
    folder: Path | None,
    config: Path | None,
    *,
    as_json: bool,
) -> None:
    """Say what the rules decide if an agent asks for COMMAND. Nothing is run.

    COMMAND is one text as an agent gives it to a shell, or several words.
    """
    from acp_gateway.rules.asked import read_asked
    from acp_gateway.rules.deciding import Place, decide
    from acp_gateway.security.token_store import default_identity

    settings = _load(config)
    if agent is not None:
        check_agents(settings, (agent,))
    cwd = str(folder.absolute() if folder is not None else current_folder())
    owner = identity or default_identity(settings.gateway.state_dir)
    text = command[0] if len(command) == 1 else shlex.join(command)
    asked = read_asked({"kind": "execute", "rawInput": {"command": text}}, cwd)
    place = Place(agent or settings.default_agent, "", owner, workspace, cwd)
    over = _over(settings, _all_rules(settings))
    found = [rule for rule in _all_rules(settings) if rule.id not in over]
    verdict = decide(found, asked, place, int(time.time() * 1000))
    why = _why_asked(found, asked) if verdict is None else ""
    if as_json:
        rule = None if verdict is None else _as_json(verdict.rule)
        print_json({"decision": "ask" if verdict is None else verdict.decision, "rule": rule, "why": why or None})
    elif verdict is None:
        print_line(f"ask: {why}")
    else:
        doubt = "" if verdict.decision == verdict.rule.decision else "this may be what is meant "
        print_line(f"{verdict.decision}: {doubt}by {verdict.rule.id}, {verdict.rule}")


@rules.command("remove", epilog=examples("acp-gateway rules remove rule-7"))
@click.argument("name", metavar="ID")
@config_option
@json_option
def remove_rule(name: str, config: Path | None, *, as_json: bool) -> None:
    """Remove a rule that was written from a question; it counts from the next request on."""
    from acp_gateway.gateway.events.audit import entry_of_rule
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
        print_json(_as_json(removed))
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


def _why_asked(found: "Sequence[Rule]", asked: "Asked") -> str:
    """Return why no rule decides a command."""
    words = asked.words
    if words is None:
        return "this is not one plain command, which rules can read"
    for rule in found:
        if rule.command is not None and rule.command.matches(words):
            unnamed = [words[at] for at in sorted(asked.named) if at >= len(rule.command.words)]
            if unnamed:
                word = shlex.quote(unnamed[0])
                why = "may run another program, read other settings or lead out of the folder"
                return f"{rule.id} does not name {word}, which {why}"
    return "no rule is for it"


def _end_of(rule: "Rule") -> str | None:
    """Return the time at which a rule ends, in UTC; None if it has no end."""
    if rule.until is None:
        return None
    return datetime.fromtimestamp(rule.until / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_json(rule: "Rule") -> dict[str, object]:
    command = None if rule.command is None else str(rule.command)
    parts = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    return parts | {"command": command, "until": _end_of(rule)}
