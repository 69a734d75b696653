"""Finds the last line that was said in a session, in its latest updates. Pure."""

from collections.abc import Iterable
from typing import Final

from acp_gateway.acp.reading import string
from acp_gateway.acp.updates import Block, SessionUpdate, Update
from acp_gateway.protocol import methods

LOOKED_AT: Final = 60
"""Latest updates of a session in which its last line is looked for: a second or two of an agent that writes."""

LONGEST: Final = 200
"""Maximum length of a line in characters; the end of a longer one."""

_SIZE: Final = 64 * 1024
"""Size in bytes of a larger update, which is passed over: it is an image or the output of a program."""

_TOTAL: Final = 256 * 1024
"""Size in bytes of all updates that are looked at: the event loop waits for them."""

_SAID: Final = frozenset({methods.USER_CHUNK, methods.AGENT_CHUNK})


def last_line(messages: Iterable[bytes], session_id: str) -> str:
    """Return the last line of text, or the title of a tool call after it; an empty string without either.

    Args:
        messages: `session/update` notifications, the newest first; those of sub-agents do not count.
        session_id: the id that the session has at its agent.
    """
    said, text = None, ""
    left = _TOTAL
    for message in messages:
        if len(message) <= _SIZE:
            left -= len(message)
        if left < 0:
            break
        told = SessionUpdate.of(message) if len(message) <= _SIZE else SessionUpdate()
        update = told.update if told.session_id == session_id else Update()
        if text and update.kind != said:
            break
        if update.kind in _SAID and (piece := string(Block.read(update.content).text)) is not None:
            said, text = update.kind, piece + text
            if "\n" in text.strip() or len(text.strip()) > LONGEST:
                break
        elif update.kind in (methods.TOOL_CALL, methods.TOOL_CALL_UPDATE) and update.title and update.title.strip():
            text = update.title
            break
    return last_of(text)


def last_of(text: str) -> str:
    """Return the last line of a text, or its end."""
    lines = text.strip().splitlines()
    return lines[-1].strip()[-LONGEST:] if lines else ""
