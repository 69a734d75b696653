"""Seals what nodes write to the directory with a key of the cluster token, so that only nodes can write it.

Without it, a program that may write to Redis could name another machine as a node, or add a token. A seal is an
HMAC-SHA256 in front of the value, over its place and the value: a sealed value is valid in its own place only. A value
that was valid once stays valid: older ones can be put back.
"""

import hashlib
import hmac
from typing import Final

_SIZE: Final = 32

MAX_VALUE: Final = 4 * 1024 * 1024
"""Maximum bytes of a value: the record of a node with as many agents and directories as fit is shorter."""


class Seal:
    """The seal of one cluster.

    Args:
        secret: the cluster token.
    """

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), b"acp-gateway directory", hashlib.sha256)

    def __repr__(self) -> str:
        return "<Seal>"

    def close(self, place: str, value: bytes) -> bytes:
        """Return a value with its seal."""
        return self._mac(place, value) + value

    def open(self, place: str, sealed: bytes) -> bytes | None:
        """Return the value in a sealed one; None if it has another seal or is too long."""
        if len(sealed) > MAX_VALUE + _SIZE:
            return None
        value = sealed[_SIZE:]
        return value if hmac.compare_digest(sealed[:_SIZE], self._mac(place, value)) else None

    def _mac(self, place: str, value: bytes) -> bytes:
        return hmac.digest(self._key, place.encode() + b"\0" + value, hashlib.sha256)
