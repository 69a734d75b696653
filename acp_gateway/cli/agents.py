"""The group `agents`: add agents of the public registry to the configuration, update and remove them."""

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acp_gateway.cli.agent_changes import (
    MAX_DOWNLOAD,
    MAX_UNPACKED,
    Configuration,
    find_agent,
    find_config,
    install_agent,
    platform_here,
    read_agents,
    runners_here,
    stored_agents,
)
from acp_gateway.cli.common import (
    collected,
    config_option,
    connect_timeout_option,
    examples,
    json_option,
    plain_option,
    print_json,
    print_line,
    print_table,
    print_text,
    waiting_for,
)
from acp_gateway.errors import ConfigError, GatewayError, UsageError
from acp_gateway.printable import counted, printable

if TYPE_CHECKING:
    from acp_gateway.config.agent_registry import Choice, RegistryAgent
    from acp_gateway.gateway.agent.installed import Installed


@click.group(
    epilog=examples(
        "acp-gateway agents list --available        what the registry has",
        "acp-gateway agents add opencode",
        "acp-gateway agents update --dry-run        what would change",
    ),
    short_help="Add agents of the registry, update and remove them.",
)
def agents() -> None:
    """List, add, update and remove the agents in the gateway's configuration.

    They come from the public registry of ACP agents, or from one of your own in the same format. The configuration gets
    a command with an exact version. The gateway itself never installs or updates anything.
    """


_registry_option = click.option(
    "--registry",
    metavar="URL|FILE",
    help="The registry, or an entry of it (agent.json); https, or http at a loopback address. Default: the public one.",
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")


@dataclass(frozen=True)
class _Fetching:
    """The options of a fetch: maximum bytes, and whether anything is fetched now."""

    max_download: int
    max_unpacked: int
    fetch: bool
    dry_run: bool

    @property
    def limits(self) -> tuple[int, int]:
        return self.max_download, self.max_unpacked


def _fetch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of what is fetched to a command, which gets them as its parameter `fetching`."""
    download = click.option(
        "--max-download",
        type=click.IntRange(min=1),
        default=MAX_DOWNLOAD,
        show_default=True,
        metavar="BYTES",
        help="Refuse a larger download. The largest agents have some 150 MB.",
    )
    unpacked = click.option(
        "--max-unpacked",
        type=click.IntRange(min=1),
        default=MAX_UNPACKED,
        show_default=True,
        metavar="BYTES",
        help="Refuse an archive with more. Agents shrink to a third when packed; this is four times the download.",
    )
    fetch = click.option(
        "--fetch/--no-fetch",
        default=True,
        help="Have npx or uvx fetch the package now, so that the first session need not wait for it. Default: fetch.",
    )
    return download(unpacked(fetch(_dry_run_option(collected(_Fetching, "fetching")(command)))))


@agents.command(
    "list",
    epilog=examples("acp-gateway agents list", "acp-gateway agents list --available --json | jq -r '.[].id'"),
    short_help="List the configured agents, or those of the registry.",
)
@config_option
@click.option("--available", is_flag=True, help="List the agents of the registry instead, for this platform.")
@_registry_option
@plain_option
@json_option
def list_agents(config: Path | None, registry: str | None, *, available: bool, as_json: bool) -> None:
    """List the agents of the configuration, one per row, with the name first.

    VERSION and SOURCE are of those that `agents add` has added. STATE of a binary: ok, missing, or changed since it was
    unpacked. With --available: the agents of the registry, with the ways in which each can be run here.
    """
    if registry is not None and not available:
        raise UsageError("--registry is for --available here")
    rows = _list_available(registry) if available else _list_configured(config)
    if as_json:
        print_json(rows)
    elif rows:
        heads = tuple(name.upper() for name in rows[0])
        print_table(heads, [tuple(str(value) for value in row.values()) for row in rows])


def _list_configured(config: Path | None) -> list[dict[str, str]]:
    from acp_gateway.config.load import load_config
    from acp_gateway.gateway.agent.installed import InstalledAgents

    store, configured = stored_agents() if find_config(config) is None else (None, {})
    if store is None:
        settings = load_config(config)
        store, configured = InstalledAgents(settings.gateway.state_dir), settings.agents
    rows = []
    for name, section in configured.items():
        found = store.read(name)
        rows.append(
            {
                "name": name,
                "version": found.version if found else "-",
                "state": store.check(name, found) if found else "-",
                "source": found.id if found else "-",
                "command": shlex.join(section.command) if section.command else str(section.url),
            }
        )
    return rows


def _list_available(registry: str | None) -> list[dict[str, str]]:
    from acp_gateway.config.agent_registry import kinds_for

    here = platform_here()
    return [
        {
            "id": agent.id,
            "version": agent.version,
            "kinds": ",".join(kinds_for(agent, here)) or "-",
            "license": (agent.license or "-")[:20],
            "description": agent.description[:80],
        }
        for agent in read_agents(registry)[1].values()
    ]


@agents.command(
    "add",
    epilog=examples(
        "acp-gateway agents add opencode",
        "acp-gateway agents add opencode --kind binary --name fast",
        "acp-gateway agents add ours --registry https://files.example.org/agent.json",
    ),
    short_help="Add an agent of the registry to the configuration.",
)
@click.argument("agent_id", metavar="ID")
@config_option
@_registry_option
@click.option("--name", metavar="NAME", help="Its name in the configuration. Default: its id.")
@click.option(
    "--kind",
    type=click.Choice(["binary", "npx", "uvx"]),
    help="How to run it. Default: the first of these that the registry has and this machine can run.",
)
@click.option("--sha256", metavar="HEX", help="The hash that a downloaded binary must have.")
@_fetch_options
@json_option
def add_agent(
    agent_id: str,
    config: Path | None,
    registry: str | None,
    name: str | None,
    kind: "Any",
    sha256: str | None,
    fetching: _Fetching,
    *,
    as_json: bool,
) -> None:
    """Add the agent ID of the registry, and print what is written.

    A binary is downloaded, compared with its SHA-256, and unpacked below the gateway's state_dir. A package is pinned
    to its exact version. A gateway that runs uses the agent at once. Before there is a configuration, the agent is only
    installed; `up` then makes a configuration with it.
    """

    from acp_gateway.config.agent_registry import choose

    file = Configuration(config)
    name = name or agent_id
    if name in file.agents:
        added = file.store.read(name)
        hint = f"`acp-gateway agents update {name}`" if added else "choose another --name"
        raise UsageError(f"there is an agent {name!r} already: {hint}")
    source, entries = read_agents(registry)
    choice = choose(find_agent(agent_id, source, entries), platform_here(), kind, runners_here())
    if sha256 is not None:
        if choice.kind != "binary":
            raise UsageError("--sha256 is for binaries; npx and uvx check their packages themselves")
        if choice.sha256 not in (None, sha256.lower()):
            raise ConfigError(f"has another SHA-256 for {agent_id}: {choice.sha256}", file=source)
        choice = replace(choice, sha256=sha256.lower())
    file.change(name, choice.words, choice.env)  # Raises before anything is downloaded.
    if fetching.dry_run:
        _print_choice(name, choice)
        facts = _as_json(file, name, agent_id, choice)
    else:
        installed = install_agent(file, name, agent_id, source, choice, fetching.limits, fetch=fetching.fetch)
        facts = _as_json(file, name, agent_id, choice, installed, file.reload())
        click.echo("Log it in on this machine, as without a gateway.", err=True)
        if file.path is None:
            click.echo("Next: `acp-gateway up` in a project's folder serves it.", err=True)
    if as_json:
        print_json(facts)


def _as_json(
    file: Configuration,
    name: str,
    agent_id: str,
    choice: "Choice",
    installed: "Installed | None" = None,
    gateway: dict[str, list[str]] | None = None,
) -> dict[str, object]:
    """Return what was written, or without `installed` what would be; `gateway` is the answer of a running one."""
    return {
        "name": name,
        "id": agent_id,
        "version": choice.version,
        "kind": choice.kind,
        "config": None if file.path is None else str(file.path),
        "command": shlex.join(installed.command if installed else choice.words),
        "env": dict(installed.variables if installed else choice.env),
        "archive": choice.archive,
        "sha256": installed.archive_sha256 if installed else choice.sha256,
        "sha256Known": choice.sha256 is not None,
        "dryRun": installed is None,
        "gateway": gateway,
    }


def _print_choice(name: str, choice: "Choice") -> None:
    print_line(f"{name} {choice.version}: {shlex.join(choice.words)}")
    if choice.archive:
        print_line(f"from {choice.archive}, SHA-256 {choice.sha256 or 'not in the registry'}")
    for variable, value in choice.env.items():
        print_line(f"with {variable}={value}")


@agents.command(
    "update",
    epilog=examples(
        "acp-gateway agents update --dry-run        what would change", "acp-gateway agents update opencode"
    ),
    short_help="Update agents to the version in the registry.",
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@config_option
@_fetch_options
@json_option
def update_agents(names: tuple[str, ...], config: Path | None, fetching: _Fetching, *, as_json: bool) -> None:
    """Update the agents with these names, or all that `agents add` has added, and print old and new version.

    Each is updated from the registry that it came from. A command that was changed by hand is not touched. The files of
    the version before are kept until the next update, for processes of it that still run.
    """
    file = Configuration(config)
    found = {name: file.store.read(name) for name in names or file.agents}
    if names:
        for name, installed in found.items():
            if installed is None or name not in file.agents:
                raise UsageError(f"{name!r} is not an agent that `acp-gateway agents add` has added")
    registries: dict[str, dict[str, RegistryAgent]] = {}
    failed = None
    rows: list[dict[str, object]] = []
    for name, installed in found.items():
        if installed is None:
            continue
        try:
            if installed.source not in registries:
                registries[installed.source] = read_agents(installed.source)[1]
            entries = registries[installed.source]
            row = _update(config, name, installed, entries, fetching)
        except GatewayError as error:
            click.echo(f"{name}: {printable(str(error), size=1000)}", err=True)
            failed = error
            row = {"state": "failed", "error": str(error)}
        rows.append({"name": name, "before": installed.version, **row})
    if as_json:
        print_json(rows)
    if failed is not None:
        sys.exit(failed.exit_code)
    if not any(found.values()):
        click.echo("There are no agents of a registry; `acp-gateway agents add ID` adds one.", err=True)


def _update(
    config: Path | None,
    name: str,
    installed: "Installed",
    entries: "Mapping[str, RegistryAgent]",
    fetching: _Fetching,
) -> dict[str, object]:
    """Update an agent, print what was done, and return that as members of a JSON object."""
    from acp_gateway.config.agent_registry import choose, is_older

    # Read for each, because the one before has changed the file.
    file = Configuration(config)
    entry = find_agent(installed.id, installed.source, entries)
    choice = choose(entry, platform_here(), installed.kind, runners_here())
    if choice.version == installed.version:
        print_text(f"{name}: {installed.version} is the newest")
        return {"state": "newest", "version": choice.version}
    if is_older(choice.version, installed.version):
        print_text(f"{name}: stays at {installed.version}; the registry has an older one, {choice.version}")
        return {"state": "newer", "version": choice.version}
    section = file.agents[name]
    if section.command != tuple(installed.command) or dict(section.env) != installed.variables:
        raise ConfigError(f"its command was changed by hand; the registry has {choice.version}")
    print_line(f"{name}: {installed.version} → {choice.version}")
    if fetching.dry_run:
        return {"state": "outdated", **_as_json(file, name, installed.id, choice)}
    source, limits = installed.source, fetching.limits
    updated = install_agent(file, name, installed.id, source, choice, limits, fetch=fetching.fetch)
    return {"state": "updated", **_as_json(file, name, installed.id, choice, updated, file.reload())}


@agents.command(
    "remove",
    epilog=examples("acp-gateway agents remove opencode"),
    short_help="Remove an agent from the configuration.",
)
@click.argument("name")
@config_option
@_dry_run_option
@json_option
def remove_agent(name: str, config: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Remove the section of an agent from the configuration, and the files that were downloaded for it.

    A gateway that runs offers the agent no more. A process of it that still runs loses its files, so end its sessions
    first. They stay in the gateway's list until they expire, and the agent's own files stay where it keeps them.
    """
    from acp_gateway.config.editing.toml_file import suggestion

    file = Configuration(config)
    if name not in file.agents:
        raise UsageError(f"there is no agent {name!r} in the configuration{suggestion(name, file.agents)}")
    text = file.without(name)
    folder = file.store.folder(name)
    config_path = None if file.path is None else str(file.path)
    facts: dict[str, object] = {"name": name, "config": config_path, "dryRun": dry_run}
    facts |= {"folder": str(folder) if folder.exists() else None, "gateway": None}
    if not dry_run:
        file.write(text)
        facts["gateway"] = file.reload()
        file.store.remove(name)
    verb = "Would remove" if dry_run else "Removed"
    print_line(f"{verb} {name}" if file.path is None else f"{verb} [agents.{name}] from {file.path}")
    if dry_run and folder.exists():
        print_line(f"{verb} {folder}")
    if as_json:
        print_json(facts)


@agents.command(
    "stop",
    epilog=examples("acp-gateway agents stop opencode"),
    short_help="End the processes of an agent that runs.",
)
@click.argument("name")
@config_option
@connect_timeout_option(help="How long to wait for the ends of its processes.", default=30.0)
@json_option
def stop_agent(name: str, config: Path | None, connect_timeout: float, *, as_json: bool) -> None:
    """End the processes of the agent NAME at the gateway that runs on this machine, such as one that ignores Stop.

    What they have started ends too, and their turns, with the reason for all who see them. The sessions stay: the next
    prompt starts the agent again, and opens its session there if the agent can.
    """
    import trio

    from acp_gateway.client.local import find_local_gateway

    gateway = find_local_gateway(config)
    gateway.check_running()
    with waiting_for("the agent"):
        done = trio.run(partial(gateway.stop_agent, name, time_limit=connect_timeout))
    if as_json:
        print_json({"name": name, **done})
    processes, turns = done.get("processes", 0), done.get("turns", 0)
    without = "it was about to start, which was given up" if done.get("starts") else "it does not run"
    stopped = f"{counted(processes, 'process', 'processes')} stopped" if processes else without
    print_text(f"{name}: {stopped}" + (f", {counted(turns, 'turn')} ended" if turns else ""))
