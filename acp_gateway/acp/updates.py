"""Updates of a session in version 1, whatever their kind.

The parts of an update stay JSON texts until they are read: an input or an output may have megabytes.
"""

from typing import Final

import msgspec
from msgspec import Raw

from acp_gateway.acp.reading import ABSENT, Reader


class Update(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The members of updates, whatever their kind, and of the tool call that a permission is for."""

    kind: str | None = msgspec.field(name="sessionUpdate", default=None)
    message_id: str | None = None
    content: Raw = ABSENT
    """A content block, of a chunk; a list of items, of a tool call."""
    tool_call_id: str | None = None
    title: str | None = None
    tool_kind: str | None = msgspec.field(name="kind", default=None)
    raw_input: Raw = ABSENT


class SessionUpdate(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The params of a `session/update`."""

    session_id: str | None = None
    update: Update = Update()


class Block(msgspec.Struct, frozen=True, gc=False):
    """A content block."""

    text: Raw = ABSENT


class Item(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An item of a tool call's content."""

    path: str | None = None
    new_text: str | None = None
    content: Block = Block()


class Input(msgspec.Struct, frozen=True, gc=False):
    """The input of a tool that runs a command, a string or a list of words, under its names among agents."""

    command: Raw = ABSENT
    cmd: Raw = ABSENT


class _Notification(msgspec.Struct, frozen=True, gc=False):
    params: SessionUpdate = SessionUpdate()


_read: Final = Reader(_Notification)
read_call: Final = Reader(Update)
read_block: Final = Reader(Block)
read_item: Final = Reader(Item)
read_input: Final = Reader(Input)


def read_update(message: bytes) -> SessionUpdate:
    """Return what a `session/update` says."""
    return _read(message).params
