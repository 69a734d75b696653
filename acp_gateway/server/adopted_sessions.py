"""Leaves sessions of nodes that are away and that other nodes have adopted, at a gateway that leads to them.

Its clients would wait for the node until `reconnect_timeout`. Imported only with `[cluster]`.
"""

from collections.abc import Iterator

from acp_gateway.core.sessions import Session, machine_of
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.takeover import leave_adopted


class AdoptedSessions:
    """The sessions of other nodes that clients of this gateway have open, and that were adopted meanwhile.

    Args:
        gateway: the gateway.
        nodes: the other nodes.
    """

    def __init__(self, gateway: Gateway, nodes: NodeDirectory) -> None:
        self._gateway = gateway
        self._nodes = nodes

    def note_report(self) -> None:
        """Leave those that nodes have told to be theirs. Must be fast."""
        # Few are adopted ever.
        for adopter, row in list(self._nodes.adopted()):
            for session in list(self._open(row["home"], row["sessionId"])):
                if adopter.has(row, session.owner):
                    self._leave(session, adopter.name)

    def note_own(self, key: str, owner: str) -> None:
        """Leave a session that this node has adopted, by its name in the cluster."""
        home, _, session_id = key.partition("/")
        for session in list(self._open(home, session_id)):
            if session.owner == owner:
                self._leave(session, self._gateway.registry.node)

    def _open(self, home: str, session_id: str) -> Iterator[Session]:
        """Yield the sessions of this id that are live here over a link to their home, if that is away."""
        node = self._nodes.nodes.get(home)
        if node is None or node.up:
            return  # It stops its part itself, and tells its clients.
        for session in self._gateway.registry.by_id(session_id):
            if session.live and machine_of(session.agent) == home:
                yield session

    def _leave(self, session: Session, node: str) -> None:
        leave_adopted(session, node, self._gateway.registry, self._gateway.find_hub)
