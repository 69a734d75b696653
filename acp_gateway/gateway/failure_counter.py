"""How often who was refused: for slowing down those who guess, and for telling many refusals in one line.

Failures alone are counted. Nobody asks here before a token has been looked at, so a right one is never kept out by the
wrong ones that others have shown, from the same address or not.

A count begins with the first refusal and is over a `window` later. The memory is bounded: of very many, those that were
refused longest ago are forgotten, and begin anew. Times are seconds of a clock that the caller has.
"""

import ipaddress
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

REMEMBERED: Final = 4096
"""Who is counted at a time, at most. Some 250 bytes each, a megabyte in all."""

MOST_LINES: Final = 100
"""Different things that are told apart when they are told together; all others come under one name."""

Topic = TypeVar("Topic", bound=Hashable)


@dataclass(slots=True)
class _Count:
    began: float
    refusals: int = 0


class FailureCounter:
    """The refusals of each of many within a window of time.

    Args:
        limit: how many are nothing special.
        window: seconds for which they count.
        remembered: how many are counted at a time.
    """

    def __init__(self, limit: int, window: float, *, remembered: int = REMEMBERED) -> None:
        self._limit = limit
        self._window = window
        self._remembered = remembered
        # Those who were refused longest ago come first.
        self._counts: dict[str, _Count] = {}

    def refused(self, who: str, now: float) -> bool:
        """Count a refusal; whether it is one too many."""
        count = self._counts.pop(who, None)
        if count is None or now - count.began >= self._window:
            count = _Count(now)
        count.refusals += 1
        self._counts[who] = count
        if len(self._counts) > self._remembered:
            del self._counts[next(iter(self._counts))]
        return count.refusals > self._limit


class EventAggregator(Generic[Topic]):
    """How often what has happened that is told together, later. `rest` stands for what is one thing too many."""

    def __init__(self, rest: Topic, *, most: int = MOST_LINES) -> None:
        self._rest = rest
        self._most = most
        self._counts: Counter[Topic] = Counter()

    def add(self, topic: Topic) -> None:
        """It has happened once more."""
        known = topic in self._counts or len(self._counts) < self._most
        self._counts[topic if known else self._rest] += 1

    def take(self) -> list[tuple[Topic, int]]:
        """What has happened since the last time, and how often, in the order in which it began."""
        taken = list(self._counts.items())
        self._counts.clear()
        return taken


def network_of(address: str) -> str:
    """Under which name an IP address is counted: its own, or for IPv6 its /64, which one machine has for itself.

    What is no IP address keeps its name.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        # A socket for both families names IPv4 clients so: all in one /64.
        return str(ip.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(ip) >> 64 << 64)}/64"
