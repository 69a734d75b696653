"""`MaintainedStream`: a stream of messages over a connection, with the upkeep and the limits of the connection.

Upkeep: messages that cannot be written at once are written by `run`, which the owner of a stream runs beside its pump;
`run` also keeps the connection alive where the transport can. A stream owns no task. An owner of many streams gives
each a `TaskSpawner` instead (`use_spawner`), to start a task when there is something to write, and calls `tick` when
due.

Limits: on the size of a message, on the time that it takes, and on bytes and frames without a message.

A meter charges a peer for what it sends, so that a flood delays only the peer that sends it.
"""

from abc import abstractmethod
from collections.abc import Callable
from math import inf
from typing import ClassVar, Final, Protocol

import trio

from acp_gateway.transports.path_state import PathState, Route
from acp_gateway.transports.streams import MessageStream, MessageTooLarge
from acp_gateway.transports.timers import TaskSpawner


class Charge(Protocol):
    """Charges a peer for what it has sent, and returns the seconds for which it is not to be read; raises `Flooded`."""

    def __call__(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """`size` in bytes, `seconds` of the event loop's time; `frames` had no message in them."""


def free(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:  # noqa: ARG001
    """Charge nothing."""
    return 0.0


class Meter:
    """Counts what came from a peer and was not charged yet.

    The receiver charges for all that comes with messages (`take`); the stream charges for what comes without (`pay`).
    """

    __slots__ = ("charge", "frames", "size")

    def __init__(self) -> None:
        self.charge: Charge | None = None
        """Charges the peer; None: nothing is charged."""
        self.size = 0
        """Bytes."""
        self.frames = 0
        """Frames without a message (pings, fragments, blank lines), where the transport can tell."""

    def take(self) -> tuple[int, int]:
        """Return the bytes and the frames that are to be charged now."""
        taken = self.size, self.frames
        self.size = self.frames = 0
        return taken

    async def pay(self, seconds: float = 0.0) -> None:
        """Charge the peer for what came without a message, and wait for as long as it is not to be read.

        `seconds` are of the event loop, spent before a message is handed on.

        After frames without a message other tasks get their turn. Raises `Flooded`. Cancelling loses nothing.
        """
        size, frames = self.take()
        if self.charge is not None:
            pause = self.charge(size=size, seconds=seconds, frames=frames)
            if pause or frames:
                await trio.sleep(pause)


SLOWEST_PEER: Final = 4096
"""Bytes per second at which a message may take longer than `message_timeout`."""


class MaintainedStream(MessageStream):
    """A `MessageStream` over a connection. Transports override what they can do; the rest does nothing."""

    __slots__ = ("accepts_unterminated_line", "last_received_at", "message_timeout", "meter")

    transport: ClassVar[str] = "lines"
    """Name of the transport, for metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()
        """Counts received bytes and frames, to charge the peer for them."""
        self.last_received_at = 0.0
        """Time of the last bytes, in seconds of Trio's clock, where the transport can tell: also parts of a message."""
        self.message_timeout = inf
        """Seconds within which a message that has begun must be complete, but see `SLOWEST_PEER`."""
        self.accepts_unterminated_line = True
        """True if a last line without its end counts as a message; False if the peer would send it again."""

    # Upkeep

    @abstractmethod
    async def run(self) -> None:
        """Write messages that could not be written at once and keep the connection alive, until cancelled or closed.

        Never raises because of the peer: a loss shows in the task that receives, after the last message.
        """

    @abstractmethod
    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        """Do the work of `run` in spawned tasks whenever there is some, until this is called with None.

        `tick` is to be called until then.
        """

    def unsent(self) -> list[bytes]:
        """Return the messages that were handed over and certainly not handled by the peer, after the stream has ended.

        Empty where that can't be told.
        """
        return []

    def tick(self, now: float) -> float:
        """Keep the connection alive where the transport can, and return the time of the next call.

        The first call follows `use_spawner`; `now` is the current time.
        """
        return inf

    @property
    def path(self) -> PathState | None:
        """State of the connection in the system, where it tells."""
        return None

    @property
    def route(self) -> Route | None:
        """Addresses of the connection, where it has some."""
        return None

    def watch_while(self, expects: Callable[[], bool]) -> None:
        """Notice soon that the connection is dead while `expects` returns True, where a stream replaces connections."""

    def note_handled(self) -> None:
        """Take note that the messages of the last batch were handled, where a peer inside the process waits for it."""

    # Limits and ends

    def limit(self, max_message_size: int, size_setting: str) -> None:  # Not all have one.
        """Set another limit for the messages that come from now on; its error names `size_setting`."""

    def too_large(self, size: int) -> MessageTooLarge | None:
        """Return the error for a received message of this size; None if it is within the limit."""
        return None

    def take_answers(self) -> list[bytes]:
        """Return and forget the messages that the stream itself has answered to what was sent, in the peer's name."""
        return []

    @property
    def unfinished_bytes(self) -> int:
        """Bytes that were read after the last complete message."""
        return 0

    def begun(self, size: int) -> bytes:
        """Return the first bytes of the message that has begun, at most `size`; also after the connection was lost."""
        return b""

    def abandon(self) -> None:  # Not all have messages that begin.
        """Drop the message that has begun, and receive no more: the stream is about to be closed."""

    @property
    def away(self) -> bool:
        """True while a stream that replaces lost connections has none."""
        return False

    @property
    def ended_normally(self) -> bool:
        """True if the peer has ended the stream because it wants nothing more, where the transport can tell."""
        return False
