"""Parses `text/event-stream`, the format of the event streams of Streamable HTTP, as the HTML standard defines it.

Lines end with LF, CR or CRLF, and an event with an empty line. Several `data` fields of an event are joined by LF.
Comments, unlisted fields and events of a type other than `message` are ignored. The size of an event is bounded.
"""

import re
from typing import Final

EVENTS: Final = "text/event-stream"
COMMENT: Final = b":\n\n"
"""The type of a stream, and an event that clients ignore: it keeps an idle connection alive in proxies."""
LAST_EVENT_ID: Final = "Last-Event-ID"
SESSION_ID: Final = "Acp-Session-Id"
"""Headers of a request for a stream: the event behind which it goes on, and its session."""

_BOM: Final = b"\xef\xbb\xbf"

_FIELD: Final = 64
"""Bytes of a line beside the data of an event: the name of its field, an id."""

_SENDABLE: Final = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")
"""An id that a header can hold, with at most 1,024 bytes. Any other one counts as none."""

_RETRY_MAX: Final = 30.0
"""Maximum seconds of a `retry` field."""


class EventParser:
    """Parses one event stream, which may come in pieces of any size.

    Args:
        max_size: maximum bytes of the data of an event.
        last_event_id: the id behind which the stream goes on; "" for none.
    """

    def __init__(self, max_size: int, last_event_id: str = "") -> None:
        self.last_event_id = last_event_id
        """The id of the last complete event, or of one before it; "" if none had one."""
        self.retry: float | None = None
        """Seconds after which the server wants the stream to be opened again; None if it has not said so."""
        self.too_large = False
        """True once an event is larger than allowed. What follows is not parsed."""
        self._max_size = max_size
        self._line = bytearray()
        self._at_start = True
        self._after_cr = False
        # The event that has begun. Not a list of its lines: a megabyte of short ones would take fifteen as objects.
        self._data: bytearray | None = None
        self._type = b""
        self._id = last_event_id

    @property
    def in_event(self) -> bool:
        """True if a line or an event has begun that is not complete."""
        return bool(self._line) or self._data is not None

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes; return the data of each event that they complete."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data or self.too_large:
            return []
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[bytes] = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._line += end
            line = bytes(self._line)
            self._line.clear()
            self._process(line, events)
            if len(self._data or b"") > self._max_size or len(line) > self._max_size + _FIELD:
                self.too_large = True
                return events
        self._line += rest
        self.too_large = len(self._line) > self._max_size + _FIELD
        return events

    def _process(self, line: bytes, events: list[bytes]) -> None:
        """Process a complete line."""
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"" if not line:
                self._end_event(events)
            case b"data":
                if self._data is None:
                    self._data = bytearray(value)
                else:
                    self._data += b"\n" + value
            case b"id" if b"\0" not in value:
                self._id = value.decode() if _SENDABLE.fullmatch(value) else ""
            case b"event":
                self._type = value
            case b"retry" if value.isdigit() and len(value) <= 9:
                self.retry = min(int(value) / 1000, _RETRY_MAX)

    def _end_event(self, events: list[bytes]) -> None:
        self.last_event_id = self._id
        if self._data is not None and self._type in (b"", b"message"):
            events.append(bytes(self._data))
        self._data = None
        self._type = b""
