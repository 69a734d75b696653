"""Decides a permission request by rules, the first that is for it; and offers rules for one."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from acp_gateway.rules.asked import Asked
from acp_gateway.rules.rule import FILE_KINDS, KINDS, CommandPattern, Decision, Rule, is_below, is_plain_path

WIDEST: Final = 6
"""Maximum words of a command that a rule is offered with for any further ones: a person reads them at a glance."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a permission is asked for."""

    agent: str
    session: str
    """Name of the session."""
    identity: str
    """Its owner."""
    workspace: str | None
    cwd: str | None
    """Its folder."""


class Verdict(NamedTuple):
    """A decision, and the rule that made it."""

    decision: Decision
    rule: Rule


def decide(rules: Iterable[Rule], asked: Asked, place: Place, now: int | None) -> Verdict | None:
    """Return the verdict of the first rule that is for a request; None if there is none.

    A rule that allows is for what is certain alone. One that denies or asks is also for what may be meant by it: then
    a person is asked. `now` is the time in milliseconds since 1970; without it, rules with an end do not count.
    """
    for rule in rules:
        if rule.is_over(now) or not is_for_place(rule, place):
            continue
        certain = _is_for(rule, asked)
        if certain:
            return Verdict(rule.decision, rule)
        if certain is None and rule.decision != "allow":
            return Verdict("ask", rule)
    return None


def is_for_place(rule: Rule, place: Place) -> bool:
    """Return True if a rule is for the sessions of a place."""
    wanted = (rule.agent, place.agent), (rule.workspace, place.workspace), (rule.session, place.session)
    owners = (rule.identity, place.identity), (rule.author, place.identity)
    if any(want is not None and want != is_ for want, is_ in (*wanted, *owners)):
        return False
    if rule.project is None:
        return True
    return place.cwd is not None and is_plain_path(place.cwd) and is_below(place.cwd, rule.project)


def _is_for(rule: Rule, asked: Asked) -> bool | None:
    """Return True if a rule is for what is asked, False if it is not, None if it may be."""
    if rule.kind is not None and rule.kind != asked.kind:
        return False
    if rule.command is not None:
        return _is_for_command(rule, asked)
    if rule.path is not None:
        if asked.kind not in FILE_KINDS:
            return False if asked.kind in KINDS[:-1] else None
        below = [is_below(path, rule.path) for path in asked.paths]
        if rule.decision == "allow" or not below:
            return all(below) if below else None
        # What holds the folder may hold its files.
        return any(below) or (None if any(is_below(rule.path, path) for path in asked.paths) else False)
    if rule.host is not None:
        if asked.kind != "fetch":
            return False
        return None if asked.host is None else _is_host(asked.host, rule.host)
    return True


def _is_for_command(rule: Rule, asked: Asked) -> bool | None:
    assert rule.command is not None
    if asked.kind != "execute":
        return False
    if asked.words is None:
        return None
    if rule.command.matches(asked.words):
        return rule.decision != "allow" or rule.command.names(asked.named)
    return None if rule.command.may_mean(asked.words) else False


def _is_host(host: str, wanted: str) -> bool:
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


def offer(asked: Asked, place: Place) -> list[Rule]:
    """Return the rules that may be written from a request, the widest first, for the sessions of the same agent in the
    same folder; none if it is not certain what is asked, or where."""
    common = Rule(id="", decision="ask", agent=place.agent, identity=place.identity, project=place.cwd)
    if place.cwd is None or not is_plain_path(place.cwd):
        return []
    if asked.words is not None:
        numbers = range(1, min(len(asked.words), WIDEST) + 1)
        patterns = (CommandPattern(asked.words[:number], True) for number in numbers)
        widest = next((it for it in patterns if it.allows_any()), None)
        fitting = [CommandPattern(asked.words)]
        if widest is not None and widest.names(asked.named):
            fitting.insert(0, widest)
        return [replace(common, decision="allow", command=it) for it in fitting]
    if asked.paths and asked.kind in FILE_KINDS and all(is_below(path, place.cwd) for path in asked.paths):
        return [replace(common, decision="allow", kind=asked.kind, path=place.cwd)]
    return [replace(common, decision="allow", host=asked.host)] if asked.host is not None else []
