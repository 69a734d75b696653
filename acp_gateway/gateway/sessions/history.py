"""Reads parts of the history of a session: from memory while it is live, else from the disk, without its agent.

Each update has a number (`seq`): its position in the journal, from 1. Numbers have a meaning within an epoch and the
epochs that continue it, and survive restarts of the gateway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.cut_turns import note_cut
from acp_gateway.core.turns.ends import TurnEnd
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import Busy
from acp_gateway.protocol.text.pairs import texts_of

READERS: Final = 2
"""Histories that are read from the disk at a time; each takes at most a quarter more than `journal_limit` in memory."""

READ_TIMEOUT: Final = 10.0
"""Seconds to wait for the disk."""


@dataclass(frozen=True, slots=True)
class HistorySlice:
    """Consecutive updates of a session."""

    epoch: str
    """Epoch of the numbers; empty if the session has no history."""
    first: int
    """Number of the first update; the next number if there is none."""
    messages: Sequence[bytes]
    """The updates: whole `session/update` notifications, verbatim, those of sub-agents among them."""
    times: Sequence[int | None]
    """Time of each update, in milliseconds since 1970; None where none was stored."""
    truncated: bool
    """True if older updates that were asked for are not held any more."""
    more: bool
    """True if older updates that were asked for are held, and were left out because of the limit."""
    last: int
    """Number of the newest update of the history, in the slice or not."""
    reset: bool
    """True if the reader's position proves nothing, and the slice begins where the history does."""
    ends: Sequence[TurnEnd] = ()
    """The ends of turns among the updates, in order. Those right behind the reader's position may be known to it."""
    states: Sequence[bytes] = ()
    """For a reader without position: the last update of each kind of state (mode, commands, …) before the slice."""
    last_ends: int = 0
    """Number of ends of turns after the newest update of the history, in the slice or not."""

    @property
    def place(self) -> tuple[int, int]:
        """The place of the newest update or end of a turn: what comes later is news for a reader of the slice."""
        return self.last, self.last_ends


def slice_of(
    journal: Journal, *, since: int = 0, epoch: str | None = None, before: int | None = None, limit: int | None = None
) -> HistorySlice:
    """Return the newest updates of a journal. Takes a step per update that is left out, none for one that is in.

    Args:
        journal: the history.
        since: number of the last update that the reader has.
        epoch: epoch of that number; None to take it as one of the present epoch. A number in a former epoch counts if
            that update is a part of this history.
        before: number before which updates are returned; None for the end.
        limit: maximum number of updates; None for all.
    """
    shared = min(since, journal.position) if epoch is None else journal.shared_with(epoch, since)
    reset = shared != since
    seen = 0 if reset else since
    begin = max(seen, journal.start)
    end = journal.position if before is None else min(max(before - 1, begin), journal.position)
    begin = min(begin, end)
    first = begin if limit is None else max(begin, end - limit)
    return HistorySlice(
        epoch=journal.epoch,
        first=first + 1,
        messages=journal.messages(first, end),
        times=journal.times_view(first, end),
        truncated=seen < journal.start or (seen == 0 and journal.truncated),
        more=first > begin,
        last=journal.position,
        reset=reset,
        # Those right before updates that were left out belong to these.
        ends=journal.ends((first, 0) if first == seen else (first + 1, 0), end),
        states=texts_of(journal.states(first)) if seen == 0 and before is None else (),
        last_ends=len(journal.ends((journal.position, 0))),
    )


class ReadableArchive(Protocol):
    """The part of an archive that reads journals."""

    async def read(self, session: Session, journal_limit: int) -> Journal | None:
        """Return the stored journal of a session; None if there is none, or if it is in memory by now."""


class HistoryReader:
    """Reads histories.

    Args:
        archive: the histories of sessions that are not live.
        journal_limit: bytes of one history.
    """

    def __init__(self, archive: ReadableArchive, journal_limit: int) -> None:
        self._archive = archive
        self._journal_limit = journal_limit
        self._readers = trio.CapacityLimiter(READERS)

    async def read(
        self,
        session: Session,
        since: int = 0,
        before: int | None = None,
        limit: int | None = None,
        epoch: str | None = None,
    ) -> HistorySlice:
        """Return the newest updates of a session, as `slice_of` does; an empty, truncated slice if it has no history.

        A session that is not live is read from the disk, and not kept in memory. Raises `Busy` after `READ_TIMEOUT`
        seconds without an answer of the disk. Cancelling has no effect.
        """
        journal = session.journal
        if not journal.epoch:
            async with self._readers:
                with trio.move_on_after(READ_TIMEOUT) as waiting:
                    journal = await self._archive.read(session, self._journal_limit) or session.journal
                    if journal is not session.journal:
                        note_cut(session, journal)
            if waiting.cancelled_caught and not session.journal.epoch:
                # An empty history would make a reader drop what it has.
                raise Busy("the disk did not return the history in time; try again")
        else:
            await trio.lowlevel.checkpoint()
        if not journal.epoch:
            # It may have become live since.
            journal = session.journal
        if not journal.epoch:
            return HistorySlice("", 1, (), (), True, False, 0, epoch is not None or since > 0)
        # One that was read from the disk may be long.
        await trio.lowlevel.checkpoint()
        return slice_of(journal, since=since, epoch=epoch, before=before, limit=limit)
