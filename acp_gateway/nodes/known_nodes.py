"""The nodes of the cluster as this one knows them, and whether the directory can be reached.

Nothing is decided from absence: a node whose record has expired or was withdrawn stays known for `RETENTION`.

`cluster-nodes.json` in `state_dir` keeps the nodes. With it, a gateway that starts while Redis is away leads to the
nodes that it knew, and says of an agent there that its node is away rather than that there is none. No token is in it.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.nodes.store import NodeRecord
from acp_gateway.printable import printable
from acp_gateway.security.private_file import PrivateFile
from acp_gateway.security.tls import parse_pin

log = logging.getLogger(__name__)

_VERSION: Final = 1


class KnownNode(msgspec.Struct, frozen=True):
    """A node that was in the directory."""

    record: NodeRecord
    """Its last record, without what changes all the time."""
    seen: float
    """The day on which it was there, in seconds since 1970."""


class KnownCluster(msgspec.Struct, frozen=True):
    """The content of the file."""

    nodes: tuple[KnownNode, ...] = ()
    lost: float | None = None
    """Time since which the directory is lost, in seconds since 1970; None while it is there."""
    version: Literal[1] = 1


class KnownNodesFile:
    """The file of one gateway. A file that can't be read or written costs what it is for, and is logged once.

    Args:
        state_dir: its folder.
    """

    def __init__(self, state_dir: Path) -> None:
        what = "list of nodes", "restart the gateway"
        self._file = PrivateFile[KnownCluster](
            state_dir / "cluster-nodes.json", _VERSION, msgspec.json.Decoder(KnownCluster).decode, KnownCluster(), what
        )
        self._written: KnownCluster | None = None
        self._complaint = ""

    def read(self) -> KnownCluster:
        """Return the content; that of an empty one if it can't be read."""
        try:
            return self._file.content()
        except ConfigError as error:
            self._complain(error)
            return KnownCluster()

    async def write(self, known: KnownCluster) -> None:
        """Replace the content, if it differs from that of the last time. In a thread; cancelling waits for that."""
        if known != self._written:
            try:
                await trio.to_thread.run_sync(self._replace, known)
            except ConfigError as error:
                self._complain(error)

    def _replace(self, known: KnownCluster) -> None:
        with self._file.writing():
            self._file.write(known)
        self._written = known

    def _complain(self, error: ConfigError) -> None:
        if str(error) != self._complaint:
            log.warning("the nodes of the cluster are not remembered: %s", error)
            self._complaint = str(error)


MAX_NODES: Final = 500
"""Maximum number of other nodes, with a control connection each: further ones are left out."""

RETENTION: Final = 30 * 86400.0
"""Seconds after which a node is forgotten that no record was seen of: as long as a holiday."""

_DAY: Final = 86400.0


@dataclass(slots=True)
class Update:
    """The differences between two reads of the directory."""

    sections: dict[str, NodeSection] = field(default_factory=dict)
    """Nodes that were found, or whose address has changed."""
    removed: list[str] = field(default_factory=list)
    """Nodes that were not seen for `RETENTION`."""
    unusable: list[tuple[str, str]] = field(default_factory=list)
    """Each node whose record can't be used, with the cause, once."""


class ClusterNodes:
    """The other nodes of one cluster.

    Args:
        own_name: the name of this node.
        token_file: the file with the token of the cluster.
    """

    def __init__(self, own_name: str, token_file: Path) -> None:
        self._own_name = own_name
        self._token_file = token_file
        self.sections: dict[str, NodeSection] = {}
        """The way to each node with the token of the cluster."""
        # When a record of each was last seen.
        self._seen: dict[str, float] = {}
        self._complaints: dict[str, str] = {}
        self.records: dict[str, NodeRecord] = {}
        """The last record of each node."""
        self.is_read = False
        """True once the directory was read, now or before the start."""

    def recall(self, known: Iterable[KnownNode], now: float) -> Update:
        """Know the nodes that were known before the start."""
        update = Update()
        for node in known:
            self.is_read = True
            self._note(node.record, min(node.seen, now), update)
        return update

    def remember(self) -> tuple[KnownNode, ...]:
        """Return the nodes to recall after the next start. It changes with their addresses, agents and workspaces."""
        return tuple(
            KnownNode(
                msgspec.structs.replace(record.lasting, boot=""),
                self._seen[name] // _DAY * _DAY,
            )
            for name, record in sorted(self.records.items())
        )

    def update(self, records: Iterable[NodeRecord], now: float) -> Update:
        """Compare with the records that the directory has at a time in seconds."""
        update = Update()
        self.is_read = True
        for record in records:
            if record.name != self._own_name:
                self._note(record, now, update)
        for name in [name for name, seen in self._seen.items() if now - seen > RETENTION]:
            del self._seen[name], self.sections[name], self.records[name]
            update.removed.append(name)
        return update

    def _note(self, record: NodeRecord, now: float, update: Update) -> None:
        name = record.name
        try:
            if name not in self._seen and len(self._seen) >= MAX_NODES:
                raise UsageError(f"there are {MAX_NODES} others already")
            section = self._section(record)
        except (ConfigError, UsageError) as error:
            text = printable(str(error), size=300)
            if self._complaints.get(name) != text and len(self._complaints) < MAX_NODES:
                self._complaints[name] = text
                update.unusable.append((name, text))
            return
        self._complaints.pop(name, None)
        self._seen[name] = now
        self.records[name] = record
        if self.sections.get(name) != section:
            self.sections[name] = update.sections[name] = section

    def _section(self, record: NodeRecord) -> NodeSection:
        """Return the section that leads to a node. Raises `ConfigError` or `UsageError`."""
        url = parse_target(record.url)
        if url.scheme not in ("wss", "ws") or not (url.tls or url.loopback):
            raise UsageError("its address is neither wss:// nor ws:// on loopback")
        pin = None if record.pin is None or not url.tls else record.pin
        if pin is not None:
            parse_pin(pin)
        return NodeSection(url=url, token_file=self._token_file, pin=pin)


class Contact:
    """The state of the directory: reached or not, since when, and why not.

    Args:
        now: the time, in seconds since 1970.
        ttl: seconds after which other nodes do not find this one any more.
        lost: time since which the directory was lost already before the start.
    """

    def __init__(self, now: float, ttl: float = math.inf, lost: float | None = None) -> None:
        self.up = False
        self.since = now if lost is None else min(lost, now)
        """Time since which `up` is as it is, in seconds since 1970."""
        self.why = "not reached yet"
        self.overdue = False
        """True once it is lost for longer than `ttl`."""
        self._ttl = ttl

    def reached(self, now: float) -> bool:
        """Note an answer; return True if it is news."""
        if self.up:
            return False
        self.up, self.since, self.why, self.overdue = True, now, "", False
        return True

    def lost(self, why: str, now: float) -> bool:
        """Note a failure; return True if it is news: the directory was there before, or it is the first attempt."""
        news = self.up or self.why == "not reached yet"
        if self.up:
            self.since = now
        self.up, self.why = False, printable(why)
        return news

    def fall_due(self, now: float) -> bool:
        """Note the time; return True if the directory is lost for longer than `ttl` from now on."""
        if self.up or self.overdue or now - self.since <= self._ttl:
            return False
        self.overdue = True
        return True

    @property
    def problem(self) -> str | None:
        """Say since when the directory is lost and why, in one line; None while it is there."""
        return None if self.up else f"{self.lost_since}: {self.why}"

    @property
    def lost_since(self) -> str | None:
        """The same without the cause, which may name addresses."""
        if self.up:
            return None
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.overdue:
            since = f"{since}, for longer than ttl ({self._ttl:g} s): nodes that start now do not find this one"
        return f"the directory of the cluster is lost since {since}, the gateway goes on without it"
