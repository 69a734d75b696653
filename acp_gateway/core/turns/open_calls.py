"""Tool calls that a turn has left open: agents tell no end of them when they are killed, and many none when cancelled.

They are found in the history when the turn ends, so that nothing is remembered of calls that end as they should.
"""

from collections.abc import Iterable
from typing import Final

from acp_gateway.acp.updates import SessionUpdate
from acp_gateway.core.turns.updates import CANCELLED, session_update
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.text.pairs import Entry, Pair

MAX_ENDED: Final = 256
"""Maximum number of calls that are ended at once, the last ones: agents have a few at work."""

_FAILED: Final = "failed"
_AT_WORK: Final = frozenset({"pending", "in_progress"})

# A part of the kinds of both updates, which are spelled without an escape.
_CALL: Final = methods.TOOL_CALL.encode()


def ends_of_calls(history: Iterable[bytes], *, cancelled: bool = False, carries: bool = False) -> list[Entry]:
    """Return an update for each tool call in this part of a history that has not ended: it has failed.

    Args:
        history: updates, also those of sub-agents.
        cancelled: True if the turn was cancelled, for which version 2 has a word.
        carries: True if they are of an agent of version 2.
    """
    at_work: dict[tuple[str, str], None] = {}
    for told in (SessionUpdate.of(message) for message in history if _CALL in message):
        call = told.update
        if told.session_id is None or call.tool_call_id is None:
            continue
        key = told.session_id, call.tool_call_id
        begins = call.kind == methods.TOOL_CALL and call.status is None
        if begins or call.status in _AT_WORK:
            at_work[key] = None
        elif call.status is not None:
            at_work.pop(key, None)
    return [_end(*key, cancelled=cancelled, carries=carries) for key in [*at_work][-MAX_ENDED:]]


def _end(session_id: str, call_id: str, *, cancelled: bool, carries: bool) -> Entry:
    def text(status: str) -> bytes:
        members = {"toolCallId": jsonrpc.encode(call_id), "status": jsonrpc.encode(status)}
        return session_update(session_id, methods.TOOL_CALL_UPDATE, **members)

    if carries and cancelled:
        return Pair(text(_FAILED), text(CANCELLED))
    return text(_FAILED)
