"""An agent's own reason for an error, as a log or the error of another request can have it.

Agents write what went wrong into `message`, and those that answer "Internal error" there into `data`. Both are text of
a stranger: secrets are left out, it is cut, and it stays in one line.

Both ends use this, so it takes the standard library alone.
"""

from typing import Final

from acp_gateway.printable import printable
from acp_gateway.protocol.secret_patterns import beginning_without_secrets
from acp_gateway.protocol.text.json_text import text_at

MAX_REASON_LENGTH: Final = 300
"""Characters of a reason: two lines of a dialog."""

MAX_ERROR_SIZE: Final = 64 * 1024
"""Bytes of an error that is read for its reason; what an agent has to say of a failure takes a hundred."""

_DETAILS: Final = (("data",), ("data", "details"), ("data", "message"), ("data", "error"))


def reason_of(response: bytes) -> str:
    """Return what an error says, in one printable line without secrets; "it said nothing" where it says nothing."""
    if len(response) > MAX_ERROR_SIZE:
        return f"it said {len(response)} bytes"
    words = [text_at(response, "error", "message"), *(text_at(response, "error", *path) for path in _DETAILS)]
    said: list[str] = []
    for word in words:
        if word and word.strip() and word.strip() not in said:
            said.append(word.strip())
    return in_one_line(": ".join(said[:2])) if said else "it said nothing"


def in_one_line(text: str, limit: int = MAX_REASON_LENGTH) -> str:
    """Return a text without secrets, with escapes for what is not printable, and cut at `limit` characters."""
    plain, is_part = beginning_without_secrets(text, limit)
    line = printable(" ".join(plain.split()), limit + 1)
    return line if len(line) <= limit and not is_part else f"{line[:limit]} …"
