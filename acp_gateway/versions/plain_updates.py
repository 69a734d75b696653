"""Reads the updates that most messages of a turn are, with nothing but what both versions say in the same words.

They are read with one step of the decoder. Whatever is not exactly that is left to the slower way.
"""

from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

_T = TypeVar("_T")

ITEMS: Final = 256
"""Items of a tool call's content, and entries of a plan, that are read at most; one to ten are usual."""


class _Text(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class TextItem(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="content"):
    """An item of a tool call's content with plain text."""

    content: _Text


class OldDiff(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="diff"):
    """A diff of version 1."""

    path: str
    new: str = msgspec.field(name="newText")
    old: str | None = msgspec.field(name="oldText", default=None)


class _Change(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    operation: Literal["add", "modify"]
    path: str
    type: Literal["text"] | None = msgspec.field(name="fileType", default=None)


class _Patch(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    format: Literal["git_patch"]
    text: str


class NewDiff(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="type", tag="diff"):
    """A diff of version 2 with the patch of one text file."""

    changes: Annotated[list[_Change], Meta(min_length=1, max_length=1)]
    patch: _Patch


class _Location(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    path: str
    line: Annotated[int, Meta(ge=1)] | None = None


class _Entry(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    content: str
    priority: Literal["high", "medium", "low"]
    status: Literal["pending", "in_progress", "completed"]


class Chunk(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="sessionUpdate", tag="agent_message_chunk"):
    """A chunk of plain text."""

    content: _Text
    message_id: str | UnsetType = msgspec.field(name="messageId", default=UNSET)


class ThoughtChunk(Chunk, gc=False, forbid_unknown_fields=True, tag="agent_thought_chunk"):
    """A chunk of a thought in plain text."""


class ToolUpdate(
    msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="sessionUpdate", tag="tool_call_update"
):
    """A change of a tool call; `old_items` or `new_items` read its content."""

    id: str = msgspec.field(name="toolCallId")
    title: str | UnsetType = UNSET
    kind: (
        Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"]
        | UnsetType
    ) = UNSET
    status: Literal["pending", "in_progress", "completed", "failed"] | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    locations: list[_Location] | UnsetType = UNSET
    input: Raw | UnsetType = msgspec.field(name="rawInput", default=UNSET)
    output: Raw | UnsetType = msgspec.field(name="rawOutput", default=UNSET)

    @property
    def is_same(self) -> bool:
        """True if no member is null: in version 1 that changes nothing, in version 2 it clears."""
        if self.input is self.output is UNSET:
            return self.content is UNSET or bytes(self.content) != b"null"
        return all(raw is UNSET or bytes(raw) != b"null" for raw in (self.content, self.input, self.output))

    @property
    def is_ended(self) -> bool:
        """True if it says that the tool call has ended."""
        return self.status == "completed" or self.status == "failed"


class ToolCall(ToolUpdate, gc=False, forbid_unknown_fields=True, tag="tool_call"):
    """A tool call that begins, in version 1."""


class Usage(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="sessionUpdate", tag="usage_update"):
    """The tokens of the session."""

    used: Raw = Raw()
    size: Raw = Raw()
    cost: Raw = Raw()


class Plan(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="sessionUpdate", tag="plan"):
    """The plan, in version 1."""

    entries: Raw


class _Items(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    type: Literal["items"]
    id: str = msgspec.field(name="planId")
    entries: Raw


class PlanUpdate(msgspec.Struct, gc=False, forbid_unknown_fields=True, tag_field="sessionUpdate", tag="plan_update"):
    """A plan of version 2 with entries."""

    plan: _Items


Update: TypeAlias = Chunk | ThoughtChunk | ToolUpdate | ToolCall | Usage | Plan | PlanUpdate


class _Params(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    session: str = msgspec.field(name="sessionId")
    update: Update


class _Message(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    method: Literal["session/update"]
    params: _Params
    jsonrpc: Literal["2.0"] | None = None


_decode: Final = msgspec.json.Decoder(_Message).decode
_decode_old_items: Final = msgspec.json.Decoder(Annotated[list[TextItem | OldDiff], Meta(max_length=ITEMS)]).decode
_decode_new_items: Final = msgspec.json.Decoder(Annotated[list[TextItem | NewDiff], Meta(max_length=ITEMS)]).decode
_decode_entries: Final = msgspec.json.Decoder(Annotated[list[_Entry], Meta(max_length=ITEMS)]).decode


def read(message: bytes) -> tuple[str, Update] | None:
    """Return the session and the update of a message; None for any other message, valid or not."""
    try:
        if not message.isascii():
            message.decode()
        params = _decode(message).params
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return params.session, params.update


def statuses_of(entries: bytes) -> list[str] | None:
    """Return the status of each entry of a plan; None if not all are the same in both versions."""
    found = _read(_decode_entries, entries)
    return None if found is None else [entry.status for entry in found]


def old_items(content: bytes) -> list[TextItem | OldDiff] | None:
    """Return the content of a tool call of version 1; None if it has other items."""
    return _read(_decode_old_items, content)


def new_items(content: bytes) -> list[TextItem | NewDiff] | None:
    """Return the content of a tool call of version 2; None if it has other items."""
    return _read(_decode_new_items, content)


def _read(decode: Callable[[bytes], _T], text: bytes) -> _T | None:
    try:
        return decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
