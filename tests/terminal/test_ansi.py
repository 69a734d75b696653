"""Styled lines as text with and without escape sequences."""

from acp_gateway.terminal.ansi import Pen
from acp_gateway.terminal.rendering import Span, Style
from tests.kit.updates import plain_text


def test_a_style_begins_and_ends_around_its_text() -> None:
    pen = Pen(colour=True)
    pen.write(Span("a"), Span("b", Style.BAD), Span("", Style.GOOD))
    assert pen.take() == "a\x1b[31mb\x1b[0m"
    assert pen.take() == ""


def test_every_style_but_plain_has_a_colour() -> None:
    for style in Style:
        pen = Pen(colour=True)
        pen.write(Span("x", style))
        assert (pen.take() == "x") is (style is Style.PLAIN)


def test_without_colour_there_is_no_escape_sequence() -> None:
    assert plain_text([[Span("a"), Span("b", Style.BAD)], []]) == "ab\n\n"


def test_the_pen_knows_where_its_line_ends() -> None:
    pen = Pen(colour=True)
    pen.end_line()
    assert (pen.at_start, pen.is_empty, pen.take()) == (True, True, "")
    pen.write(Span("a"))
    assert (pen.at_start, pen.is_empty) == (False, False)
    pen.end_line()
    pen.end_line()
    assert (pen.at_start, pen.take()) == (True, "a\n")
