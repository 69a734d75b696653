"""Rules for permissions that people have written from questions, in `state_dir/rules.json`, the first written first."""

import time
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from acp_gateway.errors import UsageError
from acp_gateway.rules.rule import BadRule, CommandPattern, Decision, Rule
from acp_gateway.security.private_file import PrivateFile

MAX_RULES: Final = 1000
"""Maximum rules in all: each permission request is compared with them, at some microseconds each."""

RULES_PER_IDENTITY: Final = 100
"""Maximum rules of one identity; a person reads through so many at most."""

TEXT_SIZE: Final = 1000
"""Maximum characters of a rule's command or path, so that the file has a megabyte at most."""

LOCK_ATTEMPTS: Final = 50
"""Attempts to take the lock of the file."""

SESSION_DAYS: Final = 30
"""Days after which a rule for one session ends: most sessions are over by then, and their rules count."""

FILE_NAME: Final = "rules.json"

_VERSION: Final = 1

_Text = Annotated[str, msgspec.Meta(max_length=2 * TEXT_SIZE)]


def has_ended(rule: Rule, tokens: Container[str], certificates: Container[str]) -> bool:
    """Return True unless the credential by which a rule was written is one of the valid ones, by ids and names."""
    kind, _, name = (rule.credential or "").partition(" ")
    return (kind == "token" and name not in tokens) or (kind == "certificate" and name not in certificates)


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule, with its command as text."""

    id: _Text
    decision: Decision
    author: _Text
    credential: _Text | None = None
    agent: _Text | None = None
    workspace: _Text | None = None
    identity: _Text | None = None
    project: _Text | None = None
    session: _Text | None = None
    kind: _Text | None = None
    command: _Text | None = None
    path: _Text | None = None
    host: _Text | None = None
    until: int | None = None

    def rule(self) -> Rule:
        """Return the rule. Raises `BadRule`."""
        parts = {name: getattr(self, name) for name in self.__struct_fields__}
        parts["command"] = None if self.command is None else CommandPattern.parse(self.command)
        return Rule(**parts)


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1] = _VERSION
    next: int = 1
    """Number of the next rule: none is used again."""
    rules: Annotated[tuple[_Stored, ...], msgspec.Meta(max_length=MAX_RULES)] = ()


class RulesFile:
    """The written rules of one gateway. Any number of these, in any number of processes, may share a `state_dir`.

    Args:
        state_dir: the folder of the file.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time) -> None:
        what = "list of rules", "have rules written again"
        self._file = PrivateFile[_Content](state_dir / FILE_NAME, _VERSION, _decode, _Content(), what)
        self._now = now
        # The content of the file when its rules were last made.
        self._read = _Content()
        self._rules: tuple[Rule, ...] = ()

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules. Raises `ConfigError` if the file cannot be read or trusted."""
        content = self._file.content()
        if content is not self._read:
            self._read, self._rules = content, tuple(each.rule() for each in content.rules)
        return self._rules

    def add(self, rule: Rule, ended: Container[str] = ()) -> Rule:
        """Write a rule at the end, under an id of its own, and return it; or the same one that is there already.

        Those that are over are removed, and those of the ids in `ended`. Raises `ConfigError`, and `UsageError` for one
        too many or too long.
        """
        with self._file.writing(LOCK_ATTEMPTS):
            content, now = self._file.content(), int(self._now() * 1000)
            kept = [each for each in self.rules() if not each.is_over(now) and each.id not in ended]
            for each in kept:
                if replace(each, id=rule.id, until=rule.until) == rule:
                    return each
            _check(rule, kept)
            if rule.session is not None and rule.until is None:
                rule = replace(rule, until=now + SESSION_DAYS * 24 * 3600 * 1000)
            added = replace(rule, id=f"rule-{content.next}")
            self._write(content.next + 1, [*kept, added])
        return added

    def remove(self, name: str) -> Rule | None:
        """Remove the rule of an id, and return it; None if there is none. Raises `ConfigError`."""
        with self._file.writing(LOCK_ATTEMPTS):
            content, rules = self._file.content(), self.rules()
            removed = next((rule for rule in rules if rule.id == name), None)
            if removed is not None:
                self._write(content.next, [rule for rule in rules if rule is not removed])
        return removed

    def _write(self, following: int, rules: Iterable[Rule]) -> None:
        self._file.write(_Content(next=following, rules=tuple(map(_stored, rules))))


def _check(rule: Rule, others: list[Rule]) -> None:
    """Raise `UsageError` for a rule too many or too long."""
    if max(len(text) for text in (str(rule.command), str(rule.path), str(rule.project), str(rule.host))) > TEXT_SIZE:
        raise UsageError(f"a rule has at most {TEXT_SIZE} characters of a command or a path")
    own = sum(other.author == rule.author for other in others)
    if own >= RULES_PER_IDENTITY or len(others) >= MAX_RULES:
        most = f"{RULES_PER_IDENTITY} rules of one identity" if own >= RULES_PER_IDENTITY else f"{MAX_RULES} rules"
        raise UsageError(f"there are {most} already: remove some, by `acp-gateway rules remove`")


def _stored(rule: Rule) -> _Stored:
    parts = {name: getattr(rule, name) for name in _Stored.__struct_fields__}
    return _Stored(**parts | {"command": None if rule.command is None else str(rule.command)})


def _decode(content: bytes) -> _Content:
    """Read the file. Raises `DecodeError`, also for a wrong rule."""
    decoded = msgspec.json.decode(content, type=_Content)
    try:
        for each in decoded.rules:
            each.rule()
    except BadRule as flaw:
        raise msgspec.DecodeError(str(flaw)) from None
    return decoded
