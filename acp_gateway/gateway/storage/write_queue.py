"""The write queue: what is not on disk yet. Pure bookkeeping: it knows no file and never waits.

It groups changes into transactions, bounds what waits, and keeps a full disk away from clients.

The messages of a live session are in its journal in memory. So the queue only notes that a history has grown, and how
much of it is on disk; a batch gets the messages after that. If memory has lost some of them by then, the history on
disk is replaced with the one in memory: the loss is what the history's limit would have cut anyway. So a history on
disk never has a gap.

A history that leaves the memory, or is cut there, leaves its unwritten messages in the queue, within a bound. Beyond it
the history is given up: the stored part is erased once writing works again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from acp_gateway.gateway.storage.records import SpentBy, StoredJournal, StoredPrompt, StoredSession, TokenUse
from acp_gateway.protocol.text.pairs import size_of

PER_MESSAGE: Final = 64
"""Bytes counted for a message besides its own: Python's object and its places in lists."""

QUEUE: Final = 32 * 1024 * 1024
"""Maximum bytes of a batch, and of the histories that have left the memory, besides one whole history: a tenth of a
second of the fastest stream."""


@dataclass(slots=True)
class WriteBatch:
    """Changes that are written in one transaction."""

    sessions: dict[int, StoredSession | None] = field(default_factory=dict)
    """Sessions that are new or have changed, by key; None erases a session with its history."""
    uses: dict[str, TokenUse] = field(default_factory=dict)
    erased: set[int] = field(default_factory=set)
    """Keys of the sessions whose stored history is erased, before another one is stored."""
    histories: dict[int, list[StoredJournal]] = field(default_factory=dict)
    """States of a history, the oldest first, by the key of the session; each continues the stored one if it can, and
    replaces it otherwise."""
    size: int = 0
    """Bytes of their messages."""
    opened: set[int] = field(default_factory=set)
    """Keys of the sessions that are new, or that a process has open now: the disk has to confirm them."""
    spent: dict[int, dict[SpentBy, Counter[str]]] = field(default_factory=dict)
    """Amounts to be added, by the key of the session."""
    prompts: dict[str, StoredPrompt | None] = field(default_factory=dict)
    """Prompts that are new or have changed, by key; None erases one."""
    new_prompts: set[str] = field(default_factory=set)
    """Keys of those that are not on disk in any form."""

    def __bool__(self) -> bool:
        return bool(self.sessions or self.uses or self.prompts or self.erased or self.histories or self.spent)

    @property
    def erases(self) -> bool:
        """True if a history or a prompt is erased."""
        return bool(self.erased) or None in self.sessions.values() or None in self.prompts.values()


class LiveHistories(Protocol):
    """The histories of live sessions, by the keys of their sessions; they contain everything that was queued."""

    def has(self, key: int) -> bool:
        """Return True if this history is in memory."""

    def snapshot(self, key: int, epoch: str, position: int) -> StoredJournal:
        """Return a copy of a history's messages after this position in this epoch; of all if some of them are lost."""


class _NoHistories:
    """No history is in memory."""

    def has(self, key: int) -> bool:
        return False

    def snapshot(self, key: int, epoch: str, position: int) -> StoredJournal:
        raise KeyError(key)


@dataclass(slots=True)
class _History:
    """A history that is stored."""

    revision: int
    """Number of its last change."""
    written: int | None
    """The position up to which it is on disk; None if nothing of it is."""


class WriteQueue:
    """The known sessions, and what is to be written.

    Args:
        journal_limit: bytes of one session's history.
    """

    def __init__(self, journal_limit: int) -> None:
        self.live_histories: LiveHistories = _NoHistories()
        """The histories of live sessions."""
        self.sessions: dict[int, StoredSession] = {}
        """All known sessions, by their keys."""
        self.prompts: dict[str, StoredPrompt] = {}
        """All prompts that wait, by their keys."""
        self.new = 0
        """Bytes by which histories have grown since the last batch was taken."""
        self.has_given_up = False
        """True if histories were given up because too much waited, and are not erased yet."""
        self._bound = QUEUE + journal_limit
        self._histories: dict[int, _History] = {}
        self._change_count = 0
        # What is to be written: the keys of sessions, uses of tokens, the keys of histories that have grown, and of
        # those to be erased.
        self._changed: set[int] = set()
        self._opened: set[int] = set()
        self._uses: dict[str, TokenUse] = {}
        self._changed_prompts: dict[str, None] = {}
        # The keys of the prompts that may be on disk.
        self._stored_prompts: set[str] = set()
        self._grown: dict[int, None] = {}
        self._erased: set[int] = set()
        self._spent: dict[int, dict[SpentBy, Counter[str]]] = {}
        # The unwritten parts of histories that are no longer in memory, or may be cut there.
        self._left: dict[int, list[StoredJournal]] = {}
        self._left_size = 0
        self._underway = WriteBatch()

    def __bool__(self) -> bool:
        """Return True if anything is queued."""
        is_new = self._grown or self._changed or self._erased or self._uses or self._spent
        return bool(is_new or self._changed_prompts)

    @property
    def held(self) -> int:
        """Bytes of messages that only the queue may have in memory, including those being written."""
        return self._left_size + self._underway.size

    @property
    def lacks_histories(self) -> bool:
        """True if nothing is on disk yet of a history that is to be there."""
        return any(self._histories[key].written is None for key in self._grown)

    def keeps(self, key: int) -> bool:
        """Return True if a session's history is stored."""
        return key in self._histories

    def revision(self, key: int) -> int | None:
        """Return a number that identifies the current state of a session's history; None if none is stored."""
        history = self._histories.get(key)
        return None if history is None else history.revision

    def is_in_memory(self, key: int) -> bool:
        """Return True if a session's history is in memory."""
        return self.live_histories.has(key)

    def waits(self, key: int) -> bool:
        """Return True if a change of a session's history is queued."""
        return key in self._grown or key in self._erased

    # Changes

    def restore(
        self, sessions: Iterable[StoredSession], kept: Iterable[int], prompts: Iterable[StoredPrompt] = ()
    ) -> None:
        """Set what is on disk: these sessions, histories of those with these keys, and these prompts."""
        self.sessions = {session.key: session for session in sessions}
        self.prompts = {prompt.key: prompt for prompt in prompts}
        self._stored_prompts = set(self.prompts)
        self._histories = {key: _History(0, self.sessions[key].position) for key in kept if key in self.sessions}

    def requeue_all(self, uses: Mapping[str, TokenUse]) -> None:
        """Queue everything known after the file was lost. Histories that are not in memory are given up."""
        for key, history in list(self._histories.items()):
            if self.is_in_memory(key):
                self._forget_left(key)
            elif history.written is not None or key not in self._left:
                self.give_up({key})
                continue
            history.written = None
            self._grown[key] = None
        self._changed = set(self.sessions)
        self._opened = set(self.sessions)
        self._uses = dict(uses)
        self._changed_prompts, self._stored_prompts = dict.fromkeys(self.prompts), set()

    def close(self) -> None:
        """Ignore all later changes of histories, and the deletion of sessions."""
        self.sessions.clear()
        self._histories.clear()

    def put_session(self, session: StoredSession) -> None:
        """Queue a session that is new or has changed; another epoch is another name of the same history."""
        known = self.sessions.get(session.key)
        self.sessions[session.key] = session
        self._changed.add(session.key)
        if known is None or (session.open and not known.open):
            self._opened.add(session.key)
        if known is not None and known.epoch != session.epoch:
            self._note(session.key)

    def put_use(self, token_id: str, use: TokenUse) -> None:
        """Queue the last use of a token."""
        self._uses[token_id] = use

    def spend(self, key: int, by: SpentBy, amounts: Mapping[str, int]) -> None:
        """Queue amounts that a session has spent, to be added to those of that day."""
        self._spent.setdefault(key, {}).setdefault(by, Counter()).update(amounts)

    def put_prompt(self, prompt: StoredPrompt) -> None:
        """Queue a prompt that waits, or a change of it."""
        self.prompts[prompt.key] = prompt
        self._changed_prompts[prompt.key] = None

    def send_prompt(self, key: str) -> bool:
        """Queue that the agent may have a prompt; return True if nothing of it is on disk, where nothing is written."""
        prompt = self.prompts.get(key)
        if prompt is None or key not in self._stored_prompts:
            self.drop_prompt(key)
            return True
        self.put_prompt(replace(prompt, sent=True))
        return False

    def drop_prompt(self, key: str) -> None:
        """Erase a prompt."""
        if self.prompts.pop(key, None) is not None:
            self._changed_prompts.pop(key, None)
            if key in self._stored_prompts:
                self._changed_prompts[key] = None

    @property
    def waits_for_prompts(self) -> bool:
        """True if a change of a prompt is not on disk."""
        return bool(self._changed_prompts or self._underway.prompts)

    def grow(self, key: int, size: int) -> None:
        """Note that a history in memory got messages of so many bytes, or that its turn ended."""
        if key in self._histories:
            self._note(key)
            self._grown[key] = None
            self.new += size

    def replace(self, key: int) -> None:
        """Queue another history of a known session: that in memory, or an empty one, in place of the stored one."""
        session = self.sessions.get(key)
        if session is None:
            return
        if key in self._histories:
            self.give_up({key})
        self._histories[key] = _History(0, None)
        self._note(key)
        self._grown[key] = None
        if not self.is_in_memory(key):
            self._left[key] = [StoredJournal(session.epoch, position=0, truncated=False)]

    def leave(self, key: int) -> None:
        """Take over what is not on disk of a history that is about to leave the memory, or to be cut there."""
        if key in self._histories and self.is_in_memory(key) and (self.waits(key) or key in self._underway.histories):
            journal = self._snapshot(key)
            self._grown[key] = None
            self._left.setdefault(key, []).append(journal)
            self._left_size += _size(journal)
            if self.held > self._bound:
                # What is in memory when its turn comes is stored instead; without that, it is given up.
                self._forget_left(key)
                self._erased.add(key)
                self._histories[key].written = None
                self.has_given_up = True

    def forget(self, key: int) -> None:
        """Erase a session with its history."""
        if self.sessions.pop(key, None) is not None:
            for prompt in [prompt for prompt in self.prompts.values() if prompt.session == key]:
                self.drop_prompt(prompt.key)
            self.give_up({key})
            self._erased.discard(key)
            self._changed.add(key)

    def give_up(self, keys: set[int]) -> None:
        """Erase the histories of these sessions; none is stored until `replace`."""
        for key in keys:
            self._histories.pop(key, None)
            self._forget_left(key)
            self._grown.pop(key, None)
        self._erased |= keys

    def _note(self, key: int) -> None:
        if key in self._histories:
            self._change_count = self._histories[key].revision = self._change_count + 1

    def _forget_left(self, key: int) -> None:
        self._left_size -= sum(map(_size, self._left.pop(key, ())))

    # Batches

    @contextmanager
    def taken(self, first: int | None = None) -> Iterator[WriteBatch]:
        """Take the batch to write now. If the block raises an Exception, it is queued again, before later changes.

        It contains the histories that have grown, as they are in memory now, up to the queue's limit: that of `first`,
        and at least one. The others stay queued.
        """
        self._underway = batch = self._take(first)
        try:
            yield batch
        except Exception:
            self._put_back(batch)
            raise
        finally:
            self._underway = WriteBatch()
        for key in batch.histories.keys() & self._histories.keys() - self._erased:
            self._histories[key].written = batch.histories[key][-1].position
        self._stored_prompts -= {key for key, prompt in batch.prompts.items() if prompt is None}
        self.has_given_up = self.has_given_up and bool(self._erased)

    def _take(self, first: int | None) -> WriteBatch:
        batch = WriteBatch(uses=self._uses)
        waiting: dict[int, None] = {}
        for key in sorted(self._grown, key=lambda key: key != first):
            # Its session waits as well: it may have the new epoch, and the history on disk has the old one.
            if batch.size > QUEUE:
                waiting[key] = None
                continue
            parts = [self._snapshot(key)] if self.is_in_memory(key) else []
            parts = [*self._left.get(key, ()), *parts]
            self._forget_left(key)
            if parts:
                batch.histories[key] = parts
                batch.size += sum(map(_size, parts))
            else:  # It has grown, and the messages are lost.
                self.give_up({key})
        batch.sessions = {key: self.sessions.get(key) for key in self._changed - waiting.keys()}
        # Together with the meters of their sessions, so that after a crash nothing is counted again.
        batch.spent = {key: self._spent.pop(key) for key in self._spent.keys() - waiting.keys()}
        batch.opened = self._opened & batch.sessions.keys()
        self._opened -= batch.opened
        batch.erased = self._erased - waiting.keys()
        self._grown, self._changed = waiting, self._changed & waiting.keys()
        self._uses, self._erased, self.new = {}, self._erased & waiting.keys(), 0
        batch.prompts = {key: self.prompts.get(key) for key in self._changed_prompts}
        batch.new_prompts = batch.prompts.keys() - self._stored_prompts
        self._stored_prompts |= batch.prompts.keys()
        self._changed_prompts = {}
        return batch

    def _put_back(self, batch: WriteBatch) -> None:
        for key in batch.histories.keys() & self._histories.keys() - self._erased:
            self._grown[key] = None
            if not self.is_in_memory(key):
                parts = batch.histories[key]
                self._left[key] = [*parts, *self._left.get(key, ())]
                self._left_size += sum(map(_size, parts))
        self._changed |= batch.sessions.keys()
        self._opened |= batch.opened
        self._uses = batch.uses | self._uses
        self._erased |= batch.erased
        for key, spent in batch.spent.items():
            for by, amounts in spent.items():
                self.spend(key, by, amounts)
        self._stored_prompts -= batch.new_prompts
        known = (key for key in batch.prompts if key in self.prompts or key in self._stored_prompts)
        self._changed_prompts = dict.fromkeys(known) | self._changed_prompts

    def _snapshot(self, key: int) -> StoredJournal:
        """Return what is neither on disk nor left of a history in memory."""
        session, history = self.sessions[key], self._histories[key]
        written = self._left[key][-1].position if key in self._left else history.written
        journal = self.live_histories.snapshot(key, session.epoch, written or 0)
        if session.epoch != journal.epoch:
            if history.written is not None:
                self._erased.add(key)
            self.sessions[key] = replace(session, epoch=journal.epoch, former=journal.former)
            self._changed.add(key)
        return journal


def _size(journal: StoredJournal) -> int:
    """Return the bytes that the messages of a history count for."""
    ends = sum(end.size for end in journal.ends)
    if journal.carries:
        return ends + sum(size_of(run.messages) + PER_MESSAGE * len(run.messages) for run in journal.runs)
    return ends + sum(sum(map(len, run.messages)) + PER_MESSAGE * len(run.messages) for run in journal.runs)
