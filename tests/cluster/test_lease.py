"""The time of the last look at the directory."""

import pytest

from acp_gateway.cluster.lease import Lease, read_clocks

TTL = 15.0


@pytest.fixture
def lease() -> Lease:
    lease = Lease(TTL)
    lease.looked((100.0, 5000.0))
    return lease


def test_lease_of_a_gateway_that_has_never_looked_has_lapsed() -> None:
    assert Lease(TTL).lapsed((100.0, 5000.0))


@pytest.mark.parametrize(
    ("now", "lapsed"),
    [
        ((114.9, 5014.9), False),
        ((115.0, 5015.0), True),
        # A virtual machine whose other clocks stood still.
        ((101.0, 5100.0), True),
        # A clock that was set back.
        ((101.0, 4000.0), False),
    ],
)
def test_lease_lapses_ttl_after_the_begin_of_the_look_by_any_clock(
    lease: Lease, now: tuple[float, float], *, lapsed: bool
) -> None:
    assert lease.lapsed(now) is lapsed


def test_lease_goes_on_after_an_attempt_that_has_failed(lease: Lease) -> None:
    lease.failed((110.0, 5010.0), (113.0, 5013.0))
    assert not lease.lapsed((127.9, 5027.9))
    assert lease.lapsed((128.0, 5028.0))


def test_attempt_that_has_failed_because_the_process_was_paused_in_it_does_not_count(lease: Lease) -> None:
    lease.failed((110.0, 5010.0), (200.0, 5100.0))
    assert lease.lapsed((200.0, 5100.0))


def test_the_clocks_are_seconds_that_go_on() -> None:
    first, second = read_clocks(), read_clocks()
    assert len(first) == len(second) == 2
    assert first[0] <= second[0]
