"""Says what the fence of an agent is to open: its workspaces, and the places of the gateway that stay private."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from acp_gateway.config.agent_search import own_folders
from acp_gateway.config.load import AgentSection, Config, inherited_environment
from acp_gateway.core.requests import Problem
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.fence import bubblewrap
from acp_gateway.fence.plan import Fence, FenceOptions
from acp_gateway.fence.programs import here, looked_for, of_gateway, run_by
from acp_gateway.gateway.agent.installed import FOLDER as INSTALLED
from acp_gateway.gateway.workspaces import Workspace, workspaces_of
from acp_gateway.protocol.reasons import in_one_line
from acp_gateway.security.token_store import BELOW, EVERYONE, Token

HOMES: Final = "homes"
"""Folder in `state_dir` with the homes of identities."""

OUTSIDE_FENCE: Final = "outside_fence"
"""Reason of the error for a directory that the running agent's fence does not open."""

SCRATCH: Final = "scratch"
"""Folder in `state_dir` with the temporary files of fenced agents."""


def fence_options(
    section: AgentSection, config: Config, reach: SessionReach, allowed: Sequence[str] | None
) -> FenceOptions | None:
    """Return what the fence of an agent is to open; None for an agent without a fence. It reads the disk.

    Args:
        section: the agent's options.
        config: the configuration in force.
        reach: that of the clients that share the process.
        allowed: the names of the workspaces that these may use; None for all.
    """
    if section.fence in (None, "off"):
        return None
    opened = _opened(section, config, allowed)
    others = [each.root for each in workspaces_of(config.workspaces, section.cwd) if each not in opened]
    state_dir = config.gateway.state_dir
    home = state_dir / HOMES / _file_name(reach.identity) if section.homes and section.scope != "shared" else None
    access = {name: workspace.access == "write" for name, workspace in config.workspaces.items()}
    folders = state_dir / INSTALLED
    command = Path(section.command[0]) if section.command else folders
    added = folders / command.relative_to(folders).parts[0] if folders in command.parents else None
    return FenceOptions(
        value=section.fence,
        workspaces=[(each.root, each.name is None or access[each.name]) for each in opened],
        own=own_folders(section.command or ()),
        writable=section.writable,
        readable=(*section.readable, *([] if section.cwd is None else [str(section.cwd)])),
        private=[str(path) for path in private_places(config)],
        others=others,
        installed=None if added is None else str(added),
        protected=protected(config),
        user_home=os.path.expanduser("~"),
        home=None if home is None else str(home),
        scratch=str(state_dir / SCRATCH),
        network=section.network,
    )


def protected(config: Config) -> dict[str, str]:
    """Return the paths that decide what the gateway runs outside of fences, and whom it trusts, each with what it is.

    It reads the disk.
    """
    found = {path: f"of the gateway: {what}" for path, what in of_gateway().items()}
    found |= dict.fromkeys(looked_for("bwrap", bubblewrap.search_path(), here()), "bubblewrap")
    inherited = inherited_environment(os.environ).get("PATH", os.defpath)
    for event in ("on_permission_waiting", "on_turn_end"):
        if command := getattr(config.hooks, event):
            found |= dict.fromkeys(run_by(command, inherited, here()), f"of the hook {event}")
    for name, agent in config.agents.items():
        if agent.command is not None and agent.fence in (None, "off"):
            cwd = here() if agent.cwd is None else str(agent.cwd)
            path = agent.env.get("PATH", inherited)
            found |= dict.fromkeys(run_by(agent.command, path, cwd), f"of the agent {name}, which has no fence")
    files = [path for listen in config.listen for path in (listen.cert, listen.client_ca, listen.client_crl)]
    files += [section.ca for section in config.reached]
    files += [] if config.cluster is None else [config.cluster.ca]
    return found | {str(path): "a certificate of the configuration" for path in files if path is not None}


def may_have_fences(config: Config) -> bool:
    """Return whether processes of fenced agents may be running: an agent has a fence, or one has had one here.

    Such a process may outlive its fence in the configuration, and a gateway: the folder for temporary files, which it
    cannot remove, tells that there was one. It reads the disk.
    """
    if any(section.fence not in (None, "off") for section in config.agents.values()):
        return True
    return (config.gateway.state_dir / SCRATCH).is_dir()


def usable_workspaces(
    identity: str, tokens: Iterable[Token], config: Config, gateway_identity: str
) -> tuple[str, ...] | None:
    """Return the names of the workspaces that an identity may use by any of its credentials; None for all.

    The gateway's own user, `gateway_identity`, may use all.
    """
    if identity == gateway_identity or _comes_by_door(identity, config, gateway_identity):
        return None
    limits = [token.workspaces for token in tokens if _acts_as(token, identity)]
    limits += [section.workspaces for section in config.certificates.values() if section.identity == identity]
    names: list[str] = []
    for limit in limits:
        if limit is None:
            return None
        names += limit
    return tuple(dict.fromkeys(names))


def has_credential(identity: str, tokens: Iterable[Token], config: Config, gateway_identity: str) -> bool:
    """Return whether a client may still connect as an identity, itself or by a gateway that speaks for it."""
    return (
        identity == gateway_identity
        # Each of its nodes speaks for all.
        or config.cluster is not None
        or _comes_by_door(identity, config, gateway_identity)
        or any(section.identity == identity for section in config.certificates.values())
        or any(_acts_as(token, identity) for token in tokens)
    )


def _comes_by_door(identity: str, config: Config, gateway_identity: str) -> bool:
    """Return whether a door may name an identity to which connections are lent, with a token that is in no file."""
    return bool(config.doors) and identity.startswith(f"{gateway_identity}{BELOW}")


def _acts_as(token: Token, identity: str) -> bool:
    """Return whether a connection with a token may be an identity's, also one that comes through another gateway."""
    if token.session is not None:
        return False
    is_own = token.identity == identity or identity.startswith(f"{token.identity}{BELOW}")
    return is_own or not {identity, EVERYONE}.isdisjoint(token.may_speak_for)


def opens_too_much(fence: Fence, section: AgentSection, config: Config, allowed: Sequence[str] | None) -> bool:
    """Return whether a fence opens a workspace that the clients of its agent may not use any more.

    `allowed` has the names of those that they may use now; None for all.
    """
    return not {each.root for each in _opened(section, config, allowed)}.issuperset(fence.workspaces)


def _opened(section: AgentSection, config: Config, allowed: Sequence[str] | None) -> list[Workspace]:
    workspaces = workspaces_of(config.workspaces, section.cwd)
    return [each for each in workspaces if allowed is None or each.name in allowed]


def first_outside(fence: Fence, directories: Iterable[str]) -> str | None:
    """Return the first directory that a fence does not open; None if it opens all. It reads the disk."""
    return next((directory for directory in directories if not fence.allows(directory)), None)


def outside_fence(agent: str, directory: str, *, restarts: bool) -> Problem:
    """Return the problem of a directory that is in a workspace, and outside of the fence of the running agent.

    `restarts` tells whether the agent is restarted for it.
    """
    remedy = "it is restarted as soon as nothing is open in it; try again then" if restarts else "connect again"
    message = (
        f"the agent {agent} was started before its clients could use {in_one_line(directory, 300)}, and its fence does "
        f"not open it: {remedy}"
    )
    return Problem(message, {"reason": OUTSIDE_FENCE, "cwd": directory})


def private_places(config: Config) -> Iterable[Path]:
    """Yield the files and folders of the gateway, which no client reads either."""
    gateway = config.gateway
    yield gateway.state_dir
    if config.path is not None:
        yield config.path
    if gateway.record_dir is not None:
        yield gateway.record_dir
    named = [section.env_file for section in config.agents.values()]
    named += [section.token_file for section in config.reached]
    named += [] if config.cluster is None else [config.cluster.token_file, config.cluster.password_file]
    yield from (path for path in named if path is not None)
    for listen in config.listen:
        yield from (path for path in (listen.key,) if path is not None)
        if listen.address.scheme == "unix":
            yield Path(listen.address.path)


def _file_name(identity: str) -> str:
    """Return a name of a folder for an identity."""
    name = quote(identity, safe="@+")
    return name if not name.startswith(".") else "%2E" + name[1:]
