"""Stops: what a `session/cancel` ends, which may come late.

A cancel waits while its client is away, or crosses the end of a turn on its way. By then another person's turn may run.
So a client says with a cancel which of its prompts were open, and how much of the session it had seen. One that says
nothing, as an editor without `connect`, has its open prompts at least.
"""

import enum
from typing import Final

from acp_gateway.core.sessions.own_meta import Aim
from acp_gateway.core.sessions.places import seen_up_to
from acp_gateway.core.sessions.session import Client, Request, Session, SessionReach
from acp_gateway.protocol import methods

JUST_ENDED: Final = 5.0
"""Seconds after the end of a turn in which a cancel of a client without open prompts may be meant for that turn: a
person reacts within one, and a connection that can't be resumed delivers within a few, or is lost."""

REACTION: Final = 1.0
"""The same for a client that says that it has seen the present turn begin."""


class Extent(enum.Enum):
    """The turns and prompts that a cancel ends."""

    NOTHING = "nothing"
    """None: those that it was meant for are over."""
    OWN_QUEUED = "own queued prompts"
    """The client's prompts that wait."""
    ALL = "all"
    """The running turns and the queue."""


def extent_of(aim: Aim, client: Client, session: Session, now: float) -> Extent:
    """Return what a client's `session/cancel` ends, which arrives at this time of the driver's clock."""
    turns, own = session.turns, _open_prompts(aim, client, session)
    if any(request in turns for request in own):
        return Extent.ALL
    is_anothers = bool(turns) and not any(_is_same_person(client.reach, turn.client.reach) for turn in turns)
    if aim.prompts and not own:
        return Extent.NOTHING
    if own and (aim.prompts is not None or aim.seen is None):
        # What its user sees as running are these.
        return Extent.OWN_QUEUED if is_anothers else Extent.ALL
    if not turns:
        # The agent may work by itself.
        return Extent.ALL
    seen = None if aim.seen is None else seen_up_to(session, *aim.seen)
    if aim.seen is not None and not any(_may_know(seen, session, turn, now) for turn in turns):
        return Extent.NOTHING
    last, has_seen = session.last_turn, seen is not None and any(seen > turn.begun_at for turn in turns)
    is_late = last is not None and now - last.ended_at < (REACTION if has_seen else JUST_ENDED)
    return Extent.NOTHING if is_anothers and is_late else Extent.ALL


def _open_prompts(aim: Aim, client: Client, session: Session) -> list[Request]:
    """Return the client's open prompts in a session that a cancel may be meant for."""
    return [
        request
        for key, request in client.requests.items()
        if request.message.method == methods.PROMPT
        and request.message.session == session.id
        and (aim.prompts is None or key in aim.prompts)
    ]


def _is_same_person(one: SessionReach, other: SessionReach) -> bool:
    return (one.identity, one.guest) == (other.identity, other.guest)


def _may_know(seen: int | None, session: Session, turn: Request, now: float) -> bool:
    """Return whether a client that has seen the history up to a position, if that is known, may know that a turn runs.

    Without an update since its begin, the time decides: an agent may be silent for long.
    """
    if seen is None or seen > turn.begun_at:
        return seen is not None
    return seen == session.journal.position and now - session.turns[turn] >= JUST_ENDED
