"""Reads ACP content of any quality into plain values of certain types: text, tool content, plans, options."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from acp_gateway.printable import printable

INPUT_SIZE: Final = 2000
"""Characters of a tool's input that are kept: a command with its arguments."""


class Diff(NamedTuple):
    """A change of a file."""

    path: str
    old: str
    """The text before; empty for a new file."""
    new: str


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


def read_tool_content(items: object) -> tuple[list[Diff], str]:
    """Return the diffs and the text of a tool call's content."""
    diffs, texts = [], []
    for item in map(members_of, list_of(items)):
        if item.get("type") == "diff":
            diffs.append(Diff(text_of(item.get("path")), text_of(item.get("oldText")), text_of(item.get("newText"))))
        elif item.get("type") == "content":
            texts.append(block_text(item.get("content")))
    return diffs, "\n".join(texts)


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
