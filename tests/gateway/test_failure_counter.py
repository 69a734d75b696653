"""Counts of refusals: what is over the count, for how long, and how little of it is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.failure_counter import EventAggregator, FailureCounter, network_of


def test_so_many_refusals_are_nothing_special_and_one_more_is_one_too_many() -> None:
    attempts = FailureCounter(3, 60.0)
    assert [attempts.refused("a", float(now)) for now in range(5)] == [False, False, False, True, True]


def test_each_has_a_count_of_its_own() -> None:
    attempts = FailureCounter(1, 60.0)
    assert [attempts.refused(who, 0.0) for who in ("a", "b", "a", "b")] == [False, False, True, True]


def test_a_count_is_over_a_window_after_its_first_refusal() -> None:
    attempts = FailureCounter(1, 60.0)
    assert [attempts.refused("a", now) for now in (0.0, 59.9, 60.0, 60.1)] == [False, True, False, True]


def test_who_was_refused_longest_ago_is_forgotten_first() -> None:
    attempts = FailureCounter(1, 60.0, remembered=2)
    for who in ("a", "b", "a", "c"):
        attempts.refused(who, 0.0)
    assert attempts.refused("a", 1.0)
    assert not attempts.refused("b", 1.0)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0, 5)), max_size=200))
def test_no_more_are_counted_at_a_time_than_are_to_be_remembered(refusals: list[tuple[str, float]]) -> None:
    attempts, now = FailureCounter(2, 10.0, remembered=3), 0.0
    for who, pause in refusals:
        now += pause
        attempts.refused(who, now)
        assert len(attempts._counts) <= 3


def test_what_is_gathered_is_told_once_in_the_order_in_which_it_began() -> None:
    gathered = EventAggregator("rest")
    for topic in ("b", "a", "b"):
        gathered.add(topic)
    assert gathered.take() == [("b", 2), ("a", 1)]
    assert gathered.take() == []


def test_what_is_one_thing_too_many_is_told_under_one_name() -> None:
    gathered = EventAggregator("rest", most=2)
    for topic in ("a", "b", "c", "d", "a"):
        gathered.add(topic)
    assert gathered.take() == [("a", 2), ("b", 1), ("rest", 2)]


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
def test_an_address_is_counted_alone_or_with_all_that_one_machine_has(address: str, network: str) -> None:
    assert network_of(address) == network
