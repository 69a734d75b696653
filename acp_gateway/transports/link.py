"""One end of a link: messages sent to a peer and received from it, over one connection or several in a row.

A stock peer has one connection, and a link to it is no more than a queue in front of a stream. A link that resumes
outlives its connections. Each end counts the messages that it receives, and keeps sent messages until the other end has
confirmed them. After a reconnect the ends exchange the counts and send the missing messages again, so that each message
arrives once. Control messages between the two ends are not counted (`protocol.link_messages`). Of a large message the
receiver keeps what has come, and only the rest is sent again (`transports.parts`).

A link that resumes is always read, or a confirmation could wait behind what it would make room for. What slows down a
peer is that nothing is confirmed: it stops when its window is full. Its owner calls `acknowledge` when what came has
been passed on. After a reconnect the peer's window is empty again, whatever was not acknowledged; so what came over an
earlier connection has to be acknowledged before a full window of it is added to.

Only `tick` reads a clock: it confirms from time to time what has arrived, also when that is nothing, and notices a
silent peer. Waiting messages are sent by `catch_up`. `keep_alive` and `pump` are the two as tasks, for an owner of one
link.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import Final

import trio

from acp_gateway.protocol.link_messages import (
    CONTROL_WORD,
    Control,
    Mark,
    Sent,
    acknowledgement,
    probe,
    read_control,
    rest_follows,
    texts_of,
    without_marks,
)
from acp_gateway.protocol.outbox import Outbox
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.parts import EMPTY, NO_PART, PART_SIZE, Part, PartSum
from acp_gateway.transports.timers import Signal

CHUNK: Final = 256 * 1024
"""Bytes handed to a stream at once when there is more: several of them go to the kernel in one write."""

WINDOW: Final = 8 * 1024 * 1024
"""Default of the maximum bytes in flight: what a link of 500 Mbit/s carries in one round trip around the world."""

HEARTBEAT: Final = 10.0
"""Seconds between two confirmations, however little has arrived."""

CONFIRM_MESSAGES: Final = 4096
CONFIRM_BYTES: Final = 512 * 1024
"""Maximum messages and bytes between two confirmations: a small part of the window, and seldom enough to cost nothing.
For bytes, at most a quarter of the peer's window."""

MAX_ANSWERS: Final = 64
"""Answers to probes that wait for a peer that takes nothing."""

LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
"""Errors that a lost stream raises."""


class Miscounted(trio.BrokenResourceError):
    """The peer confirms messages that it was never sent, so its counts cannot be relied on."""


class Overrun(trio.BrokenResourceError):
    """The peer sends on though its window is full, which would fill the memory."""


class Link:
    """One end of a link. It has no connection at first: see `connect`.

    Args:
        window: maximum bytes in flight to the peer; None for a stock peer, which confirms nothing and cannot resume.
        high_water: bytes that may wait in the stream itself.
        caught_up: called whenever all waiting messages have been handed to the stream.
        receive_window: maximum bytes that arrive without being acknowledged: the window of the peer.
        enforces_window: raise `Overrun` if the peer exceeds its window.
        answered: called with the number of a probe of this end that the peer has answered.
    """

    __slots__ = (
        "_acknowledged",
        "_answered",
        "_broken",
        "_carried_bytes",
        "_caught_up",
        "_changed",
        "_enforces_window",
        "_finishing",
        "_first",
        "_handled",
        "_high_water",
        "_joins",
        "_last_received_at",
        "_last_sent_at",
        "_owes",
        "_part",
        "_peer_left",
        "_receive_window",
        "_redelivered",
        "_rest",
        "_told",
        "_told_part",
        "_unacknowledged_bytes",
        "_unhandled_bytes",
        "_waiting_answers",
        "_window",
        "on_send",
        "outbox",
        "received",
        "stream",
    )

    def __init__(
        self,
        *,
        window: int | None = None,
        high_water: int = CHUNK,
        caught_up: Callable[[], None] = lambda: None,
        receive_window: int = WINDOW,
        enforces_window: bool = False,
        answered: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.outbox = Outbox(window)
        self.stream: MaintainedStream | None = None
        """The connection, None while there is none."""
        self.received = 0
        """Number of messages received, over all connections."""
        self.on_send: Callable[[], None] | None = None
        """Called when messages are sent; None to call nothing."""
        # True once the peer has ended the link for good.
        self._peer_left = False
        self._window = window
        self._high_water = high_water
        self._caught_up = caught_up
        self._receive_window = receive_window
        self._enforces_window = enforces_window
        # True once sending has failed; the end of the connection shows where it is read.
        self._broken = False
        # Number of messages that were passed on, and of those among them that were confirmed to the peer.
        self._handled = 0
        self._acknowledged = 0
        # Bytes that were received and not passed on, those among them from earlier connections, and bytes received
        # since the last confirmation.
        self._unhandled_bytes = 0
        self._carried_bytes = 0
        self._unacknowledged_bytes = 0
        # Times of the last message from the peer, and of the last control message to it.
        self._last_received_at = 0.0
        self._last_sent_at = 0.0
        self._finishing = False
        self._changed = Signal()
        self._answered = answered
        # While another connection resumes the link: the count that it has told the peer, which this one keeps to.
        self._told: int | None = None
        # Number of the next messages that were received before, over an earlier connection.
        self._redelivered = 0
        # What was kept of the next message of the peer, and of that when `tell_count` was called. True once the peer
        # has announced the rest.
        self._part: Part | None = None
        self._told_part: Part | None = None
        self._joins = False
        # The first message to the peer, which has kept its beginning, and the rest; both empty to send all of it.
        self._first = self._rest = b""
        # Answers to probes since the stream was below its high-water mark.
        self._waiting_answers = 0
        # True until what was received before is confirmed over the present connection.
        self._owes = False

    @property
    def resumable(self) -> bool:
        """True if the link can outlive its connection."""
        return self._window is not None

    @property
    def behind(self) -> bool:
        """True if messages wait to be sent."""
        return self.outbox.unwritten

    @property
    def left(self) -> bool:
        """True if the peer will not resume the link: it can't, or it has ended the link or closed the stream."""
        closed = self.stream is not None and self.stream.ended_normally
        return not self.resumable or self._peer_left or closed

    @property
    def part_bytes(self) -> int:
        """Bytes that were kept of the next message of the peer."""
        return 0 if self._part is None else len(self._part.data)

    @property
    def part_sum(self) -> PartSum:
        """The part of the next message of the peer that was kept after a loss, or that had come at `tell_count`."""
        part = self._part if self._told is None else self._told_part
        return NO_PART if part is None else part.sum

    # Connections

    def tell_count(self) -> int:
        """Return `received`, to be told to the peer by a new connection with `part_sum`, while the present one goes on.

        The present one may receive more messages, which the peer will send again over the new one; they are confirmed
        by `connect`, or after `untell_count`.
        """
        self._told = self.received - self._redelivered
        self._told_part = self._part_so_far()
        return self._told

    def untell_count(self) -> None:
        """Go on with the present connection: the other one was given up."""
        self._told = self._told_part = None

    def connect(
        self,
        stream: MaintainedStream,
        peer_received: int = 0,
        told: int | None = None,
        peer_part: PartSum = NO_PART,
    ) -> None:
        """Continue over a new connection, and send the messages that the peer has not received.

        Args:
            stream: the connection.
            peer_received: number of messages that the peer has received.
            told: result of `tell_count` that the peer was told; what came after that comes again, and is dropped. None
                if it was told `received`.
            peer_part: what the peer has kept of the next message.

        Raises:
            ValueError: the peer cannot have received this number; nothing is changed.
        """
        if peer_received < self.outbox.confirmed:
            raise ValueError(f"{peer_received} messages received, but {self.outbox.confirmed} were confirmed before")
        if self.resumable:
            self.outbox.rewind(peer_received)
            stream.accepts_unterminated_line = False
        self._first = self._rest = b""
        if peer_part.size:
            first = next((message for message in self.outbox.messages() if not isinstance(message, Mark)), b"")
            self._rest = peer_part.rest(first)
            if self._rest:
                self._first = first
        if told is not None:
            self._part = self._told_part
        self._joins = False
        waited = self.behind
        self.stream = stream
        self._broken = False
        self._told = self._told_part = None
        self._acknowledged = self.received if told is None else told
        self._redelivered = self.received - self._acknowledged
        self._owes = self._redelivered > 0
        self._unacknowledged_bytes = 0
        self._carried_bytes = self._unhandled_bytes
        self._last_received_at = self._last_sent_at = trio.current_time()
        self._push_waiting(waited=waited)
        self._changed.notify()

    def disconnect(self) -> None:
        """Continue without a connection: a later `receive_batch` raises `BrokenResourceError`.

        The stream is not closed: the caller closes it, or cancels the task that receives from it.
        """
        self._part, self._joins = self._part_so_far(), False
        self.stream = None
        self._changed.notify()

    def _part_so_far(self) -> Part | None:
        """Return what has come of the next message; None if it is not kept."""
        size = 0 if self.stream is None or not self.resumable else self.stream.unfinished_bytes
        before = self._part if self._joins and self._part is not None else EMPTY
        if self.stream is None or not size or before.sum.size + size < PART_SIZE:
            return self._part
        part = before.followed_by(self.stream.begun(size))
        if self.stream.too_large(part.sum.size):
            return None
        return self._part if part.sum.size <= self.part_bytes else part

    # Sending

    def send(self, messages: Sequence[Sent], replayed: int = 0) -> None:
        """Send messages as soon as the peer takes them; `replayed` bytes of them are history. Never waits or raises."""
        if self._broken and not self.resumable:
            return
        self.outbox.extend(messages, replayed)
        self.push()
        if self.behind:
            self._changed.notify()
        if self.on_send is not None:
            self.on_send()

    def pass_on(self, messages: Sequence[Sent]) -> bool:
        """Send messages at once if no others wait; else do nothing and return False.

        The caller must not change them afterwards. Never waits or raises.
        """
        stream = self.stream
        if stream is None or self._broken or stream.pending_bytes >= self._high_water:
            return False
        if not self.outbox.pass_by(messages, CHUNK):
            return False
        try:
            stream.send_nowait(texts_of(messages))
        except LOST:
            self._lose()
        if self.on_send is not None:
            self.on_send()
        return True

    def push(self) -> None:
        """Hand waiting messages to the connection, up to its high-water mark."""
        if self.stream is None or self._broken:
            return
        try:
            while self.outbox.ready and self.stream.pending_bytes < self._high_water:
                self.stream.send_nowait(self._take())
        except LOST:
            self._lose()

    def flush(self) -> None:
        """Hand waiting messages to the connection beyond its high-water mark, because it is about to be closed."""
        try:
            while self.stream is not None and not self._broken and self.outbox.ready:
                self.stream.send_nowait(self._take())
        except LOST:
            self._lose()

    def _take(self) -> Sequence[bytes]:
        """Take the next messages from the outbox, of the first one only the rest that the peer does not have."""
        messages = texts_of(self.outbox.take(CHUNK))
        if self._rest:
            for index, message in enumerate(messages):
                if message is self._first:
                    begin, rest = len(message) - len(self._rest), self._rest
                    self._first = self._rest = b""
                    # The outbox keeps the list.
                    return [*messages[:index], rest_follows(begin), rest, *messages[index + 1 :]]
        return messages

    def send_control(self, control: bytes) -> None:
        """Send a message that is not counted, past everything that waits."""
        self._last_sent_at = trio.current_time()
        if self.stream is not None and not self._broken:
            try:
                self.stream.send_nowait([control])
            except LOST:
                self._lose()

    def send_probe(self, number: int) -> None:
        """Ask the peer for an answer with this number, which `answered` is called with."""
        last_sent_at = self._last_sent_at
        self.send_control(probe(number))
        # It confirms nothing, so it does not put off the next confirmation.
        self._last_sent_at = last_sent_at

    def finish(self) -> None:
        """Let `pump` return once the peer has taken all messages."""
        self._finishing = True
        self._changed.notify()

    async def pump(self) -> None:
        """Send waiting messages, until all are sent after `finish`. Cancelling loses nothing.

        The loss of the connection shows where it is read.
        """
        while not await self.catch_up():
            await self._changed.wait()

    async def catch_up(self) -> bool:
        """Send waiting messages; return True if the link is finished. Cancelling loses nothing."""
        while self.behind:
            if self.stream is None or self._broken or not self.outbox.ready:
                await self._changed.wait()
                continue
            await self._drain(self._high_water // 2)
            self.push()
            if not self.behind:
                self._caught_up()
        if self._finishing:
            await self._drain(0)
        return self._finishing

    async def _drain(self, below: int) -> None:
        stream = self.stream
        try:
            if stream is not None:
                await stream.drain(below)
        except LOST:
            if self.stream is stream:
                self._lose()

    def _lose(self) -> None:
        self._broken = True
        self._changed.notify()
        if not self.resumable:
            self.outbox.clear()

    # Receiving

    async def receive_batch(self) -> Sequence[Sent]:
        """Wait for messages and return all that are there, at least one; from then on they count as received.

        Confirmations are left out, except those with positions, each a `Mark` at its place. Raises what the stream
        raises, `BrokenResourceError` also if there is a newer connection, `Miscounted` and `Overrun`. Cancelling loses
        nothing.
        """
        while True:
            while self._window is not None and self._blocked and self.stream is not None and not self._broken:
                await self._changed.wait()
            stream = self.stream
            if stream is None:
                raise trio.BrokenResourceError("the connection was given up")
            batch = await stream.receive_batch()
            if self._window is None:
                return batch
            if self.stream is not stream:
                raise trio.BrokenResourceError("there is a newer connection")
            self._last_received_at = trio.current_time()
            messages = self._count(batch)
            stream.meter.frames += len(batch) - len(messages)
            if messages:
                return messages
            await stream.meter.pay()

    def acknowledge(self) -> None:
        """Count all received messages as passed on, and confirm them now if they are many."""
        self._handled = self.received
        self._unhandled_bytes = 0
        if self._carried_bytes:
            if self._blocked:
                self._last_received_at = trio.current_time()  # Until now the stream was not read.
            self._carried_bytes = 0
            self._changed.notify()
        much = min(CONFIRM_BYTES, self._receive_window // 4)
        many = self._handled - self._acknowledged >= CONFIRM_MESSAGES or self._unacknowledged_bytes >= much
        if not self._redelivered and (many or self._owes):
            self._send_acknowledgement()

    @property
    def _blocked(self) -> bool:
        return self._carried_bytes >= self._receive_window

    def _join(self, batch: list[bytes]) -> list[bytes]:
        """Return a batch with the message whose first bytes were kept in place of its rest.

        These are dropped if the peer begins that message again.
        """
        messages: list[bytes] = []
        for index, message in enumerate(batch):
            assert self._part is not None
            if self._joins:
                part, self._part, self._joins = self._part, None, False
                too_large = None if self.stream is None else self.stream.too_large(part.sum.size + len(message))
                if too_large is not None:
                    raise too_large
                return [*messages, part.data + message, *batch[index + 1 :]]
            control = read_control(message)
            if control is None:
                self._part = None
                return batch
            self._joins = control.rest_from == self._part.sum.size
            if not self._joins:
                messages.append(message)
        return messages

    def _count(self, batch: list[bytes]) -> Sequence[Sent]:
        if self._part is not None:
            batch = self._join(batch)
        # One search through the whole batch is faster than one for each message, and mostly enough.
        together = b"".join(batch)
        at = together.find(CONTROL_WORD)
        if at < 0 and not self._redelivered:
            self._count_messages(len(batch), len(together))
            return batch
        messages: list[Sent] = []
        ends = list(accumulate(map(len, batch)))
        # Counted only when the whole batch is returned: after an error the peer has to send it again.
        begin = marks = control_bytes = 0
        while at >= 0:
            index = bisect_right(ends, at)
            message = batch[index]
            control = read_control(message)
            if control is not None:
                messages += batch[begin:index]
                begin = index + 1
                control_bytes += len(message)
                self._take_control(control)
                if control.has_positions:
                    messages.append(Mark(message))
                    marks += 1
            at = together.find(CONTROL_WORD, ends[index])
        messages += batch[begin:]
        if self._redelivered:
            messages = self._drop_redelivered(messages)
            counted = without_marks(messages)
            self._count_messages(len(counted), sum(map(len, counted)))
        else:
            self._count_messages(len(messages) - marks, len(together) - control_bytes)
        return messages

    def _drop_redelivered(self, messages: list[Sent]) -> list[Sent]:
        """Return what follows the messages that were received before; the marks among them tell former positions."""
        index = 0
        while self._redelivered and index < len(messages):
            self._redelivered -= not isinstance(messages[index], Mark)
            index += 1
        if not self._redelivered and self._handled == self.received:
            # They fill the peer's window, and the owner may have nothing to acknowledge for long.
            self._send_acknowledgement()
        return messages[index:]

    def _take_control(self, control: Control) -> None:
        self._peer_left |= control.goodbye
        if control.rest_from:
            raise Miscounted(f"a message was to go on from byte {control.rest_from}, which were not kept")
        if control.received > self.outbox.written:
            raise Miscounted(f"{control.received} messages are confirmed, but {self.outbox.written} were sent")
        self._confirm(control.received)
        if control.probe:
            self._answer(control.probe)
        if control.answered:
            self._answered(control.answered)

    def _answer(self, number: int) -> None:
        """Answer a probe, unless the peer asks for ever and takes nothing: that would fill the memory."""
        if self.stream is None or self.stream.pending_bytes < self._high_water:
            self._waiting_answers = 0
        self._waiting_answers += 1
        if self._waiting_answers <= MAX_ANSWERS:
            self._send_acknowledgement(number)

    def _count_messages(self, count: int, size: int) -> None:
        # A sender stops as soon as that much is in flight; bytes from earlier connections are not in flight any more.
        if count and self._enforces_window and self._unhandled_bytes - self._carried_bytes >= self._receive_window:
            raise Overrun(f"more than {self._receive_window} bytes were sent that were not confirmed")
        self.received += count
        self._unhandled_bytes += size
        self._unacknowledged_bytes += size

    def _confirm(self, received: int) -> None:
        waited = self.behind
        self.outbox.confirm(received)
        self._push_waiting(waited=waited)
        if waited:
            self._changed.notify()

    def _push_waiting(self, *, waited: bool) -> None:
        self.push()
        if waited and not self.behind:
            self._caught_up()

    def _send_acknowledgement(self, probe: int = 0) -> None:
        # The peer has not sent again yet what is redelivered: it would take a confirmation for a miscount.
        handled = min(self._handled, self.received - self._redelivered)
        self._acknowledged = handled if self._told is None else min(handled, self._told)
        # Bytes from earlier connections were confirmed when this one began; the rest is once it is passed on.
        self._unacknowledged_bytes = self._unhandled_bytes - self._carried_bytes
        self._owes &= self._handled < self.received
        self.send_control(acknowledgement(self._acknowledged, probe=probe))

    # Time

    @property
    def heard_at(self) -> float:
        """Time of the last bytes from the peer; infinite while the connection is not read."""
        # Parts of a large message count as well.
        stream = self.stream
        return inf if self._blocked else max(self._last_received_at, 0.0 if stream is None else stream.last_received_at)

    async def keep_alive(self, timeout: float) -> None:
        """Confirm what has arrived every `HEARTBEAT` seconds. Returns after `timeout` seconds of silence.

        For a resumable link that has a connection.
        """
        due = self.tick(trio.current_time(), timeout)
        while due is not None:
            await trio.sleep_until(due)
            due = self.tick(trio.current_time(), timeout)

    def tick(self, now: float, timeout: float) -> float | None:
        """Confirm what has arrived if it is due, and return the time of the next call.

        Returns None after `timeout` seconds of silence.
        """
        deadline = self.heard_at + timeout
        if now >= deadline:
            return None
        if now >= self._last_sent_at + HEARTBEAT:
            self._send_acknowledgement()
        return min(self._last_sent_at + HEARTBEAT, deadline)
