"""Writes a fence as arguments of bubblewrap, which gives a program a file system of its own.

What is not named there does not exist for the program.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Final

from acp_gateway.fence.landlock import KEPT_CAPABILITIES, open_place
from acp_gateway.fence.places import DEVICES
from acp_gateway.fence.plan import Fence

PROBE_TIMEOUT: Final = 10.0
"""Seconds for bubblewrap to run a program that does nothing: it takes some milliseconds."""

TEMPORARY: Final = "/tmp"  # noqa: S108 - it is the agent's own
"""Path at which the agent finds the folder for its temporary files."""

BY_DESCRIPTOR: Final = ("--ro-bind-fd", "--bind-fd")
"""Options that mount an open descriptor, to read and to write."""

_LINKS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders that are links into `/usr` on most systems."""


@cache
def find() -> str | None:
    """Return the path of a bubblewrap that works here, or None. Systems may forbid what it needs: it is tried once."""
    program = shutil.which("bwrap", path=search_path())
    if program is None:
        return None
    trial = [program, "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
    try:
        ended = subprocess.run(trial, capture_output=True, timeout=PROBE_TIMEOUT, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if ended.returncode == 0 else None


def search_path() -> str:
    """Return the folders in which bubblewrap is looked for: those of the system first, since PATH may begin with one of
    a project."""
    return os.pathsep.join(["/usr/bin", "/bin", *os.get_exec_path()])


@cache
def takes_descriptors(program: str) -> bool:
    """Return whether a bubblewrap mounts open descriptors (0.10 and newer, and Debian's 0.8), and the kernel opens
    paths without links (Linux 5.6 and newer)."""
    try:
        told = subprocess.run([program, "--help"], capture_output=True, timeout=PROBE_TIMEOUT, check=False)
        place = open_place("/")
    except (OSError, subprocess.TimeoutExpired):
        return False
    if place is not None:
        os.close(place)
    return b"--ro-bind-fd" in told.stdout + told.stderr


def arguments(fence: Fence, *, descriptors: bool) -> list[str]:
    """Return the arguments of bubblewrap for a fence, without the command.

    With `descriptors`, the launcher has to replace the path behind each of `BY_DESCRIPTOR`.
    """
    return [*_namespaces(fence), *_files(fence, descriptors=descriptors), "--chdir", fence.cwd]


def _namespaces(fence: Fence) -> Iterator[str]:
    yield from ("--die-with-parent", "--unshare-pid", "--unshare-ipc")
    yield from ("--cap-drop", "ALL")
    if os.geteuid() == 0:
        for name in KEPT_CAPABILITIES:
            yield from ("--cap-add", name)
    if fence.network == "off":
        yield "--unshare-net"


def _files(fence: Fence, *, descriptors: bool) -> Iterator[str]:
    read, write = BY_DESCRIPTOR if descriptors else ("--ro-bind-try", "--bind-try")
    yield from ("--proc", "/proc", "--dev", "/dev")
    if os.geteuid() == 0:
        # Root changes the kernel there, and bubblewrap does not notice that it may.
        for path in (
            "/proc/sys",
            "/proc/sysrq-trigger",
            "/proc/irq",
            "/proc/bus",
            "/proc/fs",
            "/proc/acpi",
            "/proc/scsi",
        ):
            yield from ("--ro-bind-try", path, path)
    for path in fence.devices:
        if path not in DEVICES:
            yield from ("--dev-bind-try", path, path)
    yield from ("--bind", fence.temporary, TEMPORARY)
    for link in dict.fromkeys((*_LINKS, *fence.links)):
        if os.path.islink(link):
            yield from ("--symlink", os.readlink(link), link)
    places: list[tuple[str, tuple[str, ...]]] = [(path, (read, path, path)) for path in fence.read]
    places += [(path, (write, path, path)) for path in fence.write if path != fence.temporary]
    places += [(path, (write, path, path)) for path in _between(fence)]
    for secret in fence.hidden:
        places.append((secret, ("--tmpfs", secret) if os.path.isdir(secret) else ("--ro-bind", "/dev/null", secret)))
    # A place below another one is mounted over it.
    for _, mount in sorted(places, key=lambda place: len(place[0])):
        yield from mount

    for secret in fence.hidden:
        if os.path.isdir(secret):
            yield from ("--remount-ro", secret)
    # What bubblewrap has made to hold these places is in memory: a write there would be lost.
    yield from ("--remount-ro", "/")


def _between(fence: Fence) -> Iterator[str]:
    """Yield the folders from each place to write down to those to read in it.

    Only what is mounted can't be renamed: the agent would move such a folder, with the place to read in it, to where
    its next fence does not expect it.
    """
    for place in fence.read:
        for above in fence.write:
            folder = os.path.dirname(place)
            while folder.startswith(above + "/"):
                yield folder
                folder = os.path.dirname(folder)
