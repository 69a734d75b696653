"""Rate limits: token buckets for what clients of an identity send, and failure counters for authentication.

A client is charged for the number of its messages, for their bytes, and for the time of the event loop that they took.
Each is a fraction of what an identity may use in a second, and the largest fraction counts, so one bucket enforces all
three limits. Bytes and time are charged only while another account is connected: without one, they delay no other
user. All agents together have the same share of that time, which is charged while there are clients of other ones.

A `FailureCounter` counts failures per key (an address, a token) within a window. Only failures are counted, after the
token was checked: a valid token is accepted however many failures its address has. The memory is bounded: beyond it,
the key whose last failure is the oldest is forgotten. An `EventAggregator` counts events that are reported later as one
line.

Times are seconds of a monotonic clock.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from acp_gateway.transports.streams import Flooded

MAX_PAUSE: Final = 5.0
"""Maximum seconds of one pause in reading a connection, so that a healthy link does not count as lost."""

REFILL_TIME: Final = 100.0
"""Seconds in which the bucket of frames without a message is refilled: one of ten thousand gives a hundred a second,
while a healthy client needs one in ten seconds."""

MAX_KEYS: Final = 4096
"""Keys of one `FailureCounter`. About 250 bytes each, a megabyte in total."""

MAX_TOPICS: Final = 100
"""Topics that an `EventAggregator` tells apart; further ones share one line."""

Topic = TypeVar("Topic", bound=Hashable)


class TokenBucket:
    """A token bucket: `rate` tokens per second in the long run, and `burst` at once."""

    __slots__ = ("_burst", "_left", "_rate", "_since")

    def __init__(self, rate: float, burst: float, now: float, *, left: float | None = None) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst if left is None else left
        self._since = now

    def take(self, cost: float, now: float, parts: int = 1) -> float:
        """Take tokens, which may leave a debt; return the seconds until it is paid.

        `parts`: the number of equal parts of the bucket; the taker has one.
        """
        rate = self._rate / parts
        left = self._left + (now - self._since) * rate
        burst = self._burst / parts
        self._left = left = min(left, burst) - cost
        self._since = now
        return -left / rate if left < 0 else 0.0

    def left(self, now: float) -> float:
        """Return the tokens that can be taken now without a debt; negative if there is one."""
        return min(self._burst, self._left + (now - self._since) * self._rate)


@dataclass(frozen=True, slots=True)
class Rates:
    """Sustained rates, per second, of all clients of one identity together."""

    messages: float
    size: float
    """Bytes."""
    share: float
    """Share of the event loop's time."""
    burst: float
    """Seconds of these rates that may be used at once."""
    frames: int
    """Frames without a message that one connection may send at once."""


class RateLimiter:
    """Throttles one of the clients of an identity, or one of the agents.

    All clients of an identity share a rate. A client within its equal part is never throttled, even if the identity as
    a whole is over its rate. Each controller has a part, and all observers together have one, so that observers that
    flood do not silence the controllers of their identity.

    Args:
        rates: of all clients of the identity together.
        together: the bucket that they share, in seconds of `rates`.
        delays_others: returns True while bytes and time are charged.
        parts: returns the number of equal parts; the client has one.
        clock: returns the time in seconds.
    """

    __slots__ = ("_clock", "_delays_others", "_frames", "_own", "_parts", "_rates", "_together")

    def __init__(
        self,
        rates: Rates,
        together: TokenBucket,
        delays_others: Callable[[], bool],
        parts: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        now = clock()
        self._rates = rates
        self._together = together
        # Reconnecting must gain nothing: a new client has no burst of its own if its identity has used it up.
        self._own = TokenBucket(1.0, rates.burst, now, left=max(together.left(now), 0.0))
        self._frames: TokenBucket | None = None
        self._delays_others = delays_others
        self._parts = parts
        self._clock = clock

    def charge(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """Charge for messages, bytes, event loop time and frames without a message; return the seconds to pause.

        Raises `Flooded` if too many frames had no message.
        """
        rates = self._rates
        now = self._clock()
        if frames:
            self._charge_frames(frames, now)
        cost = (messages + frames) / rates.messages
        if self._delays_others():
            if size > cost * rates.size:
                cost = size / rates.size
            if seconds > cost * rates.share:
                cost = seconds / rates.share
        together = self._together.take(cost, now)
        own = self._own.take(cost, now, self._parts())
        return min(own, together, MAX_PAUSE)

    def _charge_frames(self, count: int, now: float) -> None:
        most = self._rates.frames
        if self._frames is None:
            self._frames = TokenBucket(most / REFILL_TIME, most, now)
        if self._frames.take(count, now):
            raise Flooded(f"more than frames_without_message ({most}) pings, fragments or blank lines came in a row")


@dataclass(slots=True)
class _Count:
    began: float
    failures: int = 0


class FailureCounter:
    """Counts the failures of each key within a window, which begins with the key's first failure.

    Args:
        limit: failures within a window that are not exceptional.
        window: seconds.
        max_keys: keys that are counted at a time.
    """

    def __init__(self, limit: int, window: float, *, max_keys: int = MAX_KEYS) -> None:
        self._limit = limit
        self._window = window
        self._max_keys = max_keys
        # By key, the one with the oldest last failure first.
        self._counts: dict[str, _Count] = {}

    def has(self, key: str, now: float) -> bool:
        """Return whether a failure of the key counts still."""
        return key in self._counts and now - self._counts[key].began < self._window

    def add(self, key: str, now: float) -> bool:
        """Count a failure; return whether the key is over its limit."""
        count = self._counts.pop(key, None)
        if count is None or now - count.began >= self._window:
            count = _Count(now)
        count.failures += 1
        self._counts[key] = count
        if len(self._counts) > self._max_keys:
            del self._counts[next(iter(self._counts))]
        return count.failures > self._limit


class EventAggregator(Generic[Topic]):
    """Counts events that are reported later as one line per topic; beyond `most` topics, they count under `rest`."""

    def __init__(self, rest: Topic, *, most: int = MAX_TOPICS) -> None:
        self._rest = rest
        self._most = most
        self._counts: Counter[Topic] = Counter()

    def add(self, topic: Topic) -> None:
        """Count an event."""
        known = topic in self._counts or len(self._counts) < self._most
        self._counts[topic if known else self._rest] += 1

    def take(self) -> list[tuple[Topic, int]]:
        """Return the topics since the last call with their counts, in the order of their first events."""
        taken = list(self._counts.items())
        self._counts.clear()
        return taken


def network_of(address: str) -> str:
    """Return the network under which an IP address is counted: itself, or its /64 for IPv6, which one machine may own.

    Text that is not an IP address is returned unchanged.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        # Dual-stack sockets show IPv4 peers like this: all of them within one /64.
        return str(ip.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(ip) >> 64 << 64)}/64"
