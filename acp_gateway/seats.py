"""A client's place at a hub: its link, and how it is to be told goodbye.

What is decided for a client goes into its link, and from there to the peer as far as it takes it at this moment; the
rest waits there, as the very bytes that the others get as well. So a client that reads slowly costs the others nothing,
and what it costs in memory has a limit: past it, it is detached, and comes back through the session's history. Nothing
is ever left out in the middle.

A client whose connection is lost, and that may come back, is *away*. Its seat is kept for a time, with what it misses.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from acp_gateway.protocol.outbox import Mark, Outbox, acknowledgement
from acp_gateway.protocol.sessions import Client
from acp_gateway.recording import Direction, Tape
from acp_gateway.transports.base import CloseReason, MessageStream
from acp_gateway.transports.link import WINDOW, Link

MARK_MESSAGES: Final = 256
MARK_BYTES: Final = 1024 * 1024
"""After how much a client that counts is told anew where it is: until then it keeps what it has counted."""

SESSIONS_PER_MARK: Final = 32
"""Positions told at once: a mark with ids of a thousand characters is still small."""


class Farewell:
    """How a client's connection ends."""

    def __init__(self, reason: CloseReason, text: str, word: str | None = None) -> None:
        self.reason = reason
        self.text = text
        """For a person."""
        self.word = word
        """For a program, in the answers to open requests; None where the client itself has gone."""


TOO_SLOW: Final = "too_slow"
EXPIRED: Final = "away_too_long"
"""Words for the two ends that a client which comes back is told apart."""

STOPPING: Final = Farewell(CloseReason.GOING_AWAY, "the gateway is stopping", "gateway_stopping")
BUG: Final = Farewell(CloseReason.AGENT_GONE, "an error of the gateway's own", "internal")


class _Blank:
    """A tape on which nothing is written down."""

    def write(self, direction: Direction, messages: Sequence[bytes]) -> None: ...
    def close(self) -> None: ...


BLANK: Final = _Blank()


class Connection:
    """One connection of a client, from its first message to its last."""

    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream
        self.scope = trio.CancelScope()
        """Of its pumps; cancelled to give it up."""
        self.served = False
        """Whether it is somebody's to close by now."""
        self.over = trio.Event()
        """Set when nobody uses the stream any more."""

    async def abort(self) -> None:
        """Close it at once, without a word, also where that is cancelled; nobody uses it any more."""
        with trio.CancelScope(shield=True):
            await self.stream.abort()
        self.over.set()


class Seat:
    """One client of a hub.

    Args:
        client: as the core knows it.
        high_water: bytes that may wait in a stream itself.
        window: as `Link` has it; None for a client that does not come back.
        allowance: as `Link` has it.
        progressed: called whenever the peer has taken all that had to wait, or has gone away.
        tape: what is said is written down on it.
    """

    def __init__(
        self,
        client: Client,
        *,
        high_water: int,
        window: int | None = None,
        allowance: int = WINDOW,
        progressed: Callable[[], None],
        tape: Tape = BLANK,
    ) -> None:
        self.client = client
        self.link = Link(window=window, high_water=high_water, caught_up=self._catch_up, allowance=allowance, wary=True)
        self.connection: Connection | None = None
        """The last one; whether it is still there, the link knows."""
        self.scope = trio.CancelScope()
        """Of everything that is done for the client; cancelled to end it."""
        self.unsettled = trio.lowlevel.ParkingLot()
        """Where it is waited for that something of the client can't be passed on at once."""
        self.farewell: Farewell | None = None
        self.away_since: float | None = None
        """When its connection was lost, in seconds of Trio's clock; None while it has one."""
        self.ahead = 0
        """Bytes that were passed on to the agent while too much was pending for it."""
        self.muted = False
        """Whether what it is sent is dropped, because something before it was."""
        self.tape = tape
        self._progressed = progressed
        # Bytes of the largest message that was sent since the peer was last up to date.
        self._largest = 0
        # How much was sent since the client was last told where it is.
        self._unmarked = 0
        self._unmarked_bytes = 0

    @property
    def outbox(self) -> Outbox:
        """What the peer is still to get, or to confirm."""
        return self.link.outbox

    @property
    def behind(self) -> bool:
        """Whether the peer does not take what it is sent as fast as it comes."""
        return self.link.behind

    @property
    def excess(self) -> int:
        """Bytes that the peer is behind, but for one message, which may be as large as it is, and for history."""
        return self.outbox.backlog - self._largest

    def send(self, messages: Sequence[bytes], replayed: int = 0) -> None:
        """Send messages, as soon as the peer takes them; so many of their bytes are history."""
        if self.muted:
            return
        self.tape.write("to_client", messages)
        waited = self.behind
        if self.client.counts:
            self.link.send([*messages, *self._marks(messages)], replayed)
        else:
            self.link.send(messages, replayed)
        if self.behind:
            self._largest = max(self._largest, max(map(len, messages), default=0))
        else:
            self.client.replays.clear()
            if waited:
                self._catch_up()

    def _marks(self, messages: Sequence[bytes]) -> list[Mark]:
        """From time to time, where the client is when it has these messages, the last that were decided for it."""
        self._unmarked += len(messages)
        self._unmarked_bytes += sum(map(len, messages))
        if self._unmarked < MARK_MESSAGES and self._unmarked_bytes < MARK_BYTES:
            return []
        self._unmarked = self._unmarked_bytes = 0
        positions = list(self.client.positions().items())
        groups = range(0, len(positions), SESSIONS_PER_MARK)
        return [Mark(acknowledgement(0, dict(positions[start : start + SESSIONS_PER_MARK]))) for start in groups]

    def _catch_up(self) -> None:
        """The peer has taken all that had to wait."""
        self._largest = 0
        self.client.replays.clear()
        self._progressed()

    def close(self, farewell: Farewell) -> None:
        """End the connection at once. What is said first counts."""
        self.farewell = self.farewell or farewell
        self.scope.cancel()

    def cut_off(self, farewell: Farewell) -> None:
        """End the connection at once, and forget what waits for the peer and what still comes: it has no place for it.

        To have the end of all that told, take away `muted`.
        """
        self.outbox.clear()
        self.muted = True
        self.close(farewell)

    def close_after_last_words(self, farewell: Farewell) -> None:
        """End the connection when the peer has taken what is there for it."""
        self.farewell = self.farewell or farewell
        self.link.finish()

    async def pump(self) -> None:
        """Send what had to wait until all is said; then end the connection. Cancelling loses nothing."""
        await self.link.pump()
        self.scope.cancel()

    # Connections

    def connect(self, stream: MessageStream, peer_received: int = 0) -> Connection:
        """The client is there, or there again; as `Link.connect`. `over` says when the connection is used no more."""
        self.link.connect(stream, peer_received)
        self.connection = Connection(stream)
        return self.connection

    def evict(self) -> None:
        """Give up the connection that there is, for a newer one that is about to come: it may long be dead."""
        self.link.disconnect()
        if self.connection is not None:
            self.connection.scope.cancel()
            if not self.connection.served:
                self.connection.over.set()

    def lose(self, now: float) -> None:
        """The connection is lost; the client may come back."""
        self.away_since = now
        self.link.disconnect()
        self._progressed()
