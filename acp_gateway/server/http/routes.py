"""Answers the HTTP requests of one listener, by one table of routes.

Every request must name a host that the gateway goes by. What else a path asks of a request is in its record in the
table, and `HttpRoutes` checks it before the handler is called: methods, the page's origin, and the token or the cookie.

No member of a `Route` has a default, so that a new route can't leave out a check.
"""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Final

from websockets.datastructures import Headers

from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.browser.bridge import BrowserBridge
from acp_gateway.dialects.browser.pages import Pages
from acp_gateway.dialects.chat.bridge import ChatBridge
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.dialects.editor.bridge import NOT_FOUND, EditorBridge
from acp_gateway.dialects.editor.sessions import Composers
from acp_gateway.dialects.local_client import AwayClients
from acp_gateway.dialects.session_connection import SessionConnection
from acp_gateway.errors import AccessError, Busy, Forbidden, ProtocolError, Unauthorized, UnknownAgent
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.admission import check_path
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.printable import printable
from acp_gateway.protocol.event_parser import LAST_EVENT_ID, SESSION_ID
from acp_gateway.security.proof import PROOF
from acp_gateway.security.token_store import Role
from acp_gateway.server.authentication import Client, ConnectionAuthorizer
from acp_gateway.server.handshake_limits import HandshakeLimiter, Refusal
from acp_gateway.server.hello import (
    BadRequest,
    Passage,
    asks_for_websocket,
    check_host,
    check_no_passage,
    check_origin,
    client_address,
    read_bearer,
    read_challenge,
    read_connect_request,
    read_page,
    read_passage,
    read_query,
    read_resume_request,
)
from acp_gateway.server.http.assets import (
    FAVICON,
    FOLDER,
    MANIFEST,
    PAGE,
    PAGE_HEADERS,
    WEB,
    WORKER,
    load_assets,
    serve_page,
    start_page,
)
from acp_gateway.server.http.link import HttpLinks
from acp_gateway.server.http.metrics import MetricsExporter
from acp_gateway.server.http.sign_in import JOIN, LOGIN, LOGOUT, JoinRoute, SignInRoutes, Site, check_page, site_of
from acp_gateway.server.http.streamable_http import Exchange, StreamableHttp
from acp_gateway.server.pending import Accepted, Serving
from acp_gateway.transports.http.head import HttpError, media_types
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.maintained import SLOWEST_PEER
from acp_gateway.transports.websocket.stream import CONNECTION_ID, LIMIT, PART, PROBES, REFUSAL_HEADER, RESUME

CODE_SIZE: Final = 1024
"""Maximum bytes of a body with a one-use code. A code has 46; its sender is not known yet."""


class Origins(enum.Enum):
    """Pages that may send a request. A cookie is accepted only where the page is checked, and only with an `Origin`."""

    ANY = enum.auto()
    """Every page: the response is the same for all, and needs more than a browser adds by itself to tell anything."""
    OURS = enum.auto()
    """Pages of the gateway's own origin and of `allowed_origins`; also programs, which send no `Origin`."""
    OURS_ONLY = enum.auto()
    """The same pages, and no program."""
    NONE = enum.auto()
    """No page: programs alone."""


class Credential(enum.Enum):
    """Proof of its sender that a request has to show."""

    NONE = enum.auto()
    OPTIONAL = enum.auto()
    """A token may be shown, and is valid then."""
    NEEDED = enum.auto()
    """A valid token; or a cookie, where `Origins` has the page checked; or what the listener accepts in its place."""
    CODE = enum.auto()
    """A one-use code in a body of `application/json`, which the handler checks."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A request that is granted a WebSocket."""

    accepted: Accepted

    binary: bool = False
    """True if binary messages count as text."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the 101."""
        accepted, link = self.accepted, {}
        if accepted.received is not None:
            link = {RESUME: str(accepted.received), PROBES: "1", LIMIT: str(accepted.limit), PART: str(accepted.part)}
        return {CONNECTION_ID: accepted.connection_id} | link


@dataclass(frozen=True, slots=True)
class BodyNeeded:
    """A request that is decided by its body, which is read within the limits for unauthenticated connections."""

    decide: Callable[[bytes], "Answer"]
    """Takes a body of at most `CODE_SIZE` bytes. Raises `AccessError` and `BadRequest`."""


Answer = Response | Upgrade | Exchange | BodyNeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path: what is checked of its requests, in the order of the members, and what answers those that pass."""

    methods: tuple[str, ...]
    """With `OPTIONS`, the preflights of pages are answered without the handler."""
    origins: Origins
    passage: bool
    """True if requests may come through another gateway, which says so in headers, and this one passes such requests on
    to its nodes; else these headers are refused."""
    credential: Credential
    answer: Callable[..., Answer]
    """Called with the client, the request, and the principal (None where none is needed and shown) or, for a code, the
    body. Raises `AccessError` and `BadRequest`."""


class SharedState:
    """Limits and clients that do not depend on the address of a connection."""

    def __init__(self, gateway: Gateway) -> None:
        self.limiter = HandshakeLimiter(gateway.config, gateway.audit)
        """The limits of unauthenticated connections and of refusals."""
        self.links = HttpLinks(gateway)
        """The links over Streamable HTTP."""
        self.away = AwayClients(gateway)
        """The clients of browsers, widgets and editors that were kept."""
        self.pages = Pages(gateway.services.inputs, gateway.services.memory_grew)
        """The pages of browsers that were connected last."""
        self._gateway = gateway

    @cached_property
    def composers(self) -> Composers:
        """The composers of editors. Reads the file of them for the first time."""
        return Composers(self._gateway)


ENDPOINT: Final = "/acp"
HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
METRICS: Final = "/metrics"
BROWSERS: Final = "/ws"
CHAT: Final = "/chat"
LEND: Final = "/nodes/lend"
TUNNEL: Final = "/tunnel"

NOTHING_HERE: Final = f"there is nothing here; the endpoint is {ENDPOINT}"

_READ: Final = ("GET", "HEAD")
_SOCKET: Final = ("GET", "POST", "OPTIONS")
"""Methods of a path for WebSockets alone: by `POST`, a page asks if it may connect."""

_ALLOWED_HEADERS: Final = ", ".join(
    ["authorization", "content-type", "accept", *map(str.lower, (CONNECTION_ID, SESSION_ID, LAST_EVENT_ID))]
)
"""Headers that a page of another origin may send, besides those of every request."""

_EXPOSED: Final = f"{CONNECTION_ID}, {SESSION_ID}, Retry-After, {REFUSAL_HEADER}"
"""Headers that a page may read, besides those of every response."""


_NODE: Final = re.compile(r"/nodes/([A-Za-z0-9._-]{1,64})(/.*)")
"""A path of a node: what is behind its name is the path there."""

_Checked = tuple[Route, str | None, str | None]
"""The route of a request, and the token and the cookie that it shows."""


class HttpRoutes:
    """The routes of one listener."""

    def __init__(
        self,
        section: ListenSection,
        gateway: Gateway,
        shared: SharedState,
        authorizer: ConnectionAuthorizer,
    ) -> None:
        self._section = section
        # Parsed once: they are asked for at each request.
        self._address, self._public, self._hosts = section.address, section.public, section.hosts
        self._gateway = gateway
        self._settings = gateway.config.gateway
        self._shared = shared
        self._limiter = shared.limiter
        self._authorizer = authorizer
        self._streamable_http = StreamableHttp(gateway, shared.links)
        self._has_browsers = "page" in section.services
        self._has_pages = self._has_browsers or bool(section.allowed_origins)
        self.table = self._make_table()
        """The routes by path; a path with a slash at its end is a prefix."""

    def _make_table(self) -> dict[str, Route]:
        """Return the routes by path. A path with a slash at its end is a prefix."""
        section, services = self._section, self._section.services
        public = partial(Route, methods=_READ, origins=Origins.ANY, passage=False)
        secured = partial(Route, origins=Origins.OURS, passage=True, credential=Credential.NEEDED)
        code = partial(Route, methods=("POST",), passage=False, credential=Credential.CODE)
        routes = {
            HEALTH: public(credential=Credential.NONE, answer=_answer_health),
            READINESS: public(credential=Credential.OPTIONAL, answer=self._answer_readiness),
        }
        if "acp" in services:
            methods = ("GET", "POST", "DELETE", "OPTIONS")
            routes[ENDPOINT] = secured(methods=methods, answer=self._answer_endpoint)
            if section.path is not None:
                path = section.path.partition("?")[0]
                routes[path] = replace(secured(methods=methods, answer=self._answer_path), passage=False)
            routes[LEND] = self._for_programs(self._answer_lending)
            routes[PAGE] = public(credential=Credential.NONE, answer=_answer_start)
            routes[JOIN] = code(origins=Origins.NONE, answer=JoinRoute(self._gateway).answer)
        if "chat" in services:
            routes[CHAT] = secured(methods=_SOCKET, answer=self._answer_chat)
        if "metrics" in services:
            self._exporter = MetricsExporter(self._gateway, self._limiter)
            # A local address that serves nothing else needs no token.
            is_open = section.only_metrics and self._address.loopback
            credential = Credential.NONE if is_open else Credential.NEEDED
            routes[METRICS] = public(credential=credential, answer=self._answer_metrics)
        if "editor" in services:
            self._editors = EditorBridge(self._gateway, self._shared.composers, self._shared.away)
            for path, method in editor.METHODS.items():
                routes[path] = secured(methods=(method, "OPTIONS"), answer=self._answer_editor)
        if self._has_browsers:
            sign_in = SignInRoutes(section, self._gateway)
            routes[LOGIN] = code(origins=Origins.OURS_ONLY, answer=sign_in.log_in)
            routes[LOGOUT] = code(origins=Origins.OURS_ONLY, answer=sign_in.log_out)
            routes[BROWSERS] = secured(methods=_SOCKET, answer=self._answer_browser)
            # The page takes the place of the start page.
            page = public(credential=Credential.NONE, answer=self._answer_page)
            routes |= dict.fromkeys((PAGE, FOLDER, MANIFEST, FAVICON, WORKER), page)
        return routes

    def cors(self, request: Request) -> dict[str, str]:
        """Return the headers that let a page read the response to a request, whatever its status (Fetch, 3.2).

        There are none for what is the same for all pages; elsewhere they are for a listed origin or that of the
        gateway's own page, also at a path that is not there.
        """
        return request.once(self._cors)

    def _cors(self, request: Request) -> dict[str, str]:
        route = self._find(request.path) if self._has_pages else None
        if not self._has_pages or (route is not None and route.origins is Origins.ANY):
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

    def _site_of(self, headers: Headers) -> Site:
        return site_of(headers, tls=self._address.tls, public=self._public)

    def _is_own_page(self, request: Request) -> bool:
        if not self._has_browsers:
            return False
        try:
            self._check_host(request)
        except Forbidden:
            return False
        return request.headers.get("Origin") == self._site_of(request.headers).origin

    def answer(self, client: Client, request: Request) -> Answer:
        """Decide a request. Nothing is started for it yet."""
        return self._decide(client, request, partial(self._route, client, request))

    async def answer_body(self, client: Client, http: HttpConnection, request: Request, needed: BodyNeeded) -> Response:
        """Receive the body of a request, and decide the request by it. Raises what the stream raises."""
        if http.announced_size is None:
            # An unknown client's body of very small chunks would take far longer to read than to send.
            text = f"{request.path} needs a Content-Length"
            return Response.of_text(HTTPStatus.LENGTH_REQUIRED, text, PAGE_HEADERS, close=True)
        try:
            body = await http.receive_body(CODE_SIZE)
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
        if not isinstance(answer, Response):
            return answer
        if request.path in (LOGIN, LOGOUT):
            answer = replace(answer, headers={**answer.headers, **PAGE_HEADERS})
        if asks_for_websocket(request.headers) and PROOF not in answer.headers:
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
        if not connection.limited:
            address = client_address(connection.peer, request.headers, self._settings.trusted_proxies)
            connection.begin_request(address)
        checked = request.once(self._check)
        if isinstance(checked, Response):
            return checked
        route, token, cookie = checked
        if route.credential is Credential.CODE:
            return BodyNeeded(partial(route.answer, client, request))
        access = None
        if route.credential is Credential.NEEDED and token is None:
            challenge = read_challenge(request.headers)
            if challenge is not None:
                return self._prove(client, challenge)
        if route.credential is Credential.NEEDED:
            access = self._authorizer.authenticate(
                client, token, cookie, request.headers, purpose=_purpose_of(request.path)
            )
            if route.passage:
                access = self._narrowed(client, request, access)
        elif route.credential is Credential.OPTIONAL and token is not None and self._gateway.readiness.tokens_readable:
            # With an unreadable file, no token can be told from another text.
            try:
                access = self._authorizer.authenticate(client, token)
            except Busy:
                pass  # The gateway is as ready as for others.
        return route.answer(client, request, access)

    def _narrowed(self, client: Client, request: Request, access: Access) -> Access:
        """Return the access of the client for whom a gateway passes a request on. Raises `Forbidden`."""
        passage = request.once(_read_passage)
        check_path(passage.passed, self._gateway.admissions.own_id)
        if passage.claim is not None:
            access = self._gateway.admissions.act_for(access, passage.claim)
            client.connection.access = access
        return access

    def _prove(self, client: Client, challenge: str) -> Response:
        """Answer a program that is to show its token next. Raises `Unauthorized`."""
        proof, delay = self._authorizer.prove(client, challenge)
        headers = {REFUSAL_HEADER: Unauthorized.reason, PROOF: proof}
        return Response.of_text(HTTPStatus.UNAUTHORIZED, "send the token now", headers, delay=delay)

    def _check(self, request: Request) -> Response | _Checked:
        """Check all that follows from a request alone; return its refusal, else its route, its token and its cookie.

        Raises `Forbidden` and `BadRequest`.
        """
        headers = request.headers
        self._check_host(request)
        place = _NODE.fullmatch(request.path)
        route = self._find(request.path) if place is None else self._passed_on(*place.groups())
        if route is None and editor.SEND_MESSAGE in self.table and request.path.startswith(f"{ENDPOINT}/"):
            return NOT_FOUND
        if route is None:
            serves = NOTHING_HERE if ENDPOINT in self.table else f"there is nothing here but {', '.join(self.table)}"
            return Response.of_text(HTTPStatus.NOT_FOUND, serves)
        if request.method not in route.methods:
            text = f"{request.path} takes {', '.join(route.methods)} only"
            return Response.of_text(HTTPStatus.METHOD_NOT_ALLOWED, text, {"Allow": ", ".join(route.methods)})
        cookie = self._check_page(headers, route.origins)
        if request.method == "OPTIONS":
            return _preflight(route)
        if not route.passage:
            check_no_passage(headers)
        if route.credential is Credential.CODE and media_types(headers, "Content-Type") != ["application/json"]:
            text = f"{request.path} takes application/json only"
            return Response.of_text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        return route, read_bearer(headers), cookie

    def _check_page(self, headers: Headers, origins: Origins) -> str | None:
        """Check the origin of a request; return the cookie of a browser. Raises `Forbidden` and `BadRequest`."""
        if origins is Origins.ANY:
            return None
        if origins is Origins.NONE:
            if "Origin" in headers:
                raise Forbidden("this is for programs, not for pages")
            return None
        allowed = self._section.allowed_origins
        if not self._has_browsers:
            check_origin(headers, allowed)
            return None
        site = self._site_of(headers)
        if origins is Origins.OURS_ONLY:
            check_page(headers, allowed, site)
        is_page = check_origin(headers, (site.origin, *allowed))
        cookie = site.read_cookie(headers)
        if cookie is not None and not is_page:
            if read_bearer(headers) is None:
                check_page(headers, allowed, site)
            return None
        return cookie

    def _find(self, path: str) -> "Route | None":
        """Return the route of a path: its own, else that of the prefix which it begins with."""
        prefix = f"/{path[1:].partition('/')[0]}/"
        return self.table.get(path) or (self.table.get(prefix) if path.startswith(prefix) else None)

    def _passed_on(self, node: str, path: str) -> "Route | None":
        """Return the route of a path of a node: but for a tunnel, what is checked is that of the same path here."""
        if path == TUNNEL and ENDPOINT in self.table:
            return self._for_programs(partial(self._answer_tunnel, node))
        route = self._find(path)
        if route is None or not route.passage:
            return None
        return replace(route, passage=False, answer=partial(self._answer_node, node, path))

    def _answer_node(self, node: str, path: str, client: Client, request: Request, access: Access) -> Answer:
        """Pass a request on to a node."""
        door = self._gateway.extensions.door
        if door is None:
            raise UnknownAgent("this gateway has no nodes")
        websocket = request.once(_asks_for_websocket)
        return Exchange(access, door.admit(access, node, path, request, websocket=websocket), opens=websocket)

    def _answer_by_name(self, client: Client, request: Request, access: Access, *, binary: bool) -> Answer | None:
        """Answer a request for the endpoint that names a node; None if it means this gateway."""
        door, ids = self._gateway.extensions.door, request.headers.get_all(CONNECTION_ID)
        if door is None or request.once(_read_passage).passed:
            return None
        websocket = request.once(_asks_for_websocket)
        if ids and not websocket:
            found = door.node_of_link(ids[0]) if len(ids) == 1 else None
            if found is None:
                return None
            node, link_id = found
            run = door.admit(access, node, ENDPOINT, request, websocket=False, link_id=link_id, names_links=True)
            return Exchange(access, run)
        wanted = read_query(request.query)
        place = None if wanted.control else door.place(access, wanted)
        if place is None:
            return None
        if websocket and RESUME not in request.headers:
            connection = client.connection
            run = door.hold(access, place, request, connection.name, connection.connection_id, binary=binary)
        else:
            asked = replace(request, query=place.query)
            run = door.admit(access, place.node, ENDPOINT, asked, websocket=websocket, names_links=not websocket)
        return Exchange(access, run, opens=True)

    def _check_host(self, request: Request) -> None:
        check_host(request.headers, self._hosts, loopback=self._address.loopback)

    def _answer_endpoint(self, client: Client, request: Request, access: Access, *, binary: bool = False) -> Answer:
        at_node = self._answer_by_name(client, request, access, binary=binary)
        if at_node is not None:
            return at_node
        if not request.once(_asks_for_websocket):
            return self._streamable_http.answer(client.connection, access, request)
        link = read_resume_request(request.query, request.headers)
        # A resumed link keeps the request that it was opened with.
        resumes = link is not None and link.connection_id is not None
        connect_request = ConnectRequest() if resumes else read_connect_request(request)
        return Upgrade(self._authorizer.authorize(client.connection, access, connect_request, link))

    def _answer_path(self, client: Client, request: Request, access: Access) -> Answer:
        """Answer at `path`, as at the endpoint with its agent. Binary messages count: marimo's page sends them."""
        agent = self._section.path_agent
        if agent is not None and read_query(request.query).agent is None:
            request = replace(request, query=f"{request.query}&agent={agent}".removeprefix("&"))
        answer = self._answer_endpoint(client, request, access, binary=True)
        return replace(answer, binary=True) if isinstance(answer, Upgrade) else answer

    @staticmethod
    def _for_programs(answer: Callable[..., Answer]) -> Route:
        """Return the route of a WebSocket for other gateways and clients of nodes."""
        return Route(methods=("GET",), origins=Origins.NONE, passage=False, credential=Credential.NEEDED, answer=answer)

    def _answer_lending(self, client: Client, request: Request, access: Access) -> Answer:
        """Answer a node that lends a connection. Raises `AccessError` and `BadRequest`."""
        lend = self._gateway.extensions.lend
        if access.role != "node" or lend is None:
            raise Forbidden("lending connections needs a token of the role node: `acp-gateway nodes add NAME`")
        if not request.once(_asks_for_websocket):
            return _needs_websocket(request)
        return Exchange(access, lend(access, request, client.connection.name), opens=True)

    def _answer_tunnel(self, node: str, client: Client, request: Request, access: Access) -> Answer:
        """Answer a program that wants a tunnel to a node. Raises `AccessError`."""
        # Imported only where there are nodes.
        from acp_gateway.nodes.lent.tunnels import NodeTunnel

        if not request.once(_asks_for_websocket):
            return _needs_websocket(request)
        tunnel = NodeTunnel(self._gateway, access, node, client.connection.name)
        return Exchange(access, partial(tunnel.run, request=request), opens=True)

    def _answer_browser(self, client: Client, request: Request, access: Access) -> Answer:
        """Answer a page, or another client that speaks its JSON-RPC."""
        site = self._site_of(request.headers)
        page = f"{site.origin}{site.path}/"
        page_id = read_page(request.query)
        return self._answer_dialect(
            client,
            request,
            access,
            lambda wanted, name: BrowserBridge(
                self._gateway,
                self._shared.away,
                access,
                wanted,
                name,
                page,
                None if page_id is None else self._shared.pages.find(access, wanted, page_id),
            ),
        )

    def _answer_chat(self, client: Client, request: Request, access: Access) -> Answer:
        """Answer a chat widget, or pass its WebSocket on to the node that it names."""
        door, opens = self._gateway.extensions.door, request.once(_asks_for_websocket)
        if door is not None and opens and not request.once(_read_passage).passed:
            wanted = read_connect_request(request)
            place = None if wanted.control else door.place(access, wanted)
            if place is not None:
                asked = replace(request, query=place.query)
                return Exchange(access, door.admit(access, place.node, CHAT, asked, websocket=True), opens=True)
        return self._answer_dialect(
            client,
            request,
            access,
            lambda wanted, name: ChatBridge(self._gateway, self._shared.away, access, wanted, name),
        )

    def _answer_dialect(
        self,
        client: Client,
        request: Request,
        access: Access,
        connect: Callable[[ConnectRequest, str], SessionConnection[Any]],
    ) -> Answer:
        """Answer a client that speaks another dialect over a WebSocket, which `connect` serves.

        A `POST` only tells a page whether it is signed in: browsers hide the status of a refused WebSocket from it, and
        send no `Origin` with `GET`.
        """
        if request.method != "GET" or not asks_for_websocket(request.headers):
            return _needs_websocket(request)
        wanted = read_connect_request(request)
        if wanted.control:
            raise BadRequest(f"control connections are at {ENDPOINT}")
        connection = client.connection
        bridge = connect(wanted, connection.name)
        self._authorizer.accept(connection, access, request_id=wanted.request_id)
        return Upgrade(Accepted(connection.connection_id, None, Serving(bridge.serve)))

    def _answer_editor(self, client: Client, request: Request, access: Access) -> Answer:
        """Answer an editor's call."""
        answer = self._editors.answer(client.connection, request, access)
        return answer if isinstance(answer, Response) else Exchange(access, answer)

    def _answer_page(self, client: Client, request: Request, _: Access | None) -> Response:
        """Answer with a file of the page. A browser fetches all of them before it shows a cookie."""
        with self._limiter.unmeasured(client.connection):
            load_assets(WEB)
        response = serve_page(request)
        client.connection.extend(self._settings.handshake_timeout + len(response.body) / SLOWEST_PEER)
        return response

    def _answer_metrics(self, client: Client, request: Request, access: Access | None) -> Answer:
        """Answer a scrape."""
        if access is None:
            return self._exporter.response()
        if access.role != "metrics" or access.token is None:
            raise Forbidden("metrics need a token of the role metrics: `acp-gateway token create --role metrics`")
        self._gateway.storage.token_used(access.token.id)
        return Exchange(access, self._send_metrics)

    async def _send_metrics(self, http: HttpConnection) -> bool:
        return await http.respond(self._exporter.response())

    def _answer_readiness(self, client: Client, request: Request, access: Access | None) -> Response:
        """Answer whether new clients can be served; with a token, other than a guest's, with all problems."""
        readiness = self._gateway.readiness
        all_reasons = [*readiness.problems, *readiness.warnings, *self._gateway.extensions.absent_nodes]
        reasons = all_reasons if access is not None and access.session is None else []
        status, state = (HTTPStatus.OK, "ready") if readiness.ready else (HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
        return Response.of_text(status, "\n".join([state, *map(printable, reasons)]))


def _purpose_of(path: str) -> Role | None:
    """Return the role of tokens that are for this path alone."""
    if path == LEND:
        return "node"
    place = _NODE.fullmatch(path)
    return "tunnel" if place is not None and place[2] == TUNNEL else None


def _needs_websocket(request: Request) -> Response:
    return Response.of_text(HTTPStatus.UPGRADE_REQUIRED, f"{request.path} is for WebSockets", {"Upgrade": "websocket"})


def _asks_for_websocket(request: Request) -> bool:
    return asks_for_websocket(request.headers)


def _read_passage(request: Request) -> Passage:
    return read_passage(request.headers)


def _preflight(route: Route) -> Response:
    """Answer a page that asks if it may send a request of this route."""
    methods = ", ".join(route.methods)
    headers = {
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
        "Access-Control-Max-Age": "600",
        "Allow": methods,
    }
    return Response(HTTPStatus.NO_CONTENT, headers=headers)


def _answer_health(client: Client, request: Request, _: None) -> Response:  # noqa: ARG001
    return Response.of_text(HTTPStatus.OK, "ok")


def _answer_start(client: Client, request: Request, _: None) -> Response:  # noqa: ARG001
    return start_page(request)


def _refused(refusal: Refusal) -> Response:
    # The first header distinguishes the gateway's own refusal from that of a proxy.
    headers = {REFUSAL_HEADER: refusal.error.reason}
    if isinstance(refusal.error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Response.of_text(refusal.error.http_status, str(refusal.error), headers, delay=refusal.delay, close=True)
