"""One message a WebSocket text message: a thin Trio driver over the `websockets` library's sans-I/O protocol.

The library does the handshake and parses what comes in: frames, fragments, limits, pings, the closing handshake. Nearly
all traffic bypasses it in two ways. Text messages of one frame each are cut out of what was read until anything else
comes (`websocket_frames`); from its first byte on the library parses again. A server encodes its data frames itself:
no extension is negotiated and a server does not mask, so a frame is a short header before the message's own bytes. What
the protocol object sends by itself (pong, close) takes the same way out.

Some internals of the library are used, so `pyproject.toml` bounds its version: `reader.buffer`, `reader.discard` and
`current_size` here, to know what has begun, and `events` in `websocket_client`. A new major version needs a look at
these.

Rules kept here, from RFC 6455 and the remote transport of the Agent Client Protocol: text messages only, binary ones
are ignored; outgoing frames of at most 16 MiB, because clients written in Rust cap a frame there; 1009 for a message
that is too large; 1008 for a peer that stops reading; a ping every so often, with a deadline for the pong.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Final

import trio
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SERVER, Protocol, State

from acp_gateway.transports.framing import CLOSE_TIMEOUT, ByteWriter, ChunkBuffer, FramedStream
from acp_gateway.transports.streams import ByteStream, CloseReason, MessageTooLarge, Stalled, is_utf8
from acp_gateway.transports.websocket_frames import (
    FIN,
    FRAME_SIZE,
    MAX_MESSAGES,
    BegunFrame,
    FrameCounter,
    encode_once,
    encode_text,
    frame_end,
    shortened,
    whole_texts,
)

PONG_BACKLOG: Final = 65536
"""Bytes of pongs that wait for a peer at most: one that pings and takes nothing must not fill the memory."""

_CLOSE_CODES: Final = {
    CloseReason.NORMAL: CloseCode.NORMAL_CLOSURE,
    CloseReason.GOING_AWAY: CloseCode.GOING_AWAY,
    CloseReason.POLICY: CloseCode.POLICY_VIOLATION,
    CloseReason.TOO_LARGE: CloseCode.MESSAGE_TOO_BIG,
    CloseReason.AGENT_GONE: CloseCode.INTERNAL_ERROR,
}

_PONG: Final = bytes((FIN | Opcode.PONG,))

# The library logs requests with their headers, tokens among them, where DEBUG is on. It never is for this logger.
library_log = logging.getLogger("acp_gateway.websockets")
library_log.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: between pings, until a pong counts as missing, until a peer that takes nothing is cut."""

    ping_interval: float = 20.0
    ping_timeout: float = 20.0
    stall_timeout: float = 60.0


MARK: Final = "Acp-Gateway"
"""A header that the gateway's own refusals have, with a word that says why."""

CONNECTION_ID: Final = "Acp-Connection-Id"
"""The header that names a connection, and the link that it is the first connection of."""

RESUME: Final = "Acp-Gateway-Resume"
"""The header that asks for a link that can be resumed, or resumes one: how many messages of it have been received."""


class LibraryProtocol(Protocol):
    """The library's protocol, which says in the close frame which setting a message was too large for."""

    size_setting = "max_message_size"

    idle = False
    """True if all input is parsed and nothing has begun: no frame, and no message in fragments. So a whole message may
    bypass the library."""

    def receive_data(self, data: bytes | bytearray) -> None:
        self.idle = False
        super().receive_data(data)

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        self.idle = not self.reader.buffer and self.current_size is None

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        if code == CloseCode.MESSAGE_TOO_BIG:
            reason = f"a message is larger than {self.size_setting} ({self.max_message_size} bytes) allows"
        super().fail(code, reason)


class WebSocketStream(FramedStream):
    """An open WebSocket. Made by `accept_websocket` and `connect_websocket`.

    `close_code` and `close_text` tell after `EndOfChannel` what the peer said when it closed. Messages must be UTF-8:
    senders check it, since a text frame that is not would end the connection.
    """

    __slots__ = (
        "_ahead",
        "_asked_at",
        "_begun",
        "_counter",
        "_fed",
        "_fragments",
        "_is_server",
        "_left_at",
        "_left_while",
        "_ping_due",
        "_pongs",
        "_protocol",
        "_timing",
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
        """Those of the server's answer, for its client."""
        self._protocol = protocol
        self._is_server = protocol.side is SERVER
        # Whether there may be something that the protocol object has made of what it was given: at first, of what came
        # along with the handshake.
        self._fed = True
        self._timing = timing
        # What was read and not looked at yet, and where its frames end.
        self._ahead: bytes | bytearray = behind
        self._counter = FrameCounter()
        # A frame that goes past the protocol object, and of which more is to come.
        self._begun: BegunFrame | None = None
        # A text message that has begun; None between messages and in a binary one.
        self._fragments: ChunkBuffer | None = None
        # Bytes of pongs handed over since something has been pending.
        self._pongs = 0
        # When the next ping is due; None before the first `tick`.
        self._ping_due: float | None = None
        # When the last one was sent, None once it was seen to that it was answered; when it left, which is later where
        # it had to wait, and in which read a task was waiting then.
        self._asked_at: float | None = None
        self._left_at: float | None = None
        self._left_while = 0

    @property
    def close_code(self) -> int | None:
        """The code of the peer's close frame, None before and where it sent none."""
        received = self._protocol.close_rcvd
        return None if received is None else int(received.code)

    @property
    def close_text(self) -> str:
        """The reason in the peer's close frame."""
        received = self._protocol.close_rcvd
        return "" if received is None else received.reason

    @property
    def ended_politely(self) -> bool:
        return self.close_code == CloseCode.NORMAL_CLOSURE

    # Receiving

    async def _receive_batch(self) -> list[bytes]:
        protocol = self._protocol
        messages: list[bytes] = []
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
            data = self._ahead or await self._read_on()
            self._ahead = b""
            if protocol.idle and data:
                messages, data = self._past_library(data)
                if not data:
                    continue
                if len(messages) >= MAX_MESSAGES:
                    self._ahead = data
                    return messages
            end = self._counter.cut(data) if self._is_server else len(data)
            if data and not end:
                # Not even a header.
                self._ahead = data
                if messages:
                    return messages
                more = await self._read_on()
                if more:
                    self._ahead = data + more
                    continue
                end = len(data)
            self._fed = True
            self._ahead = data[end:]
            if data:
                protocol.receive_data(data[:end])
            else:
                protocol.receive_eof()

    def _past_library(self, data: bytes | bytearray) -> tuple[list[bytes], bytes | bytearray]:
        """Return the messages that are complete with these bytes, and the bytes behind them, for the library."""
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
            if frame.opcode is Opcode.TEXT:
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
        """Write what the protocol object answers by itself. If that fails, what has come counts all the same."""
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
        """Raise the error that says why no more messages come."""
        self._forget_unfinished()
        protocol = self._protocol
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

    @property
    def unfinished_bytes(self) -> int:
        begun = 0 if self._begun is None else self._begun.size
        fragments = 0 if self._fragments is None else self._fragments.size
        return begun + fragments + len(self._protocol.reader.buffer) + len(self._ahead)

    def _forget_unfinished(self) -> None:
        self._ahead = b""
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
                self._write(encode_once(messages) if len(messages) > 1 else encode_text(messages))
            return
        for message in messages:
            first = message[:FRAME_SIZE]
            self._protocol.send_text(first, fin=len(first) == len(message))
            for start in range(FRAME_SIZE, len(message), FRAME_SIZE):
                end = start + FRAME_SIZE
                self._protocol.send_continuation(message[start:end], fin=end >= len(message))
        self._write(b"".join(self._protocol.data_to_send()))

    # By itself

    def tick(self, now: float) -> float:
        timing = self._timing
        if self._ping_due is None:
            self._ping_due = now + timing.ping_interval
        elif self._asked_at is not None:
            if self._left_at is None:
                # A ping behind a large message has not left yet. Whether the peer takes that is `stall_timeout`'s.
                return now + timing.ping_timeout
            deadline = self._left_at + timing.ping_timeout
            if now < deadline:
                return deadline
            # A pong counts as missing only if a task was reading all the while: a peer whose messages are not read
            # because the agent is busy has done nothing wrong.
            if self.last_received_at < self._asked_at and self._left_while and self._reading == self._left_while:
                self._lose(f"the connection was lost: no pong within {timing.ping_timeout:g} s")
                return inf
            self._asked_at = None
            self._ping_due = max(now, self._left_at + timing.ping_interval)
        if now < self._ping_due:
            return self._ping_due
        return now + timing.ping_timeout if self._ping(now) else inf

    def _ping(self, now: float) -> bool:
        """Ask for a sign of life; False where the connection has ended, which shows in the task that receives."""
        if self._protocol.state is not State.OPEN:
            return False
        self._asked_at, self._left_at = now, None
        try:
            self._protocol.send_ping(b"")
            self._write(b"".join(self._protocol.data_to_send()))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        if not self._writer.pending:
            self._all_written()
        return True

    def _all_written(self) -> None:
        if self._asked_at is not None and self._left_at is None:
            self._left_at, self._left_while = trio.current_time(), self._reading

    def _lose(self, why: str) -> None:
        """Close at once, as what was lost."""
        assert self._spawner is not None
        self._spawner.spawn(self._close, trio.BrokenResourceError(why))

    async def _cut(self, error: Stalled) -> None:
        """Finish the frame that has begun to leave, say goodbye should the peer wake up, and close."""
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
        goodbye = self._close_frame(reason, text)
        if goodbye:
            self._writer.write(goodbye)
        await self._writer.drain()
        if self._protocol.close_rcvd is None:
            await self.bytes.finish()
        else:
            # A peer that has said goodbye as well sends nothing more that would have to be waited for.
            await self.bytes.send_eof()

    def _close_frame(self, reason: CloseReason, text: str) -> bytes:
        """Return a close frame, where there was none yet, behind what the protocol object still wants to say."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(_CLOSE_CODES[reason], shortened(text))
        return b"".join(self._protocol.data_to_send())


async def send_all(stream: ByteStream, data: bytes) -> None:
    """Write bytes of a handshake, before there is a stream of messages that does it."""
    view = memoryview(data)
    while view:
        view = view[await stream.send_some(view) :]
