"""Merges the tokens of one gateway with those that count on every node of its cluster. Pure, but for the file.

`tokens.json` stays the authority of each gateway. `cluster-tokens.json` remembers which entries were the same in the
directory at the last comparison, and which tokens were revoked. So a token that is missing in `tokens.json` was revoked
here, and one that is missing in the directory has to be written there again. A revocation wins over everything.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from acp_gateway.security.private_file import PrivateFile
from acp_gateway.security.token_store import Token

MAX_TOKENS: Final = 10_000
"""Maximum number of tokens that are taken from the directory: each check of a token compares all of them."""

MAX_REVOKED: Final = 10_000
"""Maximum number of revocations that are remembered, the latest ones, as in the directory."""

_VERSION: Final = 1


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of the last comparison."""

    entries: dict[str, str] = {}
    """The digest of each shared entry, by the id of the token."""
    revoked: tuple[str, ...] = ()
    """Ids of tokens that were revoked here or elsewhere, the latest at the end."""
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class Merge:
    """The consequences of a comparison."""

    tokens: list[Token]
    """The entries of `tokens.json` from now on."""
    put: list[Token]
    """Entries to write to the directory."""
    revoke: list[str]
    """Ids of tokens to revoke in the directory."""
    before: Known
    """To be remembered before anything is written to the directory."""
    after: Known
    """To be remembered when that is done."""


class KnownFile:
    """`cluster-tokens.json` of one gateway."""

    def __init__(self, state_dir: Path) -> None:
        what = "list of shared tokens", "restart the gateway"
        self._file = PrivateFile[Known](
            state_dir / "cluster-tokens.json", _VERSION, msgspec.json.Decoder(Known).decode, Known(), what
        )

    def read(self) -> Known:
        """Return the result of the last comparison. Raises `ConfigError` if the file can't be read or trusted."""
        return self._file.content()

    def write(self, known: Known) -> None:
        """Replace it, if it differs. Raises `ConfigError`."""
        if known != self._file.content():
            with self._file.writing():
                self._file.write(known)


def is_shared(token: Token) -> bool:
    """Return whether a token counts on every node. A guest's does not: its session is on this one."""
    return not token.local and token.session is None


def encode_token(token: Token) -> bytes:
    """Return the entry of a token for the directory."""
    return msgspec.json.encode(token)


def decode_token(token_id: str, entry: bytes) -> Token | None:
    """Return the token of an entry of the directory; None if it can't be one that is shared."""
    try:
        token = msgspec.json.decode(entry, type=Token)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return token if token.id == token_id and is_shared(token) else None


def merge(
    known: Known,
    local: Sequence[Token] | None,
    entries: Mapping[str, bytes] | None,
    revoked: Collection[str] = (),
    told: Sequence[Token] = (),
) -> Merge:
    """Compare the tokens of this gateway with those of the directory.

    Args:
        known: the result of the last comparison.
        local: the entries of `tokens.json`; None if there is no such file: nothing was revoked by that.
        entries: those of the directory; None while it is lost.
        revoked: the ids of the tokens that are revoked in the directory, or at another node.
        told: entries of another node, which replace those that were rotated earlier.
    """
    own = {token.id: token for token in local or ()}
    gone = [] if local is None else [token_id for token_id in known.entries if token_id not in own]
    all_revoked = tuple(dict.fromkeys((*known.revoked, *revoked, *gone)))[-MAX_REVOKED:]
    refused = frozenset(all_revoked)
    if entries is None:
        if local is None:
            kept = known.entries
        else:
            own |= {token.id: token for token in told if _is_later(token, own.get(token.id))}
            # Other nodes have these: what is revoked of them has to be known. No entry has this digest.
            told_ones = {token.id: "" for token in own.values() if is_shared(token) and token.rotated is not None}
            kept = {name: digest for name, digest in (told_ones | dict(known.entries)).items() if name not in refused}
        rest = Known(kept, all_revoked)
        left = [token for token in own.values() if token.id not in refused or not is_shared(token)]
        return Merge(left, [], [], rest, rest)
    theirs = {token_id: decode_token(token_id, entry) for token_id, entry in entries.items()}
    tokens: list[Token] = []
    put: list[Token] = []
    digests: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for token in own.values():
        if not is_shared(token):
            tokens.append(token)
            continue
        if token.id in refused:
            continue
        chosen, is_written = _choose(token, theirs, known.entries.get(token.id))
        tokens.append(chosen)
        digests[token.id] = _digest(chosen)
        if is_written:
            put.append(chosen)
            # Until it is written, the former one counts as the same.
            unsure[token.id] = known.entries.get(token.id, digests[token.id])
    for token_id, found in theirs.items():
        if found is not None and token_id not in own and token_id not in refused and len(tokens) < MAX_TOKENS:
            tokens.append(found)
            digests[token_id] = _digest(found)
    revoke = [token_id for token_id in all_revoked if token_id not in revoked]
    return Merge(tokens, put, revoke, Known(digests | unsure, all_revoked), Known(digests, all_revoked))


def _is_later(token: Token, own: Token | None) -> bool:
    """Return whether another node has this entry in the place of one here, or of none."""
    if own is None:
        return True
    return is_shared(own) and own.created == token.created and own.changed < token.changed


def _choose(token: Token, theirs: Mapping[str, Token | None], base: str | None) -> tuple[Token, bool]:
    """Return the entry that counts, and whether it has to be written to the directory."""
    if token.id not in theirs:
        return token, True
    other = theirs[token.id]
    # An entry that is not understood may be of a newer version.
    if other is None or other == token:
        return token, False
    if other.created == token.created and other.changed < token.changed:
        # The directory has it from before a rotation: it was not told, or a former entry was put back.
        return token, True
    if base == _digest(token):
        return other, False
    if base == _digest(other):
        return token, True
    if base is None and other.created != token.created:
        # Two tokens that have drawn the same id: each counts where it was made.
        return token, False
    return (token, True) if token.changed >= other.changed else (other, False)


def _digest(token: Token) -> str:
    return hashlib.sha256(encode_token(token)).hexdigest()
