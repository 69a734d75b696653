"""Parses messages and other objects, and finds repeated members, mostly in one pass.

A message may have megabytes. One pass reads it, and its size proves that no member is repeated.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET

from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import (
    FEW_BRACKETS,
    INVALID_REQUEST,
    Envelope,
    InvalidMessage,
    Message,
    Params,
    check_json,
    check_utf8,
    classify,
    is_shallow,
    parse,
)
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.spans import TooMany

_Text: TypeAlias = bytes | msgspec.Raw

_ABSENT: Final = msgspec.Raw(b"")


class _Outline(msgspec.Struct, gc=False):
    """The members of a message and those of its `params`; a missing member is empty."""

    jsonrpc: msgspec.Raw = _ABSENT
    id: msgspec.Raw = _ABSENT
    method: str = ""
    params: dict[str, msgspec.Raw] | None = None
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_decode_outline = msgspec.json.Decoder(_Outline).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_session = msgspec.json.Decoder(str | None).decode
# Maximum colons of a text that is decoded into a dict, and the bytes for each further one: a member of the dict takes
# many times the bytes of a short member.
_FEW_COLONS = 512
_COLON_EVERY = 48
_SPACE = b" \t\n\r"
# Bytes below which a text is simple whatever it has.
_SMALL = 2 * FEW_BRACKETS


def parse_strictly(text: bytes) -> tuple[Message, str | None]:
    """Parse a message as `parse` does; return it, and the name of a repeated member as `repeated_member` does."""
    small = len(text) < _SMALL and text.isascii()
    if not small:
        check_utf8(text)
    try:
        message = _from_outline(text, _decode_outline(text)) if small or _is_simple(text) else None
    except (msgspec.DecodeError, RecursionError):
        message = None
    if message is not None:
        return message, None
    found = parse(text)
    return found, repeated_member(found.text)


def members_strictly(text: bytes) -> Mapping[str, bytes | msgspec.Raw]:
    """Return the members of an object, as JSON texts.

    Raises `InvalidMessage` for other text than an object in UTF-8, or a member that is there twice, as a parser may see
    it, or more than `spans.MEMBERS`.
    """
    check_utf8(text)
    try:
        members = _decode_members(text) if _is_simple(text) else None
    except (msgspec.DecodeError, RecursionError):
        members = None
    few = members is not None and len(members) <= spans.MEMBERS
    if members is not None and few and not _are_alike(members):
        size = _compact_size(members)
        if size == len(text) or _is_spaced(text, size, members):
            return members
    plain = spans.structure(text)
    check_json(plain)
    start = spans.skip_space(text, 0)
    if text[start] != ord("{"):
        raise InvalidMessage(INVALID_REQUEST, "not an object")
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    try:
        for raw_name, at, end in spans.members(text, start, plain=plain):
            name = spans.string_value(raw_name)
            if name.casefold() in seen:
                raise InvalidMessage(INVALID_REQUEST, f"the member {name!r:.80} is repeated")
            seen.add(name.casefold())
            found[name] = text[at:end]
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, str(error)) from None
    return found


def repeated_member(text: bytes) -> str | None:
    """Return the name of a repeated member of a valid message, as `spans.repeated_member` does.

    Raises `InvalidMessage` if it has too many members.
    """
    try:
        return spans.repeated_member(text)
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message or its params: {error}") from None


def _is_simple(text: bytes) -> bool:
    """Return True if a text can't be nested deeply, nor have many members for its size."""
    few = len(text) <= _FEW_COLONS or spans.count(text, b":") <= _FEW_COLONS + len(text) // _COLON_EVERY
    return few and is_shallow(text)


def _from_outline(text: bytes, outline: _Outline) -> Message | None:
    """Return the message; None if its outline may lack or repeat a member. May raise `DecodeError`.

    The outline is complete if its members, once each, have the size of the text without the space between them.
    """
    # Two braces, and a comma after each member except one.
    size = 1
    if outline.jsonrpc:
        size += len(b'"jsonrpc":,') + len(outline.jsonrpc)
    if outline.id:
        size += len(b'"id":,') + len(outline.id)
    if outline.method:
        # With escapes or beyond ASCII it takes more bytes, so that the sizes differ.
        size += len(b'"method":"",') + len(outline.method)
    if outline.result:
        size += len(b'"result":,') + len(outline.result)
    if outline.error:
        size += len(b'"error":,') + len(outline.error)
    params, session = outline.params, None
    if params is not None:
        # `parse` reads the kind of an update.
        if "update" in params or _are_alike(params):
            return None
        size += len(b'"params":,') + _compact_size(params)
        if "sessionId" in params:
            session = _decode_session(params["sessionId"])
    if size != len(text):
        named = outline.jsonrpc, outline.id, outline.method.encode(), outline.result, outline.error
        if not _is_spaced(text, size, params or {}, named):
            return None
    envelope = Envelope(
        None,
        outline.id or UNSET,
        outline.method or UNSET,
        UNSET if params is None else Params(session),
        outline.result or UNSET,
        outline.error or UNSET,
    )
    if params is not None and len(params) > spans.MEMBERS:
        raise InvalidMessage(INVALID_REQUEST, f"params have at most {spans.MEMBERS} members")
    # A message may wait for long, and many members take many times the bytes that are counted for it.
    return classify(text, envelope, params if params is not None and len(params) <= methods.MEMBERS else None)


def _compact_size(members: Mapping[str, msgspec.Raw]) -> int:
    """Return the bytes of an object with these members, once each and without space between them.

    That is two braces, and for each member two quotes, a colon and a comma, which the last one lacks.
    """
    return 2 + 4 * len(members) - bool(members) + len("".join(members).encode()) + sum(map(len, members.values()))


def _is_spaced(text: bytes, size: int, members: Mapping[str, msgspec.Raw], others: Iterable[_Text] = ()) -> bool:
    """Return True if a text has so many bytes and white space that is in none of these members and other pieces."""
    pieces = b"".join((*others, *members.values(), "".join(members).encode()))
    return len(text.translate(None, _SPACE)) - size == len(pieces.translate(None, _SPACE)) - len(pieces)


def _are_alike(names: Collection[str]) -> bool:
    """Return True if some parsers take one of these names for another."""
    return len(names) > 1 and len(set(map(str.casefold, names))) != len(names)
