"""One message a WebSocket text message: a thin Trio driver over the `websockets` library's sans-I/O protocol.

The library does the handshake and everything inbound: frames, fragments, limits, pings, the closing handshake. On the
server, outgoing data frames are encoded here: no extension is negotiated and a server doesn't mask, so a frame is a
short header before the message's own bytes. What the protocol object wants to say itself (pong, close) takes the same
way out.

Rules kept here, from RFC 6455 and the remote transport of the Agent Client Protocol: text messages only, binary ones
are ignored; outgoing frames of at most 16 MiB, because clients written in Rust cap a frame there; 1009 for a message
that is too large; 1008 for a peer that stops reading; a ping every so often, with a deadline for the pong.
"""

import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import SERVER, Protocol, State
from websockets.uri import WebSocketURI

from acp_gateway.errors import ProtocolError
from acp_gateway.transports.base import ByteStream, ByteWriter, CloseReason, MessageStream, Stalled, is_utf8

FRAME_SIZE: Final = 16 * 1024 * 1024
"""Bytes in one outgoing frame at most; larger messages are fragmented."""

GOODBYE_TIMEOUT: Final = 5.0
"""Seconds that closing waits for the peer's part of the closing handshake."""

_CLOSE_CODES: Final = {
    CloseReason.NORMAL: CloseCode.NORMAL_CLOSURE,
    CloseReason.GOING_AWAY: CloseCode.GOING_AWAY,
    CloseReason.POLICY: CloseCode.POLICY_VIOLATION,
    CloseReason.TOO_LARGE: CloseCode.MESSAGE_TOO_BIG,
    CloseReason.AGENT_GONE: CloseCode.INTERNAL_ERROR,
}

# The library logs requests with their headers, tokens among them, where DEBUG is on. It never is for this logger.
library_log = logging.getLogger("acp_gateway.websockets")
library_log.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: between pings, until a pong counts as missing, until a peer that takes nothing is cut."""

    ping_interval: float = 20.0
    ping_timeout: float = 20.0
    stall_timeout: float = 60.0


class UpgradeRefused(ProtocolError):
    """The server answered the upgrade with something else than 101."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(f"the server answered HTTP {status} instead of opening a WebSocket: {text}")


class NamesLimit(Protocol):
    """Says in the close frame which setting a message was too large for."""

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        if code == CloseCode.MESSAGE_TOO_BIG:
            reason = f"a message is larger than max_message_size ({self.max_message_size} bytes) allows"
        super().fail(code, reason)


class _Client(NamesLimit, ClientProtocol):
    pass


class WebSocketStream(MessageStream):
    """An open WebSocket. Made by `accept_websocket` and `connect_websocket`.

    `close_code` and `close_text` tell after `EndOfChannel` what the peer said when it closed. Messages must be UTF-8:
    senders check it, since a text frame that is not would end the connection.
    """

    def __init__(
        self,
        protocol: Protocol,
        stream: ByteStream,
        timing: Timing,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.bytes = stream
        self.headers = headers
        self._protocol = protocol
        self._timing = timing
        self._writer = ByteWriter(stream, stall_timeout=timing.stall_timeout)
        # A text message that has begun; None between messages and in a binary one.
        self._fragments: list[bytes] | None = None
        # When bytes last came, and since when a task has been waiting for more (None: nobody reads at the moment).
        self._heard = trio.current_time()
        self._reading_since: float | None = None
        # Why the stream was cut from this side, for the task that receives.
        self._lost: str | None = None

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

    # Receiving

    async def _receive_batch(self) -> list[bytes]:
        while True:
            messages = self._text_messages(self._protocol.events_received())
            self.flush()
            if messages:
                return messages
            if self._protocol.state is not State.OPEN:
                self._raise_end()
            await self._read()

    async def _read(self) -> None:
        """Feed the protocol with one read."""
        self._reading_since = trio.current_time()
        try:
            data = await self.bytes.receive_some()
        except trio.ClosedResourceError:
            if self._lost is None:
                raise
            raise trio.BrokenResourceError(self._lost) from None
        finally:
            self._reading_since = None
        self._heard = trio.current_time()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()

    def _text_messages(self, events: Iterable[object]) -> list[bytes]:
        messages = []
        for frame in events:
            if not isinstance(frame, Frame):
                continue
            if frame.opcode is Opcode.TEXT:
                if frame.fin:
                    messages.append(bytes(frame.data))
                    continue
                self._fragments = [bytes(frame.data)]
            elif frame.opcode is Opcode.CONT and self._fragments is not None:
                # An endless row of empty fragments must not fill the memory.
                if frame.data:
                    self._fragments.append(bytes(frame.data))
                if frame.fin:
                    messages.append(b"".join(self._fragments))
                    self._fragments = None
        for index, message in enumerate(messages):
            if not is_utf8(message):
                # RFC 6455, 8.1: the connection fails, and nothing behind this message counts.
                self._protocol.fail(CloseCode.INVALID_DATA, "a text message is not UTF-8")
                return messages[:index]
        return messages

    def _raise_end(self) -> None:
        protocol = self._protocol
        if protocol.close_rcvd is not None:
            raise trio.EndOfChannel
        if protocol.close_sent is not None:
            raise trio.BrokenResourceError(f"the peer violated the protocol: {protocol.close_sent.reason}")
        raise trio.BrokenResourceError("the connection was lost: it ended without a closing handshake")

    # Sending

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if self._protocol.state is not State.OPEN:
            raise trio.BrokenResourceError(self._lost or "the WebSocket is closing")
        if self._protocol.side is SERVER:
            self._writer.write(b"".join(encode_text(messages)))
            return
        for message in messages:
            first = message[:FRAME_SIZE]
            self._protocol.send_text(first, fin=len(first) == len(message))
            for start in range(FRAME_SIZE, len(message), FRAME_SIZE):
                end = start + FRAME_SIZE
                self._protocol.send_continuation(message[start:end], fin=end >= len(message))
        self.flush()

    def flush(self) -> None:
        """Write what the protocol object wants to be written."""
        output = b"".join(self._protocol.data_to_send())
        if output:
            self._writer.write(output)

    @property
    def pending_bytes(self) -> int:
        return self._writer.pending

    async def drain(self, below: int = 0) -> None:
        await self._writer.drain(below)

    # By itself

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._keep_alive)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # Shows where somebody receives.

    async def _write(self) -> None:
        try:
            await self._writer.run()
        except Stalled as error:
            self._lost = f"the peer stopped reading: {error}"
            await self._cut(CloseReason.POLICY)

    async def _keep_alive(self) -> None:
        while True:
            await trio.sleep(self._timing.ping_interval)
            if self._protocol.state is not State.OPEN:
                return
            pinged = trio.current_time()
            self._protocol.send_ping(b"")
            self.flush()
            await trio.sleep(self._timing.ping_timeout)
            # A pong can only be missed by somebody who was reading all the while: a peer whose messages are not read,
            # because the agent is busy, has done nothing wrong.
            read_throughout = self._reading_since is not None and self._reading_since <= pinged
            if self._heard < pinged and read_throughout:
                self._lost = f"the connection was lost: no pong within {self._timing.ping_timeout:g} s"
                await self.bytes.aclose()
                return

    async def _cut(self, reason: CloseReason) -> None:
        """Drop what has not begun to leave, say goodbye should the peer still listen, and close."""
        self._writer.abandon(frame_end)
        try:
            with trio.move_on_after(GOODBYE_TIMEOUT):
                self._protocol.send_close(_CLOSE_CODES[reason], _short(self._lost or ""))
                self.flush()
                await self._writer.drain()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self.bytes.aclose()

    # Closing

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        try:
            with trio.move_on_after(GOODBYE_TIMEOUT):
                if self._protocol.state is State.OPEN:
                    self._protocol.send_close(_CLOSE_CODES[reason], _short(text))
                self.flush()
                await self._writer.drain()
                if self._protocol.side is SERVER:
                    await self.bytes.send_eof()
                    if self._protocol.close_rcvd is not None:
                        return
                # Closing with unread bytes would reset the connection and take our last frames along: read on to the
                # peer's end, unless somebody else is reading.
                while self._protocol.state is not State.CLOSED and self._reading_since is None:
                    await self._read()
                    self._protocol.events_received()
                    self.flush()
                await self._writer.drain()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The peer is gone already.
        finally:
            await self.bytes.aclose()


async def connect_websocket(
    stream: ByteStream,
    uri: WebSocketURI,
    headers: Mapping[str, str],
    *,
    max_message_size: int,
    timing: Timing,
) -> WebSocketStream:
    """Open a WebSocket over a connected stream, with these headers in the request.

    Raises `UpgradeRefused` with the server's status, `ProtocolError` where the answer is no HTTP,
    `BrokenResourceError` where the connection is lost. Cancelled or failed, it leaves the stream to the caller.
    """
    protocol = _Client(uri, max_size=max_message_size, logger=library_log)
    request = protocol.connect()
    request.headers.update(headers)
    protocol.send_request(request)
    response = await first_event(protocol, stream)
    error = protocol.handshake_exc
    if error is None and isinstance(response, Response):
        return WebSocketStream(protocol, stream, timing, dict(response.headers.raw_items()))
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        body = bytes(error.response.body).decode(errors="replace").strip()
        first_line = body.splitlines()[0][:200] if body else error.response.reason_phrase
        raise UpgradeRefused(status, first_line) from None
    if isinstance(error.__cause__ if error else None, EOFError):
        raise trio.BrokenResourceError("the server closed the connection during the handshake")
    raise ProtocolError(f"no WebSocket server answers there: {error}")


async def first_event(protocol: Protocol, stream: ByteStream) -> object:
    """Run the handshake up to the peer's request or response; None where there is none to be had."""
    while True:
        for data in protocol.data_to_send():
            view = memoryview(data)
            while view:
                view = view[await stream.send_some(view) :]
        data = await stream.receive_some()
        if data:
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        events = protocol.events_received()
        if events:
            # What came along with it stays for the first `receive_batch`.
            protocol.events[:0] = events[1:]
            return events[0]
        if protocol.handshake_exc is not None or not data:
            return None


def encode_text(messages: Iterable[bytes]) -> list[bytes]:
    """Text messages as a server's frames, headers and payloads in turn; fragmented above `FRAME_SIZE`."""
    pieces = []
    for message in messages:
        size = len(message)
        if size < 126:
            pieces.append(bytes((0x81, size)))
        elif size < 65536:
            pieces.append(struct.pack("!BBH", 0x81, 126, size))
        elif size <= FRAME_SIZE:
            pieces.append(struct.pack("!BBQ", 0x81, 127, size))
        else:
            for start in range(0, size, FRAME_SIZE):
                payload = message[start : start + FRAME_SIZE]
                head = (0x01 if start == 0 else 0x00) | (0x80 if start + FRAME_SIZE >= size else 0x00)
                pieces += (struct.pack("!BBQ", head, 127, len(payload)), payload)
            continue
        pieces.append(message)
    return pieces


def frame_end(chunk: bytes, sent: int) -> int:
    """Where the frame ends that the byte at `sent` is in, in a chunk that begins with a frame."""
    at = 0
    while at < sent:
        second = chunk[at + 1]
        length = second & 0x7F
        at += 2
        if length == 126:
            (length,) = struct.unpack_from("!H", chunk, at)
            at += 2
        elif length == 127:
            (length,) = struct.unpack_from("!Q", chunk, at)
            at += 8
        at += length + (4 if second & 0x80 else 0)
    return at


def _short(text: str) -> str:
    """As much of a text as fits into a close frame: 123 bytes of UTF-8."""
    return text.encode()[:123].decode(errors="ignore")
