"""The script of the task `page`, and its report."""

from benchmarks.measuring import Measured
from benchmarks.tasks.page import OPENING, STREAMING, plays, table


def test_as_many_updates_are_played_as_are_reported() -> None:
    (fill, _), (rate, stream, _) = plays(100_000, 10)["plays"].values()
    assert len(fill["group"]) * fill["times"] == 100_000
    assert len(stream["group"]) * stream["times"] == rate["per_second"] * 10


def test_both_targets_are_compared_with_the_medians() -> None:
    rounds = [
        {
            OPENING: {"seconds": seconds, "heap": 3e6, "nodes": 200.0},
            STREAMING: {"longest": longest, "long": 1.0, "sum": 500.0},
        }
        for seconds, longest in ((0.3, 50.0), (0.4, 120.0), (2.5, 130.0))
    ]
    section = table(Measured("page", [OPENING, STREAMING], rounds), 100_000, 10)
    assert [(target.measured, target.met) for target in section.targets] == [(0.4, True), (120.0, False)]
    assert section.rows[-1][1] == "5.0 %"


def test_what_failed_is_a_missing_figure() -> None:
    section = table(Measured("page", [OPENING, STREAMING], [{}], {OPENING: "in round 1: gone"}), 100_000, 10)
    assert [target.met for target in section.targets] == [None, None]
    assert "opening failed in round 1: gone" in section.notes
