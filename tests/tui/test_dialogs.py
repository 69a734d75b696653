"""Dialogs: how they look, and what their keys do."""

from collections.abc import Mapping
from typing import Any

import pytest
import urwid

from acp_gateway.terminal.dialogue import Question
from acp_gateway.terminal.forms import read_form
from acp_gateway.terminal.rendering import Span, Style
from acp_gateway.tui.dialogs import KEYS, ChoiceList, choice_dialog, form_dialog, help_dialog, new_session_dialog
from acp_gateway.tui.markup import BAR, BOX, FOCUS, PALETTE, markup
from tests.tui.screens import drawn, press

SIZE = (70, 12)


class Made:
    """Records what was done in a dialog."""

    def __init__(self) -> None:
        self.closed = 0
        self.chosen: list[Any] = []
        self.created: list[tuple[str, str]] = []

    def close(self) -> None:
        self.closed += 1

    def create(self, agent: str, cwd: str) -> None:
        self.created.append((agent, cwd))


@pytest.fixture
def made() -> Made:
    return Made()


def test_a_choice_is_made_by_enter_and_left_by_esc(made: Made) -> None:
    rows = [("code", [Span("Code")]), ("plan", [Span("Plan first")])]
    dialog = choice_dialog("Mode", rows, made.chosen.append, made.close)
    lines = drawn(dialog, (20, 4))
    assert "Mode" in lines[0]
    assert [line.strip("│ ") for line in lines[1:3]] == ["Code", "Plan first"]
    assert press(dialog, (20, 4), "down", "enter", "esc", "f1") == ["f1"]
    assert (made.chosen, made.closed) == (["plan"], 1)


def test_a_dialog_stands_in_the_middle_of_the_screen() -> None:
    dialog = choice_dialog("Mode", [("a", [Span("Only")])], lambda _: None, lambda: None)
    lines = drawn(dialog.over(urwid.SolidFill(".")), (80, 9))
    assert lines[0] == "." * 80
    assert lines[4].startswith("." * 15 + "│Only")


def test_help_names_each_key(made: Made) -> None:
    dialog = help_dialog(made.close)
    text = "\n".join(drawn(dialog, (dialog.width, dialog.height)))
    assert all(meaning in text for _, meaning in KEYS)
    press(dialog, (dialog.width, dialog.height), "esc")
    assert made.closed == 1


def test_a_new_session_has_one_of_the_agents_and_a_directory(made: Made) -> None:
    dialog = new_session_dialog(("one", "two"), "two", ["/srv"], made.create, made.close)
    lines = [line.strip("│ ") for line in drawn(dialog, SIZE)]
    assert lines[1:3] == ["( ) one", "(X) two"]
    assert "Directory at the gateway: /srv" in lines
    press(dialog, SIZE, "down", "/", "x", "enter")
    press(dialog, SIZE, "up", "up", " ", "down", "down", "enter")
    assert made.created == [("two", "/srv/x"), ("one", "/srv/x")]


def focused(dialog: Any) -> str:
    """The text that is in reverse."""
    rows = dialog.render(SIZE, focus=True).content()
    return "".join(text.decode() for row in rows for attribute, _, text in row if FOCUS in repr(attribute)).strip()


def test_the_agent_that_is_proposed_has_the_focus_and_shows_it(made: Made) -> None:
    dialog = new_session_dialog(("one", "two"), "two", ["/srv"], made.create, made.close)
    assert focused(dialog) == "(X) two"
    press(dialog, SIZE, "up")
    assert focused(dialog) == "( ) one"
    assert "Space chooses, Enter chooses and opens" in "\n".join(drawn(dialog, SIZE))


def test_enter_on_an_agent_or_a_directory_chooses_it_and_opens_the_session(made: Made) -> None:
    dialog = new_session_dialog(("one", "two"), "two", ["/srv", "/home"], made.create, made.close)
    press(dialog, SIZE, "up", "enter")
    press(dialog, SIZE, "down", "down", "down", "enter")
    assert made.created == [("one", "/srv"), ("one", "/home")]


def test_with_one_agent_or_an_unknown_one_there_is_a_focus_too(made: Made) -> None:
    press(new_session_dialog(("one",), "one", ["/srv"], made.create, made.close), SIZE, "/", "enter")
    press(new_session_dialog(("one", "two"), "gone", ["/srv"], made.create, made.close), SIZE, "enter")
    assert made.created == [("one", "/srv/"), ("one", "/srv")]


def test_without_a_list_of_agents_the_name_is_written(made: Made) -> None:
    press(new_session_dialog((), "", ["/"], made.create, made.close), SIZE, "up", "d", "enter", "esc")
    assert (made.created, made.closed) == ([("d", "/")], 1)


def test_a_directory_of_another_session_is_taken_by_space(made: Made) -> None:
    dialog = new_session_dialog(("one",), "one", ["/srv", "/home"], made.create, made.close)
    assert any("< /home" in line for line in drawn(dialog, SIZE))
    press(dialog, SIZE, "down", " ", "/", "x", "enter")
    assert made.created == [("one", "/home/x")]


def test_a_default_that_can_not_be_shown_whole_is_sent_as_it_is() -> None:
    sent: list[Mapping[str, object]] = []
    long, lines = "x" * 1000, "a\nb"
    properties = {name: {"type": "string", "default": default} for name, default in (("long", long), ("lines", lines))}
    fields = read_form({"properties": properties})
    assert fields is not None
    dialog = form_dialog(Question(1, {}, (), "", is_form=True, fields=fields), sent.append, lambda: None)
    press(dialog, SIZE, "enter")
    assert sent == [{"long": long, "lines": lines}]


LIST_SIZE = (10, 3)


def rows(*names: str) -> list[tuple[str, list[Span]]]:
    return [(name, [Span(f"row {name}")]) for name in names]


def test_enter_chooses_the_row_in_focus() -> None:
    chosen: list[Any] = []
    choices = ChoiceList(chosen.append)
    assert press(choices, LIST_SIZE, "enter") == ["enter"]
    choices.show(rows("a", "b"))
    assert drawn(choices, LIST_SIZE) == ["row a", "row b"]
    assert press(choices, LIST_SIZE, "enter", "down", "enter", "x") == ["x"]
    assert chosen == ["a", "b"]


def test_the_value_in_focus_keeps_it_when_the_rows_change() -> None:
    choices = ChoiceList(lambda _: None)
    choices.show(rows("a", "b"))
    press(choices, LIST_SIZE, "down")
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
    assert drawn(choices, LIST_SIZE) == ["x" * 9 + "…"]


def test_each_style_has_an_entry_in_the_palette() -> None:
    assert [entry[0] for entry in PALETTE] == [*(style.value for style in Style), BAR, FOCUS, BOX]


def test_lines_are_text_with_attributes() -> None:
    text = urwid.Text(markup([[Span("a"), Span("b", Style.BAD)], [], [Span("c")]]))
    assert text.get_text() == ("ab\n\nc", [("plain", 1), ("bad", 1), (None, 2), ("plain", 1)])
    assert drawn(text, (9,)) == ["ab", "", "c"]


def test_no_lines_are_not_text() -> None:
    assert markup([]) == ""
    assert markup([[Span("")]]) == ""
