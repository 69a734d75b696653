"""The doors: accept connections, find out who is there, and hand a stream of messages to the gateway.

Whoever is at the door has `handshake_timeout` seconds and a bounded number of bytes to show a token, over a WebSocket
in the upgrade's headers, else in a first line:

    {"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello","params":{"token":"acpgw_…","agent":"demo"}}

What it wants there (an agent, a session to join) stands in the upgrade's query, or in the same line; that it wants a
link that can be resumed, or resumes one, in the upgrade's headers or in the same line. A refusal has the same number on
either way: the HTTP status, or the code of the JSON-RPC error. Nothing is started for anybody who has not come in.

Without a token those come in for whom the kernel vouches at a unix socket, or a certificate of `client_ca`. A token
that is shown beside these goes before them, also where it is wrong: it was meant.
"""

import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Final

import trio
from websockets.http11 import Request

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import AccessError, Forbidden, ProtocolError, Unauthorized
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.rate_limits import network_of
from acp_gateway.gateway.resumption import ResumeClaim
from acp_gateway.protocol import jsonrpc
from acp_gateway.security.revocations import certificate_id
from acp_gateway.security.tls import certificate_end, certificate_subject, server_context
from acp_gateway.security.token_store import default_identity
from acp_gateway.server.handshake_limits import (
    HandshakeLimiter,
    PendingConnection,
    ThrottledListener,
    ThrottledStream,
    shake_hands,
)
from acp_gateway.server.hello import (
    BadHello,
    BadRequest,
    ResumeRequest,
    asks_for_websocket,
    check_host,
    check_origin,
    client_address,
    is_trusted,
    read_bearer,
    read_hello,
    read_link,
    read_query,
)
from acp_gateway.server.peer_credentials import belongs_to_agent, peer_credentials
from acp_gateway.server.refusals import Refusal
from acp_gateway.server.sockets import Bound, bind
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import describe, keep_alive, take_socket
from acp_gateway.transports.streams import MessageStream, MessageTooLarge
from acp_gateway.transports.websocket import CONNECTION_ID, MARK, RESUME, Timing
from acp_gateway.transports.websocket_server import Accept, Respond, accept_websocket

log = logging.getLogger(__name__)

ENDPOINT: Final = "/acp"
HEALTH: Final = "/healthz"

NOTHING_HERE: Final = f"there is nothing here; the endpoint is {ENDPOINT}"

SPEAKS_WEBSOCKET: Final = (
    f"{ENDPOINT} speaks ACP over WebSocket: ask with GET and Upgrade: websocket; Streamable HTTP is not offered yet"
)
"""For clients of ACP over HTTP."""

UPGRADE: Final = {"Upgrade": "websocket"}

HELLO_SIZE: Final = 4096
"""Bytes of a first line at most. A token has 46 and an agent's name 64; the longest id of a session that is taken has
1024. Nobody needs more to say a hello, so there is no option: what a stranger has read in vain is bounded by it."""


@dataclass(frozen=True, slots=True)
class _Visit:
    """A connection that was let in: what it is told, and what is done with it."""

    connection_id: str
    """The link's id, where one is resumed."""
    received: int | None
    """How many messages of the link have been received here; None where it can't be resumed."""
    purpose: Grant | ResumeClaim


@dataclass(frozen=True, slots=True)
class _Admitted:
    """What is known for as long as they stay."""

    stream: MessageStream
    purpose: Grant | ResumeClaim
    link_id: str | None
    """What the link can be resumed by."""

    @classmethod
    def over(cls, stream: MessageStream, visit: _Visit) -> "_Admitted":
        """Let in over this stream."""
        return cls(stream, visit.purpose, None if visit.received is None else visit.connection_id)


@dataclass(slots=True)
class _Knock:
    """Somebody at the door."""

    guest: PendingConnection
    sock: socket.socket
    stream: ThrottledStream
    shown: str | None = field(default=None, repr=False)
    """The token that they have shown, right or wrong."""
    access: Access | None = None
    """Who they are, when they have shown that."""


async def open_listener(
    section: ListenSection,
    gateway: Gateway,
    inherited: Sequence[socket.socket] = (),
    *,
    entrance: HandshakeLimiter | None = None,
) -> "Listener":
    """Listen at one address of the configuration: on those of the inherited sockets that do, else on new ones.

    Doors that share an `entrance` count together who has not come in yet, and who was refused. Raises `CannotListen`
    where the system refuses, `ConfigError` where a certificate can't be used.
    """
    context = _make_context(section)
    _load_revocations(section, gateway)
    bound = await bind(section.address, inherited)
    return Listener(section, gateway, entrance or HandshakeLimiter(gateway.config, gateway.audit), context, bound)


class Listener:
    """An address that is listened at, and what happens to whoever comes to it. Made by `open_listener`."""

    def __init__(
        self,
        section: ListenSection,
        gateway: Gateway,
        entrance: HandshakeLimiter,
        context: ssl.SSLContext | None,
        bound: Bound,
    ) -> None:
        self._section = section
        self._address = section.address
        self._gateway = gateway
        self._settings = settings = gateway.config.gateway
        self._timing = Timing(settings.ping_interval, settings.ping_timeout, settings.stall_timeout)
        self._entrance = entrance
        self._context = context
        self._bound = bound
        self.urls = bound.urls
        """Where it really listens, the port that the system chose included."""

    async def run(self, connections: trio.Nursery) -> None:
        """Accept clients until cancelled, and serve each in `connections`; closes the door."""
        for url in self.urls:
            log.info("listening on %s", url)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._entrance.run)
                for listener in self._bound.listeners:
                    nursery.start_soon(self._accept, listener, connections)
        finally:
            self.close()

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        # Not by `trio.serve_listeners`, which has a second socket object and two coroutines for each connection.
        async with ThrottledListener(listener, self._entrance) as doorstep:
            while True:
                connections.start_soon(self.serve, take_socket(await doorstep.accept()))

    def close(self) -> None:
        """Listen no more. May be repeated."""
        self._bound.close()

    def reload(self) -> None:
        """Read the certificate, its key and the authorities again, for connections that come from now on.

        Raises `ConfigError` where they can't be used, and goes on with what there was.
        """
        try:
            _load_revocations(self._section, self._gateway)
        finally:
            # One unusable file does not keep the other ones from being read.
            self._context = _make_context(self._section)

    async def serve(self, sock: socket.socket) -> None:
        """Serve one client from its first byte to its last; whatever goes wrong ends here."""
        guest = self._meet(sock)
        name = guest.name
        try:
            admitted = await self._welcome(sock, guest)
            # Who is in may stay for long, and is no guest any more.
            name, cost, since = guest.name, guest.cost, trio.current_time()
            del guest
            if admitted is not None:
                try:
                    await self._serve(admitted, name)
                finally:
                    self._entrance.release(cost, since)
        except* Exception:
            # A bug ends the connection it shows in and no other, also while the gateway stops.
            log.exception("%s: internal error, connection closed", name)
        finally:
            sock.close()

    async def _welcome(self, sock: socket.socket, guest: PendingConnection) -> _Admitted | None:
        """Find out who it is; None where nobody came in."""
        if self._address.scheme != "unix":
            keep_alive(sock, self._settings.ping_interval, self._settings.ping_timeout)
        admitted = None
        guest.scope.deadline = trio.current_time() + self._settings.handshake_timeout
        with self._entrance.hosting(guest):
            admitted = await self._admit(sock, guest)
        if guest.scope.cancelled_caught:
            why = "others needed the room" if guest.evicted else "not authenticated within handshake_timeout"
            self._entrance.refusals.note(guest, why)
        if admitted is None and guest.came_in:
            # It went while it was being told so.
            self._entrance.release(guest.cost, trio.current_time())
        return admitted

    def _serve(self, admitted: _Admitted, name: str) -> Awaitable[None]:
        """Serve whoever was let in."""
        if isinstance(admitted.purpose, Grant):
            return self._gateway.serve(admitted.stream, admitted.purpose, name, admitted.link_id)
        return self._gateway.serve_resumed(admitted.stream, admitted.purpose, name)

    def _meet(self, sock: socket.socket) -> PendingConnection:
        connection_id = secrets.token_urlsafe(16)
        meet = partial(PendingConnection, connection_id=connection_id, listener=self.urls[0])
        if self._address.scheme == "unix":
            return meet(name=f"{connection_id[:8]} (unix)", address="unix", room="unix", limited=False)
        try:
            host, port = sock.getpeername()[:2]
            peer = f"{host}:{port}"
        except OSError:
            host, peer = "", "gone already"
        proxy = is_trusted(host, self._settings.trusted_proxies)
        return meet(name=f"{connection_id[:8]} ({peer})", address=host, room=network_of(host), limited=not proxy)

    async def _admit(self, sock: socket.socket, guest: PendingConnection) -> _Admitted | None:
        """Do TLS and authentication. None where the peer was refused, or gave up; the connection is closed then.

        Cancelled, it closes the connection.
        """
        secured = sock
        if self._context is not None:
            try:
                secured = await shake_hands(sock, self._context, guest, self._entrance)
            except OSError as error:
                self._entrance.refusals.note(guest, f"no TLS handshake: {describe(error)}")
                return None
        stream = ThrottledStream(secured, guest, self._entrance)
        knock = _Knock(guest, secured, stream)
        try:
            admit = self._admit_websocket if self._address.websocket else self._admit_lines
            admitted = await admit(knock)
        except trio.BrokenResourceError as error:
            self._entrance.refusals.note(guest, f"left at the door: {error}")
            admitted = None
        except BaseException:
            # A bug would go unnoticed where the gateway is told to stop meanwhile.
            with trio.CancelScope(shield=True):
                await stream.aclose()
            raise
        if admitted is None:
            await stream.aclose()
        else:
            stream.let_in()
        return admitted

    # Who may come in

    def _identify(self, knock: _Knock, token: str | None) -> Access:
        """Whose connection it is, by the token that was shown, else by what vouches for them. Raises `AccessError`."""
        knock.shown = token
        access = None
        if token is None:
            access = self._vouched_by_kernel(knock.sock) or self._vouched_by_certificate(knock.stream)
        knock.access = access or Access.of(self._gateway.tokens.authenticate(token))
        return knock.access

    def _vouched_by_kernel(self, sock: socket.socket) -> Access | None:
        """Access for the gateway's own user, where the kernel names the peer. An agent is no such peer."""
        if self._address.scheme != "unix" or not self._section.peer_uid:
            return None
        peer = peer_credentials(sock)
        if peer is None or peer.uid != os.geteuid():
            return None
        # The gateway itself may: it is no agent, though all agents descend from it.
        if peer.pid != os.getpid() and belongs_to_agent(peer.pid, self._gateway.agent_ancestors):
            raise Forbidden("an agent can't let itself in: a token is needed here")
        return Access(default_identity(self._settings.state_dir), None)

    def _vouched_by_certificate(self, stream: ThrottledStream) -> Access | None:
        """Access for whose certificate was shown in the handshake, as long as it is good, and the configuration's."""
        certificate = stream.peer_certificate if self._section.client_ca is not None else None
        if certificate is None:
            return None
        ends = certificate_end(certificate)
        # A TLS session that is taken up again is not verified again: its certificate may have ended since.
        if ends <= time.time():
            return None
        revoked_by = certificate_id(certificate)
        if revoked_by in self._gateway.revocations:
            # Who shows it holds its key, and may know.
            raise Unauthorized("this client certificate was revoked: its owner needs another one, or a token")
        subject = certificate_subject(certificate)
        for name, section in self._gateway.config.certificates.items():
            if section.subject == subject:
                own_identity = default_identity(self._settings.state_dir)
                return replace(
                    Access.of_certificate(name, section, own_identity), expires=ends, certificate_id=revoked_by
                )
        return None

    def _let_in(self, knock: _Knock, access: Access, wish: ConnectRequest, link: ResumeRequest | None) -> _Visit:
        """Let somebody in, over a link that they resume or for a wish. Raises `AccessError`."""
        gateway = self._gateway
        guest = knock.guest
        connection_id = guest.connection_id
        if link is not None and link.connection_id is not None:
            resumption = gateway.resume(access, link.connection_id, link.received)
            visit = _Visit(link.connection_id, resumption.received, resumption)
        else:
            visit = _Visit(connection_id, None if link is None else 0, gateway.admit(access, wish))
        guest.name = guest.name.replace(connection_id[:8], visit.connection_id[:8], 1)
        self._entrance.admit(guest, credential=access.credential, identity=access.identity, role=access.role)
        return visit

    def _refuse(self, knock: _Knock, error: AccessError) -> Refusal:
        credential = None if knock.access is None else knock.access.credential
        return self._entrance.refuse(knock.guest, error, shown=knock.shown, credential=credential)

    # WebSocket

    async def _admit_websocket(self, knock: _Knock) -> _Admitted | None:
        visits: list[_Visit] = []

        def decide(request: Request) -> Accept | Respond:
            with self._entrance.measured(knock.guest):
                try:
                    answer = self._answer_request(knock, request)
                except AccessError as error:
                    return _respond(self._refuse(knock, error))
                except BadRequest as error:
                    return Respond(400, str(error), {MARK: ProtocolError.reason})
            if isinstance(answer, Respond):
                return answer
            visits.append(answer)
            count = {} if answer.received is None else {RESUME: str(answer.received)}
            return Accept({CONNECTION_ID: answer.connection_id} | count)

        websocket = await accept_websocket(
            knock.stream,
            decide,
            max_message_size=self._settings.max_message_size,
            timing=self._timing,
            decline=_decline,
        )
        if websocket is None:
            return None
        (visit,) = visits
        return _Admitted.over(websocket, visit)

    def _answer_request(self, knock: _Knock, request: Request) -> _Visit | Respond:
        """Let in who asks for a WebSocket, or answer what else is asked. Raises `AccessError` and `BadRequest`."""
        headers = request.headers
        guest = knock.guest
        client = client_address(guest.address, headers, self._settings.trusted_proxies)
        if client != guest.address:
            guest.name = guest.name.replace("(", f"({client} by way of ", 1)
            guest.address = client
        check_host(headers, self._section.allowed_hosts, loopback=self._address.loopback)
        path, _, query = request.path.partition("?")
        if path == HEALTH and request.method == "GET":
            return Respond(200, "ok")
        if path != ENDPOINT:
            return Respond(404, NOTHING_HERE)
        check_origin(headers, self._section.allowed_origins)
        if not asks_for_websocket(headers):
            return Respond(HTTPStatus.UPGRADE_REQUIRED, SPEAKS_WEBSOCKET, UPGRADE)
        access = self._identify(knock, read_bearer(headers))
        link = read_link(query, headers)
        # What a link is for was said when it was opened.
        resumes = link is not None and link.connection_id is not None
        return self._let_in(knock, access, ConnectRequest() if resumes else read_query(query), link)

    # Lines

    async def _admit_lines(self, knock: _Knock) -> _Admitted | None:
        lines = LineStream(
            knock.stream,
            max_message_size=self._settings.max_message_size,
            stall_timeout=self._settings.stall_timeout,
        )
        raw_id = jsonrpc.NO_ID
        try:
            line = await knock.stream.receive_line(HELLO_SIZE)
            if not line:
                return None
            with self._entrance.measured(knock.guest):
                raw_id, hello = read_hello(line)
                access = self._identify(knock, hello.token)
                visit = self._let_in(knock, access, hello.wish, None if hello.control else hello.resume)
        except MessageTooLarge as error:
            refusal = jsonrpc.error(raw_id, jsonrpc.INVALID_REQUEST, str(error))
            await trio.sleep(self._entrance.complain(knock.guest, f"refused: {error}"))
        except BadHello as error:
            refusal = jsonrpc.error(error.answered, error.code, str(error), {"reason": ProtocolError.reason})
            await trio.sleep(self._entrance.complain(knock.guest, f"refused: {error}"))
        except AccessError as error:
            refused = self._refuse(knock, error)
            await trio.sleep(refused.delay)
            code, text, reason = refused.error.http_status, str(refused.error), refused.error.reason
            refusal = jsonrpc.error(raw_id, code, text, {"reason": reason})
        else:
            count = {} if visit.received is None else {"received": visit.received}
            await lines.send(jsonrpc.result(raw_id, {"connectionId": visit.connection_id} | count))
            return _Admitted.over(lines, visit)
        lines.send_nowait([refusal])
        await lines.aclose()
        return None


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


def _decline(target: str) -> Respond:
    """Answer a request with another method than GET. Nothing of it is looked at but the path."""
    path = target.partition("?")[0]
    if path not in (ENDPOINT, HEALTH):
        return Respond(HTTPStatus.NOT_FOUND, NOTHING_HERE)
    allow = {"Allow": "GET"}
    if path == HEALTH:
        return Respond(HTTPStatus.METHOD_NOT_ALLOWED, f"{HEALTH} takes GET only", allow)
    return Respond(HTTPStatus.METHOD_NOT_ALLOWED, SPEAKS_WEBSOCKET, UPGRADE | allow)


def _respond(refusal: Refusal) -> Respond:
    # By the first header a client tells the gateway's own refusal from that of a proxy on the way.
    headers = {MARK: refusal.error.reason}
    if isinstance(refusal.error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Respond(refusal.error.http_status, str(refusal.error), headers, refusal.delay)
