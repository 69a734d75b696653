r"""Replaces escapes of lone surrogates (`"\ud83d"`), which agents written in JavaScript send, in large texts.

Strict parsers reject them, and what reads a text in spite of them takes several times as long. The escape of the
replacement character (`"\ufffd"`) has the same length.
"""

import re
from functools import partial
from typing import Final

LEAST_SIZE: Final = 64 * 1024
"""Bytes of a message above which they are replaced; reading a smaller one with many takes some milliseconds."""

MOST_EXACT: Final = 1000
"""Escapes that are looked at one by one: there is one where output was cut within a character. A text with more is a
file that is not text, in which pairs are replaced as well, in a tenth of the time."""

_REPLACEMENT: Final = rb"\ufffd"

# Anything up to the escape of a lone surrogate.
_match_paired: Final = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*", re.DOTALL
).match
_match_surrogate: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}").match


_replace_all: Final = partial(re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}").sub, rb"\\ufffd")


def replaced(text: bytes) -> bytes:
    """Replace them in a text that begins and ends between two characters; return the same object if it has none."""
    if b"\\" not in text or (b"\\ud" not in text and b"\\uD" not in text):
        return text
    pieces: list[bytes] = []
    start = count = 0
    while start < len(text) and count < MOST_EXACT:
        found = _match_paired(text, start)
        assert found is not None
        end, start = found.end(), found.end() + len(_REPLACEMENT)
        is_lone = _match_surrogate(text, end) is not None
        # A parser rejects any other text here.
        pieces += (found[0], _REPLACEMENT if is_lone else text[end:start])
        count += is_lone
    return b"".join((*pieces, _replace_all(text[start:]))) if count else text
