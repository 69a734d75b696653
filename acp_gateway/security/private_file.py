"""Reads and replaces a file of secrets in `state_dir`, which must be its owner's alone.

It is read only after a change, and replaced atomically. A file that cannot be trusted (others could have written or
read it, it is truncated, it cannot be read) counts as missing. A mode that a program of the same user has given it is
put right, if the content is still as it was. Any number of processes may read and change it: changes
are made under a lock, and readers see the file before or after a change.
"""

import errno
import fcntl
import hashlib
import logging
import os
import pwd
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from acp_gateway.errors import ConfigError
from acp_gateway.security.own_modes import mend

_log = logging.getLogger(__name__)

_SETTLED_NS = 1_000_000_000
"""Two changes within one tick of the file system's clock (milliseconds; a second on old ones) leave the same times."""

LOCK_PAUSE: Final = 0.002
"""Seconds between two attempts to take the lock. A writer keeps it for as long as the disk takes: some milliseconds."""

TAKE_BACK_ATTEMPTS: Final = 5
"""Attempts to take the lock for a file that others may write; another process has it for some milliseconds."""

_MODE: Final = 0o600

Content = TypeVar("Content")


class Version(msgspec.Struct):
    """As much of every such file as tells which program can read the rest."""

    version: int


class PrivateFile(Generic[Content]):
    """One file of secrets.

    Args:
        path: the file. Its lock is beside it, with the suffix `.lock`.
        version: the newest version of its content that is understood.
        decode: makes its content from bytes of a known version; raises `msgspec.DecodeError`.
        empty: the content of a missing file.
        what: what it holds, as in "list of tokens", and how a user makes it again.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        decode: Callable[[bytes], Content],
        empty: Content,
        what: tuple[str, str],
    ) -> None:
        self._path = path
        self._state_dir = path.parent
        self._version = version
        self._decode = decode
        self._empty = empty
        self._name, self._again = what
        # Content of the file when it was last read.
        self._content = empty
        # The file's status then; None if it must be read again in any case.
        self._signature: tuple[int, ...] | None = None
        # Hash of its bytes then.
        self._digest: bytes | None = None
        self._locked = False

    def content(self) -> Content:
        """Return the content; that of an empty one if there is no file.

        Raises ConfigError if the file cannot be read or trusted.
        """
        try:
            status = self._find()
        except FileNotFoundError:
            return self._empty
        except OSError as error:
            raise self._flaw(f"cannot be read: {error.strerror}") from None
        signature = (
            status.st_mtime_ns,
            status.st_ctime_ns,  # Unlike mtime, no process can set it back.
            status.st_size,
            status.st_ino,
            status.st_dev,
            status.st_mode,
            status.st_uid,
        )
        if signature != self._signature:
            self._signature = None
            self._content = self._read()
            if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
                self._signature = signature
        return self._content

    def _find(self) -> os.stat_result:
        try:
            return self._path.lstat()
        except PermissionError:
            mend(self._path, _MODE)
            return self._path.lstat()

    @contextmanager
    def writing(self, attempts: int | None = None) -> Iterator[None]:
        """Hold the write lock, so that reading, changing and replacing the file is one step. Readers need no lock.

        With `attempts` it is tried so often only, `LOCK_PAUSE` apart. Creates the directory. Raises ConfigError if it,
        or the file, cannot be written, or if another process keeps the lock.
        """
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            mend(self._state_dir, stat.S_IRWXU)
            lock = self._open_lock()
            try:
                self._take(lock, attempts)
                self._locked = True
                yield
            finally:
                self._locked = False
                os.close(lock)
        except OSError as error:
            raise self._flaw(f"cannot be written: {error.strerror}") from None

    def _take(self, lock: int, attempts: int | None) -> None:
        if attempts is None:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return
        for attempt in range(attempts):
            if attempt:
                time.sleep(LOCK_PAUSE)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return
        raise self._flaw("cannot be written now: another process keeps its lock")

    def write(self, content: msgspec.Struct) -> None:
        """Replace the file. Must be called in `writing`."""
        self._replace(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")

    def _replace(self, content: bytes) -> None:
        new = self._path.with_suffix(".json.new")
        new.unlink(missing_ok=True)  # Left by a writer that was killed.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            self._give_to_owner(file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        # Without this a power cut could restore the former file, and a revoked token with it.
        directory = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read(self) -> Content:
        try:
            content, mode = self._read_bytes()
        except FileNotFoundError:
            return self._empty
        except PermissionError:
            raise self._explain_refusal() from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._flaw("is a link, which is not followed: move the file itself here") from None
            raise self._flaw(f"cannot be read: {error.strerror}") from None
        if mode & ~_MODE:
            content = self._take_back(mode)
        try:
            version = msgspec.json.decode(content, type=Version).version
            if version > self._version:
                raise self._flaw(f"was written by a newer acp-gateway (version {version} of the file); update this one")
            decoded = self._decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._flaw(f"is not a {self._name}: {error}; restore it, or remove it and {self._again}") from None
        self._digest = hashlib.sha256(content).digest()
        return decoded

    def _read_bytes(self) -> tuple[bytes, int]:
        """Return the bytes of the file, and its mode. Raises `OSError`, and `ConfigError` for one not to be trusted."""
        # O_NONBLOCK: a FIFO in its place would wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._path, flags)
        except PermissionError:
            mend(self._path, _MODE)
            descriptor = os.open(self._path, flags)
        try:
            mode = self._check(os.fstat(descriptor))
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(), mode
        finally:
            os.close(descriptor)

    def _take_back(self, mode: int) -> bytes:
        """Put a new file with the same content in the place of one that others may write, and may have open; return the
        content. Raises `ConfigError` if it is not as it was."""
        with nullcontext() if self._locked else self.writing(attempts=TAKE_BACK_ATTEMPTS):
            content, _ = self._read_bytes()
            if hashlib.sha256(content).digest() != self._digest:
                raise self._open_to_others(mode)
            self._replace(content)
        _log.warning(
            "%s had the mode %04o, and the content that it had before: it is %04o again", self._path, mode, _MODE
        )
        return content

    def _open_to_others(self, mode: int) -> ConfigError:
        return self._flaw(f"others may use it (mode {mode:04o}): chmod 600 {self._path}")

    def _explain_refusal(self) -> ConfigError:
        """Return the error for a file that the system does not let this process open."""
        try:
            status = self._path.lstat()
        except OSError as error:
            return self._flaw(f"cannot be read: {error.strerror}")
        if status.st_uid != os.geteuid():
            return self._foreign(status.st_uid)
        mode = stat.S_IMODE(status.st_mode)
        if mode & stat.S_IRUSR:
            return self._flaw(f"cannot be read: {os.strerror(errno.EACCES)}")
        return self._flaw(f"its own user may not read it (mode {mode:04o}): chmod 600 {self._path}")

    def _check(self, status: os.stat_result) -> int:
        """Return the mode of the file. Raises `ConfigError` for one that others could have written, unless its content
        is known and can be compared."""
        if not stat.S_ISREG(status.st_mode):
            raise self._flaw(f"is not a file; remove it and {self._again}")
        if status.st_uid not in self._trusted_owners():
            raise self._foreign(status.st_uid)
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~_MODE and (self._digest is None or status.st_uid != os.geteuid()):
            raise self._open_to_others(mode)
        return mode

    def _trusted_owners(self) -> set[int]:
        owners = {0, os.geteuid()}
        if os.geteuid() == 0:
            # An administrator who lists or creates tokens of a gateway that runs as a user of its own.
            try:
                owners.add(self._state_dir.stat().st_uid)
            except OSError:
                pass  # It was removed at this moment, and has no owner any more.
        return owners

    def _open_lock(self) -> int:
        path = self._path.with_suffix(".lock")
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            mend(path, _MODE)
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        self._give_to_owner(lock)
        return lock

    def _give_to_owner(self, file: int) -> None:
        """Give a file that root has created to the gateway's own user, who must be able to read it.

        Only for a new file: in another user's directory, an existing one may be a link to anything.
        """
        if os.geteuid() == 0:
            owner = self._state_dir.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)

    def _foreign(self, owner: int) -> ConfigError:
        return self._flaw(f"belongs to {login_name(owner)}: chown {login_name(os.geteuid())} {self._path}")

    def _flaw(self, message: str) -> ConfigError:
        return ConfigError(message, file=str(self._path))


def login_name(uid: int) -> str:
    """Return the login name of a user, or `uid-N` for an unknown one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
