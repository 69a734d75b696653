"""Changes of the configuration by the group `agents`, with the files and packages that an agent needs."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from acp_gateway.cli.common import print_line, print_table, waiting_for
from acp_gateway.cli.gateway.status import reload_as_json
from acp_gateway.errors import ConfigError, GatewayError, Unreachable, UsageError
from acp_gateway.printable import printable

if TYPE_CHECKING:
    from acp_gateway.config.agent_registry import Choice, RegistryAgent
    from acp_gateway.config.editing.section_writer import Keys, Value
    from acp_gateway.config.editing.toml_file import TomlFile
    from acp_gateway.config.load import AgentSection
    from acp_gateway.gateway.agent.download import Report
    from acp_gateway.gateway.agent.installed import Installed, InstalledAgents

RELOAD_TIME: Final = 15.0
"""Seconds to wait for a running gateway that reads its configuration again."""

FETCH_TIME: Final = 900.0
"""Seconds for `npx` or `uvx` to fetch a package: a large one on a slow line."""


class Configuration:
    """The configuration file of the gateway, and the agents that were added to it.

    Before there is a file, agents are added to the state folder alone, where `up` finds them when it makes the file.
    """

    store: "InstalledAgents"
    agents: "Mapping[str, AgentSection]"

    def __init__(self, path: Path | None) -> None:
        from acp_gateway.config.directories import state_home
        from acp_gateway.config.editing.toml_file import TomlFile
        from acp_gateway.config.load import load_config
        from acp_gateway.gateway.agent.installed import InstalledAgents
        from acp_gateway.gateway.storage.state_folder import check_state_folder

        self.path = find_config(path)
        if self.path is None:
            self.store, self.agents = stored_agents()
            check_state_folder(state_home())
            return
        settings = load_config(self.path)
        self._state_dir = settings.gateway.state_dir
        check_state_folder(self._state_dir)
        _check_user(self._state_dir)
        if not os.access(self.path.parent, os.W_OK):
            raise ConfigError(f"can't be changed: you may not write into {self.path.parent}", file=str(self.path))
        self.agents = settings.agents
        self._workspaces = settings.workspaces
        self._has_nodes = bool(settings.nodes or settings.cluster)
        self.default = settings.default_agent
        self.store = InstalledAgents(self._state_dir)
        self._file: TomlFile = TomlFile.read(self.path)

    def change(self, name: str, command: "tuple[str, ...]", env: Mapping[str, str]) -> str:
        """Return the text with an agent added, or with another command of it. Raises `ConfigError`."""
        from acp_gateway.config.agent_search import needed_scope

        if self.path is None:
            return ""
        file = self._file
        if name not in self.agents and len(self.agents) == 1 and "default_agent" not in file.data.get("gateway", {}):
            # With several, one must be the default: the one that it was.
            file = self._changed(file, ("gateway",), {"default_agent": self.default})
        options: dict[str, Value | None] = {"command": command, "env": env or None}
        if name not in self.agents:
            options |= {"fence": "on" if self._can_fence() else None, "scope": needed_scope(command)}
        return self._check(self._changed(file, ("agents", name), options))

    def _can_fence(self) -> bool:
        from acp_gateway.fence.start import can_fence

        roots = [workspace.root for workspace in self._workspaces.values()]
        return bool(roots) and all(can_fence(root, self._state_dir) for root in roots)

    def without(self, name: str) -> str:
        """Return the text without an agent. Raises `ConfigError`."""
        from acp_gateway.config.editing.section_writer import remove_section

        if self.path is None:
            return ""
        file = self._file
        if len(self.agents) == 1 and not self._has_nodes:
            raise UsageError(f"{name!r} is the only agent, and the gateway needs one: add another first")
        if self.default == name:
            if len(self.agents) > 2:
                raise UsageError(f"{name!r} is the default: set another default_agent in {self.path} first")
            file = self._changed(file, ("gateway",), {"default_agent": None})
        text = remove_section(file, ("agents", name))
        return self._check(self._parse(text))

    def _changed(self, file: "TomlFile", keys: "Keys", options: "Mapping[str, Value | None]") -> "TomlFile":
        from acp_gateway.config.editing.section_writer import change_section

        return self._parse(change_section(file, keys, options))

    def _parse(self, text: str) -> "TomlFile":
        import tomllib

        from acp_gateway.config.editing.toml_file import TomlFile

        assert self.path is not None
        return TomlFile(self.path, tomllib.loads(text), text)

    def _check(self, file: "TomlFile") -> str:
        from acp_gateway.config.load import collect

        problems = collect(file)[1]
        if problems:
            raise problems[0]
        return file.source

    def write(self, text: str) -> None:
        """Replace the file, with its owner and mode."""
        from acp_gateway.config.editing.section_writer import replace_file

        if self.path is not None:
            replace_file(self.path, text, self.path.stat())

    def reload(self) -> dict[str, list[str]] | None:
        """Have a running gateway use the changed file, and print and return what it says; None if none runs."""
        import trio

        from acp_gateway.client.local import LocalGateway

        if self.path is None:
            return None
        gateway = LocalGateway(self._state_dir)
        try:
            gateway.check_running()
        except Unreachable:
            return None
        try:
            with waiting_for("the gateway"):
                done = trio.run(partial(gateway.reload, time_limit=RELOAD_TIME))
        except GatewayError as error:
            click.echo(f"The gateway that runs does not use it yet: {printable(str(error), size=1000)}", err=True)
            return reload_as_json({"problems": [str(error)]})
        for line in (*done.get("changed", ()), *done.get("problems", ())):
            print_line(line)
        return reload_as_json(done)


def find_config(path: Path | None) -> Path | None:
    """Return the configuration that is named, else the one that there is; None before `up` has made one."""
    from acp_gateway.config.load import default_config_path

    try:
        return (path or default_config_path()).resolve()
    except ConfigError:
        return None


def stored_agents() -> "tuple[InstalledAgents, Mapping[str, AgentSection]]":
    """Return the agents that were added before there was a configuration, as they will be in one."""
    from acp_gateway.config.directories import state_home
    from acp_gateway.config.load import AgentSection
    from acp_gateway.gateway.agent.installed import InstalledAgents

    store = InstalledAgents(state_home())
    found = {name: installed for name in store.names() if (installed := store.read(name))}
    return store, {
        name: AgentSection(command=tuple(installed.command), env=installed.variables)
        for name, installed in found.items()
    }


def _check_user(state_dir: Path) -> None:
    """Raise `ConfigError` for root in place of the gateway's user, who could not start what root has unpacked."""
    try:
        owner = state_dir.stat().st_uid
    except OSError:
        return
    if os.geteuid() == 0 and owner != 0:
        raise ConfigError(f"{state_dir} belongs to the user with the id {owner}: run this as that user")


def install_agent(
    file: Configuration,
    name: str,
    agent_id: str,
    source: str,
    choice: "Choice",
    limits: tuple[int, int],
    *,
    fetch: bool,
) -> "Installed":
    """Download or fetch an agent, write it into the configuration, and print and return what was written."""
    with (
        _progress(choice, f"Downloading {agent_id} {choice.version}") as report,
        file.store.prepare(name, agent_id, source, choice, limits, report) as (installed, keep),
    ):
        if fetch:
            _fetch(choice)
        text = file.change(name, tuple(installed.command), choice.env)
        keep()
        file.write(text)
    if file.path is not None:
        print_line(f"{file.path}: [agents.{name}]")
    print_line(f"command: {shlex.join(installed.command)}")
    for variable, value in installed.variables.items():
        print_line(f"env: {variable}={value}")
    if installed.archive_sha256:
        compared = "as the registry says" if choice.sha256 else "noted, the registry has none"
        print_line(f"SHA-256: {installed.archive_sha256} ({compared})")
    return installed


def _fetch(choice: "Choice") -> None:
    """Have the runner fetch a package, by running nothing in its environment. Raises `ConfigError`."""
    if choice.package is None:
        return
    nothing = {
        "npx": ["npx", "--yes", f"--package={choice.package}", "--", "node", "-e", ""],
        "uvx": ["uvx", f"--from={choice.package}", "python", "-c", ""],
    }[choice.kind]
    click.echo(f"{choice.kind} fetches {choice.package}; this may take a minute.", err=True)
    try:
        done = subprocess.run(
            nothing,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_TIME,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise ConfigError(f"{choice.kind}: {error.strerror}; --no-fetch leaves this out") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{choice.kind}: not finished after {FETCH_TIME:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConfigError(f"{choice.kind} can't fetch {choice.package}: {printable(last, size=300)}")


@contextmanager
def _progress(choice: "Choice", label: str) -> "Iterator[Report]":
    """Show the progress of a download on stderr: a bar in a terminal, else only the label."""
    if choice.archive is None:
        yield lambda _come, _whole: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr, show_eta=False) as bar:

        def report(come: int, whole: int | None) -> None:
            if whole:
                bar.length = whole
                bar.update(come - bar.pos)

        yield report


MAX_DOWNLOAD: Final = 512 * 1024 * 1024
"""Default maximum bytes of a download."""

MAX_UNPACKED: Final = 2048 * 1024 * 1024
"""Default maximum bytes of the files of an archive."""

DESCRIPTION_SIZE: Final = 60
"""Maximum characters of a description that is offered."""


def platform_here() -> str:
    """Return the registry's name of this platform."""
    from acp_gateway.config.agent_registry import platform_name

    return platform_name(sys.platform, platform.machine())


def runners_here() -> list[str]:
    """Return those of `npx` and `uvx` that this machine has."""
    return [name for name in ("npx", "uvx") if shutil.which(name)]


def read_agents(registry: str | None) -> "tuple[str, dict[str, RegistryAgent]]":
    """Return the source and the entries of a registry. Raises `ConfigError` and `Unreachable`, with another way."""
    from acp_gateway.config.agent_registry import PUBLIC_REGISTRY, read_registry
    from acp_gateway.gateway.agent.download import read_document

    source = registry or PUBLIC_REGISTRY
    if "://" not in source:
        source = os.path.abspath(source)
    try:
        with waiting_for(source):
            content = read_document(source)
    except Unreachable as error:
        raise Unreachable(
            f"{error}. Without the registry: install an agent by its own installer, then `acp-gateway up` finds it, or "
            "name its command, `acp-gateway up -- COMMAND` (beside a configuration `up --add -- COMMAND`); or give "
            "--registry with a file"
        ) from None
    return source, read_registry(content, source)


def find_agent(agent_id: str, source: str, entries: "Mapping[str, RegistryAgent]") -> "RegistryAgent":
    """Return an entry. Raises `ConfigError`, with the one that may be meant."""
    from acp_gateway.config.editing.toml_file import suggestion

    if agent_id not in entries:
        hint = suggestion(agent_id, entries) or "; `acp-gateway agents list --available` lists its agents"
        raise ConfigError(f"has no agent {agent_id[:64]!r}{hint}", file=source)
    return entries[agent_id]


def offer_agents() -> None:
    """Have the user choose an agent of the public registry that this machine can run, in a terminal, and install it.

    Raises `ConfigError` and `Unreachable`, and `click.Abort` if the user chooses none.
    """
    from acp_gateway.config.agent_registry import choose, kinds_for

    click.echo("No agent is found on this machine.", err=True)
    source, entries = read_agents(None)
    here, runners = platform_here(), runners_here()
    offered = {
        agent.id: agent
        for agent in entries.values()
        if any(kind == "binary" or kind in runners for kind in kinds_for(agent, here))
    }
    if not offered:
        raise ConfigError("has no agent that this machine can run without Node.js or uv: install one", file=source)
    rows: list[tuple[str, ...]] = [
        (agent.id, agent.version, agent.description[:DESCRIPTION_SIZE]) for agent in offered.values()
    ]
    click.echo("The public registry has these:", err=True)
    print_table(("ID", "VERSION", "DESCRIPTION"), rows)
    default = "opencode" if "opencode" in offered else None
    chosen = str(click.prompt("The agent to install, by ID (Ctrl-C: none)", default=default, err=True)).strip()
    choice = choose(find_agent(chosen, source, offered), here, None, runners)
    install_agent(Configuration(None), chosen, chosen, source, choice, (MAX_DOWNLOAD, MAX_UNPACKED), fetch=True)
    click.echo(f"{printable(chosen)} has to be logged in on this machine, as without a gateway.", err=True)
