"""Limits on the loss of a killed gateway, by age and by bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.storage.write_schedule import GATHERING, MAX_GATHERING, WriteDelay


@pytest.fixture
def delay() -> WriteDelay:
    return WriteDelay(max_age=0.5, max_bytes=1000)


@pytest.mark.parametrize(("took", "seconds"), [(0.0, GATHERING), (0.1, 0.1), (7.0, MAX_GATHERING)])
def test_the_write_delay_is_the_time_of_the_batch_before_within_bounds(
    delay: WriteDelay, took: float, seconds: float
) -> None:
    assert delay.seconds(10.0, took, 1) == seconds
    delay.queued(10.0)
    assert delay.seconds(10.0, took, 1) == seconds


def test_the_oldest_that_is_queued_waits_no_longer_than_write_delay(delay: WriteDelay) -> None:
    delay.queued(10.0)
    delay.queued(10.4)
    assert delay.seconds(10.4, 7.0, 1) == pytest.approx(0.1)
    assert delay.seconds(12.0, 7.0, 1) == 0.0
    delay.taken()
    delay.queued(12.0)
    assert delay.seconds(12.0, 7.0, 1) == MAX_GATHERING


def test_write_behind_limit_bytes_are_written_at_once(delay: WriteDelay) -> None:
    delay.queued(10.0)
    assert (delay.is_full(999), delay.is_full(1000)) == (False, True)
    assert delay.seconds(10.0, 0.0, 1000) == 0.0


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 1), st.integers(0, 100)), max_size=30))
def test_whatever_comes_nothing_is_older_than_write_delay_or_more_than_the_limit_when_writing_begins(
    events: list[tuple[float, float, int]],
) -> None:
    delay, now, oldest, size = WriteDelay(0.3, 250), 0.0, None, 0
    for pause, took, more in events:
        now += pause
        if oldest is not None and now >= oldest + delay.seconds(oldest, took, 0):
            delay.taken()
            oldest, size = None, 0
        delay.queued(now)
        oldest = now if oldest is None else oldest
        size += more
        wait = delay.seconds(now, took, size)
        assert now + wait <= max(now, oldest + 0.3) + 1e-9
        assert wait == 0.0 or size < 250
