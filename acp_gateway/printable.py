r"""Escapes text of peers, files and programs for one line of a terminal or a log.

Such text may hold terminal control sequences, or characters that make a line read differently from its content: control
characters (C0 and C1), line breaks, bidirectional marks, zero-width characters, letters and marks that show nothing,
lone surrogates. All of these are written as the escapes of Python's strings (`\x1b`, `\u202e`), so that they stay
visible. Every place that shows such text uses `printable`, or `printable_lines` where text may have several lines.
`counted` writes a number of things.
"""

import re
from typing import Final

MAX_LENGTH: Final = 300
"""Characters of one text that are shown: a sentence or two."""

_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0d\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""Letters and marks that show nothing, though they count as printable. The variation selectors of emoji stay."""


def printable(text: str, size: int = MAX_LENGTH) -> str:
    """Escape what is not printable, in the first `size` characters; white space of all kinds becomes a space."""
    text = text[:size]
    if not _is_visible(text):
        text = "".join(map(_shown, text))
    return text.strip()


def printable_lines(text: str) -> str:
    """Escape what is not printable, except line breaks: LF and CR LF become LF, a tab becomes four spaces.

    Texts whose parts do not end in CR can be escaped in parts.
    """
    if _is_visible(text):
        return text
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return "".join(one if one == "\n" else "\\r" if one == "\r" else _shown(one) for one in text)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number and the name of what it counts: of one, or of many, which has an `s` behind it by default."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _is_visible(text: str) -> bool:
    return text.isprintable() and (text.isascii() or _INVISIBLE.search(text) is None)


def _shown(character: str) -> str:
    if _is_visible(character):
        return character
    return " " if character.isspace() else ascii(character)[1:-1]
