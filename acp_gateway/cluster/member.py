"""Makes this gateway a node of its cluster: renews its record, learns of the other nodes, and passes on changes."""

import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import trio

from acp_gateway.cluster.directory import ClusterNodes, Contact
from acp_gateway.cluster.lease import Lease, Times, read_clocks
from acp_gateway.cluster.records import NodeRecord, SessionRecord
from acp_gateway.cluster.store import Change, ClusterLost, ClusterStore
from acp_gateway.config.cluster import ClusterSection
from acp_gateway.config.nodes import NodeSection

log = logging.getLogger(__name__)

READ_AGAIN: Final = 60.0
"""Seconds after which the sessions of a node that is away are read again."""


class KnownNodes(Protocol):
    """The nodes of the gateway, which are told of those of the cluster."""

    def add(self, name: str, section: NodeSection) -> None:
        """Add a node, or use another section for it."""

    def remove(self, name: str) -> None:
        """Forget a node."""

    def is_up(self, name: str) -> bool:
        """Return whether a node answers."""

    def assume(self, record: NodeRecord, sessions: Sequence[Mapping[str, Any]]) -> None:
        """Use what the directory has about a node that does not answer."""


class Member:
    """One node of a cluster.

    Args:
        store: the directory.
        section: the options.
        boot: a word unique to this process.
        describe: returns the present record of this node.
        nodes: the gateway's.
        clock: returns the time, in seconds since 1970.
        clocks: returns the times for the lease.
    """

    def __init__(
        self,
        store: ClusterStore,
        section: ClusterSection,
        boot: str,
        describe: Callable[[], NodeRecord],
        nodes: KnownNodes,
        clock: Callable[[], float] = time.time,
        clocks: Callable[[], Times] = read_clocks,
    ) -> None:
        self.store = store
        self._section = section
        self._boot = boot
        self._describe = describe
        self._nodes = nodes
        self._clock = clock
        self.contact = Contact(clock())
        """True if the directory can be reached."""
        self.lease = Lease(section.ttl)
        """The last look at the directory."""
        self._clocks = clocks
        self.known = ClusterNodes(section.name, section.token_file, section.retention)
        """The other nodes."""
        self.renewed: list[Callable[[bool], Awaitable[None]]] = []
        """Called with each renewal, and with True if the directory is another one, or was emptied: everything has to be
        written again. They may raise `ClusterLost`."""
        self.listeners: list[Callable[[Change], None]] = []
        """Called with each change of another node."""
        self.has_read = False
        """True once the other nodes were read."""
        self._era: str | None = None
        self._refused = False
        self._wake = trio.Event()
        # When the sessions of each node that is away were read.
        self._read: dict[str, float] = {}

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
            began = self._clocks()
            try:
                await self.renew()
            except ClusterLost as error:
                self.lease.failed(began, self._clocks())
                if self.contact.lost(str(error), self._clock()):
                    log.warning("the directory of the cluster is lost; the gateway goes on without it: %s", error)
                # Within the lease: this gateway is not taken for one that was paused.
                await trio.sleep(self._section.renew * (0.5 + random.random() / 2))  # noqa: S311
                continue
            self.lease.looked(began)
            if self.contact.reached(self._clock()):
                log.info("the directory of the cluster is there")
            with trio.move_on_after(self._section.renew):
                await self._wake.wait()

    async def renew(self) -> None:
        """Renew the record of this node, and read those of the others. Raises `ClusterLost`."""
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
        # Another proposal each time: after the directory was emptied, the word is another one.
        era = await self.store.era(secrets.token_hex(8))
        emptied = era != self._era
        for work in self.renewed:
            await work(emptied)
        # Not before everything was written.
        self._era = era
        await self._read_nodes()

    async def _read_nodes(self) -> None:
        await self._update_nodes()
        self.has_read = True

    async def _update_nodes(self) -> None:
        present, former = await self.store.nodes(), await self.store.former_nodes()
        update = self.known.update(present, former, self._clock())
        for line in update.unusable:
            log.warning("the node %s of the cluster is left out: %s", *line)
        for name, section in update.sections.items():
            self._nodes.add(name, section)
        for name in update.removed:
            self._nodes.remove(name)
            self._read.pop(name, None)
        now = self._clock()
        for name, record in self.known.records.items():
            if self._nodes.is_up(name):
                self._read.pop(name, None)
            elif now - self._read.get(name, 0.0) >= READ_AGAIN:
                self._nodes.assume(record, describe_sessions(await self.store.sessions(name)))
                self._read[name] = now

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
        if change.kind in ("node", "adopt"):
            # The sessions of a node that is away may have moved.
            self._read.clear()
            self.wake()
        for listener in self.listeners:
            listener(change)


def describe_sessions(records: Iterable[SessionRecord]) -> list[dict[str, Any]]:
    """Return the sessions of a node as it would list them itself, those that are not live first."""
    described = []
    for record in sorted(records, key=lambda record: record.live):
        session: dict[str, Any] = {"sessionId": record.id, "agent": record.agent, "owner": record.owner}
        session |= {"live": record.live, "turn": record.turn, "waiting": [], "connected": 0, "away": 0}
        home = None if record.home == record.node else record.home
        texts = {"home": home, "title": record.title, "cwd": record.cwd, "updatedAt": record.updated}
        described.append(session | {name: text for name, text in texts.items() if text is not None})
    return described
