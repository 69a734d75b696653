"""Reads the statements of sessions about files, once for all readers of the file tap.

A thousand readers of one session take the loop as long as one does: the first that looks for news reads the journal,
piece by piece, and the others find what it has found.
"""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.tap.files import FileFinder, Refusable, Seen
from acp_gateway.gateway.viewing.session_feed import PIECE_COUNT, PIECE_SIZE, fitting

KEPT: Final = 10_000
"""Accesses and other statements of a session that are kept for further readers, ten times as many as these are told
files by default: some 3 MiB."""

REFUSABLE: Final = 64
"""Permission requests of a session whose files are kept; those that are open at a time are a handful."""


class FileEvent(NamedTuple):
    """A statement of one message, and its time in milliseconds since 1970."""

    seen: Seen
    time: int


class FileEvents:
    """The statements of one session's history about files, in order.

    Args:
        session: the session.
        ignored: names of directories whose files are left out.
    """

    def __init__(self, session: Session, ignored: Collection[str]) -> None:
        self._session = session
        self.ignored = tuple(ignored)
        self.history = 0
        """Grows whenever the journal is replaced by another history; the events then start from the beginning."""
        self._refusable: dict[str, Refusable] = {}
        self._begin()

    def _begin(self) -> None:
        journal = self._session.journal
        self.finder = FileFinder(self._session.cwd, self.ignored)
        """Finds files in the messages of the session."""
        self._epoch, self._position = journal.epoch, journal.start
        self._events: list[FileEvent] = []
        self._size = 0
        self.first = 0
        """Number of the first event that is kept, from 0."""
        self.turns_before = 0
        """Number of turns that have begun in the events before it."""

    @property
    def end(self) -> int:
        """The number after the last event's."""
        return self.first + len(self._events)

    def read_some(self, until: int) -> bool:
        """Read the next piece of the journal, at most to this position; return False if there is none."""
        journal = self._session.journal
        if not journal.epoch:
            return False
        if journal.epoch != self._epoch:
            if journal.shared_with(self._epoch, self._position) != self._position:
                self.history += 1
                self._begin()
            self._epoch = journal.epoch
        # What was cut off before it was read is lost.
        start = max(self._position, journal.start)
        end = min(until, journal.position, start + PIECE_COUNT)
        if end <= start:
            return False
        messages = journal.messages(start, end)
        count = fitting(messages, PIECE_SIZE, PIECE_COUNT)
        times = journal.times(start, start + count)
        for message, since in zip(islice(messages, count), times, strict=True):
            seen = self.finder.read(message)
            if not seen.says_nothing:
                self._events.append(FileEvent(seen, since or 0))
                self._size += 1 + len(seen.touches)
        self._position = start + count
        if self._size > KEPT:
            self._forget_some()
        return True

    def _forget_some(self) -> None:
        """Leave out the first events, until half of the statements are left."""
        count = 0
        while self._size > KEPT // 2 and count < len(self._events) - 1:
            seen = self._events[count].seen
            self._size -= 1 + len(seen.touches)
            self.turns_before += seen.begins_turn
            count += 1
        del self._events[:count]
        self.first += count

    def since(self, number: int) -> Sequence[FileEvent]:
        """Return the next events from a number on; those that are not kept any more are left out."""
        start = max(number - self.first, 0)
        return self._events[start : start + PIECE_COUNT]

    def refusable(self, request: AgentRequest) -> Refusable:
        """Return what a permission request is about."""
        found = self._refusable.get(request.key)
        if found is None:
            found = self._refusable[request.key] = self.finder.refusable(request.message)
            if len(self._refusable) > REFUSABLE:
                del self._refusable[next(iter(self._refusable))]
        return found


class SharedFileEvents:
    """The events of each session that has readers."""

    def __init__(self) -> None:
        self._by_session: WeakValueDictionary[Session, FileEvents] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._by_session)

    def of(self, session: Session, ignored: Collection[str]) -> FileEvents:
        """Return the events of a session. They are kept for as long as a caller keeps them.

        Names of ignored directories that have changed are for new readers.
        """
        events = self._by_session.get(session)
        if events is None or events.ignored != tuple(ignored):
            events = self._by_session[session] = FileEvents(session, ignored)
        return events
