"""Compares the configuration in force with the one in the file: what can be used at once, and what needs a restart.

Agents, nodes, workspaces, client certificates, hooks and most limits are read for each connection, session or agent
process. They can change while the gateway runs. Addresses, the state folder and the sizes of what is in memory can't.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from acp_gateway.config.load import Config
from acp_gateway.config.schema import options_of
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.hub.services import GatewayServices

_RELOADED: Final = ("agents", "nodes", "doors", "workspaces", "certificates", "rules", "hooks", "limits", "removed")
"""Parts of the configuration that are used at once."""


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """The result of a comparison."""

    config: Config
    """The configuration to use from now on: the old one, with the parts of the new one that can change."""
    changed: tuple[str, ...]
    """A line for each part that is used at once."""
    needs_restart: tuple[str, ...]
    """The names of sections and options that have changed and stay as they were."""
    agents: frozenset[str]
    """Names of the agents that were changed or removed."""


def compare(now: Config, then: Config) -> Reconfiguration:
    """Compare the configuration in force with a new one."""
    config = replace(
        now,
        gateway=replace(now.gateway, default_agent=then.gateway.default_agent),
        **{name: getattr(then, name) for name in _RELOADED},
    )
    changed = [
        *_named("agents", now.agents, then.agents),
        *_named("nodes", now.nodes, then.nodes),
        *_named("doors", now.doors, then.doors),
        *_named("workspaces", now.workspaces, then.workspaces),
        *_named("certificates", now.certificates, then.certificates),
        *([f"rules: {len(then.rules)} of them"] if now.rules != then.rules else []),
        *(f"hooks: {name}" for name in _differing(now.hooks, config.hooks)),
        *(
            f"limits.{name}: {getattr(then.limits, name)}, it was {getattr(now.limits, name)}"
            for name in _differing(now.limits, then.limits)
        ),
    ]
    if now.default_agent != config.default_agent:
        changed.append(f"the default agent: {config.default_agent}, it was {now.default_agent}")
    needs_restart = [
        *(f"gateway.{name}" for name in _differing(now.gateway, then.gateway) if name != "default_agent"),
        *(name for name in _differing(now, then) if name not in (*_RELOADED, "gateway")),
    ]
    return Reconfiguration(
        config,
        tuple(changed),
        tuple(needs_restart),
        _outdated(now.agents, then.agents) | _refenced(now, then),
    )


def _outdated(now: Mapping[str, Any], then: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, section in now.items() if then.get(name) != section)


def _refenced(now: Config, then: Config) -> frozenset[str]:
    """Return the names of the agents whose fence opens or closes something else, because of other sections."""
    if _around_fences(now) == _around_fences(then):
        return frozenset()
    return frozenset(name for name, section in then.agents.items() if section.fence not in (None, "off"))


def _around_fences(config: Config) -> Sequence[object]:
    """Return what fences follow from besides the agent's own section: see `fence_options`."""
    files = {file for section in config.reached for file in (section.token_file, section.ca)}
    files |= {section.env_file for section in config.agents.values()}
    unfenced = {name: section for name, section in config.agents.items() if section.fence in (None, "off")}
    limits = {(section.identity, section.workspaces) for section in config.certificates.values()}
    return config.workspaces, config.hooks, unfenced, files, limits


def _named(kind: str, now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each section that is new, was changed or was removed."""
    for name, section in then.items():
        if name not in now:
            yield f"{kind}.{name}: new"
        elif section != now[name]:
            # Values may be secrets, such as those of env.
            yield f"{kind}.{name}: changed ({', '.join(_differing(now[name], section))})"
    yield from (f"{kind}.{name}: removed" for name in now if name not in then)


def _differing(one: Any, other: Any) -> list[str]:
    """Return the names of the options in which two sections differ; the limits that follow them are not named."""
    return [name for name in options_of(type(one)) if getattr(one, name) != getattr(other, name)]


def reconfigure_hubs(hubs: Iterable[Hub], services: GatewayServices, outdated: Container[str]) -> list[str]:
    """Use the configuration that the services have now in hubs.

    Returns the names of the `outdated` agents that still run as before. Clients go on to share a hub: its agent is
    restarted, with its sessions, as soon as nothing is open in it.
    """
    running = []
    for hub in hubs:
        section = services.config.agents.get(hub.name)
        if section is None:
            continue  # Removed: it serves the clients that it has.
        restart = hub.name in outdated
        if not hub.reconfigure(services.policy(section), restart=restart) and restart:
            running.append(hub.name)
    return running
