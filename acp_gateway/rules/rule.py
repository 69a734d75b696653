"""A rule for permissions: what it is for, what it decides, and until when."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from acp_gateway.rules.other_programs import find_other_programs
from acp_gateway.rules.words import read_words, write_words

Decision = Literal["allow", "deny", "ask"]

ANY: Final = "…"
"""Last word of a pattern that stands for any further words; `...` is the same."""

FILE_KINDS: Final = ("read", "edit", "delete", "move", "search")
"""Kinds of tools that a path is for."""

KINDS: Final = (*FILE_KINDS, "execute", "think", "fetch", "switch_mode", "other")
"""Kinds of tools of the protocol."""

_HOST: Final = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")


class BadRule(ValueError):
    """Parts of a rule that do not fit, with the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """The words of the commands that a rule is for."""

    words: tuple[str, ...]
    is_open: bool = False
    """True if any further words may follow."""

    def __str__(self) -> str:
        return write_words(self.words) + (f" {ANY}" if self.is_open else "")

    @classmethod
    def parse(cls, text: str) -> "CommandPattern":
        """Read a pattern: words as a shell reads them, and perhaps `…` at the end. Raises `BadRule`."""
        fixed, _, last = text.strip(" ").rpartition(" ")
        is_open = last in (ANY, "...")
        words = read_words(fixed if is_open else text)
        if words is None:
            raise BadRule(
                "expected the words of one plain command, and … for any further words, such as pytest …: without"
                " variables, pipes, redirections and wildcards"
            )
        return cls(words, is_open)

    def matches(self, words: Sequence[str]) -> bool:
        """Return True if the pattern is for a command with these words."""
        beginning = tuple(words[: len(self.words)])
        return beginning == self.words and (self.is_open or len(words) == len(self.words))

    def names(self, places: Iterable[int]) -> bool:
        """Return True if it has the words at these places of a command that it matches."""
        return max(places, default=-1) < len(self.words)

    def allows_any(self) -> bool:
        """Return True if the words name all that is run, whatever follows them."""
        return self.names(find_other_programs((*self.words, "any")))

    def may_mean(self, words: Sequence[str]) -> bool:
        """Return True if a command that it does not match may do by another way what it is for."""
        program = self.words[0].rpartition("/")[2].casefold()
        return program in " ".join(words).casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule; a part that is None is for everything."""

    id: str
    """Its name in lists, the audit and transcripts: `rules[0]` for the first one of the configuration."""
    decision: Decision
    author: str | None = None
    """The identity that has written it from a question; None for one of the configuration."""
    credential: str | None = None
    """Name of the credential by which that was, `token ID` or `certificate NAME`, and with which the rule ends; None
    for the gateway's own user."""
    agent: str | None = None
    workspace: str | None = None
    identity: str | None = None
    """Owner of the sessions."""
    project: str | None = None
    """Folder of the sessions: they work in it, or below it."""
    session: str | None = None
    """Name of the only session."""
    kind: str | None = None
    """Kind of the tool."""
    command: CommandPattern | None = None
    path: str | None = None
    """Absolute path of a folder: all files are in it or below it."""
    host: str | None = None
    """Host of an address; `*.example.org` is for all names below that one."""
    until: int | None = None
    """Time of its end, in milliseconds since 1970."""

    def __post_init__(self) -> None:
        for flaw in _flaws(self):
            raise BadRule(flaw)

    @property
    def subject(self) -> str:
        """The requests that it is for, in words."""
        if self.command is not None:
            return f"`{self.command}`"
        if self.path is not None:
            return f"to {self.kind or 'use'} files below {self.path}"
        if self.host is not None:
            return f"addresses of {self.host}"
        return "everything" if self.kind is None else f"the kind {self.kind}"

    def __str__(self) -> str:
        where = [f"agent {self.agent}"] if self.agent else []
        where += [f"workspace {self.workspace}"] if self.workspace else []
        where += [f"sessions of {self.identity}"] if self.identity else []
        where += [f"sessions in {self.project}"] if self.project else []
        where += ["this session"] if self.session else []
        return f"{self.decision} {self.subject}" + (f" ({', '.join(where)})" if where else "")

    def is_over(self, now: int | None) -> bool:
        """Return True if its end has come, or if it has one and the time is unknown."""
        return self.until is not None and (now is None or now >= self.until)


def _flaws(rule: Rule) -> list[str]:
    """Return why the parts of a rule do not fit."""
    subjects = [name for name in ("command", "path", "host") if getattr(rule, name) is not None]
    kinds = {"command": ("execute",), "path": FILE_KINDS, "host": ("fetch",)}
    if len(subjects) > 1:
        return [f"{' and '.join(subjects)} are never asked for together: write a rule for each"]
    if rule.decision == "allow" and not subjects:
        return ["a rule that allows needs a command, a path or a host: the kind of a tool alone says too little"]
    for name in subjects:
        if rule.kind is not None and rule.kind not in kinds[name]:
            return [f"{name} is for the kind {' or '.join(kinds[name])}"]
    for name in ("path", "project"):
        folder = getattr(rule, name)
        if folder is not None and not is_plain_path(folder):
            return [f"{name} is an absolute path without . and .. in it"]
    if rule.host is not None and not _HOST.fullmatch(rule.host):
        return ["host is a name in lower case, such as example.org, or *.example.org for all below it, without port"]
    command = rule.command
    if rule.decision == "allow" and command is not None and command.is_open and not command.allows_any():
        why = "name the words that say what is run, as in git status …, or all words, without …"
        return [f"{command} would never match, because such a program can run others: {why}"]
    return []


def is_plain_path(path: str) -> bool:
    """Return True for an absolute path without empty, `.` and `..` steps."""
    steps = path.removesuffix("/").split("/")
    return steps[0] == "" and path.isprintable() and all(step not in ("", ".", "..") for step in steps[1:])


def is_below(path: str, folder: str) -> bool:
    """Return True for a plain path that is a folder or below it."""
    folder = folder.removesuffix("/")
    return path.removesuffix("/") == folder or path.startswith(f"{folder}/")
