"""Parses a message of which no member is there twice, mostly in one pass.

A message may be of megabytes. Where there is no space between its members, a single pass tells both what it is and
that no member is repeated.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from acp_gateway.protocol import methods, spans
from acp_gateway.protocol.jsonrpc import (
    INVALID_REQUEST,
    Envelope,
    InvalidMessage,
    Message,
    Params,
    check_utf8,
    classify,
    is_shallow,
    parse,
)
from acp_gateway.protocol.spans import TooMany

_ABSENT: Final = msgspec.Raw(b"")


class _Outline(msgspec.Struct, gc=False):
    """All the members that a message has by JSON-RPC, and what is directly in `params`; what is empty is not there."""

    jsonrpc: msgspec.Raw = _ABSENT
    id: msgspec.Raw = _ABSENT
    method: str = ""
    params: dict[str, msgspec.Raw] | None = None
    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_decode_outline = msgspec.json.Decoder(_Outline).decode
_decode_session = msgspec.json.Decoder(str | None).decode
# Colons up to which a text may be taken apart into a dict, and how many bytes may hold a further one: what it holds is
# many times as large as short members are.
_FEW_COLONS = 512
_COLON_EVERY = 48


def parse_strictly(text: bytes) -> tuple[Message, str | None]:
    """Parse a message as `parse` does; return it, and the name of a repeated member as `repeated_member` does."""
    check_utf8(text)
    try:
        message = _from_outline(text, _decode_outline(text)) if is_shallow(text) and _is_sparse(text) else None
    except (msgspec.DecodeError, RecursionError):
        message = None
    if message is not None:
        return message, None
    return parse(text), repeated_member(text)


def repeated_member(text: bytes) -> str | None:
    """As `spans.repeated_member`, of a valid message. Raises `InvalidMessage` where it has too many members."""
    try:
        return spans.repeated_member(text)
    except TooMany as error:
        raise InvalidMessage(INVALID_REQUEST, f"the message or its params: {error}") from None


def _is_sparse(text: bytes) -> bool:
    """Return True if a text can't have many members for its size."""
    return len(text) <= _FEW_COLONS or text.count(b":") <= _FEW_COLONS + len(text) // _COLON_EVERY


def _from_outline(text: bytes, outline: _Outline) -> Message | None:
    """The message, None where its outline may leave something out or say it twice. May raise `DecodeError`.

    It is all there where its members, each of them once and with no space between them, make up the text.
    """
    # Two braces, and a comma behind each member but one.
    size = 1
    if outline.jsonrpc:
        size += len(b'"jsonrpc":,') + len(outline.jsonrpc)
    if outline.id:
        size += len(b'"id":,') + len(outline.id)
    if outline.method:
        # Where it is spelled with escapes or beyond ASCII, it takes more.
        size += len(b'"method":"",') + len(outline.method)
    if outline.result:
        size += len(b'"result":,') + len(outline.result)
    if outline.error:
        size += len(b'"error":,') + len(outline.error)
    params, session = outline.params, None
    if params is not None:
        # What kind of update it is, `parse` says.
        if "update" in params or _are_alike(params):
            return None
        size += len(b'"params":,') + _compact_size(params)
        if "sessionId" in params:
            session = _decode_session(params["sessionId"])
    if size != len(text):
        return None
    envelope = Envelope(
        None,
        outline.id or msgspec.UNSET,
        outline.method or msgspec.UNSET,
        msgspec.UNSET if params is None else Params(session),
        outline.result or msgspec.UNSET,
        outline.error or msgspec.UNSET,
    )
    if params is not None and len(params) > spans.MEMBERS:
        raise InvalidMessage(INVALID_REQUEST, f"params have at most {spans.MEMBERS} members")
    # Messages may wait for long, and many members take many times the bytes that count as waiting.
    return classify(text, envelope, params if params is not None and len(params) <= methods.MEMBERS else None)


def _compact_size(members: Mapping[str, msgspec.Raw]) -> int:
    """Bytes of an object with these members, each of them once, where there is no space between them.

    Two braces, and for each member two quotes, a colon and a comma, but for the last one's.
    """
    return 2 + 4 * len(members) - bool(members) + len("".join(members).encode()) + sum(map(len, members.values()))


def _are_alike(names: Collection[str]) -> bool:
    """Return True if some parsers take one of these names for another."""
    return len(names) > 1 and len(set(map(str.casefold, names))) != len(names)
