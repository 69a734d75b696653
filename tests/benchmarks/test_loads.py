"""Timed loads, background loads, and notes about them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import Endpoint
from benchmarks.measuring import Measured
from benchmarks.relays import Running
from benchmarks.tasks.loads import (
    STORAGE_SUSPENDED,
    TimedLoad,
    background_load,
    count_suspended_histories,
    limited,
    rates,
    suspended_notes,
)


def paced(sent: list[int], per_s: float, **options: Any) -> TimedLoad:
    """Return a load of half a second, through a relay that moves `per_s` messages a second."""

    def send(count: int) -> Mapping[str, Any]:
        sent.append(count)
        return {"seconds": count / per_s}

    return TimedLoad(send, lambda result: {"seconds": result["seconds"]}, seconds=0.5, first=100, **options)


def test_a_timed_load_is_calibrated_to_its_duration() -> None:
    load = paced([], per_s=40_000)
    assert load() == {"seconds": 0.5}
    assert load.count == 20_000


def test_a_timed_load_is_calibrated_once() -> None:
    sent: list[int] = []
    load = paced(sent, per_s=40_000)
    load()
    before = len(sent)
    load()
    assert sent[before:] == [20_000]


def test_a_timed_load_stays_between_first_and_most() -> None:
    slow, fast = paced([], per_s=10), paced([], per_s=1e9, most=5_050, step=50)
    slow()
    fast()
    assert (slow.count, fast.count) == (100, 5_050)


def test_a_timed_load_is_a_multiple_of_its_step() -> None:
    load = paced([], per_s=40_100, step=50)
    load()
    assert load.count == 20_050


@pytest.fixture
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Background loads start without a pause."""
    monkeypatch.setattr("benchmarks.tasks.loads.SETTLING", 0)


def test_a_background_load_is_calibrated_before_the_block(no_settling: None) -> None:
    sent: list[int] = []
    load = paced(sent, per_s=40_000)
    with background_load(load):
        assert load.count == 20_000
    before = len(sent)
    with background_load(load):
        pass
    assert set(sent[before:]) <= {20_000}


def test_an_error_of_a_background_load_is_raised(no_settling: None) -> None:
    def fail() -> None:
        raise OSError("the flood is over")

    with pytest.raises(OSError, match="the flood is over"), background_load(fail):
        pass


def test_rates_include_the_busy_share_of_the_load_generator() -> None:
    metrics = rates({"seconds": 2.0, "messages": 10, "bytes": 2000, "own_processor": 1.9})
    assert metrics == {"per_s": 5, "bytes_per_s": 1000, "load_busy": 0.95}


def test_a_busy_load_generator_is_noted() -> None:
    rounds = [{"ours": {"load_busy": 0.5}, "peer": {"load_busy": 0.97}, "other": {"per_s": 1.0}}]
    (note,) = limited([Measured("stream", ["ours", "peer", "other"], rounds)], {"peer": "C, TCP"})
    assert note == "stream: the load generator was busy for 97 % of the time with C, TCP, which may be faster."


def test_suspended_histories_are_counted_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        f"listening on ws://127.0.0.1:1/acp\nslow: {STORAGE_SUSPENDED}; …\nslow: {STORAGE_SUSPENDED}; …\n"
    )
    assert count_suspended_histories(Running(Endpoint("ws"), 1, tmp_path)) == 2


def test_a_relay_without_a_process_has_no_log(tmp_path: Path) -> None:
    assert count_suspended_histories(Running(Endpoint("exec"), 0, tmp_path)) == 0


def test_only_suspended_histories_are_noted() -> None:
    assert suspended_notes(0) == []
    (note,) = suspended_notes(3)
    assert "3 times" in note
