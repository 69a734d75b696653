"""Parses whole JSON texts into Python's own values, for what has few, or is not on the way of a message."""

import gc
import json
from typing import Any, Final

import msgspec

SMALL: Final = 4096
"""Bytes of a text whose values are too few to matter."""


def parse_whole(text: bytes) -> Any:
    """Return the value of a JSON text, which may have lone surrogates; None if it can't be read.

    A parser written in C lets no other thread run. While it makes a million values, the collection of cyclic garbage,
    which begins again and again, would take four fifths of its time: it pauses.
    """
    if len(text) <= SMALL or not gc.isenabled():
        return _parse(text)
    gc.disable()
    try:
        return _parse(text)
    finally:
        gc.enable()


def _parse(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(text)  # It takes lone surrogates.
    except (ValueError, RecursionError):
        return None
