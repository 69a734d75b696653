"""Passes the requests of a browser at the address of a preview on to the program, one connection for each.

Bodies and what follows an upgrade go through in parts: at most one read is kept for each direction, so who does not
read stops who writes.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

import trio

from acp_gateway.dialects.ports.headers import Origins, cookie_of, foreign, to_browser, to_program
from acp_gateway.dialects.ports.program import ProgramConnection
from acp_gateway.dialects.ports.tunnels import STALL_TIMEOUT, Refuse, note_opened
from acp_gateway.errors import AccessError, Busy, Forbidden, ProtocolError, Unreachable
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.gateway.viewing.admitted import Admitted
from acp_gateway.gateway.viewing.open_ports import OpenPort, OpenPorts
from acp_gateway.gateway.viewing.previews import COOKIE_LIFETIME, ENTER, RESERVED, Preview, Previews, is_name
from acp_gateway.server.authentication import Client
from acp_gateway.server.http.route import Answer, Credential, Exchange, Route, wants_websocket
from acp_gateway.server.http.route import Origins as Pages
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.server.http.start_page import PAGE_HEADERS
from acp_gateway.transports.carrying import carry
from acp_gateway.transports.http.client import SWITCHING
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Request, Response, switching_head
from acp_gateway.transports.streams import ByteStream, send_all

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

WEIGHT: Final = 20
"""Messages that a request counts as in rate limits: it takes a connection of its own."""

_BODILESS: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def preview_route(at: HttpRoutes) -> Callable[[Request], Route | None]:
    """Return what finds the route of a request to the address of a preview; None for every other request."""
    url = at.section.preview
    gateway = at.gateway
    if url is None:
        return lambda _: None
    previews = gateway.services.one(Previews, gateway)
    cookie_name = f"{'__Host-' if url.secure else ''}acp-gateway-preview"
    secure = "Secure; " if url.secure else ""
    suffix = f".{url.host}"

    def refusing(client: Client, preview: Preview) -> Refuse:
        def refuse(error: AccessError) -> Response:
            response = at.refuse_accepted(client, preview.access, error)
            return replace(response, headers={**response.headers, **PAGE_HEADERS})

        return refuse

    def enter(name: str, client: Client, request: Request) -> Answer:
        """Let a browser in by a link. Raises `AccessError`."""
        code = request.path.removeprefix(ENTER)
        client.connection.token = code
        cookie, preview = previews.enter(name, code)
        value = f"{cookie_name}={cookie}; {secure}HttpOnly; SameSite=Strict; Path=/; Max-Age={int(COOKIE_LIFETIME)}"
        # Not a redirect: from a page of another site, browsers send no strict cookie behind one.
        headers = {
            **PAGE_HEADERS,
            "Content-Type": "text/html; charset=utf-8",
            "Refresh": "0; url=/",
            "Set-Cookie": value,
        }
        response = Response(HTTPStatus.OK, headers=headers)
        entering = _Entering(gateway, preview, client.connection.name, response, refusing(client, preview))
        return Exchange(preview.access, entering.run, opens=True)

    def answer(name: str, client: Client, request: Request, _: Access | None) -> Answer:
        """Answer a browser. Raises `AccessError`."""
        if not is_name(name):
            raise Forbidden("no preview has this name")
        by_name = {key.lower(): value for key, value in request.headers.raw_items()}
        if request.path.startswith(ENTER):
            return enter(name, client, request)
        origin = url.origin(name)
        if why := foreign(request.method, by_name, origin):
            raise Forbidden(why)
        cookie = cookie_of(request.headers.get_all("Cookie"), cookie_name)
        client.connection.token = cookie
        preview = previews.find(name, cookie)
        passing = Passing(gateway, preview, origin, request, refusing(client, preview))
        return Exchange(preview.access, passing.run)

    def find(request: Request) -> Route | None:
        host = request.headers.get("Host", "").lower()
        name = host.removesuffix(suffix)
        if name == host or len(request.headers.get_all("Host")) != 1:
            return None
        return Route(
            methods=METHODS,
            origins=Pages.ANY,
            passage=False,
            credential=Credential.NONE,
            answer=partial(answer, name),
        )

    return find


class _Entering:
    """A browser that is let in, which the audit has."""

    def __init__(self, gateway: Gateway, preview: Preview, name: str, response: Response, refuse: Refuse) -> None:
        self._gateway = gateway
        self._client = Admitted(gateway, preview.access, ConnectRequest(control=True))
        self._refuse = refuse
        self._preview = preview
        self._name = name
        self._response = response

    async def run(self, http: HttpConnection) -> bool:
        """Answer with the cookie if the port is still there; return whether another request may follow."""
        gateway, preview = self._gateway, self._preview
        access = preview.access
        connection = ControlConnection(access)
        with connection.scope, gateway.connections.watched(connection):
            try:
                ports = gateway.services.one(OpenPorts, gateway)
                port: OpenPort = await ports.find(self._client, preview.port, preview.agent)
            except AccessError as error:
                return await http.respond(self._refuse(error))
            note_opened(gateway, access, port, self._name)
            return await http.respond(self._response)
        return False


class Passing:
    """One request for a program.

    Args:
        gateway: the gateway.
        preview: the browser and its port.
        origin: the origin of the preview.
        request: the request.
        refuse: refuses a port that turns out not to be there.

    Raises `AccessError` for a browser that may not connect.
    """

    def __init__(self, gateway: Gateway, preview: Preview, origin: str, request: Request, refuse: Refuse) -> None:
        access = preview.access
        self._gateway = gateway
        self._client = Admitted(gateway, access, ConnectRequest(control=True))
        self._refuse = refuse
        self._charge = gateway.connections.limiter_of(access).charge
        self._preview = preview
        self._request = request
        self._origins = Origins(origin, f"http://localhost:{preview.port}")
        self._started = False
        # Bytes of the body that were passed on, and whether its end was.
        self._passed = 0
        self._body_ended = trio.Event()
        # The error of a body that can't be read.
        self._unsound: HttpError | None = None

    async def run(self, http: HttpConnection) -> bool:
        """Pass the request and its response on; return whether another request may follow.

        It ends when the credential is not valid any more. Cancelling closes the connection to the program.
        """
        gateway = self._gateway
        preview = self._preview
        connection = ControlConnection(preview.access)
        with connection.scope, gateway.connections.watched(connection):
            await trio.sleep(self._charge(WEIGHT))
            try:
                ports = gateway.services.one(OpenPorts, gateway)
                _, way = await ports.open(self._client, preview.port, preview.agent)
            except AccessError as error:
                return await http.respond(self._refuse(error))
            except Unreachable as error:
                return await http.respond(unreachable(error))
            try:
                return await self._exchange(http, way)
            finally:
                with trio.CancelScope(shield=True):
                    await way.aclose()
        return False

    async def _exchange(self, http: HttpConnection, way: ByteStream) -> bool:
        program, request = ProgramConnection(way), self._request
        upgrade = request.once(wants_websocket)
        fields = to_program(request.headers.raw_items(), self._origins, RESERVED, upgrade=upgrade)
        target = f"{request.path}{f'?{request.query}' if request.query else ''}"
        goes_on = False
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                await program.send_head(request.method, target, fields, http.announced_size)
                # A program may answer before it has read all of a body.
                nursery.start_soon(self._pass_body, http, program, nursery.cancel_scope)
                status, answered = await program.receive_head()
                if status == SWITCHING:
                    # Nothing else may read what follows.
                    assert upgrade, "h11 lets no other request switch"
                    await self._switch(http, program, way, answered)
                else:
                    goes_on = await self._answer(http, program, status, answered)
            except (ProtocolError, *_LOST) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if self._unsound is not None and not self._started:
            raise self._unsound
        if failure is None or self._started:
            return goes_on
        return await http.respond(unreachable(Unreachable(f"port {self._preview.port}: {failure}")))

    async def _pass_body(self, http: HttpConnection, program: ProgramConnection, scope: trio.CancelScope) -> None:
        """Pass the body on, and cancel a scope if the browser leaves before the answer, or its body is not sound."""
        try:
            while http.announced_size != 0:
                try:
                    part = await http.receive_part()
                except (HttpError, *_LOST) as error:
                    self._unsound = error if isinstance(error, HttpError) else None
                    scope.cancel()
                    return
                if not part:
                    break
                self._passed += len(part)
                await trio.sleep(self._charge(size=len(part)))
                await program.send_part(part)
            self._body_ended.set()
            await program.send_end()
        except (ProtocolError, *_LOST):
            return  # The answer tells, or its absence.
        finally:
            self._body_ended.set()
        if not self._request.once(wants_websocket):
            await http.cancel_when_left(scope)

    async def _answer(
        self, http: HttpConnection, program: ProgramConnection, status: int, fields: list[tuple[str, str]]
    ) -> bool:
        """Pass a response on; return whether another request may follow."""
        lengths = [value for name, value in fields if name.lower() == "content-length"]
        passing = to_browser(fields, self._origins, RESERVED)
        has_body = status not in _BODILESS and self._request.method != "HEAD"
        if lengths and status not in _BODILESS:
            passing.append(("Content-Length", lengths[0]))
        self._started = True
        await http.start_passed(status, passing, chunked=has_body and not lengths)
        while part := await program.receive_part():
            await http.send(part)
        if self._passed == http.announced_size:
            # The program may be quicker than the other task, which has only the end to take.
            await self._body_ended.wait()
        return await http.end()

    async def _switch(
        self, http: HttpConnection, program: ProgramConnection, way: ByteStream, fields: list[tuple[str, str]]
    ) -> None:
        """Pass on that the protocol is another one from here on, and all bytes behind it."""
        passing = [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        passing += [(name, value) for name, value in fields if name.lower().startswith("sec-websocket-")]
        self._started = True
        await http.send_raw(switching_head(passing) + program.behind)
        await send_all(way, http.detach())
        paid = partial(self._charge, 1)
        await carry(http.stream, way, STALL_TIMEOUT, "the program has closed the connection", paid)


def unreachable(error: Unreachable) -> Response:
    """Return the response for a request that reaches no program."""
    return Response.of_text(Busy.http_status, str(error), PAGE_HEADERS, close=True)
