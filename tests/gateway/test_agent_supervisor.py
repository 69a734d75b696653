"""Backoff between restarts of an agent; `test_hub` has its life."""

import pytest

from acp_gateway.gateway.agent_supervisor import MAX_BACKOFF, WINDOW, RestartBackoff, TooManyRestarts


def test_restart_backoff_is_zero_before_the_first_end() -> None:
    assert RestartBackoff(5).next_start(100.0) == 100.0


def test_each_end_doubles_the_pause_up_to_a_bound() -> None:
    restarts = RestartBackoff(100)
    pauses = []
    for _ in range(8):
        restarts.ended(10.0, "it ended")
        pauses.append(restarts.next_start(10.0) - 10.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF]


def test_a_pause_counts_from_the_end_and_not_from_the_next_request() -> None:
    restarts = RestartBackoff(5)
    restarts.ended(10.0, "it ended")
    assert restarts.next_start(500.0) == 11.0


def test_one_end_too_many_is_refused_with_the_reason_the_setting_and_when_to_try_again() -> None:
    restarts = RestartBackoff(2)
    for moment in (10.0, 20.0, 30.5):
        restarts.ended(moment, f"it ended at {moment}")
    with pytest.raises(
        TooManyRestarts, match=r"it ended at 30\.5; .* 3 times within 10 min \(max_restarts is 2\)"
    ) as caught:
        restarts.next_start(31.5)
    assert caught.value.retry_after == 579


def test_restart_backoff_allows_a_start_after_retry_after() -> None:
    restarts = RestartBackoff(1)
    restarts.ended(10.0, "it ended")
    restarts.ended(20.0, "it ended")
    assert restarts.next_start(10.0 + WINDOW) == 21.0


def test_restart_backoff_forgets_ends_older_than_the_window() -> None:
    restarts = RestartBackoff(1)
    restarts.ended(10.0, "it ended")
    restarts.ended(20.0, "it ended")
    assert restarts.next_start(1000.0) == 1000.0
