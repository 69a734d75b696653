"""Styled lines as urwid's markup."""

import urwid

from acp_gateway.terminal.rendering import Span, Style
from acp_gateway.tui.markup import BAR, BOX, FOCUS, PALETTE, markup
from tests.tui.screens import drawn


def test_each_style_has_an_entry_in_the_palette() -> None:
    assert [entry[0] for entry in PALETTE] == [*(style.value for style in Style), BAR, FOCUS, BOX]


def test_lines_are_text_with_attributes() -> None:
    text = urwid.Text(markup([[Span("a"), Span("b", Style.BAD)], [], [Span("c")]]))
    assert text.get_text() == ("ab\n\nc", [("plain", 1), ("bad", 1), (None, 2), ("plain", 1)])
    assert drawn(text, (9,)) == ["ab", "", "c"]


def test_no_lines_are_not_text() -> None:
    assert markup([]) == ""
    assert markup([[Span("")]]) == ""
