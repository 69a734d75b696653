"""Serves the metrics at a listener."""

from typing import Final

from acp_gateway.dialects.metrics.exporter import MetricsExporter
from acp_gateway.dialects.metrics.service import SERVICE
from acp_gateway.errors import Forbidden
from acp_gateway.gateway.access import Access
from acp_gateway.server.authentication import Client
from acp_gateway.server.http.route import Answer, Credential, Exchange, Route, public
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.transports.http.server import HttpConnection, Request

METRICS: Final = "/metrics"


def routes(at: HttpRoutes) -> dict[str, Route]:
    """Return the route of the metrics, which needs no token at a local address that serves nothing else."""
    gateway, exporter = at.gateway, MetricsExporter(at.gateway, at.limiter)

    async def send(http: HttpConnection) -> bool:
        return await http.respond(exporter.response())

    def answer(client: Client, request: Request, access: Access | None) -> Answer:  # noqa: ARG001 - as of every route.
        """Answer a scrape."""
        if access is None:
            return exporter.response()
        if access.role != "metrics" or access.token is None:
            raise Forbidden("metrics need a token of the role metrics: `acp-gateway token create --role metrics`")
        gateway.storage.token_used(access.token.id)
        return Exchange(access, send)

    is_open = at.section.serves == (SERVICE.word,) and at.section.address.loopback
    return {METRICS: public(credential=Credential.NONE if is_open else Credential.NEEDED, answer=answer)}
