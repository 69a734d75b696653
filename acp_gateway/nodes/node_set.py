"""The nodes of a running gateway: those of its configuration, and those that it is told of.

One directory has them all, and one watcher follows it. Imported only where there are nodes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from acp_gateway.config.nodes import SEPARATOR, NodeSection
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.sessions.node_sessions import NodeSessions
from acp_gateway.nodes.node_watcher import NodeWatcher


class NodeSet:
    """The nodes of one gateway. Each change is in effect at once, for lookups and for the watcher.

    Clients that use an agent of a node that is removed keep it until their connections end; no others get it.

    Args:
        directory: the state of the nodes.
        watcher: follows the directory.
        clock: returns the time, in seconds since 1970.
    """

    def __init__(self, directory: NodeDirectory, watcher: NodeWatcher, clock: Callable[[], float]) -> None:
        self.directory = directory
        self.watcher = watcher
        self._clock = clock

    def configure(self, sections: Mapping[str, NodeSection]) -> None:
        """Use these sections of the configuration instead of those before."""
        self.directory.configure(sections, self._clock())
        self.watcher.update()

    def add(self, name: str, section: NodeSection) -> None:
        """Add a node that was discovered, or use another section for it. One of the configuration wins over it."""
        self.directory.add(name, section, self._clock())
        self.watcher.update()

    def remove(self, name: str) -> None:
        """Remove a node that was discovered; see `NodeDirectory.remove`."""
        self.directory.remove(name)
        self.watcher.update()


def open_nodes(gateway: Gateway, own_id: str, clock: Callable[[], float] = time.time) -> NodeSet:
    """Give a running gateway the nodes of its configuration, and watch them until it stops."""
    directory = NodeDirectory(gateway.config.nodes, clock(), gateway.config.limits.max_node_sessions)
    watcher = NodeWatcher(directory, own_id, clock)
    gateway.reconfigure(replace(gateway.config, nodes=directory.sections), ())
    gateway.admissions.directory = directory
    sessions = NodeSessions(directory, gateway.registry, watcher.refresh)
    watcher.reported, sessions.need = sessions.note_report, watcher.need
    watcher.is_used = lambda: sessions.is_listened_to or any(SEPARATOR in hub.name for hub in gateway.hubs)
    gateway.admissions.node_sessions = sessions
    gateway.admissions.merge_nodes = sessions.merge
    gateway.readiness.absent_nodes = lambda: directory.absences
    gateway.start_task(watcher.run)
    return NodeSet(directory, watcher, clock)
