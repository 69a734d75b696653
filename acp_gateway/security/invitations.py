"""Invitations: one-use codes for which a program gets a token, in `state_dir/invitations.json`.

A token must not be sent around: it stays valid, and a command line keeps it in a history. So the owner makes a token
whose text is not kept, and a code bound to it. The first program that shows the code, within minutes, has the token
rotated and gets its new text. The file has the SHA-256 of codes only.
"""

import hmac
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from acp_gateway.errors import ConfigError, Unauthorized, UsageError
from acp_gateway.security import token_format
from acp_gateway.security.private_file import PrivateFile
from acp_gateway.security.token_store import Timestamp, Token, TokenStore

_log = logging.getLogger(__name__)

LIFETIME: Final = 600.0
"""Seconds for which a code is valid: long enough to send it and to install the program, too short to be found later."""

MAX_INVITATIONS: Final = 64
"""Maximum unused codes; a further one makes the oldest worthless."""

LOCK_ATTEMPTS: Final = 50
"""Attempts to take the lock of the file. The gateway's event loop waits for it."""

FILE_NAME: Final = "invitations.json"

NO_INVITATION: Final = (
    "this invitation is not valid: it can be used once, within 10 minutes; `acp-gateway share` on the gateway's "
    "machine makes another"
)
"""Refusal of every code: one that never existed, was used, or has expired."""

_VERSION: Final = 1

_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An unused code."""

    sha256: _Digest
    token_id: str
    token_sha256: _Digest
    expires: Timestamp

    def __repr__(self) -> str:
        return f"Invitation(token={self.token_id!r}, expires={self.expires!r})"


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1] = _VERSION
    invitations: tuple[Invitation, ...] = ()


class InvitationStore:
    """The unused invitations of one gateway. Any number of these, in any number of processes, may share a `state_dir`.

    Args:
        state_dir: the folder of the file.
        tokens: the tokens that codes are bound to.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, state_dir: Path, tokens: TokenStore, now: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._now = now
        what = "list of invitations", "make the invitations again"
        self._file = PrivateFile[_Content](state_dir / FILE_NAME, _VERSION, _decode, _Content(), what)

    def invite(self, token: Token) -> tuple[Invitation, str]:
        """Add a code, bound to a token as it is now; return its entry and its text.

        Raises ConfigError if the file cannot be read or written.
        """
        secret = token_format.mint("invitation")
        end = _timestamp(self._now() + LIFETIME)
        invitation = Invitation(token_format.digest(secret), token.id, token.sha256, end)
        with self._file.writing(LOCK_ATTEMPTS):
            self._write([*self._file.content().invitations, invitation][-MAX_INVITATIONS:])
        return invitation, secret

    def accept(self, secret: str) -> tuple[Token, str]:
        """Exchange a code for a token, once; return the token's entry and its text.

        Raises Unauthorized, with one text for every reason, and ConfigError if a file cannot be read or written.
        """
        presented = token_format.digest(secret) if token_format.is_well_formed(secret, "invitation") else ""
        # A wrong code costs no lock and no write.
        if self._find(presented) is None:
            raise Unauthorized(NO_INVITATION)
        with self._file.writing(LOCK_ATTEMPTS):
            invitation = self._find(presented)
            if invitation is None:
                raise Unauthorized(NO_INVITATION)
            try:
                accepted = self._tokens.rotate(invitation.token_id)
            except UsageError:
                raise Unauthorized(NO_INVITATION) from None
            try:
                self._write([other for other in self._file.content().invitations if other != invitation])
            except ConfigError as error:
                # The code is worthless all the same: its token has another text now.
                _log.warning("a used invitation is not removed: %s", error)
            return accepted

    def digests(self) -> list[str]:
        """Return the digests of all codes in the file; none if it can't be read."""
        try:
            return [invitation.sha256 for invitation in self._file.content().invitations]
        except ConfigError:
            return []  # It is told when a code is used.

    def _find(self, presented: str) -> Invitation | None:
        """Return the valid entry of a code whose token is still the one that it was made for."""
        found = None
        for invitation in self._file.content().invitations:
            # No early exit: the time taken must not tell which entries exist.
            if hmac.compare_digest(invitation.sha256, presented):
                found = invitation
        if found is None or self._has_expired(found):
            return None
        return None if self._tokens.find_current(found.token_id, found.token_sha256) is None else found

    def _has_expired(self, invitation: Invitation) -> bool:
        return invitation.expires <= _timestamp(self._now())

    def _write(self, invitations: Sequence[Invitation]) -> None:
        """Replace the file, without expired codes."""
        self._file.write(_Content(invitations=tuple(one for one in invitations if not self._has_expired(one))))


def _decode(content: bytes) -> _Content:
    return msgspec.json.decode(content, type=_Content)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
