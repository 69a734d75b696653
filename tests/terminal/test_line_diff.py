"""The lines of a diff lead from one text to the other, and what was not compared is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.terminal import line_diff
from acp_gateway.terminal.line_diff import CONTEXT, MOST_COMPARED, MOST_DIVIDED, MOST_WORK, TOO_MANY, LineDiff, Mark
from tests.fuzz.effort import effort

lines = st.lists(st.sampled_from(["", *"abcdef"]), max_size=12)


def changed(old: str, new: str) -> list[str]:
    return [line.mark.value + line.text for line in LineDiff(old, new, 1000).lines]


def test_a_change_stands_between_equal_lines() -> None:
    old = "".join(f"{number}\n" for number in range(1, 21))
    new = old.replace("5\n", "five\n", 1).replace("18\n", "18\n18b\n")
    assert changed(old, new) == [
        *("@3", " 3", " 4", "-5", "+five", " 6", " 7"),
        *("@17", " 17", " 18", "+18b", " 19", " 20"),
    ]


def test_a_new_file_is_all_added_and_a_missing_final_line_break_does_not_matter() -> None:
    assert changed("", "a\nb") == ["+a", "+b"]
    assert changed("a\nb\n", "a\nb") == []


def rough(old: list[str], new: list[str]) -> tuple[int, int, int]:
    """Return the lines removed and added, and how often was not compared."""
    diff = LineDiff("\n".join(old), "\n".join(new), 200_000)
    return diff.removed, diff.added, [line.mark for line in diff.lines].count(Mark.ROUGH)


FUNCTIONS = [line for number in range(2000) for line in ("", f"def f{number}() -> int:", "    return 1")]


def test_a_few_changes_of_a_long_text_are_found_among_its_equal_lines() -> None:
    new = [f"# {line}" if place % 500 == 100 else line for place, line in enumerate(FUNCTIONS)]
    assert rough(FUNCTIONS, new) == (12, 12, 0)
    assert rough(FUNCTIONS, ["first", *new[:3000], *new[3300:], "last"]) == (311, 13, 0)
    assert rough(FUNCTIONS, [line.upper() for line in FUNCTIONS if line]) == (6000, 4000, 0)


ALIKE = ["a"] * (MOST_COMPARED + 1), ["b", "a"] * (MOST_COMPARED + 1)


def test_only_the_part_that_is_too_much_to_compare_is_told_and_shown_as_replaced() -> None:
    count = len(ALIKE[0])
    assert changed("\n".join(["x", *ALIKE[0], "y"]), "\n".join(["z", *ALIKE[1], "y"]))[:2] == [f"!{TOO_MANY}", "-x"]
    around = FUNCTIONS[1:3000:3], FUNCTIONS[3001::3]
    old, new = ([*around[0], *part, *around[1]] for part in ALIKE)
    # The last "a" is the same in both.
    assert rough(old, ["new", *new, "new"]) == (count - 1, 2 * count + 1, 1)


@pytest.mark.parametrize("count", [MOST_DIVIDED, 100_000])
def test_of_texts_that_are_too_long_both_are_shown_whole(count: int) -> None:
    old = [f"line {number}" for number in range(count)]
    diff = LineDiff("\n".join(old), "\n".join(["b", *old, "a"]), 5)
    assert (diff.added, diff.removed, diff.total, len(diff.lines)) == (count + 2, count, 2 * count + 3, 5)
    for before, after in ([], old), (old, []), (old, [*old[:5], *old[7:]]):
        assert rough(before, after)[-1] == 0


def test_all_parts_of_a_diff_together_are_as_much_work_as_one() -> None:
    old, new = ["a", "c", *["a"] * 100], ["d", *["a"] * 100, "e"]
    parts = [[line for number in range(20) for line in (f"part {number}", *part)] for part in (old, new)]
    assert rough(*parts)[-1] == 20 - MOST_WORK // (101 * 100 * 102)


def test_texts_of_many_equal_lines_are_told_and_usual_ones_are_compared() -> None:
    old, new = ["x", *["a"] * 598, "y"], ["z", *["a", "c"] * 299, "w"]
    assert rough(old, new) == (600, 600, 1)
    usual = [line for number in range(150) for line in (f"line {number}", "")]
    assert rough(usual, [*usual[:100], "new", *usual[100:200], "new", *usual[200:]]) == (0, 2, 0)


@pytest.mark.parametrize("compared", [MOST_COMPARED, 1], ids=["compared", "divided"])
@given(lines, lines)
@effort(30)
def test_the_lines_of_a_diff_lead_from_one_text_to_the_other(
    compared: int, before: list[str], after: list[str]
) -> None:
    """Lines that are left out are equal in both, and their place is told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_diff, "MOST_COMPARED", compared)
        diff = LineDiff("\n".join([*before, ""]), "\n".join([*after, ""]), 1000).lines
    made: list[str] = []
    at = 0
    for line in diff:
        if line.mark is Mark.SKIPPED:
            skipped = int(line.text) - 1 - len(made)
            assert skipped > 0
            made += before[at : at + skipped]
            at += skipped
        elif line.mark is not Mark.ROUGH:
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
