"""A gateway as the door to others: lets authenticated requests in that are for a node, and says for whom they are.

The node allows no more than what is said of the client and the door's own token allow, see `protocol/on_behalf.py`.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from acp_gateway.config.nodes import SEPARATOR, split_name
from acp_gateway.errors import AccessError, Forbidden
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.admission import unknown_session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.nodes.passage import Errand, Passage
from acp_gateway.nodes.reaching import Reach
from acp_gateway.protocol.on_behalf import CLAIM_SIZE, IDENTITY_SIZE, OnBehalf, Otherwise, write_claim
from acp_gateway.security.token_store import PURPOSES
from acp_gateway.transports.http.server import HttpConnection, Request

_TOO_LONG: Final = "the names of this identity and its session are too long to be told to another gateway"


class NodeAdmission:
    """Lets requests for nodes in.

    Args:
        gateway: this gateway, in which the connections count.
        reach: opens connections to nodes.
    """

    def __init__(self, gateway: Gateway, reach: Reach) -> None:
        self._gateway = gateway
        self._reach = reach

    def admit(
        self, access: Access, node: str, path: str, request: Request, *, websocket: bool
    ) -> Callable[[HttpConnection], Awaitable[bool]]:
        """Let a request for a path of a node in; return what passes it on, see `Passage.run`.

        Raises `UnknownAgent` for a node that is not known, `Forbidden` and `UnknownSession` for one that the credential
        does not allow, and `Busy`.
        """
        directory = self._gateway.extensions.directory
        assert directory is not None, "a door has nodes"
        directory.check_node(node)
        claim = write_claim(self.claim(access, node))
        if len(claim) > CLAIM_SIZE:
            raise Forbidden(_TOO_LONG)
        if request.method != "POST":
            # What is posted belongs to a connection that is there.
            self._gateway.connections.make_room(access)
        return Passage(self._gateway, self._reach, Errand(node, path, access, request, websocket, claim)).run

    def led_to(self, access: Access) -> list[dict[str, Any]]:
        """Describe the nodes that a credential may use, as members of `gateway/info`."""
        directory, default = self._gateway.extensions.directory, self._gateway.config.default_agent
        assert directory is not None, "a door has nodes"
        found = []
        for name, node in sorted(directory.nodes.items()):
            with suppress(AccessError):
                self.claim(access, name)
                described = {"name": name}
                if node.asked and not node.up:
                    described["unreachableSince"] = node.since_text
                if split_name(default, {name: None}) is not None and access.may_use(default):
                    described["defaultAgent"] = default
                found.append(described)
        return found

    def claim(self, access: Access, node: str) -> OnBehalf:
        """Return what this gateway says of a client to a node. Raises `Forbidden` and `UnknownSession`."""
        if access.role == "metrics" or access.role == "tunnel":
            raise Forbidden(f"this token is for {PURPOSES[access.role]} and nothing else")
        if access.workspaces is not None:
            raise Forbidden(f"this token is for workspaces of this machine, and {node} is another one")
        agents = None
        if access.agents is not None:
            places = (split_name(name, {node: None}) for name in access.agents)
            agents = tuple(place[1] for place in places if place is not None)
            if not agents:
                raise Forbidden(f"this token allows no agent of the node {node}")
        session, owner, since = access.session or access.only, None, None
        if session is not None:
            place = split_name(session, {node: None})
            if place is None:
                raise unknown_session(f"{node}{SEPARATOR}{session}")
            session = place[1]
        if access.session is not None:
            owner, since = self._gateway.admissions.invitation(access)
        if max(map(len, (access.identity, owner or ""))) > IDENTITY_SIZE:
            raise Forbidden(_TOO_LONG)
        is_own = (owner or access.identity) == self._gateway.registry.own_identity
        otherwise: Otherwise = "own" if is_own else "below"
        return OnBehalf(access.identity, access.role, agents, otherwise, session, owner, since)
