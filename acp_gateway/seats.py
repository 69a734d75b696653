"""A client's place at a hub: its stream, what is on its way to it, and how it is to be told goodbye.

What is decided for a client goes into its outbox, and from there into the stream as far as the peer takes it at this
moment; the rest waits in the outbox, as the very bytes that the others get as well. So a client that reads slowly costs
the others nothing, and what it costs in memory has a limit: past it, it is detached, and comes back through the
session's history. Nothing is ever left out in the middle.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from acp_gateway.protocol.outbox import Outbox
from acp_gateway.protocol.sessions import Client
from acp_gateway.transports.base import CloseReason, MessageStream

CHUNK: Final = 256 * 1024
"""Bytes handed to a stream at once when there is more: as much as one write offers to the kernel."""

_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class Farewell:
    """How a client's connection ends."""

    def __init__(self, reason: CloseReason, text: str, word: str | None = None) -> None:
        self.reason = reason
        self.text = text
        """For a person."""
        self.word = word
        """For a program, in the answers to open requests; None where the client itself has gone."""


STOPPING: Final = Farewell(CloseReason.GOING_AWAY, "the gateway is stopping", "gateway_stopping")
BUG: Final = Farewell(CloseReason.AGENT_GONE, "an error of the gateway's own", "internal")


class Seat:
    """One client of a hub.

    Args:
        client: as the core knows it.
        stream: its connection; closed by whoever runs the hub's `serve`.
        high_water: bytes that may wait in the stream itself.
        progressed: called whenever the peer has taken all that had to wait.
    """

    def __init__(self, client: Client, stream: MessageStream, high_water: int, progressed: Callable[[], None]) -> None:
        self.client = client
        self.stream = stream
        self.outbox = Outbox()
        self.scope = trio.CancelScope()
        """Of the client's pumps."""
        self.farewell: Farewell | None = None
        self.ahead = 0
        """Bytes that were passed on to the agent while too much was pending for it."""
        self.muted = False
        """Whether what it is sent is dropped, because something before it was."""
        self._high_water = high_water
        self._progressed = progressed
        self._changed = trio.lowlevel.ParkingLot()
        self._last_words = False
        # Bytes of the largest message that was sent since the peer was last up to date.
        self._largest = 0

    @property
    def behind(self) -> bool:
        """Whether the peer does not take what it is sent as fast as it comes."""
        return bool(self.outbox)

    @property
    def excess(self) -> int:
        """Bytes that the peer is behind, but for one message, which may be as large as it is, and for history."""
        return self.outbox.backlog - self._largest

    def send(self, messages: Sequence[bytes], replayed: int = 0) -> None:
        """Send messages, as soon as the peer takes them; so many of their bytes are history."""
        if self.muted:
            return
        waited = self.behind
        self.outbox.extend(messages, replayed)
        self._hand_over()
        if self.behind:
            self._largest = max(self._largest, max(map(len, messages), default=0))
            self._changed.unpark_all()
        else:
            self.client.replays.clear()
            if waited:
                self._catch_up()

    def _hand_over(self) -> None:
        """Give the stream what it takes now."""
        try:
            while self.outbox and self.stream.pending_bytes < self._high_water:
                self.stream.send_nowait(self.outbox.take(CHUNK))
        except _LOST:
            self.outbox.clear()  # Its end shows where it is read.

    def _catch_up(self) -> None:
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
        self._last_words = True
        self._changed.unpark_all()

    def give_up(self) -> None:
        """Hand everything to the stream that there still is: it is about to be closed, which bounds the rest."""
        try:
            while self.outbox:
                self.stream.send_nowait(self.outbox.take(CHUNK))
        except _LOST:
            self.outbox.clear()

    async def pump(self) -> None:
        """Send what had to wait, until there is nothing more to say; then end the connection. Cancelling loses nothing.

        A stream that is lost takes everything and sends nothing: its end shows where it is read.
        """
        while self.behind or not self._last_words:
            if not self.behind:
                await self._changed.park()
                continue
            try:
                await self.stream.drain(self._high_water // 2)
            except _LOST:
                self.outbox.clear()
            self._hand_over()
            if not self.behind:
                self._catch_up()
        try:
            await self.stream.drain()
        except _LOST:
            pass
        self.scope.cancel()
