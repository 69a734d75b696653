"""Times in runs are those that a plain list has."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.core.turns.times import Times, decode_times

TIMES = st.lists(st.sampled_from([None, 0, 5, 5, 1_700_000_000_000, 1_700_000_000_001]), max_size=30)


def noted(times: list[int | None], first: int = 0) -> Times:
    """Note one time after another, as they come."""
    runs = Times()
    for number, time in enumerate(times, first):
        runs.begin(number, time)
    return runs


@given(TIMES, st.integers(0, 9), st.data())
def test_any_part_of_the_times_is_as_in_a_list(times: list[int | None], first: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(times)))
    end = data.draw(st.integers(begin, len(times)))
    runs = noted(times, first)
    assert runs.of(first + begin, first + end) == times[begin:end]
    assert runs.part(first + begin, first + end).of(0, end - begin) == times[begin:end]
    assert runs.part(first + begin, first + end) == noted(times[begin:end])
    view = runs.view(first + begin, first + end)
    assert list(view) == view == times[begin:end]
    assert (len(view), [view[at] for at in range(len(view))]) == (end - begin, times[begin:end])
    assert (view[1:], view[::-2]) == (times[begin:end][1:], times[begin:end][::-2])


@given(TIMES, st.data())
def test_cutting_forgets_no_time_behind_the_cut(times: list[int | None], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(times)))
    runs = noted(times)
    runs.cut(cut)
    assert runs.of(cut, len(times)) == times[cut:]
    runs.begin(len(times), 7)
    assert runs.of(cut, len(times) + 1) == [*times[cut:], 7]


@given(TIMES, TIMES.filter(bool), st.integers(0, 9))
def test_times_of_later_messages_are_appended(times: list[int | None], later: list[int | None], first: int) -> None:
    runs = noted(times)
    runs.extend(len(times), noted(later, first), len(times) - first)
    assert runs.of(0, len(times) + len(later)) == times + later
    assert runs == noted(times + later)


@given(TIMES)
def test_times_that_were_encoded_come_back(times: list[int | None]) -> None:
    text = noted(times).encode()
    assert decode_times(text, len(times)) == noted(times)
    assert (text is None) == (set(times) <= {None})


def test_messages_of_one_batch_share_an_entry() -> None:
    runs = Times([(0, 5), (1000, 5), (2000, 6)])
    assert repr(runs) == "Times([(0, 5), (2000, 6)])"
    assert runs.encode() == b"[[0,2000],[5,1]]"


def test_a_copy_goes_its_own_way() -> None:
    runs = Times([(0, 5)])
    copied = runs.copy()
    copied.begin(1, 6)
    assert (runs.of(0, 2), copied.of(0, 2)) == ([5, 5], [5, 6])
    assert runs != copied


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        "[[0],[5]]",
        b"",
        b"\xff",
        b"[[0],[5],[6]]",
        b"[[],[]]",
        b"[[0,1],[5]]",
        b"[[-1],[5]]",
        b"[[3],[5]]",
        b"[[1,1],[5,1]]",
        b"[[0],[-2]]",
        b"[[0],[253402300800000]]",
        b"[[0],[99999999999999999999]]",
        b'[["0"],[5]]',
    ],
)
def test_a_corrupt_text_has_no_times(text: object) -> None:
    assert decode_times(text, 3) == Times()


def test_a_time_may_be_before_the_one_of_an_earlier_message() -> None:
    assert decode_times(msgspec.json.encode(([0, 1], [9, -4])), 2).of(0, 2) == [9, 5]
