"""The texts of a history that are searched, and what is searched for. Pure."""

import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from acp_gateway.acp.reading import string
from acp_gateway.acp.updates import Block, Item, SessionUpdate, Update
from acp_gateway.protocol import methods
from acp_gateway.protocol.text.whole_values import parse_whole

TEXT_SIZE: Final = 8192
"""Characters after which another text begins: all words of a search are in one, and fewer texts are searched faster."""

PART_SIZE: Final = 4096
"""Characters of the input, of an output, and of a new text of a file of a tool call that are searched, the first ones:
some files and logs are larger than all that is said about them."""

MOST_WORDS: Final = 16
"""Words of a search that count."""

MOST_CHARACTERS: Final = 256
"""Characters of a search that count."""

SHORTEST_BEGINNING: Final = 4
"""Characters of the last word from which on it may be the beginning of a longer one."""

SEPARATOR: Final = "\x1f"
"""Stands between two letters that are words of their own, in the index and in a search for it."""

_LETTERS: Final = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Letters of Chinese and Japanese, which are written without spaces."""

_LETTER: Final = re.compile(f"[{_LETTERS}]")

_PIECES: Final = re.compile(rf"[{_LETTERS}]|[^\W{_LETTERS}]+")

_TOOLS: Final = frozenset({"tool_call", "tool_call_update"})
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)
_WORDS: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')


class Text(NamedTuple):
    """A text: messages and tool calls, a line each."""

    text: str
    parts: list[tuple[int, int]]
    """For each message and each tool call its first character, and the position before its first update."""


class Texts(NamedTuple):
    """The texts of consecutive updates."""

    texts: list[Text]
    end: int
    """The position up to which they are whole: a message may go on behind it."""


class _Collector:
    """Joins parts to texts."""

    def __init__(self) -> None:
        self.texts: list[Text] = []
        self._pieces: list[str] = []
        self._parts: list[tuple[int, int]] = []
        self._size = 0

    def begin(self, position: int) -> None:
        """Begin a part, in another text if this one is full."""
        if self._size > TEXT_SIZE:
            self.end()
        if self._pieces:
            self.add("\n")
        self._parts.append((self._size, position))

    def add(self, piece: str) -> None:
        """Append to the part."""
        self._pieces.append(piece)
        self._size += len(piece)

    def add_line(self, position: int, line: str) -> None:
        """Append a line to the part, or begin one; never another text, whose first part may be at this position."""
        if not self._parts:
            self._parts.append((0, position))
        self.add(f"\n{line}" if self._pieces else line)

    @property
    def is_full(self) -> bool:
        """True if the text is so long that also a part of a message ends it."""
        return self._size > 2 * TEXT_SIZE

    def drop(self) -> None:
        """Remove the part that was begun last."""
        start, _ = self._parts.pop()
        self._pieces = ["".join(self._pieces)[:start].removesuffix("\n")]
        self._size = len(self._pieces[0])

    def end(self) -> None:
        """End the text."""
        if self._parts:
            self.texts.append(Text("".join(self._pieces), self._parts))
        self._pieces, self._parts, self._size = [], [], 0


def texts_of(
    messages: Sequence[bytes], begin: int, *, is_complete: bool, ends: Sequence[tuple[int, str]] = ()
) -> Texts:
    """Return the texts of updates. Consecutive chunks of one message are one part.

    Args:
        messages: whole `session/update` notifications.
        begin: the position before the first.
        is_complete: False if a message at the end may go on.
        ends: the words of the ends of turns, each after the message before this position, in order.
    """
    left = deque(ends)
    collector = _Collector()
    key: Any = None
    started = begin
    for position, message in enumerate(messages, begin):
        told = SessionUpdate.of(message)
        update, kind = told.update, told.update.kind
        if kind in methods.CHUNKS:
            if text := string(Block.read(update.content).text):
                its_key = kind, string(update.message_id), told.session_id
                if its_key != key or collector.is_full:
                    collector.begin(position)
                    key, started = its_key, position
                collector.add(text)
        elif kind in _TOOLS:
            key = None
            if text := _text_of_tool(update):
                collector.begin(position)
                collector.add(text)
        while left and left[0][0] <= position + 1:
            _, words = left.popleft()
            if words:
                key = None
                collector.add_line(position, words)
    end = begin + len(messages)
    if key is not None and not is_complete:
        collector.drop()
        end = started
    collector.end()
    return Texts(collector.texts, end)


def _text_of_tool(update: Update) -> str:
    """Return title, input, outputs and new texts of a tool call, a line each."""
    # Most updates of a tool call have no input, and to find that no JSON takes long.
    parts = [update.title, _input(parse_whole(bytes(update.raw_input))) if update.raw_input else ""]
    for item in Item.each(update.content, len(bytes(update.content))):
        parts += [item.path, item.new_text, string(item.content.text)]
    return "\n".join(part[:PART_SIZE] for part in parts if part)


def _input(value: Any) -> str:
    if isinstance(value, dict) and isinstance(command := value.get("command"), str):
        return command
    if value in (None, {}, [], ""):
        return ""
    # Piece by piece: a whole input of megabytes would stop the other threads for a second.
    pieces, size = list[str](), 0
    with suppress(RecursionError):
        for piece in _ENCODER.iterencode(value):
            pieces.append(piece)
            size += len(piece)
            if size >= PART_SIZE:
                break
    return "".join(pieces)[:PART_SIZE]


def separated(text: str) -> str:
    """Return a text in which each Chinese and Japanese letter is a word, for the index: it takes others to be one."""
    text = text.replace(SEPARATOR, " ")
    return text if text.isascii() else _LETTER.sub(rf"{SEPARATOR}\g<0>{SEPARATOR}", text)


def joined(text: str) -> str:
    """Undo `separated`."""
    return text.replace(SEPARATOR, "")


def storable(text: str) -> str:
    """Return a text without lone surrogates, which sqlite3 refuses."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def match_of(words: str) -> str | None:
    """Return a search as FTS5 takes it: all words, phrases in quotation marks, the last word as a beginning.

    None if there is no word in it.
    """
    found: list[str] = []
    words = storable(words[:MOST_CHARACTERS].replace("\0", " "))
    for phrase, word in _WORDS.findall(words):
        text = phrase or word
        if any(map(str.isalnum, text)):
            is_beginning = bool(word) and len(word) >= SHORTEST_BEGINNING
            found.append(f'"{separated(text)}"' + ("*" if is_beginning else ""))
    found = found[:MOST_WORDS]
    if not found:
        return None
    return " ".join([*(one.removesuffix("*") for one in found[:-1]), found[-1]])


# What was found


SNIPPET: Final = 120
"""Characters of a snippet."""

LOOKED_AT: Final = 256 * 1024
"""Characters of a text in which a snippet's word is looked for. One message may have megabytes."""

_STEP: Final = 4 * 1024
"""Characters that are looked through at a time: no other thread runs until then."""

MOST_PIECES: Final = 8
"""Words, or letters that are words, of a phrase that are looked for in a text, the first ones: where a phrase begins at
each character, all of it would be compared there. The index has looked for all."""


class Snippet(NamedTuple):
    """A part of a text around a word that was found."""

    position: int
    """The position before the first update of the message or tool call."""
    text: str
    marks: list[tuple[int, int]]
    """Begin and end of each word in it that was searched for."""


def snippet_of(text: str, parts: Sequence[tuple[int, int]], words: str) -> Snippet:
    """Return the part of a text with the first word or phrase of a search, in one line.

    Words are found by their letters here, and in the index without accents: the beginning of the text stands for one
    that is not found, or that is behind its first `LOOKED_AT` characters.
    """
    pattern = _pattern_of(words)
    return _snippet(text, parts, pattern, _first_match(pattern, text))


def _snippet(
    text: str, parts: Sequence[tuple[int, int]], pattern: re.Pattern[str], first: re.Match[str] | None
) -> Snippet:
    at = 0 if first is None else first.start()
    position = parts[max(0, bisect_right(parts, at, key=lambda part: part[0]) - 1)][1] if parts else 0
    start = max(0, at - SNIPPET // 4)
    if start:
        start += text[start:at].find(" ") + 1
    shown = text[start : start + SNIPPET]
    # Of the same length, so that marks fit.
    shown = "".join(" " if one.isspace() else one for one in shown)
    marks = [found.span() for found in pattern.finditer(shown)]
    cut = "…" if start else ""
    marks = [(begin + len(cut), end + len(cut)) for begin, end in marks]
    return Snippet(position, cut + shown + ("…" if start + SNIPPET < len(text) else ""), marks)


def _first_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the first match in the first `LOOKED_AT` characters of a text, None without one."""
    steps = range(0, min(len(text), LOOKED_AT), _STEP)
    # A match may begin in one step and end in the next.
    return next(filter(None, (pattern.search(text, step, step + _STEP + MOST_CHARACTERS) for step in steps)), None)


def marks_of(text: str, words: str) -> list[tuple[int, int]]:
    """Return begin and end of each word in a text that was searched for."""
    return [found.span() for found in _pattern_of(words).finditer(text)]


def snippets_of(text: str, parts: Sequence[tuple[int, int]], wanted: str) -> list[Snippet]:
    """Return the snippet of each message and tool call of a text in which a text is, also within a word.

    Of each, the first `LOOKED_AT` characters count.
    """
    pattern = re.compile(r"\s+".join(map(re.escape, wanted[:MOST_CHARACTERS].split())) or r"(?!)", re.IGNORECASE)
    ends = [*(start for start, _ in parts[1:]), len(text)]
    found = []
    for (start, position), end in zip(parts, ends, strict=True):
        part = text[start:end].removesuffix("\n")
        if (first := _first_match(pattern, part)) is not None:
            found.append(_snippet(part, [(0, position)], pattern, first))
    return found


def spellings_of(wanted: str) -> list[list[str]]:
    """Return the words of a text as in the index, each in the spellings that a comparison of bytes tells apart."""
    words = storable(wanted[:MOST_CHARACTERS].replace("\0", " ")).split()[:MOST_WORDS]
    return [list(dict.fromkeys(map(separated, (one, one.lower(), one.upper(), one.title())))) for one in words]


def _pattern_of(words: str) -> re.Pattern[str]:
    return re.compile("|".join(_patterns_of(words)) or r"(?!)", re.IGNORECASE)


def _patterns_of(words: str) -> list[str]:
    found = []
    for phrase, word in _WORDS.findall(words[:MOST_CHARACTERS])[:MOST_WORDS]:
        pieces = _PIECES.findall(phrase or word)[:MOST_PIECES]
        if pieces:
            begin = "" if _LETTER.match(pieces[0]) else r"\b"
            # Letters that are words may stand side by side.
            between = r"\W*" if _LETTER.search(phrase or word) else r"\W+"
            found.append(begin + between.join(map(re.escape, pieces)))
    return found
