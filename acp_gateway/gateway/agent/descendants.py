"""The processes that an agent has started: work in the background, which outlives a turn, and ends with the agent.

Linux tells it in /proc. A process belongs to an agent if its parent does, or the leader of its process session; one
whose parents have all ended has left, and outlives the agent. On other systems nothing is known of any.
"""

import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from acp_gateway.gateway.agent.orphans import PROC, ProcessStat, all_processes, read_stat
from acp_gateway.printable import printable

NAMED: Final = 5
"""Maximum number of processes that are named in one line."""


@dataclass(frozen=True, slots=True)
class Look:
    """The state of an agent at one moment, as /proc tells it."""

    started: tuple[ProcessStat, ...] = ()
    """The processes that it has started since it was ready."""
    seconds: float = 0.0
    """The time of a processor that it and its descendants have used."""


class Descendants:
    """The descendants of one agent process.

    Args:
        leader: its process, the leader of a process session.
    """

    def __init__(self, leader: ProcessStat, proc: Path = PROC) -> None:
        self._leader = leader
        self._proc = proc
        self.helpers: frozenset[tuple[int, int]] | None = None
        """Those that it had when it was ready, by id and start; None before."""
        # Those that will end with it.
        self._ending: set[tuple[int, int]] = set()

    async def note_ready(self) -> None:
        """Note the processes that the agent has when it is ready: its own helpers."""
        self.helpers = frozenset(map(_key, await self._find()))

    async def look(self) -> Look:
        """Return what the agent has started, and what it has used of the processor."""
        found = await self._find()
        ticks = sum(stat.ticks for stat in found)
        return Look(self._started(found), ticks / os.sysconf("SC_CLK_TCK"))

    async def note_end(self) -> tuple[ProcessStat, ...]:
        """Note the processes that end with the agent; return those that it has started since it was ready."""
        found = await self._find()
        self._ending |= {_key(stat) for stat in found} - {_key(self._leader)}
        return self._started(found)

    def kill(self) -> None:
        """Kill the noted processes that are left."""
        for pid, started in self._ending:
            stat = read_stat(pid, self._proc)
            if stat is not None and stat.started == started and not stat.is_dead:
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass  # It was quicker, or has become another user's.

    def _started(self, found: Iterable[ProcessStat]) -> tuple[ProcessStat, ...]:
        helpers = self.helpers
        return (
            ()
            if helpers is None
            else tuple(it for it in found if it.pid != self._leader.pid and _key(it) not in helpers)
        )

    async def _find(self) -> list[ProcessStat]:
        # A machine may have thousands of processes.
        processes = await trio.to_thread.run_sync(all_processes, self._proc)
        return descendants_in(processes, self._leader)


def descendants_in(processes: Iterable[ProcessStat], leader: ProcessStat) -> list[ProcessStat]:
    """Return a process and all that belong to it, without those that have ended; none after it was reaped."""
    found: dict[int, ProcessStat] = {}
    following: defaultdict[int, list[ProcessStat]] = defaultdict(list)
    for stat in processes:
        if _key(stat) == _key(leader):
            found[stat.pid] = stat
        following[stat.parent].append(stat)
        following[stat.session].append(stat)
    for pid in (waiting := [*found]):
        new = {stat.pid: stat for stat in following[pid] if stat.pid not in found}
        found |= new
        waiting += new
    return [stat for stat in found.values() if not stat.is_dead]


def named(processes: Iterable[ProcessStat]) -> str:
    """Return the names of processes, which may be anything, with their ids."""
    names = [f"{printable(stat.name)} ({stat.pid})" for stat in processes]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _key(stat: ProcessStat) -> tuple[int, int]:
    return stat.pid, stat.started
