"""Accepts connections at one address, and serves each from its handshake to its end.

The handshake is TLS, then the WebSocket upgrade or the hello.
A client has `handshake_timeout` seconds and a bounded number of bytes to send its token, over a WebSocket in the
upgrade's headers, else in a first line:

    {"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello","params":{"token":"acpgw_…","agent":"demo"}}

The upgrade's query, or the same line, names the agent or a session to join. The upgrade's headers, or the same line,
ask for a resumable link, or resume one. A refusal has the same number either way: the HTTP status, or the code of the
JSON-RPC error. Nothing is started for an unauthenticated connection.
"""

import logging
import math
import os
import socket
import ssl
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import AccessError, ProtocolError, UnknownAgent
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.control_channel import serve_control
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.rate_limits import network_of
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.security.tls import server_context
from acp_gateway.server.authentication import AcceptedRequest, Client, ConnectionAuthorizer
from acp_gateway.server.handshake_limits import FULL_PAUSE, ThrottledListener, ThrottledStream, shake_hands
from acp_gateway.server.hello import BadHello, Hello, is_trusted, read_hello
from acp_gateway.server.http.route import BodyNeeded, Exchange, Upgrade
from acp_gateway.server.http.routes import HttpRoutes, SharedState
from acp_gateway.server.local_peer import LocalPeer, Place, identify
from acp_gateway.server.pending import Accepted, PendingConnection, Serving, make_id
from acp_gateway.server.sockets import BoundSockets, bind
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Response
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import describe, keep_alive, take_socket
from acp_gateway.transports.streams import MessageTooLarge
from acp_gateway.transports.websocket.server import upgrade
from acp_gateway.transports.websocket.stream import Timing

log = logging.getLogger(__name__)


HELLO_SIZE: Final = 4096
"""Maximum bytes of a first line. A token has 46 and an agent's name 64; the longest accepted id of a session has 1024.
No hello needs more, so there is no option: it bounds what is read from an unauthenticated client."""


Outcome: TypeAlias = tuple[MaintainedStream, Accepted] | AcceptedRequest | None
"""An authenticated stream or request; None if the connection was refused or ended, and is closed."""


class Handshakes:
    """Does the handshakes of one listener.

    Args:
        shared: the state of all listeners.
        only_control: refuses all but control connections.
    """

    def __init__(
        self,
        section: ListenSection,
        gateway: Gateway,
        shared: SharedState,
        *,
        only_control: bool = False,
    ) -> None:
        self._speaks_http = section.speaks_http
        # Accepts the hello of a client that sends other lines than ACP.
        self._accept_other = None if section.of_lines is None else section.of_lines.serving().accept(gateway)
        self._only_control = only_control
        self._asks_for_user = section.accepts_local_user and section.address.scheme != "unix"
        # Each reads the descriptors of all processes.
        self._identifying = trio.CapacityLimiter(1)
        self._gateway = gateway
        self._settings = settings = gateway.config.gateway
        self._timing = Timing(settings.ping_interval, settings.ping_timeout, settings.stall_timeout)
        self._limiter = shared.limiter
        self._authorizer = ConnectionAuthorizer(section, gateway, shared.limiter)
        self._routes = HttpRoutes(section, gateway, shared, self._authorizer)

    async def shake_hands(
        self, sock: socket.socket, connection: PendingConnection, context: ssl.SSLContext | None
    ) -> Outcome:
        """Do TLS, with a `context`, and authentication. Cancelling it closes the connection."""
        secured = sock
        if context is not None:
            try:
                secured = await shake_hands(sock, context, connection, self._limiter, speaks_http=self._speaks_http)
            except OSError as error:
                self._limiter.refusals.log_end(connection, f"no TLS handshake: {describe(error)}")
                return None
        local = await self._identify(sock) if self._asks_for_user else None
        client = Client(connection, secured, ThrottledStream(secured, connection, self._limiter), local)
        if isinstance(secured, ssl.SSLSocket) and secured.selected_alpn_protocol() == "h2":
            return await self._closing(client, self._serve_http2(client))
        if self._speaks_http:
            return await self._closing(
                client, self._accept_http(client, HttpConnection(client.stream, self._settings.stall_timeout))
            )
        return await self._closing(client, self._accept_lines(client))

    async def _identify(self, sock: socket.socket) -> LocalPeer:
        """Return the processes at the other end of a connection to a port. Cancelling it leaves the connection open."""
        try:
            ours, peer = (Place(*name[:2]) for name in (sock.getsockname(), sock.getpeername()))
            return await trio.to_thread.run_sync(
                identify, ours, peer, os.geteuid(), abandon_on_cancel=True, limiter=self._identifying
            )
        except OSError:
            return LocalPeer(refusal="it has left")

    async def next_request(self, former: AcceptedRequest) -> Outcome:
        """Wait for the request behind one that was served. The connection is unauthenticated again until it comes.

        Cancelling it closes the connection.
        """
        client = former.client
        client.stream.throttle(client.connection)
        return await self._closing(client, self._accept_http(client, former.http))

    async def _closing(self, client: Client, accepting: Awaitable[Outcome]) -> Outcome:
        """Close the connection unless it is accepted."""
        try:
            accepted = await accepting
        except trio.BrokenResourceError as error:
            self._limiter.refusals.log_end(client.connection, f"left during the handshake: {error}")
            accepted = None
        except BaseException:
            # Shielded, because a bug must not be lost if the gateway is told to stop.
            with trio.CancelScope(shield=True):
                await client.stream.aclose()
            raise
        if accepted is None:
            await client.stream.aclose()
        else:
            client.stream.stop_throttling()
        return accepted

    # HTTP

    async def _serve_http2(self, client: Client) -> None:
        # Imported only where there is TLS.
        from acp_gateway.server.http.http2 import Http2Requests

        await Http2Requests(client, self._settings, self._limiter, self._accept_http).serve()

    async def _accept_http(self, client: Client, http: HttpConnection) -> Outcome:
        connection = client.connection
        while True:
            # What comes until the next request is of no client of a proxy's.
            connection.begin_request(connection.peer)
            try:
                if http.pipelined:
                    # No read takes a step for it.
                    await self._limiter.step(connection)
                request = await http.receive_request(self._limiter.measured(connection))
                if request is None:
                    break
                http.headers = self._routes.cors(request)
                answer = self._routes.answer(client, request)
                if isinstance(answer, BodyNeeded):
                    answer = await self._routes.answer_body(client, http, request, answer)
                if isinstance(answer, Exchange) and answer.prepare is not None:
                    answer = await self._routes.prepare(client, http, answer)
            except HttpError as error:
                await http.respond(Response.of_text(error.status, str(error), close=True))
                break
            if isinstance(answer, Upgrade):
                settings = self._settings
                websocket = await upgrade(
                    http,
                    request,
                    answer.headers,
                    max_message_size=settings.max_message_size,
                    timing=self._timing,
                    binary=answer.binary,
                )
                if isinstance(websocket, MaintainedStream):
                    return websocket, answer.accepted
                await http.respond(websocket)
                break
            if isinstance(answer, Exchange):
                self._authorizer.accept(connection, answer.access, audited=answer.opens or answer.prepare is not None)
                return AcceptedRequest(client, http, answer.run)
            if not await http.respond(answer):
                break
        await http.aclose()
        return None

    # Lines

    async def _accept_lines(self, client: Client) -> Outcome:
        connection = client.connection
        lines = LineStream(
            client.stream,
            max_message_size=self._settings.max_message_size,
            stall_timeout=self._settings.stall_timeout,
        )
        raw_id = jsonrpc.NO_ID
        try:
            while True:
                line = await client.stream.receive_line(HELLO_SIZE)
                if not line:
                    return None
                with self._limiter.measured(connection):
                    raw_id, hello = read_hello(line)
                    if hello.challenge is None:
                        break
                    proof, delay = self._authorizer.prove(client, hello.challenge)
                await trio.sleep(delay)
                await lines.send(jsonrpc.result(raw_id, {"proof": proof}))
            with self._limiter.measured(connection):
                if self._only_control and not hello.control:
                    raise BadHello(jsonrpc.INVALID_PARAMS, "this socket has control connections only", raw_id)
                access = self._authorizer.authenticate(client, hello.token)
                at_node = self._serve_at_node(connection, access, raw_id, hello)
                if at_node is not None:
                    self._authorizer.accept(connection, access)
                    return lines, Accepted(connection.connection_id, None, at_node)
                if self._accept_other is not None:
                    serve = self._accept_other(access, raw_id, hello, connection.name)
                    self._authorizer.accept(connection, access)
                    accepted = Accepted(connection.connection_id, None, Serving(serve))
                else:
                    resume = None if hello.control else hello.resume
                    accepted = self._authorizer.authorize(connection, access, hello.connect_request, resume)
        except MessageTooLarge as error:
            refusal = jsonrpc.error(raw_id, jsonrpc.INVALID_REQUEST, str(error))
            await trio.sleep(self._limiter.refuse_malformed(connection, f"refused: {error}"))
        except BadHello as error:
            refusal = jsonrpc.error(error.request_id, error.code, str(error), {"reason": ProtocolError.reason})
            await trio.sleep(self._limiter.refuse_malformed(connection, f"refused: {error}"))
        except AccessError as error:
            refused = self._limiter.refuse(connection, error)
            await trio.sleep(refused.delay)
            code, text, reason = refused.error.http_status, str(refused.error), refused.error.reason
            refusal = jsonrpc.error(raw_id, code, text, {"reason": reason})
        else:
            result: dict[str, Any] = {"connectionId": accepted.connection_id}
            if accepted.received is not None:
                result |= {"received": accepted.received, "part": str(accepted.part)}
                result |= {"probe": True, "limit": str(accepted.limit)}
            await lines.send(jsonrpc.result(raw_id, result))
            return lines, accepted
        lines.send_nowait([refusal])
        await lines.aclose()
        return None

    def _serve_at_node(
        self, connection: PendingConnection, access: Access, raw_id: RawId, hello: Hello
    ) -> Serving | None:
        """Return what answers the hello of a client that wants a node; None for another one.

        Raises `AccessError` and `BadHello`.
        """
        door = self._gateway.extensions.door
        has_no_place = hello.control or self._accept_other is not None
        if hello.node is not None and has_no_place:
            text = "a hello that names a node is for ACP: control connections and taps are at the node itself"
            raise BadHello(jsonrpc.INVALID_PARAMS, text, raw_id)
        if hello.node is not None and door is None:
            raise UnknownAgent("this gateway has no nodes")
        place = None if door is None or has_no_place else door.place(access, hello.connect_request, hello.node)
        if door is None or place is None:
            return None
        name, its_id = connection.name, connection.connection_id
        return Serving(door.serve_lines(access, place, name, its_id, raw_id, hello.resume))


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
    if context is not None and section.speaks_http:
        # Before clients come: it takes 30 ms, for which the first one would hold up the others.
        from acp_gateway.server.http import http2  # noqa: F401
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
        self._shared = shared
        self._context = context
        self._bound = bound
        self.urls = bound.urls
        """Its actual addresses, with the port that the system chose."""
        # Without a control socket, no client is kept out.
        self._noted = () if only_control else self.urls
        gateway.readiness.set_listening(self._noted, accepting=False)

    async def run(self, connections: trio.Nursery) -> None:
        """Accept clients until cancelled, and serve each in `connections`. The sockets stay open."""
        for url in self.urls:
            log.log(self._level, "listening on %s", url)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._limiter.run)
                connections.start_soon(self._shared.run)
                for listener in self._bound.listeners:
                    nursery.start_soon(self._accept, listener, connections)
                self._gateway.readiness.set_listening(self._noted, accepting=True)
        finally:
            self._gateway.readiness.set_listening(self._noted, accepting=False)

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        # Without `trio.serve_listeners`, which needs a second socket object and two coroutines per connection.
        throttled = ThrottledListener(listener, self._limiter)
        while True:
            connections.start_soon(self.serve, take_socket(await throttled.accept()))

    async def refuse(self) -> None:
        """Close each connection that comes, until cancelled.

        To be run after `run` until the last agent has ended: with the address, an agent would get the tokens of clients
        that reconnect.
        """
        async with trio.open_nursery() as nursery:
            for listener in self._bound.listeners:
                nursery.start_soon(_refuse, listener)

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
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            # Not a bug, in whichever task it was noticed that the client, or a node, has left.
            log.debug("%s: lost", name, exc_info=True)
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
        if connection.scope.cancelled_caught and not (connection.fetched or connection.answered):
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
        elif isinstance(admitted.purpose, Grant) and admitted.purpose.connect_request.control:
            await serve_control(self._gateway, stream, admitted.purpose, name)
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


async def _refuse(listener: trio.SocketListener) -> None:
    while True:
        try:
            take_socket(await listener.accept()).close()
        except OSError:
            await trio.sleep(FULL_PAUSE)  # The system is out of descriptors: the client waits for the end.


def _make_context(section: ListenSection) -> ssl.SSLContext | None:
    if not section.address.tls:
        return None
    assert section.cert is not None
    assert section.key is not None
    return server_context(section.cert, section.key, section.client_ca, http2=section.speaks_http)


def _load_revocations(section: ListenSection, gateway: Gateway) -> None:
    if section.client_crl is not None:
        assert section.client_ca is not None
        gateway.revocations.load(section.client_crl, section.client_ca)
