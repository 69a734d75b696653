"""Programs that a soak runs and ends: gateways that come back at the same addresses, their agents, and Redis."""

import os
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from acp_gateway.gateway.agent.orphans import PROC, all_processes
from tests.kit.redis_server import PROGRAMS, RedisServer
from tests.kit.running import prepare, start_gateway

PAUSES: Final = (0, 0, 1, 4)
"""Seconds from the end of a part to its next start, as likely as another."""

HANGS: Final = (0.2, 3.0)
"""Seconds for which a part hangs."""

AGENT: Final = "soaking_agent.py"


class Machine:
    """A gateway with a directory of its own.

    Args:
        directory: is made.
        sections: of its configuration.
        more: further options of `[gateway]`.
        ports: by transport, the ports that have to be known before it starts.
    """

    def __init__(self, directory: Path, sections: str, more: str, ports: dict[str, int]) -> None:
        directory.mkdir()
        self.directory = directory
        self.pin = prepare(directory, sections, more=more, ports=ports)
        self.gateway = start_gateway(directory, self.pin)

    @property
    def agents(self) -> list[int]:
        """The process ids of its agents."""
        children = [stat.pid for stat in all_processes(PROC) if stat.parent == self.gateway.process.pid]
        return [pid for pid in children if AGENT.encode() in _command_of(pid)]

    async def disturb(
        self, chance: random.Random, ways: Sequence[str] = ("killed", "killed", "stopped", "hung")
    ) -> str:
        """Kill it, stop it or let it hang, and return which of these; it runs again afterwards."""
        how = chance.choice(ways)
        process, pause = self.gateway.process, chance.choice(PAUSES)
        with trio.CancelScope(shield=True):
            if how == "hung":
                process.send_signal(signal.SIGSTOP)
                await trio.sleep(chance.uniform(*HANGS))
                process.send_signal(signal.SIGCONT)
            else:
                process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
                await trio.to_thread.run_sync(process.wait, 60)
                await trio.sleep(pause)
                await self.start_again()
        return how

    async def start_again(self) -> None:
        """Start it after its end."""
        self.gateway = await trio.to_thread.run_sync(start_gateway, self.directory, self.pin)

    async def read_log(self) -> None:
        """Keep the pipe of each process empty, but for what its start is waited for by."""
        while True:
            gateway = self.gateway
            assert gateway.process.stderr is not None
            with (self.directory / "gateway.log").open("a") as log:
                while line := await trio.to_thread.run_sync(gateway.process.stderr.readline, abandon_on_cancel=True):
                    log.write(line)
            gateway.process.stderr.close()
            while self.gateway is gateway:  # noqa: ASYNC110 - for some tenths of a second
                await trio.sleep(0.05)

    def end(self) -> None:
        """End its process."""
        self.gateway.process.send_signal(signal.SIGCONT)
        self.gateway.process.terminate()
        self.gateway.process.wait(60)
        if self.gateway.process.stderr is not None:
            self.gateway.process.stderr.close()


def has_redis() -> bool:
    """Return whether Redis or Valkey is installed."""
    return any(map(shutil.which, PROGRAMS))


async def disturb_redis(redis: RedisServer, chance: random.Random) -> str:
    """Kill Redis or let it hang, and return which of these; it runs again afterwards, empty after a kill."""
    how, pause = chance.choice(["killed", "hung"]), chance.choice(PAUSES)
    with trio.CancelScope(shield=True):
        if how == "hung":
            redis.pause()
            await trio.sleep(chance.uniform(*HANGS))
            redis.go_on()
        else:
            redis.kill()
            await trio.sleep(pause)
            await trio.to_thread.run_sync(redis.start)
    return how


def kill_agent(machine: Machine, chance: random.Random) -> str | None:
    """Kill one of a gateway's agents; return how it ended, None if there is none."""
    agents = machine.agents
    if not agents:
        return None
    try:
        os.kill(chance.choice(agents), signal.SIGKILL)
    except ProcessLookupError:
        return None  # It has just ended.
    return "killed"


def _command_of(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
