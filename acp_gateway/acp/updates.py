"""Updates of a session in version 1, whatever their kind.

The parts of an update stay JSON texts until they are read: an input or an output may have megabytes.
"""

import msgspec
from msgspec import Raw

from acp_gateway.acp.reading import ABSENT, Shape, string
from acp_gateway.protocol.methods import META


class Terminal(Shape, frozen=True):
    """A terminal."""

    terminal_id: Raw = ABSENT
    exit_status: Raw = ABSENT
    output: Raw = ABSENT
    """All of its output."""
    data: Raw = ABSENT
    """The part that is added to it."""


class Told(Shape, frozen=True):
    """The member of the gateway's own in a `_meta`, which tells of an agent of version 2."""

    state: str | None = None
    """That of the agent, where turns do not say it."""
    background: Raw = ABSENT
    """A list of works."""
    plans: Raw = ABSENT
    entries: Raw = ABSENT
    terminal: Terminal = Terminal()
    terminal_end: Terminal = Terminal()


class Meta(Shape, frozen=True):
    """The `_meta` of an object, as far as it is the gateway's own."""

    own: Told = msgspec.field(name=META, default=Told())


class Update(Shape, frozen=True):
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


class SessionUpdate(Shape, frozen=True):
    """The params of a `session/update`."""

    session_id: str | None = None
    update: Update = Update()


class Passed(Shape, frozen=True):
    """The same where the update is passed on as it is."""

    session_id: str | None = None
    update: Raw = ABSENT


class Block(Shape, frozen=True):
    """A content block."""

    type: str | None = None
    text: Raw = ABSENT
    name: Raw = ABSENT
    data: Raw = ABSENT
    uri: Raw = ABSENT
    resource: Raw = ABSENT


class Resource(Shape, frozen=True):
    """The content of a block, such as a file."""

    uri: str | None = None
    text: str | None = None
    blob: str | None = None


class Item(Shape, frozen=True):
    """An item of a tool call's content."""

    type: str | None = None
    path: str | None = None
    new_text: str | None = None
    content: Block = Block()
    meta: Raw = msgspec.field(name="_meta", default=ABSENT)


class Input(Shape, frozen=True):
    """The input of a tool that runs a command, a string or a list of words, under its names among agents."""

    command: Raw = ABSENT
    cmd: Raw = ABSENT


class Work(Shape, frozen=True):
    """Work in the background."""

    type: str | None = None
    session_id: str | None = None


class Modes(Shape, frozen=True):
    """The modes of a session."""

    current_mode_id: str | None = None


class Option(Shape, frozen=True):
    """An answer that a permission request offers."""

    option_id: str | None = None
    name: str | None = None
    kind: str | None = None


class ConfigOption(Shape, frozen=True):
    """An option of a session."""

    id: str | None = None
    category: str | None = None


class _Kind(Shape, frozen=True):
    kind: str | None = msgspec.field(name="sessionUpdate", default=None)


def kind_of(update: bytes | Raw) -> str | None:
    """Return the kind of an update."""
    return _Kind.read(update).kind


def text_of(chunk: bytes) -> str | None:
    """Return the text of a `session/update` that is a chunk of text; None for other ones."""
    return string(Block.read(SessionUpdate.of(chunk).update.content).text)
