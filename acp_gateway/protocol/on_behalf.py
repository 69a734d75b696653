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

REQUEST: Final = "Acp-Gateway-Request"
"""The header with the request id, which the audits of both gateways have."""

IDENTITY_SIZE: Final = 256
"""Maximum characters of the identity, as of one that a token may name."""

AGENTS: Final = 16
"""Maximum number of agents that a claim names. Gateways name the one that they ask for."""

CLAIM_SIZE: Final = 4096
"""Maximum characters of the header: more than the longest identity and some agents take."""

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
"""A request id: safe in a header, in a log and in the audit."""


class OnBehalf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For whom another gateway opens a connection, and what that client may do at most."""

    identity: Annotated[str, msgspec.Meta(min_length=1, max_length=IDENTITY_SIZE)]
    role: Literal["controller", "observer"]
    agents: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")], ...],
        msgspec.Meta(min_length=1, max_length=AGENTS),
    ]
    """Names of agents, as the gateway that is asked uses them."""


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
    if not claim.identity.isprintable() or not claim.identity.strip():
        return None
    return claim if write_claim(claim) == value else None
