"""Searches this machine for agents: on PATH, and in the folders where installers put programs.

A shell that a user logs in with often has more folders on its PATH than a service or a command over ssh: those of nvm,
of bun, of npm's prefix. So each agent that is found has the PATH to start it with.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from acp_gateway.config.agents.known_agents import KNOWN, PLACES, AcpAgent, Adapted, program_of
from acp_gateway.errors import ConfigError

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class FoundAgent:
    """An agent that can be started."""

    name: str
    """Its name in the configuration."""
    command: tuple[str, ...]
    """The program and its arguments."""
    search_path: str | None
    """The PATH on which the program is found; None for the gateway's."""
    login: str | None = None
    """The command that logs it in, where that is known."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables."""

    @property
    def env(self) -> dict[str, str]:
        """All variables."""
        return {**({"PATH": self.search_path} if self.search_path is not None else {}), **self.variables}


@dataclass(frozen=True, slots=True)
class Search:
    """The agents of this machine, and programs that lack an adapter."""

    agents: tuple[FoundAgent, ...]
    """The agents, the preferred one first, each name once."""
    hints: tuple[str, ...]
    """A line for each program that needs an adapter that is not installed."""


def find_agents(search_path: str, home: Path) -> Search:
    """Search for the programs of the table on PATH, then in the usual folders of an installation."""
    places = _places(home)
    agents: dict[str, FoundAgent] = {}
    hints = []
    for program, known in KNOWN.items():
        found_on = _find(program, search_path, places)
        if found_on is None:
            continue
        if isinstance(known, AcpAgent):
            found = FoundAgent(known.name, (program, *known.arguments[0]), found_on, known.login)
            agents.setdefault(known.name, found)
        elif all(_find(adapter, search_path, places) is None for adapter in known.by):
            hints.append(_explain_adapter(program, known))
    return Search(tuple(agents.values()), tuple(hints))


def find_command(command: Sequence[str], search_path: str, home: Path, cwd: Path) -> FoundAgent:
    """Return the agent that a command starts, under the name of its program.

    Its program is searched for as `find_agents` does, or from `cwd` if it has a slash. Raises `ConfigError` if it is
    not found.
    """
    program = command[0]
    found_on: str | None = search_path
    if "/" in program:
        if shutil.which(str(cwd / program)) is None:
            raise ConfigError(f"there is no program {program} that can be executed")
    else:
        found_on = _find(program, search_path, _places(home))
    if found_on is None:
        raise ConfigError(f"the program {program} is not found on PATH ({search_path}): name it by its whole path")
    name, rest = program_of(command)
    known = KNOWN.get(name)
    if isinstance(known, AcpAgent):
        return FoundAgent(known.name, tuple(command), found_on, known.login)
    # Of an interpreter the script's name says more.
    scripts = [Path(word).stem for word in rest if not word.startswith("-") and word.endswith((".py", ".js", ".sh"))]
    return FoundAgent(_NO_NAME.sub("-", (scripts or [name])[0]).strip("-")[:64] or "agent", tuple(command), found_on)


def explain_missing(program: str, search_path: str, home: str | None, section: str) -> str:
    """Return where a program was searched for that is not found, where it is instead, and the remedy.

    Args:
        program: its name.
        search_path: the PATH that was searched.
        home: the home folder of the agent's user; None if that is unknown.
        section: the section of the configuration that names the program.
    """
    for place in [] if home is None else _places(Path(home)):
        if shutil.which(program, path=place) is not None:
            remedy = f'in [{section}] write env = {{ PATH = "{place}:…" }}, with all folders that it needs'
            return f"on PATH ({search_path}), but in {place}: {remedy}"
    return f"on PATH ({search_path}), which a service has shorter: install it, or name it by its absolute path"


def _find(program: str, search_path: str, places: Sequence[str]) -> str | None:
    """Return the PATH on which a program is found: the given one, or with one more folder in front; else None."""
    if shutil.which(program, path=search_path) is not None:
        return search_path
    for place in places:
        if shutil.which(program, path=place) is not None:
            # In front, because the program's interpreter is often beside it, in another version than elsewhere.
            return f"{place}{os.pathsep}{search_path}"
    return None


def _places(home: Path) -> list[str]:
    """Return the folders of the table that exist; of a pattern, the newest version."""
    found = []
    for place in PLACES:
        path = str(home / place.removeprefix("~/")) if place.startswith("~/") else place
        before, star, behind = path.partition("*")
        if star:
            folder = Path(before)
            try:
                versions = sorted(folder.iterdir(), key=lambda each: _numbers(each.name), reverse=True)
            except OSError:
                continue
            path = next((str(each) + behind for each in versions if os.path.isdir(str(each) + behind)), path)
        if os.path.isdir(path):
            found.append(path)
    return found


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall("[0-9]+", name)]


def _explain_adapter(program: str, known: Adapted) -> str:
    adapter = KNOWN[known.by[0]]
    install = adapter.install if isinstance(adapter, AcpAgent) else None
    how = f": {install}" if install else ""
    return f"{program} is here, but speaks ACP only through {known.by[0]}, which is not installed{how}"
