"""One message a WebSocket text message: a thin Trio driver over the `websockets` library's sans-I/O protocol.

The library does the handshake and parses incoming bytes: frames, fragments, limits, pings, the closing handshake. Most
traffic bypasses it in two ways. Text messages of one frame each are cut out of the bytes that were read
(`frames`); from the first byte of anything else the library parses again. A server encodes its data frames
itself: no extension is negotiated and a server does not mask, so a frame is a short header before the message's own
bytes. Frames of the protocol object itself (pong, close) are written in the same order.

Some internals of the library are used, so `pyproject.toml` bounds its version: `reader.buffer`, `reader.discard` and
`current_size` here, to know what has begun, and `events` in `client`. A new major version needs a look at
these.

Rules from RFC 6455 and the remote transport of the Agent Client Protocol: text messages only, binary ones are ignored
unless `accept_binary` was called; outgoing frames of at most 16 MiB, the cap of clients written in Rust; 1009 for a
message that is too large; 1008 for a peer that stops reading; regular pings, with a deadline for the pong.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

import trio
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SERVER, Protocol, State

from acp_gateway.transports.framing import CLOSE_TIMEOUT, ByteWriter, ChunkBuffer, FramedStream
from acp_gateway.transports.streams import ByteStream, CloseReason, MessageTooLarge, Stalled, is_utf8
from acp_gateway.transports.websocket.frames import (
    FIN,
    FRAME_SIZE,
    MAX_MESSAGES,
    BegunFrame,
    FrameCounter,
    encode_once,
    frame_end,
    shortened,
    whole_texts,
)

PONG_BACKLOG: Final = 65536
"""Maximum bytes of pending pongs: a peer that pings and reads nothing must not fill the memory."""

_CLOSE_CODES: Final = {
    CloseReason.NORMAL: CloseCode.NORMAL_CLOSURE,
    CloseReason.GOING_AWAY: CloseCode.GOING_AWAY,
    CloseReason.POLICY: CloseCode.POLICY_VIOLATION,
    CloseReason.TOO_LARGE: CloseCode.MESSAGE_TOO_BIG,
    CloseReason.AGENT_GONE: CloseCode.INTERNAL_ERROR,
}

_PONG: Final = bytes((FIN | Opcode.PONG,))

# At DEBUG, the library would log requests with their headers, which hold tokens.
library_log = logging.getLogger("acp_gateway.websockets")
library_log.setLevel(logging.WARNING)


class Timing(NamedTuple):
    """Seconds between pings, until a pong counts as missing, and until a peer that reads nothing is disconnected."""

    ping_interval: float = 20.0
    ping_timeout: float = 20.0
    stall_timeout: float = 60.0


REFUSAL_HEADER: Final = "Acp-Gateway"
"""Header of the gateway's own refusals, with a machine-readable reason."""

CONNECTION_ID: Final = "Acp-Connection-Id"
"""Header with the id of a connection, and of the link that begins with it."""

PASSED: Final = "Acp-Gateway-Path"
"""Header of an upgrade request with the ids of the gateways that the connection comes through."""

RESUME: Final = "Acp-Gateway-Resume"
"""Header that requests a resumable link or resumes one, with the number of messages received over it."""

PART: Final = "Acp-Gateway-Part"
"""Header of a request and an answer for a resumable link with the part of the next message that was kept, see
`transports.parts`. An answer with it says that parts are understood."""

PROBES: Final = "Acp-Gateway-Probe"
"""Header of a gateway's answer for a resumable link that says that it answers probes."""


LIMIT: Final = "Acp-Gateway-Limit"
"""Header of such an answer with the maximum size of a message, see `protocol.size_limit`."""


class LibraryProtocol(Protocol):
    """The library's protocol, with the limit's setting in the close frame for a message that is too large."""

    size_setting = "max_message_size"

    idle = False
    """True if all input is parsed and neither a frame nor a fragmented message has begun: the next message may bypass
    the library."""

    def receive_data(self, data: bytes | bytearray) -> None:
        self.idle = False
        super().receive_data(data)

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        self.idle = not self.reader.buffer and self.current_size is None

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        if code == CloseCode.MESSAGE_TOO_BIG:
            reason = self.describe_limit()
        super().fail(code, reason)

    def describe_limit(self) -> str:
        """Return the reason why a message is too large."""
        return f"a message is larger than {self.size_setting} ({self.max_message_size} bytes) allows"


class WebSocketStream(FramedStream):
    """An open WebSocket. Made by `accept_websocket` and `connect_websocket`.

    After `EndOfChannel`, `close_code` and `close_text` hold the peer's close reason. Messages must be UTF-8, which the
    sender checks, since another text frame would end the connection.
    """

    transport = "websocket"

    __slots__ = (
        "_begun",
        "_binary",
        "_counter",
        "_fed",
        "_fragments",
        "_is_server",
        "_ping_due",
        "_ping_read",
        "_ping_written_at",
        "_pinged_at",
        "_pongs",
        "_protocol",
        "_timing",
        "_unread",
        "headers",
    )

    def __init__(
        self,
        protocol: LibraryProtocol,
        stream: ByteStream,
        timing: Timing,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        behind: bytes = b"",
    ) -> None:
        super().__init__(stream, stall_timeout=timing.stall_timeout)
        self.headers = headers
        """Headers of the server's response, for its client."""
        self._protocol = protocol
        self._is_server = protocol.side is SERVER
        # True if the protocol object may have events: at first, those that came along with the handshake.
        self._fed = True
        self._timing = timing
        # Unread bytes, and the finder of the ends of frames in them.
        self._unread = behind
        self._counter = FrameCounter()
        # An incomplete frame that bypasses the protocol object.
        self._begun: BegunFrame | None = None
        # True if binary messages count as well.
        self._binary = False
        # A message that has begun; None between messages, and in a binary one that does not count.
        self._fragments: ChunkBuffer | None = None
        # Bytes of pongs written since anything has been pending.
        self._pongs = 0
        # Time of the next ping; None before the first `tick`.
        self._ping_due: float | None = None
        # Time of the last ping, None once its pong has come; the time when it was written, which is later if it had to
        # wait; and the number of the read that was waiting then.
        self._pinged_at: float | None = None
        self._ping_written_at: float | None = None
        self._ping_read = 0

    @property
    def close_code(self) -> int | None:
        """Code of the peer's close frame; None before it, and if it had none."""
        received = self._protocol.close_rcvd
        return None if received is None else int(received.code)

    @property
    def close_text(self) -> str:
        """Text of the peer's close frame."""
        received = self._protocol.close_rcvd
        return "" if received is None else received.reason

    @property
    def ended_normally(self) -> bool:
        return self.close_code == CloseCode.NORMAL_CLOSURE

    def accept_binary(self) -> None:
        """Let binary messages count as text, for programs that send JSON in them."""
        self._binary = True

    # Receiving

    async def _receive_batch(self) -> list[bytes]:
        protocol = self._protocol
        messages: list[bytes] = []
        if self._unread:
            # One read may hold hundreds of batches, each of as many frames as the library takes at once.
            await trio.lowlevel.checkpoint()
        while True:
            if self._fed:
                self._fed = False
                texts = self._text_messages(protocol.events_received())
                messages += texts
                self.meter.frames += max(self._counter.small - len(texts), 0)
                self._counter.small = 0
                self._reply()
            if messages:
                return messages
            if protocol.state is not State.OPEN:
                self._raise_end()
            if self.meter.size or self.meter.frames:
                await self.meter.pay()
            data = self._unread or await self._read_on()
            self._unread = b""
            if protocol.idle and data:
                messages, data = self._bypass_library(data)
                if not data:
                    continue
                if len(messages) >= MAX_MESSAGES:
                    self._unread = data
                    return messages
            end = self._counter.cut(data)
            if data and not end:
                # The header is not complete.
                self._unread = data
                if messages:
                    return messages
                more = await self._read_on()
                if more:
                    self._unread = data + more
                    continue
                end = len(data)
            self._fed = True
            self._unread = data[end:]
            if data:
                protocol.receive_data(data[:end])
            else:
                protocol.receive_eof()

    def _bypass_library(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the messages that these bytes complete, and the bytes after them, for the library."""
        if self._begun is not None:
            data = self._begun.complete(data)
            if not data:
                return [], b""
            self._begun = None
        messages, end, missing = whole_texts(data, self._protocol.max_message_size, masked=self._is_server)
        rest = data[end:]
        if not missing:
            return messages, rest
        self._begun = BegunFrame(rest, missing)
        return messages, b""

    def _text_messages(self, events: Iterable[object]) -> list[bytes]:
        messages = []
        for frame in events:
            assert isinstance(frame, Frame)
            if frame.opcode is Opcode.TEXT or (self._binary and frame.opcode is Opcode.BINARY):
                if frame.fin:
                    messages.append(bytes(frame.data))
                    continue
                self._fragments = ChunkBuffer()
                self._fragments.add(bytes(frame.data))
            elif frame.opcode is Opcode.CONT and self._fragments is not None:
                self._fragments.add(bytes(frame.data))
                if frame.fin:
                    messages.append(self._fragments.take())
                    self._fragments = None
        for index, message in enumerate(messages):
            if not is_utf8(message):
                # RFC 6455, 8.1: the connection fails, and nothing behind this message counts.
                self._protocol.fail(CloseCode.INVALID_DATA, "a text message is not UTF-8")
                return messages[:index]
        return messages

    def _reply(self) -> None:
        """Write the replies of the protocol object. If that fails, the received messages count all the same."""
        replies = self._protocol.data_to_send()
        if not self._writer.pending:
            self._pongs = 0
        elif self._pongs > PONG_BACKLOG:
            replies = [frame for frame in replies if frame[:1] != _PONG]
        self._pongs += sum(len(frame) for frame in replies if frame[:1] == _PONG)
        try:
            self._write(b"".join(replies))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def _raise_end(self) -> None:
        """Raise the error for the end of the stream."""
        protocol = self._protocol
        if self._closing or protocol.close_sent is not None or protocol.close_rcvd is not None:
            self._forget_unfinished()
        if self._closing:
            raise trio.ClosedResourceError
        said = protocol.close_sent
        if said is not None and not protocol.close_rcvd_then_sent:
            match said.code:
                case CloseCode.MESSAGE_TOO_BIG:
                    raise MessageTooLarge(said.reason)
                case CloseCode.POLICY_VIOLATION:
                    raise Stalled(said.reason)
            raise trio.BrokenResourceError(f"the peer violated the protocol: {said.reason}")
        if protocol.close_rcvd is not None:
            raise trio.EndOfChannel
        raise trio.BrokenResourceError("the connection was lost: it ended without a closing handshake")

    def limit(self, max_message_size: int, size_setting: str) -> None:
        self._protocol.max_message_size = max_message_size
        self._protocol.size_setting = size_setting

    def too_large(self, size: int) -> MessageTooLarge | None:
        limit = self._protocol.max_message_size
        return None if limit is None or size <= limit else MessageTooLarge(self._protocol.describe_limit())

    @property
    def unfinished_bytes(self) -> int:
        begun = 0 if self._begun is None else self._begun.size
        fragments = 0 if self._fragments is None else self._fragments.size
        return begun + fragments + len(self._protocol.reader.buffer) + len(self._unread)

    def begun(self, size: int) -> bytes:
        # Of a frame that the library parses, as those of a fragmented message, only the end shows.
        if self._begun is not None:
            return self._begun.payload(masked=self._is_server)[:size]
        return b"" if self._fragments is None else self._fragments.begun(size)

    def _forget_unfinished(self) -> None:
        self._unread = b""
        self._begun = None
        self._fragments = None
        self._protocol.reader.discard()

    # Sending

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if self._closing:
            raise trio.ClosedResourceError
        if self._protocol.state is not State.OPEN:
            self._writer.raise_failure()
            raise trio.BrokenResourceError("the WebSocket is closing")
        if self._is_server:
            if messages:
                self._write(encode_once(messages))
            return
        for message in messages:
            first = message[:FRAME_SIZE]
            self._protocol.send_text(first, fin=len(first) == len(message))
            for start in range(FRAME_SIZE, len(message), FRAME_SIZE):
                end = start + FRAME_SIZE
                self._protocol.send_continuation(message[start:end], fin=end >= len(message))
        self._write(b"".join(self._protocol.data_to_send()))

    # Pings

    def tick(self, now: float) -> float:
        timing = self._timing
        if self._ping_due is None:
            self._ping_due = now + timing.ping_interval
        elif self._pinged_at is not None:
            if self._ping_written_at is None:
                # The ping waits behind a large message; `stall_timeout` bounds that.
                return now + timing.ping_timeout
            deadline = self._ping_written_at + timing.ping_timeout
            if now < deadline:
                return deadline
            # A pong counts as missing only if a task was reading all the time: messages may go unread because the agent
            # is busy.
            if self.last_received_at < self._pinged_at and self._ping_read and self._reading == self._ping_read:
                self._lose(f"the connection was lost: no pong within {timing.ping_timeout:g} s")
                return inf
            self._pinged_at = None
            self._ping_due = max(now, self._ping_written_at + timing.ping_interval)
        if now < self._ping_due:
            return self._ping_due
        return now + timing.ping_timeout if self._ping(now) else inf

    def _ping(self, now: float) -> bool:
        """Send a ping; return False if the connection has ended, which shows in the task that receives."""
        if self._protocol.state is not State.OPEN:
            return False
        self._pinged_at, self._ping_written_at = now, None
        try:
            self._protocol.send_ping(b"")
            self._write(b"".join(self._protocol.data_to_send()))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        if not self._writer.pending:
            self._all_written()
        return True

    def _all_written(self) -> None:
        if self._pinged_at is not None and self._ping_written_at is None:
            self._ping_written_at, self._ping_read = trio.current_time(), self._reading

    def _lose(self, why: str) -> None:
        """Close at once, as a lost connection."""
        assert self._spawner is not None
        self._spawner.spawn(self._close, trio.BrokenResourceError(why))

    async def _cut(self, error: Stalled) -> None:
        """Finish the frame that is partly written, send a close frame in case the peer reads again, and close."""
        last = ByteWriter(self.bytes)
        try:
            with trio.move_on_after(CLOSE_TIMEOUT):
                last.write(self._writer.begun(frame_end) + self._close_frame(CloseReason.POLICY, str(error)))
                await last.drain()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self._close(error)

    # Closing

    async def _send_end(self, reason: CloseReason, text: str) -> None:
        frame = self._close_frame(reason, text)
        if frame:
            self._writer.write(frame)
        await self._writer.drain()
        if self._protocol.close_rcvd is None:
            await self.bytes.finish()
        else:
            # The peer has sent its close frame, so nothing more has to be waited for.
            await self.bytes.send_eof()

    def _close_frame(self, reason: CloseReason, text: str) -> bytes:
        """Return what the protocol object still has to send, and a close frame if none was sent."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(_CLOSE_CODES[reason], shortened(text))
        return b"".join(self._protocol.data_to_send())
