"""Widgets drawn without a terminal."""

from typing import Any

Size = tuple[int, int]


def drawn(widget: Any, size: tuple[int, ...], *, focus: bool = True) -> list[str]:
    """Return the lines of a widget, without those that are empty at its end. Flow widgets have no rows in the size."""
    lines = [line.decode().rstrip() for line in widget.render(size, focus).text]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def press(widget: Any, size: tuple[int, ...], *keys: str) -> list[str]:
    """Press keys, and return those that the widget has not handled."""
    return [key for key in keys if widget.keypress(size, key) is not None]
