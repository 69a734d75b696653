"""Creates, rotates, revokes and verifies the tokens of a gateway, stored as SHA-256 in `state_dir/tokens.json`.

The file is the authority, not this process's memory: every check looks at it again, so a token is valid from its
creation to its revocation, by whatever process. A check costs one `stat`; the file is read only if that differs from
last time. A token with an expiry becomes invalid then, without any change of the file.

With a file that cannot be trusted every token is refused. The command line gets the reason as a ConfigError; a client
gets the one text that all refusals share, and the reason is logged, once.
"""

import hmac
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from acp_gateway.errors import ConfigError, Unauthorized, UsageError
from acp_gateway.security import token_format as tokens
from acp_gateway.security.private_file import PrivateFile, login_name

_log = logging.getLogger(__name__)


Role = Literal["controller", "observer", "metrics", "tunnel", "node"]
"""A controller has all rights of its identity; an observer only reads; `metrics` reads metrics and nothing else;
`tunnel` opens tunnels to nodes, `node` lends connections to one, and nothing else."""

_VERSION: Final = 7
"""The newest version of the file. Version 1 had no roles, sessions and expiry, version 2 no workspaces: a program of
that age would give full access to observers, expired tokens and tokens for some workspaces, so it must refuse their
file. Version 3 had no `may_speak_for`: such a program would take everything of a door for the door's own. Version 4 had
no tunnels, version 5 neither `files` nor `ports`, version 6 no `made_for`: it would take a token from a window
everywhere."""

_SINCE: Final = {
    **dict.fromkeys(("role", "session", "expires"), 2),
    **dict.fromkeys(("workspaces", "rotated", "former_sha256", "former_until"), 3),
    **dict.fromkeys(("may_speak_for", "local"), 4),
    "nodes": 5,
    "files": 6,
    "ports": 6,
    "made_for": 7,
}
"""The version that each member of an entry came with. A file is of the oldest version that has all members of its
entries, so that a program of that age, which may be running, goes on to read it."""

MadeFor = Literal["vscode"]
"""Programs that show their token in the query of a URL, so that it is for nothing else: windows of VS Code."""

PURPOSES: Final[Mapping[str, str]] = {
    "metrics": "reading metrics",
    "tunnel": "tunnels to nodes",
    "node": "a node that lends its connections",
}
"""The one purpose of a token, by its role, where it opens no session."""

EVERYONE: Final = "*"
"""In `may_speak_for`: all identities."""

MAX_DIGESTS: Final = 4096
"""Maximum digests of secrets that are kept in memory besides those in the file."""

CLUSTER: Final = "cluster"
"""The id of the entry that stands for the token of the cluster; no token in the file can have it."""

BELOW: Final = "/"
"""Stands between the identity of another gateway and that of a client there for which its token may not speak."""

IDENTITY_SIZE: Final = 256
"""Maximum characters of an identity that another gateway may act for: it is sent in a header."""

Timestamp = Annotated[str, msgspec.Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
"""ISO 8601, UTC, to the second."""

_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


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
    may_speak_for: tuple[str, ...] = ()
    """The identities that another gateway may act for with it; `EVERYONE` for all."""
    nodes: tuple[str, ...] = ()
    """The names of the nodes to which it opens tunnels, with the role `tunnel`; that of the node, with `node`."""
    files: bool = False
    """True if a guest may use the files of its session; others always may."""
    ports: bool = False
    """True if a guest or an observer may use the ports of agents; controllers always may."""
    made_for: MadeFor | None = None
    """The programs that it is for, at a listener of their own; None for all others."""
    local: bool = False
    """True if it counts on this gateway only, and not on every node of its cluster."""
    expires: Timestamp | None = None
    """Time from which it is refused. None for a token that is valid until it is revoked."""
    rotated: Timestamp | None = None
    """Time of the last rotation; None for a token with its first secret."""
    former_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the secret before the last rotation."""
    former_until: Timestamp | None = None
    """Time until which the former secret is still accepted."""

    @property
    def changed(self) -> str:
        """The time of its last rotation, or of its creation: of two entries, the one with the later is in force."""
        return self.rotated or self.created

    @property
    def kind(self) -> tokens.Kind:
        """The kind that its prefix shows; older tokens have the prefix of controllers."""
        return kind_of(self.role, self.session, self.made_for)

    def __repr__(self) -> str:
        return (
            f"Token(id={self.id!r}, label={self.label!r}, identity={self.identity!r}, agents={self.agents!r}, "
            f"role={self.role!r}, session={self.session!r}, workspaces={self.workspaces!r}, "
            f"may_speak_for={self.may_speak_for!r}, nodes={self.nodes!r}, files={self.files!r}, "
            f"ports={self.ports!r}, made_for={self.made_for!r}, "
            f"expires={self.expires!r}, rotated={self.rotated!r})"
        )


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1, 2, 3, 4, 5, 6, 7]
    tokens: list[Token]


class _Written(msgspec.Struct):
    """The content as it is written: entries without members that have their default."""

    version: int
    tokens: list[dict[str, object]]


class TokenFile:
    """The stored tokens of one gateway."""

    def __init__(self, state_dir: Path) -> None:
        what = "list of tokens", "create the tokens again"
        self._file = PrivateFile[tuple[Token, ...]](state_dir / "tokens.json", _VERSION, _decode, (), what)

    def tokens(self) -> list[Token]:
        """Return all tokens, in the order of their creation; none if there is no file.

        Raises ConfigError if the file cannot be read or trusted.
        """
        return list(self._file.content())

    def writing(self) -> AbstractContextManager[None]:
        """Hold the write lock, as `PrivateFile.writing`."""
        return self._file.writing()

    def write(self, entries: Sequence[Token]) -> None:
        """Replace the file. Must be called in `writing`."""
        written = [_encode(token) for token in entries]
        version = max((_SINCE.get(name, 1) for entry in written for name in entry), default=1)
        self._file.write(_Written(version, written))


def _decode(content: bytes) -> tuple[Token, ...]:
    return tuple(msgspec.json.decode(content, type=_Content).tokens)


def _encode(token: Token) -> dict[str, object]:
    """Return the members of an entry that differ from their defaults."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Token)}
    return {name: value for name, value in msgspec.to_builtins(token).items() if getattr(token, name) != defaults[name]}


def kind_of(role: Role, session: str | None, made_for: MadeFor | None = None) -> tokens.Kind:
    """Return the kind of a token with this role and session, made for these programs."""
    return made_for or (role if session is None else "guest")


__all__ = ["Role", "Token", "TokenStore", "default_identity"]


_MAX_SESSION_ID_LENGTH = 1024
"""Characters. Agents use UUIDs and paths; the handshake accepts no longer id of a session either."""


class _Rights(NamedTuple):
    """The rights of a new token."""

    agents: Sequence[str] | None
    role: Role
    session: str | None
    workspaces: Sequence[str] | None = None
    may_speak_for: Sequence[str] = ()
    nodes: Sequence[str] = ()
    local: bool = False
    files: bool = False
    ports: bool = False
    made_for: MadeFor | None = None


class TokenStore:
    """The tokens of one gateway. Any number of these, in any number of processes, may share one `state_dir`."""

    def __init__(self, state_dir: Path, now: Callable[[], float] = time.time) -> None:
        """Use the tokens in `state_dir`; `now` returns the time, in seconds since 1970."""
        self._now = now
        self._state_dir = state_dir
        self._file = TokenFile(state_dir)
        # The reason why all tokens are refused, as last logged; None while the file is good.
        self._complaint: str | None = None
        self._digests: dict[str, None] = {}
        # Tokens that are not in the file: that of the cluster.
        self._further: tuple[Token, ...] = ()

    def tokens(self) -> list[Token]:
        """Return all tokens, in the order of their creation; none if there is no file.

        Raises ConfigError if the file cannot be read or trusted.
        """
        return self._file.tokens()

    def account_of(self, identity: str) -> str:
        """Return the identity for whose limits a name counts: for one below the identity of a token, that."""
        if BELOW not in identity:
            return identity
        try:
            own = {token.identity for token in self.tokens()}
        except ConfigError:
            return identity  # What can't be read is told elsewhere.
        above = [name for name in own if identity.startswith(f"{name}{BELOW}")]
        return identity if identity in own else min(above, key=len, default=identity)

    def accept_cluster(self, secret: str) -> None:
        """Accept the token of the cluster, with which other nodes connect; no list shows it."""
        cluster = Token(
            id=CLUSTER,
            label=CLUSTER,
            identity=default_identity(self._state_dir),
            agents=None,
            sha256=tokens.digest(secret),
            created=_timestamp(self._now()),
            may_speak_for=(EVERYONE,),
        )
        self._further = (*self._further, cluster)

    def lend_to(self, name: str) -> str:
        """Make a token for the door of this name, which is in no file: this gateway tells it when it lends connections.

        It is that of the gateway's own user, and may not speak for others. Returns its text.
        """
        secret = tokens.mint()
        door = Token(
            id=secrets.token_hex(4),
            label=f"the door {name}",
            identity=default_identity(self._state_dir),
            agents=None,
            sha256=tokens.digest(secret),
            created=_timestamp(self._now()),
            local=True,
        )
        self.end_lending(name)
        self._further = (*self._further, door)
        return secret

    def end_lending(self, name: str) -> None:
        """Accept the token of this door no more, if there is one."""
        self._further = tuple(token for token in self._further if token.label != f"the door {name}")

    def create(  # noqa: PLR0913 - a keyword for each right.
        self,
        label: str,
        identity: str | None,
        agents: Sequence[str] | None,
        *,
        role: Role = "controller",
        session: str | None = None,
        workspaces: Sequence[str] | None = None,
        may_speak_for: Sequence[str] = (),
        nodes: Sequence[str] = (),
        local: bool = False,
        files: bool = False,
        ports: bool = False,
        made_for: MadeFor | None = None,
        lifetime: float | None = None,
    ) -> tuple[Token, str]:
        """Add a token; return its entry and its text, which is not stored.

        Without an identity it belongs to the gateway's own user; `agents` None is every agent, `session` None every
        session of the identity, `workspaces` None every workspace. `may_speak_for` are the identities that another
        gateway may act for with it, `nodes` those of a token of the roles `tunnel` and `node`; such a token is local.
        With `files`, a guest may use the files of its session; with `ports`, an observer may use the ports of agents.
        With `made_for` it is good for those programs only.
        It expires after `lifetime` seconds, rounded up to a whole second, or never.
        Creates the state directory. Raises UsageError for invalid names, ConfigError if the file cannot be read or
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
        if workspaces is not None and not workspaces:
            raise UsageError("a token for no workspace opens no session; name one, or leave them out for all of them")
        if role in PURPOSES and (agents, session, workspaces) != (None, None, None):
            raise UsageError(f"a token of the role {role} opens no session: leave agents, workspaces and session out")
        if (role in ("tunnel", "node")) is not bool(nodes):
            raise UsageError("a token of the role tunnel is for nodes, and no other one is: --role tunnel --node NAME")
        _check_spoken(may_speak_for, role, session)
        if made_for is not None and (role in PURPOSES or may_speak_for):
            raise UsageError(f"a token for {made_for} is a person's: its role is controller or observer, for no others")
        with self._file.writing():
            is_local = local or role in ("tunnel", "node")
            rights = _Rights(agents, role, session, workspaces, may_speak_for, nodes, is_local, files, ports, made_for)
            return self._add(self.tokens(), label, identity, rights, lifetime)

    def create_guest(
        self,
        session: str,
        *,
        role: Role,
        lifetime: float | None,
        label: str | None = None,
        files: bool = False,
        ports: bool = False,
    ) -> tuple[Token, str]:
        """Add a token for one session and nothing else, under an identity that no other token has.

        Returns and raises as `create`. The session need not exist; a token for a missing one opens nothing.
        """
        label = "guest" if label is None else label
        _check_line("label", label)
        _check_session(session)
        with self._file.writing():
            known = self.tokens()
            identity = _draw({token.identity for token in known}, "guest-")
            return self._add(known, label, identity, _Rights(None, role, session, files=files, ports=ports), lifetime)

    def find(self, token_id: str) -> Token:
        """Return the entry of a token.

        Raises UsageError if there is none of that id, ConfigError if the file cannot be read or trusted.
        """
        known = self.tokens()
        for token in known:
            if token.id == token_id:
                return token
        if labelled := [token.id for token in known if token.label == token_id]:
            raise UsageError(f"that is a label, not the id of a token: {' or '.join(labelled)}")
        # The argument is not quoted: users mistake the token for its id.
        if tokens.explain_flaw(token_id) is not None:
            raise UsageError("no token has that id; `acp-gateway token list` shows the ids")
        shown = self.identify(token_id)
        if shown is None:
            raise UsageError("that is a token, not the id of one; `acp-gateway token list` shows the ids")
        raise UsageError(
            f"that is the token itself, which your shell may have kept; its id is {shown.id}, and "
            f"`acp-gateway token rotate {shown.id}` makes it worthless and gives you another"
        )

    def rotate(
        self, token_id: str, lifetime: float | Literal["as before"] | None = "as before", *, grace: float = 0.0
    ) -> tuple[Token, str]:
        """Give a token a new secret, and optionally a new expiry; return its entry and its text, which is not stored.

        The old secret is accepted for `grace` seconds more; the one before it is refused at once. The new expiry is
        `lifetime` seconds from now, rounded up to a whole second, or never. Raises UsageError if there is no token of
        that id, or it has expired and gets no new expiry; ConfigError if the file cannot be read or written.
        """
        self.find(token_id)
        with self._file.writing():
            old = self.find(token_id)
            now = self._now()
            if not isinstance(lifetime, str):
                expires = _end(now, lifetime)
            elif self.has_expired(old):
                raise UsageError(f"token {old.id} expired at {old.expires}; give it a new end with --expires")
            else:
                expires = old.expires
            secret = tokens.mint(old.kind)
            rotated = msgspec.structs.replace(
                old,
                sha256=tokens.digest(secret),
                # Later than before also within a second, and by another node's clock: it orders the entries.
                rotated=_timestamp(max(now, _seconds(old.changed) + 1)),
                expires=expires,
                former_sha256=old.sha256 if grace else None,
                former_until=_timestamp(now + grace) if grace else None,
            )
            self._file.write([rotated if token.id == token_id else token for token in self.tokens()])
            return rotated, secret

    def revoke(self, token_id: str) -> Token:
        """Remove a token, with effect at once; return its former entry.

        Raises UsageError if there is none of that id, ConfigError if the file cannot be read or written.
        """
        self.find(token_id)
        with self._file.writing():
            revoked = self.find(token_id)
            self._file.write([token for token in self.tokens() if token.id != token_id])
        return revoked

    def keep(self, token_id: str) -> Token:
        """Remove the expiry of a token; return its entry.

        Raises UsageError if there is none of that id, or it has expired; ConfigError if the file cannot be read or
        written.
        """
        with self._file.writing():
            old = self.find(token_id)
            if self.has_expired(old):
                raise UsageError(f"token {old.id} expired at {old.expires}; make another")
            kept = msgspec.structs.replace(old, expires=None)
            self._file.write([kept if token.id == token_id else token for token in self.tokens()])
        return kept

    def change(self, change: Callable[[list[Token]], list[Token]]) -> bool:
        """Replace all tokens by what `change` makes of them; return whether they have changed.

        Raises ConfigError if the file cannot be read or written.
        """
        with self._file.writing():
            before = self.tokens()
            after = change(before)
            if after != before:
                self._file.write(after)
        return after != before

    def has_expired(self, token: Token) -> bool:
        """Return whether a token has expired."""
        # Both are UTC in one form of one width: the order of the texts is that of the times.
        return token.expires is not None and token.expires <= _timestamp(self._now())

    def identify(self, secret: str | None) -> Token | None:
        """Return the entry of a presented token, even if it has expired; None for an unknown one.

        It grants nothing; `authenticate` does.
        """
        presented = tokens.digest(secret) if secret is not None and tokens.explain_flaw(secret) is None else ""
        return self._by_digest(presented)

    def digests(self) -> Collection[str]:
        """Return the digests by which this gateway is known to clients, also of secrets that are not accepted any more.

        So a client of this process, whose token was revoked, still shows it and is refused.
        """
        known = [each for token in self._trusted_tokens() for each in (token.sha256, token.former_sha256) if each]
        self._digests = dict.fromkeys([*list(self._digests)[-MAX_DIGESTS:], *known])
        return self._digests

    def find_current(self, token_id: str, sha256: str) -> Token | None:
        """Return the entry of a token by its id and the digest of its secret; None if that is not accepted any more."""
        found = self._by_digest(sha256)
        return found if found is not None and found.id == token_id and self.is_current(found) else None

    def _by_digest(self, presented: str) -> Token | None:
        found = None
        for token in self._trusted_tokens():
            # No early exit: the time taken must not tell which entries exist.
            if hmac.compare_digest(token.sha256, presented):
                found = token
            if hmac.compare_digest(token.former_sha256 or token.sha256, presented):
                # As the entry was when connections authenticated with it before.
                found = msgspec.structs.replace(token, sha256=presented, former_sha256=None, former_until=None)
        return found

    def authenticate(self, secret: str | None) -> Token:
        """Return the entry of a presented token.

        Raises Unauthorized, with one text for every reason, so that an unauthenticated client learns nothing from it.
        """
        found = self.identify(secret)
        if found is None or not self.is_current(found):
            raise Unauthorized("no valid token; create one with `acp-gateway token create` on the gateway's machine")
        return found

    def has_identity(self, identity: str) -> bool:
        """Return whether an identity has a token of its own."""
        return any(token.identity == identity for token in self._trusted_tokens())

    def valid_ids(self) -> set[str]:
        """Return the ids of the tokens that are accepted."""
        return {token.id for token in self._trusted_tokens() if not self.has_expired(token)}

    def lists(self, token_id: str) -> bool:
        """Return False for a token of this process alone: that of its cluster, or one that was made for a door."""
        return all(token.id != token_id for token in self._further)

    def valid(self, token_id: str) -> Token | None:
        """Return the token with this id; None if no token has it, or if the token has expired."""
        known = (token for token in self._trusted_tokens() if token.id == token_id)
        return next((token for token in known if not self.has_expired(token)), None)

    def is_current(self, token: Token) -> bool:
        """Return whether a connection that was authenticated with this entry would be now, with the same rights.

        False also if the token has expired, if it was rotated and the former secret's grace is over, and if the entry
        was changed by hand, so that its identity or its rights are different.
        """
        known = self._trusted_tokens()
        return not self.has_expired(token) and (token in known or any(self._is_former(token, other) for other in known))

    def _is_former(self, token: Token, known: Token) -> bool:
        """Return whether `token` is `known` before its rotation, and still accepted."""
        if known.former_sha256 != token.sha256 or known.former_until is None or self.has_expired(known):
            return False
        is_same = _as_before(known, token.sha256) == _as_before(token, token.sha256)
        return is_same and known.former_until > _timestamp(self._now())

    def is_rotated(self, token: Token) -> bool:
        """Return whether only a rotation made this entry outdated, and the new secret has the same rights.

        A connection that was authenticated with the old secret must authenticate again with the new one.
        """
        for known in self._trusted_tokens():
            if known.id == token.id and known.sha256 != token.sha256 and not self.has_expired(known):
                return _as_before(known, token.sha256) == _as_before(token, token.sha256)
        return False

    def _add(
        self,
        known: list[Token],
        label: str,
        identity: str,
        rights: _Rights,
        lifetime: float | None,
    ) -> tuple[Token, str]:
        secret = tokens.mint(kind_of(rights.role, rights.session, rights.made_for))
        created = self._now()
        token = Token(
            id=_draw({token.id for token in known}),
            label=label,
            identity=identity,
            agents=None if rights.agents is None else tuple(dict.fromkeys(rights.agents)),
            sha256=tokens.digest(secret),
            created=_timestamp(created),
            role=rights.role,
            session=rights.session,
            workspaces=None if rights.workspaces is None else tuple(dict.fromkeys(rights.workspaces)),
            may_speak_for=tuple(dict.fromkeys(rights.may_speak_for)),
            nodes=tuple(dict.fromkeys(rights.nodes)),
            files=rights.files,
            ports=rights.ports,
            made_for=rights.made_for,
            local=rights.local,
            expires=_end(created, lifetime),
        )
        self._file.write([*known, token])
        return token, secret

    def _trusted_tokens(self) -> list[Token]:
        try:
            known = self.tokens()
        except ConfigError as error:
            if str(error) != self._complaint:
                _log.error("no token is accepted: %s", error)
                self._complaint = str(error)
            return []
        self._complaint = None
        return [*known, *self._further]


def default_identity(state_dir: Path) -> str:
    """Return the login name of the gateway's own user: the owner of the state directory, or else of this process."""
    try:
        uid = state_dir.stat().st_uid
    except OSError:
        uid = os.geteuid()
    return login_name(uid)


def _seconds(timestamp: str) -> float:
    return datetime.strptime(timestamp, _TIME_FORMAT).replace(tzinfo=UTC).timestamp()


def _as_before(token: Token, sha256: str) -> Token:
    """Return an entry with another secret, and without the fields that a rotation changes."""
    return msgspec.structs.replace(
        token, sha256=sha256, rotated=None, expires=None, former_sha256=None, former_until=None
    )


def _check_line(name: str, text: str) -> None:
    if not text.strip() or not text.isprintable():
        raise UsageError(f"a token's {name} has to be one line of printable text")


def _check_session(session: str) -> None:
    _check_line("session", session)
    if len(session) > _MAX_SESSION_ID_LENGTH:
        raise UsageError(f"a token's session has to be the id of one, at most {_MAX_SESSION_ID_LENGTH} characters")


def _check_spoken(identities: Sequence[str], role: Role, session: str | None) -> None:
    if identities and (role in PURPOSES or session is not None):
        raise UsageError(f"a token that may speak for others is a door's: leave the role {role} and the session out")
    for identity in identities:
        _check_line("identity", identity)
        if len(identity) > IDENTITY_SIZE:
            raise UsageError(f"a token may speak for identities of at most {IDENTITY_SIZE} characters")


def _end(now: float, lifetime: float | None) -> str | None:
    # Rounded up: a token for one second would otherwise be for none.
    return None if lifetime is None else _timestamp(math.ceil(now + lifetime))


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(_TIME_FORMAT)


def _draw(taken: set[str], prefix: str = "") -> str:
    """Return the prefix and eight random hex digits that are not taken yet."""
    while (new := prefix + secrets.token_hex(4)) in taken:
        pass
    return new
