"""The gateway's `state_dir`: checks of its owner and mode, and the lock that admits one gateway at a time."""

import errno
import fcntl
import logging
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from acp_gateway.errors import ConfigError

log = logging.getLogger(__name__)

LOCK: Final = "gateway.lock"
"""In `state_dir`: locked by the gateway that runs on it, and holds the id of its process. The lock ends with the
process, however that ends."""

CONTROL_SOCKET: Final = "control"
"""In `state_dir`: the unix socket on which the running gateway answers its own user's commands."""

STATE_FILES: Final = (
    *(
        "ahp.json",
        "ahp.lock",
        "tokens.json",
        "tokens.lock",
        "browsers.json",
        "browsers.lock",
        "composers.json",
        "composers.lock",
        "invitations.json",
        "invitations.lock",
        "rules.json",
        "rules.lock",
        "push.json",
        "push.lock",
        "sessions.db",
        "sessions.db-wal",
        "sessions.db-shm",
        "search.db",
        "search.db-wal",
        "search.db-shm",
        "audit.jsonl",
        "agents",
    ),
    LOCK,
    CONTROL_SOCKET,
)
"""Files of a gateway in `state_dir`."""

LOCK_ATTEMPTS: Final = 3
LOCK_PAUSE: Final = 0.02
"""Seconds between two attempts to lock."""

_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def check_state_folder(state_dir: Path) -> None:
    """Raise `ConfigError` for a state folder, or a file of the gateway's in it, that another user may have made.

    The folder may be a link, which its user has made; the files in it may not. A missing folder passes.
    """
    try:
        status = state_dir.stat()
    except OSError:
        return
    key = "gateway.state_dir"
    mode = stat.S_IMODE(status.st_mode)
    if mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"other users may replace what is in {state_dir} (mode {mode:04o}): chmod 700 {state_dir}", key=key
        )
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0:
        # Root looks after the gateway of another user, or runs one on a folder that a container was given.
        trusted.add(status.st_uid)
    if status.st_uid not in trusted:
        raise ConfigError(f"{state_dir} belongs to another user (id {status.st_uid}): choose another folder", key=key)
    for name in STATE_FILES:
        check_state_file(state_dir / name, trusted)


def check_state_file(path: Path, trusted: set[int] | None = None) -> None:
    """Raise `ConfigError` for a file of the gateway's that is a link or belongs to another user.

    `trusted` are the ids of its users; root, this process's and, for root, the folder's where it is None. A missing
    file passes.
    """
    try:
        status = path.lstat()
    except OSError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise _flaw(path, "is a link, which is not followed: move the file itself here, or remove the link")
    if trusted is None:
        trusted = {0, os.geteuid(), *([path.parent.stat().st_uid] if os.geteuid() == 0 else [])}
    if status.st_uid not in trusted:
        raise _flaw(path, f"belongs to another user (id {status.st_uid}): remove it")


@contextmanager
def holding(state_dir: Path) -> Iterator[None]:
    """Keep other gateways off a state folder, as long as this block or this process lasts. Raises `ConfigError`."""
    path = state_dir / LOCK
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _flaw(path, f"cannot be opened: {error.strerror}") from None
    try:
        try:
            _lock(file)
        except BlockingIOError:
            raise ConfigError(
                f"another acp-gateway runs on {state_dir}{_by(_process_of(file, state_dir))}: stop it, or give this one"
                " a state_dir of its own",
                key="gateway.state_dir",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise _flaw(path, f"cannot be locked: {error.strerror}") from None
            log.warning("%s cannot be locked (%s): see to it that no other gateway uses it", path, error.strerror)
        _write_process(file, path)
        yield
    finally:
        os.close(file)


def _lock(file: int) -> None:
    """Lock the file. Raises `BlockingIOError` if another gateway has it, `OSError` if it can't be locked."""
    for _ in range(LOCK_ATTEMPTS - 1):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # `find_holder` of another process has it for a moment.
            time.sleep(LOCK_PAUSE)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_process(file: int, path: Path) -> None:
    """Write the id of this process over the last one; a full disk has room for it, unless the file is empty.

    It stays at the end: a file that was emptied would need room at the next start.
    """
    try:
        os.pwrite(file, b"%-19d\n" % os.getpid(), 0)
    except OSError as error:
        log.warning("%s cannot be written (%s): no command can name this process", path, error.strerror)
        try:
            os.truncate(file, 0)  # No other process's.
        except OSError:
            pass  # Nothing more can be done.


def find_holder(state_dir: Path) -> str | None:
    """Return a sentence that names the gateway running on a state folder; None if none does."""
    found = find_process(state_dir)
    return None if found is None else f"an acp-gateway runs on {state_dir}{_by(found)}"


def find_process(state_dir: Path) -> int | None:
    """Return the id of the gateway's process that runs on a state folder, 0 for an unknown one; None if none does."""
    try:
        file = os.open(state_dir / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        process = _process_in(file)
        # Without a process of that id, a lock that is tried here could only be in the way of one that is starting. One
        # that could not write its id has left the file empty.
        if process is not None and not _is_there(process):
            return None
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _process_of(file, state_dir)
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _process_in(file: int) -> int | None:
    text = os.pread(file, 20, 0).strip()
    return int(text) if text.isdigit() else None


def _process_of(file: int, state_dir: Path) -> int:
    """Return the id of the process that has the lock; 0 for an unknown one."""
    return _process_in(file) or _find_listener(state_dir / CONTROL_SOCKET)


def _find_listener(path: Path) -> int:
    """Return the id of the process that listens on a unix socket; 0 for an unknown one, as on systems but Linux."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    with socket.socket(socket.AF_UNIX) as probe:
        # Otherwise a full backlog would block.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError:
            return 0
        (process,) = struct.unpack_from("i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(process)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # Another user's.
    return True


def _by(process: int) -> str:
    return f" (process {process})" if process else ""


def _flaw(path: Path, message: str) -> ConfigError:
    return ConfigError(message, file=str(path))
