"""History of a session for late joiners: its `session/update` messages, verbatim, within a limit.

History is truncated at the front, at the end of a turn: half a turn says little, half a tool call less. Only a running
turn that exceeds the journal by itself loses its own beginning.

Some updates hold a state, such as the session's mode: only the last of each kind counts. When such a message is cut
off, the last of its kind is set aside and stays at the head of every replay: a late joiner may miss text, never the
state.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, takewhile
from typing import Final, NamedTuple

from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.turns.ends import TurnEnd, ends_between
from acp_gateway.core.turns.times import Times, TimesView
from acp_gateway.protocol.text.pairs import Entry, has_pairs, size_of, text_of, texts_of

FORMER_EPOCHS: Final = 100
"""Maximum number of former epochs that are remembered: each start of the gateway that opens the session adds one. A
client that returns with an older epoch gets a gap."""


STEP: Final = 4096
"""Messages that are restored at once, in a millisecond."""


class TurnMessages(NamedTuple):
    """Consecutive messages of one turn."""

    messages: list[Entry]
    states: dict[int, str]
    """Kinds of the messages that hold a state, by index and in order."""
    ends_turn: bool
    """True if the turn ends after them."""
    times: Times = Times()
    """Times of the messages, which are numbered from 0."""


class Journal:
    """The last messages of a session.

    Args:
        epoch: a word unique to this journal; a position has a meaning only together with it.
        limit: maximum size in bytes. Messages set aside, one for each kind of state, count, but are kept even if they
            exceed it by themselves; then no other message is held.
    """

    def __init__(self, limit: int, epoch: str = "") -> None:
        self._limit = limit
        self.carries = False
        """True if messages may be pairs; to be set before some are added by `extend`."""
        self.clear()
        self.epoch = epoch
        """Epoch of the positions."""

    def clear(self) -> None:
        """Forget all messages, and the epoch."""
        self.epoch = ""
        # Former epochs, with their last positions.
        self._former: dict[str, int] = {}
        # The held messages, and the position before and the kind of those that hold a state, which are few.
        self._messages: deque[Entry] = deque()
        self._states: deque[tuple[int, str]] = deque()
        # The times of the held messages, by the position before each.
        self._times = Times()
        # Number of messages of each ended turn, and of those after them.
        self._turns: deque[int] = deque()
        self._running = 0
        # The ends of turns that are told, in order; they count in the size.
        self._ends: list[TurnEnd] = []
        # The last message of each kind of state that was cut off, in the order of cutting.
        self._aside: dict[str, Entry] = {}
        self._size = 0
        self.position = 0
        """Number of messages appended since the beginning or the last `clear`, held or not."""
        self._truncated = False

    def append(self, message: Entry, state: str | None = None, time: int | None = None) -> None:
        """Append a message, and cut off what exceeds the limit.

        Args:
            message: a `session/update`.
            state: the kind of update, if only the last of its kind counts.
            time: its time in milliseconds since 1970; None if that is unknown.
        """
        if state is not None:
            self._states.append((self.position, state))
        self.carries = self.carries or has_pairs((message,))
        self.extend((message,), time)

    def extend(self, messages: Sequence[Entry], time: int | None = None) -> None:
        """Append messages without state, each as `append` does."""
        if messages:
            self._times.begin(self.position, time)
            self._append(messages)

    def _append(self, messages: Sequence[Entry]) -> None:
        self._messages.extend(messages)
        self._running += len(messages)
        self.position += len(messages)
        self._size += size_of(messages) if self.carries else sum(map(len, messages))
        if self._size > self._limit:
            self._cut(self._limit)

    def shrink(self, size: int) -> None:
        """Cut off messages until at most `size` bytes are left, once: memory is short."""
        self._cut(size)

    def turn_ended(self) -> None:
        """Mark the end of a turn."""
        if self._running:
            self._turns.append(self._running)
            self._running = 0

    def note_end(self, outcome: TurnOutcome, time: int | None = None) -> None:
        """Note how a turn has ended, and when; its place is after the messages that are here."""
        end = TurnEnd(self.position, self.ends_here + 1, outcome, time)
        self._ends.append(end)
        self._size += end.size
        if self._size > self._limit:
            self._cut(self._limit)

    @property
    def ends_here(self) -> int:
        """Number of the ends of turns at the end of the history."""
        return self._ends[-1].nth if self._ends and self._ends[-1].position == self.position else 0

    def ends(self, after: tuple[int, int] = (0, 0), until: int | None = None) -> Sequence[TurnEnd]:
        """Return the ends of turns after a place, as `TurnEnd.place` has it, and up to a position."""
        return ends_between(self._ends, after, self.position if until is None else until)

    def begin_truncated(self) -> None:
        """Mark earlier history as missing."""
        self._truncated = True

    def running(self) -> Sequence[bytes]:
        """Return the same as `running_entries`, in version 1."""
        return texts_of(self.running_entries())

    def running_entries(self) -> list[Entry]:
        """Return the held messages since the end of the last turn, in order."""
        return list(islice(self._messages, max(len(self._messages) - self._running, 0), None))

    def backwards(self) -> Iterator[bytes]:
        """Yield the same messages as `running`, the last first, each as it is looked at."""
        return map(text_of, islice(reversed(self._messages), self._running))

    @property
    def truncated(self) -> bool:
        """True if history is missing: a message without state was cut off, or was never known."""
        return self._truncated

    @property
    def size(self) -> int:
        """Bytes held, with those set aside."""
        return self._size

    def rename(self, epoch: str) -> None:
        """Continue the history in another epoch."""
        self._former[self.epoch] = self.position
        while len(self._former) > FORMER_EPOCHS:
            del self._former[next(iter(self._former))]
        self.epoch = epoch

    def move_former_end(self, position: int) -> None:
        """Let the former epochs that ended at a position end where the history does now."""
        self._former = {epoch: self.position if until == position else until for epoch, until in self._former.items()}

    @property
    def former(self) -> tuple[tuple[str, int], ...]:
        """Former epochs, the oldest first, each with the position at which the next one began."""
        return tuple(self._former.items())

    def shared_with(self, epoch: str, position: int) -> int | None:
        """Return the position up to which a client at this one has seen this history; None if its position proves
        nothing.

        A client in a former epoch may have seen more than reached the disk, and so more than is known here. In the
        present epoch no client can.
        """
        if epoch and epoch == self.epoch:
            return position if position <= self.position else None
        until = self._former.get(epoch) if epoch else None
        return None if until is None else min(position, until)

    @property
    def start(self) -> int:
        """The position after which all messages are held: `since` returns None before it."""
        return self.position - len(self._messages)

    def replay(self) -> list[Entry]:
        """Return the messages for a joiner, in order: the states set aside, then the held messages."""
        return [*self._aside.values(), *self._messages]

    def since(self, position: int) -> list[Entry] | None:
        """Return the messages after a position, in order; None if some of them are not held any more."""
        return self.entries(position, self.position) if self.start <= position <= self.position else None

    def messages(self, begin: int, end: int) -> Sequence[bytes]:
        """Return the same as `entries`, in version 1."""
        return texts_of(self.entries(begin, end))

    def entries(self, begin: int, end: int) -> list[Entry]:
        """Return the held messages after position `begin` and up to `end`, in order.

        Takes a step for each held message before or after them, whichever are fewer.
        """
        first, last = max(begin - self.start, 0), min(end - self.start, len(self._messages))
        if first < len(self._messages) - last:
            return list(islice(self._messages, first, last)) if first < last else []
        backwards = list(islice(reversed(self._messages), len(self._messages) - last, len(self._messages) - first))
        backwards.reverse()
        return backwards

    def times(self, begin: int, end: int) -> list[int | None]:
        """Return the times of the messages that `messages` returns, in milliseconds since 1970; None if unknown."""
        return self._times.of(max(begin, self.start), min(end, self.position))

    def times_view(self, begin: int, end: int) -> TimesView:
        """Return the same as `times`, without a step for each message."""
        return self._times.view(max(begin, self.start), min(end, self.position))

    def runs(self, after: int = 0) -> list[TurnMessages]:
        """Return the held messages after a position, except those set aside, turn by turn.

        If a turn ended with the message at that position, the first run has only that end. Takes a step per turn, state
        and time among them, none per message.
        """
        after = max(after, self.start)
        turns, begin = [], self.position
        for count, ends_turn in chain([(self._running, False)], ((count, True) for count in reversed(self._turns))):
            if begin < after:
                break
            begin -= count
            turns.append((begin, begin + count, ends_turn))
        states = list(takewhile(lambda state: state[0] >= after, reversed(self._states)))
        messages = self.entries(after, self.position)
        runs = []
        for begin, end, ends_turn in reversed(turns):
            begin = max(begin, after)
            kinds = {}
            while states and states[-1][0] < end:
                position, kind = states.pop()
                kinds[position - begin] = kind
            if begin < end or (ends_turn and begin == end):
                times = self._times.part(begin, end)
                runs.append(TurnMessages(messages[begin - after : end - after], kinds, ends_turn, times))
        return runs

    def turn_ends(self) -> list[int]:
        """Return the positions after each turn that has ended, as far as its messages are held."""
        return list(accumulate(self._turns, initial=self.start))[1:]

    def states_set_aside(self) -> list[tuple[Entry, str]]:
        """Return the messages set aside, with their kinds, in the order of cutting."""
        return [(message, kind) for kind, message in self._aside.items()]

    def restore(
        self,
        aside: Iterable[tuple[Entry, str]],
        runs: Iterable[TurnMessages],
        position: int,
        *,
        truncated: bool,
        former: Iterable[tuple[str, int]] = (),
        ends: Iterable[TurnEnd] = (),
    ) -> None:
        """Fill this empty journal with another one's `states_set_aside`, `runs`, `former` and `ends`."""
        for _ in self.restoring(aside, runs, position, truncated=truncated, former=former, ends=ends):
            pass

    def restoring(
        self,
        aside: Iterable[tuple[Entry, str]],
        runs: Iterable[TurnMessages],
        position: int,
        *,
        truncated: bool,
        former: Iterable[tuple[str, int]] = (),
        ends: Iterable[TurnEnd] = (),
    ) -> Iterator[None]:
        """As `restore`; yield after each `STEP` messages, for other tasks."""
        self._former = {epoch: until for epoch, until in former if 0 <= until <= position}
        self._aside = {kind: message for message, kind in aside}
        turns = list(runs)
        self.position = position - sum(len(turn.messages) for turn in turns)
        self._ends.extend(end for end in ends if self.position <= end.position <= position)
        self._size = size_of(list(self._aside.values())) + sum(end.size for end in self._ends)
        self.carries = self.carries or any(has_pairs(turn.messages) for turn in turns)
        for messages, states, ends_turn, times in turns:
            self._states.extend((self.position + index, kind) for index, kind in states.items())
            if messages:
                self._times.extend(self.position, times, self.position)
            for start in range(0, len(messages), STEP):
                self._append(messages[start : start + STEP] if len(messages) > STEP else messages)
                yield
            if ends_turn:
                self.turn_ended()
        self._truncated |= truncated

    def states(self, before: int | None = None) -> list[Entry]:
        """Return the last message of each kind of state, in order of arrival. Takes a step per held state.

        Args:
            before: position up to which messages count, at least `start`; None for all.
        """
        last: dict[str, int] = {}
        for position, kind in self._states:
            if before is not None and position >= before:
                break
            last.pop(kind, None)
            last[kind] = position
        aside = [message for kind, message in self._aside.items() if kind not in last]
        # Access in the middle of a deque takes time, so only the last message of each kind is read.
        return aside + [self._messages[position - self.start] for position in last.values()]

    def copy(self, rewrite: Callable[[Entry], Entry], epoch: str) -> "Journal":
        """Return a copy for a forked session.

        Args:
            epoch: the epoch of the copy.
            rewrite: rewrites each held message for the new session, once. If they get longer, some are cut off.
        """
        copied = Journal(self._limit, epoch)
        copied.carries = self.carries
        copied._messages.extend(map(rewrite, self._messages))
        copied._states.extend(self._states)
        copied._times = self._times.copy()
        copied._turns.extend(self._turns)
        copied._running = self._running
        copied._aside = {kind: rewrite(message) for kind, message in self._aside.items()}
        copied._ends.extend(self._ends)
        copied._size = size_of(copied.replay()) + sum(end.size for end in self._ends)
        copied.position = self.position
        copied._truncated = self._truncated
        copied._cut(copied._limit)
        return copied

    def _cut(self, limit: int) -> None:
        """Cut off whole turns, then the beginning of the running one, until the rest is within the limit."""
        # Ends go with their turns; at last those that are left. They are taken out of the list at once.
        ends, ended = self._ends, 0
        while self._size > limit and self._messages:
            if self._turns:
                count = self._turns.popleft()
            else:
                # A message with a state is set aside, or replaces another: stop there, as the size after that is
                # unknown.
                passthrough = self._states[0][0] - self.start if self._states else len(self._messages)
                gone = accumulate(map(_size if self.carries else len, islice(self._messages, passthrough)))
                # Ends before the first message go with it.
                going = sum(end.size for end in ends[ended:] if end.position <= self.start)
                excess = self._size - limit - going
                count = next((number for number, size in enumerate(gone, 1) if size >= excess), passthrough) or 1
                self._running -= count
            self._cut_first(count)
            while ended < len(ends) and ends[ended].position <= self.start:
                self._size -= ends[ended].size
                ended += 1
        while self._size > limit and ended < len(ends):
            self._size -= ends[ended].size
            ended += 1
        del ends[:ended]

    def _cut_first(self, count: int) -> None:
        """Cut off the first `count` messages; set those with a state aside."""
        start = self.start
        cut = [self._messages.popleft() for _ in range(count)]
        self._size -= size_of(cut) if self.carries else sum(map(len, cut))
        states = 0
        while self._states and self._states[0][0] < start + count:
            position, kind = self._states.popleft()
            # Removed first, or the kind would keep its old place in the order.
            self._size -= _size(self._aside.pop(kind, b""))
            self._aside[kind] = cut[position - start]
            self._size += _size(self._aside[kind])
            states += 1
        self._times.cut(self.start)
        self._truncated = self._truncated or states < count


def _size(message: Entry) -> int:
    return size_of((message,))
