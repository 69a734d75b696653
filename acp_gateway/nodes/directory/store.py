"""The operations on the directory of a cluster. `RedisStore` carries them out, each in one step of Redis.

Each raises `ClusterLost` if the directory can't be reached or refuses, and may then have happened or not. Cancelling
one leaves it done or undone.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from acp_gateway.errors import Unreachable
from acp_gateway.nodes.directory.records import NodeRecord

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
