"""A client's tunnel to a port of an agent on this machine."""

import math

import trio

from acp_gateway.errors import AccessError, Busy, Unreachable
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import TunnelEnd, serve_tunnel
from acp_gateway.gateway.viewing.open_ports import OpenPort, OpenPorts
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.websocket.server import upgrade_to_tunnel
from acp_gateway.transports.websocket.stream import CONNECTION_ID, REFUSAL_HEADER


class PortTunnel:
    """A tunnel to a port.

    Args:
        gateway: the gateway.
        access: the client's principal.
        port: the port.
        name: the client's name in the log.
    """

    def __init__(self, gateway: Gateway, access: Access, port: int, name: str) -> None:
        self._gateway = gateway
        self._access = access
        self._port = port
        self._name = name

    async def run(self, http: HttpConnection, request: Request) -> bool:
        """Answer the request, and carry bytes until the tunnel has ended. Returns False: no other request follows."""
        gateway, access = self._gateway, self._access
        token = access.token
        if token is not None:
            gateway.storage.token_used(token.id)
        try:
            port, way = await gateway.services.one(OpenPorts, gateway).open(access, self._port)
        except (AccessError, Unreachable) as error:
            refusal = Busy(str(error)) if isinstance(error, Unreachable) else error
            headers = {REFUSAL_HEADER: refusal.reason}
            await http.respond(Response.of_text(refusal.http_status, str(refusal), headers, close=True))
            return False
        try:
            tunnel = await upgrade_to_tunnel(http, request, {CONNECTION_ID: self._name.partition(" ")[0]})
            if isinstance(tunnel, Response):
                await http.respond(tunnel)
                return False
            note_opened(gateway, access, port, self._name)
            # A program may let its client wait for as long as it likes, as a debugger does.
            to = TunnelEnd(f"port {port.port}", "the program has closed the connection", math.inf)
            await serve_tunnel(gateway, access, tunnel, way, to, self._name)
        finally:
            with trio.CancelScope(shield=True):
                await way.aclose()
        return False


def note_opened(gateway: Gateway, access: Access, port: OpenPort, name: str) -> None:
    """Write into the audit that a client uses a port."""
    gateway.audit_throttle.record(
        "port_opened",
        connection=name,
        port=port.port,
        program=port.program or None,
        agent=port.agent,
        session=port.sessions[0].id if len(port.sessions) == 1 else None,
        identity=access.identity,
        credential=access.credential,
    )
