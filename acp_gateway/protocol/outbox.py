"""The messages for one peer that are not written or not confirmed yet: send queue and resume backlog at once.

Messages stand in one line, and two cursors move along it: *written*, up to where they went out, and *confirmed*, up to
where the peer is known to have them. What is confirmed is forgotten. For a stock peer writing confirms, as nothing can
be sent to it again; on a link that resumes the peer's count does, and after a reconnect what it has not confirmed goes
out once more. Messages carry no numbers: both ends count.

An outbox has no limit of its own. Its owner looks at `backlog` and decides. A replay of history, which a peer gets in
one piece and because it asked, is no sign of a slow peer, so it does not count before it was written.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain


class Outbox:
    """The messages for one peer, in order, each once.

    Args:
        confirmed_by_peer: whether the peer says what it has received; if not, what is written counts as confirmed.
    """

    def __init__(self, *, confirmed_by_peer: bool = False) -> None:
        self._confirmed_by_peer = confirmed_by_peer
        # How many messages were confirmed and forgotten since the beginning.
        self._confirmed = 0
        # Written and not confirmed; behind them in line: not written.
        self._sent: deque[bytes] = deque()
        self._queue: deque[bytes] = deque()
        self._sent_bytes = 0
        self._queue_bytes = 0
        # Bytes of replays that were never written, and the bytes in the queue before them. A second replay is taken to
        # follow the first at once: what is between them makes the backlog look larger for a while, never smaller.
        self._replay = 0
        self._before_replay = 0

    # What goes in

    def append(self, message: bytes) -> None:
        """Put a message at the end of the line."""
        self._queue.append(message)
        self._queue_bytes += len(message)

    def extend(self, messages: Sequence[bytes], replay: int = 0) -> None:
        """Put messages at the end of the line.

        Args:
            messages: in order.
            replay: so many of their bytes, the first, are history that is replayed; see `backlog`.
        """
        size = sum(map(len, messages))
        assert 0 <= replay <= size
        if not self._replay:
            self._before_replay = self._queue_bytes
        self._replay += replay
        self._queue.extend(messages)
        self._queue_bytes += size

    # What goes out

    def take(self, max_bytes: int) -> list[bytes]:
        """Return what is to be written next, which is written from now on.

        All of it together has at most `max_bytes`, unless the first message alone has more. Empty if nothing is to be
        written.
        """
        taken: list[bytes] = []
        size = 0
        while self._queue and (not taken or size + len(self._queue[0]) <= max_bytes):
            message = self._queue.popleft()
            taken.append(message)
            size += len(message)
        self._queue_bytes -= size
        passed_over = min(size, self._before_replay)
        self._before_replay -= passed_over
        self._replay = max(0, self._replay - (size - passed_over))
        if self._confirmed_by_peer:
            self._sent.extend(taken)
            self._sent_bytes += size
        else:
            self._confirmed += len(taken)
        return taken

    def confirm(self, received: int) -> None:
        """The peer has received so many messages since the beginning. A count that is lower than before says nothing.

        Raises:
            ValueError: more than were written; nothing is changed.
        """
        if received > self.written:
            raise ValueError(f"{received} messages confirmed, but {self.written} written")
        while self._confirmed < received:
            self._sent_bytes -= len(self._sent.popleft())
            self._confirmed += 1

    def rewind(self, received: int) -> None:
        """After a reconnect: confirm what the peer says it has received; all the rest is to be written again.

        What is confirmed is not there any more: if `received` is below `confirmed`, the peer has lost messages that it
        had, and the owner must look for that before.

        Raises:
            ValueError: more than were written; nothing is changed.
        """
        self.confirm(received)
        self._queue.extendleft(reversed(self._sent))
        self._queue_bytes += self._sent_bytes
        self._before_replay += self._sent_bytes
        self._sent.clear()
        self._sent_bytes = 0

    def clear(self) -> None:
        """Forget all messages held. Those written count as confirmed, those not written as never put in."""
        self._confirmed += len(self._sent)
        self._sent.clear()
        self._queue.clear()
        self._sent_bytes = self._queue_bytes = self._replay = 0

    # What is there

    @property
    def written(self) -> int:
        """How many messages were written since the beginning; a rewind takes back those that it did not confirm."""
        return self._confirmed + len(self._sent)

    @property
    def confirmed(self) -> int:
        """How many messages were confirmed since the beginning."""
        return self._confirmed

    @property
    def unwritten(self) -> bool:
        """Whether anything is to be written."""
        return bool(self._queue)

    def __bool__(self) -> bool:
        """Whether anything is to be written, and not whether any message is held."""
        return self.unwritten

    def __len__(self) -> int:
        """How many messages are held: all that are not confirmed, written or not."""
        return len(self._sent) + len(self._queue)

    def messages(self) -> Iterator[bytes]:
        """The messages held, in order, as the very objects that were put in."""
        return chain(self._sent, self._queue)

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
