"""Styles of the terminal package as urwid's attributes, and styled lines as its markup."""

from collections.abc import Sequence
from typing import Any, Final

from acp_gateway.terminal.rendering import Line, Style

BAR: Final = "bar"
FOCUS: Final = "focus"
BOX: Final = "box"
"""Attributes besides the styles: the bars at the top and the bottom, the row in focus, a dialog."""

PALETTE: Final = [
    (Style.PLAIN.value, "default", "default"),
    (Style.USER.value, "light cyan", "default"),
    (Style.THOUGHT.value, "dark gray", "default"),
    (Style.DIM.value, "dark gray", "default"),
    (Style.TOOL.value, "default,bold", "default"),
    (Style.GOOD.value, "dark green", "default"),
    (Style.BAD.value, "light red", "default"),
    (Style.RUNNING.value, "brown", "default"),
    (Style.ADDED.value, "dark green", "default"),
    (Style.REMOVED.value, "dark red", "default"),
    (Style.HUNK.value, "dark cyan", "default"),
    (Style.QUESTION.value, "yellow,bold", "default"),
    (Style.HEADING.value, "default,bold,underline", "default"),
    (Style.STRONG.value, "default,bold", "default"),
    (Style.CODE.value, "dark cyan", "default"),
    (Style.LINK.value, "default,underline", "default"),
    (BAR, "black", "light gray"),
    (FOCUS, "black", "light gray"),
    (BOX, "default", "default"),
]
"""16 colours, which follow the terminal's own palette."""

Markup = str | list[Any] | tuple[str, Any]
"""Text for `urwid.Text`."""


def markup(lines: Sequence[Line]) -> Markup:
    """Return styled lines as markup. The spans are printable already."""
    parts: list[Any] = []
    for at, line in enumerate(lines):
        if at:
            parts.append("\n")
        parts += [(style.value, text) for text, style in line if text]
    return parts or ""
