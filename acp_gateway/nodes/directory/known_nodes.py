"""Keeps the nodes of the cluster on the disk of a gateway: `cluster-nodes.json` in its `state_dir`.

With it, a gateway that starts while Redis is away leads to the nodes that it knew, and says of an agent there that its
node is away rather than that there is none. No token is in it.
"""

import logging
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from acp_gateway.errors import ConfigError
from acp_gateway.nodes.directory.records import NodeRecord
from acp_gateway.security.private_file import PrivateFile

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
