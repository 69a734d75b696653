"""Tunnels to nodes: the bytes between a client and the address of a node, which are not read here.

The client does TLS with the node inside, and shows its token there. So this gateway, the door, learns neither.
"""

import logging
from typing import Final

import trio

from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Busy, Forbidden, GatewayError, UnknownAgent
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection, TunnelEnd, counted, serve_tunnel
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import ByteStream
from acp_gateway.transports.websocket.server import upgrade_to_tunnel
from acp_gateway.transports.websocket.stream import CONNECTION_ID, REFUSAL_HEADER
from acp_gateway.transports.websocket.tunnel import Tunnel

log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT: Final = 5.0
"""Seconds to reach a node: clients try again by themselves."""


async def open_way(section: NodeSection) -> ByteStream:
    """Open a connection to a node, over which the caller does TLS with it. Raises `Unreachable`."""
    if section.opener is not None:
        lent: ByteStream = await section.opener()
        return lent
    return await connect_tcp(section.url.host, section.url.port, None, "the gateway of the node")


class NodeTunnel:
    """A client's tunnel to a node.

    Args:
        gateway: the gateway, which has the node.
        access: the client's principal.
        node: the name of the node.
        name: the client's name in the log.

    Raises `AccessError` for a client that may not use it.
    """

    def __init__(self, gateway: Gateway, access: Access, node: str, name: str) -> None:
        if not access.may_tunnel(node):
            raise Forbidden(f"a tunnel to {node} needs a token of the role tunnel for it, or one without limits")
        section = gateway.config.nodes.get(node)
        if section is None:
            raise UnknownAgent(f"this gateway has no node {node}")
        if not section.url.tls:
            raise Forbidden(f"the node {node} has no TLS here, so a tunnel to it would not be safe")
        gateway.connections.make_room(access)
        self._gateway = gateway
        self._access = access
        self._node = node
        self._section = section
        self._name = name

    async def run(self, http: HttpConnection, request: Request) -> bool:
        """Answer the request, and carry bytes until the tunnel has ended. Returns False: no other request follows."""
        with counted(self._gateway, self._access) as connection:
            await self._serve(http, request, connection)
        return False

    async def _serve(self, http: HttpConnection, request: Request, connection: ControlConnection) -> None:
        try:
            way = await self._reach()
        except Busy as error:
            headers = {REFUSAL_HEADER: error.reason}
            await http.respond(Response.of_text(error.http_status, str(error), headers, close=True))
            return
        try:
            tunnel = await upgrade_to_tunnel(http, request, {CONNECTION_ID: self._name.partition(" ")[0]})
            if isinstance(tunnel, Response):
                await http.respond(tunnel)
            else:
                await self._carry(tunnel, way, connection)
        finally:
            with trio.CancelScope(shield=True):
                await way.aclose()

    async def _reach(self) -> ByteStream:
        """Connect to the node. Raises `Busy`."""
        why = f"no answer within {ATTEMPT_TIMEOUT:g} s"
        with trio.move_on_after(ATTEMPT_TIMEOUT):
            try:
                return await open_way(self._section)
            except GatewayError as error:
                why = str(error)
        log.warning("%s: no tunnel to the node %s: %s", self._name, self._node, why)
        raise Busy(f"the node {self._node} can't be reached from here; the log here has the cause")

    async def _carry(self, tunnel: Tunnel, way: ByteStream, connection: ControlConnection) -> None:
        gateway, access = self._gateway, self._access
        gateway.audit.record(
            "tunnel_opened",
            connection=self._name,
            node=self._node,
            identity=access.identity,
            credential=access.credential,
        )
        to = TunnelEnd(
            f"the node {self._node}",
            "the door has lost the connection to the node",
            gateway.config.gateway.stall_timeout,
        )
        await serve_tunnel(gateway, connection, tunnel, way, to, self._name)
