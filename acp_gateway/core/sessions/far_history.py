"""Histories of sessions whose agent is behind another gateway, which has the history as well.

That gateway sends marks, as to every client that counts: the epoch and position of a session in its history. So the
place there is known for each message here. Both histories have the same messages in the same order, and it is enough to
remember the difference of the two positions. A prompt that passes here has its place where the other gateway has it,
which a mark tells.

After this gateway was killed, or the link has ended, the session is opened again from that place. The messages that are
missing here follow, and no others. Clients are told the places there: one that has seen more than had reached the disk
here is at a valid place all the same.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.sessions.far_places import FORMER_KEPT, MAX_POSITION, MAX_WORD, FarPlace
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.lost_prompts import MAX_CLAIMS
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.link_messages import Mark

MAX_EARLY: Final = 1000
"""Maximum number of marks that are kept for sessions which are about to be named."""


class _Place(NamedTuple):
    epoch: str
    position: int


class FarHistory:
    """The places of one agent's sessions in the histories of the gateway that has the agent."""

    def __init__(self, agent: AgentState) -> None:
        self._agent = agent
        # Marks of sessions that a pending response will name.
        self._early: dict[str, _Place] = {}

    def take_marks(self, lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Yield the lines of a linked agent before, between and after the marks; each mark is taken in its place."""
        start = 0
        if Mark in set(map(type, lines)):
            for at, line in enumerate(lines):
                if type(line) is Mark:
                    yield lines[start:at]
                    self.mark(line)
                    start = at + 1
        yield lines[start:]

    def mark(self, mark: bytes) -> None:
        """Take a mark."""
        for child, parent in _children(mark).items():
            session = self._agent.live.get(parent)
            if session is not None:
                self._agent.sub_agents.tell_parent(child, session)
        if not self._agent.openings:
            self._early.clear()
        for session_id, place in _places(mark).items():
            session = self._agent.live.get(session_id)
            if session is not None:
                self._take(session, place)
            elif self._agent.openings and len(self._early) < MAX_EARLY:
                self._early.setdefault(session_id, place)

    def opened(self, session: Session) -> None:
        """Take the mark that came before the response that names a new session, if there was one."""
        place = self._early.pop(session.id, None)
        if place is not None:
            self._take(session, place)

    def _take(self, session: Session, place: _Place) -> None:
        finish = None
        if session.state is SessionState.OPENING and not session.continues:
            finish, session.finish_opening = session.finish_opening, None
            session.continues = finish is None and place.epoch == session.asked_epoch
            if finish is None and not session.continues:
                return  # What is replayed has no place yet: the next mark after the response has one.
        agent, far, link = self._agent, session.far, self._agent.link
        assert link is not None, "marks come over links"
        if far is not None and (far.epoch, far.link) == (place.epoch, link):
            self._compare(session, far, place)
        else:
            end = session.journal.position
            offset, told = place.position - end, session.far_start
            if far is None:
                far = session.far = FarPlace(place.epoch, link, offset, end if told is None else told - offset)
            elif far.epoch != place.epoch:
                far.begin_epoch(place.epoch, offset, end)
            else:
                far.move(offset, end)
            far.link = link
            session.archive.keep(session)
            agent.send_position(session, session.attached)
        if finish is not None:
            finish()

    def _compare(self, session: Session, far: FarPlace, place: _Place) -> None:
        """Write what has its place now, and note what is to come."""
        while session.unplaced and self._ahead(session, far, place) > 0:
            self._place_prompt(session)
        if self._ahead(session, far, place) > 0:
            self._agent.end_echo(session)
        far.owed = self._ahead(session, far, place)
        if far.owed < 0:
            self._agent.settle_place(session)

    def _ahead(self, session: Session, far: FarPlace, place: _Place) -> int:
        return place.position - far.at(session.journal.position)

    def _place_prompt(self, session: Session) -> None:
        """Write the first prompt that has no place yet; its sender has it."""
        request = next(iter(session.unplaced))
        self._agent.write_prompt(session, request, session.unplaced.pop(request))


def ask_to_continue(
    agent: AgentState,
    session: Session,
    claims: Sequence[str] = (),
    *,
    only_live: bool = False,
) -> bytes | None:
    """Begin to open a session where its history ends here; return the gateway's own member of `_meta` for that.

    Args:
        agent: has the session.
        session: is opened.
        claims: those of prompts whose client has returned.
        only_live: have that gateway refuse if the session is not live there.

    Returns None if the agent is not behind another gateway.
    """
    session.asked_epoch = session.finish_opening = session.far_start = None
    session.continues = False
    if agent.link is None:
        session.far = None
        return None
    members = _claiming(session, claims)
    if only_live:
        members["onlyLive"] = True
    far = session.far
    if far is not None and session.journal.epoch:
        session.asked_epoch = far.epoch
        members |= {"epoch": far.epoch, "position": far.at(session.journal.position)}
    return jsonrpc.encode(members)


def ask_for_turns(session: Session, claims: Sequence[str]) -> bytes:
    """Return the gateway's own member of `_meta` that asks for turns with these claims in a session that is open."""
    return jsonrpc.encode(_claiming(session, claims))


def _claiming(session: Session, claims: Sequence[str]) -> dict[str, Any]:
    members: dict[str, Any] = {"takesOver": True, "claims": list(claims)[:MAX_CLAIMS]}
    if session.far is not None:
        members["connection"] = session.far.link
    return members


def former_told(told: Mapping[str, bytes]) -> dict[str, int]:
    """Return the last former epochs that the other gateway has told on opening a session, with their last positions."""
    try:
        found = [_Place(name, end) for name, end in json.loads(told.get("former", b"{}")).items()][-FORMER_KEPT:]
    except (ValueError, AttributeError, RecursionError):
        return {}
    return {place.epoch: place.position for place in found if _is_valid(place)}


def _places(mark: bytes) -> dict[str, _Place]:
    """Return the places in a mark that are valid."""
    try:
        positions = json.loads(mark)["params"]["positions"]
        found = {name: _Place(place["epoch"], place["position"]) for name, place in positions.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: place for name, place in found.items() if len(name) <= SESSION_ID_SIZE and _is_valid(place)}


def _children(mark: bytes) -> dict[str, str]:
    """Return the parents in a mark of sessions that no client opened."""
    if b'"children"' not in mark:
        return {}
    try:
        children = json.loads(mark)["params"]["children"]
        return {child: parent for child, parent in children.items() if isinstance(parent, str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _is_valid(place: _Place) -> bool:
    epoch, position = place
    return isinstance(epoch, str) and len(epoch) <= MAX_WORD and type(position) is int and 0 <= position <= MAX_POSITION
