"""Sets one member of a JSON file with comments, as editors have them, and leaves every other byte as it is.

Comments of both kinds and trailing commas are understood. The changed text is read again: unless that gives exactly the
intended value, nothing is returned. Pure.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from acp_gateway.errors import ConfigError

MAX_DEPTH: Final = 100
"""Maximum nesting; settings have less than ten levels."""

_SPACE: Final = re.compile(r"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"', re.DOTALL)
_SCALAR: Final = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


@dataclass(slots=True)
class _Node:
    """A value, and where it stands in the text."""

    start: int
    end: int
    value: Any
    members: dict[str, "_Node"] = field(default_factory=dict)
    """Members of an object."""
    keys: list[int] = field(default_factory=list)
    """Positions of the names of the members."""
    has_duplicates: bool = False
    last_comma: bool = False
    """True if a comma follows the last member."""


def read_jsonc(text: str) -> Any:
    """Return the value of a text; an empty one is an empty object. Raises `ConfigError` for one that is not JSON."""
    return _read(text).value


def set_member(text: str, path: Sequence[str], value: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return the text with the member at `path` set; objects on the way to it are added.

    Raises `ConfigError` for a text that is not understood, or whose values on the path are not objects.
    """
    bom = "\ufeff" if text.startswith("\ufeff") else ""
    source = text.removeprefix(bom)
    node, wanted = _read(source), value
    if not source.strip():
        source, node = "{}\n", _read("{}\n")
    unit = _indent_of(source, node) or "  "
    depth = 0
    for depth, name in enumerate(path):
        if not isinstance(node.value, dict):
            raise ConfigError(f"{'.'.join(path[:depth]) or 'the whole'} is not an object there")
        if node.has_duplicates:
            raise ConfigError("a name stands there twice in one object: remove one of them")
        if name not in node.members:
            break
        node = node.members[name]
    else:
        depth = len(path)
    for name in reversed(path[depth + 1 :]):
        wanted = {name: wanted}
    newline = "\r\n" if "\r\n" in source else "\n"
    if depth == len(path):
        lines = _lines(wanted, unit, unit * depth)
        changed = source[: node.start] + newline.join(lines) + source[node.end :]
    else:
        changed = _insert(source, node, path[depth], _lines(wanted, unit, unit * (depth + 1)), unit, depth, newline)
    if read_jsonc(changed) != _expected(read_jsonc(source), path, value):
        raise ConfigError("this is written in a way that a program can't change safely")
    return bom + changed


def _expected(value: Any, path: Sequence[str], member: Any) -> Any:
    if not path:
        return member
    return value | {path[0]: _expected(value.get(path[0], {}), path[1:], member)}


def _lines(value: Any, unit: str, indent: str) -> list[str]:
    first, *rest = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return [first, *(indent + line for line in rest)]


def _insert(text: str, node: _Node, name: str, lines: list[str], unit: str, depth: int, newline: str) -> str:
    """Add a member behind the last one of an object, and behind the comments there."""
    indent, closing = unit * (depth + 1), unit * depth
    member = f"{indent}{json.dumps(name, ensure_ascii=False)}: {newline.join(lines)}"
    brace = node.end - 1
    tail = len(text[:brace].rstrip(" \t\r\n"))
    last = max((child.end for child in node.members.values()), default=None)
    behind = text[tail:brace]
    if "\n" not in behind:
        behind = newline + closing
    comma = "," if node.last_comma else ""
    changed = f"{text[:tail]}{newline}{member}{comma}{behind}{text[brace:]}"
    if last is not None and not node.last_comma:
        changed = f"{changed[:last]},{changed[last:]}"
    return changed


def _indent_of(text: str, node: _Node) -> str:
    """Return the white space before the first member of the outermost object; "" if it is on the line of another."""
    if not node.keys:
        return ""
    before = text[: node.keys[0]]
    line = before.rpartition("\n")[2]
    return line if "\n" in before and not line.strip() else ""


def _read(text: str) -> _Node:
    text = text.removeprefix("\ufeff")
    at = _skip(text, 0)
    if at == len(text):
        return _Node(at, at, {})
    node = _value(text, at, 0)
    end = _skip(text, node.end)
    if end != len(text):
        raise _unexpected(text, end)
    return node


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _value(text: str, at: int, depth: int) -> _Node:
    if depth > MAX_DEPTH:
        raise ConfigError(f"it is nested more than {MAX_DEPTH} levels deep")
    if text[at : at + 1] == "{":
        return _object(text, at, depth)
    if text[at : at + 1] == "[":
        return _array(text, at, depth)
    match = _STRING.match(text, at) or _SCALAR.match(text, at)
    if match is None:
        raise _unexpected(text, at)
    try:
        return _Node(at, match.end(), json.loads(match[0]))
    except ValueError:
        raise _unexpected(text, at) from None


def _object(text: str, start: int, depth: int) -> _Node:
    node = _Node(start, start, {})
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        name = _STRING.match(text, at)
        colon = _skip(text, name.end()) if name is not None else at
        if name is None or text[colon : colon + 1] != ":":
            raise _unexpected(text, colon)
        child = _value(text, _skip(text, colon + 1), depth + 1)
        try:
            key = json.loads(name[0])
        except ValueError:
            raise _unexpected(text, at) from None
        node.has_duplicates |= key in node.members
        node.keys.append(at)
        node.members[key] = child
        node.value[key] = child.value
        at, node.last_comma = _after(text, child.end, "}")
    node.end = at + 1
    return node


def _array(text: str, start: int, depth: int) -> _Node:
    node = _Node(start, start, [])
    at = _skip(text, start + 1)
    while text[at : at + 1] != "]":
        child = _value(text, at, depth + 1)
        node.value.append(child.value)
        at, _ = _after(text, child.end, "]")
    node.end = at + 1
    return node


def _after(text: str, at: int, closing: str) -> tuple[int, bool]:
    """Return where the next element or the closing bracket is, and whether a comma stands before it."""
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1), True
    if text[at : at + 1] != closing:
        raise _unexpected(text, at)
    return at, False


def _unexpected(text: str, at: int) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    found = repr(text[at]) if at < len(text) else "the end"
    return ConfigError(f"it is not JSON: {found} is unexpected in line {line}")
