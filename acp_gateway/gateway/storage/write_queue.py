"""What is to be on the disk, and what of it is not there yet: which histories are kept, renewed or given up.

What comes is queued; whoever writes takes what is queued as a batch, and gives it back where that fails. No file is
known here, and nothing waits.

What is queued is in memory, and so it is bounded. Where more of a history is queued than it may hold, or past the
bound, none of it is any more: the history is *renewed*, which is to say that what is in memory of it is written, as it
is when its turn comes. Where that has all that came after the last message on disk, it goes on from there; else it
takes the place of what is on disk. What is lost by this would have been cut off again anyway, unless memory is so short
that the history was cut there to less than it may hold. A history that is not in memory any more is given up past the
bound: nothing more of it is written, and what is on disk is erased when that works again. So a history on disk never
has a gap.

Sessions themselves are few and small, and always stay queued until they are written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from acp_gateway.gateway.storage.batches import Batch, Change
from acp_gateway.gateway.storage.records import StoredJournal, StoredSession, TokenUse

QUEUE: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written, besides one whole history: a tenth of a second of the fastest stream."""


class Memory(Protocol):
    """What has histories in memory, by the keys of their sessions: all that was told here is there."""

    def has(self, key: int) -> bool:
        """Whether it has this one."""

    def snapshot(self, key: int) -> tuple[StoredJournal, int]:
        """One that it has as it is now, for the storage alone, and the bytes of its messages."""


class Backlog:
    """The sessions that are kept, and what is queued of them.

    Args:
        journal_limit: bytes of one session's history.
    """

    def __init__(self, journal_limit: int) -> None:
        self.memory: Memory | None = None
        """What has the histories of the sessions that live, if anything has."""
        self.sessions: dict[int, StoredSession] = {}
        """All that are kept, by their keys."""
        self.has_given_up = False
        """Whether histories were given up past the bound and are not erased yet."""
        # The sessions of which the history is kept, by their keys: the number of what was told of it last.
        self._kept: dict[int, int] = {}
        self._told = 0
        self._closed = False
        # What is queued, and what is being written.
        self._queue = Batch()
        self._underway = Batch()
        # The sessions that are on disk, by their keys; and those whose histories are to be written again from their
        # beginning, because the file was lost.
        self._stored: set[int] = set()
        self._again: set[int] = set()
        self._bound = QUEUE + journal_limit
        # How many bytes may be new of one history: a quarter more than it may hold, as on disk.
        self._most_new = journal_limit * 5 // 4

    def __bool__(self) -> bool:
        """Whether anything is queued."""
        return bool(self._queue)

    @property
    def size(self) -> int:
        """Bytes that what waits counts for, with what is being written."""
        return self._queue.size + self._underway.size

    @property
    def begins_anew(self) -> bool:
        """Whether histories that are known have not been written again since the file was lost."""
        return bool(self._again)

    def keeps(self, key: int) -> bool:
        """Whether a session's history is kept."""
        return key in self._kept

    def revision(self, key: int) -> int | None:
        """A number that no other state of a session's history has; None where none is kept."""
        return self._kept.get(key)

    def is_in_memory(self, key: int) -> bool:
        """Whether a session's history is in memory."""
        return self.memory is not None and self.memory.has(key)

    def waits(self, key: int) -> bool:
        """Whether something of a session's history is queued."""
        return key in self._queue.changes

    # What is to be on the disk.

    def restore(self, sessions: Iterable[StoredSession], kept: Iterable[int]) -> None:
        """These are on disk, and the histories of those with these keys."""
        self.sessions = {session.key: session for session in sessions}
        self._stored = set(self.sessions)
        self._kept = dict.fromkeys(kept, self._told)

    def begin_anew(self, uses: Mapping[str, TokenUse]) -> None:
        """Nothing is on disk any more: write again what is known, all but the histories that are not in memory."""
        for key in self._kept.keys() - self._queue.whole:
            self._renew(key)
        self.give_up(self._kept.keys() - self._queue.whole)
        self._stored.clear()
        self._again = self._queue.whole
        self._queue.sessions = dict(self.sessions)
        self._queue.uses = dict(uses)

    def close(self) -> None:
        """Take nothing any more."""
        self._closed = True
        self._kept.clear()

    def put_session(self, session: StoredSession) -> None:
        """Keep a session, or what has changed of it; another epoch is another name of the same history."""
        if not self._closed:
            known = self.sessions.get(session.key)
            self.sessions[session.key] = self._queue.sessions[session.key] = session
            if known is not None and known.epoch != session.epoch and session.key in self._kept:
                self._note(session.key)

    def put_use(self, token_id: str, use: TokenUse) -> None:
        """Note when a token was last used."""
        self._queue.uses[token_id] = use

    def extend(self, key: int, messages: Sequence[bytes], state: str | None = None) -> None:
        """Add messages to a history that is kept, each of which tells this state, if any."""
        if key in self._kept:
            self._note(key)
            change = self._queue.extend(key, messages, state)
            if change.new > self._most_new:
                self._renew(key)
            self._make_room()

    def end_turn(self, key: int) -> None:
        """A turn ended after the last message of a history that is kept."""
        if key in self._kept:
            self._note(key)
            self._queue.change(key).end_turn()
            self._make_room()

    def replace(self, key: int, journal: StoredJournal, size: int) -> None:
        """Keep this history of a session that is kept, whose messages are of `size` bytes."""
        if key in self.sessions and not self._closed:
            self._replace(key, journal, size, anew=True)
            self._make_room()

    def settle(self, key: int) -> None:
        """A history won't be in memory any more, and what is kept of it stays."""
        change = self._queue.changes.get(key)
        if change is not None and change.renews and not self._closed:
            self._take_from_memory(key)
            self._make_room(leaving=key)

    def forget_journal(self, key: int) -> None:
        """Erase a session's history. Until it is replaced, none is kept."""
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
        """Keep no history of these sessions any more, until it is replaced; erase what is on disk."""
        for key in keys:
            self._kept.pop(key, None)
            self._queue.put(key, Change(erases=True, size=0))

    # What goes to the disk.

    @contextmanager
    def taken(self, first: int | None = None) -> Iterator[Batch]:
        """What is to be written now. It is queued again, before what came meanwhile, where that raises an Exception.

        Histories that are to be renewed are in it, as they are in memory now, as far as so many may wait together: that
        of `first` and one at least. The others stay queued.
        """
        batch = self._take(first)
        self._underway = batch
        try:
            yield batch
        except Exception:
            self._queue = batch.followed_by(self._queue)
            raise
        finally:
            self._underway = Batch()
        self._stored |= batch.sessions.keys() & self.sessions.keys()
        self._again -= batch.changes.keys()
        self.has_given_up = self.has_given_up and self._queue.erases

    def _take(self, first: int | None) -> Batch:
        taken = False
        for key in sorted(self._queue.renewed, key=lambda key: key != first):
            # What comes while this is being written is to have room as well.
            if taken and self._queue.size > QUEUE:
                break
            taken = True
            self._take_from_memory(key)
        batch, self._queue = self._queue, Batch()
        for key in batch.renewed:
            self._queue.put(key, batch.pop(key))
            # Its epoch is the new history's: on disk is the old one until then.
            if key in batch.sessions:
                self._queue.sessions[key] = batch.sessions.pop(key)
        return batch

    def _note(self, key: int) -> None:
        """Something is told of a history that is kept from now on."""
        self._told += 1
        self._kept[key] = self._told

    # How what waits is bounded.

    def _make_room(self, leaving: int | None = None) -> None:
        """Don't let too much wait. What is `leaving` is in memory for this moment only."""
        if self.size <= self._bound:
            return
        for key in self._queue.contents - {leaving}:
            self._renew(key)
        # The batch in hand may be that much by itself: then what comes meanwhile is in memory alone.
        lost = self._queue.contents
        if lost and self.size > self._bound:
            self.give_up(lost)
            self.has_given_up = True

    def _renew(self, key: int) -> None:
        """Have a history replaced by what is in memory of it, if anything is, in place of what is queued."""
        if self.is_in_memory(key):
            self._queue.put(key, self._queue.change(key).renewed())

    def _take_from_memory(self, key: int) -> None:
        assert self.memory is not None
        self._replace(key, *self.memory.snapshot(key), anew=False)

    def _replace(self, key: int, journal: StoredJournal, size: int, *, anew: bool) -> None:
        session = self.sessions[key]
        if session.epoch != journal.epoch:
            session = replace(session, epoch=journal.epoch, former=journal.former)
            self.sessions[key] = self._queue.sessions[key] = session
            anew = True
        if anew:
            self._note(key)
        self._queue.put(key, self._queue.change(key).replaced(journal, size, anew=anew))
