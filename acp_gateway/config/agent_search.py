"""Searches this machine for agents: on PATH, and in the folders where installers put programs.

A shell that a user logs in with often has more folders on its PATH than a service or a command over ssh: those of nvm,
of bun, of npm's prefix. So each agent that is found has the PATH to start it with.
"""

import difflib
import json
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from acp_gateway.errors import ConfigError


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
    scope: str | None = None
    """The scope that it needs; None if any will do."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """A program that does not speak ACP, and its adapters that do."""

    by: tuple[str, ...]
    """Commands of the adapters, the one to name first."""


def _read_agent(program: str, table: Mapping[str, Any]) -> AcpAgent | Adapted:
    if "adapters" in table:
        return Adapted(tuple(table["adapters"]))
    arguments = tuple(tuple(words) for words in table["arguments"])
    packages = table.get("packages")
    return AcpAgent(
        arguments,
        table.get("name", program),
        table.get("login"),
        f"npm install -g {packages[0]}" if packages else table.get("install"),
        tuple(table.get("folders", ())),
        table.get("scope"),
    )


_TABLE: Final = tomllib.loads(Path(__file__).with_name("known_agents.toml").read_text(encoding="utf-8"))

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
        install = _installation(known)
        return f"{name} does not speak ACP by itself: use {others}{f' ({install})' if install else ''}"
    if known is not None:
        if any(_are_among(wanted, arguments) for wanted in known.arguments):
            return None
        return f"{name} is an ACP agent with: {shlex.join([*spelling, *known.arguments[0]])}"
    bare = all(argument.startswith("-") for argument in arguments)
    if name in SHELLS and bare:
        return f"{name} is a shell, not an agent: name the agent's program, such as opencode acp"
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


def needed_scope(command: Sequence[str]) -> str | None:
    """Return the scope that the agent of a command needs; None if any will do, and for an agent that is not known."""
    known = KNOWN.get(_program(command)[0])
    return known.scope if isinstance(known, AcpAgent) else None


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


_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")

_SCRIPTS: Final = (".py", ".js", ".mjs", ".cjs", ".sh")
"""Endings of scripts."""

_SAYS_LITTLE: Final = frozenset(
    {"agent", "acp", "app", "cli", "index", "main", "run", "server", "start", "__main__"}
    | {"bin", ".bin", "build", "debug", "dist", "lib", "out", "release", "scripts", "src", "target", "venv", ".venv"}
)
"""Names of programs, and of folders around them, that many have."""

_OF_MACHINE: Final = frozenset({"", "home", "local", "opt", "root", "srv", "tmp", "usr", "var"})
"""Folders around programs of many kinds."""


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
    mistake = explain_words(command, cwd)
    if mistake is not None:
        raise ConfigError(mistake)
    found_on: str | None = search_path
    name, rest = program_of(command)
    known = KNOWN.get(name)
    if "/" in program:
        if shutil.which(str(cwd / program)) is None:
            raise ConfigError(explain_path(str(cwd / program)))
    else:
        found_on = _find(program, search_path, _places(home))
    if found_on is None:
        raise ConfigError(_explain_absent(program, known, search_path))
    advice = advise(command)
    # A program of one's own may have such a name too, and an agent may have learnt other arguments.
    if advice is not None and "/" not in program and not isinstance(known, AcpAgent):
        raise ConfigError(advice)
    if isinstance(known, AcpAgent):
        return FoundAgent(known.name, tuple(command), found_on, known.login)
    # Of an interpreter the script's name says more.
    scripts = [word for word in rest if not word.startswith("-") and word.endswith(_SCRIPTS)]
    name = _name_of(scripts[0] if scripts else program if name == os.path.basename(program) else name, cwd, home)
    return FoundAgent(_NO_NAME.sub("-", name).strip("-.")[:64] or "agent", tuple(command), found_on)


def _name_of(program: str, cwd: Path, home: Path) -> str:
    """Return the name of a program or a script, else that of the folder around it which says more than `dist/index`."""
    name = program
    for ending in _SCRIPTS:
        name = name.removesuffix(ending)
    name = os.path.basename(name) or os.path.basename(program)
    if "/" not in program and name == program:
        return name
    place = Path(os.path.normpath(cwd / program)).with_name(name)
    while place.name in _SAYS_LITTLE and place != home:
        place = place.parent
    return name if place.name in _OF_MACHINE or place == home else place.name


def explain_words(command: Sequence[str], cwd: Path | None) -> str | None:
    """Return what is wrong with the words of a command as they are passed to the program; None if no fault is known.

    `cwd` is where the program is started, None if that is not known.
    """
    program = command[0]
    if len(command) == 1 and len(words := program.split()) > 1 and not os.path.exists((cwd or Path("/")) / program):
        return f"{program!r:.200} is one word: write {shlex.join(words)}, in a configuration {json.dumps(words):.200}"
    for word in command:
        if re.match(r"(?:~|\$HOME|\$\{HOME\})(?:/|$)", word):
            return f"{word!r:.200} is passed as it is, since no shell reads it: write the whole path"
    name, rest = program_of(command)
    if re.sub(r"[0-9.]+$", "", name) in INTERPRETERS | SHELLS and rest and rest[0].endswith(_SCRIPTS):
        script = (cwd or Path()) / rest[0]
        if script.is_absolute() and not os.path.exists(script):  # Unlike the method, also in a folder of another user.
            return f"there is no file {script}"
    return None


def explain_path(program: str) -> str:
    """Return why a program that is named by its path can't be executed."""
    if os.path.isdir(program):
        return f"{program} is a folder, not a program"
    if os.path.lexists(program):
        return f"{program} can't be executed: chmod +x {shlex.quote(program)}, or name its interpreter before it"
    return f"there is no program {program}"


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
    return f"on PATH ({search_path}); that of a service is shorter: install it, or name it by its absolute path"


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
    install = _installation(known)
    how = f": {install}" if install else ""
    return f"{program} is here, but speaks ACP only through {known.by[0]}, which is not installed{how}"


def _installation(known: AcpAgent | Adapted) -> str | None:
    """Return the command that installs an agent, or the first adapter of a program; None if it is unknown."""
    agent = KNOWN[known.by[0]] if isinstance(known, Adapted) else known
    return agent.install if isinstance(agent, AcpAgent) else None


def _explain_absent(program: str, known: AcpAgent | Adapted | None, search_path: str) -> str:
    """Return the remedy for a program that is not installed, as far as the table knows it."""
    install = None if known is None else _installation(known)
    if isinstance(known, Adapted):
        instead = f"use {known.by[0]} instead{f': {install}' if install else ''}"
        return f"{program} is not installed, and does not speak ACP by itself: {instead}"
    if known is not None:
        how = install or "`acp-gateway agents list --available` lists what `agents add` installs"
        return f"{program} is not installed: {how}"
    close = difflib.get_close_matches(program, list(KNOWN), n=1, cutoff=0.8)
    hint = f'did you mean "{close[0]}"?' if close else "install it, or name it by its whole path"
    return f"the program {program!r:.80} is not found on PATH ({search_path}): {hint}"
