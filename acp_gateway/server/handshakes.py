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
from collections.abc import Awaitable
from typing import Final, TypeAlias

import trio

from acp_gateway.config.load import ListenSection
from acp_gateway.dialects.tap.file_events import SharedFileEvents
from acp_gateway.dialects.tap.file_tap import FileTap
from acp_gateway.errors import AccessError, ProtocolError
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.server.authentication import Authenticator
from acp_gateway.server.authorization import AcceptedRequest, Client, ConnectionAuthorizer
from acp_gateway.server.handshake_limits import ThrottledStream, shake_hands
from acp_gateway.server.hello import BadHello, Hello, read_hello
from acp_gateway.server.http.route import BodyNeeded, Upgrade
from acp_gateway.server.http.routes import HttpRoutes
from acp_gateway.server.http.streamable_http import Exchange
from acp_gateway.server.pending import Accepted, PendingConnection, Serving
from acp_gateway.server.shared import SharedState
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Response
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import describe
from acp_gateway.transports.streams import MessageTooLarge
from acp_gateway.transports.websocket.server import upgrade
from acp_gateway.transports.websocket.stream import Timing

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
        self._file_events = SharedFileEvents()
        self._speaks_http, self._only_tap = section.speaks_http, section.only_tap
        self._only_control = only_control
        self._gateway = gateway
        self._settings = settings = gateway.config.gateway
        self._timing = Timing(settings.ping_interval, settings.ping_timeout, settings.stall_timeout)
        self._limiter = shared.limiter
        self._authorizer = ConnectionAuthorizer(gateway, shared.limiter, Authenticator(section, gateway))
        self._routes = HttpRoutes(section, gateway, shared, self._authorizer)

    async def shake_hands(
        self, sock: socket.socket, connection: PendingConnection, context: ssl.SSLContext | None
    ) -> Outcome:
        """Do TLS, with a `context`, and authentication. Cancelling it closes the connection."""
        secured = sock
        if context is not None:
            try:
                secured = await shake_hands(sock, context, connection, self._limiter)
            except OSError as error:
                self._limiter.refusals.log_end(connection, f"no TLS handshake: {describe(error)}")
                return None
        client = Client(connection, secured, ThrottledStream(secured, connection, self._limiter))
        if self._speaks_http:
            return await self._closing(
                client, self._accept_http(client, HttpConnection(client.stream, self._settings.stall_timeout))
            )
        return await self._closing(client, self._accept_lines(client))

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
                )
                if isinstance(websocket, MaintainedStream):
                    return websocket, answer.accepted
                await http.respond(websocket)
                break
            if isinstance(answer, Exchange):
                self._authorizer.accept(connection, answer.access, audited=answer.prepare is not None)
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
            line = await client.stream.receive_line(HELLO_SIZE)
            if not line:
                return None
            with self._limiter.measured(connection):
                raw_id, hello = read_hello(line)
                if self._only_control and not hello.control:
                    raise BadHello(jsonrpc.INVALID_PARAMS, "this socket has control connections only", raw_id)
                access = self._authorizer.authenticate(client, hello.token)
                if self._only_tap:
                    accepted = self._accept_tap(connection, access, raw_id, hello)
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
            count = {} if accepted.received is None else {"received": accepted.received}
            await lines.send(jsonrpc.result(raw_id, {"connectionId": accepted.connection_id} | count))
            return lines, accepted
        lines.send_nowait([refusal])
        await lines.aclose()
        return None

    def _accept_tap(self, connection: PendingConnection, access: Access, raw_id: RawId, hello: Hello) -> Accepted:
        """Grant a reader of the file tap its connection. Raises `AccessError` and `BadHello`."""
        if hello.control or hello.resume is not None:
            text = "this address serves the file tap, which has neither control connections nor links that resume"
            raise BadHello(jsonrpc.INVALID_PARAMS, text, raw_id)
        tap = FileTap(self._gateway, access, hello.connect_request, connection.name, self._file_events)
        self._authorizer.accept(connection, access)
        return Accepted(connection.connection_id, None, Serving(tap.serve))
