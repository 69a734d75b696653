"""Places for work in threads: so many of each identity, whose slow work keeps no other waiting, and so many of all."""

from contextlib import ExitStack
from typing import cast
from weakref import WeakValueDictionary

import trio


class Places:
    """The places for one kind of work.

    Args:
        each: those of an identity.
        total: those of all.
    """

    def __init__(self, each: int, total: int) -> None:
        self._each = each
        self._all = trio.CapacityLimiter(total)
        # Of those who have a place, or wait for one.
        self._used: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()

    def limiter(self, identity: str, *first: trio.CapacityLimiter) -> trio.CapacityLimiter:
        """Return a limiter for one thread: it takes a place of each of `first`, then one of the identity, and one of
        all."""
        own = self._used.setdefault(identity, trio.CapacityLimiter(self._each))
        return cast("trio.CapacityLimiter", _Together(*first, own, self._all))


class _Together:
    """Several limiters of threads as one: trio gives all places back when the thread has ended."""

    def __init__(self, *limiters: trio.CapacityLimiter) -> None:
        self._limiters = limiters

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Take a place of each, one after the other."""
        with ExitStack() as taken:
            for limiter in self._limiters:
                await limiter.acquire_on_behalf_of(borrower)
                taken.callback(limiter.release_on_behalf_of, borrower)
            taken.pop_all()

    def release_on_behalf_of(self, borrower: object) -> None:
        """Give all places back."""
        for limiter in self._limiters:
            limiter.release_on_behalf_of(borrower)
