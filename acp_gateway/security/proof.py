"""Proves to a client without TLS that its peer is the gateway, before the client shows its token.

While a gateway does not run, any program of the machine may listen at its port. So a client sends a challenge first: a
name of its token and a nonce. The gateway answers with an HMAC (RFC 2104) of both and of its own address. The key is
the digest of the token, which both ends have. The name is a short hash of it, which tells nothing of use.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from typing import Final

from acp_gateway.security.token_format import digest

CHALLENGE: Final = "Acp-Gateway-Challenge"
PROOF: Final = "Acp-Gateway-Proof"
"""Headers of the two, over HTTP."""

_NAME_SIZE: Final = 16
"""Characters of a name: 64 bits, by which no two tokens of a gateway are mistaken for each other."""

_NONCE_BYTES: Final = 16

_CHALLENGE: Final = re.compile(f"([0-9a-f]{{{_NAME_SIZE}}})\\.[0-9a-f]{{{2 * _NONCE_BYTES}}}")

_MAPPED: Final = "::ffff:"
"""Beginning of an IPv4 address as that of a socket for both versions."""


class Challenge:
    """A client's demand for a proof, for one connection.

    Args:
        secret: the token, or another secret whose digest the gateway has.
    """

    def __init__(self, secret: str) -> None:
        self._digest = digest(secret)
        self.text = f"{_name_of(self._digest)}.{secrets.token_hex(_NONCE_BYTES)}"
        """The text for the gateway."""

    def is_met(self, proof: object, peer: str) -> bool:
        """Return whether a proof is that of a gateway which has the token, and which the client reaches at `peer`.

        A program at another loopback address than the gateway's could have passed the challenge on to it.
        """
        mac, _, host = proof.partition(" ") if isinstance(proof, str) else ("", "", "")
        peer = peer.removeprefix(_MAPPED)
        is_right = hmac.compare_digest(mac.encode(errors="replace"), _mac(self._digest, self.text, host).encode())
        return is_right and not (is_loopback(peer) and is_loopback(host) and peer != host)


def answer(challenge: str, digests: Iterable[str], host: str) -> tuple[str, bool] | None:
    """Return the proof for a challenge, and whether its token is known; None for a text that is not a challenge.

    Args:
        challenge: the text of the client.
        digests: those of all secrets that clients may have.
        host: the address at which the client has reached this gateway.
    """
    found = _CHALLENGE.fullmatch(challenge)
    if found is None:
        return None
    known = None
    for each in digests:
        # No early exit: the time taken must not tell which tokens exist.
        if hmac.compare_digest(_name_of(each), found[1]):
            known = each
    host = host.removeprefix(_MAPPED)
    # A proof with a random key looks like every other one.
    return f"{_mac(known or secrets.token_hex(32), challenge, host)} {host}", known is not None


def _name_of(digest: str) -> str:
    return hashlib.sha256(f"acp-gateway name 1 {digest}".encode()).hexdigest()[:_NAME_SIZE]


def _mac(digest: str, challenge: str, host: str) -> str:
    return hmac.digest(digest.encode(), f"acp-gateway proof 1 {challenge} {host}".encode(), "sha256").hex()


def is_loopback(host: str) -> bool:
    """Return whether an address, as a socket has it, is one of the machine for itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
