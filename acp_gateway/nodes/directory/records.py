"""The records of nodes in the directory of a cluster.

Other machines have written them, so each text is bounded and each record that does not fit is left out.

What nodes write is sealed with a key of the cluster token, so that only nodes can write it. Without it, a program that
may write to Redis could name another machine as a node, or add a token. A seal is an HMAC-SHA256 in front of the value,
over its place and the value: a sealed value is valid in its own place only. A value that was valid once stays valid:
older ones can be put back.
"""

import hashlib
import hmac
from typing import Annotated, Final

import msgspec

from acp_gateway.config.schema import NAME

TEXT: Final = 4096
"""Maximum characters of an address or a directory, as in lists of sessions."""

MAX_NAMES: Final = 200
"""Maximum number of agents and of workspaces of one node, more than a configuration has."""

Name = Annotated[str, msgspec.Meta(pattern=f"^(?:{NAME.pattern})$", max_length=64)]
_Text = Annotated[str, msgspec.Meta(max_length=TEXT)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's description of itself, every few seconds."""

    name: Name
    url: Annotated[str, msgspec.Meta(max_length=TEXT)]
    """The address for the other nodes."""
    pin: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    """`sha256:HEX` of the public key of its certificate."""
    boot: Annotated[str, msgspec.Meta(max_length=64)]
    """A word unique to this process of the gateway."""
    version: Annotated[str, msgspec.Meta(max_length=64)] = ""
    agents: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_NAMES)] = ()
    workspaces: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_NAMES)] = ()
    sessions: _Count = 0
    """Number of its live sessions."""
    turns: _Count = 0
    """Number of prompts that its agents work on."""
    lag: float = 0.0
    """Seconds by which its event loop was late in the last interval."""

    @property
    def lasting(self) -> "NodeRecord":
        """The record without the load, which is another one each time."""
        return msgspec.structs.replace(self, sessions=0, turns=0, lag=0.0)


_node_decoder = msgspec.json.Decoder(NodeRecord)

encode = msgspec.json.Encoder().encode
"""Return a record as JSON."""


def decode_node(value: bytes) -> NodeRecord | None:
    """Return the record of a node; None if it can't be one."""
    try:
        return _node_decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


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
