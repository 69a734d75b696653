"""Token buckets, the charges of a client, and failure counters."""

from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.rate_limits import (
    MAX_PAUSE,
    REFILL_TIME,
    EventAggregator,
    FailureCounter,
    RateLimiter,
    Rates,
    TokenBucket,
    network_of,
)
from acp_gateway.transports.streams import Flooded
from tests.kit.clocks import Clock

RATES = Rates(messages=100, size=1000, share=0.25, burst=4.0, frames=50)


class Identity:
    """The clients of one identity, with a client of another one beside them."""

    def __init__(self, rates: Rates = RATES) -> None:
        self.clock = Clock(0.0)
        self._rates = rates
        self._together = TokenBucket(1.0, rates.burst, 0.0)
        self.clients: Counter[Hashable] = Counter(["bob"])

    def client(self) -> RateLimiter:
        """Connect another client."""
        self.clients["ann"] += 1
        return RateLimiter(
            self._rates, self._together, lambda: len(self.clients) > 1, lambda: self.clients["ann"], self.clock
        )


# Buckets


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
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


def test_a_client_that_pauses_as_told_keeps_to_the_rate_in_the_long_run() -> None:
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


# Charges


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
def test_the_largest_of_messages_bytes_and_time_is_charged(charged: dict[str, float], seconds: float) -> None:
    client = Identity().client()
    assert client.charge(size=4000) == 0
    assert client.charge(**charged) == pytest.approx(seconds)  # type: ignore[arg-type]


def test_one_pause_is_shorter_than_the_silence_that_a_link_may_have() -> None:
    assert Identity().client().charge(seconds=60) == MAX_PAUSE


@pytest.fixture
def identity() -> Identity:
    return Identity()


def test_a_client_that_keeps_to_its_share_is_read_on_while_another_uses_up_the_time(identity: Identity) -> None:
    editor, flood = identity.client(), identity.client()
    assert flood.charge(seconds=100) == MAX_PAUSE
    assert editor.charge(messages=10, seconds=0.001) == 0


def test_reconnecting_gives_no_new_burst(identity: Identity) -> None:
    assert identity.client().charge(size=60_000_000) == MAX_PAUSE
    again = identity.client()
    # Only until it has kept to its own part, which is one of two, whatever the debt of all.
    assert again.charge(size=100) == pytest.approx(0.2)


def test_bytes_and_time_are_free_while_no_other_account_is_connected(identity: Identity) -> None:
    client = identity.client()
    del identity.clients["bob"]
    assert client.charge(messages=1, size=10**9, seconds=600.0) == 0
    # Messages cost the agent's time, too.
    assert client.charge(messages=10_000) == MAX_PAUSE


def test_bytes_and_time_are_charged_from_the_moment_at_which_another_account_connects(identity: Identity) -> None:
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


def test_frames_without_message_beyond_the_burst_raise_flooded(identity: Identity) -> None:
    client = identity.client()
    client.charge(frames=50)
    identity.clock.now = REFILL_TIME / 2
    client.charge(frames=25)
    with pytest.raises(Flooded, match=r"^more than frames_without_message \(50\) pings, fragments or blank lines"):
        client.charge(frames=1)


def test_frames_without_message_at_the_rate_of_pings_are_free(identity: Identity) -> None:
    client = identity.client()
    for _ in range(10_000):
        identity.clock.now += 20.0
        assert client.charge(frames=1) == 0


# Failures


def test_a_failure_counter_reports_each_failure_beyond_its_limit() -> None:
    failures = FailureCounter(3, 60.0)
    assert [failures.add("a", float(now)) for now in range(5)] == [False, False, False, True, True]


def test_a_failure_counter_counts_each_key_by_itself() -> None:
    failures = FailureCounter(1, 60.0)
    assert [failures.add(key, 0.0) for key in ("a", "b", "a", "b")] == [False, False, True, True]


def test_a_failure_counter_starts_again_a_window_after_the_first_failure() -> None:
    failures = FailureCounter(1, 60.0)
    assert [failures.add("a", now) for now in (0.0, 59.9, 60.0, 60.1)] == [False, True, False, True]


def test_a_failure_counter_forgets_the_key_with_the_oldest_last_failure() -> None:
    failures = FailureCounter(1, 60.0, max_keys=2)
    for key in ("a", "b", "a", "c"):
        failures.add(key, 0.0)
    assert failures.add("a", 1.0)
    assert not failures.add("b", 1.0)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0, 5)), max_size=200))
def test_a_failure_counter_holds_at_most_max_keys(attempts: list[tuple[str, float]]) -> None:
    failures, now = FailureCounter(2, 10.0, max_keys=3), 0.0
    for key, pause in attempts:
        now += pause
        failures.add(key, now)
        assert len(failures._counts) <= 3


def test_an_event_aggregator_returns_counts_once_in_the_order_of_first_events() -> None:
    aggregator = EventAggregator("rest")
    for topic in ("b", "a", "b"):
        aggregator.add(topic)
    assert aggregator.take() == [("b", 2), ("a", 1)]
    assert aggregator.take() == []


def test_an_event_aggregator_counts_further_topics_under_rest() -> None:
    aggregator = EventAggregator("rest", most=2)
    for topic in ("a", "b", "c", "d", "a"):
        aggregator.add(topic)
    assert aggregator.take() == [("a", 2), ("b", 1), ("rest", 2)]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_network_of_returns_an_ipv4_address_or_the_64_of_an_ipv6_address(address: str, network: str) -> None:
    assert network_of(address) == network
