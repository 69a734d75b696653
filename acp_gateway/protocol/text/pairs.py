"""Messages of an agent of version 2: each is a pair of what the other readers get, in version 1, and of the message.

A pair is not a text: what writes, searches or slices one has to say which of the two it takes.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar, cast

import msgspec

T = TypeVar("T")


class Pair(msgspec.Struct, frozen=True, gc=False):
    """A message in both versions. No agent and no client can make one."""

    text: bytes
    """The message of version 1."""
    original: bytes | None = None
    """The message of version 2 that clients of that version get in its place; None if they get nothing."""
    is_hidden: bool = False
    """True if clients of version 1 get nothing."""
    passes_in: str | None = None
    """The session, if the message was read and found to be nothing but text for its clients and journal."""

    @property
    def is_same(self) -> bool:
        """True if it is one message, which clients of both versions get as it is."""
        return self.original is self.text

    def __len__(self) -> int:
        """Return the bytes of the message of version 1."""
        return len(self.text)


Entry: TypeAlias = bytes | Pair
"""A message for clients of both versions: one of version 1, or a pair."""


def text_of(entry: Entry) -> bytes:
    """Return the message of version 1."""
    return entry.text if isinstance(entry, Pair) else entry


def texts_of(entries: Sequence[Entry]) -> Sequence[bytes]:
    """Return the messages of version 1; the same object if all are texts."""
    if not has_pairs(entries):
        return cast("Sequence[bytes]", entries)
    return [entry.text if isinstance(entry, Pair) else entry for entry in entries]


def has_pairs(entries: Iterable[object]) -> bool:
    """Return True if one of them is a pair."""
    return Pair in map(type, entries)


def size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes of messages, of both versions."""
    if not has_pairs(entries):
        return sum(map(len, entries))
    originals = [entry.original for entry in entries if isinstance(entry, Pair) and entry.original is not entry.text]
    return sum(map(len, texts_of(entries))) + sum([len(original) for original in originals if original is not None])


def shown(entries: Sequence[Pair | T]) -> Sequence[bytes | T]:
    """Return the messages that clients of version 1 get, and marks among them; the same object if these are all."""
    if not has_pairs(entries):
        return cast("Sequence[bytes | T]", entries)
    seen = [entry for entry in entries if not (isinstance(entry, Pair) and entry.is_hidden)]
    return [entry.text if isinstance(entry, Pair) else entry for entry in seen]


def is_hidden(entry: Entry) -> bool:
    """Return True if clients of version 1 get nothing for it."""
    return isinstance(entry, Pair) and entry.is_hidden


def are_same(entries: Sequence[Entry]) -> bool:
    """Return True if clients of both versions get all of them, as they are."""
    return all(isinstance(entry, Pair) and entry.original is entry.text for entry in entries)
