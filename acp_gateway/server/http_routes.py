"""Answers the HTTP requests of one listener, by one table of routes.

Every request must name a host that the gateway goes by; the endpoint also checks the page's origin, and the token or
the cookie. What needs neither is answered at once: health, readiness, a page in words for a person with a browser,
refusals.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import AccessError, Forbidden, ProtocolError, Unauthorized
from acp_gateway.gateway.access import ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.printable import printable
from acp_gateway.server.authorization import Client, ConnectionAuthorizer
from acp_gateway.server.cookies import check_page, site_of
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.hello import (
    BadRequest,
    asks_for_websocket,
    check_host,
    check_origin,
    client_address,
    read_bearer,
    read_query,
    read_resume_request,
)
from acp_gateway.server.http_link import HttpLinks
from acp_gateway.server.metrics import MetricsExporter
from acp_gateway.server.pending import Accepted
from acp_gateway.server.refusals import Refusal
from acp_gateway.server.sign_in import LOGIN, LOGOUT, BodyNeeded, SignInRoutes
from acp_gateway.server.start_page import PAGE_HEADERS, start_page
from acp_gateway.server.streamable_http import LAST_EVENT_ID, SESSION_ID, Exchange, StreamableHttp
from acp_gateway.transports.http_head import HttpError
from acp_gateway.transports.http_server import HttpConnection, Request, Response
from acp_gateway.transports.websocket import CONNECTION_ID, REFUSAL_HEADER, RESUME

ENDPOINT: Final = "/acp"
HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
METRICS: Final = "/metrics"
START: Final = "/"

NOTHING_HERE: Final = f"there is nothing here; the endpoint is {ENDPOINT}"

_READ: Final = ("GET", "HEAD")

_PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "authorization, content-type, accept, "
    f"{CONNECTION_ID.lower()}, {SESSION_ID.lower()}, {LAST_EVENT_ID.lower()}",
    "Access-Control-Max-Age": "600",
    "Allow": "GET, POST, DELETE, OPTIONS",
}


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A request that is granted a WebSocket."""

    accepted: Accepted

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the 101."""
        count = {} if self.accepted.received is None else {RESUME: str(self.accepted.received)}
        return {CONNECTION_ID: self.accepted.connection_id} | count


Answer = Response | Upgrade | Exchange | BodyNeeded
Handler = Callable[[Client, Request], Answer]


class HttpRoutes:
    """The routes of one listener."""

    def __init__(
        self,
        section: ListenSection,
        gateway: Gateway,
        limiter: HandshakeLimiter,
        authorizer: ConnectionAuthorizer,
        links: HttpLinks,
    ) -> None:
        self._section = section
        self._gateway = gateway
        self._settings = gateway.config.gateway
        self._limiter = limiter
        self._authorizer = authorizer
        self._streamable_http = StreamableHttp(gateway, links)
        self._routes: dict[str, tuple[tuple[str, ...], Handler]] = {
            HEALTH: (_READ, _answer_health),
            READINESS: (_READ, self._answer_readiness),
        }
        if "acp" in section.services:
            self._routes[ENDPOINT] = ("GET", "POST", "DELETE", "OPTIONS"), self._answer_endpoint
            self._routes[START] = _READ, _answer_start
        if "metrics" in section.services:
            self._exporter = MetricsExporter(gateway, limiter)
            self._routes[METRICS] = _READ, self._answer_metrics
        self._has_browsers = "page" in section.services
        if self._has_browsers:
            sign_in = SignInRoutes(section, gateway)
            self._routes[LOGIN] = ("POST",), sign_in.log_in
            self._routes[LOGOUT] = ("POST",), sign_in.log_out

    def answer(self, client: Client, request: Request) -> Answer:
        """Decide a request. Nothing is started for it yet."""
        return self._decide(client, request, lambda: self._route(client, request))

    async def answer_body(self, client: Client, http: HttpConnection, request: Request, needed: BodyNeeded) -> Response:
        """Receive the body of a request, and decide the request by it. Raises what the stream raises."""
        if http.announced_size is None:
            # An unknown client's body of very small chunks would take far longer to read than to send.
            text = f"{request.path} needs a Content-Length"
            return Response.of_text(HTTPStatus.LENGTH_REQUIRED, text, PAGE_HEADERS, close=True)
        try:
            body = await http.receive_body(needed.size)
        except HttpError as error:
            return Response.of_text(error.status, str(error), PAGE_HEADERS, close=True)
        answer = self._decide(client, request, lambda: needed.decide(body))
        assert isinstance(answer, Response)
        return answer

    def _decide(self, client: Client, request: Request, decide: Callable[[], Answer]) -> Answer:
        with self._limiter.measured(client.connection):
            try:
                answer = decide()
            except AccessError as error:
                answer = _refused(self._limiter.refuse(client.connection, error))
            except BadRequest as error:
                headers = {REFUSAL_HEADER: ProtocolError.reason}
                self._limiter.refusals.counts[ProtocolError.reason] += 1
                answer = Response.of_text(HTTPStatus.BAD_REQUEST, str(error), headers, close=True)
        if isinstance(answer, Response) and request.path in (LOGIN, LOGOUT):
            answer = replace(answer, headers={**answer.headers, **PAGE_HEADERS})
        if isinstance(answer, Response) and asks_for_websocket(request.headers):
            # Such a client sends no second request.
            return replace(answer, close=True)
        return answer

    async def prepare(self, client: Client, http: HttpConnection, exchange: Exchange) -> Response | Exchange:
        """Receive what an exchange needs before its connection leaves the limits for unauthenticated ones.

        Raises `HttpError`, and what the stream raises.
        """
        assert exchange.prepare is not None
        try:
            refusal = await exchange.prepare(http)
        except AccessError as error:
            refusal = _refused(self._limiter.refuse(client.connection, error))
        return exchange if refusal is None else replace(refusal, headers={**refusal.headers, **exchange.headers})

    def _route(self, client: Client, request: Request) -> Answer:
        connection = client.connection
        address = client_address(connection.address, request.headers, self._settings.trusted_proxies)
        if address != connection.address:
            connection.name = connection.name.replace("(", f"({address} by way of ", 1)
            connection.address = address
        check_host(request.headers, self._section.allowed_hosts, loopback=self._section.address.loopback)
        if request.path not in self._routes:
            serves = (
                NOTHING_HERE if ENDPOINT in self._routes else f"there is nothing here but {', '.join(self._routes)}"
            )
            return Response.of_text(HTTPStatus.NOT_FOUND, serves)
        methods, handler = self._routes[request.path]
        if request.method not in methods:
            text = f"{request.path} takes {', '.join(methods)} only"
            return Response.of_text(HTTPStatus.METHOD_NOT_ALLOWED, text, {"Allow": ", ".join(methods)})
        return handler(client, request)

    def _answer_endpoint(self, client: Client, request: Request) -> Answer:
        cookie = self._check_page(request)
        cors = _cors(request)
        if request.method == "OPTIONS":
            return Response(HTTPStatus.NO_CONTENT, headers=cors | _PREFLIGHT)
        access = self._authorizer.authenticate(client, read_bearer(request.headers), cookie)
        if not asks_for_websocket(request.headers):
            answer = self._streamable_http.answer(client.connection, access, request)
            return replace(answer, headers={**answer.headers, **cors})
        link = read_resume_request(request.query, request.headers)
        # A resumed link keeps the request that it was opened with.
        resumes = link is not None and link.connection_id is not None
        connect_request = ConnectRequest() if resumes else read_query(request.query)
        return Upgrade(self._authorizer.authorize(client.connection, access, connect_request, link))

    def _answer_metrics(self, client: Client, request: Request) -> Answer:
        """Answer a scrape: with a token of the role `metrics`, or on loopback where nothing else is served."""
        if self._section.services == ("metrics",) and self._section.address.loopback:
            return self._exporter.response()
        access = self._authorizer.authenticate(client, read_bearer(request.headers))
        if access.role != "metrics" or access.token is None:
            raise Forbidden("metrics need a token of the role metrics: `acp-gateway token create --role metrics`")
        self._gateway.storage.token_used(access.token.id)
        return Exchange(access, self._send_metrics)

    async def _send_metrics(self, http: HttpConnection) -> bool:
        return await http.respond(self._exporter.response())

    def _answer_readiness(self, client: Client, request: Request) -> Response:
        """Answer whether new clients can be served; with a token, other than a guest's, with the reasons."""
        readiness = self._gateway.readiness
        reasons = readiness.problems if self._may_see_reasons(client, request) else []
        if readiness.ready:
            return Response.of_text(HTTPStatus.OK, "ready")
        text = "\n".join(["not ready", *map(printable, reasons)])
        return Response.of_text(HTTPStatus.SERVICE_UNAVAILABLE, text)

    def _may_see_reasons(self, client: Client, request: Request) -> bool:
        token = read_bearer(request.headers)
        # With an unreadable file, no token can be told from another text.
        if token is None or not self._gateway.readiness.tokens_readable:
            return False
        return self._authorizer.authenticate(client, token).session is None

    def _check_page(self, request: Request) -> str | None:
        """Check the origin of a request; return the cookie of a browser. Raises `Forbidden` and `BadRequest`."""
        headers, allowed = request.headers, self._section.allowed_origins
        if not self._has_browsers:
            check_origin(headers, allowed)
            return None
        site = site_of(headers, tls=self._section.address.tls)
        is_page = check_origin(headers, (site.origin, *allowed))
        cookie = site.read_cookie(headers)
        if cookie is not None and not is_page:
            if read_bearer(headers) is None:
                check_page(headers, allowed, site)
            return None
        return cookie


def _answer_health(client: Client, request: Request) -> Response:  # noqa: ARG001
    return Response.of_text(HTTPStatus.OK, "ok")


def _answer_start(client: Client, request: Request) -> Response:  # noqa: ARG001
    return start_page(request)


def _cors(request: Request) -> dict[str, str]:
    """Return the headers that let the page of an allowed origin read a response (Fetch, 3.2)."""
    origin = request.headers.get("Origin")
    if origin is None:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": f"{CONNECTION_ID}, {SESSION_ID}",
        "Vary": "Origin",
    }


def _refused(refusal: Refusal) -> Response:
    # The first header distinguishes the gateway's own refusal from that of a proxy.
    headers = {REFUSAL_HEADER: refusal.error.reason}
    if isinstance(refusal.error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Response.of_text(refusal.error.http_status, str(refusal.error), headers, delay=refusal.delay, close=True)
