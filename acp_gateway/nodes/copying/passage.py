"""The passage of one request to a node, and of its response.

Neither is read, but for the ends of events, see `events`. Each hop has its own framing of HTTP. Behind the response
that opens a WebSocket, bytes are copied: link, counts, pings and close codes are between the client and the node.
"""

import random
import secrets
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

import trio
from websockets.frames import CloseCode

from acp_gateway.client.uplink import BACKOFF_MAX, backoff
from acp_gateway.config.nodes import SEPARATOR
from acp_gateway.errors import Busy, GatewayError, ProtocolError, Unauthorized
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.connections import ROTATED
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.rate_limits import RateLimiter
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.nodes.copying.events import StreamsInUse, WholeEvents, next_part
from acp_gateway.nodes.copying.heads import HARMLESS, request_fields, response_fields
from acp_gateway.nodes.copying.pipe import ToClient, pipe
from acp_gateway.nodes.reaching import ATTEMPT_TIMEOUT, Reach, Reached, node_away, said_to_node, until_there
from acp_gateway.protocol.event_parser import COMMENT, EVENTS, LAST_EVENT_ID, SESSION_ID
from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.client import SWITCHING, HttpClientConnection
from acp_gateway.transports.http.client import Request as NodeRequest
from acp_gateway.transports.http.server import RETRY, HttpConnection, Request, Response, switching_head
from acp_gateway.transports.streams import ByteStream, send_all
from acp_gateway.transports.websocket.frames import close_frame
from acp_gateway.transports.websocket.stream import CONNECTION_ID, REFUSAL_HEADER, RESUME

SILENCE: Final = 30.0
"""Seconds without a response after which a node is asked whether it answers at all: an agent may work for hours."""

ANSWER_TIMEOUT: Final = 10.0
"""Seconds for the answer to a request for an event stream: a node may wait three for the former reader."""

WHOLE_SIZE: Final = 65536
"""Bytes up to which a response of a known size is passed on as a whole; other ones are passed on in parts."""

_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

_WEBSOCKET: Final = {"Connection": "Upgrade", "Upgrade": "websocket"}


@dataclass(frozen=True, slots=True)
class Errand:
    """A request for a node that was let in."""

    node: str
    path: str
    """Its path there, as at a gateway without a proxy in front."""
    access: Access
    request: Request
    websocket: bool
    """True if it asks for a WebSocket."""
    claim: str
    """The claim for the client, as the header's value."""
    link_id: str | None = None
    """Id of its link at the node, if the client names it otherwise."""
    names_links: bool = False
    """True if ids of links begin with the node for the client."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """A node that has answered."""

    reached: Reached
    connection: HttpClientConnection
    status: int
    headers: dict[str, str]
    """Those that pass."""
    size: int | None
    """Bytes of the body; None if only its end will tell."""


class Passage:
    """Passes one request on.

    Args:
        gateway: this gateway, in which the connection counts.
        reach: opens connections to nodes.
        errand: the request.
        streams: the event streams that are passed on.
    """

    def __init__(self, gateway: Gateway, reach: Reach, errand: Errand, streams: StreamsInUse) -> None:
        self._gateway = gateway
        self._reach = reach
        self._errand = errand
        self._streams = streams
        # Headers that replace those of the client.
        self._own = {} if errand.link_id is None else {CONNECTION_ID: errand.link_id}
        self._reached: Reached | None = None
        """The connection to the node, once it was opened."""
        self._sent: ToClient | None = None
        """The frames that the client was sent, once it has a WebSocket without a link that resumes."""
        self._is_asked = False
        """True once the node may have got the request."""

    async def run(self, http: HttpConnection) -> bool:
        """Pass the request and its response on, and return whether another one may follow.

        It ends when the credential is not valid any more. Raises `HttpError`, `Flooded`, and what the client's stream
        raises. Cancelling it closes the connection to the node.
        """
        gateway, access = self._gateway, self._errand.access
        connection = ControlConnection(access)
        gateway.services.inputs.add(connection)
        try:
            with connection.scope, gateway.connections.watched(connection):
                return await self._pass_on(http, connection)
        finally:
            gateway.services.inputs.discard(connection)
            if self._reached is not None:
                await self._reached.stream.aclose()
        await self._say_why(http.stream, connection.disconnect)
        return False

    async def _say_why(self, client: ByteStream, disconnect: Disconnect) -> None:
        """Close a WebSocket with the reason why its credential is not valid any more, unless a frame is cut off.

        Otherwise its client is cut off. One with a link that resumes asks for it again, and is told in the answer; with
        a new token, the link is there still.
        """
        if self._sent is None or not self._sent.at_end:
            return
        if disconnect.reason == Unauthorized.reason and disconnect is not ROTATED:
            with trio.move_on_after(CLOSE_TIMEOUT), suppress(*_LOST):
                await send_all(client, close_frame(CloseCode.POLICY_VIOLATION, disconnect.text))
                await client.finish()

    async def _pass_on(self, http: HttpConnection, connection: ControlConnection) -> bool:
        limiter = self._gateway.connections.limiter_of(self._errand.access)
        body = await self._receive_body(http, connection, limiter)
        answered: _Answered | Response | None = None
        async with http.while_there(ProtocolError):
            answered = await self._ask_patiently(body)
        if answered is None:
            return False
        if isinstance(answered, Response):
            return await http.respond(answered)
        if answered.status != SWITCHING:
            async with http.while_there(ProtocolError):
                return await self._answer(http, answered, connection)
            return False
        await http.send_raw(switching_head({**_WEBSOCKET, **answered.headers}.items()) + answered.connection.behind)
        node = answered.reached.stream
        await send_all(node, http.detach())
        if RESUME not in self._errand.request.headers:
            self._sent = ToClient(answered.connection.behind)
        stall_timeout = self._gateway.config.gateway.stall_timeout
        await pipe(http.stream, node, stall_timeout, lambda size: limiter.charge(size=size), self._sent)
        return False

    async def _receive_body(self, http: HttpConnection, connection: ControlConnection, limiter: RateLimiter) -> bytes:
        """Receive the body of the request, within the limits of the identity."""

        async def received(size: int, pieces: int) -> None:
            connection.input_bytes += size
            self._gateway.services.memory_grew(size)
            if pause := limiter.charge(size=size, frames=pieces):
                await trio.sleep(pause)

        limit = self._gateway.config.gateway.max_message_size
        return await http.receive_body(limit, received, self._gateway.config.limits.message_timeout)

    async def _ask_patiently(self, body: bytes) -> _Answered | Response:
        """Return what `_ask` does; the refusal as well if the node is silent and answers nothing else either."""
        answer: _Answered | Response | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_if_silent, nursery.cancel_scope)
            answer = await self._ask(body)
            nursery.cancel_scope.cancel()
        if answer is None:
            text = f"the node {self._errand.node} is silent: it has not answered, and answers nothing else either"
            return Response.of_text(HTTPStatus.GATEWAY_TIMEOUT, text, {REFUSAL_HEADER: Busy.reason}, close=True)
        return answer

    async def _cancel_if_silent(self, scope: trio.CancelScope) -> None:
        """Cancel a scope once the node does not answer others either."""
        looks = self._gateway.extensions.looks
        assert looks is not None, "a door has nodes"
        while True:
            await trio.sleep(SILENCE)
            if not await looks.answers(self._errand.node):
                return scope.cancel()

    async def _ask(self, body: bytes) -> _Answered | Response:
        """Send the request to the node, and return its answer, or the response for the client if there is none."""
        errand = self._errand
        request_id = secrets.token_hex(8)
        again = CONNECTION_ID in errand.request.headers
        if not again:
            self._gateway.audit_throttle.record(
                "node_link", node=errand.node, path=errand.path, identity=errand.access.identity, request=request_id
            )
        try:
            attempt, patiently = partial(self._reach, errand.node), again and not errand.websocket
            reached = self._reached = await until_there(self._gateway, errand.node, attempt, patiently=patiently)
            # A client that has left must not take the link from its next attempt: the request is not sent again.
            reached.stream.reset_when_closed(again)
            connection = HttpClientConnection(reached.stream, reached.host)
            query = f"?{errand.request.query}" if errand.request.query else ""
            replaced = {*map(str.lower, self._own)}
            passing = request_fields(errand.request.headers.raw_items())
            passing = [field for field in passing if field[0].lower() not in replaced]
            request = NodeRequest(errand.request.method, self._said(reached, request_id), body, more=passing)
            self._is_asked = True
            head = await connection.send(f"{reached.path(errand.path)}{query}", request)
            reached.stream.reset_when_closed(False)
        except GatewayError as error:
            return self._away(str(error))
        except _LOST as error:
            return self._away(f"the connection was lost: {error}")
        if head.status == HTTPStatus.UNAUTHORIZED:
            # It is not the client's that is wrong, and nothing was done.
            self._is_asked = False
            return self._away("it does not accept this gateway's token")
        try:
            fields = response_fields(head.headers)
        except ProtocolError as error:
            return Response.of_text(HTTPStatus.BAD_GATEWAY, f"the node {errand.node}: {error}", close=True)
        announced = head.headers.get("content-length", "")
        return _Answered(reached, connection, head.status, fields, int(announced) if announced.isdigit() else None)

    def _said(self, reached: Reached, request_id: str) -> dict[str, str]:
        """Return the headers of this gateway's own."""
        said = {} if reached.token is None else {"Authorization": f"Bearer {reached.token}"}
        said |= self._own | said_to_node(self._gateway.admissions.own_id, request_id, self._errand.claim)
        return said | (_WEBSOCKET if self._errand.websocket else {"Connection": "close"})

    async def _answer(self, http: HttpConnection, answered: _Answered, counted: ControlConnection) -> bool:
        """Pass a response on that opens no WebSocket; return whether another request may follow."""
        connection, status = answered.connection, answered.status
        fields = {**answered.headers, **HARMLESS}
        if self._errand.names_links and CONNECTION_ID in fields:
            fields[CONNECTION_ID] = f"{self._errand.node}{SEPARATOR}{fields[CONNECTION_ID]}"
        if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            return await http.respond(Response(status, b"", fields))
        if answered.size is not None and answered.size <= WHOLE_SIZE:
            return await http.respond(Response(status, await connection.read_all(WHOLE_SIZE), fields))
        # It may go on in another response of the node, whose length is another one.
        goes_on = _is_event_stream(answered)
        await http.start(status, fields, None if goes_on else answered.size)
        if goes_on:
            return await self._tell_events(http, answered, counted)
        while part := await connection.read():
            await http.send(part)
        return await http.end()

    async def _tell_events(self, http: HttpConnection, answered: _Answered, counted: ControlConnection) -> bool:
        """Pass an event stream on to its end, over as many connections as it takes; return False if it is cut."""
        headers = self._errand.request.headers
        stream = self._errand.node, *(headers.get(name) for name in (CONNECTION_ID, SESSION_ID))
        events = WholeEvents(2 * self._gateway.config.gateway.max_message_size)
        with self._streams.using(stream, self):
            while True:
                part = await next_part(answered.connection.read)
                if part is None:
                    events.begin_again()
                    again = await self._ask_again(http, stream, events.last_id)
                    if again is None:
                        return False
                    answered = again
                elif part:
                    before = counted.input_bytes
                    if whole := events.take(part):
                        await http.send(whole)
                    counted.input_bytes = events.begun_bytes
                    self._gateway.services.memory_grew(max(counted.input_bytes - before, 0))
                else:
                    return await http.end()

    async def _ask_again(self, http: HttpConnection, stream: Hashable, last_id: str | None) -> _Answered | None:
        """Ask the node to go on with an event stream, until it answers; return None if it does not any more.

        Until then, comments tell the client that it is there.
        """
        section = self._gateway.config.nodes.get(self._errand.node)
        until = trio.current_time() + (0.0 if section is None else section.reconnect_timeout)
        self._own |= {} if last_id is None else {LAST_EVENT_ID: last_id}
        failures = 0
        while self._streams.is_used_by(stream, self) and trio.current_time() < until:
            if self._reached is not None:
                await self._reached.stream.aclose()
            with trio.move_on_after(ATTEMPT_TIMEOUT + ANSWER_TIMEOUT):
                answered = await self._ask(b"")
                if isinstance(answered, _Answered):
                    return answered if _is_event_stream(answered) else None
            await http.send(COMMENT)
            await trio.sleep(backoff(failures, BACKOFF_MAX, random.random()))  # noqa: S311
            failures += 1
        return None

    def _away(self, why: str) -> Response:
        """Return the refusal for a node that does not answer."""
        errand = self._errand
        refusal = node_away(self._gateway, errand.access, errand.node, why)
        # What the node may have got is not to be sent again.
        headers = {REFUSAL_HEADER: refusal.reason} | ({} if self._is_asked else RETRY)
        return Response.of_text(refusal.http_status, str(refusal), headers, close=errand.websocket)


def _is_event_stream(answered: _Answered) -> bool:
    return answered.status == HTTPStatus.OK and answered.headers.get("Content-Type") == EVENTS
