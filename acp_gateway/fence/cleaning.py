"""Removes the temporary files of an agent, whatever it has made of them.

An agent can take permissions away, nest folders deeper than Python's stack, and leave a process behind that exchanges
folders for links while that happens. So folders are opened without following links and emptied one by one, with three
open at a time: what is in a folder of a folder is first moved up.
"""

import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


def remove(folder: str) -> None:
    """Remove a folder with all that is in it. It never raises: what stays is logged."""
    try:
        with _opened(folder) as top:
            _empty(top)
        os.rmdir(folder)
    except OSError as error:
        log.warning("cannot remove %s: %s", folder, error.strerror)


def own(folder: str) -> int:
    """Lock a folder as long as this process lives, so that `sweep` leaves it alone; return the descriptor to close."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        log.warning("%s cannot be locked: %s", folder, error.strerror)
    return descriptor


def sweep(scratch: str) -> int:
    """Remove the folders in `scratch` whose owner has ended, such as a gateway that was killed; return their count.

    It never raises.
    """
    count = 0
    for name in os.listdir(scratch) if os.path.isdir(scratch) else ():
        folder = os.path.join(scratch, name)
        if not _is_owned(folder):
            remove(folder)
            count += 1
    return count


def _is_owned(folder: str) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # Its agent has taken the permissions away. `remove` gives them back.
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _empty(top: int) -> None:
    waiting = os.listdir(top)
    while waiting:
        name = waiting.pop()
        if _unlink(name, top):
            continue
        with _opened(name, top) as folder:
            for inner in os.listdir(folder):
                if not _unlink(inner, folder):
                    # To be moved, it has to be writable.
                    with _opened(inner, folder):
                        pass
                    moved = secrets.token_hex(16)
                    os.rename(inner, moved, src_dir_fd=folder, dst_dir_fd=top)
                    waiting.append(moved)
        os.rmdir(name, dir_fd=top)


def _unlink(name: str, folder: int) -> bool:
    """Remove what is not a folder; return False for a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    return True


@contextmanager
def _opened(name: str, folder: int | None = None) -> Iterator[int]:
    """Open a folder, not by a link, and give it the permissions to be emptied."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        # Only by this name is it the folder that was opened, which need not be readable.
        os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)
        opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)
    try:
        yield opened
    finally:
        os.close(opened)
