"""A stream of bytes in the binary messages of a WebSocket, through all that passes WebSockets on.

Any pieces are the same stream: senders and proxies may cut and fragment as they like. An empty binary message is the
end of one side; the other goes on. A close frame ends both, with a reason if they did not end by themselves. What is
read waits in one frame at most: who does not read stops who writes.

TLS can run inside (`transports.layers`).
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import trio
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import CLIENT, State
from websockets.uri import WebSocketURI

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.layers import Layer
from acp_gateway.transports.maintained import Meter
from acp_gateway.transports.streams import READ_SIZE, ByteStream
from acp_gateway.transports.timers import Signal
from acp_gateway.transports.websocket.client import shake_hands
from acp_gateway.transports.websocket.frames import BinaryFrames, FrameCounter, encode_binary, shortened
from acp_gateway.transports.websocket.stream import PONG_BACKLOG, LibraryProtocol

TUNNEL_FRAME: Final = READ_SIZE
"""Maximum bytes of a frame: as many as are read at once. Larger ones would wait longer before they are passed on."""

AHEAD: Final = "/ahead"
"""End of the path of a tunnel that is opened before its client needs it."""

NEEDED: Final = b"\1"
"""The byte by which a client says that it needs a tunnel that was opened ahead. It comes back once something is behind
the tunnel; neither is passed on."""

_DATA: Final = (Opcode.BINARY, Opcode.CONT)


class Tunnel(Layer):
    """A stream of bytes over a WebSocket whose handshake is done; its `protocol` object has a limit of `TUNNEL_FRAME`.

    Receiving and sending may go on in two tasks at once.
    """

    def __init__(self, protocol: LibraryProtocol, stream: ByteStream, *, behind: bytes = b"") -> None:
        super().__init__(stream, TUNNEL_FRAME)
        protocol.max_message_size = TUNNEL_FRAME
        protocol.size_setting = "a frame of a tunnel"
        self.meter = Meter()
        """Counts received bytes and small frames. The receiver charges for those that came with data."""
        self.last_received_at = trio.current_time()
        """Time of the last bytes, in seconds of Trio's clock."""
        self._protocol = protocol
        self._masks = protocol.side is CLIENT
        self._counter = FrameCounter()
        self._frames = BinaryFrames(masked=not self._masks)
        # Unread bytes; the first ones came with the handshake.
        self._unread = behind
        self._received: deque[bytes] = deque()
        # True once the peer has ended its side.
        self._peer_ended = False
        # Number of the read in which a task waits; 0 if none does.
        self._reading = self._reads = 0
        # True once what comes is discarded.
        self._finishing = False
        self._read_ended = Signal()
        self._ended_signal = Signal()
        # Error that ended the tunnel.
        self._failure: str | None = None

    # Receiving

    async def receive_some(self) -> bytes:
        if self._unread:
            # One read may hold thousands of frames.
            await trio.lowlevel.checkpoint()
        if not await self.wait_for_data():
            return b""
        self._check_open()
        return self._take()

    async def wait_for_data(self) -> bool:
        """Wait until the next read returns data at once; False at the peer's end. Raises as `receive_some`."""
        while not self._received:
            self._check_open()
            if self._has_come:
                return False
            await self._advance()
        return True

    def put_back(self, data: bytes) -> None:
        """Have the next read return these bytes first."""
        if data:
            self._received.appendleft(data)

    def _check_open(self) -> None:
        if self._closed or self._finishing:
            raise trio.ClosedResourceError

    @property
    def _has_come(self) -> bool:
        """True if nothing more comes: the peer has ended its side. Raises `BrokenResourceError` if it ended badly."""
        if self._peer_ended:
            return True
        if self._protocol.state is State.OPEN:
            return False
        received = self._protocol.close_rcvd
        if received is not None and received.code in (CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD):
            return True
        raise trio.BrokenResourceError(self._explain_end())

    async def _advance(self) -> None:
        """Wait for bytes, and handle as many frames of them as take no time. Cancelling loses nothing."""
        data = self._unread or await self._read()
        self._unread = data
        if data and self._protocol.idle and self._protocol.state is State.OPEN and not self._peer_ended:
            parts, end = self._frames.cut(data, TUNNEL_FRAME)
            self._unread = data[end:]
            self.meter.frames += self._frames.small
            self._frames.small = 0
            self._received += parts
            if end:  # Also behind a header alone, where the rest is empty before the stream has ended.
                return
        end = self._counter.cut(data)
        if data and not end:
            # The header is not complete.
            more = await self._read()
            self._unread = data + more
            if more:
                return
            end = len(data)
        self._unread = data[end:]
        self._feed(data[:end])
        if not self._received:
            if self._unread:
                await trio.lowlevel.checkpoint()
            await self.meter.pay()

    def _take(self) -> bytes:
        """Return received bytes, at most `READ_SIZE`."""
        parts = [self._received.popleft()]
        size = len(parts[0])
        while self._received and (size := size + len(self._received[0])) <= READ_SIZE:
            parts.append(self._received.popleft())
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read(self) -> bytes:
        self._reads += 1
        self._reading = self._reads
        try:
            data = await self.below.receive_some()
        except trio.ClosedResourceError:
            self._raise_failure()
            raise
        finally:
            self._reading = 0
            self._read_ended.notify()
        self.last_received_at = trio.current_time()
        self.meter.size += len(data)
        return data

    def _feed(self, data: bytes) -> None:
        """Give bytes to the protocol object; empty at the end of the stream below."""
        protocol = self._protocol
        if data:
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        for frame in protocol.events_received():
            assert isinstance(frame, Frame)
            if frame.opcode is Opcode.TEXT:
                protocol.fail(CloseCode.UNSUPPORTED_DATA, "a tunnel has binary messages only")
                break
            if frame.opcode not in _DATA:
                continue
            if frame.data and not self._peer_ended:
                self._received.append(bytes(frame.data))
            elif frame.data:
                protocol.fail(CloseCode.PROTOCOL_ERROR, "there are bytes behind the end")
                break
            elif frame.opcode is Opcode.BINARY and frame.fin:
                self._peer_ended = True
        self.meter.frames += self._counter.small
        self._counter.small = 0
        replies = b"".join(protocol.data_to_send())
        # Pongs are dropped that a peer does not read.
        is_behind = self.unwritten_bytes > PONG_BACKLOG + TUNNEL_FRAME and protocol.state is State.OPEN
        self._reply(b"" if is_behind else replies)

    def _explain_end(self) -> str:
        received, sent = self._protocol.close_rcvd, self._protocol.close_sent
        if sent is not None and not self._protocol.close_rcvd_then_sent:
            return f"the peer violated the protocol: {sent.reason}"
        if received is not None:
            return received.reason or f"the tunnel was closed with the code {received.code}"
        return "the connection was lost: it ended without a closing handshake"

    # Sending

    def _check_writable(self) -> None:
        self._raise_failure()
        super()._check_writable()
        if self._protocol.state is not State.OPEN:
            raise trio.BrokenResourceError(self._explain_end())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise trio.BrokenResourceError(self._failure)

    async def _write_some(self) -> None:
        try:
            await super()._write_some()
        except trio.ClosedResourceError:
            self._raise_failure()
            raise

    def _encode(self, data: memoryview) -> bytes:
        return encode_binary(data, masked=self._masks)

    def _encode_end(self) -> bytes:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(b"")
        return b"".join(self._protocol.data_to_send())

    # Upkeep

    async def keep_alive(self, interval: float, timeout: float) -> None:
        """Ping when nothing has come for `interval` seconds; end the tunnel if nothing comes within `timeout` then.

        Runs until the tunnel has ended, or until cancelled. The loss shows in the tasks that receive and send.
        """
        while not self._closed and self._protocol.state is State.OPEN:
            due = self.last_received_at + interval
            if trio.current_time() < due:
                await trio.sleep_until(due)
                continue
            reading, received_at = self._reading, self.last_received_at
            self._protocol.send_ping(b"")
            self._reply(b"".join(self._protocol.data_to_send()))
            is_sent = not self.unwritten_bytes
            await trio.sleep(timeout)
            if self.last_received_at != received_at:
                continue
            # A pong is missing only if a task was reading all the time, and if nothing was before the ping.
            if is_sent and reading and reading == self._reading:
                await self.lose(f"the connection was lost: no pong within {timeout:g} s")
                return
            await trio.sleep(interval)

    async def lose(self, why: str) -> None:
        """Close at once; tasks that wait or come later get a `BrokenResourceError` with this text."""
        self._failure = why
        await self.below.aclose()
        self._ended_signal.notify()

    # Closing

    async def wait_closed(self) -> None:
        """Wait until this end was closed, or lost by `lose`."""
        while not (self._closed or self._failure):
            await self._ended_signal.wait()

    async def aclose(self) -> None:
        await super().aclose()
        self._ended_signal.notify()

    async def finish(self) -> None:
        """As `ByteStream.finish`, and close the WebSocket."""
        await self.send_eof()
        self._finishing = True
        while self._reading:
            # That task is told by what comes next, as this one is.
            await self._read_ended.wait()
        while not self._has_come:
            self._received.clear()
            await self._advance()
        await self._send_close(CloseCode.NORMAL_CLOSURE, "")
        await self.below.finish()

    async def refuse(self, text: str) -> None:
        """Close the tunnel for this reason, which the peer is told. Bounded in time; cancelled, it closes at once."""
        try:
            with trio.move_on_after(CLOSE_TIMEOUT):
                await self._send_close(CloseCode.INTERNAL_ERROR, text)
                await self.below.finish()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The peer has left.
        finally:
            await self.aclose()

    async def _send_close(self, code: CloseCode, text: str) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, shortened(text))
            self._append(b"".join(self._protocol.data_to_send()))
        await self._write_all()


async def connect_tunnel(stream: ByteStream, uri: WebSocketURI, headers: Mapping[str, str]) -> Tunnel:
    """Open a tunnel over a connected stream. Raises and may be cancelled as `connect_websocket`."""
    protocol, _, behind = await shake_hands(stream, uri, headers, TUNNEL_FRAME)
    return Tunnel(protocol, stream, behind=behind)
