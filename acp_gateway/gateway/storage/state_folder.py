"""The gateway's `state_dir`: checks of its owner and mode, and the lock that admits one gateway at a time."""

import errno
import fcntl
import logging
import os
import stat
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
        "tokens.json",
        "tokens.lock",
        "browsers.json",
        "browsers.lock",
        "composers.json",
        "composers.lock",
        "invitations.json",
        "invitations.lock",
        "sessions.db",
        "sessions.db-wal",
        "sessions.db-shm",
        "audit.jsonl",
        "agents",
    ),
    LOCK,
    CONTROL_SOCKET,
)
"""Files of a gateway in `state_dir`."""

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
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another acp-gateway runs on {state_dir}{_by(_process_in(file))}: stop it, or give this one a"
                " state_dir of its own",
                key="gateway.state_dir",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise _flaw(path, f"cannot be locked: {error.strerror}") from None
            log.warning("%s cannot be locked (%s): see to it that no other gateway uses it", path, error.strerror)
        os.truncate(file, 0)
        os.pwrite(file, b"%d\n" % os.getpid(), 0)
        yield
        os.truncate(file, 0)
    finally:
        os.close(file)


def find_holder(state_dir: Path) -> str | None:
    """Return a sentence that names the gateway running on a state folder; None if none does."""
    try:
        file = os.open(state_dir / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        process = _process_in(file)
        # A gateway writes its id once it has the lock: without a process of that id, a lock that is tried here could
        # only be in the way of one that is starting.
        if process is None or not _is_there(process):
            return None
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"an acp-gateway runs on {state_dir}{_by(process)}"
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _process_in(file: int) -> int | None:
    text = os.pread(file, 20, 0).strip()
    return int(text) if text.isdigit() else None


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # Another user's.
    return True


def _by(process: int | None) -> str:
    return "" if process is None else f" (process {process})"


def _flaw(path: Path, message: str) -> ConfigError:
    return ConfigError(message, file=str(path))
