"""A gateway as the door to others: lets authenticated clients in that want a node, and says for whom they are.

The node allows no more than what is said of the client and the door's own token allow, see `protocol/on_behalf.py`.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from acp_gateway.client.dialing import Resume
from acp_gateway.config.nodes import SEPARATOR, split_name
from acp_gateway.errors import AccessError, Busy, Forbidden
from acp_gateway.gateway.access import Access, ConnectRequest, LinkRequest, unknown_session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.node_places import Place, place_of
from acp_gateway.nodes.copying.events import StreamsInUse
from acp_gateway.nodes.copying.links import NodeLink, Wanted
from acp_gateway.nodes.copying.passage import Errand, Passage
from acp_gateway.nodes.reaching import Reach
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.on_behalf import CLAIM_SIZE, IDENTITY_SIZE, RIGHTS, OnBehalf, Otherwise, write_claim
from acp_gateway.security.token_store import PURPOSES
from acp_gateway.transports.http.server import HttpConnection, Request
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.websocket.tunnel import AHEAD

Serve = Callable[[HttpConnection], Awaitable[bool]]
"""Serves an HTTP request, and returns whether another one may follow."""

_TOO_LONG: Final = "the names of this identity and its session are too long to be told to another gateway"


class NodeAdmission:
    """Lets clients in that want nodes.

    Args:
        gateway: this gateway, in which the connections count.
        reach: opens connections to nodes.
    """

    def __init__(self, gateway: Gateway, reach: Reach) -> None:
        self._gateway = gateway
        self._reach = reach
        self._streams = StreamsInUse()

    def place(self, access: Access, wanted: ConnectRequest, node: str | None = None) -> Place | None:
        """Return what a client asks for at a node; None if it asks for something here. Raises `UnknownSession`.

        With `node`, the names are those that this node uses itself.
        """
        if node is not None:
            return Place(node, wanted.agent, wanted.session, wanted.observe)
        config = self._gateway.config
        return place_of(wanted, access, config.nodes, config.default_agent)

    def node_of_link(self, link_id: str) -> tuple[str, str] | None:
        """Return the node of a link over HTTP, and its id there; None for one of this gateway."""
        return split_name(link_id, self._gateway.config.nodes)

    def admit(
        self,
        access: Access,
        node: str,
        path: str,
        request: Request,
        *,
        websocket: bool,
        link_id: str | None = None,
        names_links: bool = False,
    ) -> Serve:
        """Let a request for a path of a node in; return what passes it on, see `Passage.run`.

        With `link_id`, it names its link by another id than there. With `names_links`, ids of links begin with the node
        for the client.

        This and the methods below raise `UnknownAgent` for a node that is not known, `Forbidden` and `UnknownSession`
        for one that the credential does not allow, and `Busy`.
        """
        claim = self._claim(access, node, None)
        if request.method != "POST":
            # What is posted belongs to a connection that is there.
            self._gateway.connections.make_room(access, evicts=not path.endswith(AHEAD))
        errand = Errand(node, path, access, request, websocket, claim, link_id, names_links)
        return Passage(self._gateway, self._reach, errand, self._streams).run

    def hold(
        self, access: Access, place: Place, request: Request, name: str, connection_id: str, *, binary: bool = False
    ) -> Serve:
        """Let a WebSocket in that resumes nothing; return what opens it and serves it over a link that is held here."""
        return partial(self._link(access, place, name, connection_id).serve_websocket, request, binary=binary)

    def serve_lines(
        self,
        access: Access,
        place: Place,
        name: str,
        connection_id: str,
        raw_id: RawId,
        asked: LinkRequest | None,
    ) -> Callable[[MaintainedStream], Awaitable[None]]:
        """Let a client over lines in; return what answers its hello and serves it.

        It has asked for a link of its own, or for none.
        """
        resume = None if asked is None else Resume(asked.connection_id, asked.received, part=asked.part_sum)
        link = self._link(access, place, name, connection_id)

        async def serve(lines: MaintainedStream) -> None:
            await link.serve_lines(lines, raw_id, resume)

        return serve

    def _link(self, access: Access, place: Place, name: str, connection_id: str) -> NodeLink:
        claim = self._claim(access, place.node, place.agent)
        self._gateway.connections.make_room(access)
        return NodeLink(self._gateway, self._reach, Wanted(place, access, claim, name, connection_id))

    def _claim(self, access: Access, node: str, agent: str | None) -> str:
        """Return the claim for a node as it is sent. Raises as `admit`."""
        directory = self._gateway.extensions.directory
        assert directory is not None, "a door has nodes"
        directory.check_node(node)
        if directory.nodes[node].is_too_old:
            # It may have been upgraded since.
            if self._gateway.extensions.looks is not None:
                self._gateway.extensions.looks.look_at(node)
            raise Busy(directory.nodes[node].away_since)
        if agent is not None and not access.may_use(f"{node}{SEPARATOR}{agent}"):
            raise Forbidden(f"this token does not allow the agent {node}{SEPARATOR}{agent}")
        claim = write_claim(self.claim(access, node))
        if len(claim) > CLAIM_SIZE:
            raise Forbidden(_TOO_LONG)
        return claim

    def led_to(self, access: Access) -> list[dict[str, Any]]:
        """Describe the nodes that a credential may use, as members of `gateway/info`."""
        directory, default = self._gateway.extensions.directory, self._gateway.config.default_agent
        assert directory is not None, "a door has nodes"
        found = []
        for name, node in sorted(directory.nodes.items()):
            with suppress(AccessError):
                self.claim(access, name)
                described: dict[str, Any] = {"name": name}
                if node.asked and not node.up:
                    described["unreachableSince"] = node.since_text
                if node.is_too_old:
                    described["tooOld"] = True
                if split_name(default, {name: None}) is not None and access.may_use(default):
                    described["defaultAgent"] = default
                found.append(described)
        return found

    def claim(self, access: Access, node: str) -> OnBehalf:
        """Return what this gateway says of a client to a node. Raises `Forbidden` and `UnknownSession`."""
        if access.role == "metrics" or access.role == "tunnel" or access.role == "node":
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
        is_guest = access.session is not None
        if is_guest:
            owner, since = self._gateway.admissions.invitation(access)
        if max(map(len, (access.identity, owner or ""))) > IDENTITY_SIZE:
            raise Forbidden(_TOO_LONG)
        is_own = (owner or access.identity) == self._gateway.registry.own_identity
        otherwise: Otherwise = "own" if is_own else "below"
        directory = self._gateway.extensions.directory
        known = None if directory is None else directory.nodes.get(node)
        tells = known is not None and known.claims >= RIGHTS
        return OnBehalf(
            access.identity,
            access.role,
            agents,
            otherwise,
            session,
            is_guest,
            owner,
            since,
            files=tells and access.files,
            ports=tells and access.ports,
        )
