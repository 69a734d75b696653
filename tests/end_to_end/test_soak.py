"""Cuts and kills at random, with everything real: nothing comes twice, and nothing is missing without a word."""

import os
from pathlib import Path

import pytest

from tests.core.seen import faults_of
from tests.end_to_end.soak import soak

SEED = int(os.environ.get("TEST_SEED", "1"))
"""Seed of all random choices; a failure prints it. The times of events differ from run to run."""


# Gateways that were killed leave the ends of their pipes to the collector of garbage.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_whatever_is_cut_and_killed_each_viewer_has_all_of_the_history_or_was_told(tmp_path: Path) -> None:
    # Through the door as well: `make soak`, in which a minute shows more.
    report = soak(tmp_path, SEED, 40, ("wss", "tcp", "unix"))
    assert report.disturbed.total() > 0
    assert report.viewers > report.sessions
    assert report.faults == [], str(report)


@pytest.mark.parametrize(
    ("seen", "truth", "faults"),
    [
        ([1, 2, 3], [1, 2, 3], 0),
        ([1, 2, 3], [2, 3], 0),
        ([1, 3], [1, 2, 3], 1),
        ([1, None, 3], [1, 2, 3], 0),
        ([1, 3, None], [1, 2, 3], 1),
        ([None, 3], [1, 2, 3], 0),
        ([1, 2, None], [1, 2, 3], 0),
        ([1, 1, 2], [1, 2], 1),
        ([1, None, 1], [1], 1),
        ([2, 1], [1, 2], 1),
    ],
)
def test_a_soak_finds_what_is_missing_without_a_word_and_what_comes_twice(
    seen: list[int | None], truth: list[int], faults: int
) -> None:
    assert len(faults_of(seen, truth)) == faults
