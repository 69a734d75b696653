"""Bounded memory of a translator, and the names and words that it makes."""

from collections.abc import Hashable
from hashlib import blake2b
from typing import Final, Protocol, TypeVar

OPTIONS_SIZE: Final = 1024 * 1024
"""Bytes of one session's options that are remembered at most, and of its modes, and of its models. An agent with
hundreds of models has a tenth of that."""

STATE_SIZE: Final = 8 * 1024 * 1024
"""Bytes that a translator remembers of one session at most: the tool calls, messages and terminals of hours. What was
not changed for longest is forgotten first; a later change of it is shown as if it were new."""

CONTENT_SIZE: Final = 1024 * 1024
"""Bytes of one tool call's content that are remembered at most, the last items; a picture of a screen has less."""

TERMINAL_SIZE: Final = 64 * 1024
"""Characters of one terminal's output that are shown at most, the last ones: a thousand lines."""

SESSIONS: Final = 256
"""Sessions of one client that a translator remembers at most; an editor has a handful, each with some sub-agents."""

REQUESTS: Final = 4096
"""Open requests of one client that a translator remembers at most; an editor has a handful."""

WITHHELD: Final = 64
"""Updates of user messages that wait at most until the agent says which of them is the client's own prompt."""

FREE_REPEATS: Final = 64 * 1024
REPEATS: Final = 4
"""A list that can only be sent whole is sent again with each addition, until that has taken `FREE_REPEATS` bytes and
`REPEATS` times the bytes that were added; then the next other message or the end sends it."""

ENTRY_SIZE: Final = 200
"""Bytes that an empty entry counts as."""

MADE: Final = "acp-gateway-"
"""Beginning of the ids that the gateway makes."""

MADE_PLAN: Final = MADE + "plan"
"""Id of the only plan that version 1 has."""

MADE_MODE: Final = MADE + "mode"
"""Id of the option that stands for the modes of an agent of version 1."""

MADE_MODEL: Final = MADE + "model"
"""Id of the option that stands for the models of an agent of version 1."""


class Sized(Protocol):
    """A thing that counts its bytes."""

    @property
    def size(self) -> int: ...


_T = TypeVar("_T", bound=Sized)
_V = TypeVar("_V")


class Memory:
    """Memory of a translator about one session, within a limit in bytes."""

    def __init__(self, limit: int = STATE_SIZE) -> None:
        self._limit = limit
        self._held: dict[Hashable, Sized] = {}
        self._sizes: dict[Hashable, int] = {}
        self.size = 0
        """Bytes held."""
        self._last: tuple[str, Sized] | None = None
        """The thing that `last` has returned, with its key, while it is remembered."""

    def get(self, kind: type[_T], key: str) -> _T | None:
        """Return what is remembered under a key."""
        found = self._held.get((kind, key))
        assert found is None or isinstance(found, kind)
        return found

    def last(self, kind: type[_T], key: str) -> _T | None:
        """Return the same as `get`, at once if it was asked for last."""
        if self._last is not None and self._last[0] == key and type(self._last[1]) is kind:
            return self._last[1]
        found = self.get(kind, key)
        self._last = None if found is None else (key, found)
        return found

    def keep(self, key: str, thing: Sized) -> None:
        """Remember a thing that is new or has changed; forget what was not changed for longest."""
        self.drop(type(thing), key)
        place = (type(thing), key)
        size = ENTRY_SIZE + len(key) + thing.size
        self._held[place], self._sizes[place] = thing, size
        self.size += size
        self.shrink(self._limit)

    def shrink(self, size: int) -> None:
        """Forget what was not changed for longest until at most so many bytes are left."""
        while self.size > size:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self.size -= self._sizes.pop(oldest)
            self._last = None

    def drop(self, kind: type[Sized], key: str) -> None:
        """Forget what is remembered under a key."""
        place = (kind, key)
        if self._held.pop(place, None) is not None:
            self._last = None
            self.size -= self._sizes.pop(place)


def bounded(memory: dict[str, _V], key: str, value: _V, most: int) -> None:
    """Set a member of a dict; its oldest members go when there are more than `most`."""
    memory[key] = value
    while len(memory) > most:
        del memory[next(iter(memory))]


def made_id(kind: str, position: int | str) -> str:
    """Return the id of a message without one, from the kind of its chunks and the position of the first in the journal.

    A prompt that is nothing in the journal has the position of the text after it, so the kind belongs to the id.
    """
    return f"{MADE}{kind.partition('_')[0]}-{position}"


def digest_id(raw: bytes) -> str:
    """Return an id that is the same for all clients that get the same text."""
    return MADE + blake2b(raw, digest_size=12).hexdigest()
