"""Text messages of one frame each, read without the library: nearly all WebSocket traffic consists of these.

The header of a frame gives its end, and all bytes up to there belong to it: a control frame may come between two
frames, but not within one. So the only state is an incomplete frame. Anything else, also an invalid frame, is left to
the library from its first byte on.
"""

import os
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from websockets.frames import Opcode, apply_mask  # type: ignore[attr-defined]  # chosen there

from acp_gateway.transports.framing import CachedEncoder, ChunkBuffer
from acp_gateway.transports.streams import is_utf8

FIN: Final = 0x80
WHOLE_TEXT: Final = FIN | Opcode.TEXT
WHOLE_BINARY: Final = FIN | Opcode.BINARY
"""First byte of a text message of one frame, and of a binary one."""

FRAME_SIZE: Final = 16 * 1024 * 1024
"""Maximum bytes of an outgoing frame; larger messages are fragmented."""

MAX_MESSAGES: Final = 1024
"""Maximum messages of one batch: one read may hold ten thousand empty ones, while other tasks wait."""

MAX_FRAMES: Final = 16
"""Maximum frames given to the library at once, which takes a quarter of a millisecond."""

SMALL_FRAME: Final = 1024
"""Bytes below which a frame costs more than its content."""


class FrameCounter:
    """Finds the ends of frames for the library, and counts small frames."""

    __slots__ = ("_left", "small")

    def __init__(self) -> None:
        # Missing bytes of the current frame.
        self._left = 0
        self.small = 0
        """Small frames since this was last set to 0."""

    def cut(self, data: bytes) -> int:
        """Return the number of bytes to give to the library now: frames, the last one as far as it has come.

        Returns 0 if not even a header is complete.
        """
        at = min(self._left, len(data))
        self._left -= at
        for _ in range(MAX_FRAMES):
            if self._left or at + 2 > len(data):
                break
            size, head = data[at + 1] & 0x7F, 2
            if size >= 126:
                head = 4 if size == 126 else 10
                if at + head > len(data):
                    break
                size = int.from_bytes(data[at + 2 : at + head])
            end = at + head + size + (4 if data[at + 1] & 0x80 else 0)
            if at and end > len(data) and data[at] == WHOLE_TEXT:
                # It bypasses the library, which does not tell what has come of it.
                break
            if size < SMALL_FRAME:
                self.small += 1
            at = min(end, len(data))
            self._left = end - at
        return at


class FrameEnds:
    """Tells whether a server's frames that have passed end with one, behind which another one may be written."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        # Missing bytes of the current frame, or the beginning of its header.
        self._left = 0
        self._head = b""

    def add(self, data: bytes) -> None:
        """Note further bytes."""
        data, self._head = self._head + data, b""
        at, size = self._left, len(data)
        while at + 2 <= size:
            length, head = data[at + 1], 2
            if length >= 126:
                head = 4 if length == 126 else 10
                if at + head > size:
                    break
                length = int.from_bytes(data[at + 2 : at + head])
            at += head + length
        self._head = data[at:]
        self._left = max(at - size, 0)

    @property
    def at_end(self) -> bool:
        """True if no frame has begun that has not ended."""
        return not (self._left or self._head)


class BegunFrame:
    """An incomplete frame, with its header and mask."""

    __slots__ = ("_data", "missing")

    def __init__(self, beginning: bytes, missing: int) -> None:
        self._data = ChunkBuffer()
        self._data.add(beginning)
        self.missing = missing
        """Bytes that have not come yet."""

    @property
    def size(self) -> int:
        """Bytes that have come."""
        return self._data.size

    def payload(self, *, masked: bool) -> bytes:
        """Return what has come of the message."""
        data = self._data.begun(self._data.size)
        begin = 2 + {126: 2, 127: 8}.get(data[1] & 0x7F, 0)
        return apply_mask(data[begin + 4 :], data[begin : begin + 4]) if masked else data[begin:]

    def complete(self, data: bytes) -> bytes:
        """Append data; return the frame and the bytes after it once it is complete, and nothing before."""
        self._data.add(data)
        self.missing -= len(data)
        return b"" if self.missing > 0 else self._data.take()


def whole_texts(data: bytes, max_size: int | None, *, masked: bool) -> tuple[list[bytes], int, int]:
    """Return the messages at the beginning of `data`, each a whole text frame, and the number of their bytes.

    Stops after `MAX_MESSAGES`, and before anything else: another frame, an invalid or incomplete one, text that is not
    UTF-8 or too large. The third value is the number of missing bytes of a valid frame after them; 0 if there is none,
    or if its header is incomplete.
    """
    messages: list[bytes] = []
    view, available = memoryview(data), len(data)
    mask_bit, mask_size = (0x80, 4) if masked else (0, 0)
    start = missing = 0
    for _ in range(MAX_MESSAGES):
        if start + 1 >= available or data[start] != WHOLE_TEXT:
            break
        size = data[start + 1] - mask_bit
        at = start + 2
        # An incomplete length reads as a smaller frame, which is still longer than the data.
        if size == 126:
            size = data[at] << 8 | data[at + 1] if at + 1 < available else 0
            at += 2
        elif size == 127:
            size = int.from_bytes(data[at : at + 8])
            at += 8
        elif not 0 <= size < 126:
            break  # Masked where it must not be, or the other way round.
        payload = at + mask_size
        end = payload + size
        if max_size is not None and size > max_size:
            break
        if end > available:
            missing = end - available if payload <= available else 0
            break
        message = apply_mask(view[payload:end], data[at:payload]) if masked else data[payload:end]
        if not (message.isascii() or is_utf8(message)):
            break
        messages.append(message)
        start = end
    return messages, start, missing


class BinaryFrames:
    """Cuts binary messages of one frame each out of the bytes that come, each as far as it has come."""

    __slots__ = ("_key", "_left", "_masked", "small")

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        # Missing bytes of the frame that has begun, and its key from the next byte on.
        self._left = 0
        self._key = b""
        self.small = 0
        """Small frames since this was last set to 0."""

    def cut(self, data: bytes, max_size: int) -> tuple[list[bytes], int]:
        """Return the contents at the beginning of `data`, and where they end.

        They end after `MAX_MESSAGES`, and before anything else: another frame, one that is empty, invalid or of more
        than `max_size` bytes, or a header that is not complete.
        """
        parts: list[bytes] = []
        at, available = 0, len(data)
        mask_bit, mask_size = (0x80, 4) if self._masked else (0, 0)
        while len(parts) < MAX_MESSAGES:
            if not self._left:
                if at + 1 >= available or data[at] != WHOLE_BINARY or data[at + 1] & 0x80 != mask_bit:
                    break
                size, head = data[at + 1] & 0x7F, 2 + mask_size
                if size in (126, 127):
                    length = 2 if size == 126 else 8
                    size, head = int.from_bytes(data[at + 2 : at + 2 + length]), head + length
                if not 0 < size <= max_size or at + head > available:
                    break
                self.small += size < SMALL_FRAME
                at += head
                self._left, self._key = size, data[at - mask_size : at]
            content = data[at : at + self._left]
            if not content:
                break
            at += len(content)
            self._left -= len(content)
            parts.append(apply_mask(content, self._key) if self._masked else content)
            turn = len(content) % 4
            self._key = self._key[turn:] + self._key[:turn]
        return parts, at

    @property
    def has_begun(self) -> bool:
        """True if what comes next is of a frame that is being cut."""
        return self._left > 0


def encode_binary(data: bytes | memoryview, *, masked: bool) -> bytes:
    """Encode a binary message as a frame: a client's is masked."""
    head = _head(WHOLE_BINARY, len(data))
    if not masked:
        return b"".join((head, data))
    key = os.urandom(4)
    return b"".join((head[:1], bytes((head[1] | 0x80,)), head[2:], key, apply_mask(data, key)))


def encode_text(messages: Iterable[bytes]) -> bytes:
    """Encode text messages as a server's frames, fragmented above `FRAME_SIZE`."""
    pieces: list[bytes] = []
    add = pieces.append
    for message in messages:
        size = len(message)
        if size <= FRAME_SIZE:
            add(_head(WHOLE_TEXT, size))
            add(message)
            continue
        opcode = Opcode.TEXT
        for start in range(0, len(message), FRAME_SIZE):
            payload = message[start : start + FRAME_SIZE]
            last = start + FRAME_SIZE >= len(message)
            pieces += (_head(FIN | opcode if last else opcode, len(payload)), payload)
            opcode = Opcode.CONT
    return b"".join(pieces)


encode_once: Final = CachedEncoder(encode_text)
"""Encodes a batch once for all clients that get the same one."""


@lru_cache(maxsize=1024)
def _head(first: int, size: int) -> bytes:
    """Return the header of an unmasked frame, with the shortest form of its length (RFC 6455, 5.2)."""
    if size < 126:
        return bytes((first, size))
    if size < 65536:
        return struct.pack("!BBH", first, 126, size)
    return struct.pack("!BBQ", first, 127, size)


def frame_end(chunk: bytes, sent: int) -> int:
    """Return the end of the frame that holds the last of `sent` bytes, in a chunk of whole frames."""
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


def close_frame(code: int, text: str) -> bytes:
    """Return a server's frame that closes a WebSocket."""
    payload = struct.pack("!H", code) + shortened(text).encode()
    return bytes((FIN | Opcode.CLOSE, len(payload))) + payload


def shortened(text: str) -> str:
    """Return the beginning of a text that fits into a close frame: 123 bytes of UTF-8."""
    return text.encode(errors="replace")[:123].decode(errors="ignore")
