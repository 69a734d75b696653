"""Reads a section of a TOML file into a frozen dataclass, strictly.

A section is a dataclass whose fields are the options. The type of a field is one of the types below, `Annotated`
with the function that reads it; its default is the option's default, and a field without one is a required option.
So a further option is one more field. A field whose type is `Fixed` is a constant with a name: code may construct the
section with another value, a file may not set it. A class may map such fields to the option that they follow in
`DERIVED`, its former options to their new names in `RENAMED`, those that are ignored to the reason in `REMOVED`, and
words that are likely mistaken for options to the remedy in `MISTAKEN`. `EXAMPLE` has an option of a named section.
A fixed or removed option is a warning. Unknown options, missing ones and values that do not fit are errors with their
place in the file, and all of them are collected, so that a user can correct a file in one go.
"""

import dataclasses
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

from acp_gateway.config.directories import expand_user
from acp_gateway.config.editing.toml_file import TomlFile, suggestion
from acp_gateway.errors import ConfigError, UsageError

DURATION = re.compile(r"([0-9]+)([smhd])")
"""Form of a duration, which may still be too short or too long."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_MAX_DAYS = 3650
"""Ten years. A longer duration is a typo or means "for ever"; within it every date can be represented."""


def parse_duration(text: str) -> float:
    """Parse a whole number above 0 and one of `s`, `m`, `h`, `d`, at most ten years; return seconds.

    Raises UsageError for anything else.
    """
    match = DURATION.fullmatch(text)
    if match is None:
        raise UsageError("expected a whole number and s, m, h or d behind it, such as 90s, 15m, 2h or 7d")
    # Not int(): it raises ValueError for some thousand digits, which are merely infinite here.
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds == 0:
        raise UsageError("a duration has to be longer than nothing, such as 90s, 15m, 2h or 7d")
    if seconds > _MAX_DAYS * _SECONDS["d"]:
        raise UsageError(f"a duration is at most ten years, {_MAX_DAYS}d")
    return seconds


Section = TypeVar("Section")
Value = TypeVar("Value")

MIB: Final = 1024 * 1024
"""Bytes."""

LARGEST_MESSAGE: Final = 24 * MIB
"""Maximum bytes of one message in any configuration, so that reading it takes less than 250 ms."""

CREDENTIAL: Final = "credential:"
"""Prefix of the path of a file that systemd hands over, by `LoadCredential=` and the like."""

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""A name of an agent, a host or a node."""

_NONE: Final[Mapping[str, Any]] = {}

_MAX_WORD_LENGTH: Final = 24
"""Characters of a wrong word that an error repeats. A token that was pasted into the wrong place is longer."""


class MissingOption(ConfigError):
    """A required option is not set. It is reported after the others, since a misspelled one is the likeliest cause."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A rule by which a limit follows an option of its section."""

    option: str
    share: float
    """The limit divided by the option."""
    least: int | str = 1
    """The minimum, or the option that is the minimum."""
    most: int = 1 << 63

    def of(self, values: Mapping[str, Any]) -> int:
        """Return the limit for the options of a section."""
        least = values[self.least] if isinstance(self.least, str) else self.least
        return max(min(int(values[self.option] * self.share), self.most), least)

    def __str__(self) -> str:
        share = f"{self.share:g} times" if self.share >= 1 else f"1/{1 / self.share:g} of"
        least = self.least if isinstance(self.least, str) else size_text(self.least)
        bounds = [f"at most {size_text(self.most)}"] if self.most < 1 << 63 else []
        bounds += [f"{'but ' if bounds else ''}at least {least}"] if self.least != 1 else []
        return ", ".join([f"{share} {self.option}", *bounds])


@dataclass(frozen=True, slots=True)
class Entry:
    """A value in a file and the place where it stands."""

    file: TomlFile
    keys: tuple[str | int, ...]
    value: Any = dataclasses.field(repr=False)  # It may be a secret.

    def error(self, message: str) -> ConfigError:
        """Make an error about this value, with its place."""
        return self.file.error(self.keys, message)

    def expected(self, what: str) -> ConfigError:
        """Make the error that this value is of another kind. The value itself may be a secret and is not shown."""
        return self.error(f"expected {what}, found {_describe(self.value)}")

    def expected_word(self, what: str, words: tuple[str, ...] = ()) -> ConfigError:
        """Make an error that repeats a wrong word and suggests the closest of `words`. Not for secrets."""
        if not isinstance(self.value, str):
            return self.expected(what)
        if len(self.value) > _MAX_WORD_LENGTH or not self.value.isprintable():
            return self.expected(what)
        return self.error(f'expected {what}, found "{self.value}"{suggestion(self.value, words)}')

    def table(self) -> dict[str, "Entry"]:
        """Return the entries of this table by key. Raises `ConfigError` for another type."""
        if not isinstance(self.value, dict):
            raise self.expected("a table")
        return {key: Entry(self.file, (*self.keys, key), value) for key, value in self.value.items()}

    def child(self, key: str, default: Any) -> "Entry":
        """Return the entry of that key in this table; an entry of `default`, in its place, if there is none."""
        value = self.value.get(key, default) if isinstance(self.value, dict) else default
        return Entry(self.file, (*self.keys, key), value)

    def array(self, what: str) -> list["Entry"]:
        """Return the entries of this array, which holds `what`. Raises `ConfigError` for another type."""
        if not isinstance(self.value, list):
            raise self.expected(what)
        return [Entry(self.file, (*self.keys, index), value) for index, value in enumerate(self.value)]


def unknown_keys(
    entry: Entry,
    known: Iterable[str],
    renamed: Mapping[str, str] = _NONE,
    removed: Mapping[str, str] = _NONE,
    mistaken: Mapping[str, str] = _NONE,
) -> Iterator[ConfigError]:
    """Yield an error for each key of a table that is not among the `known`; one that was renamed names the new key.

    One that was `removed` is noted in the file, with the text for it. For a `mistaken` one the remedy is given.
    """
    for key, value in entry.table().items():
        if key in removed:
            entry.file.removed.append(value.error(removed[key]))
        elif key in renamed:
            yield value.error(f"this option was renamed: use {renamed[key]}")
        elif key not in known:
            hint = mistaken.get(key) or suggestion(key, known) or _dotted(value)
            hint = hint or f"; known here: {', '.join(known) or 'none'}"
            yield value.error(f"unknown option{hint}")


def _dotted(entry: Entry) -> str:
    """Return the likeliest cause of a section within a named one: the name has a dot, and no quotes; else ""."""
    if not isinstance(entry.value, dict) or len(entry.keys) != 3:
        return ""
    kind, *name = entry.keys
    return f': a name with a dot has quotes, [{kind}."{".".join(map(str, name))}"]'


def by_importance(problems: Iterable[ConfigError]) -> list[ConfigError]:
    """Sort problems in the order of the file, missing options last."""
    return sorted(problems, key=lambda error: (isinstance(error, MissingOption), error.line is None, error.line or 0))


def one_of(words: tuple[str, ...]) -> str:
    """Return the text of a choice between several words."""
    return ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'


def choice(*words: str) -> Callable[[Entry], Any]:
    """Make the function that reads one of these words."""

    def read(entry: Entry) -> str:
        for word in words:
            if entry.value == word:
                return word
        raise entry.expected_word(one_of(words), words)

    return read


def options_of(section: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a section that a file may set, by name."""
    return {field.name: field for field in dataclasses.fields(section) if not is_fixed(field)}


def is_fixed(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field is a constant with a name, which no file sets."""
    return FIXED in getattr(field.type, "__metadata__", ())


def _removed_from(section: type[Any]) -> dict[str, str]:
    """Return the text for each key that a file may not set any more."""
    ignored = getattr(section, "REMOVED", _NONE)
    removed = {name: f"this option is ignored: {reason}" for name, reason in ignored.items()}
    derived: Mapping[str, Derived] = getattr(section, "DERIVED", _NONE)
    for field in filter(is_fixed, dataclasses.fields(section)):
        value = derived.get(field.name) or default_text(field)
        removed[field.name] = f"this is not an option any more: it is always {value}; remove the line"
    return removed


def default_text(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field for people, with its unit."""
    readers = getattr(field.type, "__metadata__", ())
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if _seconds in readers or _seconds_or_never in readers:
        return f"{field.default:g} s"
    return size_text(field.default) if _size in readers or _large_size in readers else f"{field.default}"


def size_text(size: Any) -> str:
    """Return a number of bytes in the largest unit that divides it."""
    unit = next(power for power in (3, 2, 1, 0) if size % 1024**power == 0)
    return f"{size // 1024**unit} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}"


def read_section(section: type[Section], entry: Entry, problems: list[ConfigError]) -> Section | None:
    """Read a table into a section; None if it has problems, which are appended to `problems`."""
    before = len(problems)
    try:
        table = entry.table()
    except ConfigError as error:
        problems.append(_expected_section(entry, section) if len(entry.keys) > 1 else error)
        return None
    options = options_of(section)
    problems.extend(
        unknown_keys(
            entry,
            options,
            getattr(section, "RENAMED", _NONE),
            _removed_from(section),
            getattr(section, "MISTAKEN", _NONE),
        )
    )
    values = {}
    for field in dataclasses.fields(section):  # type: ignore[arg-type] # It is one.
        name = field.name
        try:
            if name in table and name in options:
                values[name] = _reader(field.type)(table[name])
            elif field.default is not dataclasses.MISSING:
                values[name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                values[name] = field.default_factory()
            else:
                problem = entry.file.error((*entry.keys, name), "this option is required")
                problems.append(MissingOption(problem.message, file=problem.file, line=problem.line, key=problem.key))
        except ConfigError as error:
            # What knows nothing of files, as the search for the home directory, names no key.
            problems.append(error if error.key else entry.file.error((*entry.keys, name), error.message))
    if len(problems) > before:
        return None
    derived: Mapping[str, Derived] = getattr(section, "DERIVED", _NONE)
    values |= {name: rule.of(values) for name, rule in derived.items() if name not in options}
    return section(**values)


def _expected_section(entry: Entry, section: type) -> ConfigError:
    """Make the error that a value stands where a section has to, or several named ones."""
    kind, name = entry.keys[-2:] if len(entry.keys) > 1 else (entry.keys[0], "NAME")
    example = getattr(section, "EXAMPLE", "its options")
    header = f"[[{kind}]]" if isinstance(name, int) else f"[{kind}.{name}]"
    return entry.error(f"expected a section, found {_describe(entry.value)}: write {header}, and below it {example}")


def read_named(section: type[Section], entry: Entry, problems: list[ConfigError]) -> dict[str, Section]:
    """Read the sections of one kind, each under a name of the user's choice."""
    sections = {}
    if not isinstance(entry.value, dict):
        problems.append(_expected_section(entry, section))
        return {}
    for name, element in entry.table().items():
        try:
            check_name(element, name)
        except ConfigError as error:
            problems.append(error)
        read = read_section(section, element, problems)
        if read is not None:
            sections[name] = read
    return sections


def _reader(annotation: Any) -> Callable[[Entry], Any]:
    """Return the function in an annotation, be it `Annotated[...]` or `Annotated[...] | None`."""
    for part in (annotation, *get_args(annotation)):
        for reader in getattr(part, "__metadata__", ()):
            return reader  # type: ignore[no-any-return] # Annotations are untyped at run time.
    raise TypeError(f"{annotation} names no function that reads it")


def _describe(value: object) -> str:
    names = {bool: "a boolean", int: "a whole number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "a table" if isinstance(value, dict) else "a date or time")


def _flag(entry: Entry) -> bool:
    if not isinstance(entry.value, bool):
        raise entry.expected("true or false")
    return entry.value


_DURATION: Final = 'a number of seconds above 0, or a duration such as "90s" or "24h"'


def _seconds(entry: Entry, what: str = _DURATION) -> float:
    if isinstance(entry.value, str):
        if DURATION.fullmatch(entry.value) is None:
            raise entry.expected_word(what)
        try:
            return parse_duration(entry.value)
        except UsageError as error:
            raise entry.error(str(error)) from None
    if isinstance(entry.value, bool) or not isinstance(entry.value, int | float):
        raise entry.expected(what)
    if not 0 < entry.value <= sys.float_info.max:
        raise entry.error(f"expected {what}, found {entry.value}")
    return float(entry.value)


def _seconds_or_never(entry: Entry) -> float:
    return math.inf if entry.value == "never" else _seconds(entry, f'{_DURATION}, or "never"')


def _count(entry: Entry, what: str = "a whole number above 0") -> int:
    if isinstance(entry.value, float):
        raise entry.error(f"expected {what}, found {entry.value}")
    if isinstance(entry.value, bool) or not isinstance(entry.value, int):
        raise entry.expected(what)
    if not 0 < entry.value < 1 << 63:
        raise entry.error(f"expected {what}, found {entry.value}")
    return entry.value


def _share(entry: Entry) -> float:
    if isinstance(entry.value, bool) or not isinstance(entry.value, int | float) or not 0 < entry.value <= 1:
        raise entry.expected("a number above 0 and at most 1")
    return float(entry.value)


def _size(entry: Entry) -> int:
    if isinstance(entry.value, str):
        raise entry.error("expected a whole number of bytes, without quotes and unit: 1 GiB is 1073741824")
    return _count(entry, "a whole number of bytes above 0")


def _message_size(entry: Entry) -> int:
    # An earlier default was larger.
    return min(_size(entry), LARGEST_MESSAGE)


def _large_size(entry: Entry) -> int:
    if _size(entry) < MIB:
        raise entry.error(f"expected at least {MIB} bytes (1 MiB), found {entry.value}")
    return _size(entry)


def _string(entry: Entry) -> str:
    if not isinstance(entry.value, str):
        raise entry.expected("a string")
    if "\0" in entry.value:
        raise entry.error("a string cannot hold a NUL character here")
    return entry.value


def _text(entry: Entry) -> str:
    if not _string(entry):
        raise entry.error("expected a string that is not empty")
    return _string(entry)


def _texts(entry: Entry) -> tuple[str, ...]:
    return tuple(_text(element) for element in entry.array("an array of strings"))


def _name(entry: Entry) -> str:
    return check_name(entry, _string(entry))


def _agent_name(entry: Entry) -> str:
    node, slash, name = _string(entry).rpartition("/")
    if slash:
        check_name(entry, node)
    check_name(entry, name)
    return node + slash + name


def _strings_by_name(entry: Entry) -> Mapping[str, str]:
    if not isinstance(entry.value, dict):
        raise entry.expected('a table, such as { NAME = "value" }')
    return {name: _string(value) for name, value in entry.table().items()}


def _path(entry: Entry) -> Path:
    return entry.file.directory / expand_user(_text(entry))


def _file(entry: Entry) -> Path:
    text = _text(entry)
    if not text.startswith(CREDENTIAL):
        return _path(entry)
    name = text.removeprefix(CREDENTIAL)
    if not re.fullmatch(r"[^/]{1,255}", name) or name in (".", ".."):
        raise entry.error(f'expected "{CREDENTIAL}" and the name of one, without a slash, as LoadCredential= has it')
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    return Path(directory, name) if os.path.isabs(directory) else Path(text)


def missing_credential(path: Path) -> str | None:
    """Explain a `FilePath` that names a credential but was read where systemd hands over none; else return None.

    Only the service itself is given credentials, but other commands read the same file, for other options in it.
    """
    if path.is_absolute():
        return None
    name = str(path).removeprefix(CREDENTIAL)
    return (
        f'there is no "{path}" here, because systemd has handed over no credentials (CREDENTIALS_DIRECTORY is not '
        f"set): the unit needs LoadCredential={name}:FILE"
    )


def _absolute_path(entry: Entry) -> Path:
    if not (_text(entry).startswith("~") or Path(entry.value).is_absolute()):
        raise entry.error(f'expected an absolute path, found "{entry.value}"; "{_path(entry)}" would be one')
    return _path(entry)


def check_name(entry: Entry, name: str) -> str:
    """Return `name` if it is valid for agents and hosts. Raises `ConfigError`, about `entry`, if not."""
    if not NAME.fullmatch(name):
        raise entry.error("a name is 1 to 64 letters, digits, dots, dashes and underscores")
    return name


FIXED: Final = "fixed"
"""Marks the type of a field that no file sets."""

Fixed = Annotated[Value, FIXED]
"""A constant of that type, with a name."""

Flag = Annotated[bool, _flag]
Seconds = Annotated[float, _seconds]
"""More than 0, finite; a duration such as `"24h"` in the file is its seconds here."""
SecondsOrNever = Annotated[float, _seconds_or_never]
"""The same; `"never"` in the file is infinity here."""
Share = Annotated[float, _share]
"""A part of the whole, above 0 and at most 1."""
Count = Annotated[int, _count]
"""More than 0."""
Size = Annotated[int, _size]
"""Bytes, more than 0."""
MessageSize = Annotated[int, _message_size]
"""Bytes, more than 0; more than `LARGEST_MESSAGE` is that."""
LargeSize = Annotated[int, _large_size]
"""Bytes, 1 MiB or more."""
Text = Annotated[str, _text]
"""Not empty, without NUL, as all strings here."""
Texts = Annotated[tuple[str, ...], _texts]
Name = Annotated[str, _name]
"""A name of an agent or a host."""
AgentName = Annotated[str, _agent_name]
"""A name of an agent, also `NODE/AGENT`."""
StringsByName = Annotated[Mapping[str, str], _strings_by_name]
"""A table of strings, which may be empty."""
FilePath = Annotated[Path, _file]
"""`~` is expanded; a relative path starts at the folder of the file it is written in; `credential:NAME` is a file that
systemd hands to a service, and stays a relative path where systemd hands over none (`missing_credential`)."""
AbsolutePath = Annotated[Path, _absolute_path]
"""`~` is expanded; a relative path is an error."""
