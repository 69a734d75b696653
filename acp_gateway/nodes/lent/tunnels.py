"""Tunnels to nodes: the bytes between a client and the address of a node, which are not read here.

The client does TLS with the node inside, and shows its token there. So this gateway, the door, learns neither.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Busy, Forbidden, GatewayError, UnknownAgent
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.sockets import connect_tcp
from acp_gateway.transports.streams import ByteStream, Flooded
from acp_gateway.transports.websocket.server import upgrade_to_tunnel
from acp_gateway.transports.websocket.stream import CONNECTION_ID, REFUSAL_HEADER
from acp_gateway.transports.websocket.tunnel import Tunnel

log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT: Final = 5.0
"""Seconds to reach a node: clients try again by themselves."""

_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


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
        token = self._access.token
        if token is not None:
            self._gateway.storage.token_used(token.id)
        try:
            way = await self._reach()
        except Busy as error:
            headers = {REFUSAL_HEADER: error.reason}
            await http.respond(Response.of_text(error.http_status, str(error), headers, close=True))
            return False
        try:
            tunnel = await upgrade_to_tunnel(http, request, {CONNECTION_ID: self._name.partition(" ")[0]})
            if isinstance(tunnel, Response):
                await http.respond(tunnel)
            else:
                await self._carry(tunnel, way)
        finally:
            with trio.CancelScope(shield=True):
                await way.aclose()
        return False

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

    async def _carry(self, tunnel: Tunnel, way: ByteStream) -> None:
        gateway, access = self._gateway, self._access
        settings = gateway.config.gateway
        connection = ControlConnection(access)
        limiter = gateway.connections.rate_limiter(access.account)
        tunnel.meter.charge = limiter.charge
        gateway.audit.record(
            "tunnel_opened",
            connection=self._name,
            node=self._node,
            identity=access.identity,
            credential=access.credential,
        )
        log.info("%s: tunnel to the node %s opened for %s", self._name, self._node, access.credential)
        why: str | None = None
        try:
            with connection.scope, gateway.connections.watched(connection):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tunnel.keep_alive, settings.ping_interval, settings.ping_timeout)
                    why = await carry(tunnel, way, settings.stall_timeout)
                    nursery.cancel_scope.cancel()
        finally:
            if why is None:
                why = connection.disconnect.text
            log.info("%s: tunnel to the node %s closed%s", self._name, self._node, why and f": {why}")
            with trio.CancelScope(shield=True):
                if why:
                    # What is on its way must not arrive after what the client sends over another connection.
                    way.reset_when_closed(True)
                    await way.aclose()
                    await tunnel.refuse(why)
                else:
                    await _finish(tunnel)


async def carry(tunnel: Tunnel, way: ByteStream, stall_timeout: float) -> str:
    """Copy bytes both ways until both sides have ended; return why they did not: empty if they did.

    At most one read is on its way in each direction, so a side that takes nothing stops the other; it is given up after
    `stall_timeout` seconds.
    """
    whys: list[str] = []

    def fail(stream: ByteStream, error: Exception) -> None:
        whys.append("the door has lost the connection to the node" if stream is way else str(error) or "closed")
        nursery.cancel_scope.cancel()

    async def copy(source: ByteStream, sink: ByteStream, pause: Callable[[], float]) -> None:
        while True:
            try:
                data = await source.receive_some()
            except (*_LOST, Flooded) as error:
                return fail(source, error)
            if seconds := pause():
                await trio.sleep(seconds)
            try:
                with trio.move_on_after(stall_timeout) as waiting:
                    if not data:
                        return await sink.send_eof()
                    await _write(sink, data, waiting, stall_timeout)
            except _LOST as error:
                return fail(sink, error)
            if waiting.cancelled_caught:
                return fail(source, trio.BrokenResourceError(f"nothing was taken for {stall_timeout:g} s"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy, tunnel, way, partial(_charge, tunnel))
        nursery.start_soon(copy, way, tunnel, lambda: 0.0)
    return whys[0] if whys else ""


def _charge(tunnel: Tunnel) -> float:
    """Charge a client for what it has sent; return the seconds for which it is not to be read."""
    size, frames = tunnel.meter.take()
    return 0.0 if tunnel.meter.charge is None else tunnel.meter.charge(messages=frames, size=size)


async def _write(sink: ByteStream, data: bytes, waiting: trio.CancelScope, stall_timeout: float) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[await sink.send_some(rest) :]
        waiting.deadline = trio.current_time() + stall_timeout


async def _finish(tunnel: Tunnel) -> None:
    """Close a tunnel whose sides have ended."""
    with trio.move_on_after(CLOSE_TIMEOUT):
        try:
            await tunnel.finish()
        except _LOST:
            pass
    await tunnel.aclose()
