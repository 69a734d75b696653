"""Reads ACP content of any quality into plain values of certain types: text, tool content, plans, options."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from acp_gateway.printable import printable
from acp_gateway.protocol.methods import META

_DONE: Final = {"add": "added", "modify": "modified", "delete": "deleted", "move": "moved", "copy": "copied"}

DONE_WELL: Final = "exit code 0"

INPUT_SIZE: Final = 2000
"""Characters of a tool's input that are kept: a command with its arguments."""


class Diff(NamedTuple):
    """A change of a file."""

    path: str
    old: str
    """The text before; empty for a new file."""
    new: str
    change: str = ""
    """The operation on the file, where the texts do not say it: "moved from a", "deleted"."""


class Output(NamedTuple):
    """A text of a tool call."""

    text: str
    terminal: str = ""
    """The terminal whose output it is; empty for any other text."""


class ToolContent(NamedTuple):
    """The content of a tool call."""

    diffs: list[Diff]
    outputs: list[Output]
    end: str
    """The end of its last terminal in words; empty until then."""

    @property
    def text(self) -> str:
        """All texts."""
        return "\n".join(output.text for output in self.outputs)


class Entry(NamedTuple):
    """An entry of a plan."""

    text: str
    status: str


class Location(NamedTuple):
    """A place in a file."""

    path: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Option:
    """An answer that the agent offers to a question."""

    id: str
    name: str
    kind: str


def text_of(value: object) -> str:
    """Return a string as it is, and "" for everything else."""
    return value if isinstance(value, str) else ""


def members_of(value: object) -> Mapping[str, Any]:
    """Return an object as it is, and an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """Return an array as it is, and an empty one for everything else."""
    return value if isinstance(value, list) else []


def block_text(block: object) -> str:
    """Return the text of a content block; of a picture and the like a description in brackets."""
    content = members_of(block)
    kind = text_of(content.get("type"))
    if kind == "text":
        return text_of(content.get("text"))
    if kind == "resource_link":
        return f"[{text_of(content.get('name')) or text_of(content.get('uri')) or 'a link'}]"
    if kind == "resource":
        return f"[{text_of(members_of(content.get('resource')).get('uri')) or 'a resource'}]"
    described = " ".join(filter(None, (kind, text_of(content.get("mimeType")))))
    return f"[{described or 'unknown content'}]"


def own_meta(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the gateway itself tells in the `_meta` of an object."""
    return members_of(members_of(value.get("_meta")).get(META))


def read_tool_content(items: object) -> ToolContent:
    """Return the content of a tool call."""
    read = ToolContent([], [], "")
    named: Mapping[str, Any] = {}
    for item in map(members_of, list_of(items)):
        told = own_meta(item)
        change = members_of(told.get("change"))
        if item.get("type") == "diff":
            path, old, new = (text_of(item.get(name)) for name in ("path", "oldText", "newText"))
            if change and change == named:
                # The text before it has named the change.
                del read.diffs[-1]
            read.diffs.append(Diff(path, old, new, describe_change(change)))
        elif item.get("type") == "content" and change:
            read.diffs.append(Diff(text_of(change.get("path")), "", "", describe_change(change)))
        elif item.get("type") == "content":
            terminal, ended = (members_of(told.get(name)) for name in ("terminal", "terminalEnd"))
            end = describe_exit((terminal or ended).get("exitStatus"))
            if not (ended and end):
                read.outputs.append(Output(block_text(item.get("content")), text_of(terminal.get("terminalId"))))
            read = read._replace(end=end or read.end)
        named = change if item.get("type") == "content" else {}
    return read


def describe_change(change: Mapping[str, Any]) -> str:
    """Return what was done to a file; empty if nothing is said."""
    operation, kind, old = (text_of(change.get(name)) for name in ("operation", "fileType", "oldPath"))
    done = _DONE.get(operation, operation)
    if operation in ("move", "copy"):
        done += f" from {old}"
    return f"{done} ({kind})" if kind not in ("", "text") else done


def describe_exit(status: object) -> str:
    """Return how a program has ended; empty if nothing is said."""
    code, signal = members_of(status).get("exitCode"), text_of(members_of(status).get("signal"))
    if signal:
        return f"signal {signal}"
    return f"exit code {code}" if type(code) is int else ""


def read_locations(locations: object) -> list[Location]:
    """Return the places that a tool call names."""
    found = []
    for location in map(members_of, list_of(locations)):
        path, line = text_of(location.get("path")), location.get("line")
        if path:
            found.append(Location(path, line if type(line) is int else None))
    return found


def read_entries(entries: object) -> list[Entry]:
    """Return the entries of a plan."""
    return [
        Entry(text_of(entry.get("content")), text_of(entry.get("status")) or "pending")
        for entry in map(members_of, list_of(entries))
    ]


def read_options(options: object) -> list[Option]:
    """Return the answers that a question offers; those without an id are left out."""
    read = (
        Option(text_of(option.get("optionId")), text_of(option.get("name")), text_of(option.get("kind")))
        for option in map(members_of, list_of(options))
    )
    return [option for option in read if option.id]


def describe_input(value: object) -> str:
    """Return a tool's input in one line: its command if it has one, else JSON; "" if it has none.

    A line break stays visible as `\\n`: behind it begins another command.
    """
    if value is None or value in ({}, [], ""):
        return ""
    command = members_of(value).get("command")
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        command = " ".join(command)
    if isinstance(command, str) and command:
        return shortened(command.strip().replace("\n", r"\n"), INPUT_SIZE)
    return shortened(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")), INPUT_SIZE)


def shortened(text: str, size: int) -> str:
    """Return a text in one printable line, with "…" if it is cut: what a user decides must not seem to be whole."""
    return printable(text, size) + ("…" if len(text) > size else "")
