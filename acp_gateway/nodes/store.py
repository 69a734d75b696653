"""The records in the directory of a cluster, with the seal of the node that wrote them, and the operations on it.

`RedisStore` carries these out, each in one step of Redis.

Each raises `ClusterLost` if the directory can't be reached or refuses, and may then have happened or not. Cancelling
one leaves it done or undone.
"""

import hashlib
import hmac
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import msgspec
import trio

from acp_gateway.config.schema import NAME
from acp_gateway.errors import Unreachable

TEXT: Final = 4096
"""Maximum characters of an address, as in lists of sessions."""

MAX_NAMES: Final = 200
"""Maximum number of agents of one node, more than a configuration has."""

Name = Annotated[str, msgspec.Meta(pattern=f"^(?:{NAME.pattern})$", max_length=64)]
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


MAX_REVOKED: Final = 10_000
"""Maximum number of revocations that the directory remembers, the latest ones. Each node remembers its own as well."""


class ClusterLost(Unreachable):
    """The directory of the cluster can't be used now."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that another node has changed."""

    kind: str
    """`tokens`."""
    name: str
    """Empty for tokens."""
    node: str
    """The node that has published it."""


@dataclass(frozen=True, slots=True)
class NodesRead:
    """The records of nodes that have changed."""

    version: int
    """Number of the last change in the directory."""
    records: list[NodeRecord]
    """By name, those that are there."""


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """The tokens that count on every node."""

    number: int
    """Number of the last change: 0 in an empty directory, and a higher one with each change."""
    entries: Mapping[str, bytes]
    """Entries by the id of the token."""
    revoked: frozenset[str]
    """Ids of tokens that were revoked: an entry of such an id is refused."""


class ClusterStore(Protocol):
    """The directory of a cluster, for one node."""

    # Nodes

    async def announce(self, record: NodeRecord, ttl: float) -> bool:
        """Write a node's record, for `ttl` seconds; return False if another process holds the name.

        Others read it again only if it has changed in more than its load, or was not there.
        """

    async def withdraw(self, name: str, boot: str) -> None:
        """Remove a node's record if it is of this process."""

    async def nodes(self, since: int = 0) -> NodesRead:
        """Return the records that are there and have changed since a version; all for 0, or if the directory is another
        one or was emptied."""

    # Tokens

    async def tokens(self) -> SharedTokens:
        """Return all tokens that count on every node."""

    async def tokens_number(self) -> int:
        """Return the number of the last change of these tokens; 0 in an empty directory."""

    async def put_token(self, token_id: str, entry: bytes) -> bool:
        """Write the entry of a token, and publish the change; return False if the token is revoked."""

    async def revoke_token(self, token_id: str) -> bool:
        """Remove the entry of a token, remember that it is revoked, and publish; return False if that was known."""

    async def confirm_tokens(self, number: int) -> None:
        """Note that this node has taken over all changes up to a number."""

    async def confirmations(self) -> Mapping[str, int]:
        """Return the number that each node has confirmed last."""

    # Changes

    async def publish(self, change: Change) -> None:
        """Tell the other nodes of a change."""

    def changes(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Change]]:
        """Subscribe to the changes of other nodes in this block. Some may be lost.

        Ends the channel when the connection is lost.
        """
