"""The files of sessions: who may use them, where they lie, and the threads that read them."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import trio

from acp_gateway.config.agent_search import KNOWN, AcpAgent, own_folders
from acp_gateway.config.load import Config
from acp_gateway.core.sessions.session import Session
from acp_gateway.fence.paths import follow, within
from acp_gateway.fence.places import SECRETS
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.fencing import private_places
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.workspaces import Workspace
from acp_gateway.made.files_rules import FileRefused, Territory
from acp_gateway.printable import printable

READERS: Final = 8
"""Threads at a time: a disk that does not answer occupies as many and no others."""

WALKERS: Final = 2
"""Threads at a time that read whole folders: they compute, and share the interpreter with the messages."""

Result = TypeVar("Result")


class SessionFiles:
    """The files of the sessions of a gateway.

    Args:
        gateway: the gateway.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._limiter = gateway.services.limiter("files", READERS)
        self._long = gateway.services.limiter("folders", WALKERS)

    async def territory(self, access: Access, session: Session, *, names_only: bool = False) -> Territory:
        """Return the folders whose files a client may use in a session that it sees. Raises `FileRefused`.

        With `names_only`, it is to be told the names of files: guests that prompt see them.
        """
        if not (access.may_use_files or names_only):
            text = "this guest may not use files: `acp-gateway share SESSION --files` invites one who may"
            raise FileRefused("no_files", text)
        if session.cwd is None or session.agent not in self._gateway.config.agents:
            raise FileRefused("no_files", "this session has no folder here")
        config, workspaces = self._gateway.config, self._gateway.services.workspaces(session.agent)
        if access.session is None and access.only is None:
            return await self.run(find_territory, config, workspaces, access.workspaces, session.cwd)
        allowed = self._gateway.workspaces_of(session.owner)
        return await self.run(partial(find_territory, config, workspaces, allowed, session.cwd, alone=True))

    async def run(self, work: Callable[..., Result], *args: object) -> Result:
        """Do work on the disk in a thread, and return its result. Cancelled, it goes on without anyone."""
        return await trio.to_thread.run_sync(partial(work, *args), abandon_on_cancel=True, limiter=self._limiter)

    async def run_long(self, work: Callable[..., Result], *args: object) -> Result:
        """Do the same with work that computes more than it waits, such as reading a whole folder."""
        return await trio.to_thread.run_sync(partial(work, *args), abandon_on_cancel=True, limiter=self._long)


def find_territory(
    config: Config, workspaces: Sequence[Workspace], allowed: Sequence[str] | None, cwd: str, *, alone: bool = False
) -> Territory:
    """Return the folders whose files may be used in a session. It reads the disk. Raises `FileRefused`.

    Args:
        config: the configuration in force.
        workspaces: all workspaces of the session's agent.
        allowed: the names of those that the client may use; None for all.
        cwd: the folder of the session.
        alone: True if no other folder than that may be used.
    """
    roots: dict[str, Workspace] = {}
    others: list[str] = []
    for workspace in workspaces:
        end, link = follow(workspace.root, [other.root for other in workspaces if other is not workspace])
        if link is not None:
            continue  # The agents of another workspace may change where it leads.
        if allowed is None or workspace.name in allowed:
            roots[end] = workspace
        else:
            others.append(end)
    access = {name: section.access for name, section in config.workspaces.items()}
    secrets = [*map(os.path.expanduser, (*SECRETS, *_folders_of_agents(config))), *map(str, private_places(config))]
    found = Territory(
        cwd,
        tuple(roots),
        tuple(others),
        frozenset(root for root, it in roots.items() if access.get(it.name or "") == "read"),
        tuple(dict.fromkeys([*secrets, *map(os.path.realpath, secrets)])),
    )
    return _narrowed(found) if alone else found


def _narrowed(territory: Territory) -> Territory:
    """Return the session's own folder of a territory alone. Raises `FileRefused` if it is not in it."""
    end, link = follow(territory.base, territory.roots)
    if link is not None:
        raise FileRefused("no_files", f"a link that agents may turn leads to the session's folder: {printable(link)}")
    place = territory.judge(end, "")
    return replace(
        territory,
        roots=(end, *(root for root in territory.roots if root != end and within(root, end))),
        others=tuple(other for other in territory.others if other != end),
        read_only=territory.read_only if territory.may_write(place) else territory.read_only | {end},
    )


def _folders_of_agents(config: Config) -> Iterator[str]:
    """Yield the files and folders in which agents keep their logins, of the configured agents and of those known."""
    for agent in KNOWN.values():
        yield from agent.folders if isinstance(agent, AcpAgent) else ()
    for section in config.agents.values():
        home = section.env.get("HOME")
        for folder in own_folders(section.command or ()) if home else ():
            yield folder.replace("~", home or "~", 1)
