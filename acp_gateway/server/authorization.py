"""Turns a pending connection into an accepted one: authenticates its token, and grants what it asks for."""

import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import trio

from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.server.authentication import Authenticator
from acp_gateway.server.handshake_limits import HandshakeLimiter, ThrottledStream
from acp_gateway.server.hello import ResumeRequest
from acp_gateway.server.pending import Accepted, PendingConnection
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import RETRY, HttpConnection, Response
from acp_gateway.transports.streams import Flooded

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Client:
    """A pending connection with its socket, and the stream over it."""

    connection: PendingConnection
    sock: socket.socket
    stream: ThrottledStream


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """An authenticated HTTP request, which is served outside of the limits for unauthenticated connections."""

    client: Client
    http: HttpConnection
    run: Callable[[HttpConnection], Awaitable[bool]]
    """Writes the response, and returns whether another request may follow."""

    async def serve(self) -> bool:
        """Serve the request; return whether another one may follow, else the connection is closed."""
        again = False
        try:
            again = await self._run()
        except trio.BrokenResourceError as error:
            log.debug("%s: %s", self.client.connection.name, error)
        if not again:
            await self.http.aclose()
        return again

    async def _run(self) -> bool:
        try:
            return await self.run(self.http)
        except HttpError as error:
            refusal = Response.of_text(error.status, str(error), close=True)
        except Flooded:
            text = "too many requests without a message; send this one again later"
            refusal = Response.of_text(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY, close=True)
        return await self.http.respond(refusal)


class ConnectionAuthorizer:
    """Authenticates and authorizes the pending connections of one listener."""

    def __init__(self, gateway: Gateway, limiter: HandshakeLimiter, authenticator: Authenticator) -> None:
        self._gateway = gateway
        self._limiter = limiter
        self._authenticator = authenticator

    def authenticate(self, client: Client, token: str | None, cookie: str | None = None) -> Access:
        """Return the principal of a connection; `cookie` is a browser's. Raises `AccessError`."""
        connection = client.connection
        connection.token = token or cookie
        if token is not None and cookie is None and (known := self._known(connection, token)) is not None:
            connection.access = known
            self._gateway.connections.check_trust(known)
            return known
        if token is None and cookie is not None:
            access = self._authenticator.authenticate_browser(cookie)
        else:
            certificate = client.stream.peer_certificate if token is None else None
            access = self._authenticator.authenticate(token, client.sock, certificate)
        connection.access = access
        self._gateway.connections.check_trust(access)
        if token is not None and cookie is not None:
            self._authenticator.check_same_identity(access, cookie)
        elif token is not None:
            connection.shown = token, access
        return access

    def _known(self, connection: PendingConnection, token: str) -> Access | None:
        """Return the principal of the last request over this connection if it has shown the same token, valid still."""
        if connection.shown is None:
            return None
        shown, access = connection.shown
        if access.token is None or not hmac.compare_digest(shown.encode(), token.encode()):
            return None
        return access if self._gateway.tokens.is_current(access.token) else None

    def authorize(
        self, connection: PendingConnection, access: Access, request: ConnectRequest, link: ResumeRequest | None
    ) -> Accepted:
        """Resume a link, or grant a request. Raises `AccessError`."""
        connection_id = connection.connection_id
        if link is not None and link.connection_id is not None:
            claim = self._gateway.resume(access, link.connection_id, link.received)
            accepted = Accepted(link.connection_id, claim.received, claim)
        else:
            accepted = Accepted(connection_id, None if link is None else 0, self._gateway.admit(access, request))
        connection.name = connection.name.replace(connection_id[:8], accepted.connection_id[:8], 1)
        self.accept(connection, access)
        return accepted

    def accept(self, connection: PendingConnection, access: Access, *, audited: bool = True) -> None:
        """Take a connection out of the limits of unauthenticated ones."""
        details = {"credential": access.credential, "identity": access.identity, "role": access.role}
        self._limiter.authenticated(connection, details if audited else None)
