"""Changes one section of a TOML file, and leaves everything else in its text as its owner wrote it. Pure.

The text is changed line by line and then read as TOML again: unless that gives exactly the intended values, nothing is
returned. So TOML syntax that this module doesn't know ends in an error, and never in a wrong file.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.errors import ConfigError

Value = str | tuple[str, ...] | Mapping[str, str]
"""Value of an option that can be written: a string, an array of strings, or strings by name."""

Keys = tuple[str, ...]
"""Name of a section: `("hosts", "box")` is `[hosts.box]`."""


def change_section(file: TomlFile, keys: Keys, options: Mapping[str, Value | None]) -> str:
    """Return the text of a file with options of a section set, or removed where they are None.

    A missing section is added at the end. Raises `ConfigError` where the section is written in a way that this module
    can't change.
    """
    entry = _find(file, keys)
    wanted = {**(entry or {}), **{key: _as_toml(value) for key, value in options.items() if value is not None}}
    for key in [key for key, value in options.items() if value is None]:
        wanted.pop(key, None)
    text = _append(file, keys, options) if entry is None else _change(file, keys, options)
    return _checked(file, keys, text, wanted)


def remove_section(file: TomlFile, keys: Keys) -> str:
    """Return the text of a file without a section, its subsections and the comments in them.

    A comment directly above the next section stays. Raises `ConfigError` as `change_section`, and for a section that is
    not there.
    """
    start = file.line_of(keys)
    if _find(file, keys) is None or start is None:
        raise ConfigError(f"there is no [{_spell(keys)}]", file=str(file.path))
    lines = file.source.replace("\r\n", "\n").split("\n")
    end = start
    while end < len(lines) and not _begins_other(lines[end], keys):
        end += 1
    if end < len(lines):
        # What stands directly above a header belongs to it.
        while end > start and lines[end - 1].lstrip().startswith("#"):
            end -= 1
    text = "\n".join([*lines[: start - 1], *lines[end:]])
    if end == len(lines):
        text = text.rstrip("\n") + "\n" if text.strip() else ""
    return _checked(file, keys, text, None)


def _begins_other(line: str, keys: Keys) -> bool:
    """Return True for the header of a section that is not part of the one named."""
    if not line.lstrip().startswith("["):
        return False
    table = _read(line)
    for key in keys:
        # An array of tables has a list here. A line in the middle of an array of values is not a header.
        table = table.get(key) if isinstance(table, dict) else None
    return not isinstance(table, dict) and _read(line) is not None


def _find(file: TomlFile, keys: Keys) -> dict[str, Any] | None:
    table: Any = file.data
    for key in keys:
        if not isinstance(table, dict):
            break
        table = table.get(key)
        if table is None:
            return None
    if not isinstance(table, dict):
        raise ConfigError(f"[{_spell(keys)}] is not a table; correct that first", file=str(file.path))
    return table


def _checked(file: TomlFile, keys: Keys, text: str, wanted: dict[str, Any] | None) -> str:
    """Return a text with the line ends of the file. Raises `ConfigError` unless it has these values and no other."""
    if "\r\n" in file.source:
        text = text.replace("\n", "\r\n")
    if _without_empty(_read(text)) != _without_empty(_replaced(file.data, keys, wanted)):
        raise ConfigError(
            f"[{_spell(keys)}] is written there in a way that this can't change; write it as a section of its own, "
            "with an option a line, and repeat this",
            file=str(file.path),
        )
    return text


def _without_empty(data: dict[str, Any] | None) -> dict[str, Any] | None:
    """Leave out tables of sections that have none: whether they are written makes no difference."""
    return None if data is None else {key: value for key, value in data.items() if value != {}}


def _replaced(data: dict[str, Any], keys: Keys, wanted: dict[str, Any] | None) -> dict[str, Any]:
    first, *rest = keys
    if rest:
        return data | {first: _replaced(data.get(first, {}), tuple(rest), wanted)}
    others = {key: value for key, value in data.items() if key != first}
    return others if wanted is None else others | {first: wanted}


def _spell(keys: Keys) -> str:
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key) for key in keys)


def _as_toml(value: Value) -> Any:
    if isinstance(value, str):
        return value
    return dict(value) if isinstance(value, Mapping) else list(value)


def _assignment(key: str, value: Value) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_spell((name,))} = {_quote(text)}" for name, text in value.items())
        return f"{key} = {{ {pairs} }}"
    return f"{key} = {_quote(_as_toml(value))}"


def _quote(value: str | list[str]) -> str:
    # A string of printable characters in JSON is one in TOML.
    return json.dumps(value, ensure_ascii=False)


def _append(file: TomlFile, keys: Keys, options: Mapping[str, Value | None]) -> str:
    lines = [
        f"[{_spell(keys)}]",
        *(_assignment(key, value) for key, value in options.items() if value is not None),
        "",
    ]
    before = file.source.replace("\r\n", "\n").rstrip()
    return (before + "\n\n" if before else "") + "\n".join(lines)


def _change(file: TomlFile, keys: Keys, options: Mapping[str, Value | None]) -> str:
    lines = file.source.replace("\r\n", "\n").split("\n")
    # Where a change begins, how many lines go, and which come instead.
    changes: list[tuple[int, int, list[str]]] = []
    added = []
    for key, value in options.items():
        line = file.line_of((*keys, key))
        if line is not None:
            length = _statement_length(lines, line - 1)
            rest = _behind_value("\n".join(lines[line - 1 : line - 1 + length]))
            changes.append((line - 1, length, [] if value is None else [_assignment(key, value) + rest]))
        elif value is not None:
            added.append(_assignment(key, value))
    # New options go behind the last that was there, else behind the header.
    behind = max((start + length for start, length, _ in changes), default=file.line_of(keys) or 0)
    changes.append((behind, 0, added))
    for start, length, instead in sorted(changes, key=lambda change: change[0], reverse=True):
        lines[start : start + length] = instead
    return "\n".join(lines)


def _statement_length(lines: list[str], first: int) -> int:
    """Count the lines of the `key = value` that begins there: an array may have several."""
    length = 1
    while first + length < len(lines) and _read("\n".join(lines[first : first + length])) is None:
        length += 1
    return length


def _behind_value(statement: str) -> str:
    """Return the text behind the value in a `key = value`: a comment, with the white space before it."""
    last_line = statement.rpartition("\n")[2]
    before = statement.removesuffix(last_line)
    for found in re.finditer(r"\s*#", last_line):
        # A string may hold the sign as well.
        if _read(before + last_line[: found.start()]) == _read(statement):
            return last_line[found.start() :]
    return ""


def _read(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
