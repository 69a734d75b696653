"""The headers by which a gateway says at another one for whom it opens a connection, and under which request id.

Only one text stands for each claim: what would be written differently is refused. So nothing can be read in two ways,
and a member that is repeated or unknown is refused as well.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Final, Literal

import msgspec

FOR: Final = "Acp-Gateway-For"
"""The header with the claim."""

CLAIMS: Final = 2
"""The form of claims, which a gateway tells others that ask what they may do there. An older one tells none."""

RIGHTS: Final = 2
"""The first form with `files` and `ports`: a gateway of an earlier one refuses claims with them."""

REQUEST: Final = "Acp-Gateway-Request"
"""The header with the request id, which the audits of both gateways have."""

IDENTITY_SIZE: Final = 256
"""Maximum characters of the identity, as of one that a token may name."""

AGENTS: Final = 16
"""Maximum number of agents that a claim names. Gateways name the one that they ask for."""

CLAIM_SIZE: Final = 8000
"""Maximum characters of the header, which is one line of a head: more than the longest id of a session takes."""

SESSION_SIZE: Final = 1024
"""Maximum characters of a session's id, as of every id."""

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
"""A request id: safe in a header, in a log and in the audit."""


_Identity = Annotated[str, msgspec.Meta(min_length=1, max_length=IDENTITY_SIZE)]

_Agents = Annotated[
    tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")], ...],
    msgspec.Meta(min_length=1, max_length=AGENTS),
]

Otherwise = Literal["refused", "below", "own"]
"""Result for an identity for which the credential of the other gateway may not speak: the connection is refused; it is
that of an identity below the credential's own; or of that itself, which is for the other gateway's own user."""


class OnBehalf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """For whom another gateway opens a connection, and what that client may do at most."""

    identity: _Identity
    role: Literal["controller", "observer"]
    agents: _Agents | None = None
    """Names of agents, as the gateway that is asked uses them; None for all."""
    otherwise: Otherwise = "refused"
    session: Annotated[str, msgspec.Meta(min_length=1, max_length=SESSION_SIZE)] | None = None
    """The only session in reach; None for all."""
    guest: bool = False
    """True for a guest of that session, which may be of each identity that the credential may act as."""
    owner: _Identity | None = None
    """For a guest, the identity whose session it is, to which `otherwise` applies; None if that is not known."""
    since: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """For a guest, the time of its invitation, in milliseconds since 1970."""
    files: bool = False
    """True for a guest that may use the files of its session."""
    ports: bool = False
    """True for a guest or an observer that may use the ports of agents."""

    def __post_init__(self) -> None:
        if self.guest and self.session is None:
            raise ValueError("a guest has a session")
        if not self.guest and (self.owner is not None or self.since is not None):
            raise ValueError("only a guest has an owner and an invitation")


_decode = msgspec.json.Decoder(OnBehalf).decode


def write_claim(claim: OnBehalf) -> str:
    """Return the value of the header for a claim: base64url of JSON, without padding."""
    return urlsafe_b64encode(msgspec.json.encode(claim)).decode().rstrip("=")


def read_claim(value: str) -> OnBehalf | None:
    """Return the claim of a header; None if it is not what `write_claim` would have written."""
    if len(value) > CLAIM_SIZE:
        return None
    try:
        claim = _decode(urlsafe_b64decode(value + "=" * (-len(value) % 4)))
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    if not all(name.isprintable() and name.strip() for name in (claim.identity, claim.owner or claim.identity)):
        return None
    return claim if write_claim(claim) == value else None
