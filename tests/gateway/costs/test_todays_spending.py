"""Amounts that were spent today, and the limits on them."""

from collections import Counter
from typing import Any

import pytest

from acp_gateway.config.limits import Budget, LimitsSection
from acp_gateway.gateway.costs.todays_spending import TodaysSpending

DAY = 86400.0
FIVE = Budget("USD", 5_000_000, "5 USD")


class Clock:
    def __init__(self) -> None:
        self.now = 1_767_268_800.0

    def __call__(self) -> float:
        return self.now


def spending(clock: Clock | None = None, **limits: Any) -> TodaysSpending:
    return TodaysSpending(lambda: LimitsSection(**limits), clock or Clock())


def reached(today: TodaysSpending, account: str = "ann") -> str | None:
    found = today.exceeded(account)
    return None if found is None else str(found)


def test_a_limit_counts_its_own_unit_of_the_identity_alone() -> None:
    today = spending(cost_per_identity=FIVE)
    today.add("ann", Counter(USD=4_990_000, EUR=9_000_000, tokens=10**9))
    today.add("bob", Counter(USD=9_000_000))
    assert (reached(today), reached(today, "eve")) == (None, None)
    today.add("ann", Counter(USD=10_000))
    assert reached(today) == "cost_per_identity (5 USD a day) is reached: 5.00 USD today"


def test_a_limit_for_a_day_is_for_all_together_and_may_be_of_tokens() -> None:
    today = spending(cost_per_day=Budget("tokens", 1000, "1k tokens"))
    for account in ("ann", "bob"):
        assert reached(today) is None
        today.add(account, Counter(tokens=600))
    assert reached(today, "eve") == "cost_per_day (1k tokens a day) is reached: 1,200 tokens today"


def allow_more(today: TodaysSpending, account: str) -> None:
    found = today.exceeded(account)
    assert found is not None
    today.allow_more(account, found)


def test_what_is_allowed_more_is_as_much_again_for_that_account() -> None:
    clock = Clock()
    today = spending(clock, cost_per_identity=FIVE)
    for account in ("ann", "bob"):
        today.add(account, Counter(USD=7_000_000))
    allow_more(today, "ann")
    assert reached(today) is None
    assert reached(today, "bob") is not None
    today.add("ann", Counter(USD=4_999_999))
    assert reached(today) is None
    today.add("ann", Counter(USD=1))
    assert reached(today) is not None
    clock.now += DAY
    assert reached(today) is None
    today.add("ann", Counter(USD=5_000_000))
    assert reached(today) is not None


def test_more_is_allowed_of_the_limit_that_was_told_and_by_no_account_for_another() -> None:
    today = spending(cost_per_identity=FIVE, cost_per_day=FIVE)
    today.add("ann", Counter(USD=7_000_000))
    allow_more(today, "ann")
    assert reached(today) == "cost_per_day (5 USD a day) is reached: 7.00 USD today"
    allow_more(today, "ann")
    assert reached(today) is None
    assert reached(today, "bob") == "cost_per_day (5 USD a day) is reached: 7.00 USD today"


@pytest.mark.parametrize("limits", [{}, {"cost_per_day": None}])
def test_without_a_limit_nothing_is_asked(limits: Any) -> None:
    today = spending(**limits)
    today.add("ann", Counter(USD=10**12))
    assert reached(today) is None
