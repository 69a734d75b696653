"""What tasks have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import Where
from benchmarks.measuring import Measured
from benchmarks.relays import Running
from benchmarks.tasks.loads import GIVEN_UP, Paced, histories_given_up, limited, meanwhile, notes_on, rates


def paced(sent: list[int], per_s: float, **options: Any) -> Paced:
    """A load of half a second, through something that moves so many in a second."""

    def send(count: int) -> Mapping[str, Any]:
        sent.append(count)
        return {"seconds": count / per_s}

    return Paced(send, lambda told: {"seconds": told["seconds"]}, seconds=0.5, first=100, **options)


def test_a_load_is_as_large_as_takes_its_time() -> None:
    load = paced([], per_s=40_000)
    assert load() == {"seconds": 0.5}
    assert load.count == 20_000


def test_how_large_it_is_is_found_out_once() -> None:
    sent: list[int] = []
    load = paced(sent, per_s=40_000)
    load()
    before = len(sent)
    load()
    assert sent[before:] == [20_000]


def test_a_load_is_never_less_than_the_first_and_never_more_than_the_most() -> None:
    slow, fast = paced([], per_s=10), paced([], per_s=1e9, most=5_050, step=50)
    slow()
    fast()
    assert (slow.count, fast.count) == (100, 5_050)


def test_a_load_is_a_multiple_of_its_step() -> None:
    load = paced([], per_s=40_100, step=50)
    load()
    assert load.count == 20_050


@pytest.fixture
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a load to be under way."""
    monkeypatch.setattr("benchmarks.tasks.loads.SETTLING", 0)


def test_how_large_a_load_is_is_found_out_before_it_goes_on_meanwhile(no_settling: None) -> None:
    sent: list[int] = []
    load = paced(sent, per_s=40_000)
    with meanwhile(load):
        assert load.count == 20_000
    before = len(sent)
    with meanwhile(load):
        pass
    assert set(sent[before:]) <= {20_000}


def test_what_goes_wrong_meanwhile_is_not_lost(no_settling: None) -> None:
    def fail() -> None:
        raise OSError("the flood is over")

    with pytest.raises(OSError, match="the flood is over"), meanwhile(fail):
        pass


def test_a_rate_is_told_with_how_busy_the_load_generator_was() -> None:
    told = rates({"seconds": 2.0, "messages": 10, "bytes": 2000, "own_processor": 1.9})
    assert told == {"per_s": 5, "bytes_per_s": 1000, "load_busy": 0.95}


def test_a_load_generator_that_was_always_busy_is_told_of() -> None:
    rounds = [{"ours": {"load_busy": 0.5}, "peer": {"load_busy": 0.97}, "other": {"per_s": 1.0}}]
    (note,) = limited([Measured("stream", ["ours", "peer", "other"], rounds)], {"peer": "C, TCP"})
    assert note == "stream: the load generator was busy for 97 % of the time with C, TCP, which may do more."


def test_histories_that_were_given_up_are_found_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"listening on ws://127.0.0.1:1/acp\nslow: {GIVEN_UP}; …\nslow: {GIVEN_UP}; …\n")
    assert histories_given_up(Running(Where("ws"), 1, tmp_path)) == 2


def test_what_is_no_process_has_no_log(tmp_path: Path) -> None:
    assert histories_given_up(Running(Where("exec"), 0, tmp_path)) == 0


def test_only_histories_that_were_given_up_are_noted() -> None:
    assert notes_on(0) == []
    (note,) = notes_on(3)
    assert "3 times" in note
