"""Places in the history of a session, as its clients count: an epoch, and a position in it.

A client whose link resumes is sent marks, and counts. For another one that asks for *cursors* the gateway counts in its
stead: what it gets has its place in `_meta`. When it has lost its connection, it names the last cursor that it got over
another one, and the replay begins behind that. Beside the place, a cursor has the number of ends of turns that were
told there, since these have no positions. To the client it is an opaque text.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, Self

from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import NOTIFICATION, InvalidMessage
from acp_gateway.protocol.link_messages import Mark, Sent, positions_in
from acp_gateway.protocol.methods import META, NEWS, SESSION_UPDATE
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.json_text import with_own_meta

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

CURSOR: Final = "cursorId"
"""Member of the gateway's own `_meta` that has a cursor, as the protocol's draft of cursors names it."""

_CURSOR: Final = re.compile(r"(\d{1,15})\.(\d{1,15})@(.{1,256})", re.ASCII | re.DOTALL)
_UPDATE: Final = SESSION_UPDATE.encode()
_NEWS: Final = NEWS.encode()
_META: Final = b'"_meta"'
_OWN: Final = b'"%b"' % META.encode()
_search_params: Final = re.compile(rb'"params" ?: ?\{ ?"').search


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


def seen(place: Place) -> Place:
    """Return the epoch and position up to which a client at a place has seen a history."""
    epoch, position, _ = _seen(*place)
    return epoch, position


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


class Cursor(NamedTuple):
    """The place of a client in a session, and what it was told there."""

    place: Place
    ends: int = 0
    """Number of ends of turns that it was told at its position."""

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read a cursor that a client names; None if it is not one."""
        found = _CURSOR.fullmatch(text)
        return None if found is None else cls((found[3], int(found[1])), int(found[2]))

    def __str__(self) -> str:
        epoch, position = self.place
        return f"{position}.{self.ends}@{epoch}"


class Cursors:
    """The cursors of one client, in the sessions whose place it was told."""

    def __init__(self) -> None:
        self._at: dict[str, Cursor] = {}

    def at(self, session_id: str) -> Cursor | None:
        """Return the client's cursor in a session; None if its place there is unknown."""
        return self._at.get(session_id)

    def move(self, session_id: str, place: Place) -> None:
        """Set the place in a session."""
        before = self._at.get(session_id)
        is_same = before is not None and seen(before.place) == seen(place)
        self._at[session_id] = Cursor(place, before.ends if before is not None and is_same else 0)

    def end_told(self, session_id: str, nth: int) -> None:
        """Note that ends of turns are told at the present place, this one the last."""
        before = self._at.get(session_id)
        if before is not None:
            self._at[session_id] = before._replace(ends=nth)

    def forget(self, session_id: str) -> None:
        """Forget the place in a session, until a mark tells it."""
        self._at.pop(session_id, None)

    def stamp(self, sent: Sequence[Sent], session_id: str | None = None) -> list[Sent]:
        """Put cursors into messages for the client, and count them.

        `session_id` is the session in whose history updates of other ones are, such as those of sub-agents.
        """
        found: list[Sent] = []
        for message in sent:
            if isinstance(message, Mark):
                for name, place in positions_in(message.text).items():
                    self.move(name, place)
                found.append(message)
            else:
                found.append(self._stamped(message, session_id))
        return found

    def _stamped(self, text: bytes, session_id: str | None) -> bytes:
        # A method may be spelled with escapes.
        if not (_UPDATE in text or _NEWS in text or b"\\" in text):
            return text
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage:
            return text
        if message.kind is not NOTIFICATION or message.method not in (SESSION_UPDATE, NEWS):
            return text
        holder = message.session if message.session in self._at else session_id
        cursor = None if holder is None else self._at.get(holder)
        if holder is None or cursor is None:
            return text
        if message.method == SESSION_UPDATE:
            epoch, position = cursor.place
            self.move(holder, (epoch, position + 1))
        told = {CURSOR: str(self._at[holder])} | ({} if holder == message.session else {"sessionId": holder})
        return _with_meta(text, jsonrpc.encode(told))


def _with_meta(text: bytes, own: bytes) -> bytes:
    """Put the gateway's own member of `_meta` into the params of a notification."""
    params = _search_params(text)
    # Nearly all have it nowhere, and no object before the params, which are those of the message itself then.
    if params is not None and text.count(b"{", 0, params.start()) == 1 and _META not in text:
        at = params.end() - 1
        return b"%b%b:{%b:%b},%b" % (text[:at], _META, _OWN, own, text[at:])
    span = spans.find(text, "params")
    assert span is not None, "it names a session"
    return spans.splice(text, [(*span, with_own_meta(text[slice(*span)], own))])
