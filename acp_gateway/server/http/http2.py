"""Serves the requests of a connection that speaks HTTP/2, each as one over a connection of HTTP/1.1 is served.

The connection counts as unauthenticated while no request with a valid credential is served: the limits of the handshake
apply to it, and it is closed if none comes. Each request is decided under an id of its own, and has to be let in within
`handshake_timeout`. There are no WebSockets: for these, browsers open a connection of HTTP/1.1.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from math import inf

import trio

from acp_gateway.config.options import GatewaySection
from acp_gateway.server.authentication import AcceptedRequest, Client
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.transports.http.http2 import Http2Connection, Http2Request
from acp_gateway.transports.http.http2_frames import Http2Error
from acp_gateway.transports.http.server import UNMEASURED, HttpConnection

log = logging.getLogger(__name__)


class Http2Requests:
    """The requests of one connection.

    Args:
        client: the connection, whose TLS has chosen `h2`.
        settings: options of the gateway.
        limiter: limits of unauthenticated connections.
        accept: receives a request, decides it and answers it; returns what is to be served of it.
    """

    def __init__(
        self,
        client: Client,
        settings: GatewaySection,
        limiter: HandshakeLimiter,
        accept: Callable[[Client, HttpConnection], Awaitable[object]],
    ) -> None:
        self._client = client
        self._connection = client.connection
        self._timeout = settings.handshake_timeout
        self._limiter = limiter
        self._accept = accept
        self._http2 = Http2Connection(client.stream, settings.stall_timeout, settings.handshake_timeout)
        # Requests with a valid credential that are being served.
        self._serving = 0

    async def serve(self) -> None:
        """Serve requests until the connection ends. Cancelled, it tells the client that it ends, without waiting."""
        violation = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._http2.write)
                try:
                    await self._receive(nursery)
                except Http2Error as error:
                    violation = error
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("%s: lost", self._connection.name, exc_info=True)
        finally:
            self._http2.go_away(*((0, "") if violation is None else (violation.code, str(violation))))
        if violation is not None:
            self._limiter.refusals.refuse_malformed(self._connection, f"refused: HTTP/2: {violation}")
        await self._http2.aclose()

    async def _receive(self, nursery: trio.Nursery) -> None:
        while (http := await self._http2.receive_request(self._measured)) is not None:
            nursery.start_soon(self._serve_request, http)
            if self._connection.authenticated:
                await trio.lowlevel.checkpoint()
            else:
                await self._limiter.step(self._connection)

    def _measured(self) -> AbstractContextManager[None]:
        return UNMEASURED if self._connection.authenticated else self._limiter.measured(self._connection)

    async def _serve_request(self, http: Http2Request) -> None:
        connection = self._connection.for_request(http.scope)
        http.scope.deadline = trio.current_time() + self._timeout
        try:
            with http.scope:
                accepted = await self._accept(replace(self._client, connection=connection), http)
                self._connection.identified = connection.identified
                if isinstance(accepted, AcceptedRequest):
                    http.scope.deadline = inf
                    with self._authenticated():
                        await accepted.serve()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("%s: the request was lost", connection.name, exc_info=True)
        except* Exception:
            # A bug ends the request in which it shows and no other.
            log.exception("%s: internal error, request ended", connection.name)
        finally:
            self._limiter.leave(connection)
            await http.aclose()

    @contextmanager
    def _authenticated(self) -> Iterator[None]:
        """Take the connection out of the limits of unauthenticated ones while a request is served."""
        connection, stream = self._connection, self._client.stream
        self._serving += 1
        if self._serving == 1:
            self._limiter.authenticated(connection)
            connection.scope.deadline = inf
            stream.stop_throttling()
            self._http2.trust()
        try:
            yield
        finally:
            self._serving -= 1
            if self._serving == 0:
                connection.renew()
                connection.scope.deadline = trio.current_time() + self._timeout
                self._limiter.enter(connection)
                stream.throttle(connection)
