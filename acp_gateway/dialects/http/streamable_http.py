"""ACP over Streamable HTTP: the requests of the endpoint that ask for no WebSocket.

- `POST` sends one message. `initialize` opens a link, and its response is the body; every other message is answered by
  202 at once.
- `GET` opens an event stream: the connection's, or that of the session in `Acp-Session-Id`.
- `DELETE` ends the link.

`Acp-Connection-Id` names the link in all other requests than the first. Each request shows its token. SDKs differ in
what they send; what is accepted is what all of them send, and nothing that has two meanings.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, unquote

import trio

from acp_gateway.dialects.http.link import HttpLink, HttpLinks, Refused, StreamReader
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.large_messages import parse_message
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.event_parser import EVENTS, LAST_EVENT_ID, SESSION_ID
from acp_gateway.protocol.event_streams import EventsGone, EventStream, StreamTaken
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.large_messages import LARGE, Parsed
from acp_gateway.protocol.text.strict_parsing import parse_strictly
from acp_gateway.server.authentication import Client
from acp_gateway.server.hello import SESSION_ID_SIZE, BadRequest, read_connect_request
from acp_gateway.server.http.route import Exchange
from acp_gateway.server.pending import PendingConnection
from acp_gateway.transports.http.head import media_types
from acp_gateway.transports.http.server import RETRY, HttpConnection, Request, Response
from acp_gateway.transports.websocket.stream import CONNECTION_ID

COMMENT_INTERVAL: Final = 15.0
"""Seconds without an event after which a comment keeps the connection alive: proxies give up after 30 to 60."""

CONFIRM_TIMEOUT: Final = 3.0
"""Seconds within which the reader of a stream has to confirm a byte where another request asks for the stream. A system
that is there confirms within a round trip, and after a lost packet within another second."""

CONFIRM_INTERVAL: Final = 0.05
"""Seconds between two looks at what was confirmed, which no event tells."""

MAX_ASKING: Final = 4
"""Maximum requests for one stream that wait for that: a client sends one, and another if its network fails again."""

EVENT_CHUNK: Final = 65536
"""Maximum bytes of events that are written together."""


class Reader(StreamReader):
    """A client that reads an event stream."""

    def __init__(
        self, link: HttpLink, access: Access, session: str | None, last_event_id: str | None, max_streams: int
    ) -> None:
        self._link = link
        self._access = access
        self._max_streams = max_streams
        self._session = link.streams.known_name(session)
        self._last_event_id = last_event_id
        self._scope = trio.CancelScope()
        self._asked = False
        self._reading: tuple[HttpConnection, EventStream] | None = None
        # True while the task has nothing to write, so that events are written without it.
        self._is_idle = False
        # What the client did not take of them, and the loss that was found.
        self._rest = memoryview(b"")
        self._lost = False
        self._sent_at = 0.0

    async def run(self, http: HttpConnection) -> bool:
        link = self._link
        await link.pay(frames=1)
        try:
            if self._last_event_id is None and link.streams.reader_of(self._session) is not None:
                await self._ask_former(http)
            stream = self._open()
        except Refused as refused:
            return await http.respond(refused.response)
        self._reading = http, stream
        link.readers_changed()
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(partial(http.cancel_when_left, nursery.cancel_scope, last=True))
                with suppress(trio.BrokenResourceError):
                    await self._write(http, stream)
                nursery.cancel_scope.cancel()
        finally:
            self._close()
            link.readers_changed()
            link.taken.notify()
        return False

    def _open(self) -> EventStream:
        """Become the reader of the stream. Raises `Refused`."""
        streams = self._link.streams
        former = streams.reader_of(self._session)
        if former is None and streams.readers >= self._max_streams:
            text = f"max_event_streams ({self._max_streams}) are open already on this connection"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY)
        try:
            stream = streams.open(self._session, self._last_event_id, self)
        except StreamTaken:
            raise Refused(HTTPStatus.CONFLICT, "this stream is open already, over another request") from None
        except EventsGone:
            text = f"what follows this {LAST_EVENT_ID} is not kept; begin again with initialize"
            raise Refused(HTTPStatus.CONFLICT, text) from None
        if isinstance(former, Reader):
            former.give_way()
        return stream

    async def _ask_former(self, http: HttpConnection) -> None:
        """Have the present reader show that it is there; end it if it does not. Raises `Refused`.

        The gateway learns late that a connection is lost on which nothing is sent: its client comes back before that,
        and must not get 409, which SDKs take for the end of the session. If the newest request always won, two programs
        with one connection id would take the stream from each other.
        """
        link, session = self._link, self._session
        if link.asking[session] >= MAX_ASKING:
            return
        link.asking[session] += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(http.cancel_when_left, nursery.cancel_scope)
                while isinstance(former := link.streams.reader_of(session), Reader):
                    if await former.confirms():
                        break
                    former.give_way()
                nursery.cancel_scope.cancel()
        finally:
            link.asking -= Counter([session])
        link.reconnect(self._access)

    async def confirms(self) -> bool:
        """Send a comment; return whether the client's system confirms a byte within `CONFIRM_TIMEOUT`."""
        assert self._reading is not None
        http, stream = self._reading
        confirmed = http.confirmed_bytes
        self._asked = True
        self._link.changed.notify()
        with trio.move_on_after(CONFIRM_TIMEOUT):
            while stream.reader is self:
                if http.confirmed_bytes > confirmed:
                    return True
                await trio.sleep(CONFIRM_INTERVAL)
        return False

    def give_way(self) -> None:
        """End, because another reader takes the stream over; at once, even if the client reads nothing."""
        self._scope.cancel()
        self._close()

    def _close(self) -> None:
        if self._reading is not None:
            http, stream = self._reading
            self._link.streams.close(stream, self, http.unconfirmed_bytes)

    def write_now(self) -> None:
        # A wake-up of the task takes longer than all the rest.
        if not self._is_idle or self._reading is None:
            return
        http, stream = self._reading
        try:
            self._rest = http.send_nowait(self._link.streams.take(stream, EVENT_CHUNK))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._lost = True
        self._sent_at = trio.current_time()
        self._link.written()
        if self._rest or self._lost or stream.waiting:
            self._is_idle = False
            self._link.changed.notify()

    async def _write(self, http: HttpConnection, stream: EventStream) -> None:
        headers = {"Content-Type": EVENTS, CONNECTION_ID: self._link.id}
        await http.start(
            HTTPStatus.OK, headers | ({} if self._session is None else {SESSION_ID: _quoted(self._session)})
        )
        # At once, so that a proxy passes the head on.
        await http.send(stream.comment())
        self._sent_at = trio.current_time()
        while stream.reader is self and not (self._link.ended or self._link.away):
            if self._lost:
                return
            if self._rest:
                rest, self._rest = self._rest, memoryview(b"")
                await http.send_rest(rest)
            elif events := self._link.streams.take(stream, EVENT_CHUNK):
                await http.send(events)
                self._link.written()
            elif self._asked or trio.current_time() >= self._sent_at + COMMENT_INTERVAL:
                self._asked = False
                await http.send(stream.comment())
            else:
                await self._wait()
                continue
            self._sent_at = trio.current_time()
        if stream.reader is self and not self._lost:
            await http.send_rest(self._rest)
            while events := self._link.streams.take(stream, EVENT_CHUNK):
                await http.send(events)
            await http.end()

    async def _wait(self) -> None:
        """Wait for something else to do than writing events, at most until a comment is due."""
        self._is_idle = True
        try:
            with trio.move_on_at(self._sent_at + COMMENT_INTERVAL):
                await self._link.changed.wait()
        finally:
            self._is_idle = False


def _quoted(session: str) -> str:
    """Return a session's id as it stands in a header."""
    return session if session.isascii() and session.isprintable() and "%" not in session else quote(session, safe="")


INITIALIZE_SIZE: Final = 65536
"""Maximum bytes of an `initialize`: it opens a link, so that no link has counted its bytes yet."""

ROOM_TIMEOUT: Final = 5.0
"""Seconds for which a message waits for an agent that reads slowly, before it is refused."""

MAX_POSTS: Final = 16
"""Maximum POST requests of one link that are being received. The SDKs' clients send one after the other."""

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


class StreamableHttp:
    """Answers the requests of one listener's endpoint.

    Args:
        links: the open links, of all listeners.
    """

    def __init__(self, gateway: Gateway, links: HttpLinks) -> None:
        self._gateway = gateway
        self._links = links
        self._max_streams = gateway.config.limits.max_event_streams

    def answer(self, client: Client, request: Request, access: Access) -> Response | Exchange:
        """Decide a request whose token is right. Raises `AccessError` and `BadRequest`."""
        named = request.once(_read_names)
        if isinstance(named, Response):
            return named
        link_id, session = named
        if link_id is None:
            connect_request = read_connect_request(request)
            if connect_request.control:
                raise BadRequest("control connections are WebSockets or lines")
            admit = partial(self._gateway.admit, access, connect_request)
            # Now for a refusal without its body, and again when that is there.
            admit()
            begin = _Begin(self._links, admit, client.connection)
            return Exchange(access, begin.run, begin.prepare)
        link = self._links.find(link_id, access)
        if link is None:
            self._gateway.check_ended(access, link_id)
            text = f"this {CONNECTION_ID} is not known here; begin with initialize"
            return Response.of_text(HTTPStatus.NOT_FOUND, text)
        # Also to end it: the gateway would keep the link of a client that is away.
        link.resume(access)
        if request.method == "DELETE":
            self._links.end(link)
            return Response(HTTPStatus.ACCEPTED)
        if request.method == "POST":
            if link.posting >= MAX_POSTS:
                return Response.of_text(HTTPStatus.TOO_MANY_REQUESTS, "too many POST requests at once", RETRY)
            return Exchange(access, _Post(link, access, session).run)
        reader = Reader(link, access, session, _single(request, LAST_EVENT_ID), self._max_streams)
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
        """Receive the message, and be admitted; refuse anything but `initialize`. Raises `AccessError`."""
        try:
            message = _parse_small(await http.receive_body(INITIALIZE_SIZE))
            if message.method != methods.INITIALIZE or message.kind is not Kind.REQUEST:
                raise Refused(HTTPStatus.BAD_REQUEST, f"the header {CONNECTION_ID} is missing")
            if message.id == jsonrpc.NO_ID:
                raise Refused(HTTPStatus.BAD_REQUEST, "initialize needs an id other than null")
        except Refused as refused:
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
            with link.receiving():
                return await self._answer(http, link)
        except BaseException:
            # No client knows its id.
            self._links.end(link)
            raise

    async def _answer(self, http: HttpConnection, link: HttpLink) -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(http.cancel_when_left, nursery.cancel_scope)
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
                body = await link.receive_body(http, received)
                message = await self._read_at_cost(body)
                await link.wait_for_room(ROOM_TIMEOUT)
                self._hand_over(message)
            except Refused as refused:
                await link.pay(frames=1)
                return await http.respond(refused.response)
        return await http.respond(Response(HTTPStatus.ACCEPTED))

    async def _read_at_cost(self, body: bytes) -> Message:
        """Return a message as it is passed on, and charge the client for the time that this takes.

        Raises `Refused` and `Flooded`.
        """
        spent: list[float] = []
        try:
            message = await _parse(body, spent)
            session = self._missing_session(message)
            return message if session is None else await _parse(_with_session(message, session), spent)
        finally:
            await self._link.pay(seconds=sum(spent))

    def _missing_session(self, message: Message) -> str | None:
        """Return the session that the header names and the message needs; None if it needs none.

        Raises `Refused` for a message that the link can't take.
        """
        if message.kind is Kind.NOTIFICATION and message.method.startswith(methods.RESERVED_PREFIX):
            # It would be taken for a message of the link, which is not counted.
            raise Refused(HTTPStatus.BAD_REQUEST, f"methods that begin with {methods.RESERVED_PREFIX} are reserved")
        if message.method == methods.INITIALIZE:
            raise Refused(HTTPStatus.BAD_REQUEST, f"initialize opens a connection: send it without {CONNECTION_ID}")
        if message.kind is Kind.RESPONSE or message.method.startswith("$/"):
            return None
        if message.session is not None:
            if self._session is not None and message.session not in (self._session, unquote(self._session)):
                raise Refused(HTTPStatus.BAD_REQUEST, f"{SESSION_ID} and params.sessionId name different sessions")
        elif message.method in _SESSION_SCOPED:
            if self._session is None:
                text = f"{message.method} needs a session: params.sessionId or the header {SESSION_ID}"
                raise Refused(HTTPStatus.BAD_REQUEST, text)
            return self._link.streams.known_name(self._session)
        return None

    def _hand_over(self, message: Message) -> None:
        """Pass a message to the link if it has room. Raises `Refused`."""
        link = self._link
        link.reconnect(self._access)
        if not link.has_room:
            text = "the agent has not read earlier messages yet; send this one again later"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY)
        if message.kind is Kind.REQUEST:
            if link.streams.is_repeated(message):
                # Its first POST was cut before the response: the request itself is open.
                return
            link.streams.note_request(message)
        link.post(message.text)


async def _parse(body: bytes, spent: list[float]) -> Message:
    """Return the message of a POST, and add the seconds that this has taken on the event loop. Raises `Refused`."""
    if len(body) > LARGE:
        return _checked(await parse_message(body, spent.append), body)
    began = time.perf_counter()
    try:
        return _parse_small(body)
    finally:
        spent.append(time.perf_counter() - began)


def _parse_small(body: bytes) -> Message:
    """Return the message of a POST. Raises `Refused`."""
    try:
        return _checked(Parsed(*parse_strictly(body)), body)
    except InvalidMessage as error:
        raise _refusal(error, body) from None


def _checked(parsed: Parsed | InvalidMessage, body: bytes) -> Message:
    """Return the message; raise `Refused` for one that would not be answered under its id."""
    if isinstance(parsed, InvalidMessage):
        raise _refusal(parsed, body)
    if parsed.repeated is not None:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the member {parsed.repeated!r:.80} is repeated")
    if len(parsed.message.id) > jsonrpc.ID_SIZE:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the id has more than {jsonrpc.ID_SIZE} bytes")
    return parsed.message


def _refusal(error: InvalidMessage, body: bytes) -> Refused:
    refused = Refused(HTTPStatus.BAD_REQUEST, str(error))
    at = spans.skip_space(body, 0)
    if body[at : at + 1] == b"[":
        error = InvalidMessage(jsonrpc.INVALID_REQUEST, "batches are not accepted: send one message")
        text = jsonrpc.error(jsonrpc.NO_ID, error.code, str(error))
        refused.response = Response(HTTPStatus.NOT_IMPLEMENTED, text, {"Content-Type": "application/json"})
    return refused


def _with_session(message: Message, session: str) -> bytes:
    """Return a message with the session that its header names in `params`. Raises `Refused`."""
    text, member = message.text, b'"sessionId":' + jsonrpc.encode(session)
    at = spans.find(text, "params")
    if at is None:
        # Behind the brace: it has a method.
        start = text.index(b"{") + 1
        return spans.splice(text, [(start, start, b'"params":{%b},' % member)])
    start, end = at
    if text[start : start + 1] != b"{":
        raise Refused(HTTPStatus.BAD_REQUEST, "params must be an object")
    comma = b"" if text[start + 1 : end - 1].isspace() or end - start == 2 else b","
    return spans.splice(text, [(start + 1, start + 1, member + comma)])


def _read_names(request: Request) -> Response | tuple[str | None, str | None]:
    """Return the link and the session that a request names, or the refusal of its form. Raises `BadRequest`."""
    link_id, session = _single(request, CONNECTION_ID), _session_header(request)
    if request.method == "POST" and not _is_json(request):
        return Response.of_text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a message is sent as application/json")
    if request.method == "GET" and not _accepts_events(request):
        return Response.of_text(HTTPStatus.NOT_ACCEPTABLE, "a stream is sent as text/event-stream: accept that")
    if link_id is None and request.method != "POST":
        return Response.of_text(HTTPStatus.BAD_REQUEST, f"the header {CONNECTION_ID} is missing")
    return link_id, session


def _session_header(request: Request) -> str | None:
    """Return the session that a request names. Raises `BadRequest`."""
    session = _single(request, SESSION_ID)
    if session is not None and not (
        session.isascii() and session.isprintable() and len(session) <= 3 * SESSION_ID_SIZE
    ):
        raise BadRequest(f"{SESSION_ID} must be visible ASCII; other characters are percent-encoded")
    return session


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
