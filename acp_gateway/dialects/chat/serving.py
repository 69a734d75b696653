"""Serves the chat bridge at a listener."""

from typing import Final

from acp_gateway.dialects.chat.bridge import ChatBridge
from acp_gateway.gateway.access import Access
from acp_gateway.server.authentication import Client
from acp_gateway.server.http.route import SOCKET, Answer, Route, secured
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.transports.http.server import Request

CHAT: Final = "/chat"


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the routes of the chat bridge."""
    gateway = at.gateway

    def answer(client: Client, request: Request, access: Access) -> Answer:
        """Answer a widget, or pass its WebSocket on to the node that it names."""
        return at.pass_on(request, access) or at.answer_websocket(
            client, request, access, lambda wanted, name: ChatBridge(gateway, access, wanted, name).serve
        )

    return {CHAT: secured(methods=SOCKET, answer=answer)}
