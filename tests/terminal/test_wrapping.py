"""Lines that are wrapped at words while they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.ansi import LEAST_COLUMNS, Wrapping, cells, rows_of
from acp_gateway.terminal.rendering import Span, Style
from tests.fuzz.effort import effort

WIDTH = LEAST_COLUMNS


def rows(*pieces: str, margin: str = "", columns: int = WIDTH + 1) -> list[str]:
    """Return the rows of a terminal that is written in pieces."""
    wrapping = Wrapping(lambda: columns)
    written = wrapping.add(margin)
    if margin:
        wrapping.indent()
    written += "".join(wrapping.add(piece) for piece in pieces)
    screen = [""]
    for character in written:
        if character == "\n":
            screen.append("")
        elif character == "\b":
            screen[-1] = screen[-1][:-1]
        else:
            screen[-1] += character
    return [row.rstrip() for row in screen]


TEXT = "The quick brown fox jumps over it"


def test_a_line_is_wrapped_at_words() -> None:
    assert rows(TEXT) == ["The quick brown fox", "jumps over it"]
    assert rows("x" * WIDTH) == ["x" * WIDTH]
    assert rows("x" * WIDTH, " y") == ["x" * WIDTH, "y"]


def test_a_word_whose_end_comes_later_is_taken_to_the_next_row() -> None:
    assert rows("The quick brown fo", "xes jump") == ["The quick brown", "foxes jump"]
    assert rows("The quick brown ", "foxes") == ["The quick brown", "foxes"]
    assert rows("The quick brown", " foxes") == ["The quick brown", "foxes"]


def test_a_word_longer_than_a_row_is_broken() -> None:
    assert rows("a " + "x" * 45) == ["a", "x" * 20, "x" * 20, "xxxxx"]
    assert rows("x" * 15, "x" * 15) == ["x" * 20, "x" * 10]


def test_rows_begin_behind_the_margin_of_their_line() -> None:
    assert rows(TEXT, margin="> ") == ["> The quick brown", "  fox jumps over it"]
    assert rows("x" * 30, margin="> ") == ["> " + "x" * 18, "  " + "x" * 12]


def test_wide_characters_take_two_columns_and_may_end_a_row() -> None:
    assert cells("a漢e\u0301") == 4
    assert rows("漢字" * 8) == ["漢字" * 5, "漢字" * 3]
    assert rows("a" * 19, "漢字") == ["a" * 19, "漢字"]


@pytest.mark.parametrize("columns", [0, 1, LEAST_COLUMNS])
def test_in_a_terminal_without_room_nothing_is_wrapped(columns: int) -> None:
    assert rows(TEXT, columns=columns) == [TEXT]


@effort(200)
@given(st.lists(st.text("ab cd漢", max_size=30), max_size=8), st.sampled_from(["", "> ", "| > "]))
def test_no_row_is_too_long_and_no_character_is_lost(pieces: list[str], margin: str) -> None:
    shown = rows(*pieces, margin=margin)
    assert all(cells(row) <= WIDTH for row in shown)
    text = "".join(pieces)
    assert "".join(shown).replace(" ", "").lstrip(">|") == text.replace(" ", "")
    if text.isascii() and all(len(word) <= WIDTH - len(margin) for word in text.split(" ")):
        assert " ".join(row.lstrip(">| ") for row in shown).split() == text.split()


@given(st.lists(st.lists(st.text("ab \u6f22\u0301", max_size=30), max_size=3), max_size=3), st.integers(1, 20))
def test_rows_have_the_whole_text_and_fit(lines: list[list[str]], width: int) -> None:
    rows = rows_of([[Span(text, Style.DIM) for text in line] for line in lines], width)
    assert "".join(text for row in rows for text, _ in row) == "".join(text for line in lines for text in line)
    for row in rows:
        text = "".join(span.text for span in row)
        assert cells(text) <= width or len(text) == 1


def test_each_line_begins_a_row() -> None:
    assert rows_of([[Span("abcd", Style.DIM), Span("e")], [], [Span("f")]], 3) == [
        [Span("abc", Style.DIM)],
        [Span("d", Style.DIM), Span("e")],
        [],
        [Span("f")],
    ]
