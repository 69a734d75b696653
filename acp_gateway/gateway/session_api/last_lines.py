"""Finds the last line that was said in a session, in its latest updates. Pure."""

from collections.abc import Iterable
from typing import Final

from acp_gateway.protocol import methods
from acp_gateway.protocol.text.whole_values import parse_whole

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
    said, text = "", ""
    left = _TOTAL
    for message in messages:
        if len(message) <= _SIZE:
            left -= len(message)
        if left < 0:
            break
        update = _update(message, session_id)
        kind = update.get("sessionUpdate")
        if text and kind != said:
            break
        title, content = update.get("title"), update.get("content")
        if kind in _SAID and isinstance(content, dict) and isinstance(content.get("text"), str):
            said, text = kind, content["text"] + text
            if "\n" in text.strip() or len(text.strip()) > LONGEST:
                break
        elif kind in (methods.TOOL_CALL, methods.TOOL_CALL_UPDATE) and isinstance(title, str) and title.strip():
            text = title
            break
    return last_of(text)


def last_of(text: str) -> str:
    """Return the last line of a text, or its end."""
    lines = text.strip().splitlines()
    return lines[-1].strip()[-LONGEST:] if lines else ""


def _update(message: bytes, session_id: str) -> dict[str, object]:
    if len(message) > _SIZE:
        return {}
    try:
        params = parse_whole(message)["params"]
        update = params["update"] if params["sessionId"] == session_id else {}
    except (KeyError, TypeError):
        return {}
    return update if isinstance(update, dict) else {}
