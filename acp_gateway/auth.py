"""Who may come in: the tokens that a gateway knows, at rest as SHA-256 in `state_dir/tokens.json`.

The file is the authority, not this process's memory: every question looks at it again, so a token counts from the
moment it is created, and stops counting the moment it is revoked, by whatever process. A look is one `stat`; the file
is read only where that differs from last time. A token that has a time to end at stops counting then, without any
change of the file.

A file that cannot be trusted (others could have written or read it, it is torn, it cannot be read) lets nobody in.
The command line gets the reason as a ConfigError; a client gets the one text that all refusals share, and the reason
goes to the log, once.
"""

import fcntl
import hmac
import logging
import math
import os
import pwd
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from acp_gateway import tokens
from acp_gateway.errors import ConfigError, Unauthorized, UsageError

Role = Literal["controller", "observer"]
"""A controller may do what its owner may; an observer may only look."""

_log = logging.getLogger(__name__)

_VERSION: Final = 2
"""Of the file. Version 1 had neither roles nor sessions nor ends: a program that knows no more than that would let
observers and those whose time is over do everything, so it has to refuse a file of today."""

_LONGEST_SESSION_ID = 1024
"""Characters. Agents use UUIDs and paths; what comes in at the door is bounded, and so is what is held against it."""

_SETTLED_NS = 1_000_000_000
"""Two changes within one tick of the file system's clock (milliseconds; a second on old ones) leave the same times."""


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file. The token itself is not in it and cannot be found from it."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    label: str
    identity: str
    """Whose it is: all tokens of one identity are devices of one person."""
    agents: tuple[str, ...] | None
    """The names of the agents it may use; None for all."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created: str
    """ISO 8601, UTC."""
    role: Role = "controller"
    """What it allows at most; a connection may ask for less."""
    session: str | None = None
    """The one session that it is for, and nothing else; None for whatever its identity may see."""
    expires: Annotated[str, msgspec.Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")] | None = (
        None
    )
    """ISO 8601, UTC, to the second: from then on it lets nobody in. None for one that lives until it is revoked."""

    def __repr__(self) -> str:
        return (
            f"Token(id={self.id!r}, label={self.label!r}, identity={self.identity!r}, agents={self.agents!r}, "
            f"role={self.role!r}, session={self.session!r}, expires={self.expires!r})"
        )


class _TokenFile(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1, 2]
    tokens: list[Token]


class _Version(msgspec.Struct):
    version: int


class TokenStore:
    """The tokens of one gateway. Any number of these, in any number of processes, may share one `state_dir`."""

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time) -> None:
        """`now` says the time, in seconds since 1970."""
        self._now = now
        self._state_dir = state_dir
        self._path = state_dir / "tokens.json"
        # What the file said when it was last read.
        self._tokens: tuple[Token, ...] = ()
        # How the file looked then; None where it has to be read again whatever it looks like.
        self._signature: tuple[int, ...] | None = None
        # Why the file lets nobody in, as last logged; None while it is good.
        self._complaint: str | None = None

    def tokens(self) -> list[Token]:
        """All tokens, in the order of their creation; none where there is no file.

        Raises ConfigError where the file cannot be read or trusted.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._flaw(f"cannot be read: {error.strerror}") from None
        signature = (
            status.st_mtime_ns,
            status.st_ctime_ns,  # Nobody can set this one back.
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

    def create(
        self,
        label: str,
        identity: str | None,
        agents: Sequence[str] | None,
        *,
        role: Role = "controller",
        session: str | None = None,
        lifetime: float | None = None,
    ) -> tuple[Token, str]:
        """Add a token; its entry, and its text, which is known now and never again.

        Without an identity it belongs to the gateway's own user; `agents` None is every agent, `session` None every
        session of the identity. It expires after `lifetime` seconds, rounded up to a whole second, or never. Creates
        the state directory. Raises UsageError for names that cannot be, ConfigError where the file cannot be read or
        written.
        """
        if identity is None:
            identity = default_identity(self._state_dir)
        _check_line("label", label)
        _check_line("identity", identity)
        if session is not None:
            _check_session(session)
        if agents is not None and not agents:
            raise UsageError("a token for no agent opens nothing; name one, or leave agents out for all of them")
        with self._writing():
            return self._add(self.tokens(), label, identity, agents, role, session, lifetime)

    def create_guest(
        self, session: str, *, role: Role, lifetime: float | None, label: str | None = None
    ) -> tuple[Token, str]:
        """Add a token for one session and nothing else, under an identity that no other token has.

        What it gives and raises is as with `create`. The session is not looked for: a token for one that is not there
        opens nothing.
        """
        label = "guest" if label is None else label
        _check_line("label", label)
        _check_session(session)
        with self._writing():
            known = self.tokens()
            identity = _draw({token.identity for token in known}, "guest-")
            return self._add(known, label, identity, None, role, session, lifetime)

    def revoke(self, token_id: str) -> Token:
        """Remove a token, which counts at once; what its entry was.

        Raises UsageError where there is none of that id, ConfigError where the file cannot be read or written.
        """
        revoked = next((token for token in self.tokens() if token.id == token_id), None)
        if revoked is None:
            # Not quoted: people take the token for its id.
            raise UsageError("no token has that id; `acp-gateway token list` shows the ids")
        with self._writing():
            self._write([token for token in self.tokens() if token.id != token_id])
        return revoked

    def has_expired(self, token: Token) -> bool:
        """Whether the token's time is over."""
        # Both are UTC in one form of one width: the order of the texts is that of the times.
        return token.expires is not None and token.expires <= _timestamp(self._now())

    def authenticate(self, secret: str | None) -> Token:
        """The entry of a token that somebody presents.

        Raises Unauthorized, with one text for every reason: whoever is outside learns nothing from it.
        """
        presented = tokens.digest(secret) if secret is not None and tokens.explain_flaw(secret) is None else ""
        found = None
        for token in self._trusted_tokens():
            # No early end: the time says nothing about which entries there are.
            if hmac.compare_digest(token.sha256, presented):
                found = token
        if found is None or self.has_expired(found):
            raise Unauthorized("no valid token; create one with `acp-gateway token create` on the gateway's machine")
        return found

    def is_current(self, token: Token) -> bool:
        """Whether a connection that was let in with this entry would be let in now, as the same.

        False also where its time is over, and where the entry was changed by hand: who it is, or what it may use, is
        not what it was.
        """
        return token in self._trusted_tokens() and not self.has_expired(token)

    def _add(
        self,
        known: list[Token],
        label: str,
        identity: str,
        agents: Sequence[str] | None,
        role: Role,
        session: str | None,
        lifetime: float | None,
    ) -> tuple[Token, str]:
        secret = tokens.mint()
        created = self._now()
        token = Token(
            id=_draw({token.id for token in known}),
            label=label,
            identity=identity,
            agents=None if agents is None else tuple(dict.fromkeys(agents)),
            sha256=tokens.digest(secret),
            created=_timestamp(created),
            role=role,
            session=session,
            # Rounded up: a token for one second would otherwise be for none.
            expires=None if lifetime is None else _timestamp(math.ceil(created + lifetime)),
        )
        self._write([*known, token])
        return token, secret

    def _trusted_tokens(self) -> list[Token]:
        try:
            known = self.tokens()
        except ConfigError as error:
            if str(error) != self._complaint:
                _log.error("nobody gets in with a token: %s", error)
                self._complaint = str(error)
            return []
        self._complaint = None
        return known

    def _read(self) -> tuple[Token, ...]:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._flaw(f"cannot be read: {error.strerror}") from None
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~0o600:
            raise self._flaw(f"others may use it (mode {mode:04o}): chmod 600 {self._path}")
        if status.st_uid not in self._trusted_owners():
            raise self._flaw(f"belongs to {_login_name(status.st_uid)}: chown {_login_name(os.geteuid())} {self._path}")
        try:
            version = msgspec.json.decode(content, type=_Version).version
            if version > _VERSION:
                raise self._flaw(f"was written by a newer acp-gateway (version {version} of the file); update this one")
            return tuple(msgspec.json.decode(content, type=_TokenFile).tokens)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._flaw(
                f"is no list of tokens: {error}; restore it, or remove it and create the tokens again"
            ) from None

    def _trusted_owners(self) -> set[int]:
        owners = {0, os.geteuid()}
        if os.geteuid() == 0:
            # An administrator who lists or creates tokens of a gateway that runs as a user of its own.
            try:
                owners.add(self._state_dir.stat().st_uid)
            except OSError:
                pass  # It was removed this very moment: then its owner is nobody.
        return owners

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep other writers out: each reads, changes and replaces the file as one step. Readers need no lock."""
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

    def _open_lock(self) -> int:
        path = self._state_dir / "tokens.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        self._give_to_owner(lock)
        return lock

    def _write(self, entries: list[Token]) -> None:
        content = msgspec.json.format(msgspec.json.encode(_TokenFile(version=_VERSION, tokens=entries)), indent=2)
        new = self._state_dir / "tokens.json.new"
        new.unlink(missing_ok=True)  # Left by a writer that was killed.
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            self._give_to_owner(file.fileno())
            file.write(content + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        # Without this a power cut could bring back the file of before, and a revoked token with it.
        directory = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _give_to_owner(self, file: int) -> None:
        """What root writes for a gateway that runs as a user of its own, that user has to be able to read.

        Only for a file just created: in a directory of somebody else's, an existing one may be a link to anything.
        """
        if os.geteuid() == 0:
            owner = self._state_dir.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)

    def _flaw(self, message: str) -> ConfigError:
        return ConfigError(message, file=str(self._path))


def default_identity(state_dir: Path) -> str:
    """The login name of the gateway's own user: who owns the state directory, or else who runs this."""
    try:
        uid = state_dir.stat().st_uid
    except OSError:
        uid = os.geteuid()
    return _login_name(uid)


def _login_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def _check_line(name: str, text: str) -> None:
    if not text.strip() or not text.isprintable():
        raise UsageError(f"a token's {name} has to be one line of printable text")


def _check_session(session: str) -> None:
    _check_line("session", session)
    if len(session) > _LONGEST_SESSION_ID:
        raise UsageError(f"a token's session has to be the id of one, at most {_LONGEST_SESSION_ID} characters")


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _draw(taken: set[str], prefix: str = "") -> str:
    """The prefix and eight random hex digits, together not among those that are taken."""
    while (new := prefix + secrets.token_hex(4)) in taken:
        pass
    return new
