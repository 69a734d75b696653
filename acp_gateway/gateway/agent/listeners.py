"""Looks at /proc for the ports on which the processes of agents listen. It blocks for milliseconds: for a thread.

A process belongs to an agent as in `descendants`, or by the mark in its environment, which what has left the agent's
family keeps. A process that makes up a mark gives its own ports away, and gets none of others.

What the agent had when it was ready is the agent itself: its ports are its API, by which one may prompt it.
"""

import os
import socket
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from acp_gateway.gateway.agent.descendants import descendants_in
from acp_gateway.gateway.agent.orphans import PROC, ProcessStat, all_processes, descriptors_of, read_stat
from acp_gateway.made.ports import (
    Listener,
    Owned,
    Owner,
    Ranges,
    inode_of,
    owned,
    program_name,
    queries,
    read_answers,
    read_listeners,
)

MARK: Final = "ACP_GATEWAY_STARTED_BY"
"""Variable with the mark of an agent, which all that it starts inherits."""

_ENVIRONMENT_SIZE: Final = 256 * 1024
"""Maximum bytes of an environment that are read: the kernel has the mark among the first, as it was started."""

_ARGUMENTS_SIZE: Final = 4096
"""Maximum bytes of a command line that are read: the program and its first arguments tell its name."""

_SOCK_DIAG: Final = 4
"""Netlink's protocol of that name."""

_PART_SIZE: Final = 65536
"""Bytes in which a whole part of the kernel's answer fits: it uses up to 32 KiB."""

_TABLES: Final = ("tcp", "tcp6")


class Family(NamedTuple):
    """A running agent, by what its processes are known by."""

    leader: ProcessStat
    mark: str
    helpers: frozenset[tuple[int, int]] | None = frozenset()
    """Processes that it had when it was ready, by id and start; None before, when all of them are its own."""

    def is_itself(self, process: ProcessStat) -> bool:
        """Return whether one of its processes is the agent, or a helper of its own."""
        is_helper = self.helpers is None or (process.pid, process.started) in self.helpers
        return process.pid == self.leader.pid or is_helper


class Program(NamedTuple):
    """A program that listens."""

    name: str
    folder: str | None
    """Its working directory; None if that can't be read."""


def find_listeners(proc: Path = PROC, *, port: int = 0) -> list[Listener]:
    """Return the listeners of the gateway's network namespace that loopback reaches; with `port`, of that alone.

    The kernel tells them by netlink in microseconds, for one port at least; the files in /proc have all connections.
    """
    try:
        found = _ask_kernel(port) if proc == PROC else None
    except (AttributeError, OSError, ValueError):
        # Another system, or one that forbids the question.
        found = None
    if found is None:
        found = [listener for listener in _read_tables(proc) if port in (0, listener.port)]
    return found


def _ask_kernel(port: int) -> list[Listener]:
    """Ask for the listeners of a port, or of all. Raises `OSError` and `ValueError`."""
    found: list[Listener] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as diag:
        for query in queries(port):
            diag.sendto(query, (0, 0))
            ended = False
            while not ended:
                # The kernel has each part ready.
                more, ended = read_answers(diag.recv(_PART_SIZE, socket.MSG_DONTWAIT))
                found += more
    return found


def has_tables(proc: Path = PROC) -> bool:
    """Return whether the system tells of sockets in /proc."""
    return (proc / "self/net/tcp").exists()


def _read_tables(proc: Path) -> list[Listener]:
    found: list[Listener] = []
    for name in _TABLES:
        try:
            found += read_listeners((proc / "self/net" / name).read_text())
        except OSError:
            continue  # A kernel without that protocol.
    return found


def find_owned(
    families: Mapping[Owner, Family],
    configured: Mapping[Owner, Ranges],
    *,
    agent_of: Callable[[Owner], Hashable] = lambda owner: owner,
    proc: Path = PROC,
) -> list[tuple[Owned[Owner], Program]]:
    """Return the listeners of agents, each with its program; `configured` and `agent_of` as in `owned`."""
    uid, gateway = os.geteuid(), os.getpid()
    listeners = [listener for listener in find_listeners(proc) if listener.uid == uid]
    if not listeners or not (families or configured):
        return []
    processes = [process for process in all_processes(proc) if not process.is_dead]
    trees: dict[Owner, set[int]] = {}
    own: set[int] = set()
    for each_owner, family in families.items():
        found_in = descendants_in(processes, family.leader)
        trees[each_owner] = {it.pid for it in found_in}
        own |= {it.pid for it in found_in if family.is_itself(it)}
    inodes = {listener.inode for listener in listeners}
    holders = _holders((process.pid for process in processes), inodes, proc)
    marks = {each.mark: owner for owner, each in families.items()}
    left = {pid for pids in holders.values() for pid in pids}.difference(*trees.values())
    for pid in left:
        owner = marks.get(_mark_of(pid, proc) or "")
        if owner is not None:
            trees[owner].add(pid)
    found = owned(listeners, holders, trees, configured, uid=uid, gateway=gateway, own=own, agent_of=agent_of)
    return [(each, _program(each.pid, proc)) for each in found]


def _holders(pids: Iterable[int], inodes: Collection[int], proc: Path) -> dict[int, list[int]]:
    """Return the processes that hold sockets, by inode, as far as their descriptors may be read."""
    found: dict[int, list[int]] = {}
    for pid in pids:
        for inode in map(inode_of, descriptors_of(pid, proc)):
            if inode is not None and inode in inodes and pid not in found.setdefault(inode, []):
                found[inode].append(pid)
    return found


def _mark_of(pid: int, proc: Path) -> str | None:
    """Return the mark in the environment that a process was started with."""
    for variable in _read(proc / str(pid) / "environ", _ENVIRONMENT_SIZE).split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == MARK.encode():
            return value.decode(errors="replace")
    return None


def _program(pid: int, proc: Path) -> Program:
    words = _read(proc / str(pid) / "cmdline", _ARGUMENTS_SIZE).decode(errors="replace").split("\0")
    stat = read_stat(pid, proc)
    try:
        folder: str | None = os.readlink(proc / str(pid) / "cwd")
    except OSError:
        folder = None
    return Program(program_name(words) or (stat.name if stat is not None else ""), folder)


def _read(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
