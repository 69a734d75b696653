"""Tells subscribers which sessions have changed, without a queue: a session that changes often is named once.

The core tells its archive of each change. `SessionChanges` is that archive: it passes everything on to the real one,
and notes the session for the subscribers. Without subscribers it notes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import trio

from acp_gateway.core.requests import KeptPrompt
from acp_gateway.core.sessions.archive import Archive, CostEvent, JournalLoss
from acp_gateway.core.sessions.session import Session
from acp_gateway.protocol.text.pairs import Entry
from acp_gateway.transports.timers import Signal


class Changed(NamedTuple):
    """The sessions that have changed since the last look."""

    journals: set[Session]
    """Followed sessions whose journal has grown, or was replaced: its epoch is another one then."""
    sessions: set[Session]
    """Sessions that have changed otherwise: state, turn, title, clients, agent requests. They may be new."""
    removed: set[Session]
    """Sessions that do not exist any more; in none of the other sets. One of these may have the same id."""


class Subscription:
    """The changes for one subscriber. Memory: a place in a set for each changed session."""

    def __init__(
        self,
        changes: "SessionChanges",
        sees: Callable[[Session], bool],
        notice: Callable[[Session], None] | None,
        signal: Signal,
    ) -> None:
        self._changes = changes
        self._sees = sees
        self._notice = notice
        self._signal = signal
        self.changed = Changed(set(), set(), set())
        """The changes since the last `take`."""

    def follow(self, session: Session) -> None:
        """Note changes of the journal of a session from now on. May be repeated."""
        self._changes.followers.setdefault(session, {})[self] = None

    def unfollow(self, session: Session) -> None:
        """Note no more changes of the journal of a session. May be repeated."""
        followers = self._changes.followers.get(session, {})
        followers.pop(self, None)
        if not followers:
            self._changes.followers.pop(session, None)
        self.changed.journals.discard(session)

    def take(self) -> Changed:
        """Return what has changed since the last call, at once."""
        taken, self.changed = self.changed, Changed(set(), set(), set())
        return taken

    async def wait(self) -> Changed:
        """Wait until something has changed, and return what has. Cancelling loses nothing."""
        while not any(self.changed):
            await self._signal.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.take()

    # Called by `SessionChanges`

    def note_journal(self, session: Session) -> None:
        """Note that the journal of a followed session has changed."""
        self.changed.journals.add(session)
        self._signal.notify()

    def note_session(self, session: Session) -> None:
        """Note that a session has changed."""
        if session in self.changed.sessions or self._sees(session):
            if self._notice is not None:
                self._notice(session)
            self.changed.sessions.add(session)
            self._signal.notify()

    def note_removed(self, session: Session) -> None:
        """Note that a session does not exist any more."""
        if self._sees(session):
            self.changed.journals.discard(session)
            self.changed.sessions.discard(session)
            self.changed.removed.add(session)
            self._signal.notify()


class SessionChanges:
    """The archive that the core sees.

    Args:
        archive: stores everything.
    """

    def __init__(self, archive: Archive[Session]) -> None:
        self._archive = archive
        self._subscriptions: dict[Subscription, None] = {}
        self.followers: dict[Session, dict[Subscription, None]] = {}
        """The subscribers of each followed journal."""

    @contextmanager
    def subscribe(
        self,
        sees: Callable[[Session], bool] = lambda _: True,
        notice: Callable[[Session], None] | None = None,
        signal: Signal | None = None,
    ) -> Iterator[Subscription]:
        """Subscribe to the changes of sessions in this block.

        Args:
            sees: returns whether the subscriber may know of a session, live or not (`Viewer.covers`). It is called for
                each change, and must be fast.
            notice: called at once with each session that has changed otherwise than by its journal, while it is being
                changed: what opens and closes between two looks shows here. It must be fast, and not raise.
            signal: notified with each change, for a subscriber that waits for other events too.
        """
        subscription = Subscription(self, sees, notice, signal or Signal())
        self._subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]
            for session in [session for session, its in self.followers.items() if subscription in its]:
                subscription.unfollow(session)

    def _note_journal(self, session: Session) -> None:
        for subscription in self.followers.get(session, ()):
            subscription.note_journal(session)

    # Called by the core

    def note_change(self, session: Session) -> None:
        for subscription in self._subscriptions:
            subscription.note_session(session)

    def keep(self, session: Session) -> None:
        self._archive.keep(session)
        self.note_change(session)

    def remove(self, session: Session) -> None:
        self._archive.remove(session)
        for subscription in self._subscriptions:
            subscription.note_removed(session)

    def write(self, session: Session, message: Entry, state: str | None, time: int | None) -> None:
        self._archive.write(session, message, state, time)
        if session in self.followers:
            self._note_journal(session)

    def extend(self, session: Session, messages: Sequence[Entry], time: int | None) -> None:
        self._archive.extend(session, messages, time)
        if session in self.followers:
            self._note_journal(session)

    def meter(self, session: Session, event: CostEvent, told: Any = None) -> None:
        self._archive.meter(session, event, told)
        if event in ("total", "turn"):
            self.note_change(session)

    def end_turn(self, session: Session) -> None:
        self._archive.end_turn(session)
        self.note_change(session)

    def replace(self, session: Session) -> None:
        self._archive.replace(session)
        self._note_journal(session)
        self.note_change(session)

    def finish_journal(self, session: Session) -> None:
        self._archive.finish_journal(session)

    def keep_prompt(self, session: Session, prompt: KeptPrompt) -> bool:
        return self._archive.keep_prompt(session, prompt)

    def send_prompt(self, session: Session, key: str) -> bool:
        return self._archive.send_prompt(session, key)

    def drop_prompt(self, session: Session, key: str) -> None:
        self._archive.drop_prompt(session, key)

    def holds(self, session: Session) -> bool:
        return self._archive.holds(session)

    def loss(self, session: Session) -> JournalLoss | None:
        return self._archive.loss(session)
