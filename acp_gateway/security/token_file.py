"""The stored tokens of a gateway, in `state_dir/tokens.json`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from acp_gateway.security import token_format as tokens
from acp_gateway.security.private_file import PrivateFile

Role = Literal["controller", "observer", "metrics"]
"""A controller has all rights of its identity; an observer only reads; `metrics` reads metrics and nothing else."""

_VERSION: Final = 4
"""The newest version of the file. Version 1 had no roles, sessions and expiry, version 2 no workspaces: a program of
that age would give full access to observers, expired tokens and tokens for some workspaces, so it must refuse their
file. Version 3 had no `may_speak_for`: such a program would take everything of a door for the door's own."""

_SINCE: Final = {
    **dict.fromkeys(("role", "session", "expires"), 2),
    **dict.fromkeys(("workspaces", "rotated", "former_sha256", "former_until"), 3),
    **dict.fromkeys(("may_speak_for", "local"), 4),
}
"""The version that each member of an entry came with. A file is of the oldest version that has all members of its
entries, so that a program of that age, which may be running, goes on to read it."""

EVERYONE: Final = "*"
"""In `may_speak_for`: all identities."""

CLUSTER: Final = "cluster"
"""The id of the entry that stands for the token of the cluster; no token in the file can have it."""

IDENTITY_SIZE: Final = 256
"""Maximum characters of an identity that another gateway may act for: it is sent in a header."""

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
    may_speak_for: tuple[str, ...] = ()
    """The identities that another gateway may act for with it; `EVERYONE` for all."""
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
    def kind(self) -> tokens.Kind:
        """The kind that its prefix shows; older tokens have the prefix of controllers."""
        return kind_of(self.role, self.session)

    def __repr__(self) -> str:
        return (
            f"Token(id={self.id!r}, label={self.label!r}, identity={self.identity!r}, agents={self.agents!r}, "
            f"role={self.role!r}, session={self.session!r}, workspaces={self.workspaces!r}, "
            f"may_speak_for={self.may_speak_for!r}, expires={self.expires!r}, rotated={self.rotated!r})"
        )


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1, 2, 3, 4]
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


def kind_of(role: Role, session: str | None) -> tokens.Kind:
    """Return the kind of a token with this role and session."""
    return role if session is None else "guest"
