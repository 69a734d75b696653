"""The messages for one peer that are not written or not confirmed yet: send queue and resume backlog in one.

Messages are in one queue with two cursors: *written*, the end of the messages that were sent, and *confirmed*, the end
of those that the peer has received. Confirmed messages are dropped. For a stock peer, writing confirms, because no
message can be sent to it again. On a resumable link the peer's count confirms; after a reconnect the unconfirmed
messages are sent again. Messages carry no numbers: both ends count.

The control messages of a link (`link_messages`) are not counted. A confirmation with a client's positions in its
sessions must keep its place among the messages. It is queued as a `Mark`, and sent again after a reconnect unless a
later message was confirmed: it describes the state at its place, so it may arrive twice.

The window limits the bytes that are written and not confirmed: a receiver that can't pass messages on confirms none,
and gets no more. Otherwise an outbox has no limit of its own; its owner checks `backlog`. The replay of a history is
requested and queued at once, and no sign of a slow peer, so it does not count until it is written.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Self

from acp_gateway.protocol.link_messages import Mark, Sent, without_marks


class Batch(tuple[Sent, ...]):  # noqa: SLOT001  # A tuple has no room for slots of its own.
    """Messages for several peers: one object for all of them, whose size is computed once."""

    size: int

    def __new__(cls, messages: Iterable[Sent]) -> Self:
        batch = super().__new__(cls, messages)
        batch.size = sum(map(len, batch))
        return batch


class _Write:
    """Messages that were written together. They are mostly confirmed together as well, in one step."""

    __slots__ = ("count", "messages", "size")

    def __init__(self, messages: Sequence[Sent], size: int) -> None:
        self.messages = messages
        self.size = size
        self.count = len(messages) - _marks(messages)

    def drop(self, count: int) -> int:
        """Drop the first `count` messages, with the marks before them; return the bytes of all these."""
        dropped = count
        if self.count < len(self.messages):
            counted = (index for index, message in enumerate(self.messages) if type(message) is not Mark)
            dropped = next(islice(counted, count - 1, None)) + 1
        size = sum(map(len, self.messages[:dropped]))
        self.messages = self.messages[dropped:]
        self.size -= size
        self.count -= count
        return size


class Outbox:
    """The messages for one peer, in order, each once.

    Args:
        window: maximum bytes that are written and not confirmed. A single message may be larger, and marks may be
            written while no message is unconfirmed, because no confirmation would make room for them. None for a peer
            that does not confirm: written messages count as confirmed then.
    """

    __slots__ = (
        "_before_replay",
        "_confirmed",
        "_queue",
        "_queue_bytes",
        "_replay",
        "_sent",
        "_sent_bytes",
        "_window",
        "_written",
        "put_bytes",
    )

    def __init__(self, window: int | None = None) -> None:
        self._window = window
        # Numbers of messages confirmed and dropped since the beginning, and written.
        self._confirmed = 0
        self._written = 0
        # Messages written and not confirmed; then those not written. Empty tuples if there are none, because an empty
        # deque takes more than half a kilobyte, and almost all outboxes are empty.
        self._sent: deque[_Write] | tuple[()] = ()
        self._queue: deque[Sent] | tuple[()] = ()
        self._sent_bytes = 0
        self._queue_bytes = 0
        # Bytes of replays that were never written, and the bytes in the queue before them. A second replay counts as
        # following the first directly: messages between them make the backlog larger for a while, never smaller.
        self._replay = 0
        self._before_replay = 0
        self.put_bytes = 0
        """Bytes of all messages ever queued, marks included."""

    # Queuing

    def append(self, message: Sent) -> None:
        """Queue a message."""
        self.extend([message])

    def extend(self, messages: Sequence[Sent], replay: int = 0) -> None:
        """Queue messages.

        Args:
            messages: in order; a `Mark` is not counted.
            replay: number of their first bytes that are the replay of a history; see `backlog`.
        """
        size = _size(messages)
        assert 0 <= replay <= size
        if not self._replay:
            self._before_replay = self._queue_bytes
        self._replay += replay
        if self._queue:
            self._queue.extend(messages)
        else:
            self._queue = deque(messages)
        self._queue_bytes += size
        self.put_bytes += size

    # Writing

    def pass_by(self, messages: Sequence[Sent], max_bytes: int) -> bool:
        """Queue messages and take all of them; return False and change nothing if some have to wait.

        A faster `extend` and `take` for the common case. The caller must not change `messages` afterwards.
        """
        if self._queue or not messages:
            return False
        size = _size(messages)
        if size > max_bytes or (self._window is not None and self._sent_bytes + size > self._window):
            return False
        self.put_bytes += size
        self._count(messages, size)
        return True

    def take(self, max_bytes: int) -> list[Sent]:
        """Return the next messages to be written, which count as written from now on.

        Together they have at most `max_bytes`, and fit into the window, unless the first message alone is larger. Empty
        if no message waits, or the window is full.
        """
        taken: list[Sent] = []
        if not self.ready:
            return taken
        if self._window is not None:
            max_bytes = min(max_bytes, self._window - self._sent_bytes)
        size = 0
        if self._queue_bytes <= max_bytes:
            taken, size = list(self._queue), self._queue_bytes
            self._queue = ()
        while self._queue and (not taken or size + len(self._queue[0]) <= max_bytes):
            message = self._queue.popleft()
            taken.append(message)
            size += len(message)
        self._queue_bytes -= size
        passed_over = min(size, self._before_replay)
        self._before_replay -= passed_over
        self._replay = max(0, self._replay - (size - passed_over))
        self._count(taken, size)
        return taken

    def _count(self, written: Sequence[Sent], size: int) -> None:
        """Count messages as written, and keep them until the peer confirms them, if it confirms."""
        if self._window is None:
            self._written += len(written)
            self._confirmed = self._written
            return
        write = _Write(written, size)
        if self._sent:
            self._sent.append(write)
        else:
            self._sent = deque([write])
        self._sent_bytes += size
        self._written += write.count

    def confirm(self, received: int) -> None:
        """Drop the messages that the peer has received: `received` since the beginning. A lower count changes nothing.

        Raises:
            ValueError: more than were written; nothing is changed.
        """
        if received > self._written:
            raise ValueError(f"{received} messages confirmed, but {self._written} written")
        while self._confirmed < received:
            assert self._sent
            write, missing = self._sent[0], received - self._confirmed
            # A mark at the end is only confirmed by a later message.
            if write.count < missing or (write.count == missing and type(write.messages[-1]) is not Mark):
                self._sent.popleft()
                self._sent_bytes -= write.size
                self._confirmed += write.count
            else:
                self._sent_bytes -= write.drop(missing)
                self._confirmed = received
        self._sent = self._sent or ()

    def rewind(self, received: int) -> None:
        """After a reconnect, confirm the messages that the peer has received, and queue the others again.

        Confirmed messages are not held any more: if `received` is below `confirmed`, the peer has lost messages. The
        owner must check that before.

        Raises:
            ValueError: more than were written; nothing is changed.
        """
        self.confirm(received)
        self._written = self._confirmed
        self._queue = deque(self.messages())
        self._queue_bytes += self._sent_bytes
        self._before_replay += self._sent_bytes
        self._sent = ()
        self._sent_bytes = 0

    def clear(self) -> None:
        """Drop all messages. The written ones count as confirmed, the others as never queued."""
        self._confirmed = self._written
        self._sent = self._queue = ()
        self._sent_bytes = self._queue_bytes = self._replay = 0

    # State

    @property
    def written(self) -> int:
        """Number of messages written since the beginning; a rewind takes back the unconfirmed ones."""
        return self._written

    @property
    def confirmed(self) -> int:
        """Number of messages confirmed since the beginning."""
        return self._confirmed

    @property
    def ready(self) -> bool:
        """True if a message waits and the window permits writing it now."""
        if self._window is None or self._sent_bytes < self._window:
            return bool(self._queue)
        return bool(self._queue) and self._written == self._confirmed

    @property
    def unwritten(self) -> bool:
        """True if a message waits to be written."""
        return bool(self._queue)

    def __bool__(self) -> bool:
        """Return True if a message waits to be written."""
        return self.unwritten

    def __len__(self) -> int:
        """Return the number of unconfirmed messages, written or not."""
        return self._written - self._confirmed + len(self._queue) - _marks(self._queue)

    def messages(self) -> Iterator[Sent]:
        """Return the messages held, in order, as the same objects, marks included."""
        return chain(*(write.messages for write in self._sent), self._queue)

    def unconfirmed_messages(self) -> list[bytes]:
        """Return the messages that were written and may not have arrived, in order, without marks."""
        return [message for write in self._sent for message in without_marks(write.messages)]

    def unwritten_messages(self) -> list[bytes]:
        """Return the messages that were certainly not written, in order, without marks."""
        return [*without_marks(self._queue)]

    @property
    def unwritten_bytes(self) -> int:
        """Bytes to be written."""
        return self._queue_bytes

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes held, written or not."""
        return self._sent_bytes + self._queue_bytes

    @property
    def backlog(self) -> int:
        """Bytes held, except those of replays that were never written: a limit for slow peers compares this."""
        return self.unconfirmed_bytes - self._replay


def _size(messages: Sequence[Sent]) -> int:
    return messages.size if type(messages) is Batch else sum(map(len, messages))


def _marks(messages: Sequence[Sent]) -> int:
    # Mostly there are none, which the set finds in a third of the time.
    return list(map(type, messages)).count(Mark) if Mark in set(map(type, messages)) else 0
