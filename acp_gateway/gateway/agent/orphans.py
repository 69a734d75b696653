"""Orphans: agent processes that outlived a killed gateway, recorded while they run and killed at the next start.

An agent is a process group in a session of its own. The kernel ends the group's leader together with the gateway
(`PR_SET_PDEATHSIG`), but not what the leader started: behind an `npx` or `uvx` wrapper that is the real agent.

The registry is a folder with one empty file per running agent, whose name is the record. Creating and removing such a
file is atomic, so it needs no lock, and it need not reach the disk: after a power cut there are no processes.

A process id alone is ambiguous, because ids are reused. With the boot id and the start time it identifies one process
for ever. Hence the rule of `ProcessRegistry.reap`: kill only what cannot be anything else.
"""

import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_log = logging.getLogger(__name__)

PROC = Path("/proc")

_KILL_ROUNDS = 5

_ENTRY = re.compile(
    r"(?P<group>\d+)_(?P<boot>[0-9a-f-]+):(?P<ticks>\d+)"
    r"_(?P<gateway>\d+)_(?P<gateway_started>[0-9a-f-]+:\d+)"
)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Fields of a process in Linux's /proc/PID/stat."""

    pid: int
    state: str
    """One letter, as in ps."""
    parent: int
    group: int
    session: int
    started: int
    """Clock ticks after the machine's start."""
    pages: int = field(default=0, compare=False)
    """Pages of memory that it has in use (its resident set)."""
    name: str = field(default="", compare=False)
    """First characters of its program's name, which may be any."""
    ticks: int = field(default=0, compare=False)
    """Clock ticks of a processor that it has used, with children that have ended."""

    @property
    def is_dead(self) -> bool:
        """True for a zombie: ended, and listed until its parent has read the exit status."""
        return self.state in "ZX"


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Return the current state of a process; None if there is none, or on a system without /proc."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The second field is the command's name in parentheses. It may hold blanks and parentheses itself, and none follow.
    fields = text[text.rfind(b")") + 1 :].split()
    name = text[text.find(b"(") + 1 : text.rfind(b")")].decode(errors="replace")
    try:
        return ProcessStat(
            pid=pid,
            state=fields[0].decode(),
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            started=int(fields[19]),
            pages=int(fields[21]) if len(fields) > 21 else 0,
            name=name,
            ticks=sum(map(int, fields[11:15])),
        )
    except (IndexError, ValueError):
        return None


def process_start_time(pid: int, proc: Path = PROC) -> str | None:
    """Return the start of a process as `BOOT-ID:TICKS`, which identifies it for ever together with its id.

    None if there is no such process, and on other systems than Linux.
    """
    boot, stat = _boot_id(proc), read_stat(pid, proc)
    return None if boot is None or stat is None else f"{boot}:{stat.started}"


def kill_session(session: int, proc: Path = PROC) -> None:
    """Kill every process of a process session but its leader, on systems that list them.

    The leader must be the caller's child and not reaped yet; until then the session's id cannot be reused. Processes
    that start during this are killed in a few further rounds.
    """
    for _ in range(_KILL_ROUNDS):
        found = [stat for stat in all_processes(proc) if stat.session == session != stat.pid and not stat.is_dead]
        for stat in found:
            try:
                os.kill(stat.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # It was quicker.
        if not found:
            return


def terminate_followers(group: int, proc: Path = PROC) -> bool:
    """Send SIGTERM to every process of a process group but its leader; return False if there is none.

    The leader must be the caller's child and not reaped yet. The first process of a PID namespace ignores the signal.
    """
    found = [stat for stat in all_processes(proc) if stat.group == group != stat.pid and not stat.is_dead]
    for stat in found:
        try:
            os.kill(stat.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # It was quicker.
    return bool(found)


class ProcessRegistry:
    """The running agents of all gateways that share the folder `path`."""

    def __init__(self, path: Path, *, proc: Path = PROC, kill_group: Callable[[int, int], None] = os.killpg) -> None:
        self._path = path
        self._proc = proc
        self._kill_group = kill_group
        # The end of the names of this gateway's entries; None on systems that cannot tell processes apart.
        started = process_start_time(os.getpid(), proc)
        self._gateway = None if started is None else f"_{os.getpid()}_{started}"

    def record(self, pgid: int, started: str) -> None:
        """Record an agent: its process group, and the `process_start_time` of the group's leader.

        Does nothing on systems that cannot tell processes apart. A failure to write is logged; the agent runs anyway.
        """
        if self._gateway is None:
            return
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._path / f"{pgid}_{started}{self._gateway}").touch(mode=0o600)
        except OSError as error:
            _log.warning("cannot record the agent's process group %d for the next start: %s", pgid, error)

    def forget(self, pgid: int) -> None:
        """Remove an agent of this gateway that has ended."""
        for entry, path in self._entries():
            if int(entry["group"]) == pgid and self._gateway is not None and path.name.endswith(self._gateway):
                self._remove(path)

    def reap(self) -> list[int]:
        """Kill and remove the orphans of gateways that have ended; return their process groups.

        A group is killed if each of its processes is in the session of the same number and started no earlier than the
        recorded leader, and if its leader, if there is one, is the recorded one. Another leader or another boot means
        that the number was reused.
        """
        boot = _boot_id(self._proc)
        if boot is None:
            return []
        killed = []
        for entry, path in self._entries():
            if self._is_running(int(entry["gateway"]), entry["gateway_started"]):
                continue
            group = int(entry["group"])
            if entry["boot"] == boot and self._is_left_over(group, int(entry["ticks"])):
                try:
                    self._kill_group(group, signal.SIGKILL)
                except OSError as error:
                    _log.warning("cannot kill what is left of the agent's process group %d: %s", group, error)
                else:
                    killed.append(group)
            self._remove(path)
        return killed

    def _entries(self) -> list[tuple[re.Match[str], Path]]:
        try:
            paths = sorted(self._path.iterdir())
        except OSError:
            return []
        return [(entry, path) for path in paths if (entry := _ENTRY.fullmatch(path.name))]

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)  # Another gateway may reap at the same time.
        except OSError as error:
            _log.warning("cannot forget an agent's process group: %s", error)

    def _is_running(self, pid: int, started: str) -> bool:
        stat = read_stat(pid, self._proc)
        if stat is None:
            # With hidepid, /proc hides other gateways, because they are not dumpable. A process with that id since
            # this boot may be one.
            return started.startswith(f"{_boot_id(self._proc)}:") and _exists(pid)
        return not stat.is_dead and process_start_time(pid, self._proc) == started

    def _is_left_over(self, group: int, leader_started: int) -> bool:
        members = [stat for stat in all_processes(self._proc) if stat.group == group]
        return any(not member.is_dead for member in members) and all(
            member.session == group
            and (member.started == leader_started if member.pid == group else member.started >= leader_started)
            for member in members
        )


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # Another user's.
    return True


def all_processes(proc: Path) -> list[ProcessStat]:
    """Return all processes; none on a system without /proc."""
    stats = (read_stat(pid, proc) for pid in process_ids(proc))
    return [stat for stat in stats if stat is not None]


def process_ids(proc: Path = PROC) -> list[int]:
    """Return the ids of all processes; none on a system without /proc. Any may have ended when this returns."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return []


def descriptors_of(pid: int, proc: Path = PROC) -> Iterator[str]:
    """Yield what the open descriptors of a process lead to; nothing of one that has ended or may not be read."""
    folder = f"{proc}/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return
    for number in numbers:
        try:
            yield os.readlink(f"{folder}/{number}")
        except OSError:
            continue  # It was closed.


def _boot_id(proc: Path) -> str | None:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
