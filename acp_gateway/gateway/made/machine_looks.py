"""Looks at the machine for those who ask how busy it is, and finds out which sessions hold its GPUs."""

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import msgspec
import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.gateway.agent.descendants import descendants_in
from acp_gateway.gateway.agent.orphans import PROC, all_processes, read_stat
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.made.machine import (
    NO_ANSWER,
    NO_LIBRARY,
    DiskOf,
    Holder,
    Machine,
    UsedGpu,
    find_library,
    once,
    read_disks,
    read_gpus,
    read_processors,
)
from acp_gateway.printable import printable

log = logging.getLogger(__name__)

FRESH: Final = 2.0
"""Seconds for which a look is used again: a person, their page and a scrape of metrics often ask together."""

PATIENCE: Final = 1.0
"""Seconds to wait for a disk or a driver; what does not answer is left out. Another gateway waits twice as long."""

READERS: Final = 1
"""Threads that read the disks, and the GPUs: one that hangs occupies this one."""

T = TypeVar("T")

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Held:
    """A process that holds memory of a GPU."""

    memory: int | None
    agent: str | None = None
    session: Session | None = None
    among: Sequence[Session] = ()
    """All sessions of its agent."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A client that is told of the machine, by what it may know; without arguments, everything."""

    sees: Callable[[Session], bool] = lambda _: True
    uses: Callable[[str], bool] = lambda _: True
    """Returns True for an agent."""
    opens: Callable[[str], bool] = lambda _: True
    """Returns True for the directory of a workspace."""


@dataclass(frozen=True, slots=True)
class Look:
    """The state of the machine at one moment."""

    machine: Machine
    """Without its disks, and what holds its GPUs."""
    disks: Sequence[DiskOf] = ()
    """The disk of each workspace."""
    holders: Sequence[Sequence[Held]] = ()
    """For each GPU, what holds memory of it."""

    def told(self, reader: Reader) -> Machine:
        """Return the machine as a client is told of it. Holders that it may not know of are one without a name."""
        gpus = [
            msgspec.structs.replace(gpu, holders=tuple(_told(held, reader)))
            for gpu, held in zip(self.machine.gpus, self.holders, strict=True)
        ]
        disks = once(it for it in self.disks if reader.opens(it.disk.path))
        return msgspec.structs.replace(self.machine, gpus=tuple(gpus), disks=disks)


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """The process of an agent, and its sessions."""

    name: str
    pid: int
    sessions: Sequence[Session]


def running_agents(hubs: Iterable[Hub]) -> list[RunningAgent]:
    """Return the processes of agents on this machine."""
    found = []
    for hub in hubs:
        agent = hub.supervisor.agent
        if agent is not None and agent.pid is not None:
            found.append(RunningAgent(hub.name, agent.pid, list(hub.multiplexer.sessions)))
    return found


class MachineLooks:
    """Looks at the machine of one gateway; what was found is used again for `FRESH` seconds.

    Args:
        agents: returns the processes of agents.
        roots: returns the directories of the workspaces.
        library: returns NVIDIA's library, as `find_library`.
        proc: the folder of the system's files about processes.
    """

    def __init__(
        self,
        agents: Callable[[], Collection[RunningAgent]],
        roots: Callable[[], Collection[str]],
        library: Callable[[], Any] = find_library,
        proc: Path = PROC,
    ) -> None:
        self._agents = agents
        self._roots = roots
        self._library = library
        self._proc = proc
        self.last: Look | None = None
        """The last look; None before the first."""
        self._looked_at = 0.0
        # A disk that does not answer must not hide the GPUs.
        self._disks, self._gpus = trio.CapacityLimiter(READERS), trio.CapacityLimiter(READERS)
        # The end of the look that is under way.
        self._end: trio.Event | None = None

    async def look(self) -> Look:
        """Return the present state of the machine. When cancelled, threads may still end their work."""
        while self._end is not None:
            await self._end.wait()
        if self.last is not None and trio.current_time() < self._looked_at + FRESH:
            return self.last
        self._end = trio.Event()
        try:
            self.last = await self._look()
            self._looked_at = trio.current_time()
            return self.last
        finally:
            self._end.set()
            self._end = None

    async def _look(self) -> Look:
        agents, roots = list(self._agents()), list(self._roots())
        results: dict[str, Any] = {}

        async def read(name: str, work: Callable[[], object], limiter: trio.CapacityLimiter) -> None:
            with trio.move_on_after(PATIENCE):
                try:
                    results[name] = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
                except Exception:
                    # The libraries of drivers may raise anything. What is left out is not worth the gateway's end.
                    log.exception("the %s of the machine can't be read", name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, "disks", partial(read_disks, roots), self._disks)
            nursery.start_soon(read, "gpus", partial(self._read_gpus, agents), self._gpus)
        found: _Gpus = results.get("gpus", ([], [], NO_ANSWER))
        used, holders, problem = found
        machine = msgspec.structs.replace(
            read_processors(self._proc), gpus=tuple(gpu for gpu, _ in used), problem=problem
        )
        return Look(machine, results.get("disks", ()), holders)

    def _read_gpus(self, agents: list[RunningAgent]) -> "_Gpus":
        """Return the GPUs, what holds each, and why they could not be read. Runs in a thread."""
        try:
            library = self._library()
        except ImportError:
            return [], [], NO_LIBRARY
        if library is None:
            return [], [], None
        try:
            used = read_gpus(library)
        except library.NVMLError as error:
            return [], [], f"the GPUs can't be read: {printable(str(error))}"
        pids = {pid for _, processes in used for pid in processes}
        owners = self._owners(agents, pids) if pids else {}
        holders = [
            tuple(Held(memory, *owners.get(pid, (None, None, ()))) for pid, memory in processes.items())
            for _, processes in used
        ]
        return used, holders, None

    def _owners(self, agents: list[RunningAgent], pids: set[int]) -> "_Owners":
        """Return the agent, the session and the agent's sessions of each of these processes that is an agent's."""
        processes = list(all_processes(self._proc))
        found: _Owners = {}
        for agent in agents:
            leader = read_stat(agent.pid, self._proc)
            for stat in [] if leader is None else descendants_in(processes, leader):
                if stat.pid in pids:
                    session = session_at(self._directory(stat.pid), agent.sessions)
                    found[stat.pid] = (agent.name, session, agent.sessions)
        return found

    def _directory(self, pid: int) -> str | None:
        with suppress(OSError):
            return os.readlink(self._proc / str(pid) / "cwd")
        return None


def session_at(directory: str | None, sessions: Sequence[Session]) -> Session | None:
    """Return the session of an agent that a process in this directory was started for; None if several may be it."""
    if len(sessions) == 1:
        return sessions[0]
    if directory is None:
        return None
    path = PurePosixPath(directory)
    holding = [it for it in sessions if it.cwd is not None and path.is_relative_to(it.cwd)]
    nearest = max((len(it.cwd or "") for it in holding), default=0)
    found = [it for it in holding if len(it.cwd or "") == nearest]
    return found[0] if len(found) == 1 else None


_Owners = dict[int, tuple[str, Session | None, Sequence[Session]]]

_Gpus = tuple[list[UsedGpu], list[tuple[Held, ...]], str | None]
"""GPUs, what holds each of them, and why they could not be read."""


def _told(holders: Iterable[Held], reader: Reader) -> Iterable[Holder]:
    """Yield holders as a client is told of them, those of one session together."""
    sums: dict[tuple[str | None, str | None, str | None], list[int | None]] = {}
    for held in holders:
        session = held.session if held.session is not None and reader.sees(held.session) else None
        is_known = held.agent is not None and (
            session is not None
            or (held.session is None and reader.uses(held.agent) and all(map(reader.sees, held.among)))
        )
        key = (
            held.agent if is_known else None,
            None if session is None else session.name,
            None if session is None else session.title,
        )
        sums.setdefault(key, []).append(held.memory)
    for (agent, session_id, title), sizes in sums.items():
        known = [size for size in sizes if size is not None]
        yield Holder(sum(known) if known else None, agent, session_id, title)


def described(machine: Machine) -> Mapping[str, Any]:
    """Return a machine as members of a JSON object; see `docs/wire.md`."""
    members: dict[str, Any] = msgspec.to_builtins(machine)
    return members
