"""Makes a journal of a mirrored history. Pure."""

from typing import Final

from acp_gateway.cluster.store import MirroredJournal
from acp_gateway.core.journal import Journal
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import gap
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message

TURN_CANCELLED: Final = "[acp-gateway: another node has adopted this session, and this turn was cancelled.]"
"""Line for a turn that was running where a session was adopted from."""


def read_update(text: bytes) -> Message | None:
    """Return a message of a mirror if it is a `session/update`, which no client answers; None for anything else.

    The node that has mirrored it may be of another version.
    """
    try:
        message = jsonrpc.parse(text)
    except InvalidMessage:
        return None
    is_update = message.kind is Kind.NOTIFICATION and message.method == methods.SESSION_UPDATE
    return message if is_update else None


def to_journal(mirrored: MirroredJournal, session_id: str, limit: int, epoch: str) -> Journal:
    """Return the journal of a session with its mirrored history, which has positions of its own.

    A turn begins with each prompt. `limit` and `epoch` are those of the journal.
    """
    journal = Journal(limit, epoch)
    if not mirrored.complete:
        journal.begin_truncated()
    was_prompt = False
    for time, text in mirrored.messages:
        message = read_update(text)
        if message is None:
            continue
        is_own = message.session == session_id
        is_prompt = is_own and message.update == methods.USER_CHUNK
        if is_prompt and not was_prompt:
            journal.turn_ended()
        was_prompt = is_prompt
        journal.append(text, message.update if is_own and message.update in methods.STATE_UPDATES else None, time)
    return journal


def adopted_journal(
    mirrored: MirroredJournal, session_id: str, limit: int, epoch: str, *, in_turn: bool
) -> Journal | None:
    """Return the journal of an adopted session; None if nothing was mirrored. A running turn is ended in it."""
    journal = to_journal(mirrored, session_id, limit, epoch)
    if not journal.position:
        return None
    if in_turn:
        journal.append(gap(session_id, TURN_CANCELLED))
    journal.turn_ended()
    return journal
