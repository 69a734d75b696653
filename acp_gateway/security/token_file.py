"""Reads and replaces `state_dir/tokens.json`, the stored tokens of a gateway.

It is read only after a change, and replaced atomically. A file that cannot be trusted (others could have written or
read it, it is truncated, it cannot be read) counts as missing. Any number of processes may read and change it: changes
are made under a lock, and readers see the file before or after a change.
"""

import errno
import fcntl
import os
import pwd
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from acp_gateway.errors import ConfigError
from acp_gateway.security import token_format as tokens

Role = Literal["controller", "observer", "metrics"]
"""A controller has all rights of its identity; an observer only reads; `metrics` reads metrics and nothing else."""

_VERSION: Final = 3
"""Version of the file. Version 1 had no roles, sessions and expiry, version 2 no workspaces: a program of that age
would give full access to observers, expired tokens and tokens for some workspaces, so it must refuse a current file."""

_SETTLED_NS = 1_000_000_000
"""Two changes within one tick of the file system's clock (milliseconds; a second on old ones) leave the same times."""

Timestamp = Annotated[str, msgspec.Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
"""ISO 8601, UTC, to the second."""


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file. The token itself is not in it and cannot be found from it."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    label: str
    identity: str
    """The owner: all tokens of one identity are devices of one person."""
    agents: tuple[str, ...] | None
    """The names of the agents it may use; None for all."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created: str
    """ISO 8601, UTC."""
    role: Role = "controller"
    """The most that it allows; a connection may ask for less."""
    session: str | None = None
    """The only session that it opens; None for all sessions of its identity."""
    workspaces: tuple[str, ...] | None = None
    """The names of the workspaces that it may use; None for all."""
    expires: Timestamp | None = None
    """Time from which it is refused. None for a token that is valid until it is revoked."""
    rotated: Timestamp | None = None
    """Time of the last rotation; None for a token with its first secret."""
    former_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the secret before the last rotation."""
    former_until: Timestamp | None = None
    """Time until which the former secret is still accepted."""

    @property
    def kind(self) -> tokens.Kind:
        """The kind that its prefix shows; older tokens have the prefix of controllers."""
        return kind_of(self.role, self.session)

    def __repr__(self) -> str:
        return (
            f"Token(id={self.id!r}, label={self.label!r}, identity={self.identity!r}, agents={self.agents!r}, "
            f"role={self.role!r}, session={self.session!r}, workspaces={self.workspaces!r}, expires={self.expires!r}, "
            f"rotated={self.rotated!r})"
        )


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1, 2, 3]
    tokens: list[Token]


class _Version(msgspec.Struct):
    version: int


class TokenFile:
    """The stored tokens of one gateway."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._path = state_dir / "tokens.json"
        # Content of the file when it was last read.
        self._tokens: tuple[Token, ...] = ()
        # The file's status then; None if it must be read again in any case.
        self._signature: tuple[int, ...] | None = None

    def tokens(self) -> list[Token]:
        """Return all tokens, in the order of their creation; none if there is no file.

        Raises ConfigError if the file cannot be read or trusted.
        """
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return []
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
            self._tokens = self._read()
            if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
                self._signature = signature
        return list(self._tokens)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock, so that reading, changing and replacing the file is one step. Readers need no lock.

        Creates the directory. Raises ConfigError if it, or the file, cannot be written.
        """
        try:
            self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._open_lock()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise self._flaw(f"cannot be written: {error.strerror}") from None

    def write(self, entries: Sequence[Token]) -> None:
        """Replace the file. Must be called in `writing`."""
        content = msgspec.json.format(msgspec.json.encode(_Content(version=_VERSION, tokens=list(entries))), indent=2)
        new = self._state_dir / "tokens.json.new"
        new.unlink(missing_ok=True)  # Left by a writer that was killed.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            self._give_to_owner(file.fileno())
            file.write(content + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        # Without this a power cut could restore the former file, and a revoked token with it.
        directory = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read(self) -> tuple[Token, ...]:
        try:
            # O_NONBLOCK: a FIFO in its place would wait for a writer.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                self._check(os.fstat(descriptor))
                with open(descriptor, "rb", closefd=False) as file:
                    content = file.read()
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return ()
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._flaw("is a link, which is not followed: move the file itself here") from None
            raise self._flaw(f"cannot be read: {error.strerror}") from None
        try:
            version = msgspec.json.decode(content, type=_Version).version
            if version > _VERSION:
                raise self._flaw(f"was written by a newer acp-gateway (version {version} of the file); update this one")
            return tuple(msgspec.json.decode(content, type=_Content).tokens)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._flaw(
                f"is no list of tokens: {error}; restore it, or remove it and create the tokens again"
            ) from None

    def _check(self, status: os.stat_result) -> None:
        """Raise `ConfigError` for a file that others could have written, before any of it is read."""
        if not stat.S_ISREG(status.st_mode):
            raise self._flaw("is no file; remove it and create the tokens again")
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~0o600:
            raise self._flaw(f"others may use it (mode {mode:04o}): chmod 600 {self._path}")
        if status.st_uid not in self._trusted_owners():
            raise self._flaw(f"belongs to {login_name(status.st_uid)}: chown {login_name(os.geteuid())} {self._path}")

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
        path = self._state_dir / "tokens.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
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

    def _flaw(self, message: str) -> ConfigError:
        return ConfigError(message, file=str(self._path))


def kind_of(role: Role, session: str | None) -> tokens.Kind:
    """Return the kind of a token with this role and session."""
    return role if session is None else "guest"


def login_name(uid: int) -> str:
    """Return the login name of a user, or `uid-N` for an unknown one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
