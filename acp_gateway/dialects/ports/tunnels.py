"""A client's tunnel to a port of an agent on this machine."""

from collections.abc import Callable
from typing import Final

import trio

from acp_gateway.errors import AccessError, Busy, Unreachable
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.connections import UNUSED
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection, TunnelEnd, counted, serve_tunnel
from acp_gateway.gateway.viewing.admitted import Admitted
from acp_gateway.gateway.viewing.open_ports import OpenPort, OpenPorts
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.sockets import SocketBytes
from acp_gateway.transports.streams import send_all
from acp_gateway.transports.websocket.server import upgrade_to_tunnel
from acp_gateway.transports.websocket.stream import CONNECTION_ID
from acp_gateway.transports.websocket.tunnel import NEEDED, Tunnel

STALL_TIMEOUT: Final = 3600.0
"""Seconds after which a side that takes nothing is given up: a program in a debugger takes nothing for long. That its
client has gone is seen before then on Linux alone."""

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
        ahead: True if the client opens the tunnel before it needs it, and says when.

    Raises `AccessError` for a client that may not connect.
    """

    def __init__(
        self, gateway: Gateway, access: Access, port: int, name: str, refuse: Refuse, *, ahead: bool = False
    ) -> None:
        self._gateway = gateway
        self._access = access
        self._port = port
        self._name = name
        self._refuse = refuse
        self._ahead = ahead
        self._client = Admitted(gateway, access, ConnectRequest(control=True), evicts=not ahead)

    async def run(self, http: HttpConnection, request: Request) -> bool:
        """Answer the request, and carry bytes until the tunnel has ended. Returns False: no other request follows."""
        with counted(self._gateway, self._access) as connection:
            await (self._serve_ahead if self._ahead else self._serve)(http, request, connection)
        return False

    async def _serve(self, http: HttpConnection, request: Request, connection: ControlConnection) -> None:
        try:
            port, way = await self._open()
        except AccessError as error:
            await http.respond(self._refuse(error))
            return
        try:
            tunnel = await self._upgrade(http, request)
            if tunnel is not None:
                await self._carry(connection, tunnel, port, way)
        finally:
            with trio.CancelScope(shield=True):
                await way.aclose()

    async def _serve_ahead(self, http: HttpConnection, request: Request, connection: ControlConnection) -> None:
        """Open the tunnel, and the port once the client needs it."""
        tunnel = await self._upgrade(http, request)
        if tunnel is None:
            return
        found: tuple[OpenPort, SocketBytes] | None = None
        why = ""
        try:
            await self._until_needed(connection, tunnel)
            found = await self._open()
        except AccessError as error:
            self._refuse(error)
            why = str(error)
        finally:
            if found is None:
                with trio.CancelScope(shield=True):
                    await tunnel.refuse(why or connection.disconnect.text)
        if found is None:
            return
        port, way = found
        try:
            await send_all(tunnel, NEEDED)
            await self._carry(connection, tunnel, port, way)
        finally:
            with trio.CancelScope(shield=True):
                await way.aclose()

    async def _until_needed(self, connection: ControlConnection, tunnel: Tunnel) -> None:
        """Wait for the client's `NEEDED`. Until then, it is the first to go where others need the room.

        Raises `BrokenResourceError` if the client leaves before.
        """
        settings = self._gateway.config.gateway
        tunnel.meter.charge = self._gateway.connections.limiter_of(self._access).charge
        connection.away_since = UNUSED
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tunnel.keep_alive, settings.ping_interval, settings.ping_timeout)
            data = await tunnel.receive_some()
            nursery.cancel_scope.cancel()
        connection.away_since = None
        if not data.startswith(NEEDED):
            raise trio.BrokenResourceError("the client does not need the tunnel any more")
        tunnel.put_back(data.removeprefix(NEEDED))

    async def _open(self) -> tuple[OpenPort, SocketBytes]:
        """Connect to the port. Raises `AccessError`."""
        try:
            return await self._gateway.services.one(OpenPorts, self._gateway).open(self._client, self._port)
        except Unreachable as error:
            raise Busy(str(error)) from error

    async def _upgrade(self, http: HttpConnection, request: Request) -> Tunnel | None:
        """Return the tunnel; None if the request is not sound, which is answered."""
        tunnel = await upgrade_to_tunnel(http, request, {CONNECTION_ID: self._name.partition(" ")[0]})
        if isinstance(tunnel, Response):
            await http.respond(tunnel)
            return None
        return tunnel

    async def _carry(self, connection: ControlConnection, tunnel: Tunnel, port: OpenPort, way: SocketBytes) -> None:
        note_opened(self._gateway, self._access, port, self._name)
        to = TunnelEnd(f"port {port.port}", "the program has closed the connection", STALL_TIMEOUT)
        await serve_tunnel(self._gateway, connection, tunnel, way, to, self._name)


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
