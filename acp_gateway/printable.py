r"""Text of peers, files and programs, made fit for one line of a terminal or a log.

Such text may hold what a terminal obeys or what makes a line read differently from what it says: control characters,
C1 controls among them, ends of lines, marks that change the direction of what follows, characters without any width,
halves of characters. All of these are written as the escapes of Python's strings (`\x1b`, `\u202e`), so that a reader
sees that they were there. Every place that shows such text uses this one function.
"""

from typing import Final

LONGEST: Final = 300
"""Characters of one text that are shown: a sentence or two."""


def printable(text: str, size: int = LONGEST) -> str:
    """Escape what is not printable, in the first `size` characters; white space of all kinds becomes a space."""
    text = text[:size]
    if not text.isprintable():
        text = "".join(map(_shown, text))
    return text.strip()


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else repr(character)[1:-1]
