"""Reads the updates that most messages of a turn are: a chunk of plain text, with nothing but what both versions have.

They are read with one step of the decoder. Whatever is not exactly that is left to the slower way.
"""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType


class _Text(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _Update(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    kind: Literal["agent_message_chunk", "agent_thought_chunk"] = msgspec.field(name="sessionUpdate")
    content: _Text
    message_id: str | UnsetType = msgspec.field(name="messageId", default=UNSET)


class _Params(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    session: str = msgspec.field(name="sessionId")
    update: _Update


class PlainChunk(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A `session/update` of the agent with a chunk of plain text."""

    method: Literal["session/update"]
    params: _Params
    jsonrpc: Literal["2.0"] | None = None


_decode: Final = msgspec.json.Decoder(PlainChunk).decode


def read(message: bytes) -> PlainChunk | None:
    """Return the plain chunk that a message is; None for any other message, valid or not."""
    try:
        return _decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
