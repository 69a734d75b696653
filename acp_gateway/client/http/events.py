"""The event streams of a connection over Streamable HTTP: the connection's own, and one for each session.

A stream that ends properly is opened again. One that is cut off is opened again behind its last event, if events have
ids; without ids, what was on its way is lost, and that ends the connection.

Some servers know a session only once its agent has answered `session/load`, and yet send that answer in the session's
stream. So a stream that does not exist is asked for again as long as a request in its session has no response.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

import trio

from acp_gateway.client.http.connections import HttpPool
from acp_gateway.client.http.requests import ANSWER_TIMEOUT, messages_in, session_header
from acp_gateway.errors import GatewayError
from acp_gateway.protocol.event_parser import EVENTS, LAST_EVENT_ID, EventParser
from acp_gateway.transports.http.client import HttpClientConnection, Reply
from acp_gateway.transports.link import LOST
from acp_gateway.transports.streams import MessageTooLarge
from acp_gateway.transports.timers import Signal

log = logging.getLogger(__name__)

REPLY_SIZE: Final = 65536
"""Maximum bytes of the body of a refusal that are read."""

ATTEMPTS: Final = 6
"""Attempts at a stream that can't be opened, and at a request that the server refuses for now."""

PAUSE: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Seconds before the second of these attempts, twice as many before each further one, and the longest that a server may
ask for."""

MISSING_PAUSE: Final = 0.1
"""Seconds before a session's stream that does not exist is asked for again, twice as many each further time, up to
`PAUSE_MAX`: an agent may need a while to load a session."""

STEADY: Final = 5.0
"""Seconds for which a stream has to be open to count as usable, if nothing has come in it."""

QUIET: Final = 0.2
QUIET_TIMEOUT: Final = 10.0
"""Seconds without an event in a stream after which a session's history counts as complete, and the longest wait: the
response to `session/load` may come over another connection, and be faster."""

_OK: Final = 200
_CONFLICT: Final = 409
_FOR_NOW: Final = frozenset({429, 503})


class StreamOwner(NamedTuple):
    """The callbacks of the object that reads the streams."""

    arrive: Callable[[bytes, "EventStream"], Awaitable[None]]
    """Called with each message and its stream."""
    fail: Callable[[Exception | str], None]
    """Called if a stream can't be used any more, with the cause."""
    waits_for: Callable[[str], bool]
    """Returns whether a request in this session has no response."""


@dataclass(slots=True, eq=False)
class EventStream:
    """One event stream, over all its HTTP connections."""

    session: str | None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    settled: trio.Event = field(default_factory=trio.Event)
    """Set once it is open, or can't be opened."""
    again: Signal = field(default_factory=Signal)
    """Notified when it is to be asked for at once."""
    wanted: bool = False
    """True if it was wanted after the request for it was sent: the server may not have known its session then."""
    missing: int = 0
    """The number of answers in a row that it does not exist."""
    was_missing: bool = False
    """True if it did not exist at first: earlier events of its session are in the connection's stream."""
    last_event_id: str = ""
    last_event_at: float = -inf
    pause: float = PAUSE

    def __str__(self) -> str:
        return "the connection's stream" if self.session is None else f"the stream of session {self.session:.80}"

    def want(self) -> None:
        """Have it asked for now, if it does not exist yet."""
        self.wanted = True
        self.missing = 0
        self.again.notify()


class EventStreams:
    """Opens the event streams of one connection, and keeps them open.

    Args:
        pool: makes the requests.
        owner: its callbacks.
        max_message_size: maximum bytes of a message.
        too_large: the error for a larger one.
    """

    def __init__(self, pool: HttpPool, owner: StreamOwner, *, max_message_size: int, too_large: str) -> None:
        self._pool = pool
        self._owner = owner
        self._max_message_size = max_message_size
        self._too_large = too_large
        self._connection_id = ""
        self._streams: dict[str | None, EventStream] = {}

    def connected(self, connection_id: str) -> None:
        """Note the id of the connection, which precedes all streams."""
        self._connection_id = connection_id

    def __getitem__(self, session: str | None) -> EventStream | None:
        return self._streams.get(session)

    def start(self, nursery: trio.Nursery, session: str | None) -> EventStream:
        """Open a stream, or ask for it now if it does not exist yet."""
        stream = self._streams.get(session)
        if stream is None:
            stream = self._streams[session] = EventStream(session)
            nursery.start_soon(self._keep_open, stream)
        else:
            stream.want()
        return stream

    async def open(self, nursery: trio.Nursery, session: str | None) -> None:
        """Open a stream, and wait until the server has answered, or for `ANSWER_TIMEOUT`."""
        stream = self.start(nursery, session)
        with trio.move_on_after(ANSWER_TIMEOUT):
            await stream.settled.wait()

    def close(self, session: str) -> None:
        """Close the stream of a session."""
        stream = self._streams.pop(session, None)
        if stream is not None:
            stream.scope.cancel()

    def source_of_history(self, session: str, arrived_in: EventStream | None) -> EventStream | None:
        """Return the stream whose events have to precede the response to `session/load`; None if there is none."""
        stream = self._streams.get(session)
        if stream is not arrived_in:
            return stream
        return self._streams.get(None) if stream is not None and stream.was_missing else None

    async def wait_until_quiet(self, stream: EventStream) -> None:
        """Wait until a stream has been quiet for a moment."""
        until = trio.current_time() + QUIET_TIMEOUT
        quiet_at = trio.current_time() + QUIET
        while trio.current_time() < min(quiet_at, until):
            await trio.sleep_until(min(quiet_at, until))
            quiet_at = max(quiet_at, stream.last_event_at + QUIET)

    async def _keep_open(self, stream: EventStream) -> None:
        """Read a stream to its end, and open it again."""
        with stream.scope:
            failures = 0
            while failures < ATTEMPTS:
                stream.pause = PAUSE * 2.0**failures
                try:
                    goes_on = await self._read_once(stream)
                except (*LOST, GatewayError) as failure:
                    if isinstance(failure, MessageTooLarge) or not stream.last_event_id:
                        self._owner.fail(failure)
                        return
                    log.info("%s was cut off: %s", stream, failure)
                    goes_on = False
                failures = 0 if goes_on else failures + 1
                if self._streams.get(stream.session) is not stream:
                    return
                with trio.move_on_after(stream.pause):
                    await stream.again.wait()
            self._owner.fail(f"{stream} could not be opened again")

    async def _read_once(self, stream: EventStream) -> bool:
        """Read a stream over one HTTP connection; return whether it may be asked for again without end."""
        fields = {"Accept": EVENTS, "Acp-Connection-Id": self._connection_id} | session_header(stream.session)
        if stream.last_event_id:
            fields[LAST_EVENT_ID] = stream.last_event_id
        stream.wanted = False
        async with self._pool.begin(fields) as (head, http):
            if head.status == _OK and head.headers.get("content-type", "").lower().startswith(EVENTS):
                stream.missing = 0
                stream.settled.set()
                return await self._read_events(stream, http)
            reply = Reply(head.status, head.headers, await http.read_all(REPLY_SIZE))
        if head.status in _FOR_NOW or (head.status == _CONFLICT and not stream.last_event_id):
            # A conflict: the server has not noticed yet that the stream was cut off.
            stream.pause = reply.pause(stream.pause, PAUSE_MAX)
            return False
        if stream.session is not None and head.status != _CONFLICT:
            self._note_missing(stream, stream.session, reply)
            return True
        stream.last_event_id = ""
        raise trio.BrokenResourceError(f"the server refused {stream}: HTTP {head.status} ({reply.reason})")

    def _note_missing(self, stream: EventStream, session: str, reply: Reply) -> None:
        """Have a session's stream that does not exist asked for again, or give it up."""
        if not stream.was_missing:
            log.info("%s does not exist at the server: HTTP %d (%s)", stream, reply.status, reply.reason)
        stream.was_missing = True
        stream.settled.set()
        if stream.wanted:
            stream.pause = 0.0
        elif self._owner.waits_for(session):
            stream.pause = min(MISSING_PAUSE * 2.0**stream.missing, PAUSE_MAX)
            stream.missing = min(stream.missing + 1, 16)
        else:
            self._streams.pop(session, None)

    async def _read_events(self, stream: EventStream, http: HttpClientConnection) -> bool:
        parser = EventParser(self._max_message_size, stream.last_event_id)
        opened_at = trio.current_time()
        brought = False
        while data := await http.read():
            events = parser.feed(data)
            stream.last_event_id = parser.last_event_id
            for message in messages_in(events):
                brought = True
                await self._owner.arrive(message, stream)
                stream.last_event_at = trio.current_time()
            if parser.too_large:
                raise MessageTooLarge(self._too_large)
        if parser.in_event:
            raise trio.BrokenResourceError("the stream ended in the middle of an event")
        if parser.retry is not None:
            stream.pause = parser.retry
        elif brought:
            # Some servers end the stream after each event.
            stream.pause = 0.0
        return brought or trio.current_time() - opened_at >= STEADY
