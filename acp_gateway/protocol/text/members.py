"""Reads the members of what clients send in other vocabularies than ACP, each by the type that it must have.

Also what their translators need: the key of a request, and a message for the agent.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import MalformedJson

SESSION_ID_SIZE: Final = 1024
"""Maximum characters of a session id, as of every id."""

TEXT_SIZE: Final = 4096
"""Maximum characters of a short text: a path, a title, a name, a search. No path is longer."""

MAX_TEXTS: Final = 32
"""Maximum elements of a list of words, such as statuses; there are six."""

_MAX_COUNT: Final = 10**15
"""Every JSON parser keeps a smaller whole number exactly."""


class Unfit(ValueError):
    """A member that is missing, or is not what it must be."""


def read_text(raw: bytes) -> str:
    """Return a short text. Raises `Unfit` with the end of a sentence that begins with the member's name."""
    value = read_long_text(raw)
    if len(value) > TEXT_SIZE:
        raise Unfit(f"has at most {TEXT_SIZE} characters")
    return value


def read_long_text(raw: bytes) -> str:
    """Return a text of any length: that of its message is bounded. Raises as `read_text`."""
    if raw[:1] != b'"':
        raise Unfit("must be a string")
    return spans.string_value(raw)


def read_session(raw: bytes) -> str:
    """Return the id of a session. Raises as `read_text`."""
    value = read_text(raw)
    if len(value) > SESSION_ID_SIZE:
        raise Unfit(f"has at most {SESSION_ID_SIZE} characters")
    return value


def read_count(raw: bytes) -> int:
    """Return a whole number from 0 on. Raises as `read_text`."""
    number = jsonrpc.id_number(RawId(raw))
    if number is None or not 0 <= number < _MAX_COUNT:
        raise Unfit("must be a whole number from 0 on")
    return number


def read_flag(raw: bytes) -> bool:
    """Return true or false. Raises as `read_text`."""
    if raw not in (b"true", b"false"):
        raise Unfit("must be true or false")
    return raw == b"true"


def read_texts(raw: bytes) -> tuple[str, ...]:
    """Return a few short texts. Raises as `read_text`."""
    return tuple(map(read_text, lookup.elements_of(read_array(raw, "an array of strings"), MAX_TEXTS)))


def read_array(raw: bytes, expected: str = "an array") -> bytes:
    """Return the JSON text of an array. Raises as `read_text`."""
    if raw[:1] != b"[":
        raise Unfit(f"must be {expected}")
    return raw


def read_object(raw: bytes) -> bytes:
    """Return the JSON text of an object. Raises as `read_text`."""
    if raw[:1] != b"{":
        raise Unfit("must be an object")
    return raw


def read_id(raw: bytes) -> RawId:
    """Return the id of a request. Raises as `read_text`."""
    if raw[:1] not in b'"-0123456789':
        raise Unfit("must be a string or a number")
    if len(raw) > jsonrpc.ID_SIZE:
        raise Unfit(f"has at most {jsonrpc.ID_SIZE} bytes")
    return RawId(raw)


class Member(NamedTuple):
    """A member of a request."""

    read: Callable[[bytes], Any]
    """Returns its value from its JSON text. Raises `Unfit`."""
    required: bool = True


def read_members(found: Mapping[str, bytes | msgspec.Raw], members: Mapping[str, Member], name: str) -> dict[str, Any]:
    """Return the values of the members that are there; null stands for a missing one.

    Args:
        found: JSON texts by name.
        members: the members to read.
        name: the name of the request, for the error.

    Raises `Unfit` with a whole sentence.
    """
    values = {}
    for member, (read, required) in members.items():
        raw = bytes(found.get(member, b"null"))
        if raw == b"null":
            if required:
                raise Unfit(f"{name} needs {member}")
            continue
        try:
            values[member] = read(raw)
        except (Unfit, MalformedJson) as error:
            why = str(error) if isinstance(error, Unfit) else "can't be read"
            raise Unfit(f"{member} {why}") from None
    return values


class Sizes(NamedTuple):
    """Maximum bytes of the messages that are looked into; a prompt is not."""

    request: int = 256 * 1024
    """The option `session_request_size`."""
    decision: int = 64 * 1024
    """The option `decision_size`, for answers to the agent."""


def request_key(raw_id: RawId) -> str:
    """Return the key of the id of an agent's request: a number and the text of its digits have the same."""
    number = jsonrpc.id_number(raw_id)
    if number is not None:
        return str(number)
    key = jsonrpc.id_key(raw_id)
    return key if isinstance(key, str) else key.decode()


class AcpRequest(NamedTuple):
    """A message for the agent, without its id."""

    method: str
    params: bytes
    """JSON text."""
