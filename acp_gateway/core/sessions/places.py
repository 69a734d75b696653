"""Places in the history of a session, as its clients count: an epoch, and a position in it."""

import re
from typing import Final, NamedTuple, Protocol

from acp_gateway.core.turns.journal import Journal

Place = tuple[str, int]
"""An epoch, and a position in it."""


class Begun(NamedTuple):
    """A message that a client has got a part of."""

    position: int
    """Number of messages before it in the journal."""
    updates: int
    """Number of the last updates that it becomes, which the client lacks."""


_STEP: Final = re.compile(r"(.*)/(\d{1,15})/(\d{1,15})/(\d{1,15})", re.ASCII | re.DOTALL)
"""The epoch of a client within a step."""


class History(Protocol):
    """A session, as far as its history."""

    journal: Journal


def step(place: Place, end: int, updates: int) -> Place:
    """Return the place of a client that is about to get so many updates, which lead it from a place to position `end`.

    Their number may be 0, or differ from that of the positions. Each adds one, as the client counts, so that its place
    tells how many it has got. Each step is an epoch of its own.
    """
    epoch, position = place
    return f"{epoch}/{position}/{end}/{updates}", 0


def epoch_of(word: str) -> str:
    """Return the epoch of a history that a client has named."""
    found = _STEP.fullmatch(word)
    return word if found is None else found[1]


def _seen(epoch: str, position: int) -> tuple[str, int, int]:
    """Return the epoch and position that a client has named, and how many updates it lacks of what follows it."""
    found = _STEP.fullmatch(epoch)
    if found is None:
        return epoch, position, 0
    begin, end, updates = map(int, found.group(2, 3, 4))
    return (found[1], end, 0) if position >= updates else (found[1], begin, updates - position)


def place_of(session: History, position: int | None = None) -> Place:
    """Return the place of a position in a session, at the end of the history by default."""
    journal = session.journal
    return journal.epoch, journal.position if position is None else position


def seen_up_to(session: History, epoch: str, position: int) -> int | None:
    """Return the position up to which a client at a place has seen the history; None if that proves nothing."""
    epoch, position, _ = _seen(epoch, position)
    return session.journal.shared_with(epoch, position)


def begun_message(session: History, epoch: str, position: int) -> Begun | None:
    """Return the message that a client at a place has got a part of; None without one, or if it was lost."""
    epoch, position, updates = _seen(epoch, position)
    here = session.journal.shared_with(epoch, position)
    is_held = here is not None and session.journal.shared_with(epoch, position + 1) == here + 1
    return Begun(here, updates) if updates and here is not None and is_held else None
