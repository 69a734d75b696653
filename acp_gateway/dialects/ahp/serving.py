"""Serves the Agent Host Protocol at a listener."""

from typing import Final

from acp_gateway.dialects.ahp.connection import AhpConnection
from acp_gateway.gateway.access import Access
from acp_gateway.server.authentication import Client
from acp_gateway.server.http.route import SOCKET, Answer, Credential, Origins, Route, secured
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.transports.http.server import Request

AHP: Final = "/ahp"
WINDOW: Final = "/"
"""The path that VS Code connects to."""


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the route of the Agent Host Protocol: of windows at a listener of their own, else beside the endpoint."""
    gateway = at.gateway

    def answer(client: Client, request: Request, access: Access) -> Answer:
        """Answer a client, or pass its WebSocket on to the node that it names."""
        return at.pass_on(request, access) or at.answer_websocket(
            client, request, access, lambda wanted, name: AhpConnection(gateway, access, wanted, name).serve
        )

    if at.section.query_parameter is None:
        return {AHP: secured(methods=SOCKET, answer=answer)}
    # Windows are pages of VS Code. No page of another site knows the token, and no browser adds it by itself.
    return {
        WINDOW: Route(methods=("GET",), origins=Origins.ANY, passage=False, credential=Credential.NEEDED, answer=answer)
    }
