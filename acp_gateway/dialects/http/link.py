"""The link of a client that speaks Streamable HTTP: what it posts goes in, its event streams carry what comes out.

To the gateway it is one resumable link. It is connected while the client reads a stream or posts; without either for
the time of a missed pong it is away, and its next request resumes it. The HTTP side acts as the other end of the link:
it confirms the messages that were written to an event stream, and what it has not confirmed is kept by the gateway.
"""

import logging
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias

import trio

from acp_gateway.errors import AccessError, LinkGone
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.resumption import ResumeClaim
from acp_gateway.protocol.event_streams import EventStream, EventStreams
from acp_gateway.protocol.link_messages import CONTROL_WORD, acknowledgement, read_control
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Response
from acp_gateway.transports.link import HEARTBEAT
from acp_gateway.transports.maintained import MaintainedStream, Meter
from acp_gateway.transports.streams import LITTLE, CloseReason
from acp_gateway.transports.timers import Signal, TaskSpawner

log = logging.getLogger(__name__)

CONFIRM_BYTES: Final = 256 * 1024
CONFIRM_MESSAGES: Final = 1024
"""After how much that was written the gateway may forget it: seldom enough to cost nothing."""

MAX_INBOX: Final = 64
"""Messages that wait for the gateway: it takes them no faster than the client's rate allows."""

STREAM_TIMEOUT: Final = 5.0
"""Seconds for which the messages of a session wait for a reader of its stream, where there will be or was one. The
SDKs' clients open it right after the response to `session/new`, and the Python SDK's does not open it again after a
cut; a client that opens none reads them in the connection's stream."""

Starter: TypeAlias = Callable[..., None]
"""Starts a task, as `trio.Nursery.start_soon`."""


class Refused(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        self.response = Response.of_text(status, text, headers)
        super().__init__(text)


class StreamReader:
    """The reader of an event stream."""

    def write_now(self) -> None:
        """Write the events that wait, as far as that takes no waiting; the rest follows by itself."""
        raise NotImplementedError


class Receiving:
    """A POST request whose body is being received."""

    __slots__ = ("_link", "_size")

    def __init__(self, link: "HttpLink") -> None:
        self._link = link
        self._size = 0

    def __enter__(self) -> Callable[[int, int], Awaitable[None]]:
        self._link.posting += 1
        return self._received

    def __exit__(self, *_: object) -> None:
        self._link.posting -= 1
        self._link.body_bytes -= self._size

    async def _received(self, more: int, pieces: int) -> None:
        link, meter = self._link, self._link.meter
        self._size += more
        link.body_bytes += more
        meter.size += more
        # A small body is paid for with the reading of its message.
        if pieces or meter.size > LITTLE:
            await link.pay(frames=pieces)


class HttpLink:
    """One client, by its `Acp-Connection-Id`. Made by `HttpLinks.begin`."""

    def __init__(self, gateway: Gateway, grant: Grant, link_id: str, name: str, start: Starter) -> None:
        settings = gateway.config.gateway
        self.id = link_id
        self.name = name
        self.grant = grant
        self.streams = EventStreams(secrets.token_hex(4), settings.resume_window)
        self.changed = Signal()
        """Notified when a reader has something to do besides writing events, and at the end."""
        self.taken = Signal()
        """Notified when events were written, and when the gateway has received messages."""
        # Keeps the order of messages that wait for room.
        self._turn = trio.StrictFIFOLock()
        self.ended = False
        self.left = False
        """True if the client wants nothing more."""
        self.limit = SizeLimit(settings.max_message_size, "max_message_size")
        """Maximum size of a message."""
        self.message_timeout = gateway.config.limits.message_timeout
        """Seconds for one message."""
        self.posting = 0
        """POST requests that are being received."""
        self._bodies: set[trio.CancelScope] = set()
        self.body_bytes = 0
        """Bytes of their bodies."""
        self.asking: Counter[str | None] = Counter()
        """GET requests that wait for the reader of their stream to show that it is there, by session."""
        self.inbox: list[bytes] = []
        """Messages that the gateway has not received yet."""
        self.arrived = Signal()
        self._window = settings.resume_window
        self._gateway = gateway
        self._start = start
        self._stream = HttpStream(self, 0)
        # Messages that the gateway has not settled: it may lose its stream before it has received them.
        self._unsettled: deque[bytes] = deque()
        self.unsettled_bytes = 0
        self._settled = 0
        # Session streams whose reader is waited for.
        self._watched: set[EventStream] = set()

    @property
    def access(self) -> Access:
        """The principal that began it."""
        return self.grant.access

    async def serve(self) -> None:
        """Serve the link until it has ended. Cancelled, it ends the event streams."""
        try:
            await self._gateway.serve(self._stream, self.grant, self.name, self.id)
        except Exception:
            # A bug ends this link and no other.
            log.exception("%s: internal error, connection closed", self.name)
        finally:
            self.ended = True
            self.drop_bodies()
            self.changed.notify()
            self.taken.notify()

    @property
    def away(self) -> bool:
        """True if the gateway has given up its connection: the next request resumes the link."""
        return self._stream.closed

    def resume(self, access: Access) -> None:
        """Connect the link again if it is away. Raises `AccessError` if it is gone, or not this principal's."""
        if self.ended:
            raise LinkGone("this connection has ended; begin with initialize")
        if self.away:
            confirmed = self.streams.confirmed
            claim = self._gateway.resume(access, self.id, confirmed)
            self._stream = HttpStream(self, self.streams.number - confirmed)
            self.settle(claim.received)
            self.inbox = [*self._unsettled]
            self._start(self._serve_resumed, self._stream, claim)

    def reconnect(self, access: Access) -> None:
        """Connect the link again if it has gone away while a request of it waited. Raises `Refused`."""
        if self.ended:
            raise Refused(HTTPStatus.NOT_FOUND, "this connection has ended; begin with initialize")
        try:
            self.resume(access)
        except AccessError as error:
            raise Refused(error.http_status, str(error)) from None

    async def _serve_resumed(self, stream: "HttpStream", claim: ResumeClaim) -> None:
        try:
            await self._gateway.serve_resumed(stream, claim, self.name)
        except Exception:
            log.exception("%s: internal error, connection closed", self.name)

    # From the client

    async def receive_body(self, http: HttpConnection, received: Callable[[int, int], Awaitable[None]]) -> bytes:
        """Receive the body of a POST request, as `HttpConnection.receive_body`. Raises `Refused` if the link ends."""
        try:
            return await self._receive_body(http, received)
        except HttpError as error:
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                raise HttpError(error.status, f"{error} ({self.limit.option})") from None
            raise

    async def _receive_body(self, http: HttpConnection, received: Callable[[int, int], Awaitable[None]]) -> bytes:
        if http.body_is_there:
            return await http.receive_body(self.limit.size, received)
        with trio.CancelScope() as scope:
            self._bodies.add(scope)
            try:
                return await http.receive_body(self.limit.size, received, self.message_timeout)
            finally:
                self._bodies.discard(scope)
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "this connection has ended; begin with initialize")

    def drop_bodies(self) -> None:
        """Receive no more of the bodies that have begun."""
        for scope in self._bodies:
            scope.cancel()

    def receiving(self) -> "Receiving":
        """Count a POST request, and by its `received` the bytes and small pieces of its body."""
        return Receiving(self)

    @property
    def meter(self) -> Meter:
        """Counts what the client sends."""
        return self._stream.meter

    def pay(self, size: int = 0, frames: int = 0, seconds: float = 0.0) -> Awaitable[None]:
        """Charge the client for its bytes, lines that are not messages and loop time; wait while it is over its rate.

        Raises `Flooded`.
        """
        meter = self._stream.meter
        meter.size += size
        meter.frames += frames
        return meter.pay(seconds)

    @property
    def has_room(self) -> bool:
        """True if another message may be posted: the gateway has received and settled enough of what came before."""
        return self.unsettled_bytes < self._window and len(self.inbox) < MAX_INBOX

    async def wait_for_room(self, timeout: float) -> None:
        """Wait until another message may be posted, or the link has ended, or for so many seconds.

        Waiting messages go on in their order. A message that need not wait goes on without a checkpoint.
        """
        if self.has_room and not self._turn.locked():
            return
        async with self._turn:
            with trio.move_on_after(timeout):
                while not (self.has_room or self.ended):
                    await self.taken.wait()

    def post(self, message: bytes) -> None:
        """Take a message of the client."""
        self.inbox.append(message)
        self._unsettled.append(message)
        self.unsettled_bytes += len(message)
        self.arrived.notify()

    def leave(self) -> None:
        """The client wants nothing more."""
        self.left = True
        self.arrived.notify()

    def settle(self, count: int) -> None:
        """The gateway has passed on so many messages since the beginning."""
        new = count - self._settled
        if new > 0:
            self._settled = count
            self.unsettled_bytes -= sum(len(self._unsettled.popleft()) for _ in range(min(new, len(self._unsettled))))
            self.taken.notify()

    # To the client

    def put(self, messages: Sequence[bytes]) -> None:
        """Sort messages into their streams, and write them to their readers."""
        for stream in set(map(self.streams.put, messages)):
            if stream is None:
                self.changed.notify()
            elif stream.reader is None:
                self._watch(stream)
            elif isinstance(stream.reader, StreamReader):
                stream.reader.write_now()

    def readers_changed(self) -> None:
        """A stream was opened, or its reader has left."""
        self.changed.notify()
        for stream in self.streams.unread():
            self._watch(stream)

    def _watch(self, stream: EventStream) -> None:
        if stream.session is not None and stream not in self._watched and not self.ended:
            self._watched.add(stream)
            self._start(self._wait_for_reader, stream)

    async def _wait_for_reader(self, stream: EventStream) -> None:
        with trio.move_on_after(STREAM_TIMEOUT) as waiting:
            while not (stream.reader is not None or self.ended):
                await self.changed.wait()
        self._watched.discard(stream)
        if waiting.cancelled_caught and self.streams.may_move(stream):
            self.streams.give_up_waiting(stream)
            self.changed.notify()

    def written(self) -> None:
        """Events were written."""
        self._stream.confirm()
        self.taken.notify()


class HttpLinks:
    """The links of all clients that speak Streamable HTTP, by id; `start` starts the task of one."""

    def __init__(self, gateway: Gateway, start: Starter) -> None:
        self._gateway = gateway
        self._links: dict[str, HttpLink] = {}
        self._start = start

    def begin(self, grant: Grant, link_id: str, name: str) -> HttpLink:
        """Begin a link, which is served from now on."""
        link = self._links[link_id] = HttpLink(self._gateway, grant, link_id, name, self._start)
        self._start(self._serve, link)
        return link

    async def _serve(self, link: HttpLink) -> None:
        try:
            await link.serve()
        finally:
            self._links.pop(link.id, None)

    def find(self, link_id: str, access: Access) -> HttpLink | None:
        """Return the link of this id if this principal has begun it."""
        link = self._links.get(link_id)
        return link if link is not None and link.access.principal == access.principal else None

    def end(self, link: HttpLink) -> None:
        """End a link: its client wants nothing more."""
        self._links.pop(link.id, None)
        link.leave()


class HttpStream(MaintainedStream):
    """One connection of an `HttpLink`, as the gateway sees it.

    Args:
        known: so many of the first messages to be sent are in the event streams already.
    """

    transport = "http"

    def __init__(self, link: HttpLink, known: int) -> None:
        super().__init__()
        self.accepts_unterminated_line = False
        self.closed = False
        self._link = link
        self._known = known
        self._confirmed = link.streams.confirmed
        self._confirmed_bytes = link.streams.taken_bytes
        self._acknowledge = False
        self.last_received_at = trio.current_time()

    async def _receive_batch(self) -> list[bytes]:
        link = self._link
        if link.inbox or self._acknowledge:
            await trio.lowlevel.checkpoint()
        while not (link.inbox or self._acknowledge or link.left or self.closed):
            await link.arrived.wait()
        if self.closed:
            raise trio.ClosedResourceError
        if not (link.inbox or self._acknowledge):
            raise trio.EndOfChannel
        batch = link.inbox
        link.inbox = []
        link.taken.notify()
        if self._acknowledge:
            self._acknowledge = False
            self._confirmed, self._confirmed_bytes = link.streams.confirmed, link.streams.taken_bytes
            batch = [acknowledgement(self._confirmed), *batch]
        return batch

    def confirm(self, *, now: bool = False) -> None:
        """Tell the gateway how many messages have been written, if new ones are many, or at once."""
        streams = self._link.streams
        new = streams.confirmed - self._confirmed
        many = new >= CONFIRM_MESSAGES or streams.taken_bytes - self._confirmed_bytes >= CONFIRM_BYTES
        if new and (now or many):
            self._acknowledge = True
            self._link.arrived.notify()

    def limit(self, max_message_size: int, size_setting: str) -> None:
        self._link.limit = SizeLimit(max_message_size, size_setting)

    def abandon(self) -> None:
        self._link.drop_bodies()

    @property
    def unfinished_bytes(self) -> int:
        link = self._link
        return link.body_bytes + link.unsettled_bytes + link.streams.kept_bytes

    @property
    def ended_normally(self) -> bool:
        return self._link.left

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        counted = []
        for message in messages:
            control = read_control(message) if CONTROL_WORD in message else None
            if control is not None:
                self._link.settle(control.received)
            elif self._known:
                self._known -= 1
            else:
                counted.append(message)
        if counted:
            self._link.put(counted)

    @property
    def pending_bytes(self) -> int:
        return self._link.streams.pending_bytes

    async def drain(self, below: int = 0) -> None:
        await trio.lowlevel.checkpoint()
        while self.pending_bytes > below:
            if self.closed:
                raise trio.ClosedResourceError
            await self._link.taken.wait()

    async def run(self) -> None:
        await trio.sleep_forever()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        pass  # The readers' own tasks write.

    def tick(self, now: float) -> float:
        if self._link.streams.readers or self._link.posting:
            self.last_received_at = now
            self.confirm(now=True)
        return now + HEARTBEAT

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed = True
        self._link.changed.notify()
        self._link.taken.notify()
        self._link.arrived.notify()
        await trio.lowlevel.checkpoint()
