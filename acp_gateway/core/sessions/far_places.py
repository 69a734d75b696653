"""Places in the history that another gateway has of a session whose agent it has: see `far_history`."""

import json
import re
from typing import Final, NamedTuple, Protocol

from acp_gateway.core.turns.journal import Journal

MAX_WORD: Final = 256
"""Maximum length of an epoch or of the id of a link, in characters."""

MAX_POSITION: Final = 10**15

FORMER_KEPT: Final = 16
"""Maximum number of former epochs that are remembered: each start of the other gateway may add one."""

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


class FarPlace:
    """The end of a session's history here, in the history of the gateway that has the agent.

    Args:
        epoch: the epoch there.
        link: the id of the link over which the session was opened there.
        offset: the difference of the positions: that there, less that here.
        start: the position here after which all messages are those that the other gateway has.
        former: earlier epochs, each with its offset and with its last position here.
    """

    __slots__ = ("epoch", "former", "link", "offset", "owed", "start")

    def __init__(
        self, epoch: str, link: str, offset: int, start: int = 0, former: dict[str, tuple[int, int]] | None = None
    ) -> None:
        self.epoch = epoch
        self.link = link
        self.offset = offset
        self.start = start
        self.former = former or {}
        self.owed = 0
        """Number of messages that are written there, and will be written here next; below zero, that are written here,
        and whose mark is to come."""

    def at(self, position: int) -> int:
        """Return the position there for one here."""
        return position + self.offset

    def move(self, offset: int, position: int) -> None:
        """Count with another offset from this position here on."""
        if offset != self.offset:
            self.offset, self.start = offset, position
        self.owed = 0

    def begin_epoch(self, epoch: str, offset: int, position: int) -> None:
        """Go on in another epoch, at this position here."""
        self.former[self.epoch] = self.offset, position
        while len(self.former) > FORMER_KEPT:
            del self.former[next(iter(self.former))]
        self.epoch, self.offset, self.owed = epoch, offset, 0


class History(Protocol):
    """A session, as far as its history."""

    journal: Journal
    far: FarPlace | None
    """The place in the history of the gateway that has the agent; None if it is not known: see `far_history`."""
    far_former: dict[str, int]
    """The former epochs there, each with its last position, as opening the session told them."""


def former_places(session: History) -> dict[str, int]:
    """Return the former epochs of a session as its clients count, each with its last position, the newest last."""
    far = session.far
    if far is None:
        return dict(session.journal.former[-FORMER_KEPT:])
    return {epoch: end + offset for epoch, (offset, end) in far.former.items()} | session.far_former


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


def has_epoch(session: History, epoch: str | None) -> bool:
    """Return True if the history of a session has an epoch, as its clients count; also for none."""
    return epoch is None or (found := epoch_of(epoch)) == place_of(session)[0] or found in former_places(session)


def place_of(session: History, position: int | None = None) -> Place:
    """Return the place of a position in a session as its clients count, at the end of the history by default.

    The clients count as the gateway that has the agent does: it knows their places after this one was killed.
    """
    journal, far = session.journal, session.far
    here = journal.position if position is None else position
    return (journal.epoch, here) if far is None else (far.epoch, far.at(here))


def seen_up_to(session: History, epoch: str, position: int) -> int | None:
    """Return the position here up to which a client at a place has seen the history; None if that proves nothing."""
    epoch, position, _ = _seen(epoch, position)
    return _position_here(session, epoch, position)


def begun_message(session: History, epoch: str | None, position: int) -> Begun | None:
    """Return the message that a client at a place has got a part of; None without one, or if it was lost."""
    if epoch is None:
        return None
    epoch, position, updates = _seen(epoch, position)
    here = _position_here(session, epoch, position)
    is_held = here is not None and _position_here(session, epoch, position + 1) == here + 1
    return Begun(here, updates) if updates and here is not None and is_held else None


def _position_here(session: History, epoch: str, position: int) -> int | None:
    journal, far = session.journal, session.far
    if far is None:
        return journal.shared_with(epoch, position)
    if epoch == far.epoch:
        here = position - far.offset
        return here if here <= journal.position else None
    return _seen_in_former(session, far, epoch, position)


def _seen_in_former(session: History, far: FarPlace, epoch: str, position: int) -> int | None:
    """Return the same for a place in a former epoch.

    The client may have seen more of it than was stored here when this gateway was killed. That has followed since, in
    a later epoch of the other gateway, which goes on counting.
    """
    offset, end = far.former.get(epoch, (None, 0))
    if offset is not None and position - offset <= end:
        return position - offset
    told = session.far_former.get(epoch)
    if told is None:
        return None if offset is None else end
    return max(end, min(position, told, far.at(session.journal.position)) - far.offset)


def start_of(session: History) -> int:
    """Return the position here after which all messages are held and have their places."""
    return max(session.journal.start, 0 if session.far is None else min(session.far.start, session.journal.position))


def note_own_message(session: History) -> None:
    """Note that this gateway has written a message by itself. The other one has it too, and its mark tells that, which
    comes before or afterwards.
    """
    if session.far is not None:
        session.far.owed -= 1


def encode_place(far: FarPlace | None) -> str | None:
    """Return a place as it is stored; None for none."""
    return None if far is None else json.dumps([far.epoch, far.link, far.offset, far.start, far.former])


def decode_place(text: str | None) -> FarPlace | None:
    """Return a place that was stored; None if there is none, or another program has written it."""
    try:
        epoch, link, offset, start, former = json.loads(text or "null")
        ends = {name: (int(other), int(end)) for name, (other, end) in former.items()}
        return FarPlace(str(epoch), str(link), int(offset), int(start), ends)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
