"""Serves the editor bridge at a listener."""

from acp_gateway.dialects.editor.bridge import NOT_FOUND, EditorBridge
from acp_gateway.dialects.editor.requests import METHODS
from acp_gateway.dialects.editor.sessions import Composers
from acp_gateway.gateway.access import Access
from acp_gateway.server.authentication import Client
from acp_gateway.server.http.route import Answer, Exchange, Route, secured
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.transports.http.server import Request, Response


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the routes of the editor bridge. Reads the file of composers for the first time."""
    gateway = at.gateway
    bridge = EditorBridge(gateway, gateway.services.one(Composers, gateway))

    def answer(client: Client, request: Request, access: Access) -> Answer:
        """Answer an editor's call."""
        found = bridge.answer(client.connection, request, access)
        return found if isinstance(found, Response) else Exchange(access, found)

    at.nothing_below["/acp/"] = NOT_FOUND
    return {path: secured(methods=(method, "OPTIONS"), answer=answer) for path, method in METHODS.items()}
