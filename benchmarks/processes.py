"""Runs servers as subprocesses: starts them, waits until they listen, stops them with their process group.

A server's output goes to the file `log` in its directory. If the benchmark is killed, the kernel sends its servers
SIGTERM.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START_TIMEOUT: Final = 20.0
STOP_TIMEOUT: Final = 10.0
"""Seconds until a server must listen, and until it must have stopped before it is killed."""

LOOK: Final = 0.002
"""Seconds between two polls of a server's state."""

LISTENING: Final = re.compile(r"listening on (?:\S+ )?(?:\S*:)?(\d+)\b.*\n")


class RelayFailed(Exception):
    """A relay did not start, or ended unexpectedly; the message names it and its last line of output."""


@dataclass(frozen=True)
class Started:
    """A listening server."""

    pid: int
    port: int
    seconds: float


@contextmanager
def server(
    command: Sequence[str], directory: Path, *, port: int | None = None, prints: bool = True
) -> Iterator[Started]:
    """Run a server in `directory` until the end of the block.

    Without `port`, the port is read from the server's log. Without `prints`, only stderr is logged.
    """
    log = directory / "log"
    # If the benchmark is killed, its servers must end too.
    tied = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*tied, *command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output if prints else subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )
    try:
        while (found := listening_at(process.pid, port, log)) is None:
            if has_ended(process):
                raise RelayFailed(f"{name_of(command)} did not start: {last_line(log)}")
            if time.monotonic() > begun + START_TIMEOUT:
                raise RelayFailed(f"{name_of(command)} does not listen after {START_TIMEOUT:g} s: {last_line(log)}")
            time.sleep(LOOK)
        yield Started(process.pid, found, time.monotonic() - begun)
        if has_ended(process):
            raise RelayFailed(f"{name_of(command)} ended unexpectedly: {last_line(log)}")
    finally:
        stop(process)


def listening_at(pid: int, port: int | None, log: Path) -> int | None:
    """Return the port that a server listens on; None if it doesn't listen yet."""
    if port is None:
        found = LISTENING.search(log.read_text(errors="replace"))
        return int(found[1]) if found else None
    # A test connection would not show which process owns the port.
    return port if listening_socket(port) in open_files(pid) else None


def wait_for_line(log: Path, words: str) -> None:
    """Wait until a server has logged a line with these words. Raises RelayFailed after `START_TIMEOUT`."""
    deadline = time.monotonic() + START_TIMEOUT
    while words not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise RelayFailed(f"{last_line(log)}: no {words!r} within {START_TIMEOUT:g} s")
        time.sleep(LOOK)


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Check for a process's end without reaping it, so that its pid is not reused before `wait`."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a server, then kill the rest of its process group."""
    os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT
    while not has_ended(process) and time.monotonic() < deadline:
        time.sleep(LOOK)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def output_of(*command: str) -> bytes:
    """Run a command and return its stdout. Raises RelayFailed if its exit code is not 0."""
    done = subprocess.run(command, capture_output=True, timeout=START_TIMEOUT, check=False)
    if done.returncode:
        raise RelayFailed(f"{name_of(command)} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def name_of(command: Sequence[str]) -> str:
    """Return a short form of a command for messages: its first words, without directories."""
    return " ".join(Path(each).name for each in command[:4])


def last_line(log: Path) -> str:
    """Return the last line with words of a server's log: the traceback of a group ends with a rule."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if any(map(str.isalpha, line))]
    return lines[-1].strip(" |") if lines else "no output"


# Process information from /proc


def resident_kb(pid: int) -> int:
    """Return the resident memory of a process in kilobytes, 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def processor_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds, user and system, 0 if it has ended."""
    try:
        # Linux's number for the clock of another process. Its times in /proc are in hundredths of a second.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def listening_socket(port: int) -> str | None:
    """Return the kernel's name of the socket that listens on a port of 127.0.0.1, if any."""
    address, listens = f"0100007F:{port:04X}", "0A"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == address and fields[3] == listens:
            return f"socket:[{fields[9]}]"
    return None


def open_files(pid: int) -> set[str]:
    """Return the open files of a process; empty if it has ended."""
    found = set()
    try:
        for path in descriptors(pid):
            found.add(str(path.readlink()))
    except OSError:
        # The process has just ended or closed a file; `server` polls again.
        return set()
    return found


def descriptors(pid: int) -> list[Path]:
    """Return the paths of the file descriptors of a process; none if it has ended."""
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    try:
        return [
            int(each)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for each in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def program(pid: int) -> str | None:
    """Return the path of a process's program, None if it has ended."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return None
