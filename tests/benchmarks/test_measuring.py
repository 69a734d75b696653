"""Interleaved rounds, and statistics of their measurements."""

import math
from collections.abc import Callable, Iterator, Mapping

import pytest

from benchmarks.measuring import Measured, Section, Target, growth, interleave, order, paired_ratio, percentile


def returning(values: Iterator[float], called: list[str], name: str) -> Callable[[], Mapping[str, float]]:
    """Return a subject that measures `values` one after the other, and records its calls."""

    def measure() -> Mapping[str, float]:
        called.append(name)
        return {"rate": next(values)}

    return measure


def failing(from_call: int, error: Exception) -> Callable[[], Mapping[str, float]]:
    """Return a subject that raises from its nth call on."""
    calls = 0

    def measure() -> Mapping[str, float]:
        nonlocal calls
        calls += 1
        if calls >= from_call:
            raise error
        return {"rate": 1.0}

    return measure


def test_the_order_of_subjects_alternates_between_rounds() -> None:
    assert [order("abc", number) for number in range(3)] == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]


def test_subjects_are_measured_once_per_round_and_once_as_warm_up() -> None:
    called: list[str] = []
    subjects = {name: returning(iter([99.0, 1.0, 2.0]), called, name) for name in "ab"}
    measured = interleave("task", subjects, rounds=2)
    assert "".join(called) == "abbaab"
    assert measured.values("a", "rate") == [1.0, 2.0]


def test_without_warm_up_no_round_is_discarded() -> None:
    called: list[str] = []
    measured = interleave("task", {"a": returning(iter([99.0]), called, "a")}, rounds=1, warm_up=False)
    assert measured.rounds == [{"a": {"rate": 99.0}}]
    assert called == ["a"]


def test_progress_is_logged_for_each_round() -> None:
    logged: list[str] = []
    interleave("stream", {"a": dict}, rounds=2, log=logged.append)
    assert logged == ["stream: warming up", "stream: round 1 of 2", "stream: round 2 of 2"]


def test_a_failed_subject_is_noted_and_left_out_while_the_others_continue() -> None:
    logged: list[str] = []
    subjects = {"bad": failing(3, OSError("it has\n ended")), "good": failing(99, OSError())}
    measured = interleave("task", subjects, rounds=3, log=logged.append)
    assert measured.failed == {"bad": "in round 2: OSError: it has ended"}
    assert measured.notes() == ["bad failed in round 2: OSError: it has ended"]
    assert "task: bad failed in round 2: OSError: it has ended" in logged
    assert measured.values("bad", "rate") == [1.0, None, None]
    assert measured.values("good", "rate") == [1.0, 1.0, 1.0]


def test_a_subject_that_fails_in_the_warm_up_is_not_measured_again() -> None:
    measured = interleave("task", {"bad": failing(1, ValueError())}, rounds=2)
    assert measured.failed == {"bad": "while warming up: ValueError"}
    assert measured.values("bad", "rate") == [None, None]
    assert measured.median("bad", "rate") is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_is_a_failure(value: float) -> None:
    measured = interleave("task", {"a": lambda: {"rate": value}}, rounds=1, warm_up=False)
    assert measured.failed == {"a": f"in round 1: ValueError: rate is {value}"}


def measured_in(*rounds: dict[str, float]) -> Measured:
    """Return measurements, given by subject for each round."""
    metrics = [{subject: {"rate": value} for subject, value in each.items()} for each in rounds]
    return Measured("task", ["ours", "peer"], metrics)


def test_a_ratio_is_the_median_of_the_ratios_within_rounds() -> None:
    measured = measured_in({"ours": 10, "peer": 1}, {"ours": 200, "peer": 100}, {"ours": 90, "peer": 30})
    assert measured.ratio("ours", "peer", "rate") == 3
    assert measured.median("ours", "rate") == 90


def test_a_ratio_ignores_rounds_in_which_one_subject_failed() -> None:
    measured = measured_in({"ours": 10, "peer": 5}, {"ours": 70})
    assert measured.ratio("ours", "peer", "rate") == 2
    assert measured.ratio("ours", "unknown", "rate") is None
    assert measured.median("ours", "latency") is None


def test_a_paired_ratio_ignores_zero_denominators() -> None:
    assert paired_ratio([1.0, 6.0], [0.0, 3.0]) == 2
    assert paired_ratio([1.0], [0.0]) is None


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7.0], 99) == 7


def test_a_percentile_without_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 50)


@pytest.mark.parametrize("exponent", [0, 1, 2])
def test_growth_returns_the_exponent(exponent: int) -> None:
    sizes = [10, 100, 1000]
    assert growth(sizes, [3.0 * size**exponent for size in sizes]) == pytest.approx(exponent)


def test_growth_needs_two_sizes() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        growth([5, 5], [1, 2])


def test_a_target_is_met_at_its_figure() -> None:
    assert Target("speed", 10, "≥", 10).met is True
    assert Target("speed", 10, "≥", 9.99).met is False
    assert Target("cost", 10, "≤", 10).met is True
    assert Target("cost", 10, "≤", 10.01).met is False


def test_a_target_that_was_not_measured_is_neither_met_nor_missed() -> None:
    assert Target("speed", 10, "≥", None).met is None


def test_a_row_with_too_few_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="Streaming: a row has 1 cells instead of 2"):
        Section("Streaming", ("subject", "rate"), [("ours",)])
