"""Does the handshake of an accepted connection: TLS, then the WebSocket upgrade or the hello.

A client has `handshake_timeout` seconds and a bounded number of bytes to send its token, over a WebSocket in the
upgrade's headers, else in a first line:

    {"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello","params":{"token":"acpgw_…","agent":"demo"}}

The upgrade's query, or the same line, names the agent or a session to join. The upgrade's headers, or the same line,
ask for a resumable link, or resume one. A refusal has the same number either way: the HTTP status, or the code of the
JSON-RPC error. Nothing is started for an unauthenticated connection.
"""

import socket
import ssl
from http import HTTPStatus
from typing import Final

import trio
from websockets.http11 import Request

from acp_gateway.config.load import ListenSection
from acp_gateway.errors import AccessError, ProtocolError, Unauthorized
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol import jsonrpc
from acp_gateway.server.authentication import Authenticator
from acp_gateway.server.handshake_limits import HandshakeLimiter, ThrottledStream, shake_hands
from acp_gateway.server.hello import (
    BadHello,
    BadRequest,
    ResumeRequest,
    asks_for_websocket,
    check_host,
    check_origin,
    client_address,
    read_bearer,
    read_hello,
    read_query,
    read_resume_request,
)
from acp_gateway.server.pending import Accepted, PendingConnection
from acp_gateway.server.refusals import Refusal
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import describe
from acp_gateway.transports.streams import MessageTooLarge
from acp_gateway.transports.websocket import CONNECTION_ID, REFUSAL_HEADER, RESUME, Timing
from acp_gateway.transports.websocket_server import Accept, Respond, accept_websocket

ENDPOINT: Final = "/acp"
HEALTH: Final = "/healthz"

NOTHING_HERE: Final = f"there is nothing here; the endpoint is {ENDPOINT}"

SPEAKS_WEBSOCKET: Final = (
    f"{ENDPOINT} speaks ACP over WebSocket: ask with GET and Upgrade: websocket; Streamable HTTP is not offered yet"
)
"""Response to clients of ACP over HTTP."""

UPGRADE: Final = {"Upgrade": "websocket"}

HELLO_SIZE: Final = 4096
"""Maximum bytes of a first line. A token has 46 and an agent's name 64; the longest accepted id of a session has 1024.
No hello needs more, so there is no option: it bounds what is read from an unauthenticated client."""


class Handshakes:
    """Does the handshakes of one listener."""

    def __init__(self, section: ListenSection, gateway: Gateway, limiter: HandshakeLimiter) -> None:
        self._section = section
        self._address = section.address
        self._gateway = gateway
        self._settings = settings = gateway.config.gateway
        self._timing = Timing(settings.ping_interval, settings.ping_timeout, settings.stall_timeout)
        self._limiter = limiter
        self._authenticator = Authenticator(section, gateway)

    async def shake_hands(
        self, sock: socket.socket, connection: PendingConnection, context: ssl.SSLContext | None
    ) -> tuple[MaintainedStream, Accepted] | None:
        """Do TLS, with a `context`, and authentication. None if the connection was refused or ended, and is closed.

        Cancelling it closes the connection.
        """
        secured = sock
        if context is not None:
            try:
                secured = await shake_hands(sock, context, connection, self._limiter)
            except OSError as error:
                self._limiter.refusals.log_end(connection, f"no TLS handshake: {describe(error)}")
                return None
        stream = ThrottledStream(secured, connection, self._limiter)
        try:
            accept = self._accept_websocket if self._address.websocket else self._accept_lines
            accepted = await accept(connection, secured, stream)
        except trio.BrokenResourceError as error:
            self._limiter.refusals.log_end(connection, f"left during the handshake: {error}")
            accepted = None
        except BaseException:
            # Shielded, because a bug must not be lost if the gateway is told to stop meanwhile.
            with trio.CancelScope(shield=True):
                await stream.aclose()
            raise
        if accepted is None:
            await stream.aclose()
        else:
            stream.stop_throttling()
        return accepted

    def _authenticate(
        self, connection: PendingConnection, sock: socket.socket, stream: ThrottledStream, token: str | None
    ) -> Access:
        connection.token = token
        certificate = stream.peer_certificate if token is None else None
        connection.access = self._authenticator.authenticate(token, sock, certificate)
        return connection.access

    def _authorize(
        self, connection: PendingConnection, access: Access, connect_request: ConnectRequest, link: ResumeRequest | None
    ) -> Accepted:
        """Resume a link, or grant a request. Raises `AccessError`."""
        connection_id = connection.connection_id
        if link is not None and link.connection_id is not None:
            claim = self._gateway.resume(access, link.connection_id, link.received)
            accepted = Accepted(link.connection_id, claim.received, claim)
        else:
            accepted = Accepted(
                connection_id, None if link is None else 0, self._gateway.admit(access, connect_request)
            )
        connection.name = connection.name.replace(connection_id[:8], accepted.connection_id[:8], 1)
        self._limiter.authenticated(
            connection, credential=access.credential, identity=access.identity, role=access.role
        )
        return accepted

    # WebSocket

    async def _accept_websocket(
        self, connection: PendingConnection, sock: socket.socket, stream: ThrottledStream
    ) -> tuple[MaintainedStream, Accepted] | None:
        accepted: list[Accepted] = []

        def decide(request: Request) -> Accept | Respond:
            with self._limiter.measured(connection):
                try:
                    answer = self._answer_request(connection, sock, stream, request)
                except AccessError as error:
                    return _respond(self._limiter.refuse(connection, error))
                except BadRequest as error:
                    return Respond(400, str(error), {REFUSAL_HEADER: ProtocolError.reason})
            if isinstance(answer, Respond):
                return answer
            accepted.append(answer)
            count = {} if answer.received is None else {RESUME: str(answer.received)}
            return Accept({CONNECTION_ID: answer.connection_id} | count)

        websocket = await accept_websocket(
            stream,
            decide,
            max_message_size=self._settings.max_message_size,
            timing=self._timing,
            decline=_decline,
        )
        return None if websocket is None else (websocket, accepted[0])

    def _answer_request(
        self, connection: PendingConnection, sock: socket.socket, stream: ThrottledStream, request: Request
    ) -> Accepted | Respond:
        """Authenticate and authorize an upgrade, or answer another request. Raises `AccessError` and `BadRequest`."""
        headers = request.headers
        client = client_address(connection.address, headers, self._settings.trusted_proxies)
        if client != connection.address:
            connection.name = connection.name.replace("(", f"({client} by way of ", 1)
            connection.address = client
        check_host(headers, self._section.allowed_hosts, loopback=self._address.loopback)
        path, _, query = request.path.partition("?")
        if path == HEALTH and request.method == "GET":
            return Respond(200, "ok")
        if path != ENDPOINT:
            return Respond(404, NOTHING_HERE)
        check_origin(headers, self._section.allowed_origins)
        if not asks_for_websocket(headers):
            return Respond(HTTPStatus.UPGRADE_REQUIRED, SPEAKS_WEBSOCKET, UPGRADE)
        access = self._authenticate(connection, sock, stream, read_bearer(headers))
        link = read_resume_request(query, headers)
        # A resumed link keeps the request that it was opened with.
        resumes = link is not None and link.connection_id is not None
        return self._authorize(connection, access, ConnectRequest() if resumes else read_query(query), link)

    # Lines

    async def _accept_lines(
        self, connection: PendingConnection, sock: socket.socket, stream: ThrottledStream
    ) -> tuple[MaintainedStream, Accepted] | None:
        lines = LineStream(
            stream,
            max_message_size=self._settings.max_message_size,
            stall_timeout=self._settings.stall_timeout,
        )
        raw_id = jsonrpc.NO_ID
        try:
            line = await stream.receive_line(HELLO_SIZE)
            if not line:
                return None
            with self._limiter.measured(connection):
                raw_id, hello = read_hello(line)
                access = self._authenticate(connection, sock, stream, hello.token)
                accepted = self._authorize(
                    connection, access, hello.connect_request, None if hello.control else hello.resume
                )
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
            count = {} if accepted.received is None else {"received": accepted.received}
            await lines.send(jsonrpc.result(raw_id, {"connectionId": accepted.connection_id} | count))
            return lines, accepted
        lines.send_nowait([refusal])
        await lines.aclose()
        return None


def _decline(target: str) -> Respond:
    """Answer a request with another method than GET. Only its path matters."""
    path = target.partition("?")[0]
    if path not in (ENDPOINT, HEALTH):
        return Respond(HTTPStatus.NOT_FOUND, NOTHING_HERE)
    allow = {"Allow": "GET"}
    if path == HEALTH:
        return Respond(HTTPStatus.METHOD_NOT_ALLOWED, f"{HEALTH} takes GET only", allow)
    return Respond(HTTPStatus.METHOD_NOT_ALLOWED, SPEAKS_WEBSOCKET, UPGRADE | allow)


def _respond(refusal: Refusal) -> Respond:
    # The first header distinguishes the gateway's own refusal from that of a proxy.
    headers = {REFUSAL_HEADER: refusal.error.reason}
    if isinstance(refusal.error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return Respond(refusal.error.http_status, str(refusal.error), headers, refusal.delay)
