"""Serves the ports of agents at a listener."""

import re
from functools import partial
from typing import Final

from acp_gateway.dialects.ports.previewing import preview_route
from acp_gateway.dialects.ports.tunnels import PortTunnel
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.viewing.open_ports import unknown_port
from acp_gateway.server.authentication import Client
from acp_gateway.server.hello import BadRequest
from acp_gateway.server.http.route import (
    Answer,
    Credential,
    Exchange,
    Origins,
    Route,
    needs_websocket,
    wants_websocket,
)
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.transports.http.server import Request
from acp_gateway.transports.websocket.tunnel import AHEAD

PORTS: Final = "/ports/"

_PORT: Final = re.compile(rf"/ports/([0-9]{{1,5}})({AHEAD})?")


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the route of the tunnels to ports. No page may open one: its programs are for the same machine."""

    def answer(client: Client, request: Request, access: Access) -> Answer:
        """Answer a program that wants a tunnel to a port. Raises `AccessError` and `BadRequest`."""
        found = _PORT.fullmatch(request.path)
        if found is None:
            raise BadRequest(f"the path of a port is /ports/ and its number, and {AHEAD} for a tunnel that waits")
        if not request.once(wants_websocket):
            return needs_websocket(request)
        port = int(found[1])
        if not 0 < port < 65536:
            raise unknown_port(port)
        refuse = partial(at.refuse_accepted, client, access)
        tunnel = PortTunnel(at.gateway, access, port, client.connection.name, refuse, ahead=found[2] is not None)
        return Exchange(access, partial(tunnel.run, request=request), opens=True)

    at.elsewhere = preview_route(at)
    return {
        PORTS: Route(methods=("GET",), origins=Origins.NONE, passage=True, credential=Credential.NEEDED, answer=answer)
    }
