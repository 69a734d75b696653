"""One session's history for those who join late: its `session/update` messages, verbatim, within a bound.

History is cut at the front, and where a turn ends: half a turn says little, half a tool call less. Only a turn that is
still running, and too large for the journal by itself, loses its own beginning.

Some updates tell a state, such as the session's mode, of which the last one counts. Where such a message is cut off,
the last of its kind is put aside and stays at the head of every replay: a late joiner may miss talk, never the state.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Final

FORMER_EPOCHS: Final = 100
"""Epochs that a journal had before and that are remembered: each time the gateway starts and opens the session again it
gets one. A client that comes back with an older one is told of a gap."""

Run = tuple[list[bytes], dict[int, str], bool]
"""Messages of one turn that follow one another; of those that tell a state the kind, by index and in order; and whether
the turn has ended after them."""


class Journal:
    """The last messages of a session.

    Args:
        epoch: a word that no other journal has; a position means something together with it only.
        limit: bytes that it may hold. What is put aside, one message for each kind of state, counts, but is kept even
            where it is more than that by itself; then nothing else is held.
    """

    def __init__(self, limit: int, epoch: str = "") -> None:
        self._limit = limit
        self.clear()
        self.epoch = epoch
        """What its positions are positions in."""

    def clear(self) -> None:
        """Forget everything, also whose positions were counted."""
        self.epoch = ""
        # What it was called before, and up to which position.
        self._former: dict[str, int] = {}
        # The messages held, and of those that tell a state the position before it and which kind: few do.
        self._messages: deque[bytes] = deque()
        self._states: deque[tuple[int, str]] = deque()
        # How many messages each of the ended turns has, and how many came after them.
        self._turns: deque[int] = deque()
        self._running = 0
        # Of each kind of state the last message that was cut off, in the order in which that happened.
        self._aside: dict[str, bytes] = {}
        self._size = 0
        self._position = 0
        self._truncated = False

    def append(self, message: bytes, state: str | None = None) -> None:
        """Write down a message, and cut off what is too much then.

        Args:
            message: a `session/update`.
            state: the kind of update, if it is one of which only the last counts.
        """
        if state is not None:
            self._states.append((self._position, state))
        self.extend((message,))

    def extend(self, messages: Sequence[bytes]) -> None:
        """Write down messages that tell no state, as `append` does each."""
        self._messages.extend(messages)
        self._running += len(messages)
        self._position += len(messages)
        self._size += sum(map(len, messages))
        if self._size > self._limit:
            self._cut(self._limit)

    def shrink(self, size: int) -> None:
        """Cut off so much that no more than `size` bytes are left, once: memory is short."""
        self._cut(size)

    def turn_ended(self) -> None:
        """The messages up to here belong together; those to come do not."""
        if self._running:
            self._turns.append(self._running)
            self._running = 0

    def begin_truncated(self) -> None:
        """There is history before this journal that nobody here knows."""
        self._truncated = True

    def running(self) -> list[bytes]:
        """What is held of the time since the last turn has ended, in order."""
        return list(islice(self._messages, max(len(self._messages) - self._running, 0), None))

    @property
    def truncated(self) -> bool:
        """Whether history is missing: something was cut off that told no state, or was never known."""
        return self._truncated

    @property
    def size(self) -> int:
        """Bytes held, with what is put aside."""
        return self._size

    @property
    def position(self) -> int:
        """How many messages were written down since the beginning or the last `clear`, held or not."""
        return self._position

    def rename(self, epoch: str) -> None:
        """The same history goes on, and from here on its positions are positions in another epoch."""
        self._former[self.epoch] = self._position
        while len(self._former) > FORMER_EPOCHS:
            del self._former[next(iter(self._former))]
        self.epoch = epoch

    @property
    def former(self) -> tuple[tuple[str, int], ...]:
        """The epochs that it had before, the oldest first, each with the position at which the next one began."""
        return tuple(self._former.items())

    def shared_with(self, epoch: str, position: int) -> int | None:
        """Up to which position somebody at this one has seen what is written down here; None where it proves nothing.

        Somebody in a former epoch may have seen more than reached the disk, and so than is known here. In the epoch of
        now nobody can have.
        """
        if epoch and epoch == self.epoch:
            return position if position <= self._position else None
        until = self._former.get(epoch) if epoch else None
        return None if until is None else min(position, until)

    @property
    def start(self) -> int:
        """The position from which on all is held: `since` knows none before it."""
        return self._position - len(self._messages)

    def replay(self) -> list[bytes]:
        """What a joiner gets, in order: the states from before what is held, then what is held."""
        return [*self._aside.values(), *self._messages]

    def since(self, position: int) -> list[bytes] | None:
        """What was written down after that position, in order; None where some of it is not held any more."""
        missing = self._position - position
        if not 0 <= missing <= len(self._messages):
            return None
        return list(islice(self._messages, len(self._messages) - missing, None))

    def runs(self) -> list[Run]:
        """What is held, but for what was put aside, turn by turn. Takes a step for each of these, for messages none."""
        runs = []
        messages, states, start = iter(self._messages), deque(self._states), self.start
        for count, ends_turn in [*((count, True) for count in self._turns), (self._running, False)]:
            kinds = {}
            while states and states[0][0] < start + count:
                position, kind = states.popleft()
                kinds[position - start] = kind
            runs.append((list(islice(messages, count)), kinds, ends_turn))
            start += count
        return runs if self._running else runs[:-1]

    def aside(self) -> list[tuple[bytes, str]]:
        """Of each kind of state the last message that was cut off, with the kind, in the order of these cuts."""
        return [(message, kind) for kind, message in self._aside.items()]

    def restore(
        self,
        aside: Iterable[tuple[bytes, str]],
        runs: Iterable[Run],
        position: int,
        *,
        truncated: bool,
        former: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Become what another journal was, of which these are `aside`, `runs` and `former`, from empty."""
        self._former = {epoch: until for epoch, until in former if 0 <= until <= position}
        self._aside = {kind: message for message, kind in aside}
        self._size = sum(map(len, self._aside.values()))
        for messages, states, ends_turn in runs:
            self._states.extend((self._position + index, kind) for index, kind in states.items())
            self.extend(messages)
            if ends_turn:
                self.turn_ended()
        shift = position - self._position
        self._states = deque((at + shift, kind) for at, kind in self._states)
        self._position = position
        self._truncated |= truncated

    def states(self) -> list[bytes]:
        """The last message of each kind of state, in the order in which they came. Looks through all that is held."""
        last: dict[str, int] = {}
        for position, kind in self._states:
            last.pop(kind, None)
            last[kind] = position
        before = [message for kind, message in self._aside.items() if kind not in last]
        # To reach into the middle takes time, and of each kind only one counts.
        return before + [self._messages[position - self.start] for position in last.values()]

    def copy(self, rewrite: Callable[[bytes], bytes], epoch: str) -> "Journal":
        """Return the journal of a session that was forked from this one and goes its own way.

        Args:
            epoch: its own.
            rewrite: makes of each message held, once, the one of the new session. If they get longer, some are cut off.
        """
        copied = Journal(self._limit, epoch)
        copied._messages.extend(map(rewrite, self._messages))
        copied._states.extend(self._states)
        copied._turns.extend(self._turns)
        copied._running = self._running
        copied._aside = {kind: rewrite(message) for kind, message in self._aside.items()}
        copied._size = sum(map(len, copied.replay()))
        copied._position = self._position
        copied._truncated = self._truncated
        copied._cut(copied._limit)
        return copied

    def _cut(self, limit: int) -> None:
        """Cut off whole turns, then the beginning of the running one, until what is left is within the limit."""
        while self._size > limit and self._messages:
            if self._turns:
                count = self._turns.popleft()
            else:
                # One that tells a state is put aside, or takes the place of another: what that changes shows then.
                talk = self._states[0][0] - self.start if self._states else len(self._messages)
                gone = accumulate(map(len, islice(self._messages, talk)))
                excess = self._size - limit
                count = next((number for number, size in enumerate(gone, 1) if size >= excess), talk) or 1
                self._running -= count
            self._cut_first(count)

    def _cut_first(self, count: int) -> None:
        """Cut off so many messages; those that tell a state are put aside."""
        start = self.start
        cut = [self._messages.popleft() for _ in range(count)]
        self._size -= sum(map(len, cut))
        states = 0
        while self._states and self._states[0][0] < start + count:
            position, kind = self._states.popleft()
            # Taken out first, or the kind would keep its old place in the order.
            self._size -= len(self._aside.pop(kind, b""))
            self._aside[kind] = cut[position - start]
            self._size += len(self._aside[kind])
            states += 1
        self._truncated = self._truncated or states < count
