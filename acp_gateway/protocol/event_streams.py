"""Event streams of Streamable HTTP: the messages for one client, sorted by stream, numbered and kept for a return.

A client has one stream for its connection and one for each session that it opens. A message goes into exactly one:

- responses to the methods that open a session go into the connection's stream, because the SDKs' clients wait for them
  there; any other response into the stream of its request's session;
- other messages that name a session go into its stream, all the rest into the connection's.

A session's stream has no reader if the client never opens it, or does not notice that it was cut. After `session/new`
and after a cut it is waited for; otherwise, and when that takes too long, the session's messages go into the
connection's stream. From then on all of them do, even if the client opens the session's stream: clients read their
streams concurrently, so that a message in another stream would overtake those before it.

Each event has the id `<epoch>.<count>` in its stream. Written events are kept, in a bounded number of bytes, because a
write tells nothing about their arrival: `Last-Event-ID` says where a client goes on, and without it the count of bytes
that the client's system has confirmed.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from urllib.parse import unquote

import msgspec

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.event_parser import COMMENT
from acp_gateway.protocol.jsonrpc import IdKey, InvalidMessage, Kind, Message, RawId
from acp_gateway.protocol.text import lookup

_OPENING: Final = frozenset({methods.NEW, methods.LOAD, methods.RESUME, methods.FORK})
_CREATING: Final = frozenset({methods.NEW, methods.FORK})

MAX_KEPT: Final = 32768
"""Written events that are kept at most, however small they are."""

EVENT_COST: Final = 256
"""Bytes of memory of an event besides its text."""

MAX_EMPTY: Final = 64
"""Streams without any event that are remembered when they have no reader: clients choose their names."""

MAX_ELSEWHERE: Final = 1024
"""Sessions that are remembered to be in the connection's stream. Others may change over to their own."""


class StreamTaken(Exception):
    """The stream has a reader already."""


class EventsGone(Exception):
    """The events behind a `Last-Event-ID` are not kept, or never were there."""


# Without `gc` because the garbage collector would traverse thousands of these.
class _Event(msgspec.Struct, gc=False, eq=False):
    number: int
    """Its number among all messages for the client."""
    count: int
    """Its number in its stream."""
    text: bytes


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    session: str | None
    fingerprint: int


@dataclass(slots=True, eq=False)
class EventStream:
    """The events of one stream, and the position of its reader."""

    session: str | None
    """None for the connection's stream."""
    events: deque[_Event] = field(default_factory=deque)
    """Written events that are kept, then those to be written."""
    written: int = 0
    """Number of written events, from the left."""
    count: int = 0
    """Number of events so far."""
    seen: int = 0
    """Count of the last event that a reader may have: it was written once, even if it is to be written again."""
    reader: object | None = None
    opened: bool = False
    """True once it had a reader."""
    lost: bool = False
    """True if events were cut off with a reader and are not kept any more."""
    forgotten: int = 0
    """Count of the last event that is not kept."""
    # Ends of the written events in the reader's bytes, with their counts, and the number of all its bytes.
    ends: deque[tuple[int, int]] = field(default_factory=deque)
    sent: int = 0

    waiting_bytes: int = 0
    """Bytes of the events to be written."""

    def comment(self) -> bytes:
        """Return an event that clients ignore; it keeps the connection of an idle stream alive in proxies."""
        self.sent += len(COMMENT)
        return COMMENT

    @property
    def waiting(self) -> bool:
        """True if events are to be written."""
        return self.written < len(self.events)


class EventStreams:
    """All event streams of one client.

    Args:
        epoch: distinguishes the ids of its events from those of other clients.
        kept: maximum bytes of written events, all streams together; a single larger one is kept all the same.
    """

    def __init__(self, epoch: str, kept: int) -> None:
        self._epoch = epoch
        self._id = b"id: %b." % epoch.encode()
        self._most = kept
        self._connection = EventStream(None)
        self._sessions: dict[str, EventStream] = {}
        # Open requests of the client.
        self._requests: dict[IdKey, _Request] = {}
        # Sessions whose messages are in the connection's stream, the first one at the beginning.
        self._elsewhere: dict[str, None] = {}
        # Sessions whose stream the client is expected to open.
        self._expected: set[str] = set()
        # Streams with events to be written.
        self._waiting: dict[EventStream, None] = {}
        # Sessions whose stream had a reader and never an event, the one that was left first at the beginning.
        self._empty: dict[str, None] = {}
        self._confirmed = 0
        self._kept: deque[tuple[EventStream, _Event]] = deque()
        # The client has shown an event id.
        self._resumes = False
        self._initialize: RawId | None = None
        self.initialized: bytes | None = None
        """The response to `initialize`, which is in no stream."""
        self.written_bytes = 0
        """Bytes of the written events that are kept."""
        self.taken_bytes = 0
        """Bytes of all events that were ever written."""
        self.number = 0
        """Messages so far."""
        self.readers = 0
        """Number of streams that are read."""

    # What the client sends

    def note_request(self, message: Message) -> None:
        """Remember where the response to a client's request belongs."""
        if message.method == methods.INITIALIZE:
            self._initialize = message.id
        else:
            self._requests[jsonrpc.id_key(message.id)] = _Request(message.method, message.session, hash(message.text))

    def is_repeated(self, message: Message) -> bool:
        """Return whether the very same request has come before and has no response yet: its POST was cut."""
        open_request = self._requests.get(jsonrpc.id_key(message.id))
        return open_request is not None and open_request.fingerprint == hash(message.text)

    # Messages for the client

    def put(self, text: bytes) -> EventStream | None:
        """Sort a message into its stream, and return that; None for the response to `initialize`."""
        self.number += 1
        try:
            session = jsonrpc.named_session(text)
        except InvalidMessage:
            message = _parsed(text)
            if message is not None and message.kind is Kind.RESPONSE and message.id == self._initialize:
                self._initialize = None
                self.initialized = text
                return None
            session = None if message is None else self._session_of(message)
        stream = self._connection if session is None else self._stream_of(session)
        stream.count += 1
        # Clients take a CR for the end of a line. In JSON it can only be white space.
        event = _Event(self.number, stream.count, text.replace(b"\r", b" ").replace(b"\n", b" "))
        stream.events.append(event)
        stream.waiting_bytes += len(event.text)
        self._waiting[stream] = None
        if stream is self._connection and session is not None:
            self._note_elsewhere(session)
        return stream

    def _session_of(self, message: Message) -> str | None:
        if message.kind is not Kind.RESPONSE:
            return message.session
        request = self._requests.pop(jsonrpc.id_key(message.id), None)
        if request is None:
            return None
        if request.method in _CREATING and not message.error:
            created = lookup.text_at(message.text, "result", "sessionId")
            if created is not None:
                self._expected.add(created)
                # The client opens the stream when it reads this response, behind what came before it.
                self._elsewhere.pop(created, None)
        return None if request.method in _OPENING else request.session

    def _stream_of(self, session: str) -> EventStream:
        stream = self._sessions.get(session)
        if stream is None and session in self._expected:
            stream = self._sessions[session] = EventStream(session)
        if stream is None or session in self._elsewhere or not (stream.opened or session in self._expected):
            return self._connection
        return stream

    def _note_elsewhere(self, session: str) -> None:
        self._elsewhere[session] = None
        if len(self._elsewhere) > MAX_ELSEWHERE:
            del self._elsewhere[next(iter(self._elsewhere))]

    def unread(self) -> list[EventStream]:
        """Return the streams of sessions in which messages wait for a reader."""
        return [stream for stream in self._waiting if stream.session is not None and stream.reader is None]

    def may_move(self, stream: EventStream) -> bool:
        """Return whether messages may go into the connection's stream that waited long enough for their own.

        After a reader was cut they do only if the connection's stream is read: else the client is away as a whole. A
        client that has shown an event id comes back and shows the next one.
        """
        if not stream.waiting or stream.reader is not None:
            return False
        return not stream.opened or (self._connection.reader is not None and not stream.lost and not self._resumes)

    def give_up_waiting(self, stream: EventStream) -> None:
        """Move what waits in a session's stream into the connection's: the client does not open the session's."""
        assert stream.session is not None
        self._expected.discard(stream.session)
        self._note_elsewhere(stream.session)
        moved = [*islice(stream.events, stream.written, None)]
        # Events before the moved ones can't be repeated any more: they would arrive behind them.
        stream.count -= len(moved)
        stream.forgotten = stream.count
        self.written_bytes -= sum(len(event.text) for event in islice(stream.events, stream.written))
        self._kept = deque(entry for entry in self._kept if entry[0] is not stream)
        stream.events.clear()
        stream.written = 0
        stream.seen = min(stream.seen, stream.count)
        # By number, between what waits there: a later response must not overtake them. What a reader may have keeps its
        # count.
        fixed = [event for event in self._connection.events if event.count <= self._connection.seen]
        behind = islice(self._connection.events, len(fixed), None)
        merged = sorted([*behind, *moved], key=lambda event: event.number)
        first = self._connection.seen + 1
        for count, event in enumerate(merged, first):
            event.count = count
        self._connection.count = first + len(merged) - 1
        self._connection.events = deque([*fixed, *merged])
        self._connection.waiting_bytes += stream.waiting_bytes
        self._waiting[self._connection] = None
        stream.waiting_bytes = 0
        del self._waiting[stream]
        if not stream.count:
            del self._sessions[stream.session]
            self._empty.pop(stream.session, None)

    # Readers

    def known_name(self, session: str | None) -> str | None:
        """Return the session that a header names: as it stands, if there is one of that id, else percent-decoded."""
        return session if session is None or session in self._sessions else unquote(session)

    def reader_of(self, session: str | None) -> object | None:
        """Return the reader of a stream; None without one."""
        stream = self._connection if session is None else self._sessions.get(session)
        return None if stream is None else stream.reader

    def open(self, session: str | None, last_event_id: str | None, reader: object) -> EventStream:
        """Give a stream a reader, which goes on behind the event of that id, or where the last reader was cut.

        Raises `StreamTaken` if it has one and no id proves that the same client is back, and `EventsGone`.
        """
        stream = self._connection if session is None else self._sessions.get(session) or EventStream(session)
        if stream.reader is not None and last_event_id is None:
            raise StreamTaken
        if stream.lost and last_event_id is None:
            raise EventsGone
        if last_event_id is not None:
            self._resume(stream, last_event_id)
            self._resumes = True
        if session is not None:
            self._sessions[session] = stream
            self._expected.discard(session)
            self._empty.pop(session, None)
        self.readers += stream.reader is None
        stream.reader, stream.opened, stream.lost = reader, True, False
        stream.ends.clear()
        stream.sent = 0
        return stream

    def _resume(self, stream: EventStream, last_event_id: str) -> None:
        epoch, _, number = last_event_id.rpartition(".")
        if epoch != self._epoch or not (number.isascii() and number.isdigit() and len(number) <= 15):
            raise EventsGone
        kept = stream.events[0].count if stream.events else stream.count + 1
        if not kept - 1 <= int(number) <= stream.seen:
            raise EventsGone
        # It may have more than its system has confirmed.
        unwritten = islice(stream.events, stream.written, None)
        self._note_written(stream, [event for event in unwritten if event.count <= int(number)])
        self._rewind(stream, int(number))

    def close(self, stream: EventStream, reader: object, unconfirmed: int) -> None:
        """Take the reader from a stream; the client's system has not confirmed so many of the reader's last bytes."""
        if stream.reader is not reader:
            return
        stream.reader = None
        self.readers -= 1
        if stream.session is not None and not stream.count:
            self._empty[stream.session] = None
            self._forget_empty()
        arrived = next((count for end, count in reversed(stream.ends) if end <= stream.sent - unconfirmed), None)
        if arrived is not None:
            self._rewind(stream, arrived)
        elif stream.ends:
            first = stream.ends[0][1]
            stream.lost = stream.forgotten >= first
            self._rewind(stream, max(first - 1, stream.forgotten))

    def _forget_empty(self) -> None:
        if len(self._empty) > MAX_EMPTY:
            session = next(iter(self._empty))
            del self._empty[session]
            if not self._sessions[session].count:
                del self._sessions[session]

    def _rewind(self, stream: EventStream, count: int) -> None:
        """Have the events behind the one with this count written again."""
        again = [event for event in islice(stream.events, stream.written) if event.count > count]
        if not again:
            return
        size = sum(len(event.text) for event in again)
        stream.written -= len(again)
        stream.waiting_bytes += size
        self._waiting[stream] = None
        self.written_bytes -= size
        self._kept = deque(entry for entry in self._kept if entry[0] is not stream or entry[1].count <= count)

    def take(self, stream: EventStream, max_bytes: int) -> bytes:
        """Return the next events of a stream in the format of `text/event-stream`; at least one if any is there."""
        # A stream may bring hundreds of thousands of events a second: what can wait for the last one does.
        taken: list[_Event] = []
        frames: list[bytes] = []
        size = 0
        events, start = stream.events, stream.sent
        for position in range(stream.written, len(events)):
            event = events[position]
            frame = b"%b%d\ndata: %b\n\n" % (self._id, event.count, event.text)
            if frames and size + len(frame) > max_bytes:
                break
            taken.append(event)
            frames.append(frame)
            size += len(frame)
            stream.ends.append((start + size, event.count))
        if taken:
            stream.sent += size
            stream.seen = max(stream.seen, taken[-1].count)
            self.taken_bytes += self._note_written(stream, taken)
            self._forget()
        return b"".join(frames)

    def _note_written(self, stream: EventStream, events: list[_Event]) -> int:
        """Note the first events to be written as written; return the bytes of their texts."""
        size = sum([len(event.text) for event in events])
        stream.written += len(events)
        stream.waiting_bytes -= size
        self._kept.extend([(stream, event) for event in events])
        self.written_bytes += size
        if not stream.waiting:
            self._waiting.pop(stream, None)
        return size

    def _forget(self) -> None:
        # One larger event is kept alone.
        kept, size = self._kept, self.written_bytes
        while (len(kept) > 1 and size > self._most) or len(kept) > MAX_KEPT:
            stream, event = kept.popleft()
            assert stream.events[0] is event  # Both hold the written events of a stream, in order.
            stream.events.popleft()
            stream.written -= 1
            stream.forgotten = event.count
            size -= len(event.text)
            # The last end before those that are kept tells that all of these are cut off.
            while len(stream.ends) > 1 and stream.ends[1][1] <= event.count:
                stream.ends.popleft()
        self.written_bytes = size

    @property
    def kept_bytes(self) -> int:
        """Memory of the events that are kept."""
        return self.written_bytes + EVENT_COST * len(self._kept)

    @property
    def pending_bytes(self) -> int:
        """Bytes that readers have not been written yet."""
        return sum(stream.waiting_bytes for stream in self._waiting if stream.reader is not None)

    @property
    def confirmed(self) -> int:
        """Number of messages, from the first one, that their sender need not keep.

        They are written; or they wait, but all that waits is little. So a stream that is not read any more does not
        stop the other ones.
        """
        number = self.number
        if sum(stream.waiting_bytes for stream in self._waiting) > self._most // 8:
            number = min(stream.events[stream.written].number for stream in self._waiting) - 1
        self._confirmed = max(self._confirmed, number)
        return self._confirmed


def _parsed(text: bytes) -> Message | None:
    try:
        return jsonrpc.parse(text)
    except InvalidMessage:
        return None
