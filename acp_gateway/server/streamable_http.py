"""ACP over Streamable HTTP: the requests of the endpoint that ask for no WebSocket.

- `POST` sends one message. `initialize` opens a link, and its response is the body; every other message is answered by
  202 at once.
- `GET` opens an event stream: the connection's, or that of the session in `Acp-Session-Id`.
- `DELETE` ends the link.

`Acp-Connection-Id` names the link in all other requests than the first. Each request shows its token. SDKs differ in
what they send; what is accepted is what all of them send, and nothing that has two meanings.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, unquote

import trio

from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.protocol import jsonrpc, lookup, methods
from acp_gateway.protocol.event_streams import EventsGone, EventStream, StreamTaken
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message
from acp_gateway.server.hello import SESSION_ID_SIZE, BadRequest, media_types, read_query
from acp_gateway.server.http_link import HttpLink, HttpLinks
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.http_server import RETRY, HttpConnection, Request, Response
from acp_gateway.transports.websocket import CONNECTION_ID

SESSION_ID: Final = "Acp-Session-Id"
LAST_EVENT_ID: Final = "Last-Event-ID"

INITIALIZE_SIZE: Final = 65536
"""Maximum bytes of an `initialize`: it opens a link, so that no link has counted its bytes yet."""

ROOM_TIMEOUT: Final = 5.0
"""Seconds for which a message waits for an agent that reads slowly, before it is refused."""

MAX_POSTS: Final = 16
"""Maximum POST requests of one link that are being received. The SDKs' clients send one after the other."""

COMMENT_INTERVAL: Final = 15.0
"""Seconds without an event after which a comment keeps the connection alive: proxies give up after 30 to 60."""

EVENT_CHUNK: Final = 65536
"""Maximum bytes of events that are written together."""

_SESSION_SCOPED: Final = frozenset(
    {
        methods.PROMPT,
        methods.SET_MODE,
        methods.SET_MODEL,
        methods.SET_CONFIG_OPTION,
        methods.SESSION_CANCEL,
        methods.LOAD,
        methods.RESUME,
        methods.FORK,
        methods.CLOSE,
        methods.DELETE,
    }
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is authenticated and takes its time: it runs outside of the limits for handshakes.

    `run` writes the response and returns whether another request may follow on the connection.
    """

    access: Access
    run: Callable[[HttpConnection], Awaitable[bool]]
    prepare: Callable[[HttpConnection], Awaitable[Response | None]] | None = None
    """Receives what it needs before the connection leaves those limits, or returns a refusal. None unless the request
    opens a link."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of its response."""


class StreamableHttp:
    """Answers the requests of one listener's endpoint.

    Args:
        links: the open links, of all listeners.
    """

    def __init__(self, gateway: Gateway, links: HttpLinks) -> None:
        self._gateway = gateway
        self._links = links
        self._max_streams = gateway.config.limits.max_event_streams

    def answer(self, connection: PendingConnection, access: Access, request: Request) -> Response | Exchange:
        """Decide a request whose token is right. Raises `AccessError` and `BadRequest`."""
        link_id = _single(request, CONNECTION_ID)
        session = _session_header(request)
        if request.method == "POST" and not _is_json(request):
            return Response.of_text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a message is sent as application/json")
        if request.method == "GET" and not _accepts_events(request):
            return Response.of_text(HTTPStatus.NOT_ACCEPTABLE, "a stream is sent as text/event-stream: accept that")
        if link_id is None:
            if request.method != "POST":
                return Response.of_text(HTTPStatus.BAD_REQUEST, f"the header {CONNECTION_ID} is missing")
            connect_request = read_query(request.query)
            if connect_request.control:
                raise BadRequest("control connections are WebSockets or lines")
            admit = partial(self._gateway.admit, access, connect_request)
            # Now for a refusal without its body, and again when that is there.
            admit()
            begin = _Begin(self._links, admit, connection)
            return Exchange(access, begin.run, begin.prepare)
        link = self._links.find(link_id, access)
        if link is None:
            self._gateway.check_ended(access, link_id)
            text = f"this {CONNECTION_ID} is not known here; begin with initialize"
            return Response.of_text(HTTPStatus.NOT_FOUND, text)
        if request.method == "DELETE":
            self._links.end(link)
            return Response(HTTPStatus.ACCEPTED)
        link.resume(access)
        if request.method == "POST":
            if link.posting >= MAX_POSTS:
                return Response.of_text(HTTPStatus.TOO_MANY_REQUESTS, "too many POST requests at once", RETRY)
            return Exchange(access, _Post(link, access, session).run)
        reader = _Reader(link, session, _single(request, LAST_EVENT_ID), self._max_streams)
        return Exchange(access, reader.run)


class _Begin:
    """An `initialize` that opens a link."""

    def __init__(self, links: HttpLinks, admit: Callable[[], Grant], connection: PendingConnection) -> None:
        self._links = links
        self._admit = admit
        self._id = connection.connection_id
        self._name = connection.name
        self._prepared: tuple[Message, Grant] | None = None

    async def prepare(self, http: HttpConnection) -> Response | None:
        """Receive the message, and be admitted; return a refusal of what is no `initialize`. Raises `AccessError`."""
        try:
            message = _parse(await http.receive_body(INITIALIZE_SIZE))
            if message.method != methods.INITIALIZE or message.kind is not Kind.REQUEST:
                raise _Refused(HTTPStatus.BAD_REQUEST, f"the header {CONNECTION_ID} is missing")
            if message.id == jsonrpc.NO_ID:
                raise _Refused(HTTPStatus.BAD_REQUEST, "initialize needs an id other than null")
        except _Refused as refused:
            return refused.response
        self._prepared = message, self._admit()
        return None

    async def run(self, http: HttpConnection) -> bool:
        assert self._prepared is not None
        message, grant = self._prepared
        link = self._links.begin(grant, self._id, self._name)
        link.streams.note_request(message)
        link.post(message.text)
        try:
            return await self._answer(http, link)
        except BaseException:
            # No client knows its id.
            self._links.end(link)
            raise

    async def _answer(self, http: HttpConnection, link: HttpLink) -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_left, http, nursery.cancel_scope)
            while link.streams.initialized is None and not link.ended:
                await link.changed.wait()
            nursery.cancel_scope.cancel()
        answer = link.streams.initialized
        if answer is None:
            # The client has left, or the agent could not be started and the link has said nothing.
            self._links.end(link)
            return await http.respond(Response.of_text(HTTPStatus.SERVICE_UNAVAILABLE, "the agent has ended", RETRY))
        headers = {"Content-Type": "application/json"}
        if jsonrpc.parse(answer).error:
            self._links.end(link)
        else:
            headers[CONNECTION_ID] = link.id
        return await http.respond(Response(HTTPStatus.OK, answer, headers))


class _Post:
    """A message for an open link."""

    def __init__(self, link: HttpLink, access: Access, session: str | None) -> None:
        self._link = link
        self._access = access
        self._session = session

    async def run(self, http: HttpConnection) -> bool:
        link = self._link
        with link.receiving() as received:
            try:
                body = await http.receive_body(link.max_message_size, received, link.message_timeout)
                message = self._read(body)
                async with link.turn:
                    await self._hand_over(message)
            except _Refused as refused:
                await link.pay(frames=1)
                return await http.respond(refused.response)
        return await http.respond(Response(HTTPStatus.ACCEPTED))

    def _read(self, body: bytes) -> Message:
        """Return the message of a body. Raises `_Refused` for one that the link can't take."""
        message = _parse(body)
        if message.kind is Kind.NOTIFICATION and message.method.startswith(methods.RESERVED_PREFIX):
            # It would be taken for a message of the link, which is not counted.
            raise _Refused(HTTPStatus.BAD_REQUEST, f"methods that begin with {methods.RESERVED_PREFIX} are reserved")
        if message.method == methods.INITIALIZE:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"initialize opens a connection: send it without {CONNECTION_ID}")
        if message.kind is Kind.RESPONSE or message.method.startswith("$/"):
            return message
        if message.session is not None:
            if self._session is not None and message.session not in (self._session, unquote(self._session)):
                raise _Refused(HTTPStatus.BAD_REQUEST, f"{SESSION_ID} and params.sessionId name different sessions")
        elif message.method in _SESSION_SCOPED:
            if self._session is None:
                text = f"{message.method} needs a session: params.sessionId or the header {SESSION_ID}"
                raise _Refused(HTTPStatus.BAD_REQUEST, text)
            session = self._link.streams.known_name(self._session)
            return _parse(_with_session(message, jsonrpc.encode(session)))
        return message

    async def _hand_over(self, message: Message) -> None:
        """Pass a message to the link as soon as it has room. Raises `_Refused`."""
        link = self._link
        if not link.has_room:
            with trio.move_on_after(ROOM_TIMEOUT):
                await link.wait_for_room()
        if link.ended:
            raise _Refused(HTTPStatus.NOT_FOUND, "this connection has ended; begin with initialize")
        try:
            # It may have gone away while the request was received.
            link.resume(self._access)
        except AccessError as error:
            raise _Refused(error.http_status, str(error)) from None
        if not link.has_room:
            text = "the agent has not read earlier messages yet; send this one again later"
            raise _Refused(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY)
        if message.kind is Kind.REQUEST:
            if link.streams.is_repeated(message):
                # Its first POST was cut before the response: the request itself is open.
                return
            link.streams.note_request(message)
        link.post(message.text)


class _Reader:
    """A client that reads an event stream."""

    def __init__(self, link: HttpLink, session: str | None, last_event_id: str | None, max_streams: int) -> None:
        self._link = link
        self._max_streams = max_streams
        self._session = link.streams.known_name(session)
        self._last_event_id = last_event_id
        self._scope = trio.CancelScope()

    async def run(self, http: HttpConnection) -> bool:
        link = self._link
        await link.pay(frames=1)
        former = link.streams.reader_of(self._session)
        if former is None and link.streams.readers >= self._max_streams:
            text = f"max_event_streams ({self._max_streams}) are open already on this connection"
            return await http.respond(Response.of_text(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY))
        try:
            stream = link.streams.open(self._session, self._last_event_id, self)
        except StreamTaken:
            text = "this stream is open already, over another request"
            return await http.respond(Response.of_text(HTTPStatus.CONFLICT, text))
        except EventsGone:
            text = f"what follows this {LAST_EVENT_ID} is not kept; begin again with initialize"
            return await http.respond(Response.of_text(HTTPStatus.CONFLICT, text))
        if isinstance(former, _Reader):
            former.give_way()
        link.readers_changed()
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(_cancel_when_left, http, nursery.cancel_scope)
                with suppress(trio.BrokenResourceError):
                    await self._write(http, stream)
                nursery.cancel_scope.cancel()
        finally:
            link.streams.close(stream, self, http.unconfirmed_bytes)
            link.readers_changed()
            link.taken.notify()
        return False

    def give_way(self) -> None:
        """End, because another reader has taken the stream over; at once, even if the client reads nothing."""
        self._scope.cancel()

    async def _write(self, http: HttpConnection, stream: EventStream) -> None:
        headers = {"Content-Type": "text/event-stream", CONNECTION_ID: self._link.id}
        await http.start(
            HTTPStatus.OK, headers | ({} if self._session is None else {SESSION_ID: _quoted(self._session)})
        )
        # At once, so that a proxy passes the head on.
        await http.send(stream.comment())
        while stream.reader is self and not (self._link.ended or self._link.away):
            events = self._link.streams.take(stream, EVENT_CHUNK)
            if events:
                await http.send(events)
                self._link.written()
                continue
            with trio.move_on_after(COMMENT_INTERVAL) as waiting:
                await self._link.changed.wait()
            if waiting.cancelled_caught:
                await http.send(stream.comment())
        if stream.reader is self:
            while events := self._link.streams.take(stream, EVENT_CHUNK):
                await http.send(events)
            await http.end()


class _Refused(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        self.response = Response.of_text(status, text, headers)
        super().__init__(text)


async def _cancel_when_left(http: HttpConnection, scope: trio.CancelScope) -> None:
    await http.wait_left()
    scope.cancel()


def _parse(body: bytes) -> Message:
    """Return the message of a POST. Raises `_Refused`."""
    try:
        return jsonrpc.parse(body)
    except InvalidMessage as error:
        refused = _Refused(HTTPStatus.BAD_REQUEST, str(error))
        if body.lstrip(b" \t\r\n").startswith(b"["):
            error = InvalidMessage(jsonrpc.INVALID_REQUEST, "batches are not accepted: send one message")
            text = jsonrpc.error(jsonrpc.NO_ID, error.code, str(error))
            refused.response = Response(HTTPStatus.BAD_REQUEST, text, {"Content-Type": "application/json"})
        raise refused from None


def _with_session(message: Message, session: bytes) -> bytes:
    """Return a message with the session that its header names in `params`."""
    members = lookup.members_at(message.text)
    params = lookup.members_at(members.get("params", b"{}"))
    return jsonrpc.compose({**members, "params": jsonrpc.compose({"sessionId": session, **params})})


def _session_header(request: Request) -> str | None:
    """Return the session that a request names. Raises `BadRequest`."""
    session = _single(request, SESSION_ID)
    if session is not None and not (
        session.isascii() and session.isprintable() and len(session) <= 3 * SESSION_ID_SIZE
    ):
        raise BadRequest(f"{SESSION_ID} must be visible ASCII; other characters are percent-encoded")
    return session


def _quoted(session: str) -> str:
    """Return a session's id as it stands in a header."""
    return session if session.isascii() and session.isprintable() and "%" not in session else quote(session, safe="")


def _single(request: Request, name: str) -> str | None:
    """Return the value of a header that may be there once. Raises `BadRequest`."""
    values = request.headers.get_all(name)
    if len(values) > 1:
        raise BadRequest(f"there is more than one {name} header")
    return values[0] if values else None


def _is_json(request: Request) -> bool:
    return media_types(request.headers, "Content-Type") == ["application/json"]


def _accepts_events(request: Request) -> bool:
    accepted = media_types(request.headers, "Accept")
    return not {"text/event-stream", "text/*", "*/*"}.isdisjoint(accepted) or accepted == [""]
