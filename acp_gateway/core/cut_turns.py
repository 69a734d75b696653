"""Turns that were cut off while nobody could be told: by the end of the gateway, or of an agent that nobody was with.

An agent is a child of the gateway, so a restart ends the turns that run. Who is connected then sees no more than a lost
connection. What is stored says it afterwards: a history goes on without the end of the turn whose prompt is in it. Who
comes back to the session, or opens it, is told then, until the next turn begins.
"""

from typing import TYPE_CHECKING, Final

from acp_gateway.core.journal import Journal
from acp_gateway.core.sessions import Session
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import USER_CHUNK

if TYPE_CHECKING:
    from acp_gateway.core.rejoining import Rejoin

AGENT_ENDED: Final = "agent_ended"
AGENT_STOPPED: Final = "agent_stopped"
GATEWAY_RESTARTED: Final = "gateway_restarted"
"""What ends a turn in place of the agent, as news and errors name it."""

_USER_CHUNK: Final = USER_CHUNK.encode()


def note_cut(session: Session) -> None:
    """Find out what has cut off the last turn of a session that is opened again, while it has its former journal."""
    journal = session.journal
    session.cut = None
    if not journal.position:
        return  # Nothing is known of it here.
    if _is_open(session.id, journal):
        session.cut = GATEWAY_RESTARTED if session.restored else AGENT_STOPPED
    session.restored = False


def turn_begins(session: Session) -> None:
    """Forget what has cut off the turn before."""
    session.cut = None
    session.restored = False


def cut_turn(session: Session, returning: "Rejoin | None") -> str | None:
    """Return what has cut off the last turn, for a client that comes to the session; None where nothing has.

    Whose epoch is the present one was told when the session was opened again, or has come later. Where the history is
    not known here, a client knows best whether there was a turn: it has a prompt that nobody has answered.
    """
    if returning is None:
        return session.cut
    if returning.epoch is not None and returning.epoch == session.journal.epoch:
        return None
    return GATEWAY_RESTARTED if session.restored and returning.prompts else session.cut


def told_cut(session: Session, returning: "Rejoin") -> bytes:
    """Return the same as members of an answer's `_meta`, which are JSON text."""
    cut = cut_turn(session, returning)
    return b"{}" if cut is None else jsonrpc.encode({"cut": cut})


def _is_open(session_id: str, journal: Journal) -> bool:
    """Whether there is a prompt since the last turn has ended: agents say something between turns as well."""
    return any(
        _USER_CHUNK in update
        and jsonrpc.text_at(update, "params", "update", "sessionUpdate") == USER_CHUNK
        and jsonrpc.text_at(update, "params", "sessionId") == session_id
        for update in journal.running()
    )
