"""The readers of event streams: each is a `GET` request whose response goes on until its client leaves.

A stream has one reader. A request with `Last-Event-ID` takes the stream over: the client has shown that it read the
stream before. A request without it may be a second client, or the same one after a loss that the gateway has not
noticed: the present reader is asked to confirm a byte, and ends if its system does not.
"""

from collections import Counter
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import trio

from acp_gateway.gateway.access import Access
from acp_gateway.protocol.event_streams import EventsGone, EventStream, StreamTaken
from acp_gateway.server.http.link import HttpLink, Refused, StreamReader
from acp_gateway.transports.http.server import RETRY, HttpConnection
from acp_gateway.transports.websocket.stream import CONNECTION_ID

SESSION_ID: Final = "Acp-Session-Id"
LAST_EVENT_ID: Final = "Last-Event-ID"

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

        The gateway learns late that a connection is lost on which nothing is sent: its client comes back before that.
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
        headers = {"Content-Type": "text/event-stream", CONNECTION_ID: self._link.id}
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
