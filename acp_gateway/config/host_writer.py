"""Changes one entry of `hosts.toml`, and leaves everything else in the file as its owner wrote it, comments included.

The text is changed line by line and then read as TOML again: unless that gives exactly the intended values, nothing is
written. So TOML syntax that this module doesn't know ends in an error, and never in a wrong file. A library such as
tomlkit would be one more dependency of every laptop, and would still leave the check, the modes and the link to do.
"""

import json
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acp_gateway.config.toml_file import TomlFile
from acp_gateway.errors import ConfigError

Value = str | tuple[str, ...]


def write_host(path: Path, name: str, options: Mapping[str, Value | None]) -> None:
    """Set options of `[hosts.NAME]`, or remove those that are None; create the entry and the file if needed.

    The file is replaced as a whole, and readable by its owner alone. Raises `ConfigError` where it can't be read,
    written, or understood well enough.
    """
    real, text = _changed(path, name, options)
    replace_file(real, text)


def check_host(path: Path, name: str, options: Mapping[str, Value | None]) -> None:
    """Raise what `write_host` would raise, as far as that shows before anything is written."""
    real, _ = _changed(path, name, options)
    folder = next(folder for folder in real.parents if os.path.exists(folder))
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        why = f"you may not write into {folder}" if folder.is_dir() else f"{folder} is no folder"
        raise ConfigError(f"cannot be written, because {why}", file=str(path))


def _changed(path: Path, name: str, options: Mapping[str, Value | None]) -> tuple[Path, str]:
    """Return the path of the file, links followed, and its new text."""
    # A user who keeps it in a repository of dotfiles has a link here.
    real = path.resolve()
    file = TomlFile.read(real) if os.path.lexists(real) else TomlFile(real, {}, "")
    hosts = file.data.get("hosts", {})
    entry = hosts.get(name, {}) if isinstance(hosts, dict) else None
    if not isinstance(entry, dict):
        raise ConfigError(f"[hosts.{name}] is no table; correct that first", file=str(path))
    wanted: dict[str, Any] = {**entry, **{key: _as_toml(value) for key, value in options.items() if value is not None}}
    for key in [key for key, value in options.items() if value is None]:
        wanted.pop(key, None)
    text = _change(file, name, options) if name in hosts else _append(file, name, options)
    if "\r\n" in file.source:
        text = text.replace("\n", "\r\n")
    if _read(text) != file.data | {"hosts": hosts | {name: wanted}}:
        raise ConfigError(
            f"[hosts.{name}] is written there in a way that this can't change; write it as a section of its own, with "
            "an option a line, and repeat this",
            file=str(path),
        )
    return real, text


def replace_file(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, at once or not at all. Raises `ConfigError`."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None


def _as_toml(value: Value) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


def _assignment(key: str, value: Value) -> str:
    # A string of printable characters in JSON is one in TOML.
    return f"{key} = {json.dumps(_as_toml(value), ensure_ascii=False)}"


def _append(file: TomlFile, name: str, options: Mapping[str, Value | None]) -> str:
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
    lines = [f"[hosts.{key}]", *(_assignment(key, value) for key, value in options.items() if value is not None), ""]
    before = file.source.replace("\r\n", "\n").rstrip()
    return (before + "\n\n" if before else "") + "\n".join(lines)


def _change(file: TomlFile, name: str, options: Mapping[str, Value | None]) -> str:
    lines = file.source.replace("\r\n", "\n").split("\n")
    # Where a change begins, how many lines go, and which come instead.
    changes: list[tuple[int, int, list[str]]] = []
    added = []
    for key, value in options.items():
        line = file.line_of(("hosts", name, key))
        if line is not None:
            length = _statement_length(lines, line - 1)
            rest = _behind_value("\n".join(lines[line - 1 : line - 1 + length]))
            changes.append((line - 1, length, [] if value is None else [_assignment(key, value) + rest]))
        elif value is not None:
            added.append(_assignment(key, value))
    # New options go behind the last that was there, else behind the header.
    behind = max((start + length for start, length, _ in changes), default=file.line_of(("hosts", name)) or 0)
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
