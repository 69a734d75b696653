"""The write queue: changes that are not on disk yet. Pure bookkeeping: it knows no file and never waits.

Changes are queued; the writing task takes them as a batch, and gives it back if the write fails.

The queue is in memory, and therefore bounded. If more of a history is queued than it may hold, or the queue is full,
the queued part is dropped and the history is *renewed*: when its turn comes, the history in memory is written. If that
contains everything after the last message on disk, the one on disk is continued; otherwise it is replaced. The loss is
what the history's limit would have cut anyway, unless `memory_limit` has cut the history further. A history that is no
longer in memory is given up when the queue is full: nothing more of it is written, and the stored part is erased once
writing works again. So a history on disk never has a gap.

Sessions themselves are few and small, and always stay queued until they are written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from acp_gateway.gateway.storage.records import StoredJournal, StoredRun, StoredSession, TokenUse

PER_MESSAGE: Final = 64
"""Bytes counted for a message besides its own: Python's object and its places in lists. Messages count in full, though
most are in a history in memory as well, which may be gone before the write."""

OVERHEAD: Final = 256
"""Bytes counted for each turn, state and change besides messages: a few small objects each."""

QUEUE: Final = 32 * 1024 * 1024
"""Maximum bytes of the queue, besides one whole history: a tenth of a second of the fastest stream."""


@dataclass(slots=True)
class Change:
    """The queued changes of one history, to be applied in the order of these fields."""

    forgets: bool = False
    """Erase it with its session."""
    erases: bool = False
    """Erase it."""
    renews: bool = False
    """Replace it with the history in memory at the time of the write."""
    whole: StoredJournal | None = None
    """Replace it with this one."""
    unrelated: bool = False
    """The new history has nothing in common with the one on disk."""
    runs: list[StoredRun] = field(default_factory=list)
    """Append these."""
    size: int = OVERHEAD
    """Bytes that it counts for; zero for erasing, because there is one such change for each session at most."""
    new: int = 0
    """Bytes of `runs`."""

    @property
    def begins(self) -> bool:
        """True if it makes earlier changes void."""
        return self.forgets or self.erases or self.renews or self.whole is not None

    def extend(self, messages: Sequence[bytes], state: str | None, time: int | None = None) -> int:
        """Append messages, each of this kind of state, if any, and of this time; return the bytes they count for."""
        if self.renews:
            return 0
        size = sum(map(len, messages)) + PER_MESSAGE * len(messages)
        if state is not None:
            size += OVERHEAD
        if not self.runs or self.runs[-1].ends_turn:
            self.runs.append(StoredRun())
            size += OVERHEAD
        self.runs[-1].extend(messages, state, time)
        self.size += size
        self.new += size
        return size

    def end_turn(self) -> None:
        """Note the end of a turn after the last message, queued or on disk."""
        if self.renews:
            return
        if not self.runs:
            self.runs.append(StoredRun())
        self.runs[-1].ends_turn = True

    def renewed(self) -> "Change":
        """Return the change that replaces the history with the one in memory at the time of the write."""
        return Change(self.forgets, self.erases, renews=True, unrelated=self.unrelated)

    def replaced(self, journal: StoredJournal, size: int, *, unrelated: bool) -> "Change":
        """Return the change that replaces the history with this one, with messages of `size` bytes.

        Unless it is `unrelated`, another history, it is the result of all earlier changes.
        """
        size += PER_MESSAGE * sum(len(run.messages) for run in journal.runs)
        size += OVERHEAD * (1 + len(journal.states) + sum(1 + len(run.states) for run in journal.runs))
        return Change(self.forgets, self.erases, whole=journal, unrelated=self.unrelated or unrelated, size=size)

    def followed_by(self, later: "Change") -> "Change":
        """Return this change and a later one as one change."""
        if later.begins:
            later.erases |= self.erases
            later.unrelated |= self.unrelated
            return later
        rest = later.runs
        if rest and self.runs and not self.runs[-1].ends_turn:
            self.runs[-1].join(rest[0])
            rest = rest[1:]
        self.runs += rest
        self.size += later.size
        self.new += later.new
        return self


@dataclass(slots=True)
class WriteBatch:
    """Changes that are written in one transaction."""

    sessions: dict[int, StoredSession] = field(default_factory=dict)
    uses: dict[str, TokenUse] = field(default_factory=dict)
    changes: dict[int, Change] = field(default_factory=dict)
    """By the key of the session; those of different sessions are independent."""
    size: int = 0
    """Bytes counted for the changes."""

    def __bool__(self) -> bool:
        return bool(self.sessions or self.uses or self.changes)

    @property
    def renewed(self) -> list[int]:
        """Keys of the histories that are replaced with those in memory."""
        return [key for key, change in self.changes.items() if change.renews]

    @property
    def whole(self) -> set[int]:
        """Keys of the histories that are written from their beginning."""
        return {key for key, change in self.changes.items() if change.renews or change.whole is not None}

    @property
    def contents(self) -> set[int]:
        """Keys of the histories with messages in the batch."""
        return {key for key, change in self.changes.items() if change.whole or change.runs}

    @property
    def erases(self) -> bool:
        """True if a history is erased."""
        return any(change.forgets or change.erases for change in self.changes.values())

    def change(self, key: int) -> Change:
        """Return the change of a history; an empty one if there was none."""
        change = self.changes.get(key)
        if change is None:
            change = self.changes[key] = Change()
            self.size += change.size
        return change

    def extend(self, key: int, messages: Sequence[bytes], state: str | None, time: int | None = None) -> Change:
        """Append messages to a history, each of this kind of state, if any, and of this time; return its change."""
        change = self.change(key)
        self.size += change.extend(messages, state, time)
        return change

    def put(self, key: int, change: Change) -> None:
        """Set the change of a history, in place of earlier ones."""
        former = self.changes.get(key)
        self.size += change.size - (0 if former is None else former.size)
        self.changes[key] = change

    def pop(self, key: int) -> Change:
        """Remove and return the change of a history."""
        change = self.changes.pop(key)
        self.size -= change.size
        return change

    def followed_by(self, later: "WriteBatch") -> "WriteBatch":
        """Return this batch and a later one as one batch."""
        changes = dict(self.changes)
        for key, change in later.changes.items():
            changes[key] = changes[key].followed_by(change) if key in changes else change
        size = sum(change.size for change in changes.values())
        return WriteBatch(self.sessions | later.sessions, self.uses | later.uses, changes, size)


class LiveHistories(Protocol):
    """The histories of live sessions, by the keys of their sessions; they contain everything that was queued."""

    def has(self, key: int) -> bool:
        """Return True if this history is in memory."""

    def snapshot(self, key: int) -> tuple[StoredJournal, int]:
        """Return a copy of a history as it is now, and the bytes of its messages."""


class WriteQueue:
    """The known sessions, and the queued changes.

    Args:
        journal_limit: bytes of one session's history.
    """

    def __init__(self, journal_limit: int) -> None:
        self.live_histories: LiveHistories | None = None
        """The histories of live sessions, if there are any."""
        self.sessions: dict[int, StoredSession] = {}
        """All known sessions, by their keys."""
        self.has_given_up = False
        """True if histories were given up because the queue was full, and are not erased yet."""
        # The number of the last change of each stored history, by the key of its session.
        self._kept: dict[int, int] = {}
        self._change_count = 0
        self._closed = False
        # Queued changes, and those being written.
        self._queue = WriteBatch()
        self._underway = WriteBatch()
        # The sessions that are on disk, by their keys; and those whose histories are to be written again from their
        # beginning, because the file was lost.
        self._stored: set[int] = set()
        self._again: set[int] = set()
        self._bound = QUEUE + journal_limit
        # Maximum queued bytes of one history: a quarter more than it may hold, as on disk.
        self._most_new = journal_limit * 5 // 4

    def __bool__(self) -> bool:
        """Return True if anything is queued."""
        return bool(self._queue)

    @property
    def size(self) -> int:
        """Bytes counted for queued changes, including those being written."""
        return self._queue.size + self._underway.size

    @property
    def lacks_histories(self) -> bool:
        """True if known histories are not written again since the file was lost."""
        return bool(self._again)

    def keeps(self, key: int) -> bool:
        """Return True if a session's history is stored."""
        return key in self._kept

    def revision(self, key: int) -> int | None:
        """Return a number that identifies the current state of a session's history; None if none is stored."""
        return self._kept.get(key)

    def is_in_memory(self, key: int) -> bool:
        """Return True if a session's history is in memory."""
        return self.live_histories is not None and self.live_histories.has(key)

    def waits(self, key: int) -> bool:
        """Return True if a change of a session's history is queued."""
        return key in self._queue.changes

    # Changes

    def restore(self, sessions: Iterable[StoredSession], kept: Iterable[int]) -> None:
        """Set what is on disk: these sessions, and histories of those with these keys."""
        self.sessions = {session.key: session for session in sessions}
        self._stored = set(self.sessions)
        self._kept = dict.fromkeys(kept, self._change_count)

    def requeue_all(self, uses: Mapping[str, TokenUse]) -> None:
        """Queue everything known after the file was lost. Histories that are not in memory are given up."""
        for key in self._kept.keys() - self._queue.whole:
            self._renew(key)
        self.give_up(self._kept.keys() - self._queue.whole)
        self._stored.clear()
        self._again = self._queue.whole
        self._queue.sessions = dict(self.sessions)
        self._queue.uses = dict(uses)

    def close(self) -> None:
        """Ignore all later changes."""
        self._closed = True
        self._kept.clear()

    def put_session(self, session: StoredSession) -> None:
        """Queue a session that is new or has changed; another epoch is another name of the same history."""
        if not self._closed:
            known = self.sessions.get(session.key)
            self.sessions[session.key] = self._queue.sessions[session.key] = session
            if known is not None and known.epoch != session.epoch and session.key in self._kept:
                self._note(session.key)

    def put_use(self, token_id: str, use: TokenUse) -> None:
        """Queue the last use of a token."""
        self._queue.uses[token_id] = use

    def extend(self, key: int, messages: Sequence[bytes], state: str | None = None, time: int | None = None) -> None:
        """Append messages to a stored history, each of this kind of state, if any, and of this time."""
        if key in self._kept:
            self._note(key)
            change = self._queue.extend(key, messages, state, time)
            if change.new > self._most_new:
                self._renew(key)
            self._make_room()

    def end_turn(self, key: int) -> None:
        """Queue the end of a turn, after the last message of a stored history."""
        if key in self._kept:
            self._note(key)
            self._queue.change(key).end_turn()
            self._make_room()

    def replace(self, key: int, journal: StoredJournal, size: int) -> None:
        """Queue this history of a known session, with messages of `size` bytes, in place of the stored one."""
        if key in self.sessions and not self._closed:
            self._replace(key, journal, size, unrelated=True)
            self._make_room()

    def renew(self, key: int) -> None:
        """Queue a stored history that is in memory, as it is there at the time of the write."""
        if key in self._kept:
            self._note(key)
            self._renew(key)

    def finish_journal(self, key: int) -> None:
        """Queue a history that is about to leave the memory, if it was to be renewed from there."""
        change = self._queue.changes.get(key)
        if change is not None and change.renews and not self._closed:
            self._take_from_memory(key)
            self._make_room(leaving=key)

    def forget_journal(self, key: int) -> None:
        """Erase a session's history; none is stored until `replace`."""
        if key in self._kept:
            self.give_up({key})

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        if self.sessions.pop(key, None) is not None and not self._closed:
            self._kept.pop(key, None)
            self._queue.sessions.pop(key, None)
            if key in self._stored or key in self._underway.sessions:
                self._stored.discard(key)
                self._queue.put(key, Change(forgets=True, size=0))
            elif self.waits(key):
                self._queue.pop(key)
                self._again.discard(key)

    def give_up(self, keys: set[int]) -> None:
        """Erase the histories of these sessions; none is stored until `replace`."""
        for key in keys:
            self._kept.pop(key, None)
            self._queue.put(key, Change(erases=True, size=0))

    # Batches

    @contextmanager
    def taken(self, first: int | None = None) -> Iterator[WriteBatch]:
        """Take the batch to write now. If the block raises an Exception, it is queued again, before later changes.

        It contains the histories to be renewed, as they are in memory now, up to the queue's limit: that of `first`,
        and at least one. The others stay queued.
        """
        batch = self._take(first)
        self._underway = batch
        try:
            yield batch
        except Exception:
            self._queue = batch.followed_by(self._queue)
            raise
        finally:
            self._underway = WriteBatch()
        self._stored |= batch.sessions.keys() & self.sessions.keys()
        self._again -= batch.changes.keys()
        self.has_given_up = self.has_given_up and self._queue.erases

    def _take(self, first: int | None) -> WriteBatch:
        taken = False
        for key in sorted(self._queue.renewed, key=lambda key: key != first):
            # Changes during the write need room as well.
            if taken and self._queue.size > QUEUE:
                break
            taken = True
            self._take_from_memory(key)
        batch, self._queue = self._queue, WriteBatch()
        for key in batch.renewed:
            self._queue.put(key, batch.pop(key))
            # The session has the new epoch; the history on disk has the old one until it is renewed.
            if key in batch.sessions:
                self._queue.sessions[key] = batch.sessions.pop(key)
        return batch

    def _note(self, key: int) -> None:
        """Note a change of a history, which is stored from now on."""
        self._change_count += 1
        self._kept[key] = self._change_count

    # The bound

    def _make_room(self, leaving: int | None = None) -> None:
        """Keep the queue within its limit. The history `leaving` is about to leave the memory."""
        if self.size <= self._bound:
            return
        for key in self._queue.contents - {leaving}:
            self._renew(key)
        # The batch being written may take all the room by itself; then later changes are in memory alone.
        lost = self._queue.contents
        if lost and self.size > self._bound:
            self.give_up(lost)
            self.has_given_up = True

    def _renew(self, key: int) -> None:
        """Replace the queued changes of a history with its renewal, if it is in memory."""
        if self.is_in_memory(key):
            self._queue.put(key, self._queue.change(key).renewed())

    def _take_from_memory(self, key: int) -> None:
        assert self.live_histories is not None
        self._replace(key, *self.live_histories.snapshot(key), unrelated=False)

    def _replace(self, key: int, journal: StoredJournal, size: int, *, unrelated: bool) -> None:
        session = self.sessions[key]
        if session.epoch != journal.epoch:
            session = replace(session, epoch=journal.epoch, former=journal.former)
            self.sessions[key] = self._queue.sessions[key] = session
            unrelated = True
        if unrelated:
            self._note(key)
        self._queue.put(key, self._queue.change(key).replaced(journal, size, unrelated=unrelated))
