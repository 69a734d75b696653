"""Tells what rules decide if an agent asks for a command, and why; nothing is run."""

import dataclasses
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from acp_gateway.rules.asked import Asked, read_asked
from acp_gateway.rules.deciding import Place, decide, is_for_place
from acp_gateway.rules.rule import Decision, Rule


class Trial(NamedTuple):
    """A decision on a command, and the rule that makes it, if one does."""

    decision: Decision
    rule: Rule | None
    why: str
    """The reason in words."""

    def describe(self) -> dict[str, Any]:
        """Return it as members of an object of JSON."""
        return {**self._asdict(), "rule": None if self.rule is None else describe_rule(self.rule)}


def try_command(rules: Sequence[Rule], command: str, place: Place, now: int) -> Trial:
    """Return what the rules that are in force at `now`, in milliseconds since 1970, decide on a text for a shell."""
    asked = read_asked({"kind": "execute", "rawInput": {"command": command}}, place.cwd)
    verdict = decide(rules, asked, place, now)
    if verdict is None:
        return Trial("ask", None, _why_asked([rule for rule in rules if is_for_place(rule, place)], asked))
    doubt = "" if verdict.decision == verdict.rule.decision else "this may be what is meant "
    return Trial(verdict.decision, verdict.rule, f"{doubt}by {verdict.rule.id}, {verdict.rule}")


def _why_asked(rules: Sequence[Rule], asked: Asked) -> str:
    """Return why no rule decides a command."""
    words = asked.words
    if words is None:
        return "this is not one plain command, which rules can read"
    for rule in rules:
        if rule.command is not None and rule.command.matches(words):
            unnamed = [words[at] for at in sorted(asked.named) if at >= len(rule.command.words)]
            if unnamed:
                why = "may run another program, read other settings or lead out of the folder"
                return f"{rule.id} does not name {shlex.quote(unnamed[0])}, which {why}"
    return "no rule is for it"


def describe_rule(rule: Rule) -> dict[str, Any]:
    """Return a rule as members of an object of JSON."""
    command = None if rule.command is None else str(rule.command)
    parts = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    return parts | {"command": command, "until": end_of(rule)}


def end_of(rule: Rule) -> str | None:
    """Return the time at which a rule ends, in UTC; None if it has no end."""
    if rule.until is None:
        return None
    return datetime.fromtimestamp(rule.until / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
