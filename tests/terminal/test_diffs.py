"""Diffs of lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal.diffs import CONTEXT, MOST_COMPARED, LineDiff, Mark
from tests.fuzz.effort import effort

lines = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12)


def shown(old: str, new: str) -> list[str]:
    return [line.mark.value + line.text for line in LineDiff(old, new, 1000).lines]


def test_a_change_stands_between_equal_lines() -> None:
    old = "".join(f"{number}\n" for number in range(1, 21))
    new = old.replace("5\n", "five\n", 1).replace("18\n", "18\n18b\n")
    assert shown(old, new) == [
        *("@3", " 3", " 4", "-5", "+five", " 6", " 7"),
        *("@17", " 17", " 18", "+18b", " 19", " 20"),
    ]


def test_a_new_file_is_all_added_and_a_missing_final_line_break_does_not_matter() -> None:
    assert shown("", "a\nb") == ["+a", "+b"]
    assert shown("a\nb\n", "a\nb") == []


@pytest.mark.parametrize("count", [MOST_COMPARED + 1, 100_000])
def test_long_texts_are_shown_as_replaced(count: int) -> None:
    old, new = "a\n" * count, "b\na\n" * count
    diff = LineDiff("x\n" + old + "y", new, 5)
    assert (diff.added, diff.removed, diff.total, len(diff.lines)) == (2 * count, count + 2, 3 * count + 2, 5)


def test_texts_of_many_equal_lines_are_shown_as_replaced_and_usual_ones_are_not() -> None:
    old, new = ["x", *["a"] * 598, "y"], ["z", *["a", "c"] * 299, "w"]
    diff = LineDiff("\n".join(old), "\n".join(new), 5000)
    assert (diff.removed, diff.added) == (600, 600)
    usual = [line for number in range(150) for line in (f"line {number}", "")]
    diff = LineDiff("\n".join(usual), "\n".join([*usual[:100], "new", *usual[100:200], "new", *usual[200:]]), 5000)
    assert (diff.removed, diff.added) == (0, 2)


@given(lines, lines)
@effort(30)
def test_the_lines_of_a_diff_lead_from_one_text_to_the_other(before: list[str], after: list[str]) -> None:
    """Lines that are left out are equal in both, and their place is told."""
    made: list[str] = []
    at = 0
    for line in LineDiff("\n".join([*before, ""]), "\n".join([*after, ""]), 1000).lines:
        if line.mark is Mark.SKIPPED:
            skipped = int(line.text) - 1 - len(made)
            assert skipped > 0
            made += before[at : at + skipped]
            at += skipped
        else:
            if line.mark is not Mark.ADDED:
                assert before[at] == line.text
                at += 1
            if line.mark is not Mark.REMOVED:
                made.append(line.text)
    assert made + before[at:] == after


@given(lines, lines)
def test_no_more_equal_lines_than_the_context_stand_at_the_ends(before: list[str], after: list[str]) -> None:
    marks = [
        line.mark for line in LineDiff("\n".join(before), "\n".join(after), 1000).lines if line.mark is not Mark.SKIPPED
    ]
    assert Mark.SAME not in marks[CONTEXT : CONTEXT + 1] or set(marks[:CONTEXT]) != {Mark.SAME}
    assert not marks or set(marks) != {Mark.SAME}


@given(lines, lines, st.integers(0, 20))
@effort(30)
def test_a_diff_of_fewer_lines_is_the_beginning_of_the_whole_one(
    before: list[str], after: list[str], most: int
) -> None:
    whole = LineDiff("\n".join(before), "\n".join(after), 1000)
    part = LineDiff("\n".join(before), "\n".join(after), most)
    assert part.lines == whole.lines[:most]
    assert (part.total, part.added, part.removed) == (len(whole.lines), whole.added, whole.removed)
    marks = [line.mark for line in whole.lines]
    assert (marks.count(Mark.ADDED), marks.count(Mark.REMOVED)) == (whole.added, whole.removed)
