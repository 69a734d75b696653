"""Marks of a session: which ones are kept, and what lies between them."""

import pytest

from acp_gateway.made.changes import MAX_MARKS, Comparison, Marks, State, described

NAME = "a" * 40


def state(root: str = "/srv", worktrees: dict[str, str] | None = None) -> State:
    return State(root, NAME, None, worktrees or {})


def marked(count: int) -> Marks:
    marks = Marks()
    for at in range(count):
        marks = marks.with_mark(state(), at, [NAME])
    return marks


def test_a_turn_is_between_its_mark_and_the_next_one_and_the_last_one_until_now() -> None:
    marks = marked(3)
    first, second, third = marks.marks
    assert marks.span(None) == (first, None)
    assert marks.span(1) == (first, second)
    assert marks.span(3) == (third, None)
    assert marks.span(4) is None
    assert Marks().span(None) is None


def test_of_many_marks_the_first_and_the_latest_are_kept_with_their_numbers() -> None:
    numbers = [mark.number for mark in marked(MAX_MARKS + 5).marks]
    assert numbers == [1, *range(7, MAX_MARKS + 6)]


def test_marks_of_another_working_tree_replace_those_before() -> None:
    marks = marked(2).with_mark(state("/other"), 9, [NAME])
    assert [(mark.number, mark.state.root) for mark in marks.marks] == [(3, "/other")]


def test_marks_that_the_store_has_no_room_for_go() -> None:
    first, other = state(), State("/srv", "b" * 40, None)
    marks = Marks().with_mark(first, 1, []).with_mark(other, 2, [NAME]).with_mark(first, 3, [NAME])
    assert [mark.number for mark in marks.marks] == [1, 3]


@pytest.mark.parametrize("count", [0, 2])
def test_why_a_turn_has_no_mark_is_kept_until_one_has(count: int) -> None:
    marks = marked(count).without("too many files")
    assert (len(marks.marks), marks.why) == (count, "too many files")
    assert marks.with_mark(state(), 9, [NAME]).why is None


def test_worktrees_that_were_not_there_at_the_mark_are_new() -> None:
    marks = Marks().with_mark(state(worktrees={"/old": "main"}), 5, [])
    told = described(marks, None, Comparison("/srv", [], 0, [], {"/old": "main", "/new": "try"}))
    assert [(it["path"], it["isNew"]) for it in told["worktrees"]] == [("/old", False), ("/new", True)]
    assert (told["marks"], told["mark"], told["present"]) == ([{"number": 1, "at": 5}], None, True)


def test_a_mark_that_was_made_late_says_so() -> None:
    def why(marks: Marks) -> str | None:
        found: str | None = described(marks, None, Comparison("/srv", [], 0, []))["why"]
        return found

    assert why(Marks().with_mark(state(), 1, [], 2)) is None
    late = Marks().with_mark(state(), 1, [], 3)
    assert "3 seconds after its beginning" in (why(late) or "")
    assert why(late.without("Too many.")) == "The last turn has no mark: Too many."
