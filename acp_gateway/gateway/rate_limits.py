"""Rate limits: token buckets, and the rate of the clients of one identity.

A client is charged for the number of its messages, for their bytes, and for the time of the event loop that they took.
Each is a fraction of what an identity may use in a second, and the largest fraction counts, so one bucket enforces all
three limits. Bytes and time are charged only while another account is connected: without one, they delay no other
user.
"""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Final

from acp_gateway.transports.streams import Flooded

LONGEST_PAUSE: Final = 5.0
"""Seconds for which a connection is not read at once, so that a link that is well does not count as lost."""

REFILL_TIME: Final = 100.0
"""Seconds in which the bucket of frames without a message is full again: one that holds ten thousand gives a hundred a
second, where a client that is well needs one in ten seconds."""


class TokenBucket:
    """A token bucket: gives `rate` tokens a second on the long run, and `burst` at once."""

    __slots__ = ("_burst", "_left", "_rate", "_since")

    def __init__(self, rate: float, burst: float, now: float, *, left: float | None = None) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst if left is None else left
        self._since = now

    def take(self, cost: float, now: float, parts: int = 1) -> float:
        """Take tokens, which may leave a debt; return the seconds until it is paid, where the taker has one part."""
        rate = self._rate / parts
        left = self._left + (now - self._since) * rate
        burst = self._burst / parts
        self._left = left = min(left, burst) - cost
        self._since = now
        return -left / rate if left < 0 else 0.0

    def left(self, now: float) -> float:
        """The tokens that can be taken now without a debt; negative where there is one."""
        return min(self._burst, self._left + (now - self._since) * self._rate)


@dataclass(frozen=True, slots=True)
class Rates:
    """What the clients of one identity may use together, in a second on the long run."""

    messages: float
    size: float
    """Bytes."""
    share: float
    """Of the event loop's time."""
    burst: float
    """Seconds of all that, at once."""
    frames: int
    """Frames without a message of one connection, at once."""


class RateLimiter:
    """How fast one of the clients of an identity may speak.

    All of them together have a rate. A client that keeps to its part of it is read on while others are too fast. Each
    controller has a part, and all observers together have one: however many of them flood, they do not silence the
    controllers of their identity.

    Args:
        rates: what all of them together may use.
        together: the bucket of all of them, in seconds of `rates`.
        accounts: those with a connection, of all identities; observers of an identity are one of their own.
        parts: says of how many parts one is the client's.
        clock: tells the time in seconds.
    """

    __slots__ = ("_accounts", "_clock", "_frames", "_own", "_parts", "_rates", "_together")

    def __init__(
        self,
        rates: Rates,
        together: TokenBucket,
        accounts: Sized,
        parts: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        now = clock()
        self._rates = rates
        self._together = together
        # To come again must gain nothing: a new client has no burst of its own where the identity has used it up.
        self._own = TokenBucket(1.0, rates.burst, now, left=max(together.left(now), 0.0))
        self._frames: TokenBucket | None = None
        self._accounts = accounts
        self._parts = parts
        self._clock = clock

    def charge(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """Charge the client for messages, bytes, time and frames without a message; return how long not to read it.

        Raises `Flooded` where too many frames in a row had no message.
        """
        rates = self._rates
        now = self._clock()
        if frames:
            self._charge_frames(frames, now)
        cost = (messages + frames) / rates.messages
        if len(self._accounts) > 1:
            if size > cost * rates.size:
                cost = size / rates.size
            if seconds > cost * rates.share:
                cost = seconds / rates.share
        together = self._together.take(cost, now)
        own = self._own.take(cost, now, self._parts())
        return min(own, together, LONGEST_PAUSE)

    def _charge_frames(self, count: int, now: float) -> None:
        most = self._rates.frames
        if self._frames is None:
            self._frames = TokenBucket(most / REFILL_TIME, most, now)
        if self._frames.take(count, now):
            raise Flooded(f"more than frames_without_message ({most}) pings, fragments or blank lines came in a row")
