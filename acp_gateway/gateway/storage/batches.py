"""What goes to the disk together: sessions and uses of tokens as they are at last, and what is new of histories.

A batch is collected while the one before it is being written, and is joined with it where that failed. What counts for
how many bytes is said here too, because batches wait in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from acp_gateway.gateway.storage.records import Run, StoredJournal, StoredSession, TokenUse

PER_MESSAGE: Final = 64
"""Bytes that count for a message besides its own: what Python needs for it, and its places in lists. It is counted as
if nobody else had it, though most are in the histories in memory as well: those may be gone before it is written."""

OVERHEAD: Final = 256
"""Bytes that count for each turn, each state, and each thing queued besides messages: small objects, a few of each."""


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
