"""A TOML file that knows on which line each of its keys stands, for errors that name the place.

`tomllib` gives values and no places. When an error needs one, the source, valid by then, is scanned once more for
keys alone; a file without errors never pays for it. tomlkit, which changes files, gives no places either, and takes
longer to import than `connect` takes to start.
"""

import ast
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from acp_gateway.errors import ConfigError

KeyPath = Sequence[str | int]
"""Path of a value in a document: keys of tables and indexes of arrays, `("listen", 0, "url")`."""


@dataclass(frozen=True, slots=True)
class TomlFile:
    """One parsed file."""

    path: Path
    """As it was given, since that is what the user recognises in an error."""

    data: dict[str, Any] = field(repr=False)  # There may be secrets in it.
    source: str = field(repr=False)

    removed: list[ConfigError] = field(default_factory=list, repr=False, compare=False)
    """Options in it that this version does not have any more, and that are ignored; noted while it is read."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and parse the file. Raises `ConfigError` if it cannot be read, is not UTF-8 or is not TOML."""
        try:
            # Windows editors like to begin a file with a byte order mark, which TOML does not know.
            source = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            whose = _owner_of(path) if isinstance(error, PermissionError) else ""
            raise ConfigError(f"cannot be read: {error.strerror}{whose}", file=str(path)) from None
        except UnicodeDecodeError as error:
            place = error.object.count(b"\n", 0, error.start) + 1
            raise ConfigError("is not UTF-8 text", file=str(path), line=place) from None
        try:
            data = tomllib.loads(source)
        except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than int() takes.
            message, line = _syntax_error(error, source)
            raise ConfigError(message, file=str(path), line=line) from None
        return cls(path, data, source)

    @property
    def directory(self) -> Path:
        """The folder against which the relative paths in this file are meant, absolute."""
        return self.path.absolute().parent

    def lines(self) -> dict[tuple[str | int, ...], int]:
        """Return the line, from 1, of each key, array element and section header."""
        return _KeyScanner(self.source).lines

    def line_of(self, key_path: KeyPath) -> int | None:
        """The line, from 1, of that key, array element or section header; None where the file has none."""
        return self.lines().get(tuple(key_path))

    def error(self, key_path: KeyPath, message: str) -> ConfigError:
        """An error about that key. If the key is missing, the line is that of the section it is missing from."""
        lines = self.lines()
        places = (tuple(key_path[:length]) for length in range(len(key_path), 0, -1))
        line = next((lines[place] for place in places if place in lines), None)
        return ConfigError(message, file=str(self.path), line=line, key=_spell(key_path) or None)


def _owner_of(path: Path) -> str:
    """Return whose a file or a folder around it is that can't be read, as the end of a sentence; "" if unknown."""
    try:
        owner = next(each for each in (path, *path.parents) if os.path.exists(each)).owner()
    except (OSError, KeyError, NotImplementedError):
        return ""
    return f"; it is {owner}'s: run this as that user"


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean "x"?` for the candidate that looks most like `word`, or "" if none does."""
    by_letters = {candidate.casefold(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.casefold(), list(by_letters), n=1)
    return f'; did you mean "{by_letters[close[0]]}"?' if close else ""


def _spell(key_path: KeyPath) -> str:
    text = ""
    for key in key_path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += ("." if text else "") + (key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"')
    return text


def _syntax_error(error: Exception, source: str) -> tuple[str, int | None]:
    if isinstance(error, RecursionError):
        return "is nested too deeply", None
    message, _, place = str(error).partition(" (at ")
    line = source.rstrip().count("\n") + 1 if place else None
    if match := re.match(r"line (\d+)", place):
        line = int(match[1])
    return _explain(message, source, line), line


def _explain(message: str, source: str, line: int | None) -> str:
    """Translate a message of `tomllib` into the likeliest mistake in a configuration."""
    text = source.split("\n")[line - 1] if line else ""
    if _TYPOGRAPHIC.search(_PLAIN_TEXT.sub("", text)):
        return 'is not valid TOML: there are typographic quotes in this line; use plain "'
    if twice := re.fullmatch(r"Cannot declare (\(.*\)) twice", message):
        return f"[{_spell(ast.literal_eval(twice[1]))}] stands here for the second time"
    if message == "Cannot overwrite a value":
        return "is not valid TOML: this key has a value already, from a line above"
    if bare := _BARE_TEXT.fullmatch(text):
        return f'is not valid TOML: a text stands in quotes: {bare[1]} = "…"'
    if _YAML.fullmatch(text):
        return 'is not valid TOML, but looks like YAML: a section is [NAME], and an option NAME = "value"'
    return f"is not valid TOML: {message}"


_BARE_TEXT = re.compile(r"""\s*([A-Za-z0-9_-]+)\s*=\s*[A-Za-z~./][^\s"'#\[{=]*\s*(?:#.*)?""")
"""An option whose text has no quotes."""

_YAML = re.compile(r"\s*(?:- )?[A-Za-z0-9_-]+:(?: .*)?")

_TYPOGRAPHIC = re.compile("[\u00ab\u00bb\u2018-\u201f\u2039\u203a]")
"""Quotation marks that web pages and word processors put in place of plain ones."""

_PLAIN_TEXT = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|#.*""")
"""Strings and comments, in which these marks may be."""


_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"""(?P<quoted>"(?:\\.|[^"\\])*"|'[^']*')|[A-Za-z0-9_-]+""")
_SCALAR = re.compile(r"[^,\]}#\n]*")  # A date may hold a space, so only what ends a value ends it.
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"""(?:"{0,2})'''  # Up to two quotation marks may stand right before the closing three.
    r"""|'''.*?'''(?:'{0,2})"""
    r'''|"(?:\\.|[^"\\])*"'''
    r"""|'[^']*'""",
    re.DOTALL,
)


class _KeyScanner:
    """Finds the line of every key in a document that is known to be valid, and so needs to check nothing."""

    def __init__(self, source: str) -> None:
        self.lines: dict[tuple[str | int, ...], int] = {}
        self._source = source
        self._at = 0
        # How many [[headers]] there were of each array of tables so far.
        self._elements: dict[tuple[str | int, ...], int] = {}
        self._document()

    def _document(self) -> None:
        section: tuple[str | int, ...] = ()
        while self._skip_blank():
            if self._source.startswith("[", self._at):
                section = self._header()
            else:
                self._pair(section)

    def _header(self) -> tuple[str | int, ...]:
        line = self._line()
        brackets = 2 if self._source.startswith("[[", self._at) else 1
        self._at += brackets
        keys = self._keys()
        self._at += brackets
        path: tuple[str | int, ...] = ()
        for key in keys[:-1]:
            path = (*path, key)
            self.lines.setdefault(path, line)
            if path in self._elements:
                path = (*path, self._elements[path] - 1)
        path = (*path, keys[-1])
        if brackets == 1:
            self.lines[path] = line
            return path
        index = self._elements.get(path, 0)
        self._elements[path] = index + 1
        self.lines.setdefault(path, line)
        self.lines[*path, index] = line
        return (*path, index)

    def _pair(self, section: tuple[str | int, ...]) -> None:
        line = self._line()
        path = section
        for key in self._keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self._at += 1
        self._skip_blank()
        self._value(path)

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip_blank()
            match = self._take(_KEY)
            quoted = match["quoted"]
            keys.append(tomllib.loads(f"key = {quoted}")["key"] if quoted else match[0])
            self._skip_blank()
            if not self._source.startswith(".", self._at):
                return keys
            self._at += 1

    def _value(self, path: tuple[str | int, ...]) -> None:
        start = self._source[self._at]
        if start == "[":
            self._array(path)
        elif start == "{":
            self._inline_table(path)
        else:
            self._take(_STRING if start in "\"'" else _SCALAR)

    def _array(self, path: tuple[str | int, ...]) -> None:
        for index, _ in enumerate(self._items("]")):
            self.lines[*path, index] = self._line()
            self._value((*path, index))

    def _inline_table(self, path: tuple[str | int, ...]) -> None:
        for _ in self._items("}"):
            self._pair(path)

    def _items(self, closing: str) -> Iterator[None]:
        """Stop at the start of each item, for the caller to read it; end behind the closing bracket."""
        self._at += 1
        while True:
            self._skip_blank()
            following = self._source[self._at]
            if following not in (",", closing):
                yield
                continue
            self._at += 1
            if following == closing:
                return

    def _skip_blank(self) -> bool:
        self._take(_BLANK)
        return self._at < len(self._source)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._source, self._at)
        assert match is not None
        self._at = match.end()
        return match

    def _line(self) -> int:
        return self._source.count("\n", 0, self._at) + 1
