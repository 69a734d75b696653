"""Amounts that were spent today, and the limits that they reach: in memory, since they are asked for before turns."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from acp_gateway.config.limits import Budget, LimitsSection
from acp_gateway.core.requests import Exceeded
from acp_gateway.gateway.costs.spending import Amounts, amount_text
from acp_gateway.gateway.storage.spending import day_of


class TodaysSpending:
    """The amounts of the present day, by account, and the limits on them.

    Args:
        limits: returns the limits in force.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, limits: Callable[[], LimitsSection], now: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._now = now
        self._day = ""
        self._of_all: Amounts = Counter()
        self._of_one: dict[str, Amounts] = {}
        # The amounts at which a person is asked again, by option and account.
        self._allowed: dict[tuple[str, str], int] = {}

    def add(self, account: str, amounts: Mapping[str, int]) -> None:
        """Count amounts of an account."""
        self._begin_day()
        self._of_all.update(amounts)
        self._of_one.setdefault(account, Counter()).update(amounts)

    def exceeded(self, account: str) -> Exceeded | None:
        """Return the limit that an account has reached, or all together have; None if there is none."""
        for option, budget, spent in self._reached(account):
            return Exceeded(option, budget.text, amount_text(spent, budget.unit))
        return None

    def allow_more(self, account: str, exceeded: Exceeded) -> None:
        """Allow an account as much again of a limit that it was told as reached. Others are still asked."""
        for option, budget, spent in self._reached(account):
            if option == exceeded.option:
                self._allowed[option, account] = spent + budget.amount

    def _reached(self, account: str) -> Iterator[tuple[str, Budget, int]]:
        """Yield the limits that are reached, each by option and budget, with what was spent."""
        self._begin_day()
        limits, own = self._limits(), self._of_one.get(account, Counter[str]())
        for option, amounts in (("cost_per_identity", own), ("cost_per_day", self._of_all)):
            budget: Budget | None = getattr(limits, option)
            if budget is not None and amounts[budget.unit] >= self._allowed.get((option, account), budget.amount):
                yield option, budget, amounts[budget.unit]

    def _begin_day(self) -> None:
        """Forget the day before."""
        day = day_of(self._now())
        if day != self._day:
            self._day = day
            self._of_all.clear()
            self._of_one.clear()
            self._allowed.clear()
