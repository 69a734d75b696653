"""Changes one section of a TOML file, and leaves everything else in its text as its owner wrote it. Pure.

tomlkit changes the options and keeps the comments beside them. It sees the lines of the section alone: it counts a
comment above a header to the section before it, and would move or remove it with that. `TomlFile` knows the lines, and
reads configurations: tomlkit has no line numbers for errors, and is slow to import.

The result is read again: unless that gives exactly the intended values, nothing is returned.
"""

import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from acp_gateway.config.editing.toml_file import TomlFile
from acp_gateway.errors import ConfigError

Value = str | tuple[str, ...] | Mapping[str, str]
"""Value of an option that can be written: a string, an array of strings, or strings by name."""

Keys = tuple[str, ...]
"""Name of a section: `("hosts", "box")` is `[hosts.box]`."""


_VALUE_LINE = re.compile(r"^[ \t]*[^\s#].*\n?", re.MULTILINE)
"""A line that is neither blank nor a comment."""


def change_section(file: TomlFile, keys: Keys, options: Mapping[str, Value | None]) -> str:
    """Return the text of a file with options of a section set, or removed where they are None.

    A missing section is added at the end. Raises `ConfigError` where the section is written in a way that this module
    can't change.
    """
    entry = _find(file, keys)
    values = {key: _plain(value) for key, value in options.items() if value is not None}
    wanted = {key: value for key, value in (entry or {}).items() if key not in options} | values
    if entry is None:
        before = file.source.rstrip()
        section = _changed(file, keys, options, f"[{_spell(keys)}]\n")
        return _checked(file, keys, (before + "\n\n" if before else "") + section, wanted)
    if any(_is_header(file, (*keys, key)) for key in options):
        raise _unchangeable(file, keys)
    before, section, after = _cut(file, keys)
    # What is commented out behind the options may be another section.
    end = max(match.end() for match in _VALUE_LINE.finditer(section))
    section, after = section[:end], section[end:] + after
    return _checked(file, keys, before + _changed(file, keys, options, section) + after, wanted)


def remove_section(file: TomlFile, keys: Keys) -> str:
    """Return the text of a file without a section, its subsections and the comments in them.

    A comment directly above the next section stays. Raises `ConfigError` as `change_section`, and for a section that is
    not there.
    """
    if _find(file, keys) is None:
        raise ConfigError(f"there is no [{_spell(keys)}]", file=str(file.path))
    before, _, after = _cut(file, keys)
    return _checked(file, keys, before + after if after else before.rstrip() + "\n" if before.strip() else "", None)


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


def _cut(file: TomlFile, keys: Keys) -> tuple[str, str, str]:
    """Return a section with its subsections, and the text before and behind it."""
    if not _is_header(file, keys):
        raise _unchangeable(file, keys)
    places = file.lines()
    lines = re.findall(r".*\n|.+", file.source)
    start = places[keys] - 1
    others = (line - 1 for path, line in places.items() if path[: len(keys)] != keys)
    end = min((line for line in others if line > start), default=len(lines))
    while end < len(lines) and lines[end - 1].lstrip().startswith("#"):
        end -= 1
    return "".join(lines[:start]), "".join(lines[start:end]), "".join(lines[end:])


def _is_header(file: TomlFile, keys: Keys) -> bool:
    """Return True for a section with a header of its own, False for another spelling or a missing one."""
    line = file.line_of(keys)
    return line is not None and file.source.split("\n")[line - 1].lstrip().startswith("[")


def _changed(file: TomlFile, keys: Keys, options: Mapping[str, Value | None], section: str) -> str:
    """Return the text of a section with its options changed."""
    try:
        document = tomlkit.parse(section)
        table: Any = document
        for key in keys:
            table = table[key]
        for key, value in options.items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = _inline(value) if isinstance(value, Mapping) else _plain(value)
        return tomlkit.dumps(document)
    except TOMLKitError:
        raise _unchangeable(file, keys) from None


def _inline(value: Mapping[str, str]) -> InlineTable:
    table = tomlkit.inline_table()
    table.update(value)
    return table


def _plain(value: Value) -> Any:
    if isinstance(value, str):
        return value
    return dict(value) if isinstance(value, Mapping) else list(value)


def _checked(file: TomlFile, keys: Keys, text: str, wanted: dict[str, Any] | None) -> str:
    """Return a text with the line ends of the file. Raises `ConfigError` unless it has these values and no other."""
    if "\r\n" in file.source:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise _unchangeable(file, keys) from None
    if _without_empty(data) != _without_empty(_replaced(file.data, keys, wanted)):
        raise _unchangeable(file, keys)
    return text


def _unchangeable(file: TomlFile, keys: Keys) -> ConfigError:
    return ConfigError(
        f"[{_spell(keys)}] is written there in a way that this can't change; write it as a section of its own, "
        "with an option a line, and repeat this",
        file=str(file.path),
    )


def _without_empty(data: dict[str, Any]) -> dict[str, Any]:
    """Leave out tables of sections that have none: whether they are written makes no difference."""
    return {key: value for key, value in data.items() if value != {}}


def _replaced(data: dict[str, Any], keys: Keys, wanted: dict[str, Any] | None) -> dict[str, Any]:
    first, *rest = keys
    if rest:
        return data | {first: _replaced(data.get(first, {}), tuple(rest), wanted)}
    others = {key: value for key, value in data.items() if key != first}
    return others if wanted is None else others | {first: wanted}


def _spell(keys: Keys) -> str:
    return ".".join(key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key) for key in keys)


def write_host(path: Path, name: str, options: Mapping[str, Value | None]) -> None:
    """Set options of `[hosts.NAME]`, or remove those that are None; create the entry and the file if needed.

    The file is replaced as a whole, and readable by its owner alone. Raises `ConfigError` where it can't be read,
    written, or understood well enough.
    """
    real, text = _changed_hosts(path, name, options)
    replace_file(real, text)


def check_host(path: Path, name: str, options: Mapping[str, Value | None]) -> None:
    """Raise what `write_host` would raise, as far as that shows before anything is written."""
    real, _ = _changed_hosts(path, name, options)
    folder = next(folder for folder in real.parents if os.path.exists(folder))
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        why = f"you may not write into {folder}" if folder.is_dir() else f"{folder} is not a folder"
        raise ConfigError(f"cannot be written, because {why}", file=str(path))


def _changed_hosts(path: Path, name: str, options: Mapping[str, Value | None]) -> tuple[Path, str]:
    """Return the path of the file, links followed, and its new text."""
    # A user who keeps it in a repository of dotfiles has a link here.
    real = path.resolve()
    file = TomlFile.read(real) if os.path.lexists(real) else TomlFile(real, {}, "")
    return real, change_section(file, ("hosts", name), options)


def replace_file(path: Path, text: str, like: os.stat_result | None = None) -> None:
    """Write a file, at once or not at all. Its owner alone may read it, or with `like` those of another file.

    Raises `ConfigError`.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                if like is not None:
                    _make_alike(file.fileno(), like)
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None


def _make_alike(descriptor: int, like: os.stat_result) -> None:
    """Give a file the owner and the mode of another one: root may change the file of a user."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.fchown(descriptor, like.st_uid, like.st_gid)
        except PermissionError:
            return  # Only a group of others is lost then; the mode must not be theirs.
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
