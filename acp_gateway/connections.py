"""The connections that have come in: how many there may be, how fast they may speak, and for how long they may stay."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

import trio

from acp_gateway.access import Access
from acp_gateway.auth import TokenStore
from acp_gateway.errors import Busy
from acp_gateway.options import LimitsSection
from acp_gateway.seats import Farewell
from acp_gateway.transports.base import CloseReason

log = logging.getLogger(__name__)

LONGEST_PAUSE: Final = 5.0
"""Seconds for which a connection is not read at once, so that a link that is well does not count as lost."""

REVOKED = Farewell(CloseReason.POLICY, "the token is not valid any more", "unauthorized")
ROTATED = Farewell(CloseReason.POLICY, "the token was rotated: show the new one", "unauthorized")
ENDED = Farewell(CloseReason.POLICY, "the client certificate has expired", "unauthorized")


class Bucket:
    """How much may be said at once and on the long run: so many per second, and a burst before that."""

    __slots__ = ("_burst", "_left", "_rate", "_since")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._since = now

    def take(self, count: int, now: float, parts: int = 1) -> float:
        """So much was said: for how many seconds there is to be silence now, where it has one of so many parts."""
        rate = self._rate / parts
        self._left = min(self._burst / parts, self._left + (now - self._since) * rate) - count
        self._since = now
        return -self._left / rate if self._left < 0 else 0.0


class Pace:
    """How fast one of an identity's clients may speak.

    All of them together have a rate. Who keeps to its part of that, one of as many as there are clients, is read on
    while others are too fast: an observer that says too much must not keep its identity's controllers from being heard.
    """

    __slots__ = ("_counts", "_identity", "_own", "_together")

    def __init__(self, together: Bucket, own: Bucket, identity: str, counts: Counter[str]) -> None:
        self._together = together
        self._own = own
        self._identity = identity
        self._counts = counts

    def __call__(self, count: int) -> float:
        """It has sent so many messages: for how many seconds not to read it."""
        now = trio.current_time()
        pause = self._together.take(count, now)
        own = self._own.take(count, now, self._counts[self._identity] or 1)
        return min(pause, LONGEST_PAUSE) if own else 0.0


class Connection(Protocol):
    """A connection whose credential has to stay valid."""

    @property
    def access(self) -> Access:
        """What was shown last, and whose it is."""

    def close(self, farewell: Farewell) -> None:
        """End it for good."""

    def lose(self) -> bool:
        """Take its connection away so that it may come back with another token; False where it can't."""


class _Watch:
    """That a connection is watched, for as long as it is in a block. There are as many as connections: no generator."""

    __slots__ = ("_all", "_counts", "_identity", "connection", "ended")

    def __init__(self, connection: Connection, all_watches: set["_Watch"], counts: Counter[str]) -> None:
        self.connection = connection
        self.ended = False
        """Whether it is being closed, which may take its time."""
        # All that there are, and how many of each identity.
        self._all = all_watches
        self._counts = counts
        self._identity = connection.access.identity

    def __enter__(self) -> None:
        self._all.add(self)
        self._counts[self._identity] += 1

    def __exit__(self, *_: object) -> None:
        self._all.discard(self)
        self._counts[self._identity] -= 1
        if not self._counts[self._identity]:
            del self._counts[self._identity]


class Connections:
    """All connections of a gateway that have come in, those that are away included.

    Args:
        limits: how many, and how fast.
        tokens: which of them are valid.
        now: says the time, in seconds since 1970.
    """

    def __init__(self, limits: LimitsSection, tokens: TokenStore, now: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._tokens = tokens
        self._now = now
        self._watches: set[_Watch] = set()
        self._counts: Counter[str] = Counter()
        # By identity, of which there are as many as somebody has made tokens for.
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def check_room(self, identity: str) -> None:
        """Raise `Busy` where an identity can't have a further connection now."""
        limits = self._limits
        if self._counts[identity] >= limits.connections_per_identity:
            raise Busy(f"connections_per_identity ({limits.connections_per_identity}) are there already; try later")
        if len(self._watches) >= limits.max_connections:
            raise Busy(f"max_connections ({limits.max_connections}) are there already; try later")

    def pace(self, identity: str) -> Pace:
        """How fast a client of an identity may speak that has come in just now."""
        now, rate, burst = trio.current_time(), self._limits.messages_per_second, self._limits.message_burst
        together = self._buckets.get(identity)
        if together is None:
            together = self._buckets[identity] = Bucket(rate, burst, now)
        return Pace(together, Bucket(rate, burst, now), identity, self._counts)

    def watched(self, connection: Connection) -> AbstractContextManager[None]:
        """Count what is in this block, and end it when its credential is not valid any more."""
        return _Watch(connection, self._watches, self._counts)

    def enforce(self) -> None:
        """End the connections whose token or certificate is not valid any more."""
        # One look for each credential: right after a change, each reads the file of tokens again.
        objections: dict[Access, Farewell | None] = {}
        for watch in list(self._watches):
            access = watch.connection.access
            if access not in objections:
                objections[access] = self._objection(access)
            farewell = objections[access]
            if farewell is None or watch.ended:
                continue
            if farewell is ROTATED and watch.connection.lose():
                continue
            log.warning("%s is not valid any more: closing its connection", access.credential)
            watch.ended = True
            watch.connection.close(farewell)

    def _objection(self, access: Access) -> Farewell | None:
        if access.expires is not None and self._now() >= access.expires:
            return ENDED
        token = access.token
        if token is None or self._tokens.is_current(token):
            return None
        return ROTATED if self._tokens.is_rotated(token) else REVOKED
