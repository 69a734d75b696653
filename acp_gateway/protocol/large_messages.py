"""Parses large messages by their outlines, which `large_texts` makes: no pass over the whole text."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from acp_gateway.protocol import methods, spans
from acp_gateway.protocol.jsonrpc import INVALID_REQUEST, InvalidMessage, Message
from acp_gateway.protocol.large_texts import Outline
from acp_gateway.protocol.strict_parsing import parse_strictly

# Members whose values the gateway keeps or compares.
_SHORT: Final = frozenset(("id", "method"))
_SHORT_PARAMS: Final = frozenset(("sessionId",))
_SHORT_UPDATE: Final = frozenset(("sessionUpdate", "sessionId", "toolCallId", "title"))


class Parsed(NamedTuple):
    """A message, and the name of a repeated member as `parse_strictly` returns it."""

    message: Message
    repeated: str | None


def parse_large(outline: Outline) -> Parsed:
    """Parse a message by its outline, as `parse_strictly`.

    Raises `InvalidMessage`, also for a long string where there should be an id, a name or a title.
    """
    message, repeated = parse_strictly(outline.plain)
    plain = outline.plain
    try:
        top = _members(outline, 0, _SHORT)
        params = _object(plain, top.get("params"))
        members = {} if params is None else _members(outline, params, _SHORT_PARAMS)
        update = _object(plain, members.get("update"))
        if update is not None and message.method == methods.SESSION_UPDATE:
            _members(outline, update, _SHORT_UPDATE)
    except spans.TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message or its params: {error}") from None
    at = top.get("id")
    view = memoryview(outline.text)
    kept: Mapping[str, bytes | msgspec.Raw] | None = None
    if params is not None and len(members) <= methods.MEMBERS:
        kept = {
            name: msgspec.Raw(view[outline.place(start) : outline.place(end)]) for name, (start, end) in members.items()
        }
    return Parsed(
        msgspec.structs.replace(
            message, text=outline.text, params=kept, id_start=-1 if at is None else outline.place(at[0])
        ),
        repeated,
    )


def _object(plain: bytes, span: tuple[int, int] | None) -> int | None:
    return span[0] if span is not None and plain[span[0] : span[0] + 1] == b"{" else None


def _members(outline: Outline, start: int, short: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Return the spans of the members of the object at `start` of an outline. Raises `InvalidMessage` and `TooMany`."""
    found = {}
    for raw_name, at, end in spans.members(outline.plain, start):
        name = spans.string_value(raw_name)
        if name in short and outline.is_long(at):
            raise InvalidMessage(INVALID_REQUEST, f"the value of the member {name!r} is too long")
        found[name] = at, end
    return found
