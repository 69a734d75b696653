"""A directory in memory, with the semantics of `RedisStore`: several nodes of one test share a `MemoryDirectory`."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import trio

from acp_gateway.cluster.records import NodeRecord, SessionRecord
from acp_gateway.cluster.store import MAX_LISTED, Change, Claim, ClusterLost, MirroredJournal, SharedTokens

SEAL_SIZE = 32


@dataclass
class Mirror:
    """A mirrored journal."""

    journal: str
    first: int
    messages: list[tuple[int | None, bytes]] = field(default_factory=list)
    as_of: int = 0

    @property
    def size(self) -> int:
        return sum(SEAL_SIZE + len(f"{time or 0}:") + len(message) for time, message in self.messages)


class MemoryDirectory:
    """The directory that all nodes of a test share.

    Args:
        clock: returns the time of the directory, in seconds.
        journal_limit: bytes of one mirrored journal.
    """

    def __init__(self, clock: Callable[[], float] | None = None, journal_limit: int = 8 * 1024 * 1024) -> None:
        self.clock = clock or trio.current_time
        self.journal_limit = journal_limit
        self.reachable = True
        """While it is False, each operation raises `ClusterLost`."""
        self.operations: list[str] = []
        """Names of the operations so far."""
        self.subscribers: list[tuple[str, trio.MemorySendChannel[Change]]] = []
        self.empty()

    def empty(self) -> None:
        """Forget everything, as FLUSHALL does."""
        self.nodes: dict[str, tuple[NodeRecord, float]] = {}
        self.known: dict[str, NodeRecord] = {}
        self.era = ""
        self.sessions: dict[str, SessionRecord] = {}
        self.mirrors: dict[str, Mirror] = {}
        self.tokens: dict[str, bytes] = {}
        self.revoked: set[str] = set()
        self.number = 0

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
        directory.known[record.name] = record
        if known is None:
            directory.tell(Change("node", record.name, record.name))
        return True

    async def withdraw(self, name: str, boot: str) -> None:
        directory = await self._reach("withdraw")
        known = self._live(directory).get(name)
        if known is not None and known.boot == boot:
            del directory.nodes[name]
            directory.tell(Change("node", name, name))

    async def nodes(self) -> list[NodeRecord]:
        return [record for _, record in sorted(self._live(await self._reach("nodes")).items())]

    async def former_nodes(self) -> list[NodeRecord]:
        directory = await self._reach("former_nodes")
        live = self._live(directory)
        return [record for name, record in sorted(directory.known.items()) if name not in live]

    async def era(self, proposal: str) -> str:
        directory = await self._reach("era")
        directory.era = directory.era or proposal
        return directory.era

    def _live(self, directory: MemoryDirectory) -> dict[str, NodeRecord]:
        return {name: record for name, (record, end) in directory.nodes.items() if end > directory.clock()}

    async def claim(self, record: SessionRecord, *, adopt: bool = False) -> Claim:
        directory = await self._reach("claim")
        known = directory.sessions.get(record.key)
        if known is not None and (
            (known.node != record.node and not adopt) or (record.epoch and known.epoch > record.epoch)
        ):
            return Claim(granted=False, epoch=known.epoch, node=known.node)
        epoch = max(0 if known is None else known.epoch + 1, directory.micros, 1)
        self._hold(directory, msgspec.structs.replace(record, epoch=epoch))
        if known is not None and known.node != record.node:
            directory.tell(Change("adopt", record.key, record.node))
        return Claim(granted=True, epoch=epoch, node=record.node)

    async def write(self, record: SessionRecord) -> Claim:
        directory = await self._reach("write")
        known = directory.sessions.get(record.key)
        taken = known is not None and known.node != record.node
        if known is not None and taken and known.epoch >= record.epoch:
            return Claim(granted=False, epoch=known.epoch, node=known.node)
        epoch = record.epoch if known is None else max(known.epoch, record.epoch)
        self._hold(directory, msgspec.structs.replace(record, epoch=epoch))
        if taken:
            directory.tell(Change("adopt", record.key, record.node))
        return Claim(granted=True, epoch=epoch, node=record.node)

    def _hold(self, directory: MemoryDirectory, record: SessionRecord) -> None:
        directory.sessions.pop(record.key, None)
        directory.sessions[record.key] = record

    async def remove(self, key: str, node: str, epoch: int) -> None:
        directory = await self._reach("remove")
        known = directory.sessions.get(key)
        if known is not None and (known.node, known.epoch) == (node, epoch):
            del directory.sessions[key]
            directory.mirrors.pop(key, None)

    async def sessions(self, node: str) -> list[SessionRecord]:
        directory = await self._reach("sessions")
        return [record for record in directory.sessions.values() if record.node == node][-MAX_LISTED:]

    async def session(self, key: str) -> SessionRecord | None:
        return (await self._reach("session")).sessions.get(key)

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
        directory = await self._reach("append")
        known = directory.sessions.get(key)
        if known is None:
            return Claim(granted=False, epoch=0, node="")
        if (known.node, known.epoch) != (node, epoch):
            return Claim(granted=False, epoch=known.epoch, node=known.node)
        mirror = directory.mirrors.get(key)
        if mirror is None or mirror.journal != journal or first > mirror.first + len(mirror.messages):
            if continues:
                return Claim(granted=False, epoch=known.epoch, node=known.node)
            mirror = directory.mirrors[key] = Mirror(journal, first)
        mirror.messages += messages[mirror.first + len(mirror.messages) - first :]
        while mirror.size > directory.journal_limit:
            del mirror.messages[0]
            mirror.first += 1
        mirror.as_of = directory.micros // 1000
        return Claim(granted=True, epoch=known.epoch, node=known.node)

    async def journal(self, key: str) -> MirroredJournal | None:
        mirror = (await self._reach("journal")).mirrors.get(key)
        if mirror is None:
            return None
        messages = [(time, message) for time, message in mirror.messages if message]
        complete = mirror.first == 0 and len(messages) == len(mirror.messages)
        return MirroredJournal(mirror.journal, mirror.first, messages, mirror.as_of, complete)

    async def is_mirrored(self, key: str) -> bool:
        return key in (await self._reach("is_mirrored")).mirrors

    async def tokens(self) -> SharedTokens:
        directory = await self._reach("tokens")
        return SharedTokens(directory.number, dict(directory.tokens), frozenset(directory.revoked))

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
