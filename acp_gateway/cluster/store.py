"""The operations on the directory of a cluster. `RedisStore` carries them out, each in one step of Redis.

Each raises `ClusterLost` if the directory can't be reached or refuses, and may then have happened or not. Cancelling
one leaves it done or undone.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from acp_gateway.cluster.records import NodeRecord
from acp_gateway.errors import Unreachable

MAX_REVOKED: Final = 10_000
"""Maximum number of revocations that the directory remembers, the latest ones. Each node remembers its own as well."""


class ClusterLost(Unreachable):
    """The directory of the cluster can't be used now."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that another node has changed."""

    kind: str
    """`node` or `tokens`."""
    name: str
    """The node, or empty."""
    node: str
    """The node that has published it."""


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

        Publishes the change if the node was not there.
        """

    async def withdraw(self, name: str, boot: str) -> None:
        """Remove a node's record if it is of this process, and publish the change."""

    async def nodes(self) -> list[NodeRecord]:
        """Return the records that have not expired."""

    # Tokens

    async def tokens(self) -> SharedTokens:
        """Return all tokens that count on every node."""

    async def put_token(self, token_id: str, entry: bytes) -> bool:
        """Write the entry of a token, and publish the change; return False if the token is revoked."""

    async def revoke_token(self, token_id: str) -> bool:
        """Remove the entry of a token, remember that it is revoked, and publish; return False if that was known."""

    # Changes

    async def publish(self, change: Change) -> None:
        """Tell the other nodes of a change."""

    def changes(self) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Change]]:
        """Subscribe to the changes of other nodes in this block. Some may be lost.

        Ends the channel when the connection is lost.
        """
