"""Accepts connections at one address, and serves each from its handshake to its end."""

import logging
import math
import socket
import ssl
from collections.abc import Sequence
from functools import partial

import trio

from acp_gateway.config.load import ListenSection
from acp_gateway.gateway.access import Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.rate_limits import network_of
from acp_gateway.security.tls import server_context
from acp_gateway.server.authorization import AcceptedRequest
from acp_gateway.server.handshake_limits import ThrottledListener
from acp_gateway.server.handshakes import Handshakes, Outcome
from acp_gateway.server.hello import is_trusted
from acp_gateway.server.pending import Accepted, PendingConnection, Serving, make_id
from acp_gateway.server.shared import SharedState
from acp_gateway.server.sockets import BoundSockets, bind
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.sockets import keep_alive, take_socket

log = logging.getLogger(__name__)


async def open_listener(
    section: ListenSection,
    gateway: Gateway,
    inherited: Sequence[socket.socket] = (),
    *,
    shared: SharedState | None = None,
    only_control: bool = False,
) -> "Listener":
    """Listen at one address of the configuration: on matching inherited sockets, else on new ones.

    The listeners of a gateway have the same `shared` state. With `only_control`, it accepts control connections and no
    others, and the log does not name it. Raises `CannotListen` if the system refuses, `ConfigError` if a certificate
    can't be used.
    """
    context = _make_context(section)
    _load_revocations(section, gateway)
    bound = await bind(section.address, inherited)
    return Listener(section, gateway, shared or SharedState(gateway), context, bound, only_control=only_control)


class Listener:
    """A listening address and its accept loop. Made by `open_listener`."""

    def __init__(
        self,
        section: ListenSection,
        gateway: Gateway,
        shared: SharedState,
        context: ssl.SSLContext | None,
        bound: BoundSockets,
        *,
        only_control: bool = False,
    ) -> None:
        self._section = section
        # Parsed once: it is asked for at each request.
        self._address = section.address
        self._gateway = gateway
        self._settings = gateway.config.gateway
        self._limiter = shared.limiter
        self._handshakes = Handshakes(section, gateway, shared, only_control=only_control)
        self._level = logging.DEBUG if only_control else logging.INFO
        self._links = shared.links
        self._context = context
        self._bound = bound
        self.urls = bound.urls
        """Its actual addresses, with the port that the system chose."""
        # Without a control socket, no client is kept out.
        self._noted = () if only_control else self.urls
        gateway.readiness.set_listening(self._noted, accepting=False)

    async def run(self, connections: trio.Nursery) -> None:
        """Accept clients until cancelled, and serve each in `connections`; closes the listener."""
        for url in self.urls:
            log.log(self._level, "listening on %s", url)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._limiter.run)
                connections.start_soon(self._links.run)
                for listener in self._bound.listeners:
                    nursery.start_soon(self._accept, listener, connections)
                self._gateway.readiness.set_listening(self._noted, accepting=True)
        finally:
            self._gateway.readiness.set_listening(self._noted, accepting=False)
            self.close()

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        # Without `trio.serve_listeners`, which needs a second socket object and two coroutines per connection.
        async with ThrottledListener(listener, self._limiter) as throttled:
            while True:
                connections.start_soon(self.serve, take_socket(await throttled.accept()))

    def close(self) -> None:
        """Stop listening. May be repeated."""
        self._bound.close()

    def reload(self) -> None:
        """Read the certificate, its key and the authorities again, for later connections.

        Raises `ConfigError` if they can't be used, and keeps the former ones.
        """
        try:
            _load_revocations(self._section, self._gateway)
        finally:
            # One unusable file does not keep the other ones from being read.
            self._context = _make_context(self._section)

    async def serve(self, sock: socket.socket) -> None:
        """Serve one client until its connection ends; logs every error of the gateway."""
        connection = self._make_pending(sock)
        name = connection.name
        try:
            accepted = await self._authenticate(sock, connection)
            # An authenticated connection may stay for long: release the memory of its handshake.
            name, cost, since = connection.name, connection.cost, trio.current_time()
            del connection
            if accepted is not None:
                try:
                    await self._serve(accepted, name)
                finally:
                    self._limiter.release(cost, since)
        except* Exception:
            # A bug ends the connection in which it shows and no other, even while the gateway stops.
            log.exception("%s: internal error, connection closed", name)
        finally:
            sock.close()

    async def _authenticate(self, sock: socket.socket, connection: PendingConnection) -> Outcome:
        """Do the handshake within its limits."""
        if self._address.scheme != "unix":
            keep_alive(sock, self._settings.ping_interval, self._settings.ping_timeout)
        accepted = None
        connection.scope.deadline = trio.current_time() + self._settings.handshake_timeout
        with self._limiter.admit(connection):
            accepted = await self._handshakes.shake_hands(sock, connection, self._context)
        if connection.scope.cancelled_caught and not connection.fetched:
            why = "evicted in favour of others" if connection.evicted else "not authenticated within handshake_timeout"
            self._limiter.refusals.log_end(connection, why)
        if accepted is None and connection.authenticated:
            # The client left while the response was being sent.
            self._limiter.release(connection.cost, trio.current_time())
        return accepted

    async def _serve_requests(self, accepted: AcceptedRequest) -> tuple[MaintainedStream, Accepted] | None:
        """Serve a request and those behind it; return the stream that one of them has asked for."""
        if not await accepted.serve():
            return None
        connection = accepted.client.connection
        # One scope for all of them: only a connection that waits for a request is evicted, and has a deadline.
        with trio.CancelScope() as connection.scope:
            while True:
                connection.renew()
                following = await self._next_request(accepted)
                if not isinstance(following, AcceptedRequest):
                    return following
                accepted = following
                if not await accepted.serve():
                    return None
        return None

    async def _next_request(self, accepted: AcceptedRequest) -> Outcome:
        """Wait for the request behind a served one, within the limits of handshakes."""
        connection = accepted.client.connection
        connection.scope.deadline = trio.current_time() + self._settings.handshake_timeout
        self._limiter.enter(connection)
        try:
            following = await self._handshakes.next_request(accepted)
        finally:
            self._limiter.leave(connection)
        if following is None:
            if connection.authenticated:
                self._limiter.release(connection.cost, trio.current_time())
        elif connection.scope.cancel_called:
            # Its time was over, or it was evicted, when it had just been read: nothing was done for it yet.
            await accepted.client.stream.aclose()
        connection.scope.deadline = math.inf
        return following

    async def _serve(self, accepted: tuple[MaintainedStream, Accepted] | AcceptedRequest, name: str) -> None:
        if isinstance(accepted, AcceptedRequest):
            upgraded = await self._serve_requests(accepted)
            if upgraded is None:
                return
            name = accepted.client.connection.name
            accepted = upgraded
        stream, admitted = accepted
        if isinstance(admitted.purpose, Serving):
            await admitted.purpose.serve(stream)
        elif isinstance(admitted.purpose, Grant):
            await self._gateway.serve(stream, admitted.purpose, name, admitted.link_id)
        else:
            await self._gateway.serve_resumed(stream, admitted.purpose, name)

    def _make_pending(self, sock: socket.socket) -> PendingConnection:
        connection_id = make_id()
        make = partial(PendingConnection, connection_id=connection_id, listener=self.urls[0])
        if self._address.scheme == "unix":
            return make(name=f"{connection_id[:8]} (unix)", peer="unix", network="unix", limited=False)
        try:
            host, port = sock.getpeername()[:2]
            peer = f"{host}:{port}"
        except OSError:
            host, peer = "", "gone already"
        proxy = is_trusted(host, self._settings.trusted_proxies)
        name = f"{connection_id[:8]} ({peer})"
        return make(name=name, peer=host, network=network_of(host), limited=not proxy)


def _make_context(section: ListenSection) -> ssl.SSLContext | None:
    if not section.address.tls:
        return None
    assert section.cert is not None
    assert section.key is not None
    return server_context(section.cert, section.key, section.client_ca)


def _load_revocations(section: ListenSection, gateway: Gateway) -> None:
    if section.client_crl is not None:
        assert section.client_ca is not None
        gateway.revocations.load(section.client_crl, section.client_ca)
