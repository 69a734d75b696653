"""Finds strings in messages by their position, without reading anything else.

A table says for each method which members of its `params` hold them. A message is walked along it: a value that is not
on the way is skipped by a parser written in C. The cost of a walk is limited, because the sender decides how many
members there are.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from acp_gateway.protocol.text.spans import (
    ELEMENTS,
    MEMBERS,
    MalformedJson,
    TooMany,
    after_value,
    member_at,
    members,
    skip_space,
    string_value,
    structure,
    value_end,
)

Shape: TypeAlias = "Enum | Mapping[str, Shape] | list[Shape] | tuple[Shape, ...]"
"""Position of strings in a value: a string, members of an object, [elements of an array], (this or that). A string has
a word for what it holds."""

# Cost of walking one message, at most, in units of about a microsecond: for any message, and one more for so many bytes
# of it. A thousand locations with line numbers cost 11,000, a thousand resource links with escapes in them 18,000.
_COST: Final = 18_000
_BYTES_PER_UNIT: Final = 64

_COST_OF_MEMBER: Final = 2
_COST_OF_SKIPPING: Final = 5
_COST_OF_STRING: Final = 5


Found: TypeAlias = tuple[Enum, str, int, int]
"""A string: the word that the table has for it, its value, and start and end of its span, quotes included."""


class _Places(NamedTuple):
    """A `Shape`, arranged for a walk."""

    string: Enum | None = None
    members: "Mapping[bytes, _Places] | None" = None
    """By the name as a JSON string."""
    elements: "_Places | None" = None

    @classmethod
    def of(cls, shape: Shape) -> "_Places":
        if isinstance(shape, tuple):
            either = [cls.of(alternative) for alternative in shape]
            return cls(
                next((places.string for places in either if places.string), None),
                next((places.members for places in either if places.members), None),
                next((places.elements for places in either if places.elements), None),
            )
        if isinstance(shape, Enum):
            return cls(string=shape)
        if isinstance(shape, list):
            return cls(elements=cls.of(shape[0]))
        return cls(members={b'"%b"' % name.encode(): cls.of(inner) for name, inner in shape.items()})


_NOWHERE: Final = _Places()


class StringFinder:
    """Finds strings in messages by position.

    Args:
        params: position of the strings in the `params` of each method, and the word for each.
        result: the same in the `result` of every response, because that does not say what it answers.
    """

    def __init__(self, params: Mapping[str, Shape], result: Shape = ()) -> None:
        self._params = {name: _Places.of(shape) for name, shape in params.items()}
        self._result = _Places.of(result)

    def find(self, message: bytes) -> list[Found]:
        """Return the strings in their order; those before the place where a message is broken, or has too many."""
        walk = _Walk(message)
        try:
            walk.walk(self._params, self._result)
        except MalformedJson:
            pass
        return walk.found

    def find_all(self, message: bytes) -> list[Found]:
        """Return the strings in their order.

        Raises:
            MalformedJson: the message is broken, or a string is not UTF-8.
            TooMany: there is more to walk through than the limits allow.
        """
        walk = _Walk(message)
        walk.walk(self._params, self._result)
        return walk.found


class _Walk:
    """One walk through one message. It goes through each byte once or twice."""

    def __init__(self, message: bytes) -> None:
        self.found: list[Found] = []
        """The strings so far."""
        self._message = message
        self._plain = structure(message)
        self._left = _COST + len(message) // _BYTES_PER_UNIT

    def walk(self, params: Mapping[str, _Places], result: _Places) -> None:
        """Find the strings. Raises what `find_all` raises."""
        message, plain = self._message, self._plain
        top = {string_value(name): (start, end) for name, start, end in members(message, plain=plain)}
        places, name = result, "result"
        if "method" in top:
            start, end = top["method"]
            is_string = message[start : start + 1] == b'"'
            places, name = params.get(string_value(message[start:end]) if is_string else "", _NOWHERE), "params"
        at, _ = top.get(name, (-1, -1))
        # What is behind the object that was walked through would be passed on unread.
        if at < 0 or skip_space(plain, value_end(plain, skip_space(plain, 0))) < len(plain):
            return
        self._value(at, places)

    def _value(self, start: int, places: _Places, end: int = -1) -> int:
        """Walk through the value at `start`, as far as it has places; return where it ends, or the space behind it."""
        first = self._plain[start : start + 1]
        if first == b"{" and places.members is not None:
            return self._object(start, places.members)
        if first == b"[" and places.elements is not None:
            return self._array(start, places.elements)
        if end < 0:
            self._pay(_COST_OF_SKIPPING)
            end = value_end(self._plain, start)
        if first == b'"' and places.string is not None:
            self._string(start, end, places.string)
        return end

    def _object(self, start: int, places: Mapping[bytes, _Places]) -> int:
        plain = self._plain
        at = skip_space(plain, start + 1)
        if plain[at : at + 1] == b"}":
            return at + 1
        more, count = True, 0
        while more:
            count += 1
            if count > MEMBERS:
                raise TooMany(f"an object has more than {MEMBERS} members")
            self._pay(_COST_OF_MEMBER)
            name_end, start, end = member_at(plain, at)
            name = self._message[at:name_end]
            inner = places.get(b'"%b"' % string_value(name).encode(errors="surrogatepass") if b"\\" in name else name)
            at, more = after_value(plain, self._value(start, inner or _NOWHERE, end), b"}")
        return at

    def _array(self, start: int, places: _Places) -> int:
        plain = self._plain
        at = skip_space(plain, start + 1)
        if plain[at : at + 1] == b"]":
            return at + 1
        more, count = True, 0
        while more:
            count += 1
            if count > ELEMENTS:
                raise TooMany(f"an array has more than {ELEMENTS} elements")
            self._pay(_COST_OF_MEMBER)
            at, more = after_value(plain, self._value(at, places), b"]")
        return at

    def _string(self, start: int, end: int, kind: Enum) -> None:
        self._pay(_COST_OF_STRING)
        self.found.append((kind, string_value(self._message[start:end]), start, end))

    def _pay(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise TooMany("the containers of a message have too many members to look for strings in them")
