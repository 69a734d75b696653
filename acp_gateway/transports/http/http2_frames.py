"""The frames that a client of HTTP/2 sends: cut from its bytes, and refused where they cost more than they are worth.

h2 answers each frame, and keeps what it learns of it as long as the connection lasts. A frame that asks for work and
brings nothing costs a part of a budget, which time and responses pay back: so floods of resets (CVE-2023-44487), of
settings, pings, priorities, window updates and empty data (CVE-2019-9511 to 9518) end the connection before h2 sees
them. A header block is bounded before it is complete (CVE-2024-27316). Frames without a meaning here are left out.
"""

from math import inf
from typing import Final

from acp_gateway.transports.http.head import HEAD_SIZE

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client (RFC 9113, 3.4)."""

FRAME_SIZE: Final = 16384
"""Maximum bytes of a frame's payload: the least that HTTP/2 allows (RFC 9113, 4.2), and a record of TLS."""

BLOCK_SIZE: Final = HEAD_SIZE
"""Maximum bytes of a header block as it is sent, and of what it says: as many as a head of HTTP/1.1 may have."""

MAX_CONTINUATIONS: Final = 16
"""Maximum CONTINUATION frames of a header block: whole frames need three."""

MAX_SETTINGS: Final = 16
SETTINGS_SIZE: Final = 16 * 6
"""Maximum SETTINGS frames of a connection, and bytes of one: clients send two or three, of up to eight settings. Each
setting that is not known is remembered to the end."""

BUDGET: Final = 1000
REFILL: Final = 100
"""Frames that bring nothing which may come at once, and those a second beyond them: together a tenth of a second of the
event loop, and then a hundredth."""

RESET_COST: Final = 5
"""Frames that a reset request counts for: it was begun for nothing. A browser that leaves a page resets ten."""

SENT_PAYS: Final = 2
"""Frames that the head of a response, or data that was sent, pays for: a client may open two windows for each."""

SMALL_DATA: Final = 1024
"""Bytes of data below which a frame counts, unless it is the last one of its request."""

PROTOCOL_ERROR: Final = 0x1
FRAME_SIZE_ERROR: Final = 0x6
ENHANCE_YOUR_CALM: Final = 0xB
"""Codes of the frame that ends a connection (RFC 9113, 7)."""

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x9
_NAMES: Final = (
    *("DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS"),
    *("PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"),
)

_LEFT_OUT: Final = (0x2, 0x7)
"""PRIORITY, which nothing here follows, and GOAWAY: a client that opens no further request still reads the others."""

_END_STREAM, _END_HEADERS = 0x1, 0x4

_HEAD_SIZE: Final = 9
_STREAM_ID: Final = 0x7FFFFFFF
"""Bits of a stream's number; the first bit means nothing."""


class Http2Error(Exception):
    """A violation by the client: the connection ends with this code (RFC 9113, 5.4.1). The text names the limit."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


def ends_head(frame: bytes) -> bool:
    """Return whether a header block is complete with a frame."""
    return frame[3] in (_HEADERS, _CONTINUATION) and bool(frame[4] & _END_HEADERS)


class FrameReader:
    """Cuts frames from bytes, and keeps the budget of the connection. Times are seconds of one clock."""

    __slots__ = ("_begun", "_block", "_continuations", "_credit", "_credited_at", "_data", "_settings", "begun_at")

    def __init__(self) -> None:
        self.begun_at = inf
        """Time since when a frame or a header block is incomplete; infinite while none is."""
        self._data = bytearray()
        # True once the preface was read.
        self._begun = False
        # SETTINGS frames so far.
        self._settings = 0
        # The stream whose header block goes on, and the size of that so far; None while none does.
        self._block: tuple[int, int] | None = None
        self._continuations = 0
        self._credit: float = BUDGET
        self._credited_at = 0.0

    def add(self, data: bytes) -> None:
        """Add bytes that were read."""
        self._data += data

    def take(self, now: float) -> bytes | None:
        """Return the next bytes for h2: the preface, or a frame; None if more are needed. Raises `Http2Error`."""
        while (whole := self._cut()) is not None:
            passed = self._admit(whole, now) if self._begun else True
            self._begun = True
            if self._block is None:
                self.begun_at = inf
            if passed:
                return whole
        self.begun_at = min(self.begun_at, now) if self._data or self._block is not None else inf
        return None

    def _cut(self) -> bytes | None:
        data = self._data
        if self._begun:
            if len(data) < _HEAD_SIZE:
                return None
            size = _HEAD_SIZE + int.from_bytes(data[:3], "big")
            if size > _HEAD_SIZE + FRAME_SIZE:
                raise Http2Error(FRAME_SIZE_ERROR, f"a frame must not be larger than {FRAME_SIZE} bytes")
        else:
            size = len(PREFACE)
            if not PREFACE.startswith(bytes(data[:size])):
                raise Http2Error(PROTOCOL_ERROR, "TLS was told that this is HTTP/2 (ALPN h2), and it is not")
        if len(data) < size:
            return None
        whole = bytes(data[:size])
        del data[:size]
        return whole

    def _admit(self, frame: bytes, now: float) -> bool:
        """Check and count a frame; return whether h2 is to see it."""
        size, kind, flags = len(frame) - _HEAD_SIZE, frame[3], frame[4]
        if kind == _SETTINGS:
            self._count_settings(size)
        elif not self._settings:
            raise Http2Error(PROTOCOL_ERROR, "HTTP/2 begins with SETTINGS")
        self._follow_block(int.from_bytes(frame[5:9], "big") & _STREAM_ID, size, kind, flags)
        if kind == _DATA:
            cost = int(size < SMALL_DATA and not flags & _END_STREAM)
        else:
            cost = {_HEADERS: 0, _RST_STREAM: RESET_COST}.get(kind, 1)
        self.charge(cost, _NAMES[kind] if kind < len(_NAMES) else "unknown", now)
        return kind < len(_NAMES) and kind not in _LEFT_OUT

    def _count_settings(self, size: int) -> None:
        if size > SETTINGS_SIZE:
            raise Http2Error(ENHANCE_YOUR_CALM, f"SETTINGS must not have more than {SETTINGS_SIZE} bytes")
        self._settings += 1
        if self._settings > MAX_SETTINGS:
            raise Http2Error(ENHANCE_YOUR_CALM, f"a connection must not have more than {MAX_SETTINGS} SETTINGS frames")

    def _follow_block(self, stream: int, size: int, kind: int, flags: int) -> None:
        """Note where a header block begins and ends, between which no other frame may come (RFC 9113, 4.3)."""
        if (kind == _CONTINUATION) is (self._block is None) or (self._block is not None and self._block[0] != stream):
            raise Http2Error(PROTOCOL_ERROR, "a header block is cut by another frame, or goes on without a beginning")
        if kind not in (_HEADERS, _CONTINUATION):
            return
        self._continuations = 0 if self._block is None else self._continuations + 1
        size += 0 if self._block is None else self._block[1]
        if size > BLOCK_SIZE or self._continuations > MAX_CONTINUATIONS:
            text = f"headers must not have more than {BLOCK_SIZE} bytes or {MAX_CONTINUATIONS} CONTINUATION frames"
            raise Http2Error(ENHANCE_YOUR_CALM, text)
        self._block = None if flags & _END_HEADERS else (stream, size)

    def charge(self, cost: int, name: str, now: float) -> None:
        """Take frames of this name out of the budget. Raises `Http2Error` if there is none left."""
        if cost:
            self._credit = min(BUDGET, self._credit + (now - self._credited_at) * REFILL) - cost
            self._credited_at = now
            if self._credit < 0:
                text = f"too many {name} frames: {BUDGET} that bring nothing may come at once, and {REFILL} a second"
                raise Http2Error(ENHANCE_YOUR_CALM, text)

    def note_sent(self) -> None:
        """Pay a part of the budget back: the head of a response, or data, was sent."""
        self._credit = min(BUDGET, self._credit + SENT_PAYS)
