"""Text of strangers on one line: what a terminal would obey, or a reader would not see, is escaped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.printable import MAX_LENGTH, counted, printable, printable_lines


@pytest.mark.parametrize(
    "character",
    [
        *("\x00", "\x07", "\x1b", "\x7f", "\x80", "\x9b", "\x9d", "\xad"),
        *("\u200b", "\u200c", "\u200d", "\u200e", "\u200f", "\u2060", "\ufeff", "\u061c"),
        *("\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"),
        *("\ud800", "\udfff", "\ue000", "\U000e0041"),
        *(
            "\u034f",
            "\u115f",
            "\u1160",
            "\u17b4",
            "\u3164",
            "\uffa0",
            "\u180b",
            "\ufe00",
            "\u2800",
            "\U000e0100",
            "\U000e01ef",
        ),
    ],
    ids=ascii,
)
def test_control_and_invisible_characters_are_escaped(character: str) -> None:
    shown = printable(f"a{character}b")
    assert shown == f"a{ascii(character)[1:-1]}b"
    assert shown.isascii()


def test_white_space_of_all_kinds_is_a_space_and_none_is_left_at_the_ends() -> None:
    assert printable("\n a\r\nb\tc\x85d\u2028e\u2029f\xa0g\u3000h \n") == "a  b c d e f g h"


def test_text_in_all_languages_stays() -> None:
    text = "Zürich 机器 👩 ❤\ufe0f שלום مرحبا e\u0301 C:\\temp"
    assert printable(text) == text


def test_what_is_too_long_is_cut() -> None:
    assert printable("x" * 1000) == "x" * MAX_LENGTH
    assert printable("\x1b" * 1000, size=2) == "\\x1b\\x1b"


@given(st.text(st.characters(), max_size=50))
def test_whatever_comes_the_result_is_printable(text: str) -> None:
    assert printable(text).isprintable()


def test_printable_lines_keeps_line_breaks_and_nothing_else_that_moves_the_cursor() -> None:
    assert printable_lines("a\nb\r\nc\rd\te\x0bf\u2028g\x1b[2J") == "a\nb\nc\\rd    e f g\\x1b[2J"
    assert printable_lines("  Zürich  ") == "  Zürich  "


@given(st.lists(st.text(st.characters(exclude_characters="\r"), max_size=9)))
def test_printable_lines_does_the_same_with_the_parts_of_a_text(parts: list[str]) -> None:
    shown = printable_lines("".join(parts))
    assert shown == "".join(map(printable_lines, parts))
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("told", "text"), [((1, "agent"), "1 agent"), ((0, "agent"), "0 agents"), ((2, "entry", "entries"), "2 entries")]
)
def test_what_is_counted_has_its_name_of_one_or_of_many(told: tuple[int, str], text: str) -> None:
    assert counted(*told) == text
