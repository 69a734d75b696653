"""An attached client of a hub: its link, its connection, and the reason for its end.

Messages for a client go into its link, and on to the peer as far as it reads; the rest waits there, as bytes that all
clients share. A slow client costs the others nothing, and its memory is limited: beyond the limit it is detached, and
returns through the session's history. No message is ever dropped in the middle: that would be a conversation that never
took place. The only client of an agent slows it down, as a pipe does.

A client with a resumable link is *away* while it has no connection. Its attachment is kept for a time, with the
messages that it misses.
"""

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, Unpack

import trio

from acp_gateway.core.sessions.session import Client
from acp_gateway.gateway.events.recording import Tape
from acp_gateway.protocol.link_messages import Mark, Sent, acknowledgement, texts_of
from acp_gateway.protocol.outbox import Outbox
from acp_gateway.transports.link import WINDOW, Link
from acp_gateway.transports.maintained import Charge, MaintainedStream, free
from acp_gateway.transports.parts import NO_PART, PartSum
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import Args, Signal, TaskSpawner

MESSAGES_PER_MARK: Final = 1024
BYTES_PER_MARK: Final = 1024 * 1024
"""Messages and bytes after which a client that counts gets a mark with its positions."""

SESSIONS_PER_MARK: Final = 32
"""Positions in one mark, so that a mark with ids of a thousand characters stays small."""


class Disconnect:
    """The reason for the end of a client's connection."""

    __slots__ = ("code", "reason", "text")

    def __init__(self, code: CloseReason, text: str, reason: str | None = None) -> None:
        self.code = code
        self.text = text
        """For people."""
        self.reason = reason
        """For programs, in the errors of open requests; None if the client itself has left."""


TOO_SLOW: Final = "too_slow"
EXPIRED: Final = "away_too_long"
"""Reasons that a client gets when it tries to resume the link."""

STOPPING: Final = Disconnect(CloseReason.GOING_AWAY, "the gateway is stopping", "gateway_stopping")
BUG: Final = Disconnect(CloseReason.AGENT_GONE, "internal error", "internal")


class ClientConnection:
    """One connection of a client, from its first message to its last."""

    __slots__ = ("_end_signal", "cancelled", "ended", "served", "spawner", "stream")

    def __init__(self, stream: MaintainedStream) -> None:
        self.stream = stream
        self.served = False
        """True once a task serves it, which will close it."""
        self.cancelled = False
        """True once it was given up."""
        self.ended = False
        """True once the stream is not used any more."""
        self.spawner: TaskSpawner | None = None
        """Spawner of the task that serves it; None before and afterwards."""
        self._end_signal = Signal()

    def use_spawner(self, spawner: TaskSpawner) -> None:
        """Serve the connection with this spawner until `drop_spawner`; cancelling the spawner ends that soon."""
        self.spawner = spawner
        self.stream.use_spawner(spawner)

    def drop_spawner(self) -> None:
        """End the serving of this connection."""
        if self.spawner is not None:
            self.spawner.cancel()
            self.spawner = None
            self.stream.use_spawner(None)

    def cancel(self) -> None:
        """Stop the task that serves it at once."""
        self.cancelled = True
        if self.spawner is not None:
            self.spawner.cancel()

    async def abort(self) -> None:
        """Close the stream without a closing handshake, also when cancelled; it is not used any more."""
        self.cancelled = True
        with trio.CancelScope(shield=True):
            await self.stream.abort()
        self.end()

    def end(self) -> None:
        """Mark the stream as not used any more."""
        self.ended = True
        self._end_signal.notify()

    async def wait_ended(self) -> None:
        """Wait until the stream is not used any more."""
        while not self.ended:
            await self._end_signal.wait()


class Attachment:
    """One client of a hub.

    Args:
        client: as the core knows it.
        high_water: bytes that may wait in a stream itself.
        window: as in `Link`; None for a client without a resumable link.
        receive_window: as in `Link`.
        progressed: called when the backlog is sent, and when the connection is lost.
        charge: charges the client for what it sends.
        memory_grew: called with the number of bytes that are kept in addition.
        tape: records the messages; None to record none.
    """

    __slots__ = (
        "_connected",
        "_largest",
        "_marked_bytes",
        "_memory_grew",
        "_progressed",
        "_unmarked",
        "away_since",
        "catching_up",
        "charge",
        "client",
        "connection",
        "discarding",
        "disconnect",
        "disconnect_due",
        "ended",
        "link",
        "sent_while_congested",
        "tape",
        "unhandled_bytes",
    )

    def __init__(
        self,
        client: Client,
        *,
        high_water: int,
        window: int | None = None,
        receive_window: int = WINDOW,
        progressed: Callable[[], None],
        charge: Charge = free,
        memory_grew: Callable[[int], None] = lambda _: None,
        tape: Tape | None = None,
    ) -> None:
        self.client = client
        self.link = Link(
            window=window,
            high_water=high_water,
            caught_up=self._caught_up,
            receive_window=receive_window,
            enforces_window=True,
        )
        self.connection: ClientConnection | None = None
        """The latest connection; `link.stream` is None once it is lost."""
        self.ended = False
        """True once the client gets nothing but the close reason."""
        self.disconnect: Disconnect | None = None
        self.disconnect_due = inf
        """Deadline for sending the last messages, connected or away, in seconds of Trio's clock."""
        self.away_since: float | None = None
        """Time of the loss of the connection, in seconds of Trio's clock; None while connected."""
        self.catching_up = False
        """True from a disconnection until the peer has received all messages that waited for it."""
        self.sent_while_congested = 0
        """Bytes sent to the agent while more than the high-water mark was pending for it."""
        self.discarding = False
        """True while messages to the client are dropped, because earlier ones were."""
        self.charge = charge
        self.unhandled_bytes = 0
        """Bytes received and not handled yet."""
        self._memory_grew = memory_grew
        self.tape = tape
        self._progressed = progressed
        self._connected = Signal()
        # Bytes of the largest message that was sent since the peer was last up to date.
        self._largest = 0
        # Messages sent since the last mark, and the value of `put_bytes` at that mark.
        self._unmarked = 0
        self._marked_bytes = 0

    @property
    def outbox(self) -> Outbox:
        """Messages that the peer has not received or acknowledged yet."""
        return self.link.outbox

    @property
    def behind(self) -> bool:
        """True while messages wait because the peer is slow."""
        return self.link.outbox.unwritten

    @property
    def excess(self) -> int:
        """Bytes of the backlog, without history and the largest message: one message may have any size."""
        return self.outbox.backlog - self._largest

    def send(self, messages: Sequence[Sent], replayed: int = 0) -> bool:
        """Send messages as the peer reads them; `replayed` bytes of them are history.

        `messages` must not be changed afterwards. Returns True if the peer is behind.
        """
        if self.discarding:
            return self.behind
        if self.tape is not None:
            self.tape.write("to_client", texts_of(messages))
        waited, outbox = False, self.link.outbox
        if replayed or not self.link.pass_on(messages):
            waited = outbox.unwritten
            self.link.send(messages, replayed)
        if self.link.resumable:
            # In a call of their own: the messages are shared with other clients, and framed once for all.
            marks = self._marks(messages)
            if marks:
                self.link.send(marks)
                # Marks do not count towards the next mark.
                self._marked_bytes = self.outbox.put_bytes
        if outbox.unwritten:
            self._largest = max(self._largest, max(map(len, messages), default=0))
            self.spawn(self._send_waiting)
            return True
        self.client.replays.clear()
        if waited:
            self._caught_up()
        return False

    def _marks(self, messages: Sequence[Sent]) -> list[Mark]:
        """Return marks with the client's positions after these messages, if they are due."""
        self._unmarked += len(messages)
        if self._unmarked < MESSAGES_PER_MARK and self.outbox.put_bytes - self._marked_bytes < BYTES_PER_MARK:
            return []
        self._unmarked, self._marked_bytes = 0, self.outbox.put_bytes
        positions = list(self.client.positions().items())
        groups = range(0, len(positions), SESSIONS_PER_MARK)
        return [Mark(acknowledgement(0, dict(positions[start : start + SESSIONS_PER_MARK]))) for start in groups]

    def _caught_up(self) -> None:
        """Handle the end of the backlog."""
        self.catching_up = False
        self._largest = 0
        self.client.replays.clear()
        self._progressed()

    def close(self, disconnect: Disconnect) -> None:
        """End the connection at once. The first reason counts."""
        self.disconnect = self.disconnect or disconnect
        self.end()

    def end(self) -> None:
        """Stop the task that serves the client at once."""
        self.ended = True
        self._connected.notify()
        if self.connection is not None:
            self.connection.cancel()

    def discard_and_close(self, disconnect: Disconnect) -> None:
        """End the connection at once, and drop all pending and later messages to the peer.

        Reset `discarding` to send the close reason.
        """
        self.outbox.clear()
        if self.connection is not None:
            self.connection.stream.abandon()
        self.discarding = True
        self.close(disconnect)

    def close_after_sending(self, disconnect: Disconnect) -> None:
        """End the connection once all pending messages are sent."""
        self.disconnect = self.disconnect or disconnect
        self.link.finish()
        self.spawn(self._send_waiting)

    # Connections

    def connect(
        self, stream: MaintainedStream, peer_received: int = 0, peer_part: PartSum = NO_PART
    ) -> ClientConnection:
        """Connect the client, for the first time or again, as `Link.connect` does."""
        stream.meter.charge = self._charge_unfinished
        self.link.connect(stream, peer_received, peer_part=peer_part)
        self.catching_up = self.catching_up and self.behind
        self.connection = ClientConnection(stream)
        self._connected.notify()
        return self.connection

    def _charge_unfinished(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """Charge the client for data that is not a complete message."""
        self._memory_grew(size)
        return self.charge(messages, size, seconds, frames)

    @property
    def is_connected(self) -> bool:
        """True while there is a connection that was neither lost nor given up."""
        return self.link.stream is not None and self.connection is not None and not self.connection.cancelled

    @property
    def incoming_bytes(self) -> int:
        """Bytes held of the client's input: unfinished messages, and messages that wait for the agent."""
        stream = None if self.connection is None or self.connection.ended else self.connection.stream
        unfinished = 0 if stream is None else stream.unfinished_bytes
        return unfinished + self.link.part_bytes + self.unhandled_bytes + self.client.waiting_size

    async def wait_connected(self) -> bool:
        """Wait for a connection; return False if the attachment ended instead."""
        while self.link.stream is None and not self.ended:
            await self._connected.wait()
        return not self.ended

    def use_spawner(self, spawner: TaskSpawner) -> None:
        """Serve the connection, and send its backlog, with this spawner until `drop_spawner`."""
        assert self.connection is not None
        self.connection.use_spawner(spawner)
        if self.ended or self.connection.cancelled:
            spawner.cancel()
        if self.behind or self.disconnect is not None:
            self.spawn(self._send_waiting)

    def spawn(self, work: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """Spawn a task if the connection is served; if it is not, the task that serves the next one does the work."""
        if self.connection is not None and self.connection.spawner is not None:
            self.connection.spawner.spawn(work, *args)

    async def _send_waiting(self) -> None:
        """Send the backlog, and end the connection if it is to close after that. Cancelling loses nothing."""
        if await self.link.catch_up():
            self.end()

    def drop_connection(self) -> None:
        """Drop the present connection in favour of a new one: its loss may not have been noticed."""
        self.link.disconnect()
        if self.connection is not None:
            self.connection.cancel()
            if not self.connection.served:
                self.connection.end()

    def connection_lost(self, now: float) -> None:
        """Handle the loss of the connection; the client may resume its link."""
        self.away_since = now
        self.catching_up = True
        self.link.disconnect()
        self._progressed()
