"""Servers as processes: started, waited for until they listen, stopped with all that they have started.

What a server prints is in the file `log` of its folder. Should the benchmark be killed, the kernel tells its servers to
stop.
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

READY_WITHIN: Final = 20.0
GONE_WITHIN: Final = 10.0
"""Seconds that a server may take until it listens, and to stop; it is killed then."""

LOOK: Final = 0.002
"""Seconds between two looks at whether it does."""

LISTENING: Final = re.compile(r"listening on (?:\S+ )?(?:\S*:)?(\d+)\b.*\n")


class RelayFailed(Exception):
    """A relay could not be started, or has ended by itself; says in one line which, and what it said last."""


@dataclass(frozen=True)
class Started:
    """A server that listens."""

    pid: int
    port: int
    seconds: float


@contextmanager
def server(
    command: Sequence[str], directory: Path, *, port: int | None = None, prints: bool = True
) -> Iterator[Started]:
    """Run a server in a folder; without `port` it says itself where it listens, and without `prints` on stderr only."""
    log = directory / "log"
    # Whoever kills the benchmark means the relays too.
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
                raise RelayFailed(f"{name_of(command)} did not start: {last_words(log)}")
            if time.monotonic() > begun + READY_WITHIN:
                raise RelayFailed(f"{name_of(command)} does not listen after {READY_WITHIN:g} s: {last_words(log)}")
            time.sleep(LOOK)
        yield Started(process.pid, found, time.monotonic() - begun)
        if has_ended(process):
            raise RelayFailed(f"{name_of(command)} has ended: {last_words(log)}")
    finally:
        stop(process)


def listening_at(pid: int, port: int | None, log: Path) -> int | None:
    """The port where a server listens, if it does."""
    if port is None:
        found = LISTENING.search(log.read_text(errors="replace"))
        return int(found[1]) if found else None
    # To connect to it would tell nothing of whose port it is.
    return port if listening_socket(port) in open_files(pid) else None


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has; its number stays its own until somebody waits for it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server, and then whatever is left of its group."""
    os.kill(process.pid, signal.SIGTERM)
    given_up = time.monotonic() + GONE_WITHIN
    while not has_ended(process) and time.monotonic() < given_up:
        time.sleep(LOOK)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def output_of(*command: str) -> bytes:
    """What a command prints on stdout. Raises RelayFailed."""
    done = subprocess.run(command, capture_output=True, timeout=READY_WITHIN, check=False)
    if done.returncode:
        raise RelayFailed(f"{name_of(command)} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def name_of(command: Sequence[str]) -> str:
    """What a command is called in a message."""
    return " ".join(Path(each).name for each in command[:4])


def last_words(log: Path) -> str:
    """The last line that a server printed."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


# What the kernel knows of them


def resident_kb(pid: int) -> int:
    """Kilobytes of memory that a process has, 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def processor_seconds(pid: int) -> float:
    """Seconds that a process has used of a processor, for itself and in the kernel, 0 when it is gone."""
    try:
        # The name of the program is in parentheses, and may have anything in it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def listening_socket(port: int) -> str | None:
    """What the kernel calls the socket that listens at a port of 127.0.0.1, if one does."""
    address, listens = f"0100007F:{port:04X}", "0A"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == address and fields[3] == listens:
            return f"socket:[{fields[9]}]"
    return None


def open_files(pid: int) -> set[str]:
    """What a process has open; nothing when it is gone."""
    found = set()
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(path.readlink()))
    except OSError:
        # It has ended, or closed one meanwhile: whoever asks will look again.
        return set()
    return found


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are there."""
    try:
        return [
            int(each)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for each in (task / "children").read_text().split()
        ]
    except OSError:
        return []


def program(pid: int) -> str | None:
    """The file that a process runs, None when it is gone."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return None
