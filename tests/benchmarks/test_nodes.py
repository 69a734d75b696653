"""The report of the task `nodes` about lists."""

from benchmarks.measuring import Measured
from benchmarks.report import NOTHING
from benchmarks.tasks.nodes import lists_table


def test_the_time_for_each_session_is_compared_between_the_sizes() -> None:
    times = {"nodes: 1": (0.1, 0.001), "nodes: 4": (0.4, 0.0011), "nodes: 8": (1.6, 0.002)}
    rounds = [{name: {"all": whole, "each": each} for name, (whole, each) in times.items()}]
    section = lists_table(Measured("nodes", list(times), rounds), {"nodes": [1, 4, 8]})
    assert section.rows == [("nodes", "1 · 4 · 8", "100 ms · 400 ms · 1,600 ms", "1.29")]
    assert [(target.measured, target.met) for target in section.targets] == [(2.0, False)]


def test_sizes_that_failed_are_missing_figures() -> None:
    section = lists_table(Measured("nodes", [], [{}], {"nodes: 1": "in round 1: gone"}), {"nodes": [1, 4]})
    assert section.rows == [("nodes", "1 · 4", f"{NOTHING} · {NOTHING}", NOTHING)]
    assert [target.met for target in section.targets] == [None]
    assert "nodes: 1 failed in round 1: gone" in section.notes
