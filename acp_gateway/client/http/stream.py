"""Streamable HTTP as a `MessageStream`: for servers of the protocol that are not gateways and have no WebSocket.

`POST initialize` opens a connection at the server. Every other message is a `POST` as well, in the order that
`requests` decides; what the server sends comes in the event streams of `events`, merged in the order of arrival.

A lost event stream, a lost `POST`, and a server that does not know the connection any more end this stream, so that its
owner connects again and restores the sessions. No `POST` is repeated that may have been handled: at-most-once.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final

import trio

from acp_gateway.client.http.connections import Endpoint, HttpPool
from acp_gateway.client.http.cookies import CookieJar
from acp_gateway.client.http.events import (
    ATTEMPTS,
    PAUSE,
    PAUSE_MAX,
    REPLY_SIZE,
    EventStream,
    EventStreams,
    StreamOwner,
)
from acp_gateway.client.http.requests import Post, PostQueue, is_response, messages_in, session_header
from acp_gateway.errors import BUSY, ForeignRefusal, GatewayError, ProtocolError, Unreachable
from acp_gateway.protocol.event_parser import EVENTS
from acp_gateway.protocol.text.json_text import INTERNAL_ERROR, NOTHING, error, read_envelope
from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.client import Reply, Request
from acp_gateway.transports.link import LOST
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import ByteStream, CloseReason, MessageTooLarge
from acp_gateway.transports.timers import Signal, TaskSpawner

log = logging.getLogger(__name__)

INBOX: Final = 1024 * 1024
"""Bytes received and not taken, beyond which no stream is read."""

ID_SIZE: Final = 1024
"""Maximum characters of a connection id."""

DELETE_TIMEOUT: Final = 1.0
"""Seconds to end the connection at the server when it is given up."""

SETTLED: Final = 10.0
"""Seconds for which a connection has to last for its unsent messages to be sent over the next one. What ends it sooner
is likely to happen again, and these messages get an error instead."""

_OK: Final = 200
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_NOT_FOUND: Final = 404
_FORGOTTEN: Final = frozenset({_NOT_FOUND, 410})
_ENDED: Final = frozenset({401, 403, *_FORGOTTEN})
"""Statuses that end the connection: the server does not know it any more, or not this client."""


class HttpClientStream(MaintainedStream):
    """Messages to and from a server over Streamable HTTP. The first one is to be `initialize`.

    Nothing is sent before `run`, which makes all requests.

    Args:
        endpoint: the server's endpoint.
        connect: opens a connection to the server, and verifies it.
        max_message_size: maximum bytes of a message from the server.
        size_setting: the name of that limit, for the error.
        cookies: the cookies to send and to keep; None for new ones.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        connect: Callable[[], Awaitable[ByteStream]],
        *,
        max_message_size: int,
        size_setting: str,
        cookies: CookieJar | None = None,
    ) -> None:
        super().__init__()
        self._host = endpoint.host
        self._pool = HttpPool(endpoint, connect, cookies)
        self._max_message_size = max_message_size
        self._queue = PostQueue()
        self._connection_id: str | None = None
        self._opened_at = inf
        # True if the connection has lasted for `SETTLED` until it failed.
        self._was_settled = False
        self._too_large = f"a message is larger than {size_setting} ({max_message_size} bytes) allows"
        self._events = EventStreams(
            self._pool,
            StreamOwner(self._arrive, self._fail, self._queue.waits_for),
            max_message_size=max_message_size,
            too_large=self._too_large,
        )
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

    def unsent(self) -> list[bytes]:
        return self._queue.unwritten() if self._was_settled else []

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
                request = Request("DELETE", {"Acp-Connection-Id": name}, idempotent=True)
                await self._pool.ask(request, limit=REPLY_SIZE)
            except (*LOST, GatewayError) as failure:
                log.info("the server was not told of the end: %s", failure)

    def _fail(self, why: Exception | str) -> None:
        """End this stream: what has arrived is received, then the error. Its first cause counts."""
        if self._cause is None:
            self._was_settled = trio.current_time() - self._opened_at >= SETTLED
            self._cause = why if isinstance(why, trio.BrokenResourceError) else trio.BrokenResourceError(str(why))
            if isinstance(why, GatewayError):
                self._cause.__cause__ = why
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
                nursery.start_soon(self._carry_out, post, self._post)
            elif post.initializes and not self._closed:
                await self._carry_out(post, self._initialize)
            else:
                self._answer_refused(post, "there is no connection: initialize comes first")
                self._done(post)

    async def _carry_out(self, post: Post, send: Callable[[Post], Awaitable[None]]) -> None:
        try:
            await send(post)
        except (*LOST, GatewayError) as failure:
            self._fail(failure)
            if post.sent_at == inf:
                return  # For `unsent`.
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
        named = reply.status == _OK and 0 < len(name) <= ID_SIZE and name.isascii() and name.isprintable()
        answered = is_response(reply.body, post)
        failed = answered and (read_envelope(reply.body) or NOTHING).failed
        if not answered or not (named or failed):
            raise self._refusal(reply)
        if named:
            log.info("the server has opened the connection %s", name)
            self._connection_id = name
            self._opened_at = trio.current_time()
            self._events.connected(name)
        if failed:
            # The next `initialize` is to open another one.
            with trio.move_on_after(DELETE_TIMEOUT):
                await self._end_connection()
        else:
            await self._open_stream(None)
        await self._arrive(reply.body, None)

    def _refusal(self, reply: Reply) -> GatewayError:
        """Return the error for an answer to `initialize` that opens no connection."""
        text = f"{self._host}: the server's answer to initialize is HTTP {reply.status}"
        if reply.status == _OK:
            return ProtocolError(f"{text}, but names no connection: does it speak ACP over Streamable HTTP?")
        text += f" ({reply.reason})"
        if reply.status in (401, 403):
            return ForeignRefusal(f"{text}; is its token right?")
        return Unreachable(text) if reply.status in BUSY else ProtocolError(text)

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
            if reply.status in _FORGOTTEN:
                self._queue.refused_for_now(post)
            raise trio.BrokenResourceError(f"the server ended the connection: HTTP {reply.status} ({reply.reason})")
        if _accepted(reply):
            if post.opens_session and post.session is not None and (stream := self._events[post.session]) is not None:
                stream.want()
            for message in messages_in([reply.body]):
                await self._arrive(message, None)
        elif is_response(reply.body, post) and post.is_request:
            await self._arrive(reply.body, None)
        else:
            what = "refused this message"
            if reply.status == _NOT_FOUND:
                what = f"does not know the session {post.session:.80}"
            self._answer_refused(post, f"the server {what}: HTTP {reply.status} ({reply.reason})")

    async def _ask(self, post: Post, headers: dict[str, str]) -> Reply:
        """Send a message, again if the server refuses it for now, and return the reply."""
        fields = {"Content-Type": "application/json", "Accept": f"application/json, {EVENTS}", **headers}
        request = Request("POST", fields, post.text, lambda: self._written(post), post.idempotent)
        attempt = 1
        while True:
            reply = await self._pool.ask(request, limit=self._max_message_size)
            if len(reply.body) > self._max_message_size:
                raise MessageTooLarge(self._too_large)
            refused = reply.status == _TOO_MANY or (reply.status == _UNAVAILABLE and _may_repeat(reply, post))
            if not refused or attempt == ATTEMPTS:
                return reply
            self._queue.refused_for_now(post)
            await trio.sleep(reply.pause(PAUSE * 2.0 ** (attempt - 1), PAUSE_MAX))
            attempt += 1

    def _written(self, post: Post) -> None:
        self._queue.written(post, trio.current_time())
        self._queued.notify()

    def _answer_refused(self, post: Post, why: str) -> None:
        log.warning("%s", why)
        self._queue.forget_request(post)
        if post.is_request or (post.method is None and post.raw_id is None):
            self._deliver(error(post.raw_id or b"null", INTERNAL_ERROR, why, "refused"))

    # Event streams

    async def _arrive(self, message: bytes, stream: EventStream | None) -> None:
        """Deliver a message, and open or close the streams that it is about."""
        arrival = self._queue.arrived(message)
        history = None
        if arrival.loaded is not None:
            history = self._events.source_of_history(arrival.loaded, stream)
        if history is not None and self._nursery is not None:
            self._nursery.start_soon(self._deliver_later, message, history)
        else:
            self._deliver(message)
        if arrival.opened is not None and self._nursery is not None:
            self._events.start(self._nursery, arrival.opened)
        if arrival.closed is not None:
            self._events.close(arrival.closed)
        while self._inbox_size > INBOX and stream is not None:
            await self._taken.wait()

    async def _deliver_later(self, message: bytes, history: EventStream) -> None:
        """Deliver a message once a stream has been quiet for a moment."""
        await self._events.wait_until_quiet(history)
        self._deliver(message)

    async def _open_stream(self, session: str | None) -> None:
        if self._nursery is not None:
            await self._events.open(self._nursery, session)


def _may_repeat(reply: Reply, post: Post) -> bool:
    """Return whether a message may be repeated after 503: some proxies answer so when they have lost the server."""
    return post.idempotent or "retry-after" in reply.headers


def _accepted(reply: Reply) -> bool:
    return 200 <= reply.status < 300
