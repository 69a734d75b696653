"""Lists to choose from."""

from typing import Any

from acp_gateway.terminal.rendering import Span
from acp_gateway.tui.lists import ChoiceList
from tests.tui.screens import drawn, press

SIZE = (10, 3)


def rows(*names: str) -> list[tuple[str, list[Span]]]:
    return [(name, [Span(f"row {name}")]) for name in names]


def test_enter_chooses_the_row_in_focus() -> None:
    chosen: list[Any] = []
    choices = ChoiceList(chosen.append)
    assert press(choices, SIZE, "enter") == ["enter"]
    choices.show(rows("a", "b"))
    assert drawn(choices, SIZE) == ["row a", "row b"]
    assert press(choices, SIZE, "enter", "down", "enter", "x") == ["x"]
    assert chosen == ["a", "b"]


def test_the_value_in_focus_keeps_it_when_the_rows_change() -> None:
    choices = ChoiceList(lambda _: None)
    choices.show(rows("a", "b"))
    press(choices, SIZE, "down")
    choices.show(rows("c", "a", "b"))
    assert choices.value == "b"
    choices.show(rows("c", "a"))
    assert choices.value == "c"
    choices.show([])
    assert choices.value is None
    choices.show(rows("d", "e"))
    assert choices.value == "d"


def test_long_lines_are_cut() -> None:
    choices = ChoiceList(lambda _: None)
    choices.show([("a", [Span("x" * 50)])])
    assert drawn(choices, SIZE) == ["x" * 9 + "…"]
