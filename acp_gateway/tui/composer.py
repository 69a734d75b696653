"""The field in which a prompt is written: Enter sends it, Alt-Enter and pasted line breaks stay in it."""

from collections.abc import Callable
from typing import Any, Final

import urwid

MOST_ROWS: Final = 8
"""Rows of the field at most; a longer text scrolls in it."""

HISTORY: Final = 50
"""Prompts that Ctrl-P brings back."""


class Composer(urwid.Edit):
    """The text.

    Args:
        send: called with the text when it is to be sent; the field is emptied if it returns True.
    """

    def __init__(self, send: Callable[[str], bool]) -> None:
        super().__init__(("question", "> "), multiline=True, wrap="space")
        self._send = send
        self._pasting = False
        self._sent: list[str] = []
        self._place = 0

    def keypress(self, size: Any, key: str) -> str | None:
        """Handle a key; return it if it has no meaning here."""
        if key == "begin paste":
            self._pasting = True
        elif key == "end paste":
            self._pasting = False
        elif key == "meta enter" or (key == "enter" and self._pasting):
            self.insert_text("\n")
        elif key == "enter":
            self.finish(self._send)
        elif key in ("ctrl p", "ctrl n"):
            self._recall(-1 if key == "ctrl p" else 1)
        elif key == "tab" and self._pasting:
            self.insert_text("    ")
        else:
            unhandled: str | None = super().keypress(size, key)
            return unhandled
        return None

    def finish(self, send: Callable[[str], bool]) -> None:
        """Send the text by a function, and empty the field if that returns True."""
        text = self.edit_text
        if text.strip() and send(text):
            self._sent = [*self._sent[-HISTORY + 1 :], text]
            self._place = len(self._sent)
            self.set_edit_text("")

    def _recall(self, step: int) -> None:
        """Show an earlier prompt, or a later one."""
        self._place = min(max(self._place + step, 0), len(self._sent))
        text = self._sent[self._place] if self._place < len(self._sent) else ""
        self.set_edit_text(text)
        self.set_edit_pos(len(text))


class ComposerBox(urwid.BoxAdapter[Any]):
    """A composer that grows with its text, and scrolls beyond `MOST_ROWS`."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        super().__init__(urwid.ListBox(urwid.SimpleFocusListWalker([composer])), 1)

    def rows(self, size: Any, focus: bool = False) -> int:
        """Return the number of rows."""
        self._fit(size)
        rows: int = super().rows(size, focus)
        return rows

    def render(self, size: Any, focus: bool = False) -> Any:
        """Draw the composer."""
        self._fit(size)
        return super().render(size, focus)

    def keypress(self, size: Any, key: str) -> str | None:
        """Pass a key on to the composer."""
        self._fit(size)
        unhandled: str | None = super().keypress(size, key)
        return unhandled

    def _fit(self, size: Any) -> None:
        self.height = min(self._composer.rows((size[0],), True), MOST_ROWS)
