"""Token buckets, and what a client is charged for."""

from collections import Counter
from collections.abc import Hashable

import pytest

from acp_gateway.gateway.rate_limits import LONGEST_PAUSE, REFILL_TIME, RateLimiter, Rates, TokenBucket
from acp_gateway.transports.streams import Flooded

RATES = Rates(messages=100, size=1000, share=0.25, burst=4.0, frames=50)


class Clock:
    """Shows what it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Identity:
    """The clients of one identity, with a client of another one beside them."""

    def __init__(self, rates: Rates = RATES) -> None:
        self.clock = Clock()
        self._rates = rates
        self._together = TokenBucket(1.0, rates.burst, 0.0)
        self.clients: Counter[Hashable] = Counter(["bob"])

    def client(self) -> RateLimiter:
        """One more."""
        self.clients["ann"] += 1
        return RateLimiter(self._rates, self._together, self.clients, lambda: self.clients["ann"], self.clock)


# Buckets


def test_a_bucket_gives_a_burst_and_then_so_much_a_second() -> None:
    bucket = TokenBucket(10, 100, 0.0)
    assert bucket.take(100, 0.0) == 0
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert bucket.take(9, 0.0) == pytest.approx(1.0)
    assert bucket.take(0, 1.0) == 0
    assert bucket.take(10, 2.0) == 0
    assert bucket.take(1, 2.0) == pytest.approx(0.1)


def test_a_bucket_fills_up_to_the_burst_and_no_further() -> None:
    bucket = TokenBucket(10, 100, 0.0)
    assert bucket.take(100, 1e9) == 0
    assert bucket.take(10, 1e9) == pytest.approx(1.0)


def test_whoever_waits_as_it_is_told_says_so_much_a_second_on_the_long_run() -> None:
    bucket, now = TokenBucket(5, 7, 0.0), 0.0
    for _ in range(100):
        now += bucket.take(3, now)
    assert now == pytest.approx((300 - 7) / 5)


def test_a_bucket_may_begin_with_less_than_its_burst() -> None:
    bucket = TokenBucket(10, 100, 0.0, left=5)
    assert bucket.left(0.0) == 5
    assert bucket.take(10, 0.0) == pytest.approx(0.5)
    assert bucket.left(1.0) == pytest.approx(5)
    assert bucket.left(1e9) == 100


# What is charged


@pytest.mark.parametrize(
    ("charged", "seconds"),
    [
        ({"messages": 100}, 1.0),
        ({"frames": 40, "messages": 60}, 1.0),
        ({"size": 1000}, 1.0),
        ({"seconds": 0.25}, 1.0),
        ({"messages": 100, "size": 2000, "seconds": 0.25}, 2.0),
        ({"messages": 100, "size": 10, "seconds": 0.75}, 3.0),
    ],
)
def test_the_largest_part_of_what_may_be_used_in_a_second_counts(charged: dict[str, float], seconds: float) -> None:
    client = Identity().client()
    assert client.charge(size=4000) == 0
    assert client.charge(**charged) == pytest.approx(seconds)  # type: ignore[arg-type]


def test_nobody_is_paused_for_longer_than_a_good_link_may_be_silent() -> None:
    client = Identity().client()
    assert client.charge(seconds=60) == LONGEST_PAUSE


def test_a_client_that_keeps_to_its_share_is_read_on_while_another_uses_up_the_time() -> None:
    identity = Identity()
    editor, flood = identity.client(), identity.client()
    assert flood.charge(seconds=100) == LONGEST_PAUSE
    assert editor.charge(messages=10, seconds=0.001) == 0


def test_a_client_that_comes_again_begins_without_a_burst_that_is_used_up() -> None:
    identity = Identity()
    assert identity.client().charge(size=60_000_000) == LONGEST_PAUSE
    again = identity.client()
    # Only until it has kept to its own part, which is one of two, whatever the debt of all.
    assert again.charge(size=100) == pytest.approx(0.2)


def test_bytes_and_time_are_free_while_no_other_account_is_connected() -> None:
    identity = Identity()
    client = identity.client()
    del identity.clients["bob"]
    assert client.charge(messages=1, size=10**9, seconds=600.0) == 0
    # Messages cost the agent's time, too.
    assert client.charge(messages=10_000) == LONGEST_PAUSE


def test_bytes_and_time_are_charged_from_the_moment_at_which_another_account_connects() -> None:
    identity = Identity()
    client = identity.client()
    del identity.clients["bob"]
    client.charge(size=10**9, seconds=600.0)
    identity.clients["bob"] += 1
    # The bucket is full: an upload that delayed no other account leaves no debt.
    assert client.charge(seconds=1.0) == 0
    assert client.charge(seconds=0.25) == pytest.approx(1.0)
    del identity.clients["bob"]
    identity.clock.now += 1.0
    assert client.charge(size=10**9, seconds=600.0) == 0


def test_frames_without_a_message_end_it_where_they_do_not_stop() -> None:
    identity = Identity()
    client = identity.client()
    client.charge(frames=50)
    identity.clock.now = REFILL_TIME / 2
    client.charge(frames=25)
    with pytest.raises(Flooded, match=r"^more than frames_without_message \(50\) pings, fragments or blank lines"):
        client.charge(frames=1)


def test_a_client_that_answers_a_ping_now_and_then_does_so_for_years() -> None:
    identity = Identity()
    client = identity.client()
    for _ in range(10_000):
        identity.clock.now += 20.0
        assert client.charge(frames=1) == 0
