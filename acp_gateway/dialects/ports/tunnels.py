"""A client's tunnel to a port of an agent on this machine."""

from collections.abc import Callable
from typing import Final

import trio

from acp_gateway.errors import AccessError, Busy, Unreachable
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection, TunnelEnd, counted, serve_tunnel
from acp_gateway.gateway.viewing.admitted import Admitted
from acp_gateway.gateway.viewing.open_ports import OpenPort, OpenPorts
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.websocket.server import upgrade_to_tunnel
from acp_gateway.transports.websocket.stream import CONNECTION_ID

STALL_TIMEOUT: Final = 3600.0
"""Seconds after which a side that takes nothing is given up: a program in a debugger takes nothing for long, but that
its client has gone is not seen behind what it has not taken."""

Refuse = Callable[[AccessError], Response]
"""Counts and audits the refusal of a request that was let in; returns the response."""


class PortTunnel:
    """A tunnel to a port.

    Args:
        gateway: the gateway.
        access: the client's principal.
        port: the port.
        name: the client's name in the log.
        refuse: refuses what turns out not to be there.

    Raises `AccessError` for a client that may not connect.
    """

    def __init__(self, gateway: Gateway, access: Access, port: int, name: str, refuse: Refuse) -> None:
        self._gateway = gateway
        self._access = access
        self._port = port
        self._name = name
        self._refuse = refuse
        self._client = Admitted(gateway, access, ConnectRequest(control=True))

    async def run(self, http: HttpConnection, request: Request) -> bool:
        """Answer the request, and carry bytes until the tunnel has ended. Returns False: no other request follows."""
        with counted(self._gateway, self._access) as connection:
            await self._serve(http, request, connection)
        return False

    async def _serve(self, http: HttpConnection, request: Request, connection: ControlConnection) -> None:
        gateway = self._gateway
        try:
            port, way = await gateway.services.one(OpenPorts, gateway).open(self._client, self._port)
        except (AccessError, Unreachable) as error:
            refused = Busy(str(error)) if isinstance(error, Unreachable) else error
            await http.respond(self._refuse(refused))
            return
        try:
            tunnel = await upgrade_to_tunnel(http, request, {CONNECTION_ID: self._name.partition(" ")[0]})
            if isinstance(tunnel, Response):
                await http.respond(tunnel)
                return
            note_opened(gateway, self._access, port, self._name)
            to = TunnelEnd(f"port {port.port}", "the program has closed the connection", STALL_TIMEOUT)
            await serve_tunnel(gateway, connection, tunnel, way, to, self._name)
        finally:
            with trio.CancelScope(shield=True):
                await way.aclose()


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
