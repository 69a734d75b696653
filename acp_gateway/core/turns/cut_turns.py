"""Turns cut off without a connected client: by the end of the gateway, or of an unused agent.

An agent is a child of the gateway, so a restart ends the running turns. Connected clients only see a lost connection.
The stored history shows it afterwards: it has the prompt of a turn without its end. Clients that rejoin or open the
session get the reason, until the next turn begins.
"""

from typing import Final

from acp_gateway.acp.updates import SessionUpdate
from acp_gateway.core.requests import TurnOutcome
from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.core.sessions.places import epoch_of, place_of
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.open_calls import ends_of_calls
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import MAY_BE_MISSING, gap
from acp_gateway.protocol.methods import USER_CHUNK

AGENT_ENDED: Final = "agent_ended"
AGENT_STOPPED: Final = "agent_stopped"
GATEWAY_RESTARTED: Final = "gateway_restarted"
"""Reasons of ended turns in news and errors, where the agent gave none."""

_USER_CHUNK: Final = USER_CHUNK.encode()


def record_cut_turn(session: Session) -> None:
    """Record why the last turn of a re-opened session was cut off, while its former journal is there."""
    write_ends_of_calls(session)
    journal = session.journal
    session.cut = _cut_of(session, journal)
    if not journal.position:
        return  # Nothing is known of it here.
    if session.cut is not None:
        session.write_end(TurnOutcome(cut=session.cut))
    elif session.may_lack_end or gap(session.id, MAY_BE_MISSING) in journal.running():
        return  # The prompt of another turn may not have been stored.
    session.restored = False


def write_ends_of_calls(session: Session, time: int | None = None) -> None:
    """Write that the tool calls of the last turn of a session that is not live have failed, if that was cut off."""
    if _is_open(session.id, session.journal):
        session.extend(ends_of_calls(session.journal.running()), time)


def _cut_of(session: Session, journal: Journal) -> str | None:
    """Return why the last turn in the journal of a session that is not live was cut off; None if it was not."""
    if not _is_open(session.id, journal):
        return None
    return GATEWAY_RESTARTED if session.restored else AGENT_STOPPED


def note_cut(session: Session, journal: Journal) -> None:
    """Note in a copy of the journal of a session that is not live what opening it would record of its last turn."""
    cut = _cut_of(session, journal)
    if cut is not None:
        journal.extend(ends_of_calls(journal.running()))
        journal.note_end(TurnOutcome(cut=cut))


def cut_reason(session: Session, rejoin: Rejoin | None) -> str | None:
    """Return why the last turn was cut off, for a client that joins the session; None if it was not.

    A client in the present epoch was notified when the session was re-opened, or has joined later. Where the end of the
    history is unknown here, the client's unanswered prompts prove that there was a turn.
    """
    if rejoin is None:
        return session.cut
    if rejoin.epoch is not None and epoch_of(rejoin.epoch) == place_of(session)[0]:
        return None
    return GATEWAY_RESTARTED if session.restored and rejoin.prompts else session.cut


def cut_turn_meta(session: Session, rejoin: Rejoin) -> bytes:
    """Return the reason as members of a result's `_meta`, which are JSON text."""
    cut = cut_reason(session, rejoin)
    return b"{}" if cut is None else jsonrpc.encode({"cut": cut})


def _is_open(session_id: str, journal: Journal) -> bool:
    """Return True if a prompt came after the last end of a turn: agents send updates between turns as well."""
    return any(
        (told := SessionUpdate.of(message)).update.kind == USER_CHUNK and told.session_id == session_id
        for message in journal.running()
        if _USER_CHUNK in message
    )
