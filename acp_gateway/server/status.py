"""Describes the state of a running gateway: its listeners, agents, clients, and what waits for a decision."""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from acp_gateway import __version__
from acp_gateway.gateway.agent.orphans import PROC, all_processes
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.made.machine_looks import Reader, described

if TYPE_CHECKING:  # A gateway without doors does not import it.
    from acp_gateway.nodes.lent.lending import Lending

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class StatusReporter:
    """Describes one gateway to its own user.

    Args:
        gateway: that gateway.
        urls: the addresses at which it listens.
        file: the configuration file; None without one.
        lendings: returns what lends connections to doors.
        clock: returns the time, in seconds of a monotonic clock.
    """

    def __init__(
        self,
        gateway: Gateway,
        urls: Collection[str],
        file: Path | None,
        lendings: "Callable[[], Iterable[Lending]]" = tuple,
    ) -> None:
        self._gateway = gateway
        self._urls = urls
        self._file = file
        self._lendings = lendings
        self._started = time.monotonic()

    async def report(self, *, with_nodes: bool = False) -> dict[str, Any]:
        """Return the state, as members of the response; see `docs/wire.md`. Reads /proc in a thread.

        With nodes, these are asked for their present state.
        """
        looks = self._gateway.extensions.looks
        if with_nodes and looks is not None:
            await looks.refresh()
        agents = [agent.pid for hub in self._gateway.hubs if (agent := hub.supervisor.agent) is not None]
        pids = {os.getpid(), *(pid for pid in agents if pid is not None)}
        memory = await trio.to_thread.run_sync(measure_memory, pids)
        look = await self._gateway.machine.look()
        return self._describe(memory) | {"machine": described(look.told(Reader()))}

    def _describe(self, memory: dict[int, int]) -> dict[str, Any]:
        gateway = self._gateway
        # `token create` asks at once whether this gateway can read what it has written.
        gateway.readiness.look_again()
        hubs = gateway.hubs
        away = sum(attachment.away_since is not None for hub in hubs for attachment in hub.attachments.values())
        directory = gateway.extensions.directory
        idle = [name for name in gateway.config.agents if all(hub.name != name for hub in hubs)]
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime": int(time.monotonic() - self._started),
            "memory": memory.get(os.getpid()),
            "config": None if self._file is None else str(self._file.absolute()),
            "stateDir": str(gateway.config.gateway.state_dir),
            "ready": gateway.readiness.ready,
            "problems": [*gateway.readiness.problems, *gateway.readiness.warnings],
            "listeners": [*self._urls],
            "agents": [
                *(_describe_hub(hub, memory) for hub in hubs),
                *({"name": name, "pid": None, "memory": None} | _NOTHING for name in idle),
            ],
            "connected": sum(len(hub.attachments) for hub in hubs) - away,
            "away": away,
            "waiting": sum(hub.multiplexer.waiting_decisions for hub in hubs),
            "nodes": [] if directory is None else directory.describe(),
            "doors": [
                {"name": lending.name, "parked": lending.parked, "why": None if lending.parked else lending.problem}
                for lending in self._lendings()
            ],
        }


_NOTHING: Final = {"sessions": 0, "turns": 0, "connected": 0, "away": 0, "waiting": 0}


def _describe_hub(hub: Hub, memory: dict[int, int]) -> dict[str, Any]:
    agent, sessions = hub.supervisor.agent, hub.multiplexer.sessions
    pid = None if agent is None else agent.pid
    away = sum(attachment.away_since is not None for attachment in hub.attachments.values())
    described: dict[str, Any] = {"name": hub.name, "pid": pid}
    described["memory"] = None if pid is None else memory.get(pid)
    if agent is not None and agent.url is not None:
        described["url"] = agent.url
    if hub.fence is not None:
        described["fence"] = hub.fence
    return described | {
        "sessions": len(sessions),
        "turns": sum(bool(session.turns) for session in sessions),
        "connected": len(hub.attachments) - away,
        "away": away,
        "waiting": hub.multiplexer.waiting_decisions,
    }


def measure_memory(pids: Collection[int], proc: Path = PROC) -> dict[int, int]:
    """Return the bytes of memory that processes use, an agent with everything in its process session.

    Pages that processes share count for each of them. Systems without /proc tell nothing.
    """
    pages: Counter[int] = Counter()
    for stat in all_processes(proc):
        if stat.pid in pids or stat.session in pids:
            pages[stat.pid if stat.pid in pids else stat.session] += stat.pages
    return {pid: count * _PAGE for pid, count in pages.items()}
