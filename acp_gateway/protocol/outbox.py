"""The messages for one peer that are not written or not confirmed yet: send queue and resume backlog at once.

Messages stand in one line, and two cursors move along it: *written*, up to where they went out, and *confirmed*, up to
where the peer is known to have them. What is confirmed is forgotten. For a stock peer writing confirms, as nothing can
be sent to it again; on a link that resumes the peer's count does, and after a reconnect what it has not confirmed goes
out once more. Messages carry no numbers: both ends count.

The control messages of a link (`link_messages`) are not counted. A confirmation that tells a client where it is in its
sessions has to come at its place among the others. It stands in line as a `Mark`, and after a reconnect it goes out
again unless a later message is known to have arrived: it says how things are at this place, so that it may come twice.

What may be on its way at once has a limit, the window: a receiver that can't pass on what it gets confirms nothing,
and so it is sent no more. Otherwise an outbox has no limit of its own. Its owner looks at `backlog` and decides. A
replay of history, which a peer gets in one piece and because it asked, is no sign of a slow peer, so it does not count
before it was written.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Self

from acp_gateway.protocol.link_messages import Mark


class Batch(tuple[bytes, ...]):  # noqa: SLOT001  # A tuple has no room for slots of its own.
    """Messages that are the same for several: one object for all of them, whose size is added up once."""

    size: int

    def __new__(cls, messages: Iterable[bytes]) -> Self:
        batch = super().__new__(cls, messages)
        batch.size = sum(map(len, batch))
        return batch


class _Write:
    """Messages that were written together: confirmed together as well, mostly, and then it is one step for all."""

    __slots__ = ("count", "messages", "size")

    def __init__(self, messages: Sequence[bytes], size: int) -> None:
        self.messages = messages
        self.size = size
        self.count = len(messages) - _marks(messages)

    def drop(self, count: int) -> int:
        """Forget so many of the messages that count, with the marks before them; returns the bytes of all these."""
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
        window: bytes that may be written and not confirmed, but for one message, which may be as large as it is, and
            for marks while nothing else is on its way: no confirmation would make room for these. None for a peer that
            doesn't say what it has received: what is written counts as confirmed then.
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
        # How many messages were confirmed and forgotten since the beginning, and how many were written.
        self._confirmed = 0
        self._written = 0
        # Written and not confirmed; behind them in line: not written. Empty tuples while there are none, for an empty
        # deque takes more than half a kilobyte, and of the outboxes that there are almost all are empty.
        self._sent: deque[_Write] | tuple[()] = ()
        self._queue: deque[bytes] | tuple[()] = ()
        self._sent_bytes = 0
        self._queue_bytes = 0
        # Bytes of replays that were never written, and the bytes in the queue before them. A second replay is taken to
        # follow the first at once: what is between them makes the backlog look larger for a while, never smaller.
        self._replay = 0
        self._before_replay = 0
        self.put_bytes = 0
        """Bytes of all that was ever put in, marks included."""

    # What goes in

    def append(self, message: bytes) -> None:
        """Put a message at the end of the line."""
        self.extend([message])

    def extend(self, messages: Sequence[bytes], replay: int = 0) -> None:
        """Put messages at the end of the line.

        Args:
            messages: in order; those that are a `Mark` are not counted.
            replay: so many of their bytes, the first, are history that is replayed; see `backlog`.
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

    # What goes out

    def pass_by(self, messages: Sequence[bytes], max_bytes: int) -> bool:
        """Put messages in and take them all out at once; False where some have to wait, and nothing is changed then.

        As `extend` and `take` would, for the common case. The caller must not change `messages` afterwards.
        """
        if self._queue or not messages:
            return False
        size = _size(messages)
        if size > max_bytes or (self._window is not None and self._sent_bytes + size > self._window):
            return False
        self.put_bytes += size
        self._count(messages, size)
        return True

    def take(self, max_bytes: int) -> list[bytes]:
        """Return what is to be written next, which is written from now on.

        All of it together has at most `max_bytes`, and no more than the window has room for, unless the first message
        alone has more. Empty if nothing is to be written, or nothing may be before something is confirmed.
        """
        taken: list[bytes] = []
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

    def _count(self, written: Sequence[bytes], size: int) -> None:
        """So many bytes are written now, and kept until the peer confirms them if it ever does."""
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
        """The peer has received so many messages since the beginning. A count that is lower than before says nothing.

        Raises:
            ValueError: more than were written; nothing is changed.
        """
        if received > self._written:
            raise ValueError(f"{received} messages confirmed, but {self._written} written")
        while self._confirmed < received:
            assert self._sent
            write, missing = self._sent[0], received - self._confirmed
            # A mark at the end is not known to have arrived before something behind it has.
            if write.count < missing or (write.count == missing and type(write.messages[-1]) is not Mark):
                self._sent.popleft()
                self._sent_bytes -= write.size
                self._confirmed += write.count
            else:
                self._sent_bytes -= write.drop(missing)
                self._confirmed = received
        self._sent = self._sent or ()

    def rewind(self, received: int) -> None:
        """After a reconnect: confirm what the peer says it has received; all the rest is to be written again.

        What is confirmed is not there any more: if `received` is below `confirmed`, the peer has lost messages that it
        had, and the owner must look for that before.

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
        """Forget all messages held. Those written count as confirmed, those not written as never put in."""
        self._confirmed = self._written
        self._sent = self._queue = ()
        self._sent_bytes = self._queue_bytes = self._replay = 0

    # What is there

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
        """Return True if a message waits to be written; confirmed or not does not count."""
        return self.unwritten

    def __len__(self) -> int:
        """Return the number of unconfirmed messages, written or not."""
        return self._written - self._confirmed + len(self._queue) - _marks(self._queue)

    def messages(self) -> Iterator[bytes]:
        """The messages held, in order, as the very objects that were put in, marks included."""
        return chain(*(write.messages for write in self._sent), self._queue)

    def unconfirmed_messages(self) -> list[bytes]:
        """Those that were written and may have arrived or not, in order, without marks."""
        return [message for write in self._sent for message in write.messages if type(message) is not Mark]

    def unwritten_messages(self) -> list[bytes]:
        """Those that certainly have not left, in order, without marks."""
        return [message for message in self._queue if type(message) is not Mark]

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
        """Bytes held but for those of replays that were never written: what a limit for slow peers is to look at."""
        return self.unconfirmed_bytes - self._replay


def _size(messages: Sequence[bytes]) -> int:
    return messages.size if type(messages) is Batch else sum(map(len, messages))


def _marks(messages: Sequence[bytes]) -> int:
    # There are none, mostly, and to find that out is a third of the work of counting.
    return list(map(type, messages)).count(Mark) if Mark in set(map(type, messages)) else 0
