"""Serves the files of sessions at a listener."""

from typing import Final

from acp_gateway.dialects.files.requests import BadQuery, read_query
from acp_gateway.dialects.files.sending import Sending
from acp_gateway.gateway.access import Access
from acp_gateway.server.authentication import Client
from acp_gateway.server.hello import BadRequest
from acp_gateway.server.http.route import READ, Answer, Exchange, Origins, Route, secured
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.transports.http.server import Request

FILES: Final = "/files"


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the route of files, which a page loads as pictures, films and frames."""
    gateway = at.gateway

    def answer(client: Client, request: Request, access: Access) -> Answer:
        """Answer a request for a file."""
        try:
            asked = read_query(request.query)
        except BadQuery as error:
            raise BadRequest(str(error)) from None
        return Exchange(access, Sending(gateway, access, request, asked, client.connection.name).run)

    return {FILES: secured(methods=READ, origins=Origins.LOADED, answer=answer)}
