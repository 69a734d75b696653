"""Finds the parts of Markdown in a text that comes in pieces: headings, bold text, code, lists, links.

No character is removed, moved or added, so what is shown can be copied as it was written. A part is told from what has
come before it and the next few characters: nothing that was shown changes. Bold text, code and links end with their
line, so what an agent does not close disturbs one line. Bold text is between `**`; underscores are parts of names.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

HELD: Final = 16
"""Characters that wait for the next ones at most, of one sort each: a longer row of them is not a sign of Markdown."""


class Part(Enum):
    """The kind of a piece of text."""

    TEXT = "text"
    HEADING = "heading"
    STRONG = "strong"
    CODE = "code"
    LINK = "link"
    """The address of a link."""
    BULLET = "bullet"
    """The beginning of an entry of a list, or of a line of a quotation."""
    FENCE = "fence"
    """The lines around a block of code."""


class Piece(NamedTuple):
    """A piece of a line."""

    text: str
    part: Part


_INDENT: Final = rf" {{0,{HELD}}}"
_QUOTED: Final = rf"(?:{_INDENT}>){{1,{HELD}}}"
_UNDECIDED: Final = re.compile(
    rf"{_INDENT}(?:#{{1,6}}|(?:`{{1,{HELD}}}|~{{1,{HELD}}}){_INDENT}|[-*+]|[0-9]{{1,9}}[.)]?)?|{_QUOTED}{_INDENT}"
)
"""The beginning of a line whose kind the next character tells."""

_OPEN_END: Final = re.compile(rf"(?<!`)`{{1,{HELD}}}\Z|(?<!\*)\*{{1,{HELD}}}\Z")
"""The end of a piece whose meaning the next character tells."""

_FENCE: Final = re.compile(rf"{_INDENT}(`{{3,{HELD}}}(?!`)|~{{3,{HELD}}}(?!~))")
_FENCE_END: Final = re.compile(rf"{_INDENT}(?:\s|\Z)")
_HEADING: Final = re.compile(r" {0,3}#{1,6}(?: |\Z)")
_BULLET: Final = re.compile(rf"{_INDENT}(?:[-*+]|[0-9]{{1,9}}[.)])(?: |\Z)|{_QUOTED} ?")
_SIGN: Final = re.compile(r"`+|\*\*|\]\(")
_URL_END: Final = re.compile(r"[)\s]")


class Markdown:
    """The state of a text in Markdown, up to where it has come."""

    def __init__(self) -> None:
        self._held = ""
        # The row of characters that has begun the block of code; empty outside of one.
        self._fence = ""
        self._begin_line()

    def _begin_line(self) -> None:
        self._at_start = True
        # The kind of the whole line, if it has one.
        self._whole: Part | None = None
        # The length of the row of backticks that has begun code within the line.
        self._code = 0
        self._strong = self._url = False
        # True behind the end of a link's text, where its address may begin.
        self._named = False

    def add(self, text: str, *, ends: bool = False) -> list[Piece]:
        """Return the pieces of more of a line, which may hold back some characters until more comes.

        Args:
            text: what follows in the line, without a line break.
            ends: True if the line ends behind it: nothing is held back.
        """
        text, self._held = self._held + text, ""
        pieces: list[Piece] = []
        if self._at_start and text:
            if not ends and _UNDECIDED.fullmatch(text):
                self._held = text
                return pieces
            self._at_start = False
            text = self._begin(text, pieces)
        if self._whole is not None:
            if self._whole is Part.FENCE and self._fence[:1] == "`" and "`" in text:
                # It was code within the line.
                self._fence = ""
            _put(pieces, text, self._whole)
        else:
            held = None if ends else _OPEN_END.search(text)
            if held is not None:
                text, self._held = text[: held.start()], held.group()
            self._inline(text, pieces, self._held)
        if ends:
            self._begin_line()
        return pieces

    @property
    def is_holding(self) -> bool:
        """True while characters are held back."""
        return bool(self._held)

    def flush(self) -> list[Piece]:
        """Return the characters that are held back, as far as their meaning is known; the line goes on behind them."""
        text, self._held = self._held, ""
        pieces: list[Piece] = []
        if self._at_start and text:
            self._at_start = False
            text = self._begin(text, pieces)
        if self._whole is not None:
            _put(pieces, text, self._whole)
        else:
            self._inline(text, pieces)
        return pieces

    def _begin(self, text: str, pieces: list[Piece]) -> str:
        """Find out of what kind a line is; return what follows its first piece, which is put to `pieces`."""
        fence = _FENCE.match(text)
        if self._fence:
            closes = fence and fence.group(1).startswith(self._fence) and _FENCE_END.match(text, fence.end())
            self._whole = Part.FENCE if closes else Part.CODE
            if closes:
                self._fence = ""
        elif fence is not None:
            self._whole, self._fence = Part.FENCE, fence.group(1)
            _put(pieces, text[: fence.end()], Part.FENCE)
            return text[fence.end() :]
        elif _HEADING.match(text):
            self._whole = Part.HEADING
        elif (bullet := _BULLET.match(text)) is not None:
            _put(pieces, bullet.group(), Part.BULLET)
            return text[bullet.end() :]
        return text

    def _inline(self, text: str, pieces: list[Piece], follows: str = "") -> None:
        """Put the pieces of a part of a line to `pieces`; `follows` is what is held back behind it."""
        done = at = 0
        if self._named and text.startswith("("):
            _put(pieces, "(", self._part)
            self._url, done, at = True, 1, 1
        while (sign := (_URL_END if self._url else _SIGN).search(text, at)) is not None:
            begin, at = sign.span()
            if self._url:
                _put(pieces, text[done:begin], Part.LINK)
                self._url, done = False, begin
            elif text[begin] == "`":
                if not self._code:
                    _put(pieces, text[done:begin], self._part)
                    self._code, done = at - begin, begin
                elif self._code == at - begin:
                    _put(pieces, text[done:at], self._part)
                    self._code, done = 0, at
            elif self._code:
                pass
            elif text[begin] == "]":
                _put(pieces, text[done:at], self._part)
                self._url, done = True, at
            elif self._strong:
                _put(pieces, text[done:at], self._part)
                self._strong, done = False, at
            elif (text[at:] + follows)[:1].strip():
                _put(pieces, text[done:begin], self._part)
                self._strong, done = True, begin
        _put(pieces, text[done:], self._part)
        if text:
            self._named = text.endswith("]") and not (self._code or self._url)

    @property
    def _part(self) -> Part:
        """The kind of the text that follows within the line."""
        if self._url:
            return Part.LINK
        if self._code:
            return Part.CODE
        return Part.STRONG if self._strong else Part.TEXT


def _put(pieces: list[Piece], text: str, part: Part) -> None:
    if text:
        pieces.append(Piece(text, part))
