"""Updates of a session in version 1, whatever their kind.

The parts of an update stay JSON texts until they are read: an input or an output may have megabytes.
"""

from typing import Final

import msgspec
from msgspec import Raw

from acp_gateway.acp.reading import ABSENT, Reader, string
from acp_gateway.protocol.methods import META


class Update(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The members of updates, whatever their kind, and of the tool call that a permission is for."""

    kind: str | None = msgspec.field(name="sessionUpdate", default=None)
    message_id: Raw = ABSENT
    content: Raw = ABSENT
    """A content block, of a chunk; a list of items, of a tool call."""
    tool_call_id: str | None = None
    title: str | None = None
    """That of a tool call, or of the session."""
    tool_kind: str | None = msgspec.field(name="kind", default=None)
    status: str | None = None
    raw_input: Raw = ABSENT
    current_mode_id: str | None = None
    config_options: Raw = ABSENT
    available_commands: Raw = ABSENT
    updated_at: str | None = None
    session_id: str | None = None
    """A sub-agent's."""
    state: Raw = ABSENT
    """A sub-agent's, with its work in the background."""
    stop_reason: str | None = None
    """That of a turn of version 2."""
    meta: Raw = msgspec.field(name="_meta", default=ABSENT)


class SessionUpdate(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The params of a `session/update`."""

    session_id: str | None = None
    update: Update = Update()


class Passed(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The same where the update is passed on as it is."""

    session_id: str | None = None
    update: Raw = ABSENT


class Block(msgspec.Struct, frozen=True, gc=False):
    """A content block."""

    type: str | None = None
    text: Raw = ABSENT
    name: Raw = ABSENT
    data: Raw = ABSENT
    uri: Raw = ABSENT
    resource: Raw = ABSENT


class Resource(msgspec.Struct, frozen=True, gc=False):
    """The content of a block, such as a file."""

    uri: str | None = None
    text: str | None = None
    blob: str | None = None


class Item(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An item of a tool call's content."""

    type: str | None = None
    path: str | None = None
    new_text: str | None = None
    content: Block = Block()
    meta: Raw = msgspec.field(name="_meta", default=ABSENT)


class Terminal(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A terminal."""

    terminal_id: Raw = ABSENT
    exit_status: Raw = ABSENT
    output: Raw = ABSENT
    """All of its output."""
    data: Raw = ABSENT
    """The part that is added to it."""


class Input(msgspec.Struct, frozen=True, gc=False):
    """The input of a tool that runs a command, a string or a list of words, under its names among agents."""

    command: Raw = ABSENT
    cmd: Raw = ABSENT


class Told(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The member of the gateway's own in a `_meta`, which tells of an agent of version 2."""

    state: str | None = None
    """That of the agent, where turns do not say it."""
    background: Raw = ABSENT
    """A list of works."""
    plans: Raw = ABSENT
    entries: Raw = ABSENT
    terminal: Terminal = Terminal()
    terminal_end: Terminal = Terminal()


class Work(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Work in the background."""

    type: str | None = None
    session_id: str | None = None


class Modes(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The modes of a session."""

    current_mode_id: str | None = None


class Option(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An answer that a permission request offers."""

    option_id: str | None = None
    name: str | None = None
    kind: str | None = None


class ConfigOption(msgspec.Struct, frozen=True, gc=False):
    """An option of a session."""

    id: str | None = None
    category: str | None = None


class _Notification(msgspec.Struct, frozen=True, gc=False):
    params: SessionUpdate = SessionUpdate()


class _PassedOn(msgspec.Struct, frozen=True, gc=False):
    params: Passed = Passed()


class _Kind(msgspec.Struct, frozen=True, gc=False):
    kind: str | None = msgspec.field(name="sessionUpdate", default=None)


class _Meta(msgspec.Struct, frozen=True, gc=False):
    own: Told = msgspec.field(name=META, default=Told())


_read: Final = Reader(_Notification)
_read_passed: Final = Reader(_PassedOn)
_read_kind: Final = Reader(_Kind)
_read_meta: Final = Reader(_Meta)
read_call: Final = Reader(Update)
read_block: Final = Reader(Block)
read_resource: Final = Reader(Resource)
read_item: Final = Reader(Item)
read_input: Final = Reader(Input)
read_terminal: Final = Reader(Terminal)
read_told: Final = Reader(Told)
read_work: Final = Reader(Work)
read_modes: Final = Reader(Modes)
read_option: Final = Reader(Option)
read_config_option: Final = Reader(ConfigOption)


def read_update(message: bytes) -> SessionUpdate:
    """Return what a `session/update` says."""
    return _read(message).params


def read_passed(message: bytes) -> Passed:
    """Return the session and the update of a `session/update`."""
    return _read_passed(message).params


def kind_of(update: bytes | Raw) -> str | None:
    """Return the kind of an update."""
    return _read_kind(update).kind


def text_of(chunk: bytes) -> str | None:
    """Return the text of a `session/update` that is a chunk of text; None for other ones."""
    return string(read_block(read_update(chunk).update.content).text)


def told_in(meta: Raw) -> Told:
    """Return what the gateway tells in a `_meta`."""
    return _read_meta(meta).own
