"""The server's side of one HTTP/2 connection: requests at the same time, each as if it had a connection to itself.

h2 parses and frames. One task reads (`receive_request`), one writes (`write`), and the task of a request sends its
response. What is kept for a client is bounded: data is framed as far as the client's windows allow, and only while less
than `MAX_UNSENT` bytes wait to be written; what it sends is acknowledged when it is taken.

A request that waits for its own window delays no other. Those that wait for what all share, the connection's window and
the room in what is written, stand in line and get a frame each.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from http import HTTPStatus
from math import inf
from struct import pack
from typing import Final

import trio
from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, FlowControlError, ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes, Settings
from hpack import HeaderTuple, NeverIndexedHeaderTuple

from acp_gateway.transports.framing import CLOSE_TIMEOUT, ChunkBuffer
from acp_gateway.transports.http import http2_frames as frames
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.http2_head import CONNECTION_FIELDS, NOT_SOUND, read_head
from acp_gateway.transports.http.server import (
    MANY_PARTS,
    TOO_LONG,
    UNMEASURED,
    Fields,
    HttpConnection,
    Part,
    Request,
    SmallPieces,
    date,
    read_fields,
)
from acp_gateway.transports.maintained import SLOWEST_PEER
from acp_gateway.transports.streams import ByteStream, Stalled
from acp_gateway.transports.timers import Signal

MAX_STREAMS: Final = 100
"""Requests of one connection at the same time: the least that RFC 9113 recommends, and what clients assume."""

STREAM_WINDOW: Final = 262144
"""Bytes of a body that may wait for their handler: 2.5 MB a second, where an answer takes a tenth of one."""

CONNECTION_WINDOW: Final = 16 * STREAM_WINDOW
"""Bytes of all bodies that may wait once the client is trusted: those of 16 requests, the most of one link, delay
no other. Before, it is 64 KiB, with which each connection begins."""

HEADS_SIZE: Final = 4 * frames.BLOCK_SIZE
TRUSTED_HEADS_SIZE: Final = 16 * frames.BLOCK_SIZE
"""Bytes that the heads of requests at the same time may have, before and after the client is trusted: those of 100
requests, of 2.6 or 10 KB each. A few bytes may stand for thousands that were sent before (RFC 7541)."""

MAX_UNSENT: Final = 65536
"""Bytes of frames that wait to be written, above which no data is framed; with twice as many, nothing is read."""

FRAMES_AT_ONCE: Final = 16
"""Frames after which other tasks get their turn: a frame takes up to 0.1 ms."""

TABLE_SIZE: Final = 4096
"""Bytes of headers that are remembered to compress responses, whatever a client allows: all are searched for each."""

_SECRET: Final = (b"set-cookie", b"acp-connection-id")
"""Fields whose values no compression may reveal."""

_START_WINDOW: Final = 65535
_GOAWAY: Final = 0x7
_BODILESS: Final = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)

_REASONS: Final[dict[type[ProtocolError], str]] = {
    DenialOfServiceError: f"the headers of a request must not have more than {frames.BLOCK_SIZE} bytes",
    TooManyStreamsError: f"more than {MAX_STREAMS} requests at the same time",
    FlowControlError: "more data than its window allows",
}
"""Texts for h2's errors, whose own words may have values of headers."""


_CONFIGURATION: Final = H2Configuration(
    client_side=False,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
"""Heads are checked when they are read (`http2_head`), and responses are the gateway's own."""


class _Parser(H2Connection):
    """Remembers fewer requests that have ended: 65,536 would take five megabytes."""

    MAX_CLOSED_STREAMS = 1024


class Http2Stream(ByteStream):
    """A request and its response, and the bytes of both bodies. Made by an `Http2Connection`."""

    behind: Final = b""
    may_be_followed: Final = False

    def __init__(self, connection: "Http2Connection", number: int, fields: Sequence[tuple[bytes, bytes]]) -> None:
        self.number, self.fields = number, fields
        """Its number on the connection, and the fields of its head."""
        self.scope = trio.CancelScope()
        """Cancelled when the client resets the request."""
        self.head_size = sum(len(name) + len(value) + 32 for name, value in fields)
        """Size of its head, as RFC 9113, 6.5.2, counts."""
        self.announced: int | None = 0
        """Bytes of the request's body; None if only its end will tell."""
        self.body = bytearray()
        """Data of the request that was not taken yet."""
        self.frames, self.body_ended = 0, False
        """Frames of data that have come, and whether the last one has."""
        self.ended = False
        """True if all of the response was sent."""
        self.lost = False
        """True if the request was reset, or its task has ended."""
        self.changed = Signal()
        """Notified when data has come, or the window may be larger."""
        self._connection = connection
        self._started = False
        # True if the response has no body, whatever its headers say.
        self._bodiless = (b":method", b"HEAD") in fields
        # Bytes of the response's body that are announced and were not given yet; None if its end will tell.
        self._unsent: int | None = None
        # Data that the client's system may not have; None until that is asked for.
        self._parts: deque[Part] | None = None

    def _check(self) -> None:
        if self.lost or self._connection.closed:
            raise trio.BrokenResourceError("the client has reset the request")

    # The request

    def take(self) -> bytes:
        """Return the data that is there, and acknowledge it."""
        data = bytes(self.body)
        self.body.clear()
        self._connection.acknowledge(self.number, len(data))
        return data

    async def receive_some(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while not (self.body or self.body_ended):
            self._check()
            await self.changed.wait()
        return self.take()

    def go_on(self) -> None:
        """Send the client an interim response if it waits for one before it sends the body."""
        self._check()
        if (b"expect", b"100-continue") in self.fields and not (self._started or self.frames):
            self._connection.h2.send_headers(self.number, [(b":status", b"100")])
            self._connection.queue()

    def is_whole(self) -> bool:
        """Return True: what is not read of it is in no one's way."""
        return True

    # The response

    def head(self, status: int, headers: Fields, *, chunked: bool) -> bytes:
        """Send the head of the response; no bytes are left to be sent."""
        self._check()
        if self._started:
            raise trio.BrokenResourceError("the request was answered before")
        pairs, length = read_fields(headers, chunked=chunked)
        self._started = True
        self._bodiless |= status in _BODILESS
        self._unsent = None if chunked else length or 0
        fields = [HeaderTuple(b":status", b"%d" % status)]
        for name, value in (*pairs, ("Date", date())):
            if (lower := name.lower()) not in CONNECTION_FIELDS:
                field = lower.encode("ascii"), value.encode("latin-1")
                fields.append(NeverIndexedHeaderTuple(*field) if field[0] in _SECRET else HeaderTuple(*field))
        self.ended = self._bodiless or self._unsent == 0
        self._connection.h2.send_headers(self.number, fields, end_stream=self.ended)
        self._connection.queue(pays=True)
        return b""

    def data(self, data: bytes) -> bytes:
        """Return a part of the body. Raises `BrokenResourceError` for more than was announced."""
        if self._bodiless:
            return b""
        if self._unsent is not None:
            if len(data) > self._unsent:
                raise trio.BrokenResourceError(TOO_LONG)
            self._unsent -= len(data)
        return data

    def end(self) -> bytes:
        """End the body, unless it has less than was announced; no bytes are left to be sent."""
        if not (self.ended or self._unsent):
            self._check()
            self.ended = True
            self._connection.h2.end_stream(self.number)
            self._connection.queue()
        return b""

    def send_nowait(self, data: memoryview) -> int:
        self._check()
        sent = 0
        while sent < len(data) and not self._connection.line.locked() and (size := self._send(data[sent:])):
            sent += size
        return sent

    async def send_some(self, data: memoryview) -> int:
        while True:
            async with self._connection.room():
                self._check()
                if sent := self._send(data):
                    return sent
            await self.changed.wait()

    def _send(self, data: memoryview) -> int:
        """Frame the beginning of the data, with the end of the body if that is behind; return its size, 0 for none."""
        connection = self._connection
        size = min(len(data), connection.room_for(self.number))
        if size <= 0:
            return 0
        self.ended = self._unsent == 0 and size == len(data)
        connection.h2.send_data(self.number, data[:size], end_stream=self.ended)
        connection.queue(pays=True)
        if self._parts is not None:
            self._parts.append(Part(connection.queued_bytes - size, size, connection.queued_bytes))
            if len(self._parts) > MANY_PARTS:
                self._forget_confirmed()
        return size

    async def send_eof(self) -> None:
        self.end()
        await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        """Do nothing: what was sent is written while the connection lasts."""

    def count_unconfirmed(self) -> None:
        self._parts = deque()
        self._connection.count_unconfirmed()

    @property
    def unconfirmed_bytes(self) -> int:
        confirmed = self._forget_confirmed()
        return sum(part.missing(confirmed) for part in self._parts or ())

    def _forget_confirmed(self) -> int:
        """Forget the data that has arrived; return the number of confirmed bytes of the connection."""
        confirmed = self._connection.confirmed_bytes
        while self._parts and self._parts[0].end <= confirmed:
            self._parts.popleft()
        return confirmed

    async def aclose(self) -> None:
        """End the request; reset it if the client waits for more, or sends more."""
        self._connection.end(self)
        await trio.lowlevel.checkpoint()


class Http2Request(HttpConnection):
    """A request and its response: a connection that has no other one."""

    def __init__(self, stream: Http2Stream, stall_timeout: float) -> None:
        super().__init__(stream, stall_timeout, stream)
        self.scope = stream.scope
        """Cancelled when the client resets the request."""
        self._message = stream
        self._is_read = False

    async def receive_request(self, measured: AbstractContextManager[None] | None = None) -> Request | None:
        """Return the head of the request, once. Raises `HttpError`."""
        if self._is_read:
            return None
        self._is_read = True
        with measured or UNMEASURED:
            request, announced = read_head(self._message.fields)
        if self._message.body_ended and not self._message.frames:
            if announced:
                raise HttpError(HTTPStatus.BAD_REQUEST, NOT_SOUND)
            announced = 0
        self._message.announced = announced
        return request

    @property
    def body_is_there(self) -> bool:
        return self._message.body_ended

    async def _receive_body(self, limit: int, received: Callable[[int, int], Awaitable[None]], timeout: float) -> bytes:
        message, began = self._message, trio.current_time()
        body, pieces = ChunkBuffer(), SmallPieces()
        message.go_on()
        while True:
            if data := message.take():
                body.add(data)
                if body.size > limit:
                    text = f"the body has more than the {limit:,} bytes that it may have"
                    raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
                await received(len(data), pieces.count(message.frames, body.size))
            elif message.body_ended:
                return body.take()
            else:
                with trio.move_on_at(began + timeout + body.size / SLOWEST_PEER) as waiting:
                    await message.changed.wait()
                if waiting.cancelled_caught:
                    raise HttpError(HTTPStatus.REQUEST_TIMEOUT, f"the body is not complete after {timeout:g} s")

    async def receive_part(self) -> bytes:
        self._message.go_on()
        return await self._message.receive_some()

    async def wait_left(self, *, last: bool = False) -> None:
        """Wait for ever: the task of a request that is reset is cancelled."""
        await trio.sleep_forever()


class Http2Connection:
    """Receives the requests of a client, and writes their responses: see the module.

    Args:
        stream: the connection, whose TLS has chosen `h2`.
        stall_timeout: seconds after which a client that takes no byte is given up.
        frame_timeout: seconds within which a frame or a header block must be complete, and four more.
    """

    def __init__(self, stream: ByteStream, stall_timeout: float = inf, frame_timeout: float = inf) -> None:
        self.closed = False
        """True if nothing is received or sent any more."""
        self.queued_bytes = 0
        """Bytes of all frames so far."""
        self.line = trio.StrictFIFOLock()
        """Held by the request that is the next to send data, while it waits for what all share."""
        self._stream = stream
        self._stall_timeout = stall_timeout
        self._patience = frame_timeout + frames.FRAME_SIZE / SLOWEST_PEER
        self.h2 = _Parser(_CONFIGURATION)
        self.h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: frames.BLOCK_SIZE,
            },
        )
        self._frames = frames.FrameReader()
        self._received = 0
        # The requests whose tasks have not ended.
        self._streams: dict[int, Http2Stream] = {}
        # Frames that were not given to the stream, and the ones before them, which it may have taken in part.
        self._unsent = bytearray()
        self._writing = memoryview(b"")
        # Notified when there is something to write, and when something was written or the connection's window opened.
        self._queued = Signal()
        self._changed = Signal()
        self._counts = self._trusts = False
        self.h2.initiate_connection()
        self.queue()

    # Requests

    async def receive_request(self, measured: Callable[[], AbstractContextManager[None]]) -> Http2Request | None:
        """Wait for the next request; return None if the client has closed the connection instead.

        Frames are cut and parsed within the contexts that `measured` returns. Raises `Http2Error`, and what the stream
        raises. Cancelled, it may lose bytes: the connection is to be closed.
        """
        while True:
            with measured():
                frame = self._frames.take(trio.current_time())
                stream = None if frame is None else self._receive(frame)
            if frame is None:
                if not await self._read():
                    return None
                continue
            self._received += 1
            if self._received % FRAMES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            # A client that does not read what it is answered is not read.
            while self._pending > 2 * MAX_UNSENT:
                await self._changed.wait()
            if stream is not None:
                return Http2Request(stream, self._stall_timeout)

    async def _read(self) -> bool:
        """Wait for bytes; return False at their end."""
        with trio.move_on_at(self._frames.begun_at + self._patience):
            data = await self._stream.receive_some()
            self._frames.add(data)
            return bool(data)
        text = f"a frame or a header block is not complete after {self._patience:g} s"
        raise frames.Http2Error(frames.PROTOCOL_ERROR, text)

    def _receive(self, frame: bytes) -> Http2Stream | None:
        """Handle a frame; return the request whose head it has completed."""
        try:
            events = self.h2.receive_data(frame)
        except ProtocolError as error:
            self.closed = True
            text = _REASONS.get(type(error), f"a frame is not sound ({type(error).__name__})")
            raise frames.Http2Error(error.error_code, text) from None
        if not events and frames.ends_head(frame):
            # h2 has read it, and refused it for a request that was reset.
            self._frames.charge(frames.RESET_COST, "HEADERS", trio.current_time())
        begun = None
        for event in events:
            if isinstance(event, h2_events.RequestReceived):
                begun = self._begin(event)
            else:
                self._handle(event, self._streams.get(getattr(event, "stream_id", 0)))
        self.queue()
        return begun

    def _begin(self, event: h2_events.RequestReceived) -> Http2Stream | None:
        stream = Http2Stream(self, event.stream_id, event.headers)
        heads = stream.head_size + sum(each.head_size for each in self._streams.values())
        # The tasks of requests that were reset may not have ended yet.
        if len(self._streams) >= MAX_STREAMS or heads > (TRUSTED_HEADS_SIZE if self._trusts else HEADS_SIZE):
            self.h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            self._frames.charge(frames.RESET_COST, "HEADERS", trio.current_time())
            return None
        self._streams[event.stream_id] = stream
        return stream

    def _handle(self, event: h2_events.Event, stream: Http2Stream | None) -> None:
        """Handle what has come for a request, or for all; None for one that has ended."""
        if isinstance(event, h2_events.RemoteSettingsChanged):
            if self.h2.encoder.header_table_size > TABLE_SIZE:
                self.h2.encoder.header_table_size = TABLE_SIZE
            for each in self._streams.values():
                each.changed.notify()
        elif isinstance(event, h2_events.WindowUpdated) and event.stream_id == 0:
            self._changed.notify()
        elif isinstance(event, h2_events.DataReceived):
            taken = b"" if stream is None else event.data
            # Padding, and the data of a request that has ended.
            self.acknowledge(event.stream_id, event.flow_controlled_length - len(taken))
        elif isinstance(event, h2_events.StreamReset) and not event.remote_reset:
            # What makes this end reset a request costs as much.
            self._frames.charge(frames.RESET_COST, "WINDOW_UPDATE", trio.current_time())
        if stream is None:
            return
        if isinstance(event, h2_events.DataReceived):
            stream.body += event.data
            stream.frames += 1
        elif isinstance(event, h2_events.StreamEnded):
            stream.body_ended = True
        elif isinstance(event, h2_events.StreamReset):
            stream.lost = True
            stream.scope.cancel()
        stream.changed.notify()

    def acknowledge(self, number: int, size: int) -> None:
        """Let the client send as many bytes more."""
        if size:
            self.h2.acknowledge_received_data(size, number)
            self.queue()

    def trust(self) -> None:
        """Let more of the bodies wait for their handlers: the client has shown who it is. May be repeated."""
        if not (self._trusts or self.closed):
            self._trusts = True
            self.h2.increment_flow_control_window(CONNECTION_WINDOW - _START_WINDOW)
            self.queue()

    def end(self, stream: Http2Stream) -> None:
        """Forget a request whose task has ended. May be repeated."""
        if self._streams.pop(stream.number, None) is not None and not self.closed:
            stream.take()
            if not (stream.lost or (stream.ended and stream.body_ended)):
                with suppress(ProtocolError):
                    self.h2.reset_stream(stream.number, ErrorCodes.NO_ERROR if stream.ended else ErrorCodes.CANCEL)
            self.queue()
        stream.lost = True

    # Responses

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """Wait until a frame of data may be sent, in the order of asking; the others wait for this block."""
        async with self.line:
            while self.h2.outbound_flow_control_window <= 0 or self._pending >= MAX_UNSENT:
                await self._changed.wait()
            yield

    def room_for(self, number: int) -> int:
        """Return the bytes that a request may send in one frame now; below 1 for none."""
        return min(self.h2.local_flow_control_window(number), frames.FRAME_SIZE, MAX_UNSENT - self._pending)

    def queue(self, *, pays: bool = False) -> None:
        """Have the frames written that h2 has made; a response `pays` for frames of the client."""
        data = self.h2.data_to_send()
        if data:
            self._unsent += data
            self.queued_bytes += len(data)
            self._queued.notify()
        if pays:
            self._frames.note_sent()

    @property
    def _pending(self) -> int:
        return len(self._unsent) + len(self._writing)

    async def write(self) -> None:
        """Write frames until cancelled, which loses none. Raises what the stream raises."""
        while True:
            while not self._pending:
                await self._queued.wait()
            with trio.move_on_after(self._stall_timeout) as waiting:
                sent = await self._stream.send_some(self._next())
            if waiting.cancelled_caught:
                raise Stalled(f"the client has taken nothing for {self._stall_timeout:g} s")
            self._writing = self._writing[sent:]
            self._changed.notify()

    def _next(self) -> memoryview:
        """Return what is to be written next: what the stream was offered before, and only then what came after."""
        if not self._writing:
            self._writing = memoryview(bytes(self._unsent))
            self._unsent.clear()
        return self._writing

    def count_unconfirmed(self) -> None:
        """Have `confirmed_bytes` tell of what is written from now on. May be repeated."""
        if not self._counts:
            self._counts = True
            self._stream.count_unconfirmed()

    @property
    def confirmed_bytes(self) -> int:
        """Bytes of all frames that the client's system has confirmed, as far as this system tells."""
        return self.queued_bytes - self._pending - self._stream.unconfirmed_bytes

    # The end

    def go_away(self, code: int = 0, text: str = "") -> None:
        """Tell the client that the connection ends, and why, as far as it takes that at once. To be called when `write`
        and all requests have ended.

        The client knows of later requests that nothing was done for them (RFC 9113, 6.8).
        """
        self.closed = True
        said = pack(">LL", self.h2.highest_inbound_stream_id, code) + text.encode()
        self._unsent += len(said).to_bytes(3, "big") + bytes([_GOAWAY, 0, 0, 0, 0, 0]) + said
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while self._pending and (sent := self._stream.send_nowait(self._next())):
                self._writing = self._writing[sent:]

    async def aclose(self) -> None:
        """Close the connection once the client has read what was written, or does not in a bounded time."""
        self.closed = True
        try:
            with trio.move_on_after(CLOSE_TIMEOUT):
                while self._pending:
                    sent = await self._stream.send_some(self._next())
                    self._writing = self._writing[sent:]
                await self._stream.finish()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self._stream.aclose()
