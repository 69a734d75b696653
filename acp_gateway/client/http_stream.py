"""Streamable HTTP as a `MessageStream`: for servers of the protocol that are no gateway and have no WebSocket.

`POST initialize` opens a connection at the server. Every other message is a `POST` as well, in the order that
`http_requests` decides; what the server sends comes as events of the connection's stream and of one stream for each
session, merged in the order of arrival.

A stream that ends properly is opened again. One that is cut off is opened again behind its last event, if events have
ids; without ids, what was on its way is lost. That, and a server that does not know the connection any more, end this
stream, so that its owner connects again and restores the sessions.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import trio

from acp_gateway.client.http_pool import Endpoint, HttpPool, Reply
from acp_gateway.client.http_requests import ANSWER_TIMEOUT, Post, PostQueue, is_response, messages_in, session_header
from acp_gateway.errors import GatewayError
from acp_gateway.printable import printable
from acp_gateway.protocol.event_parser import EventParser
from acp_gateway.protocol.json_text import INTERNAL_ERROR, error
from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http_client import HttpClientConnection
from acp_gateway.transports.link import LOST
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import ByteStream, CloseReason, MessageTooLarge
from acp_gateway.transports.timers import Signal, TaskSpawner

log = logging.getLogger(__name__)

INBOX: Final = 1024 * 1024
"""Bytes received and not taken, beyond which no stream is read."""

REPLY_SIZE: Final = 65536
"""Maximum bytes of the body of a refusal that are read."""

ID_SIZE: Final = 1024
"""Maximum characters of a connection id."""

ATTEMPTS: Final = 6
"""Attempts at a request that the server refuses for now, and at a stream that can't be opened."""

PAUSE: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Seconds before the second of these attempts, twice as many before each further one, and the longest that a server may
ask for."""

QUIET: Final = 0.2
QUIET_TIMEOUT: Final = 10.0
"""Seconds without an event in a session's stream after which its history counts as complete, and the longest wait: the
response to `session/load` comes over another connection, and may be faster."""

DELETE_TIMEOUT: Final = 1.0
"""Seconds to end the connection at the server when it is given up."""

_EVENTS: Final = "text/event-stream"
_OK: Final = 200
_FOR_NOW: Final = frozenset({429, 503})
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_ENDED: Final = frozenset({401, 403, _NOT_FOUND, 410})
"""Statuses that end the connection: the server does not know it any more, or not this client."""


@dataclass(slots=True, eq=False)
class _EventStream:
    """One event stream, over all its HTTP connections."""

    session: str | None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    settled: trio.Event = field(default_factory=trio.Event)
    """Set once it is open, or can't be opened."""
    wanted_again: bool = False
    """True if the session was opened while the request for its stream was pending: the server may not have known it."""
    last_event_id: str = ""
    last_event_at: float = -inf
    pause: float = PAUSE

    def __str__(self) -> str:
        return "the connection's stream" if self.session is None else f"the stream of session {self.session:.80}"


class HttpClientStream(MaintainedStream):
    """Messages to and from a server over Streamable HTTP. The first one is to be `initialize`.

    Nothing is sent before `run`, which makes all requests.

    Args:
        endpoint: the server's endpoint.
        connect: opens a connection to the server, and verifies it.
        max_message_size: maximum bytes of a message from the server.
        size_setting: the name of that limit, for the error.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connect: Callable[[], Awaitable[ByteStream]],
        *,
        max_message_size: int,
        size_setting: str,
    ) -> None:
        super().__init__()
        self._host = endpoint.host
        self._pool = HttpPool(endpoint, connect)
        self._max_message_size = max_message_size
        self._size_setting = size_setting
        self._queue = PostQueue()
        self._connection_id: str | None = None
        self._streams: dict[str | None, _EventStream] = {}
        self._inbox: list[bytes] = []
        self._inbox_size = 0
        # The first failure; the same once the connection has been ended at the server.
        self._cause: trio.BrokenResourceError | None = None
        self._failure: trio.BrokenResourceError | None = None
        self._closed = False
        self._nursery: trio.Nursery | None = None
        # Something is to be sent, or was; something has arrived; it was taken; `run` has returned.
        self._queued = Signal()
        self._arrived = Signal()
        self._taken = Signal()
        self._stopped = Signal()

    # Messages

    async def _receive_batch(self) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        while not self._inbox:
            self._raise_end()
            await self._arrived.wait()
        batch, self._inbox, self._inbox_size = self._inbox, [], 0
        self._taken.notify()
        return batch

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        self._raise_end()
        for message in messages:
            self._queue.add(message)
        self._queued.notify()

    @property
    def pending_bytes(self) -> int:
        return self._queue.unwritten_bytes

    async def drain(self, below: int = 0) -> None:
        await trio.lowlevel.checkpoint()
        while self.pending_bytes > below:
            self._raise_end()
            await self._queued.wait()

    def _raise_end(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._failure is not None:
            raise self._failure

    def _deliver(self, message: bytes) -> None:
        self._inbox.append(message)
        self._inbox_size += len(message)
        self._arrived.notify()

    # Upkeep and ends

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._send_posts(nursery, lambda: self._cause is None and not self._closed)
                nursery.cancel_scope.cancel()
            with trio.move_on_after(DELETE_TIMEOUT):
                if not self._closed:
                    await self._end_connection()
            self._failure = self._cause
        finally:
            self._nursery = None
            self._arrived.notify()
            self._stopped.notify()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        pass  # A client runs its one stream.

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        try:
            with trio.move_on_after(CLOSE_TIMEOUT):
                while self._nursery is not None:
                    self._nursery.cancel_scope.cancel()
                    await self._stopped.wait()
                if self._cause is None and self._connection_id is not None:
                    async with trio.open_nursery() as nursery:
                        await self._send_posts(nursery, lambda: bool(self._queue) and self._cause is None)
                    await self._end_connection()
                await trio.lowlevel.checkpoint()
        finally:
            await self._pool.aclose()
            for signal in (self._queued, self._arrived, self._taken):
                signal.notify()

    async def _end_connection(self) -> None:
        """Have the server end the connection, which keeps its agent running otherwise."""
        name, self._connection_id = self._connection_id, None
        if name is not None:
            try:
                await self._pool.ask("DELETE", {"Acp-Connection-Id": name}, limit=REPLY_SIZE)
            except (*LOST, GatewayError) as failure:
                log.info("the server was not told of the end: %s", failure)

    def _fail(self, why: Exception | str) -> None:
        """End this stream: what has arrived is received, then the error. Its first cause counts."""
        if self._cause is None:
            self._cause = why if isinstance(why, trio.BrokenResourceError) else trio.BrokenResourceError(str(why))
            self._queued.notify()

    # Requests

    async def _send_posts(self, nursery: trio.Nursery, wanted: Callable[[], bool]) -> None:
        """Send what is queued, each message when it is its turn, as long as that is wanted."""
        while wanted():
            post = self._queue.next(trio.current_time())
            if post is None:
                with trio.move_on_at(self._queue.due()):
                    await self._queued.wait()
            elif self._connection_id is not None:
                nursery.start_soon(self._send_post, post)
            elif post.initializes and not self._closed:
                await self._carry_out(post, self._initialize)
            else:
                self._answer_refused(post, "there is no connection: initialize comes first")
                self._done(post)

    async def _send_post(self, post: Post) -> None:
        await self._carry_out(post, self._post)

    async def _carry_out(self, post: Post, send: Callable[[Post], Awaitable[None]]) -> None:
        try:
            await send(post)
        except (*LOST, GatewayError) as failure:
            self._fail(failure)
        except trio.Cancelled:
            self._queue.put_back(post)
            raise
        self._done(post)

    def _done(self, post: Post) -> None:
        self._queue.done(post)
        self._queued.notify()

    async def _initialize(self, post: Post) -> None:
        reply = await self._ask(post, {})
        name = reply.headers.get("acp-connection-id", "")
        answered = is_response(reply.body, post)
        if answered and reply.status == _OK and 0 < len(name) <= ID_SIZE and name.isascii() and name.isprintable():
            log.info("the server has opened the connection %s", name)
            self._connection_id = name
            await self._open_stream(None)
        elif not answered or reply.status == _OK:
            what = "names no connection" if reply.status == _OK else f"is HTTP {reply.status} ({_text(reply)})"
            hint = "; is its token right?" if reply.status in (401, 403) else ""
            raise trio.BrokenResourceError(f"{self._host}: the server's answer to initialize {what}{hint}")
        await self._arrive(reply.body, None)

    async def _post(self, post: Post) -> None:
        """Send a message over the connection, and deliver what the server answers instead of accepting it."""
        if post.opens_session:
            await self._open_stream(post.session)
        known = {"Acp-Connection-Id": self._connection_id or ""}
        reply = await self._ask(post, known | session_header(post.session))
        if reply.status == _NOT_FOUND and post.session is not None:
            # Some servers know a session only once it is open: then the other reply tells if the connection is known.
            second = await self._ask(post, known)
            reply = second if _accepted(second) or second.status in _ENDED else reply
            ended = second.status in _ENDED
        else:
            ended = reply.status in _ENDED
        if ended:
            raise trio.BrokenResourceError(f"the server ended the connection: HTTP {reply.status} ({_text(reply)})")
        if _accepted(reply):
            for message in messages_in([reply.body]):
                await self._arrive(message, None)
        elif is_response(reply.body, post) and post.is_request:
            await self._arrive(reply.body, None)
        else:
            self._answer_refused(post, f"the server refused this message: HTTP {reply.status} ({_text(reply)})")

    async def _ask(self, post: Post, headers: dict[str, str]) -> Reply:
        """Send a message, again if the server refuses it for now, and return the reply."""
        fields = {"Content-Type": "application/json", "Accept": f"application/json, {_EVENTS}", **headers}
        limit = self._max_message_size
        attempt = 1
        while True:
            reply = await self._pool.ask("POST", fields, post.text, limit=limit, sent=lambda: self._written(post))
            if len(reply.body) > limit:
                raise MessageTooLarge(self._too_large)
            if reply.status not in _FOR_NOW or attempt == ATTEMPTS:
                return reply
            await trio.sleep(_pause(reply, PAUSE * 2.0 ** (attempt - 1)))
            attempt += 1

    @property
    def _too_large(self) -> str:
        return f"a message is larger than {self._size_setting} ({self._max_message_size} bytes) allows"

    def _written(self, post: Post) -> None:
        self._queue.written(post, trio.current_time())
        self._queued.notify()

    def _answer_refused(self, post: Post, why: str) -> None:
        log.warning("%s", why)
        self._queue.forget_request(post)
        if post.is_request or (post.method is None and post.raw_id is None):
            self._deliver(error(post.raw_id or b"null", INTERNAL_ERROR, why, "refused"))

    # Event streams

    async def _arrive(self, message: bytes, stream: _EventStream | None) -> None:
        """Deliver a message, and open or close the streams that it is about."""
        arrival = self._queue.arrived(message)
        loaded = self._streams.get(arrival.loaded) if arrival.loaded is not None else None
        if loaded is not None and loaded is not stream and self._nursery is not None:
            self._nursery.start_soon(self._deliver_later, message, loaded)
        else:
            self._deliver(message)
        if arrival.opened is not None:
            self._start_stream(arrival.opened)
        if arrival.closed is not None and arrival.closed in self._streams:
            self._streams.pop(arrival.closed).scope.cancel()
        while self._inbox_size > INBOX and stream is not None:
            await self._taken.wait()

    async def _deliver_later(self, message: bytes, behind: _EventStream) -> None:
        """Deliver a message once a stream has been quiet for a moment."""
        until = trio.current_time() + QUIET_TIMEOUT
        quiet_at = trio.current_time() + QUIET
        while trio.current_time() < min(quiet_at, until):
            await trio.sleep_until(min(quiet_at, until))
            quiet_at = max(quiet_at, behind.last_event_at + QUIET)
        self._deliver(message)

    def _start_stream(self, session: str | None) -> _EventStream:
        stream = self._streams.get(session)
        if stream is None:
            stream = self._streams[session] = _EventStream(session)
            if self._nursery is not None:
                self._nursery.start_soon(self._keep_open, stream)
        stream.wanted_again = True
        return stream

    async def _open_stream(self, session: str | None) -> None:
        """Open a stream, and wait until the server has answered, or for `ANSWER_TIMEOUT`."""
        stream = self._start_stream(session)
        with trio.move_on_after(ANSWER_TIMEOUT):
            await stream.settled.wait()

    async def _keep_open(self, stream: _EventStream) -> None:
        """Read a stream to its end, and open it again."""
        with stream.scope:
            attempts = 0
            while attempts < ATTEMPTS:
                stream.pause = PAUSE * 2.0**attempts
                try:
                    goes_on = await self._read_once(stream)
                except (*LOST, GatewayError) as failure:
                    if isinstance(failure, MessageTooLarge) or not stream.last_event_id:
                        self._fail(failure)
                        return
                    log.info("%s was cut off: %s", stream, failure)
                    goes_on = False
                attempts = 0 if goes_on else attempts + 1
                if self._streams.get(stream.session) is not stream:
                    return
                await trio.sleep(stream.pause)
            self._fail(f"{stream} could not be opened again")

    async def _read_once(self, stream: _EventStream) -> bool:
        """Read a stream over one HTTP connection; return whether it was open, and brought anything."""
        fields = {"Accept": _EVENTS, "Acp-Connection-Id": self._connection_id or ""} | session_header(stream.session)
        if stream.last_event_id:
            fields["Last-Event-ID"] = stream.last_event_id
        stream.wanted_again = False
        async with self._pool.begin(fields) as (head, http):
            if head.status == _OK and head.headers.get("content-type", "").lower().startswith(_EVENTS):
                stream.settled.set()
                return await self._read_events(stream, http)
            reply = Reply(head.status, head.headers, await http.read_all(REPLY_SIZE))
        if head.status in _FOR_NOW or (head.status == _CONFLICT and not stream.last_event_id):
            # A conflict: the server has not noticed yet that the stream was cut off.
            stream.pause = _pause(reply, stream.pause)
            return False
        if stream.session is not None and head.status != _CONFLICT:
            if stream.wanted_again:
                return False
            log.info("%s does not exist at the server: HTTP %d (%s)", stream, head.status, _text(reply))
            self._streams.pop(stream.session, None)
            stream.settled.set()
            return True
        stream.last_event_id = ""
        raise trio.BrokenResourceError(f"the server refused {stream}: HTTP {head.status} ({_text(reply)})")

    async def _read_events(self, stream: _EventStream, http: HttpClientConnection) -> bool:
        parser = EventParser(self._max_message_size, stream.last_event_id)
        brought = False
        while data := await http.read():
            brought = True
            self.last_received_at = trio.current_time()
            events = parser.feed(data)
            stream.last_event_id = parser.last_event_id
            for message in messages_in(events):
                await self._arrive(message, stream)
                stream.last_event_at = trio.current_time()
            if parser.too_large:
                raise MessageTooLarge(self._too_large)
        if parser.in_event:
            raise trio.BrokenResourceError("the stream ended in the middle of an event")
        stream.pause = stream.pause if parser.retry is None else parser.retry
        return brought


def _accepted(reply: Reply) -> bool:
    return 200 <= reply.status < 300


def _pause(reply: Reply, usual: float) -> float:
    """Return the seconds to wait before a request is repeated."""
    asked = reply.headers.get("retry-after", "")
    return min(float(asked), PAUSE_MAX) if asked.isascii() and asked.isdigit() else usual


def _text(reply: Reply) -> str:
    """Return the first line of a reply's body, for an error."""
    lines = reply.body.decode(errors="replace").strip().splitlines()
    return printable(lines[0] if lines else "without a reason", size=200)
