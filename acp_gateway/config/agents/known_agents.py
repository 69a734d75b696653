"""Reads the table of programs that are often configured as agents, with the arguments that make them speak ACP.

Most coding agents speak ACP only with a certain argument, or through an adapter program. Without it they draw for a
terminal, or wait for one, and send nothing that a gateway understands. Error texts and `acp-gateway up` name the likely
command from `known_agents.toml`; it decides nothing.
"""

import os
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class AcpAgent:
    """A program that speaks ACP with certain arguments."""

    arguments: tuple[tuple[str, ...], ...]
    """Alternative arguments that make it speak ACP; the first is the newest and the one to name."""
    name: str
    """The name of the agent in a configuration."""
    login: str | None = None
    """The command that logs it in."""
    install: str | None = None
    """The command that installs it."""
    folders: tuple[str, ...] = ()
    """The files and folders of its own, with its settings, logins and sessions. A folder ends with a slash."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """A program that does not speak ACP, and its adapters that do."""

    by: tuple[str, ...]
    """Commands of the adapters, the one to name first."""


def _read_agent(program: str, table: Mapping[str, Any]) -> AcpAgent | Adapted:
    if "adapters" in table:
        return Adapted(tuple(table["adapters"]))
    arguments = tuple(tuple(words) for words in table["arguments"])
    return AcpAgent(
        arguments, table.get("name", program), table.get("login"), table.get("install"), tuple(table.get("folders", ()))
    )


_TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

KNOWN: Final[Mapping[str, AcpAgent | Adapted]] = {
    program: _read_agent(program, table) for program, table in _TABLE["agent"].items()
}
"""Agents by the name of the program, in the order in which they are preferred."""

PACKAGES: Final[Mapping[str, str]] = {
    package: program for program, table in _TABLE["agent"].items() for package in table.get("packages", ())
}
"""The same programs by what `npx` and its like fetch them as."""

PLACES: Final[tuple[str, ...]] = tuple(_TABLE["places"])
"""Folders besides PATH in which agents are installed, some of them as patterns."""

SHELLS: Final = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "nu", "pwsh", "sh", "tcsh", "zsh"})
"""Without a script they run the client's messages as commands."""

INTERPRETERS: Final = frozenset({"deno", "lua", "node", "perl", "php", "python", "ruby"})
"""Without a script they read the client's messages as a program, to its end."""

_RUNNERS: Final = frozenset({"bunx", "npx", "pnpx", "uvx"})
_VERSIONED: Final = re.compile(r"(?<=.)@[^/]*$")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def advise(command: Sequence[str]) -> str | None:
    """Explain why a command starts no ACP agent, and name the likely one; return None if no problem is known."""
    name, arguments, spelling = _program(command)
    known = KNOWN.get(name)
    if isinstance(known, Adapted):
        others = " or ".join(known.by)
        return f"{name} does not speak ACP by itself: use {others}"
    if known is not None:
        if any(_are_among(wanted, arguments) for wanted in known.arguments):
            return None
        return f"{name} is an ACP agent with: {shlex.join([*spelling, *known.arguments[0]])}"
    bare = all(argument.startswith("-") for argument in arguments)
    if name in SHELLS and bare:
        return f"{name} is a shell, not an agent"
    if re.sub(r"[0-9.]+$", "", name) in INTERPRETERS and bare and not {"-c", "-e", "-m"} & {*arguments}:
        return f"{name} is an interpreter, not an agent: name the agent's program behind it"
    return None


def guess(command: Sequence[str]) -> str:
    """Return the likely mistake in a command whose program does not respond."""
    words = advise(command)
    if words is not None:
        return words
    name = _program(command)[0]
    return f"is {name!r:.80} an ACP agent, and does it take an argument for that, such as acp or --acp?"


def program_of(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the name of the program that a command finally runs, that of a package too, and its arguments."""
    name, arguments, _ = _program(command)
    return name, arguments


def own_folders(command: Sequence[str]) -> tuple[str, ...]:
    """Return the files and folders of the agent that a command runs; none for an agent that is not known."""
    known = KNOWN.get(_program(command)[0])
    return known.folders if isinstance(known, AcpAgent) else ()


def _program(command: Sequence[str]) -> tuple[str, Sequence[str], list[str]]:
    """Return the name of the program that a command finally runs, its arguments, and the words that start it."""
    rest = [*command]
    if rest and os.path.basename(rest[0]) == "env":
        rest = rest[1:]
        while rest and _ASSIGNMENT.match(rest[0]):
            rest = rest[1:]
    if not rest:
        return "", [], []
    name = os.path.basename(rest[0]).removesuffix(".exe").removesuffix(".cmd")
    if name in _RUNNERS:
        for at, word in enumerate(rest[1:], 1):
            package = _VERSIONED.sub("", word)
            if package in PACKAGES or package in KNOWN:
                return PACKAGES.get(package, package), rest[at + 1 :], rest[: at + 1]
    return name, rest[1:], [name]


def _are_among(wanted: Sequence[str], arguments: Sequence[str]) -> bool:
    """Return whether the arguments contain these words in this order; an option may have a value behind `=`."""
    rest = iter(arguments)
    return all(any(_is(argument, word) for argument in rest) for word in wanted)


def _is(argument: str, word: str) -> bool:
    return argument == word or (word.startswith("--") and argument.startswith(f"{word}="))
