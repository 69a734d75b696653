r"""Escapes text of peers, files and programs for one line of a terminal or a log.

Such text may hold terminal control sequences, or characters that make a line read differently from its content: control
characters (C0 and C1), line breaks, bidirectional marks, zero-width characters, lone surrogates. All of these are
written as the escapes of Python's strings (`\x1b`, `\u202e`), so that they stay visible. Every place that shows such
text uses this one function.
"""

from typing import Final

MAX_LENGTH: Final = 300
"""Characters of one text that are shown: a sentence or two."""


def printable(text: str, size: int = MAX_LENGTH) -> str:
    """Escape what is not printable, in the first `size` characters; white space of all kinds becomes a space."""
    text = text[:size]
    if not text.isprintable():
        text = "".join(map(_shown, text))
    return text.strip()


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else repr(character)[1:-1]
