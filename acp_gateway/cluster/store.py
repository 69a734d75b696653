"""The operations on the directory of a cluster. `RedisStore` carries them out, each in one step of Redis.

Each raises `ClusterLost` if the directory can't be reached or refuses, and may then have happened or not. Cancelling
one leaves it done or undone.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from acp_gateway.cluster.records import NodeRecord, SessionRecord
from acp_gateway.errors import Unreachable

MAX_LISTED: Final = 5000
"""Maximum number of sessions of one node in a list, those written last: as many as `max_node_sessions` by default, and
more than `max_sessions`."""

MAX_REVOKED: Final = 10_000
"""Maximum number of revocations that the directory remembers, the latest ones. Each node remembers its own as well."""


class ClusterLost(Unreachable):
    """The directory of the cluster can't be used now."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim or a write: whether this node holds the session, and in which epoch."""

    granted: bool
    epoch: int
    """The highest epoch of the session, this node's own if it was granted."""
    node: str
    """The node that holds the session."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that another node has changed."""

    kind: str
    """`node`, `session`, `tokens` or `adopt`."""
    name: str
    """The node, the key of the session, or empty."""
    node: str
    """The node that has published it."""


@dataclass(frozen=True, slots=True)
class MirroredJournal:
    """A part of the history of a session, as its node has mirrored it."""

    epoch: str
    """The word for its positions, see `mirror_word`."""
    first: int
    """Position at which it begins."""
    messages: Sequence[tuple[int | None, bytes]]
    """Each with its time, in milliseconds since 1970."""
    as_of: int
    """Time of the last write, in milliseconds since 1970."""
    complete: bool
    """False if the beginning or a message is missing."""


def mirror_word(epoch: str, owner: str) -> str:
    """Return the word for the positions in a mirrored journal: the epoch of the journal, and whose it is.

    Agents that count their sessions use an id again, for another owner: the record of the session may be the later
    one's while the mirror still has the history of the earlier one.
    """
    return f"{epoch} {owner}"


def owner_of_mirror(word: str) -> str:
    """Return the owner in such a word."""
    return word.partition(" ")[2]


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
        """Remove a node's record if it is of this process, and publish the change; its sessions stay."""

    async def nodes(self) -> list[NodeRecord]:
        """Return the records that have not expired."""

    async def former_nodes(self) -> list[NodeRecord]:
        """Return the last records of nodes that are away: expired or withdrawn, within the retention."""

    async def era(self, proposal: str) -> str:
        """Return the word that stands for the content of the directory: the first proposal since it was emptied."""

    # Sessions

    async def claim(self, record: SessionRecord, *, adopt: bool = False) -> Claim:
        """Begin another epoch of a session for `record.node`, and write the record with it.

        It is higher than every earlier one, also after the directory was emptied: at least the time of the directory in
        microseconds. Refused if another node holds the session, unless `adopt`; or in a newer epoch than `record.epoch`
        if that is not 0. An adoption is published.
        """

    async def write(self, record: SessionRecord) -> Claim:
        """Write a session's record if no other node holds it in this epoch or a later one.

        A session that the directory does not have is written as it is; one that this node holds keeps its epoch if that
        is higher. To replace an older holder is published as an adoption.
        """

    async def remove(self, key: str, node: str, epoch: int) -> None:
        """Remove a session, and its mirrored journal, if this node holds it in this epoch."""

    async def sessions(self, node: str) -> list[SessionRecord]:
        """Return the sessions that a node holds: the `MAX_LISTED` that were written last, the latest at the end."""

    async def session(self, key: str) -> SessionRecord | None:
        """Return a session by its key."""

    # Journals

    async def append(
        self,
        key: str,
        node: str,
        epoch: int,
        journal: str,
        first: int,
        messages: Sequence[tuple[int | None, bytes]],
        *,
        continues: bool = False,
    ) -> Claim:
        """Append messages to a mirrored journal, if this node holds the session in this epoch.

        The oldest messages beyond the limit of the mirror are removed. A session that the directory does not have is
        refused, in epoch 0: write it first.

        Args:
            key: the session's.
            node: this node.
            epoch: the session's, of this opening.
            journal: the word for its positions, see `mirror_word`. Another one than before begins the mirror anew.
            first: position of the first message. Messages that are mirrored already are left out; after a gap, the
                mirror begins anew at `first`.
            messages: each with its time, in milliseconds since 1970. An empty one stands for one that is left out.
            continues: refuse the messages, in this node's own epoch, where the mirror would begin anew: the directory
                has lost what was appended before.
        """

    async def journal(self, key: str) -> MirroredJournal | None:
        """Return what is mirrored of a session's history."""

    async def is_mirrored(self, key: str) -> bool:
        """Return whether anything is mirrored of a session's history, without reading it."""

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
