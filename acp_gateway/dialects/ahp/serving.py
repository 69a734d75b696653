"""Serves the Agent Host Protocol at a listener."""

from typing import Final

from acp_gateway.dialects.ahp.connection import AhpConnection
from acp_gateway.gateway.access import Access
from acp_gateway.server.authentication import Client
from acp_gateway.server.http.route import SOCKET, Answer, Route, secured
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.transports.http.server import Request

AHP: Final = "/ahp"


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the routes of the Agent Host Protocol."""
    gateway = at.gateway

    def answer(client: Client, request: Request, access: Access) -> Answer:
        """Answer a client of the protocol, or pass its WebSocket on to the node that it names."""
        return at.pass_on(request, access) or at.answer_websocket(
            client, request, access, lambda wanted, name: AhpConnection(gateway, access, wanted, name).serve
        )

    return {AHP: secured(methods=SOCKET, answer=answer)}
