"""Translates sessions into the lines of the file tap, and reads the lines of its readers.

Nothing is queued for a reader. A batch of changes is told as a `delta` if the reader was told all batches before it;
else it gets a `snapshot`, so a reader that reads slowly has no gap. `seq` counts the batches.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from acp_gateway.dialects.tap.files import Seen, Touch, Usage
from acp_gateway.dialects.tap.heat import HeatMap
from acp_gateway.protocol import jsonrpc

MAX_BLOCKED: Final = 64
"""Refused accesses that wait for a slow reader; of more, the last ones are told."""

SESSION_ID_SIZE: Final = 1024
"""Maximum characters of a session id that a reader names."""


class TapRequest(NamedTuple):
    """A line of a reader."""

    type: Literal["request_snapshot", "set_stream_filter"]
    session: str | None
    """None for all sessions."""


class BadRequest(ValueError):
    """A line of a reader that can't be understood."""


class _Request(msgspec.Struct):
    type: Literal["request_snapshot", "set_stream_filter"]
    session_id: str | None = None


_decode_request: Final = msgspec.json.Decoder(_Request).decode


def read_request(text: bytes) -> TapRequest:
    """Read a line of a reader; members that are not known are ignored. Raises `BadRequest`."""
    try:
        request = _decode_request(text.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = 'expected {"type": "request_snapshot" or "set_stream_filter", "session_id"?: text}'
        raise BadRequest(message) from None
    if request.session_id is not None and len(request.session_id) > SESSION_ID_SIZE:
        raise BadRequest(f"a session_id has at most {SESSION_ID_SIZE} characters")
    return TapRequest(request.type, request.session_id)


def error(message: str, session_id: str | None = None) -> bytes:
    """Return the line about a request that was not carried out."""
    named = {} if session_id is None else {"session_id": session_id}
    return jsonrpc.encode({"type": "error", "message": message, **named})


class SessionTap:
    """One session for one reader.

    Args:
        agent: name of its agent.
        session_id: its id.
        heat: its files, none yet.
        seq: number of the present batch.
    """

    def __init__(self, agent: str, session_id: str, heat: HeatMap, seq: int = 1) -> None:
        self._about = {"agent_id": agent, "session_id": session_id}
        self.heat = heat
        """Its files."""
        self.mode: str | None = None
        """The session's mode, where it has one."""
        self._usage: Usage | None = None
        self._told_usage: Usage | None = None
        self._blocked: deque[tuple[Touch, int]] = deque(maxlen=MAX_BLOCKED)
        self.seq = seq
        """Number of the present batch."""
        # The last batch that the reader was told; None before its snapshot. And the files that it knows.
        self._told: int | None = None
        self._known: set[str] = set()

    # What happens

    def take(self, seen: Seen, time: int) -> None:
        """Take what an update of the session says."""
        if seen.begins_turn:
            self.heat.begin_turn(time)
        self.touch(seen.touches, time)
        if seen.usage is not None:
            self._usage = seen.usage
            self.heat.use(seen.usage.used, time)

    def touch(self, touches: Iterable[Touch], time: int) -> None:
        """Take accesses that are in no update."""
        for touch in touches:
            self.heat.touch(touch, time)

    def block(self, touches: Iterable[Touch], time: int) -> None:
        """Take accesses that a user has refused."""
        self._blocked.extend((touch, time) for touch in touches)

    def end_batch(self, now: int) -> None:
        """End a batch of changes, if there were any."""
        self.heat.cool(now)
        if self.heat.changed:
            self.seq += 1
            if self._is_behind:
                # A snapshot will tell them.
                self.heat.changed.clear()

    def end(self) -> None:
        """Remove all files: the session has ended."""
        self.heat.clear()

    # To the reader

    @property
    def _is_behind(self) -> bool:
        return self._told is None or self.seq > self._told + 1

    def tell_again(self) -> None:
        """Begin with a snapshot again."""
        self._told = self._told_usage = None
        self.heat.changed.clear()

    def next(self, now: int) -> list[bytes]:
        """Return the next lines for the reader; none if it was told everything."""
        lines = []
        if self._is_behind:
            self.heat.changed.clear()
            nodes = self.heat.nodes(now)
            self._known = set(nodes)
            lines.append(self._line("snapshot", seq=self.seq, nodes=nodes))
        elif self.heat.changed and self.seq != self._told:
            updates, removed = self.heat.changes(now)
            self.heat.changed.clear()
            # Some have come and gone within the batch.
            removed = [path for path in removed if path in self._known]
            self._known.difference_update(removed)
            self._known.update(node["path"] for node in updates)
            lines.append(self._line("delta", seq=self.seq, updates=updates, removed=removed))
        self._told = self.seq
        if self._usage is not None and self._usage != self._told_usage:
            self._told_usage, (used, size, cost) = self._usage, self._usage
            lines.append(self._line("usage", used=used, size=size, **({} if cost is None else {"cost": cost})))
        while self._blocked:
            (path, action), time = self._blocked.popleft()
            lines.append(self._line("blocked", path=path, action=action, timestamp_ms=time))
        return lines

    def _line(self, kind: str, **members: Any) -> bytes:
        mode = {} if self.mode is None else {"session_mode": self.mode}
        return jsonrpc.encode({"type": kind, **self._about, **mode, **members})
