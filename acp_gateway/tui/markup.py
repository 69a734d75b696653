"""Styles of the terminal package as urwid's attributes, and styled lines as its markup."""

from collections.abc import Sequence
from typing import Any, Final

from acp_gateway.terminal.rendering import Line, Style

BAR: Final = "bar"
FOCUS: Final = "focus"
BOX: Final = "box"
"""Attributes besides the styles: the bars at the top and the bottom, the row in focus, a dialog."""

PALETTE: Final = [
    (Style.PLAIN.value, "default", "default", "default"),
    (Style.USER.value, "light cyan", "default", "default"),
    (Style.THOUGHT.value, "dark gray", "default", "default"),
    (Style.DIM.value, "dark gray", "default", "default"),
    (Style.TOOL.value, "default,bold", "default", "bold"),
    (Style.GOOD.value, "dark green", "default", "default"),
    (Style.BAD.value, "light red", "default", "default"),
    (Style.RUNNING.value, "brown", "default", "default"),
    (Style.ADDED.value, "dark green", "default", "default"),
    (Style.REMOVED.value, "dark red", "default", "default"),
    (Style.HUNK.value, "dark cyan", "default", "default"),
    (Style.QUESTION.value, "yellow,bold", "default", "bold"),
    (Style.HEADING.value, "default,bold,underline", "default", "bold,underline"),
    (Style.STRONG.value, "default,bold", "default", "bold"),
    (Style.CODE.value, "dark cyan", "default", "default"),
    (Style.LINK.value, "default,underline", "default", "underline"),
    (BAR, "black", "light gray", "standout"),
    (FOCUS, "black", "light gray", "standout"),
    (BOX, "default", "default", "default"),
]
"""16 colours, which follow the terminal's own palette, and the attributes that stand for them without colours."""

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
