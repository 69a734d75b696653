"""Answers the HTTP requests of one listener, by one table of routes.

Every request must name a host that the gateway goes by. What else a path asks of a request is in its record in the
table, and `HttpRoutes` checks it before the handler is called: methods, the page's origin, and the token or the cookie.

No member of a `Route` has a default, so that a new route can't leave out a check.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final, Unpack

import trio
from websockets.datastructures import Headers

from acp_gateway.config.load import ListenSection
from acp_gateway.config.services import ENDPOINT as ACP
from acp_gateway.config.services import services
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
    asks_for_websocket,
    check_host,
    check_no_passage,
    check_origin,
    client_address,
    read_bearer,
    read_challenge,
    read_connect_request,
    read_query,
    read_resume_request,
    with_token_in_header,
)
from acp_gateway.server.http.route import (
    CODE_SIZE,
    Answer,
    BodyNeeded,
    Credential,
    Exchange,
    Origins,
    Route,
    Upgrade,
    needs_websocket,
    passage_of,
    public,
    secured,
    wants_websocket,
    with_code,
)
from acp_gateway.server.http.sign_in import JOIN, LOGIN, LOGOUT, JoinRoute, Site, check_page, site_of
from acp_gateway.server.http.start_page import PAGE, PAGE_HEADERS, start_page
from acp_gateway.server.pending import Accepted, Serving
from acp_gateway.transports.http.head import HttpError, media_types
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.timers import Args
from acp_gateway.transports.websocket.stream import CONNECTION_ID, REFUSAL_HEADER, RESUME


class SharedState:
    """Limits, and tasks of services: they do not depend on the address of a connection."""

    def __init__(self, gateway: Gateway) -> None:
        self.limiter = HandshakeLimiter(gateway.config, gateway.audit)
        """The limits of unauthenticated connections and of refusals."""
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Run the tasks of services until cancelled, which ends all of them. Only the first concurrent call does."""
        if self._nursery is None:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()

    def start(self, work: Callable[[Unpack[Args]], Awaitable[None]], /, *args: *Args) -> None:
        """Start a task of a service, which ends with the connections of the gateway at the latest."""
        assert self._nursery is not None, "a listener runs"
        self._nursery.start_soon(work, *args)


ENDPOINT: Final = "/acp"
HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
LEND: Final = "/nodes/lend"
TUNNEL: Final = "/tunnel"

NOTHING_HERE: Final = f"there is nothing here; the endpoint is {ENDPOINT}"

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
        self.section = section
        # Parsed once: they are asked for at each request.
        self._address, self._public, self._hosts = section.address, section.public, section.hosts
        self._query_parameter = section.query_parameter
        self.gateway = gateway
        self._settings = gateway.config.gateway
        self.shared = shared
        self.limiter = shared.limiter
        self._authorizer = authorizer
        served = [it for it in services() if it.word in section.services and not it.at_lines]
        self._signs_in = any(service.signs_in for service in served)
        self._has_pages = self._signs_in or bool(section.allowed_origins)
        self.answer_request: Callable[[Client, Request, Access], Answer] = lambda _, request, __: needs_websocket(
            request
        )
        """Answers a request for the endpoint that asks for no WebSocket."""
        self.elsewhere: Callable[[Request], Route | None] = lambda _: None
        """Returns the route of a request whose `Host` is the address of something else than the gateway."""
        self.nothing_below: dict[str, Response] = {}
        """Responses for other paths, by the prefix that these begin with."""
        self.table = {
            HEALTH: public(credential=Credential.NONE, answer=_answer_health),
            READINESS: public(credential=Credential.OPTIONAL, answer=self._answer_readiness),
            **(self._endpoint() if ACP in section.services else {}),
        }
        """The routes by path; a path with a slash at its end is a prefix. Those of a service replace earlier ones."""
        for service in served:
            self.table |= service.serving().routes(self)

    def _endpoint(self) -> dict[str, Route]:
        """Return the routes of the endpoint, by path."""
        methods = ("GET", "POST", "DELETE", "OPTIONS")
        routes = {ENDPOINT: secured(methods=methods, answer=self._answer_endpoint)}
        if self.section.path is not None:
            path = self.section.path.partition("?")[0]
            routes[path] = replace(secured(methods=methods, answer=self._answer_path), passage=False)
        return routes | {
            LEND: self._for_programs(self._answer_lending),
            PAGE: public(credential=Credential.NONE, answer=_answer_start),
            JOIN: with_code(origins=Origins.NONE, answer=JoinRoute(self.gateway).answer),
        }

    def cors(self, request: Request) -> dict[str, str]:
        """Return the headers that let a page read the response to a request, whatever its status (Fetch, 3.2).

        There are none for what is the same for all pages; elsewhere they are for a listed origin or that of the
        gateway's own page, also at a path that is not there.
        """
        return request.once(self._cors)

    def _cors(self, request: Request) -> dict[str, str]:
        route = self._find(request.path) if self._has_pages else None
        if (
            not self._has_pages
            or self.elsewhere(request) is not None
            or (route is not None and route.origins is Origins.ANY)
        ):
            return {}
        # Also where no Origin was sent: a cache must not give that response to a page.
        vary = {"Vary": "Origin"}
        origins = request.headers.get_all("Origin")
        if len(origins) != 1 or not (origins[0] in self.section.allowed_origins or self._is_own_page(request)):
            return vary
        return {
            "Access-Control-Allow-Origin": origins[0],
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Expose-Headers": _EXPOSED,
            **vary,
        }

    def site_of(self, headers: Headers) -> Site:
        """Return the site that a request names."""
        return site_of(headers, tls=self._address.tls, public=self._public)

    def _is_own_page(self, request: Request) -> bool:
        if not self._signs_in:
            return False
        try:
            self._check_host(request)
        except Forbidden:
            return False
        return request.headers.get("Origin") == self.site_of(request.headers).origin

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
        with self.limiter.measured(client.connection):
            try:
                answer = decide()
            except AccessError as error:
                answer = _refused(self.limiter.refuse(client.connection, error))
            except BadRequest as error:
                headers = {REFUSAL_HEADER: ProtocolError.reason}
                self.limiter.refusals.counts[ProtocolError.reason] += 1
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
            refusal = _refused(self.limiter.refuse(client.connection, error))
        return exchange if refusal is None else refusal

    def refuse_accepted(self, client: Client, access: Access, error: AccessError) -> Response:
        """Count and audit the refusal of a request that was let in, and return the response."""
        presented, refusals = client.connection.token, self.limiter.refusals
        return _refused(refusals.refuse(client.connection, error, presented=presented, credential=access.credential))

    def _route(self, client: Client, request: Request) -> Answer:
        connection = client.connection
        # A proxy may send the requests of several clients over one connection.
        if not connection.limited:
            address = client_address(connection.peer, request.headers, self._settings.trusted_proxies)
            connection.begin_request(address)
        if self._query_parameter is not None:
            request = with_token_in_header(request, self._query_parameter)
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
        elif route.credential is Credential.OPTIONAL and token is not None and self.gateway.readiness.tokens_readable:
            # With an unreadable file, no token can be told from another text.
            try:
                access = self._authorizer.authenticate(client, token)
            except Busy:
                pass  # The gateway is as ready as for others.
        return route.answer(client, request, access)

    def _narrowed(self, client: Client, request: Request, access: Access) -> Access:
        """Return the access of the client for whom a gateway passes a request on. Raises `Forbidden`."""
        passage = request.once(passage_of)
        check_path(passage.passed, self.gateway.admissions.own_id)
        if passage.claim is not None:
            access = self.gateway.admissions.act_for(access, passage.claim)
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
        other = self.elsewhere(request)
        if other is not None:
            if request.method not in other.methods:
                text = f"{request.method} is not passed on"
                return Response.of_text(HTTPStatus.METHOD_NOT_ALLOWED, text, {"Allow": ", ".join(other.methods)})
            return other, None, None
        self._check_host(request)
        place = _NODE.fullmatch(request.path)
        route = self._find(request.path) if place is None else self._passed_on(*place.groups())
        if route is None:
            for prefix, nothing in self.nothing_below.items():
                if request.path.startswith(prefix):
                    return nothing
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
        allowed = self.section.allowed_origins
        if not self._signs_in:
            check_origin(headers, allowed)
            return None
        site = self.site_of(headers)
        if origins is Origins.OURS_ONLY:
            check_page(headers, allowed, site)
        is_page = check_origin(headers, (site.origin, *allowed))
        cookie = site.read_cookie(headers)
        if origins is Origins.LOADED and headers.get_all("Sec-Fetch-Site") == ["same-origin"]:
            return cookie
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
        door = self.gateway.extensions.door
        if door is None:
            raise UnknownAgent("this gateway has no nodes")
        websocket = request.once(wants_websocket)
        return Exchange(access, door.admit(access, node, path, request, websocket=websocket), opens=websocket)

    def _answer_by_name(self, client: Client, request: Request, access: Access, *, binary: bool) -> Answer | None:
        """Answer a request for the endpoint that names a node; None if it means this gateway."""
        door, ids = self.gateway.extensions.door, request.headers.get_all(CONNECTION_ID)
        if door is None or request.once(passage_of).passed:
            return None
        websocket = request.once(wants_websocket)
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
        if not request.once(wants_websocket):
            return self.answer_request(client, request, access)
        link = read_resume_request(request.query, request.headers)
        # A resumed link keeps the request that it was opened with.
        resumes = link is not None and link.connection_id is not None
        connect_request = ConnectRequest() if resumes else read_connect_request(request)
        return Upgrade(self._authorizer.authorize(client.connection, access, connect_request, link))

    def _answer_path(self, client: Client, request: Request, access: Access) -> Answer:
        """Answer at `path`, as at the endpoint with its agent. Binary messages count: marimo's page sends them."""
        agent = self.section.path_agent
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
        lend = self.gateway.extensions.lend
        if access.role != "node" or lend is None:
            raise Forbidden("lending connections needs a token of the role node: `acp-gateway nodes add NAME`")
        if not request.once(wants_websocket):
            return needs_websocket(request)
        return Exchange(access, lend(access, request, client.connection.name), opens=True)

    def _answer_tunnel(self, node: str, client: Client, request: Request, access: Access) -> Answer:
        """Answer a program that wants a tunnel to a node. Raises `AccessError`."""
        # Imported only where there are nodes.
        from acp_gateway.nodes.lent.tunnels import NodeTunnel

        if not request.once(wants_websocket):
            return needs_websocket(request)
        tunnel = NodeTunnel(self.gateway, access, node, client.connection.name)
        return Exchange(access, partial(tunnel.run, request=request), opens=True)

    def pass_on(self, request: Request, access: Access) -> Exchange | None:
        """Pass a request for a WebSocket on to the node that it names; None if it means this gateway.

        Raises `AccessError` and `BadRequest`.
        """
        door = self.gateway.extensions.door
        if door is None or not request.once(wants_websocket) or request.once(passage_of).passed:
            return None
        wanted = read_connect_request(request)
        place = None if wanted.control else door.place(access, wanted)
        if place is None:
            return None
        asked = replace(request, query=place.query)
        return Exchange(access, door.admit(access, place.node, request.path, asked, websocket=True), opens=True)

    def answer_websocket(
        self,
        client: Client,
        request: Request,
        access: Access,
        connect: Callable[[ConnectRequest, str], Callable[[MaintainedStream], Awaitable[None]]],
    ) -> Answer:
        """Answer a client that speaks another dialect over a WebSocket.

        `connect` takes what it connects for, and its name in logs, and returns what serves it. A `POST` only tells a
        page whether it is signed in: browsers hide the status of a refused WebSocket from it, and send no `Origin` with
        `GET`. Raises `AccessError` and `BadRequest`.
        """
        if request.method != "GET" or not asks_for_websocket(request.headers):
            return needs_websocket(request)
        wanted = read_connect_request(request)
        if wanted.control:
            raise BadRequest(f"control connections are at {ENDPOINT}")
        connection = client.connection
        serve = connect(wanted, connection.name)
        self._authorizer.accept(connection, access, request_id=wanted.request_id)
        return Upgrade(Accepted(connection.connection_id, None, Serving(serve)))

    def _answer_readiness(self, client: Client, request: Request, access: Access | None) -> Response:
        """Answer whether new clients can be served; with a token, other than a guest's, with all problems."""
        readiness = self.gateway.readiness
        all_reasons = [*readiness.problems, *readiness.warnings, *self.gateway.extensions.absent_nodes]
        reasons = all_reasons if access is not None and access.session is None else []
        status, state = (HTTPStatus.OK, "ready") if readiness.ready else (HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
        return Response.of_text(status, "\n".join([state, *map(printable, reasons)]))


def _purpose_of(path: str) -> Role | None:
    """Return the role of tokens that are for this path alone."""
    if path == LEND:
        return "node"
    place = _NODE.fullmatch(path)
    return "tunnel" if place is not None and place[2] == TUNNEL else None


def _needs_websocket(client: Client, request: Request, access: Access) -> Response:  # noqa: ARG001
    return needs_websocket(request)


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
