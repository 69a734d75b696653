"""Answers the HTTP requests of one listener, by one table of routes.

Every request must name a host that the gateway goes by; the endpoint also checks the page's origin, and the token or
the cookie. What needs neither is answered at once: health, readiness, the files of the page for browsers, refusals.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from acp_gateway.adapters import editor
from acp_gateway.config.load import ListenSection
from acp_gateway.errors import AccessError, Busy, Forbidden, ProtocolError, Unauthorized
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.printable import printable
from acp_gateway.protocol.on_behalf import FOR
from acp_gateway.server.assets import FAVICON, FOLDER, MANIFEST, PAGE, serve_page
from acp_gateway.server.authorization import Client, ConnectionAuthorizer
from acp_gateway.server.browser_bridge import BrowserBridge
from acp_gateway.server.chat_bridge import ChatBridge
from acp_gateway.server.cookies import Site, check_page, site_of
from acp_gateway.server.editor_bridge import NOT_FOUND, EditorBridge
from acp_gateway.server.event_reader import LAST_EVENT_ID, SESSION_ID
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.hello import (
    BadRequest,
    asks_for_websocket,
    check_host,
    check_no_passage,
    check_origin,
    client_address,
    read_bearer,
    read_passage,
    read_query,
    read_resume_request,
)
from acp_gateway.server.http_link import HttpLinks
from acp_gateway.server.joining import JOIN, JoinRoute
from acp_gateway.server.metrics import MetricsExporter
from acp_gateway.server.pending import Accepted, Serving
from acp_gateway.server.refusals import Refusal
from acp_gateway.server.session_connection import SessionConnection
from acp_gateway.server.sign_in import LOGIN, LOGOUT, BodyNeeded, SignInRoutes
from acp_gateway.server.start_page import PAGE_HEADERS, start_page
from acp_gateway.server.streamable_http import Exchange, StreamableHttp
from acp_gateway.transports.http_head import HttpError
from acp_gateway.transports.http_server import HttpConnection, Request, Response
from acp_gateway.transports.maintained import SLOWEST_PEER
from acp_gateway.transports.websocket import CONNECTION_ID, REFUSAL_HEADER, RESUME

ENDPOINT: Final = "/acp"
HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
METRICS: Final = "/metrics"
BROWSERS: Final = "/ws"
CHAT: Final = "/chat"

NOTHING_HERE: Final = f"there is nothing here; the endpoint is {ENDPOINT}"

_READ: Final = ("GET", "HEAD")

_PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "authorization, content-type, accept, "
    f"{CONNECTION_ID.lower()}, {SESSION_ID.lower()}, {LAST_EVENT_ID.lower()}",
    "Access-Control-Max-Age": "600",
    "Allow": "GET, POST, DELETE, OPTIONS",
}

_EXPOSED: Final = f"{CONNECTION_ID}, {SESSION_ID}, Retry-After, {REFUSAL_HEADER}"
"""Headers that a page may read, besides those of every response."""


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
Route = tuple[tuple[str, ...], Handler]
"""Methods of a path, and its handler."""


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
        # Parsed once: they are asked for at each request.
        self._address, self._public, self._hosts = section.address, section.public, section.hosts
        self._gateway = gateway
        self._settings = gateway.config.gateway
        self._limiter = limiter
        self._authorizer = authorizer
        self._streamable_http = StreamableHttp(gateway, links)
        self._routes: dict[str, Route] = {
            HEALTH: (_READ, _answer_health),
            READINESS: (_READ, self._answer_readiness),
        }
        if "acp" in section.services:
            self._routes[ENDPOINT] = ("GET", "POST", "DELETE", "OPTIONS"), self._answer_endpoint
            self._routes[PAGE] = _READ, _answer_start
            self._routes[JOIN] = ("POST",), JoinRoute(gateway).answer
        if "chat" in section.services:
            self._routes[CHAT] = ("GET", "POST"), self._answer_chat
        if "metrics" in section.services:
            self._exporter = MetricsExporter(gateway, limiter)
            self._routes[METRICS] = _READ, self._answer_metrics
        self._pages: set[str] = {ENDPOINT}
        if "editor" in section.services:
            self._editors = EditorBridge(gateway)
            self._pages.update(editor.METHODS)
            for path, method in editor.METHODS.items():
                self._routes[path] = (method, "OPTIONS"), self._answer_editor
        self._has_browsers = "page" in section.services
        self._has_pages = self._has_browsers or bool(section.allowed_origins)
        if self._has_browsers:
            sign_in = SignInRoutes(section, gateway)
            self._routes[LOGIN] = ("POST",), sign_in.log_in
            self._routes[LOGOUT] = ("POST",), sign_in.log_out
            self._routes[BROWSERS] = ("GET", "POST"), self._answer_browser
            # The page takes the place of the start page. A path with a slash at its end is a prefix.
            self._routes |= dict.fromkeys((PAGE, FOLDER, MANIFEST, FAVICON), (_READ, self._answer_page))

    def cors(self, request: Request) -> dict[str, str]:
        """Return the headers that let a page read the response to a request, whatever its status (Fetch, 3.2).

        There are none but at the endpoint and for editors, for a listed origin or that of the gateway's own page.
        """
        if request.path not in self._pages or not self._has_pages:
            return {}
        # Also where no Origin was sent: a cache must not give that response to a page.
        vary = {"Vary": "Origin"}
        origins = request.headers.get_all("Origin")
        if len(origins) != 1 or not (origins[0] in self._section.allowed_origins or self._is_own_page(request)):
            return vary
        return {
            "Access-Control-Allow-Origin": origins[0],
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Expose-Headers": _EXPOSED,
            **vary,
        }

    def _site_of(self, request: Request) -> Site:
        return site_of(request.headers, tls=self._address.tls, public=self._public)

    def _is_own_page(self, request: Request) -> bool:
        if not self._has_browsers:
            return False
        try:
            self._check_host(request)
        except Forbidden:
            return False
        return request.headers.get("Origin") == self._site_of(request).origin

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
        return exchange if refusal is None else refusal

    def _route(self, client: Client, request: Request) -> Answer:
        connection = client.connection
        # A proxy may send the requests of several clients over one connection.
        connection.begin_request(client_address(connection.peer, request.headers, self._settings.trusted_proxies))
        self._check_host(request)
        route = self._find(request.path)
        if route is None and editor.SEND_MESSAGE in self._routes and request.path.startswith(f"{ENDPOINT}/"):
            return NOT_FOUND
        if route is None:
            serves = (
                NOTHING_HERE if ENDPOINT in self._routes else f"there is nothing here but {', '.join(self._routes)}"
            )
            return Response.of_text(HTTPStatus.NOT_FOUND, serves)
        methods, handler = route
        if request.method not in methods:
            text = f"{request.path} takes {', '.join(methods)} only"
            return Response.of_text(HTTPStatus.METHOD_NOT_ALLOWED, text, {"Allow": ", ".join(methods)})
        return handler(client, request)

    def _find(self, path: str) -> "Route | None":
        """Return the route of a path: its own, else that of the prefix which it begins with."""
        prefix = f"/{path[1:].partition('/')[0]}/"
        return self._routes.get(path) or (self._routes.get(prefix) if path.startswith(prefix) else None)

    def _check_host(self, request: Request) -> None:
        check_host(request.headers, self._hosts, loopback=self._address.loopback)

    def _answer_endpoint(self, client: Client, request: Request) -> Answer:
        cookie = self._check_page(request)
        if request.method == "OPTIONS":
            return Response(HTTPStatus.NO_CONTENT, headers=_PREFLIGHT)
        access = self._authorizer.authenticate(client, read_bearer(request.headers), cookie)
        if not asks_for_websocket(request.headers):
            check_no_passage(request.headers)
            return self._streamable_http.answer(client.connection, access, request)
        link = read_resume_request(request.query, request.headers)
        # A resumed link keeps the request that it was opened with.
        resumes = link is not None and link.connection_id is not None
        connect_request = ConnectRequest() if resumes else read_query(request.query)
        passed, request_id, claim = read_passage(request.headers)
        if passed:
            connect_request = replace(connect_request, passed=passed, request_id=request_id)
        if claim is not None:
            if connect_request.control:
                raise BadRequest(f"{FOR} is not for control connections: these are the gateway's own")
            access = access.acting_for(claim)
        return Upgrade(self._authorizer.authorize(client.connection, access, connect_request, link))

    def _answer_browser(self, client: Client, request: Request) -> Answer:
        """Answer a page, or another client that speaks its JSON-RPC."""
        site = self._site_of(request)
        page = f"{site.origin}{site.path}/"
        return self._answer_dialect(
            client, request, lambda access, wanted, name: BrowserBridge(self._gateway, access, wanted, name, page)
        )

    def _answer_chat(self, client: Client, request: Request) -> Answer:
        """Answer a chat widget."""
        return self._answer_dialect(
            client, request, lambda access, wanted, name: ChatBridge(self._gateway, access, wanted, name)
        )

    def _answer_dialect(
        self,
        client: Client,
        request: Request,
        connect: Callable[[Access, ConnectRequest, str], SessionConnection[Any]],
    ) -> Answer:
        """Answer a client that speaks another dialect over a WebSocket, which `connect` serves.

        A `POST` only tells a page whether it is signed in: browsers hide the status of a refused WebSocket from it, and
        send no `Origin` with `GET`.
        """
        check_no_passage(request.headers)
        cookie = self._check_page(request)
        access = self._authorizer.authenticate(client, read_bearer(request.headers), cookie)
        if request.method != "GET" or not asks_for_websocket(request.headers):
            text = f"{request.path} is for WebSockets"
            return Response.of_text(HTTPStatus.UPGRADE_REQUIRED, text, {"Upgrade": "websocket"})
        wanted = read_query(request.query)
        if wanted.control:
            raise BadRequest(f"control connections are at {ENDPOINT}")
        connection = client.connection
        bridge = connect(access, wanted, connection.name)
        self._authorizer.accept(connection, access)
        return Upgrade(Accepted(connection.connection_id, None, Serving(bridge.serve)))

    def _answer_editor(self, client: Client, request: Request) -> Answer:
        """Answer an editor that speaks HTTP, or the preflight of its page."""
        cookie = self._check_page(request)
        if request.method == "OPTIONS":
            return Response(HTTPStatus.NO_CONTENT, headers=_PREFLIGHT)
        check_no_passage(request.headers)
        access = self._authorizer.authenticate(client, read_bearer(request.headers), cookie)
        return self._editors.answer(client, access, request)

    def _answer_page(self, client: Client, request: Request) -> Response:
        """Answer with a file of the page. A browser fetches all of them before it shows a cookie."""
        response = serve_page(request)
        client.connection.extend(self._settings.handshake_timeout + len(response.body) / SLOWEST_PEER)
        return response

    def _answer_metrics(self, client: Client, request: Request) -> Answer:
        """Answer a scrape: with a token of the role `metrics`, or at a local address that serves nothing else."""
        if self._section.only_metrics and self._address.loopback:
            return self._exporter.response()
        access = self._authorizer.authenticate(client, read_bearer(request.headers))
        if access.role != "metrics" or access.token is None:
            raise Forbidden("metrics need a token of the role metrics: `acp-gateway token create --role metrics`")
        self._gateway.storage.token_used(access.token.id)
        return Exchange(access, self._send_metrics)

    async def _send_metrics(self, http: HttpConnection) -> bool:
        return await http.respond(self._exporter.response())

    def _answer_readiness(self, client: Client, request: Request) -> Response:
        """Answer whether new clients can be served; with a token, other than a guest's, with all problems."""
        readiness = self._gateway.readiness
        all_reasons = [*readiness.problems, *readiness.warnings, *readiness.absent_nodes()]
        reasons = all_reasons if self._may_see_reasons(client, request) else []
        status, state = (HTTPStatus.OK, "ready") if readiness.ready else (HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
        return Response.of_text(status, "\n".join([state, *map(printable, reasons)]))

    def _may_see_reasons(self, client: Client, request: Request) -> bool:
        token = read_bearer(request.headers)
        # With an unreadable file, no token can be told from another text.
        if token is None or not self._gateway.readiness.tokens_readable:
            return False
        try:
            return self._authorizer.authenticate(client, token).session is None
        except Busy:
            # The gateway is as ready as for others.
            return False

    def _check_page(self, request: Request) -> str | None:
        """Check the origin of a request; return the cookie of a browser. Raises `Forbidden` and `BadRequest`."""
        headers, allowed = request.headers, self._section.allowed_origins
        if not self._has_browsers:
            check_origin(headers, allowed)
            return None
        site = self._site_of(request)
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


def _refused(refusal: Refusal) -> Response:
    # The first header distinguishes the gateway's own refusal from that of a proxy.
    headers = {REFUSAL_HEADER: refusal.error.reason}
    if isinstance(refusal.error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Response.of_text(refusal.error.http_status, str(refusal.error), headers, delay=refusal.delay, close=True)
