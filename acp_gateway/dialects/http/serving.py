"""Serves Streamable HTTP at the endpoint of a listener."""

from acp_gateway.dialects.http.link import HttpLinks
from acp_gateway.dialects.http.streamable_http import StreamableHttp
from acp_gateway.server.http.route import Route
from acp_gateway.server.http.routes import HttpRoutes


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Answer the requests of the endpoint that ask for no WebSocket; return no route of its own."""
    links = at.gateway.services.one(HttpLinks, at.gateway, at.shared.start)
    at.answer_request = StreamableHttp(at.gateway, links).answer
    return {}
