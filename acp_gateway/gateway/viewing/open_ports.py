"""The ports of agents: which there are, who may use them, and connections to them.

The machine is looked at only when a client asks, at most once in `LOOK_INTERVAL`.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.errors import Forbidden, UnknownPort, Unreachable
from acp_gateway.gateway.agent.listeners import Family, Program, find_listeners, find_owned, has_tables
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.viewing.admitted import Admitted
from acp_gateway.made.ports import Owned, Ranges, is_in, nearest
from acp_gateway.transports.sockets import SocketBytes, connect_tcp

if TYPE_CHECKING:
    from acp_gateway.gateway.gateway import Gateway

LOOK_INTERVAL: Final = 1.0
"""Seconds for which what was found counts: a look takes some ten milliseconds of a thread, and pages ask often."""

CONNECT_TIMEOUT: Final = 5.0
"""Seconds to connect to a port of this machine."""


class _Place(NamedTuple):
    """The owner of a port: a running agent, or the ports that the configuration gives an agent."""

    agent: str
    hub: Hub | None


class OpenPort(NamedTuple):
    """A port that a client may use."""

    port: int
    host: str
    """The loopback address at which it is reached."""
    inodes: frozenset[int]
    """Of the sockets that accept connections there; empty where the system does not tell."""
    agent: str
    program: str
    """The name of the program that listens; empty if it is not known."""
    sessions: tuple[Session, ...]
    """The sessions in which it may have been started; empty for a port of the configuration."""
    is_sure: bool = False
    """True if it was started in one of them, and in none that has ended."""

    def describe(self) -> dict[str, Any]:
        """Return what clients are told of it."""
        sessions = [{"sessionId": session.name, "title": session.title} for session in self.sessions]
        return {"port": self.port, "program": self.program, "agentType": self.agent, "sessions": sessions}


class OpenPorts:
    """The ports of the agents of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._looking = trio.Lock()
        self._found: list[tuple[Owned[_Place], Program]] = []
        self._looked_at = -math.inf

    async def of(self, client: Admitted) -> list[OpenPort]:
        """Return the ports that a client may use, in their order. Raises `Forbidden` for one that may use none."""
        if not client.access.may_use_ports:
            raise Forbidden(
                "guests and observers may use ports only if their token says so: `token create --ports`, or "
                "`share --ports`"
            )
        await self._look()
        return self._known(client)

    def _known(self, client: Admitted) -> list[OpenPort]:
        """Return the ports among those that the last look has found."""
        found = [
            self._describe(each, program)
            for each, program in self._found
            if (
                is_in(each.listener.port, self._configured().get(each.owner.agent, ()))
                if each.owner.hub is None
                else self._has_one_owner(each.owner.hub)
            )
        ]
        if not has_tables():
            ours = {section.address.port for section in self._gateway.config.listen}
            configured = self._configured().items()
            found = [_unseen(name, port) for name, ranges in configured for port in _each(ranges) if port not in ours]
        usable = [port for port in found if client.access.may_use_ports and _may_use(client, port)]
        # Of a port that is configured and of sessions, the latter tell more.
        return list({port.port: port for port in sorted(usable, key=lambda it: (it.port, bool(it.sessions)))}.values())

    async def open(self, client: Admitted, port: int, agent: str | None = None) -> tuple[OpenPort, SocketBytes]:
        """Connect to a port for a client, of any agent or of one. Raises `UnknownPort`, `Forbidden`, `Unreachable`."""
        found = await self.find(client, port, agent)
        with trio.move_on_after(CONNECT_TIMEOUT):
            stream = await connect_tcp(found.host, port, None, "the program")
            # Another program may have taken the port since.
            if _listens(found):
                return found, stream
            await stream.aclose()
            raise unknown_port(port)
        raise Unreachable(f"port {port} has not accepted a connection within {CONNECT_TIMEOUT:g} s: does it hang?")

    async def find(self, client: Admitted, port: int, agent: str | None = None) -> OpenPort:
        """Return a port that a client may use, of any agent or of one. Raises `UnknownPort` and `Forbidden`.

        A socket that was found is the same agent's for as long as it listens, so that nothing else is looked at.
        """
        for known in self._known(client):
            if known.port == port and agent in (None, known.agent) and known.inodes and _listens(known):
                return known
        for each in await self.of(client):
            if each.port == port and agent in (None, each.agent):
                return each
        raise unknown_port(port)

    async def _look(self) -> None:
        async with self._looking:
            if trio.current_time() - self._looked_at >= LOOK_INTERVAL:
                look = partial(find_owned, self._families(), self._places(), agent_of=lambda place: place.agent)
                self._found = await trio.to_thread.run_sync(look, abandon_on_cancel=True)
                self._looked_at = trio.current_time()

    def _families(self) -> dict[_Place, Family]:
        agents = ((hub, hub.supervisor.agent) for hub in self._gateway.hubs)
        return {
            _Place(hub.name, hub): agent.family._replace(helpers=agent.descendants.helpers)
            for hub, agent in agents
            if agent is not None and agent.family is not None and agent.descendants is not None
        }

    def _configured(self) -> Mapping[str, Ranges]:
        return {name: section.ports for name, section in self._gateway.config.agents.items() if section.ports}

    def _places(self) -> dict[_Place, Ranges]:
        return {_Place(name, None): ranges for name, ranges in self._configured().items()}

    def _has_one_owner(self, hub: Hub) -> bool:
        """Return whether all sessions of an agent are one identity's; of others, nothing tells whose a port is."""
        section = self._gateway.config.agents.get(hub.name)
        is_shared = section is None or section.scope == "shared"
        return not is_shared and len({session.owner for session in hub.multiplexer.sessions}) == 1

    def _describe(self, each: Owned[_Place], program: Program) -> OpenPort:
        place, listener = each.owner, each.listener
        sessions = () if place.hub is None else place.hub.multiplexer.sessions
        former = () if place.hub is None else place.hub.multiplexer.former_folders
        folders = {*former, *(session.cwd for session in sessions)}
        inside = nearest(program.folder or "", {folder for folder in folders if folder is not None})
        likely = tuple(session for session in sessions if inside is not None and session.cwd == inside)
        is_sure = bool(likely) and inside not in former and None not in former
        return OpenPort(
            listener.port, listener.host, each.inodes, place.agent, program.name, likely or sessions, is_sure
        )


def _unseen(agent: str, port: int) -> OpenPort:
    """Return a port of the configuration, on a system that does not tell of listeners."""
    return OpenPort(port, "127.0.0.1", frozenset(), agent, "", ())


def _each(ranges: Ranges) -> Iterable[int]:
    for first, last in ranges:
        yield from range(first, last + 1)


def _listens(port: OpenPort) -> bool:
    """Return whether only sockets that were found accept connections there; True where the system does not tell."""
    there = {each.inode for each in find_listeners(port=port.port) if each.host == port.host}
    return not port.inodes or (bool(there) and there <= port.inodes)


def _may_use(client: Admitted, port: OpenPort) -> bool:
    """Return whether a client may use a port: if it sees all sessions in which that may have been started.

    One that does not see all sessions of its identity may use what is surely of those that it sees: a program may have
    been left by one that has ended. A port of the configuration is for those who may use all sessions of its agent.
    """
    if port.sessions:
        viewer = client.viewer
        return (port.is_sure or viewer.reach.sees_all) and all(viewer.sees(session) for session in port.sessions)
    access = client.access
    return (
        client.role is Role.CONTROLLER
        and client.bound is None
        and access.workspaces is None
        and access.may_use(port.agent)
    )


def unknown_port(port: int) -> UnknownPort:
    """Return the error for a port that does not exist for a client."""
    return UnknownPort(
        f"no program of your agents listens on port {port} here: start it, or name it in ports of [agents.NAME]"
    )
