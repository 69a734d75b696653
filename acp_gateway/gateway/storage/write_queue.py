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
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from acp_gateway.gateway.storage.records import Run, StoredJournal, StoredSession, TokenUse

PER_MESSAGE: Final = 64
"""Bytes that count for a message besides its own: what Python needs for it, and its places in lists. It is counted as
if nobody else had it, though most are in the histories in memory as well: those may be gone before it is written."""

OVERHEAD: Final = 256
"""Bytes that count for each turn, each state, and each thing queued besides messages: small objects, a few of each."""

QUEUE: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written, besides one whole history: a tenth of a second of the fastest stream."""


@dataclass(slots=True)
class Change:
    """What is to be done to the history of a session on disk, in this order."""

    forgets: bool = False
    """It is erased with its session."""
    erases: bool = False
    renews: bool = False
    """What is in memory of it by then takes its place, and whatever is added until then is there as well."""
    whole: StoredJournal | None = None
    """This takes its place."""
    anew: bool = False
    """What is on disk is of another history than what takes its place: nothing of it stays."""
    runs: list[Run] = field(default_factory=list)
    """These are added."""
    size: int = OVERHEAD
    """Bytes that it counts for. What erases and no more counts for none: there are no
    more of these than sessions, and no room is made by giving them up."""
    new: int = 0
    """Those of `runs`."""

    @property
    def begins(self) -> bool:
        """Whether it leaves nothing of what was to be done before."""
        return self.forgets or self.erases or self.renews or self.whole is not None

    def extend(self, messages: Sequence[bytes], state: str | None) -> int:
        """Add messages, each of which tells this state, if any; for how many bytes they count."""
        if self.renews:
            return 0
        size = sum(map(len, messages)) + PER_MESSAGE * len(messages)
        if state is not None:
            size += OVERHEAD
        if not self.runs or self.runs[-1].ends_turn:
            self.runs.append(Run())
            size += OVERHEAD
        self.runs[-1].extend(messages, state)
        self.size += size
        self.new += size
        return size

    def end_turn(self) -> None:
        """A turn ended after the last message, queued or on disk."""
        if self.renews:
            return
        if not self.runs:
            self.runs.append(Run())
        self.runs[-1].ends_turn = True

    def renewed(self) -> "Change":
        """What is to be done instead, to have in its place what is in memory by then."""
        return Change(self.forgets, self.erases, renews=True, anew=self.anew)

    def replaced(self, journal: StoredJournal, size: int, *, anew: bool) -> "Change":
        """What is to be done instead, to have this history in its place, whose messages are of `size` bytes.

        Unless it is another one, which begins `anew`, it is what all that was to be done before would have led to.
        """
        size += PER_MESSAGE * sum(len(run.messages) for run in journal.runs)
        size += OVERHEAD * (1 + len(journal.states) + sum(1 + len(run.states) for run in journal.runs))
        return Change(self.forgets, self.erases, whole=journal, anew=self.anew or anew, size=size)

    def followed_by(self, later: "Change") -> "Change":
        """Both, as one."""
        if later.begins:
            later.erases |= self.erases
            later.anew |= self.anew
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
class Batch:
    """What goes to the disk together."""

    sessions: dict[int, StoredSession] = field(default_factory=dict)
    uses: dict[str, TokenUse] = field(default_factory=dict)
    changes: dict[int, Change] = field(default_factory=dict)
    """By the key of the session: those of different sessions have nothing to do with one another."""
    size: int = 0
    """Bytes that the changes count for."""

    def __bool__(self) -> bool:
        return bool(self.sessions or self.uses or self.changes)

    @property
    def renewed(self) -> list[int]:
        """The keys of those whose histories are replaced by what is in memory of them."""
        return [key for key, change in self.changes.items() if change.renews]

    @property
    def whole(self) -> set[int]:
        """The keys of those whose histories are written from their beginning."""
        return {key for key, change in self.changes.items() if change.renews or change.whole is not None}

    @property
    def contents(self) -> set[int]:
        """The keys of those of whose histories there is something in here."""
        return {key for key, change in self.changes.items() if change.whole or change.runs}

    @property
    def erases(self) -> bool:
        """Whether a history is erased."""
        return any(change.forgets or change.erases for change in self.changes.values())

    def change(self, key: int) -> Change:
        """What is to be done to a history, for more of it."""
        change = self.changes.get(key)
        if change is None:
            change = self.changes[key] = Change()
            self.size += change.size
        return change

    def extend(self, key: int, messages: Sequence[bytes], state: str | None) -> Change:
        """Add messages to a history, each of which tells this state, if any; what is to be done to it now."""
        change = self.change(key)
        self.size += change.extend(messages, state)
        return change

    def put(self, key: int, change: Change) -> None:
        """Do this to a history, and nothing of what was to be done before."""
        former = self.changes.get(key)
        self.size += change.size - (0 if former is None else former.size)
        self.changes[key] = change

    def pop(self, key: int) -> Change:
        """What was to be done to a history, and not here any more."""
        change = self.changes.pop(key)
        self.size -= change.size
        return change

    def followed_by(self, later: "Batch") -> "Batch":
        """Both, as one."""
        changes = dict(self.changes)
        for key, change in later.changes.items():
            changes[key] = changes[key].followed_by(change) if key in changes else change
        size = sum(change.size for change in changes.values())
        return Batch(self.sessions | later.sessions, self.uses | later.uses, changes, size)


class Memory(Protocol):
    """What has histories in memory, by the keys of their sessions: all that was told here is there."""

    def has(self, key: int) -> bool:
        """Whether it has this one."""

    def snapshot(self, key: int) -> tuple[StoredJournal, int]:
        """One that it has as it is now, for the storage alone, and the bytes of its messages."""


class WriteQueue:
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
