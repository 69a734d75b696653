"""Makes this gateway a node of its cluster: renews its record, learns of the other nodes, and passes on changes."""

import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import trio

from acp_gateway.config.cluster import ClusterSection
from acp_gateway.config.nodes import NodeSection
from acp_gateway.nodes.known_nodes import ClusterNodes, Contact, KnownCluster, KnownNodesFile, Update
from acp_gateway.nodes.store import Change, ClusterLost, ClusterStore, NodeRecord

log = logging.getLogger(__name__)

READ_ALL: Final = 86400.0
"""Seconds after which all records are read again, also those that have not changed: nodes without one for
`RETENTION` are forgotten."""


class KnownNodes(Protocol):
    """The nodes of the gateway, which are told of those of the cluster."""

    def add(self, name: str, section: NodeSection) -> None:
        """Add a node, or use another section for it."""

    def remove(self, name: str) -> None:
        """Forget a node."""

    def assume(self, record: NodeRecord) -> None:
        """Use what the directory has about a node, until the node itself has answered."""


class Member:
    """One node of a cluster.

    Args:
        store: the directory.
        section: the options.
        boot: a word unique to this process.
        describe: returns the present record of this node.
        nodes: the gateway's.
        known: the other nodes, as far as they are known from before the start.
        file: remembers these.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(
        self,
        store: ClusterStore,
        section: ClusterSection,
        boot: str,
        describe: Callable[[], NodeRecord],
        nodes: KnownNodes,
        known: ClusterNodes,
        file: KnownNodesFile,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._section = section
        self._boot = boot
        self._describe = describe
        self._nodes = nodes
        self._clock = clock
        self.contact = Contact(clock(), section.ttl, file.read().lost)
        """True if the directory can be reached."""
        self.known = known
        """The other nodes."""
        self._file = file
        self.renewed: list[Callable[[], Awaitable[None]]] = []
        """Called with each renewal. They may raise `ClusterLost`."""
        self.listeners: list[Callable[[Change], None]] = []
        """Called with each change of another node."""
        self.has_read = False
        """True once the other nodes were read."""
        self._refused = False
        # Of the last read, and the time of the last read of all records.
        self._version = 0
        self._read_all = -math.inf
        self._wake = trio.Event()

    async def run(self) -> None:
        """Be a node until cancelled; then withdraw, for `timeout` seconds at most."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                await self._renew()
        finally:
            if self.contact.up:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + self._section.timeout):
                    try:
                        await self.store.withdraw(self._section.name, self._boot)
                    except ClusterLost:
                        pass  # It expires.

    @property
    def problem(self) -> str | None:
        """Say in one line why the others can't find this node; None if they can."""
        if self.contact.up and self._refused:
            return f"another process is the node {self._section.name} of the cluster, so this gateway is not announced"
        return self.contact.problem

    def wake(self) -> None:
        """Renew at once."""
        self._wake.set()

    async def _renew(self) -> None:
        while True:
            self._wake = trio.Event()
            try:
                await self.renew()
            except ClusterLost as error:
                if self.contact.lost(str(error), self._clock()):
                    log.warning("the directory of the cluster is lost; the gateway goes on without it: %s", error)
                if self.contact.fall_due(self._clock()):
                    log.warning("%s", self.contact.problem)
                await self._remember()
                await trio.sleep(self._section.renew * (0.5 + random.random() / 2))  # noqa: S311
                continue
            if self.contact.reached(self._clock()):
                log.info("the directory of the cluster is there")
            await self._remember()
            with trio.move_on_after(self._section.renew):
                await self._wake.wait()

    async def renew(self) -> None:
        """Renew the record of this node, and read those of the others that have changed. Raises `ClusterLost`."""
        granted = await self.store.announce(self._describe(), self._section.ttl)
        if granted is self._refused:
            self._refused = not granted
            if granted:
                log.info("this gateway is the node %s of the cluster", self._section.name)
            else:
                log.error(
                    "another process is the node %s of the cluster: give each gateway a name of its own in [cluster]",
                    self._section.name,
                )
        for work in self.renewed:
            await work()
        await self._read_nodes()

    async def _read_nodes(self) -> None:
        await self._update_nodes()
        self.has_read = True

    async def _update_nodes(self) -> None:
        now = self._clock()
        since = self._version if now - self._read_all < READ_ALL else 0
        read = await self.store.nodes(since)
        tell_nodes(self._nodes, self.known, self.known.update(read.records, now), read.records)
        self._version = read.version
        if not since:
            self._read_all = now

    async def _remember(self) -> None:
        await self._file.write(KnownCluster(self.known.remember(), None if self.contact.up else self.contact.since))

    async def _listen(self) -> None:
        while True:
            try:
                async with self.store.changes() as changes:
                    async for change in changes:
                        self._note(change)
            except ClusterLost:
                pass  # Renewing tells why.
            # Changes may have been lost.
            self.wake()
            await trio.sleep(self._section.renew)

    def _note(self, change: Change) -> None:
        for listener in self.listeners:
            listener(change)


def tell_nodes(nodes: KnownNodes, known: ClusterNodes, update: Update, records: Iterable[NodeRecord]) -> None:
    """Tell the nodes of a gateway what is known of those of the cluster, after an update by these records."""
    for line in update.unusable:
        log.warning("the node %s of the cluster is left out: %s", *line)
    for name, section in update.sections.items():
        nodes.add(name, section)
    for name in update.removed:
        nodes.remove(name)
    for record in records:
        if record.name in known.records:
            nodes.assume(record)
