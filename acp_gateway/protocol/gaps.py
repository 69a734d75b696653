"""The lines that stand in a conversation for what is missing there: text that the gateway adds to one."""

from typing import Final

from acp_gateway.protocol.methods import AGENT_CHUNK, SESSION_UPDATE
from acp_gateway.protocol.text.json_text import encode

GAP: Final = "[acp-gateway: the beginning of this conversation is no longer kept at the gateway.]"
PART_MISSING: Final = "[acp-gateway: a part of this conversation is missing here; it is no longer kept at the gateway.]"
MAY_BE_MISSING: Final = (
    "[acp-gateway: a part of this conversation may be missing here; after a restart the gateway can't tell any more.]"
)
SESSION_LOST: Final = (
    "[acp-gateway: this conversation could not be opened again after the connection was lost: what comes in it is "
    "missing here from now on.]"
)
TURN_CUT: Final = "[acp-gateway: the gateway was restarted, and this turn was ended.]"
TURN_LOST: Final = "[acp-gateway: the connection could not be resumed, and this turn was ended.]"
TURN_UNKNOWN: Final = (
    "[acp-gateway: the connection could not be resumed, and the end of this turn is not known; the agent may still be "
    "at work.]"
)
AGENT_LOST: Final = frozenset({"agent_ended", "agent_not_started", "agent_silent", "agent_stalled", "agent_stopped"})
"""Reasons in errors of a gateway that concern the agent, not the request."""
PROMPT_NOT_SENT: Final = "[acp-gateway: a prompt was not sent to the agent: it was cancelled while it waited.]"


def gap(session_id: str, text: str = GAP, message_id: str | None = None) -> bytes:
    """Return the update that stands in the place of what is missing; version 2 needs the id of a message."""
    params = {
        "sessionId": session_id,
        "update": {
            "sessionUpdate": AGENT_CHUNK,
            **({} if message_id is None else {"messageId": message_id}),
            "content": {"type": "text", "text": text},
        },
    }
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(SESSION_UPDATE), encode(params))
