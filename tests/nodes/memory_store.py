"""A directory in memory, with the semantics of `RedisStore`: several nodes of one test share a `MemoryDirectory`."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from acp_gateway.nodes.store import Change, ClusterLost, NodeRecord, NodesRead, SharedTokens


class MemoryDirectory:
    """The directory that all nodes of a test share.

    Args:
        clock: returns the time of the directory, in seconds.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or trio.current_time
        self.reachable = True
        """While it is False, each operation raises `ClusterLost`."""
        self.operations: list[str] = []
        """Names of the operations so far."""
        self.read = 0
        """Number of records that were read so far."""
        self.subscribers: list[tuple[str, trio.MemorySendChannel[Change]]] = []
        self.empty()

    def empty(self) -> None:
        """Forget everything, as FLUSHALL does."""
        self.nodes: dict[str, tuple[NodeRecord, float]] = {}
        self.tokens: dict[str, bytes] = {}
        self.revoked: set[str] = set()
        self.number = 0
        self.confirmed: dict[str, int] = {}
        self.version = 0
        self.changed: dict[str, int] = {}

    def lose(self) -> None:
        """Be unreachable, and end all subscriptions."""
        self.reachable = False
        for _, channel in self.subscribers:
            channel.close()
        self.subscribers.clear()

    def store(self, node: str) -> "MemoryStore":
        """Return the directory for one node."""
        return MemoryStore(self, node)

    @property
    def micros(self) -> int:
        """The time in microseconds."""
        return math.floor(self.clock() * 1_000_000)

    def tell(self, change: Change) -> None:
        """Tell all nodes but that of the change."""
        for node, channel in self.subscribers:
            if node != change.node:
                channel.send_nowait(change)


class MemoryStore:
    """The directory for one node, see `ClusterStore`."""

    def __init__(self, directory: MemoryDirectory, node: str) -> None:
        self._directory = directory
        self._node = node

    async def _reach(self, operation: str) -> MemoryDirectory:
        await trio.lowlevel.checkpoint()
        self._directory.operations.append(operation)
        if not self._directory.reachable:
            raise ClusterLost("the directory of this test is unreachable")
        return self._directory

    async def announce(self, record: NodeRecord, ttl: float) -> bool:
        directory = await self._reach("announce")
        known = self._live(directory).get(record.name)
        if known is not None and known.boot != record.boot:
            return False
        directory.nodes[record.name] = record, directory.clock() + ttl
        if known is None or known.lasting != record.lasting:
            directory.version = directory.changed[record.name] = max(directory.version + 1, directory.micros)
        return True

    async def withdraw(self, name: str, boot: str) -> None:
        directory = await self._reach("withdraw")
        known = self._live(directory).get(name)
        if known is not None and known.boot == boot:
            del directory.nodes[name]

    async def nodes(self, since: int = 0) -> NodesRead:
        directory = await self._reach("nodes")
        after = 0 if since > directory.version else since
        found = [it for name, it in sorted(self._live(directory).items()) if directory.changed[name] > after]
        directory.read += len(found)
        return NodesRead(directory.version, found)

    def _live(self, directory: MemoryDirectory) -> dict[str, NodeRecord]:
        return {name: record for name, (record, end) in directory.nodes.items() if end > directory.clock()}

    async def tokens(self) -> SharedTokens:
        directory = await self._reach("tokens")
        return SharedTokens(directory.number, dict(directory.tokens), frozenset(directory.revoked))

    async def tokens_number(self) -> int:
        return (await self._reach("tokens_number")).number

    async def put_token(self, token_id: str, entry: bytes) -> bool:
        directory = await self._reach("put_token")
        if token_id in directory.revoked:
            return False
        directory.tokens[token_id] = entry
        self._change_tokens(directory)
        return True

    async def revoke_token(self, token_id: str) -> bool:
        directory = await self._reach("revoke_token")
        directory.tokens.pop(token_id, None)
        if token_id in directory.revoked:
            return False
        directory.revoked.add(token_id)
        self._change_tokens(directory)
        return True

    def _change_tokens(self, directory: MemoryDirectory) -> None:
        directory.number = max(directory.number + 1, directory.micros)
        directory.tell(Change("tokens", "", self._node))

    async def confirm_tokens(self, number: int) -> None:
        (await self._reach("confirm_tokens")).confirmed[self._node] = number

    async def confirmations(self) -> dict[str, int]:
        return dict((await self._reach("confirmations")).confirmed)

    async def publish(self, change: Change) -> None:
        (await self._reach("publish")).tell(change)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[trio.MemoryReceiveChannel[Change]]:
        directory = await self._reach("changes")
        sender, receiver = trio.open_memory_channel[Change](1000)
        entry = (self._node, sender)
        directory.subscribers.append(entry)
        with sender, receiver:
            try:
                yield receiver
            finally:
                if entry in directory.subscribers:
                    directory.subscribers.remove(entry)
