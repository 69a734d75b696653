"""Prompts that have waited and never reached the agent: how their responses say so, and name them for a person."""

from typing import Final

from acp_gateway.protocol.methods import META
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.json_text import raw_at, text_at

NOT_SENT: Final = "not_sent"
"""Reason, for programs, in the error for a prompt that was cancelled while it waited."""

CANCELLED: Final = b'{"stopReason":"cancelled","_meta":{"acp-gateway":{"notSent":true}}}'
"""Result of a prompt that was cancelled before the agent had it."""

QUESTION: Final = "acp-gateway-prompt-"
"""Beginning of the id of the tool call by which the gateway asks whether a prompt is to be sent."""

SHOWN: Final = 200
"""Characters of a prompt that an error has: enough to know it again."""

_MARK: Final = b'"notSent"'


def was_not_sent(response: bytes) -> bool:
    """Return True if the result of a prompt says that it never reached the agent."""
    return _MARK in response and raw_at(response, "result", "_meta", META, "notSent") == b"true"


def name_prompt(words: str, text: str) -> str:
    """Return a sentence without a full stop about a prompt, with the beginning of its text."""
    line = " ".join(text.split())
    shown = line if len(line) <= SHOWN else f"{line[:SHOWN]}…"
    return f'{words}: "{shown}"' if shown else words


def first_text(blocks: bytes) -> str:
    """Return the beginning of the first text among the blocks of a prompt; empty without one."""
    try:
        for start, end in spans.elements(blocks):
            block = blocks[start:end]
            raw = raw_at(block, "text") if text_at(block, "type") == "text" else None
            if raw is not None and raw[:1] == b'"':
                return spans.string_beginning(raw, 4 * SHOWN)
    except spans.MalformedJson:
        pass
    return ""
