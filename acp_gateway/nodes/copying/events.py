"""Event streams of a node that outlive its connections, for clients that do not open one again after a cut.

Only whole events are passed on, and the id of the last one is known. A node that is asked for the stream with this id
goes on behind it, so that a cut between this gateway and the node is a pause.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from acp_gateway.errors import ProtocolError

SILENCE: Final = 40.0
"""Seconds without a byte of a node after which its connection counts as lost: it sends a comment every 15."""

ID_SIZE: Final = 64
"""Maximum bytes of an event's id. Those of gateways have some ten."""

_END: Final = b"\n\n"

_ID: Final = b"id: "


class WholeEvents:
    """Cuts what comes of a stream into whole events.

    Args:
        most: maximum bytes of an event.
    """

    def __init__(self, most: int) -> None:
        self.last_id: str | None = None
        """The id of the last event; None before the first one."""
        self._begun = bytearray()
        self._most = most

    @property
    def begun_bytes(self) -> int:
        """Bytes of an event whose end has not come."""
        return len(self._begun)

    def take(self, part: bytes) -> bytes:
        """Return the events that end in a part of the stream, as they came. Raises `ProtocolError`."""
        searched = max(len(self._begun) - 1, 0)
        self._begun += part
        end = self._begun.rfind(_END, searched)
        if end < 0:
            if len(self._begun) > self._most:
                raise ProtocolError(f"an event has more than {self._most} bytes")
            return b""
        whole = bytes(self._begun[: end + len(_END)])
        del self._begun[: len(whole)]
        # A line of data holds no other one.
        at = whole.rfind(b"\n" + _ID)
        start = at + 1 if at >= 0 else 0 if whole.startswith(_ID) else None
        if start is not None:
            its_id = whole[start + len(_ID) : whole.index(b"\n", start)]
            if not (its_id.isascii() and len(its_id) <= ID_SIZE):
                raise ProtocolError("the id of an event is not one of a gateway")
            self.last_id = its_id.decode()
        return whole

    def begin_again(self) -> None:
        """Forget an event that was cut off: it comes again."""
        self._begun.clear()


async def next_part(read: Callable[[], Awaitable[bytes]]) -> bytes | None:
    """Return the next part of a stream, b"" at its end; None if its connection is lost."""
    with trio.move_on_after(SILENCE):
        try:
            return await read()
        except (trio.BrokenResourceError, trio.ClosedResourceError, ProtocolError):
            pass
    return None


class StreamsInUse:
    """The event streams of nodes that are passed on, each by the request that was answered last.

    A request whose stream another one has taken over does not take it back.
    """

    def __init__(self) -> None:
        self._users: dict[Hashable, object] = {}

    @contextmanager
    def using(self, stream: Hashable, user: object) -> Iterator[None]:
        """Let a request use a stream in this block, instead of any other one."""
        self._users[stream] = user
        try:
            yield
        finally:
            if self._users.get(stream) is user:
                del self._users[stream]

    def is_used_by(self, stream: Hashable, user: object) -> bool:
        """Return whether no other request has taken a stream over."""
        return self._users.get(stream) is user
