"""One message a line: newline-delimited JSON over any stream of bytes.

Lines end at `\\n` alone. Peers written in JavaScript put U+2028, U+2029 and U+0085 raw into strings, which do not end
a line here. One trailing `\\r`, blank lines and a last line without its newline are tolerated.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from acp_gateway.transports.framing import CachedEncoder, ChunkBuffer, FramedStream
from acp_gateway.transports.streams import ByteStream, CloseReason, MessageSkipped, MessageTooLarge

BEGUN: Final = 65536
ENDED: Final = 256
"""Bytes of a line that is left out which are kept, of its beginning and its end: they name the request."""

MAX_SCRAP: Final = 65536
"""Bytes of a last line without its newline that is handed on whatever it is, so that a typing error has an answer."""


@dataclass(slots=True)
class _Skipped:
    """A line that is left out."""

    size: int
    begun: bytes
    ended: bytes


class LineStream(FramedStream):
    """Messages as lines. A message that is pretty-printed over several lines is sent as one line.

    Args:
        stream: carries the lines; closed with this stream.
        max_message_size: maximum bytes of a received line; beyond it `MessageTooLarge`, which names `size_setting`.
        skips: leave out a larger line, and raise `MessageSkipped` in its place: the stream goes on after it.
        stall_timeout: seconds in which the peer has to take something while bytes are pending.
    """

    __slots__ = (
        "_later",
        "_max_message_size",
        "_rest",
        "_size_setting",
        "_skipped",
        "_skipping",
        "_skips",
        "_too_large",
    )

    def __init__(
        self,
        stream: ByteStream,
        *,
        max_message_size: int,
        size_setting: str = "max_message_size",
        skips: bool = False,
        stall_timeout: float = float("inf"),
    ) -> None:
        super().__init__(stream, stall_timeout=stall_timeout)
        self._max_message_size = max_message_size
        self._size_setting = size_setting
        # The line that has begun.
        self._rest = ChunkBuffer()
        # Text of the error after the last message that can be read.
        self._too_large: str | None = None
        self._skips = skips
        # The line that is being left out; the one that was, until it is told; the lines after that.
        self._skipping: _Skipped | None = None
        self._skipped: _Skipped | None = None
        self._later: list[bytes] = []

    def limit(self, max_message_size: int, size_setting: str) -> None:
        self._max_message_size, self._size_setting = max_message_size, size_setting

    def too_large(self, size: int) -> MessageTooLarge | None:
        return MessageTooLarge(self._describe_limit()) if size > self._max_message_size else None

    def _describe_limit(self) -> str:
        return f"a message is larger than {self._size_setting} ({self._max_message_size} bytes) allows"

    async def _receive_batch(self) -> list[bytes]:
        while True:
            if self._too_large is not None:
                raise MessageTooLarge(self._too_large)
            if self._skipped is not None:
                skipped, self._skipped = self._skipped, None
                limit = f"{self._size_setting} ({self._max_message_size:,} bytes)"
                why = f"a message of {skipped.size:,} bytes is larger than {limit} allows"
                raise MessageSkipped(why, skipped.size, skipped.begun, skipped.ended)
            if self._later:
                later, self._later = self._later, []
                messages = self._within_limit(later)
                if messages:
                    return messages
                continue
            data = await self._read_on()
            if self._skipping is not None and data:
                self._skip(data)
                continue
            if b"\n" in data:
                lines = data.split(b"\n")
                rest = lines.pop()
                if self._rest.size:
                    self._rest.add(lines[0])
                    lines[0] = self._rest.take()
                if b"\r" in data or lines[0].endswith(b"\r"):
                    lines = [line.removesuffix(b"\r") for line in lines]
                if rest:
                    self._rest.add(rest)
            elif data:
                lines = []
                self._rest.add(data)
            elif self._rest.size and not self.accepts_unterminated_line:
                raise trio.BrokenResourceError("the connection was lost: it ended in the middle of a message")
            elif self._rest.size:
                # A line that was cut off is not a message, and to join or parse a large one for that may take long.
                whole = self._rest.size <= MAX_SCRAP or self._rest.ended(64).rstrip().endswith(b"}")
                lines = [self._rest.take().removesuffix(b"\r")] if whole else []
                if not whole:
                    self._forget_unfinished()
            else:
                raise trio.EndOfChannel
            messages = self._within_limit(lines)
            if len(messages) < len(lines):
                self.meter.frames += len(lines) - len(messages)
            if messages:
                return messages
            if data and self.meter.charge is not None:
                await self.meter.pay()

    @property
    def unfinished_bytes(self) -> int:
        return self._rest.size

    def begun(self, size: int) -> bytes:
        return self._rest.begun(size)

    def _within_limit(self, lines: list[bytes]) -> list[bytes]:
        """Return the messages in these lines, up to the first one that is too large."""
        messages = [line for line in lines if line and not line.isspace()]
        if max(map(len, messages), default=0) <= self._max_message_size >= self._rest.size:
            return messages
        usable = list(itertools.takewhile(lambda message: len(message) <= self._max_message_size, messages))
        if not self._skips:
            self._forget_unfinished()
            self._too_large = self._describe_limit()
        elif len(usable) < len(messages):
            large = messages[len(usable)]
            self._skipped = _Skipped(len(large), large[:BEGUN], large[-ENDED:])
            self._later = messages[len(usable) + 1 :]
        if self._skips and self._rest.size > self._max_message_size:
            begun, ended = self._rest.begun(BEGUN), self._rest.ended(ENDED)
            self._skipping = _Skipped(self._rest.size, begun, ended)
            self._forget_unfinished()
        return usable

    def _skip(self, data: bytes) -> None:
        """Take data of a line that is left out, and keep what follows it until that was told."""
        skipping = self._skipping
        assert skipping is not None
        more, end, rest = data.partition(b"\n")
        skipping.size += len(more)
        skipping.ended = (skipping.ended + more)[-ENDED:]
        if end:
            self._skipping, self._skipped = None, skipping
            *self._later, unfinished = rest.split(b"\n")
            self._rest.add(unfinished)

    def _forget_unfinished(self) -> None:
        self._rest = ChunkBuffer()

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if not messages:
            return
        self._write(_encode_once(messages))

    async def _send_end(self, reason: CloseReason, text: str) -> None:
        await self._writer.drain()
        await self.bytes.finish()


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


def in_one_line(messages: Sequence[bytes]) -> Sequence[bytes]:
    """Return messages without line ends."""
    # One search through all messages is fast, and joining a single one does not copy it.
    together = b"".join(messages)
    if b"\n" in together or b"\r" in together:
        # Raw line ends can only be whitespace between tokens: inside a JSON string they are escaped.
        return [message.translate(_ONE_LINE) for message in messages]
    return messages


def encode_lines(messages: Sequence[bytes]) -> bytes:
    """Encode each message as a line."""
    return b"\n".join((*in_one_line(messages), b""))


_encode_once = CachedEncoder(encode_lines)
