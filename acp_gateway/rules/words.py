"""Reads a command as words, if every shell makes the same words of it and runs one program with them.

That is narrower than POSIX: outside of quotes stand letters, digits and a few marks without a meaning for any shell.
Double quotes hold no `$`, backquote, backslash or `!`, and nothing is invisible. So there is no substitution,
redirection, list, comment, glob, brace or tilde to be understood, and nothing that shells take differently.
"""

import re
from collections.abc import Sequence
from typing import Final

from acp_gateway.printable import printable


def table(names: str) -> frozenset[str]:
    """Return the names that stand in a text, with space between them."""
    return frozenset(names.split())


COMMAND_SIZE: Final = 4096
"""Maximum characters of a command that is read: some fifty lines of a terminal."""

MAX_WORDS: Final = 256
"""Maximum words of a command that is read."""

_PART: Final = re.compile(r"""'(?:[^'\\]|\\(?![\\']))*'|"[^"$`\\!]*"|[A-Za-z0-9_./:,@%+=-]+""")
"""A quoted text, or characters that mean nothing to a shell. In single quotes, fish alone escapes two characters."""

_RESERVED: Final = table(
    """
    if then else elif fi do done case esac while until for in select function time coproc repeat foreach end begin and
    or not switch nocorrect noglob declare typeset local export readonly alias unalias
    """
)
"""First words that a shell does not look up as a program, or that change what later words mean."""

_SHELLS: Final = frozenset(
    f"{folder}{name}" for folder in ("", "/bin/", "/usr/bin/") for name in ("sh", "bash", "dash", "zsh")
)
_READS_TEXT: Final = frozenset({"-c", "-lc"})


def read_words(text: str) -> tuple[str, ...] | None:
    """Return the words of a simple command, the program first; None for any other text."""
    text = text.strip(" ")
    if len(text) > COMMAND_SIZE or not _is_visible(text):
        return None
    words: list[str] = []
    at = 0
    while at < len(text):
        word, start = "", at
        while at < len(text) and text[at] != " ":
            part = _PART.match(text, at)
            if part is None:
                return None
            word += part[0][1:-1] if part[0][0] in "\"'" else part[0]
            at = part.end()
        # Some shells expand these at the beginning of a word.
        if text[start] in "=%" or len(words) == MAX_WORDS:
            return None
        words.append(word)
        while at < len(text) and text[at] == " ":
            at += 1
    return tuple(words) if words and _is_program(words[0]) else None


def read_list(words: Sequence[object]) -> tuple[str, ...] | None:
    """Return the words of a command that is a list, if they are the same without a shell and with one; None otherwise.

    A shell with the text that it reads, `["bash", "-lc", TEXT]`, is that text: agents name theirs so.
    """
    texts = [word for word in words if isinstance(word, str)]
    if len(texts) != len(words) or not 0 < len(texts) <= MAX_WORDS:
        return None
    if len(texts) == 3 and texts[0] in _SHELLS and texts[1] in _READS_TEXT:
        return read_words(texts[2])
    found = read_words(" ".join(texts))
    return found if found == tuple(texts) else None


def write_words(words: Sequence[str]) -> str:
    """Return a text that `read_words` reads as these words, which it has read."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    plain = _PART.fullmatch(word)
    if plain is not None and word[0] not in "\"'=%":
        return word
    if "'" not in word:
        return f"'{word}'"
    # Each apostrophe is in double quotes, the rest in single ones.
    return '"\'"'.join(f"'{part}'" if part else "" for part in word.split("'"))


def _is_visible(text: str) -> bool:
    """Return True for a text in which nothing is hidden, and whose only white space is the space."""
    return text.isprintable() and printable(text, len(text)) == text


def _is_program(word: str) -> bool:
    """Return True for a first word that a shell looks up as a program: no assignment, word of the shell or option."""
    return bool(word) and "=" not in word and word not in _RESERVED and word[0] not in "-+" and " " not in word
