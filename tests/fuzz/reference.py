"""A message as the standard library's parser has it: slow, and written apart from what is tested against it.

A value is what `json` makes of it, but for numbers, which keep their text, and objects, which keep all their members
in order, those that are repeated as well. Where a value begins and ends is found by having `json` read it there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from acp_gateway.protocol.jsonrpc import INVALID_REQUEST, PARSE_ERROR, Kind

SPACE: Final = " \t\n\r"

TOP: Final = ("jsonrpc", "id", "method", "params", "result", "error")
"""The members of a message by JSON-RPC."""


@dataclass(frozen=True)
class Number:
    """A number, as it is spelled."""

    text: str


class Object(list[tuple[str, Any]]):
    """The members of an object."""

    def get(self, name: str) -> Any:
        """The value that counts of a member, the last one; `MISSING` where there is none."""
        members: dict[str, Any] = dict(self)
        return members.get(name, MISSING)


MISSING: Final[Any] = object()


class Place(NamedTuple):
    """A member of an object, and where its value is in the text."""

    name: str
    start: int
    end: int


def _reject(constant: str) -> None:
    raise ValueError(constant)


_decoder = json.JSONDecoder(
    parse_constant=_reject, parse_int=Number, parse_float=Number, object_pairs_hook=lambda pairs: Object(pairs)
)


def read(text: bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, and `RecursionError` where it is nested too deeply."""
    return _decoder.decode(text.decode())


@dataclass(frozen=True)
class Envelope:
    """The top of a message."""

    kind: Kind
    raw_id: bytes
    method: str
    error: bool
    session: str | None
    update: str | None


def envelope(text: bytes) -> Envelope | int:
    """A message's envelope, or the code that the text is refused with."""
    try:
        value = read(text)
    except (ValueError, RecursionError):
        return PARSE_ERROR
    if not isinstance(value, Object):
        return INVALID_REQUEST
    if any(name not in TOP and name.casefold() in TOP for name, _ in value):
        return INVALID_REQUEST
    message_id, method = value.get("id"), value.get("method")
    if not (message_id in (None, MISSING) or isinstance(message_id, Number | str)):
        return INVALID_REQUEST
    if method is not MISSING and not isinstance(method, str):
        return INVALID_REQUEST
    span = find(text, "id")
    raw_id = b"null" if span is None else text[slice(*span)]
    result, error = value.get("result"), value.get("error")
    if method is not MISSING:
        if result is not MISSING or error is not MISSING:
            return INVALID_REQUEST
        kind = Kind.NOTIFICATION if message_id is MISSING else Kind.REQUEST
        update = _string(_at(value, "params", "update", "sessionUpdate"))
        return Envelope(kind, raw_id, method, False, _string(_at(value, "params", "sessionId")), update)
    failed = error not in (None, MISSING)
    if message_id is MISSING or (result is MISSING and error is MISSING) or value.get("params") is not MISSING:
        return INVALID_REQUEST
    if failed and result not in (None, MISSING):
        return INVALID_REQUEST
    return Envelope(Kind.RESPONSE, raw_id, "", failed, None, None)


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Object) else MISSING
    return value


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def id_key(raw_id: bytes) -> tuple[str, str]:
    """Return the key of an id: the text of a number or of null, the value of a string."""
    value = read(raw_id)
    return ("string", value) if isinstance(value, str) else ("text", raw_id.decode())


def repeated_member(text: bytes) -> str | None:
    """The name of the first member that repeats another one, at the top or directly in `params`; in any case."""
    top = read(text)
    if not isinstance(top, Object):
        return None
    for members in (top, next((value for name, value in top if name.casefold() == "params"), None)):
        seen: set[str] = set()
        for name, _ in members if isinstance(members, Object) else ():
            if name.casefold() in seen:
                return name
            seen.add(name.casefold())
    return None


# Where things are, in bytes


def members(text: bytes, start: int = 0) -> list[Place]:
    """The members of the object at `start`, which the text must have there."""
    return [Place(name, start, end) for name, start, end in _parts(text, start, named=True)]


def elements(text: bytes, start: int = 0) -> list[tuple[int, int]]:
    """The elements of the array at `start`, which the text must have there."""
    return [(start, end) for _, start, end in _parts(text, start, named=False)]


def _parts(text: bytes, start: int, *, named: bool) -> Iterator[tuple[str, int, int]]:
    decoded = text.decode()
    # In characters from here on.
    at = _skip_space(decoded, len(text[:start].decode())) + 1
    while True:
        at = _skip_space(decoded, at)
        if decoded[at] in "]}":
            return
        name = ""
        if named:
            name, at = _decoder.raw_decode(decoded, at)
            at = _skip_space(decoded, at)
            assert decoded[at] == ":"
            at = _skip_space(decoded, at + 1)
        _, end = _decoder.raw_decode(decoded, at)
        yield name, len(decoded[:at].encode()), len(decoded[:end].encode())
        at = _skip_space(decoded, end)
        at += decoded[at] == ","


def find(text: bytes, *names: str) -> tuple[int, int] | None:
    """The span of the value at a member path, None where there is none. Of a repeated member the last counts."""
    decoded = text.decode()
    at = _skip_space(decoded, 0)
    span = len(decoded[:at].encode()), len(decoded[: _decoder.raw_decode(decoded, at)[1]].encode())
    for name in names:
        if text[span[0]] != ord("{"):
            return None
        found = [(place.start, place.end) for place in members(text, span[0]) if place.name == name]
        if not found:
            return None
        span = found[-1]
    return span


def _skip_space(text: str, at: int) -> int:
    while text[at] in SPACE:
        at += 1
    return at
