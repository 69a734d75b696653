"""The doors: accept connections, find out who is there, and hand a stream of messages to the gateway.

Whoever is at the door has `handshake_timeout` seconds and a bounded number of bytes to show a token, over a WebSocket
in the upgrade's headers, else in a first line:

    {"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello","params":{"token":"acpgw_…","agent":"demo"}}

What it wants there (an agent, a session to join) stands in the upgrade's query, or in the same line; that it wants a
link that can be resumed, or resumes one, in the upgrade's headers or in the same line. A refusal has the same number on
either way: the HTTP status, or the code of the JSON-RPC error. Nothing is started for anybody who has not come in.
"""

import errno
import logging
import os
import re
import secrets
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import parse_qs

import msgspec
import trio
from websockets.datastructures import Headers
from websockets.http11 import Request

from acp_gateway.access import Access, Wish
from acp_gateway.addresses import Address
from acp_gateway.auth import default_identity
from acp_gateway.config import ListenSection
from acp_gateway.errors import (
    AccessError,
    CannotListen,
    Forbidden,
    LinkGone,
    ProtocolError,
    TooFarBehind,
    Unauthorized,
)
from acp_gateway.gateway import Gateway
from acp_gateway.peers import belongs_to_agent, peer_credentials
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message
from acp_gateway.protocol.methods import HELLO
from acp_gateway.tls import server_context
from acp_gateway.transports.base import ByteStream, MessageStream, MessageTooLarge
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import SocketBytes, describe, keep_alive, start_tls, take_socket
from acp_gateway.transports.websocket import CONNECTION_ID, MARK, RESUME, Timing
from acp_gateway.transports.websocket_server import SUBPROTOCOL, Accept, Respond, accept_websocket

log = logging.getLogger(__name__)

ENDPOINT: Final = "/acp"
HEALTH: Final = "/healthz"

HELLO_SIZE: Final = 65536
"""Bytes of a first line at most: one read. A token is 45 characters long."""

SESSION_ID_SIZE: Final = 1024
"""Characters of a session's id at most, as of every id. Agents use a UUID or something like it."""

BEARER_PROTOCOL: Final = "acp.bearer."
"""A subprotocol that is a token: for browsers and other clients that can't send headers."""

CONNECTION_ID_SIZE: Final = 64
"""Characters of a connection's id at most. The gateway's own have 22."""

COUNT_DIGITS: Final = 15
"""Digits of a number of messages at most: what every JSON parser keeps exactly."""

_COUNT: Final = re.compile(f"[0-9]{{1,{COUNT_DIGITS}}}")


class LinkWish(msgspec.Struct, frozen=True, rename="camel"):
    """What somebody wants who asks for a link that can be resumed: a new one, or one that there is."""

    connection_id: Annotated[str, msgspec.Meta(max_length=CONNECTION_ID_SIZE)] | None = None
    """None for a new link."""
    received: Annotated[int, msgspec.Meta(ge=0, lt=10**COUNT_DIGITS)] = 0
    """How many messages have been received over it."""

    def __post_init__(self) -> None:
        if self.connection_id is None and self.received:
            raise ValueError("messages can only have been received over a link that is named")


class Hello(msgspec.Struct):
    """The parameters of `_acp-gateway/hello`."""

    token: str | None = None
    agent: str | None = None
    session: Annotated[str, msgspec.Meta(max_length=SESSION_ID_SIZE)] | None = None
    observe: bool = False
    control: bool = False
    resume: LinkWish | None = None

    def __repr__(self) -> str:
        return f"Hello({self.wish})"

    @property
    def wish(self) -> Wish:
        """What it asks for."""
        return Wish(self.agent, self.session, self.observe, self.control)


@dataclass(frozen=True, slots=True)
class _Visit:
    """A connection that was let in: what it is told, and what is done with it."""

    connection_id: str
    """The link's id, where one is resumed."""
    received: int | None
    """How many messages of the link have been received here; None where it can't be resumed."""
    serve: Callable[[MessageStream, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Admitted:
    stream: MessageStream
    visit: _Visit


async def open_door(section: ListenSection, gateway: Gateway) -> "Door":
    """Listen at one address of the configuration.

    Raises `CannotListen` where the system refuses that, `ConfigError` where the certificate can't be used.
    """
    address = section.address
    context = None
    if address.tls:
        assert section.cert is not None
        assert section.key is not None
        context = server_context(section.cert, section.key)
    return Door(section, gateway, context, await _open_listeners(address))


class Door:
    """An address that is listened at, and what happens to whoever comes to it. Made by `open_door`."""

    def __init__(
        self,
        section: ListenSection,
        gateway: Gateway,
        context: ssl.SSLContext | None,
        listeners: list[trio.SocketListener],
    ) -> None:
        self._section = section
        self._address = section.address
        self._gateway = gateway
        self._settings = gateway.config.gateway
        self._context = context
        self._listeners = listeners
        self._closed = False
        self.urls = [_url(self._address, listener) for listener in listeners]
        """Where it really listens, the port that the system chose included."""

    async def run(self, connections: trio.Nursery) -> None:
        """Accept clients until cancelled, and serve each in `connections`; closes the door."""
        for url in self.urls:
            log.info("listening on %s", url)
        try:
            await trio.serve_listeners(self.serve, self._listeners, handler_nursery=connections)
        finally:
            self.close()

    def close(self) -> None:
        """Listen no more. May be repeated: a socket's file is removed once, as the next gateway may have its own."""
        if self._closed:
            return
        self._closed = True
        for listener in self._listeners:
            listener.socket.close()
        if self._address.scheme == "unix":
            try:
                Path(self._address.path).unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot remove %s: %s", self._address.path, error.strerror)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one client from its first byte to its last; whatever goes wrong ends here."""
        connection_id = secrets.token_urlsafe(16)
        name = connection_id[:8]
        sock = take_socket(stream)
        try:
            peer = self._peer_name(sock)
            name = f"{name} ({peer})"
            if self._address.scheme != "unix":
                keep_alive(sock, self._settings.ping_interval, self._settings.ping_timeout)
            admitted = None
            with trio.move_on_after(self._settings.handshake_timeout) as handshake:
                admitted = await self._admit(sock, connection_id, name)
            if handshake.cancelled_caught:
                log.info("%s: nobody came in within handshake_timeout", name)
            if admitted is not None:
                name = f"{admitted.visit.connection_id[:8]} ({peer})"
                await admitted.visit.serve(admitted.stream, name)
        except* Exception:
            # A bug ends the connection it shows in and no other, also while the gateway stops.
            log.exception("%s: closed by an error of the gateway's own", name)
        finally:
            sock.close()

    async def _admit(self, sock: socket.socket, connection_id: str, name: str) -> _Admitted | None:
        """Do TLS and authentication. None where the peer was refused, or gave up; the connection is closed then.

        Cancelled, it closes the connection.
        """
        try:
            stream = (
                SocketBytes(sock) if self._context is None else await start_tls(sock, self._context, server_side=True)
            )
        except OSError as error:
            log.info("%s: no TLS handshake: %s", name, describe(error))
            return None
        try:
            if self._address.websocket:
                admitted = await self._admit_websocket(stream, connection_id, name)
            else:
                admitted = await self._admit_lines(stream, sock, connection_id, name)
        except trio.BrokenResourceError as error:
            log.info("%s: left at the door: %s", name, error)
            admitted = None
        except BaseException:
            await stream.aclose()
            raise
        if admitted is None:
            await stream.aclose()
        return admitted

    def _let_in(self, access: Access, wish: Wish, link: LinkWish | None, connection_id: str) -> _Visit:
        """Let somebody in, over a link that they resume or for a wish. Raises `AccessError`."""
        gateway = self._gateway
        if link is not None and link.connection_id is not None:
            resumption = gateway.resume(access, link.connection_id, link.received)
            return _Visit(
                link.connection_id,
                resumption.received,
                lambda stream, name: gateway.serve_resumed(stream, resumption, name),
            )
        admission = gateway.admit(access, wish)
        if link is None:
            return _Visit(connection_id, None, lambda stream, name: gateway.serve(stream, admission, name))
        return _Visit(connection_id, 0, lambda stream, name: gateway.serve(stream, admission, name, connection_id))

    # WebSocket

    async def _admit_websocket(self, stream: ByteStream, connection_id: str, name: str) -> _Admitted | None:
        visits: list[_Visit] = []

        def decide(request: Request) -> Accept | Respond:
            path, _, query = request.path.partition("?")
            if path == HEALTH and request.method == "GET":
                return Respond(200, "ok")
            if path != ENDPOINT:
                return Respond(404, f"there is nothing here; the endpoint is {ENDPOINT}")
            origin = request.headers.get_all("Origin")
            if origin and (len(origin) > 1 or origin[0] not in self._section.allowed_origins):
                log.warning("%s: refused: its Origin is not in allowed_origins", name)
                return Respond(403, "this Origin is not allowed to connect")
            try:
                access = Access.of(self._gateway.tokens.authenticate(_bearer(request)))
                link = None if _asks_gateway_itself(query) else _read_link(request.headers)
                # What a link is for was said when it was opened.
                resumes = link is not None and link.connection_id is not None
                visit = self._let_in(access, Wish() if resumes else _read_query(query), link, connection_id)
            except AccessError as error:
                _log_refusal(name, error)
                # By the first header a client tells the gateway's own refusal from that of a proxy on the way.
                headers = {MARK: error.reason}
                if isinstance(error, Unauthorized):
                    headers["WWW-Authenticate"] = "Bearer"
                return Respond(error.http_status, str(error), headers)
            except _BadRequest as error:
                return Respond(400, str(error), {MARK: ProtocolError.reason})
            visits.append(visit)
            headers = {CONNECTION_ID: visit.connection_id}
            if visit.received is not None:
                headers[RESUME] = str(visit.received)
            return Accept(headers)

        timing = Timing(
            ping_interval=self._settings.ping_interval,
            ping_timeout=self._settings.ping_timeout,
            stall_timeout=self._settings.stall_timeout,
        )
        websocket = await accept_websocket(
            stream, decide, max_message_size=self._settings.max_message_size, timing=timing
        )
        if websocket is None:
            return None
        (visit,) = visits
        return _Admitted(websocket, visit)

    # Lines

    async def _admit_lines(
        self, stream: ByteStream, sock: socket.socket, connection_id: str, name: str
    ) -> _Admitted | None:
        lines = LineStream(
            stream,
            max_message_size=HELLO_SIZE,
            size_setting="the first line of a connection",
            stall_timeout=self._settings.stall_timeout,
        )
        raw_id = jsonrpc.NO_ID
        try:
            message = jsonrpc.parse(await lines.receive())
            raw_id = message.id
            hello = _read_hello(message)
            access = self._peer_access(sock) if hello.token is None else None
            if access is None:
                access = Access.of(self._gateway.tokens.authenticate(hello.token))
            visit = self._let_in(access, hello.wish, None if hello.control else hello.resume, connection_id)
        except trio.EndOfChannel:
            return None
        except MessageTooLarge as error:
            refusal = jsonrpc.error(raw_id, jsonrpc.INVALID_REQUEST, str(error))
            log.warning("%s: refused: %s", name, error)
        except InvalidMessage as error:
            refusal = jsonrpc.error(raw_id, error.code, str(error), {"reason": ProtocolError.reason})
            log.warning("%s: refused: %s", name, error)
        except AccessError as error:
            refusal = jsonrpc.error(raw_id, error.http_status, str(error), {"reason": error.reason})
            _log_refusal(name, error)
        else:
            count = {} if visit.received is None else {"received": visit.received}
            await lines.send(jsonrpc.result(raw_id, {"connectionId": visit.connection_id} | count))
            lines.limit(self._settings.max_message_size, "max_message_size")
            return _Admitted(lines, visit)
        lines.send_nowait([refusal])
        await lines.aclose()
        return None

    def _peer_access(self, sock: socket.socket) -> Access | None:
        """Access for the gateway's own user, where the kernel vouches for the peer. An agent is no such peer."""
        if self._address.scheme != "unix" or not self._section.peer_uid:
            return None
        peer = peer_credentials(sock)
        if peer is None or peer.uid != os.geteuid():
            return None
        # The gateway itself may: it is no agent, though all agents descend from it.
        if peer.pid != os.getpid() and belongs_to_agent(peer.pid, self._gateway.agent_ancestors):
            raise Forbidden("an agent can't let itself in: a token is needed here")
        return Access(default_identity(self._settings.state_dir), None)

    def _peer_name(self, sock: socket.socket) -> str:
        if self._address.scheme == "unix":
            return "unix"
        try:
            host, port = sock.getpeername()[:2]
        except OSError:
            return "gone already"
        return f"{host}:{port}"


class _BadRequest(Exception):
    """A request that can be understood in more than one way, or in none."""


def _log_refusal(name: str, error: AccessError) -> None:
    # A laptop that has slept for too long is no attack.
    level = logging.INFO if isinstance(error, TooFarBehind | LinkGone) else logging.WARNING
    log.log(level, "%s: refused: %s", name, error)


def _bearer(request: Request) -> str | None:
    """The token of an upgrade: in its Authorization header, else among the subprotocols."""
    authorization = request.headers.get_all("Authorization")
    if len(authorization) > 1:
        raise _BadRequest("there is more than one Authorization header")
    if authorization:
        scheme, _, token = authorization[0].partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None
    offered = [word.strip() for value in request.headers.get_all("Sec-WebSocket-Protocol") for word in value.split(",")]
    tokens = [word.removeprefix(BEARER_PROTOCOL) for word in offered if word.startswith(BEARER_PROTOCOL)]
    if len(tokens) > 1:
        raise _BadRequest("there is more than one token among the subprotocols")
    return tokens[0] if tokens and SUBPROTOCOL in offered else None


def _read_query(query: str) -> Wish:
    """What an upgrade asks for. Parameters that are not known are nobody's business here."""
    parameters = parse_qs(query, keep_blank_values=True)

    def single(name: str) -> str | None:
        values = parameters.get(name, [])
        if len(values) > 1:
            raise _BadRequest(f"the query names more than one {name}")
        return values[0] if values else None

    def flag(name: str) -> bool:
        value = single(name)
        if value not in (None, "1"):
            raise _BadRequest(f"the query may have {name}=1 and no other {name}")
        return value is not None

    wish = Wish(single("agent"), single("session"), flag("observe"), flag("control"))
    if wish.session is not None and len(wish.session) > SESSION_ID_SIZE:
        raise _BadRequest(f"the session's id is longer than {SESSION_ID_SIZE} characters")
    return wish


def _asks_gateway_itself(query: str) -> bool:
    """Whether an upgrade is for a control connection; these have no link that could be resumed."""
    return parse_qs(query).get("control") == ["1"]


def _read_link(headers: Headers) -> LinkWish | None:
    """The link that an upgrade asks for; None where it is content with one that can't be resumed."""
    counts, ids = headers.get_all(RESUME), headers.get_all(CONNECTION_ID)
    if not counts:
        return None
    if len(counts) > 1 or len(ids) > 1:
        raise _BadRequest(f"there is more than one {RESUME} or {CONNECTION_ID} header")
    if not _COUNT.fullmatch(counts[0]):
        raise _BadRequest(f"{RESUME} must be a number of at most {COUNT_DIGITS} digits")
    received = int(counts[0])
    if not ids:
        if received:
            raise _BadRequest(f"{RESUME} without {CONNECTION_ID} must be 0")
        return LinkWish()
    if len(ids[0]) > CONNECTION_ID_SIZE or not ids[0].isascii():
        raise _BadRequest(f"{CONNECTION_ID} must be at most {CONNECTION_ID_SIZE} characters of ASCII")
    return LinkWish(ids[0], received)


def _read_hello(message: Message) -> Hello:
    """The parameters of a hello. Raises `InvalidMessage`."""
    if message.kind is not Kind.REQUEST or message.method != HELLO:
        raise InvalidMessage(jsonrpc.INVALID_REQUEST, f"the first line must be a request {HELLO} with a token")
    if jsonrpc.repeated_member(message.text) is not None:
        raise InvalidMessage(jsonrpc.INVALID_REQUEST, "a member is there twice")
    try:
        return msgspec.json.decode(jsonrpc.raw_at(message.text, "params") or b"{}", type=Hello)
    except msgspec.DecodeError as error:
        raise InvalidMessage(jsonrpc.INVALID_PARAMS, f"the hello is not understood: {error}") from None


async def _open_listeners(address: Address) -> list[trio.SocketListener]:
    try:
        if address.scheme == "unix":
            return [_open_unix_listener(address.path)]
        return await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else str(error)
        hint = "; is another acp-gateway running?" if error.errno == errno.EADDRINUSE else ""
        raise CannotListen(f"cannot listen on {address}: {why}{hint}") from error


def _open_unix_listener(path: str) -> trio.SocketListener:
    """A socket that only its owner can open, in place of one that a gateway left behind when it was killed."""
    if os.path.exists(path):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(f"{path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            # One with a full backlog is busy, and not to be waited for.
            probe.setblocking(False)
            refused = probe.connect_ex(path)
        if refused == errno.ECONNREFUSED:
            os.unlink(path)
        elif refused in (0, errno.EAGAIN):
            raise OSError(f"another gateway is listening at {path}")
        else:
            raise OSError(refused, os.strerror(refused))
    sock = socket.socket(socket.AF_UNIX)
    # The mode is set at birth: a moment with a wider one would be a moment to come in.
    before = os.umask(0o177)
    try:
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(128)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _url(address: Address, listener: trio.SocketListener) -> str:
    if address.scheme == "unix":
        return str(address)
    host, port = listener.socket.getsockname()[:2]
    return str(replace(address, host=host, port=port))
