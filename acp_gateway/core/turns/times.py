"""The time, and the times of consecutive messages, as runs: what arrives together shares one entry of 16 bytes.

A time for each message would cost more than appending it.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from operator import add, lt, sub
from typing import Final, overload

import msgspec

_UNKNOWN: Final = -1

_LATEST: Final = 253_402_300_800_000
"""Upper bound of stored times, in milliseconds: the year 10000, which `datetime` cannot represent."""


class Clock:
    """The driver's clock, as it was told last."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds of a monotonic clock."""
        self.wall_time: int | None = None
        """Milliseconds since 1970; None if the driver does not tell."""


class Times:
    """Times of messages that are numbered without a gap, in milliseconds since 1970; None where one is unknown.

    Args:
        runs: number of the first message and time of each run, in order.
    """

    __slots__ = ("starts", "times")

    def __init__(self, runs: Iterable[tuple[int, int | None]] = ()) -> None:
        self.starts = array("q")
        """Number of the first message of each run. Times of messages before the first run are unknown."""
        self.times = array("q")
        """Time of each run; -1 if it is unknown."""
        for number, time in runs:
            self.begin(number, time)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Times) and (self.starts, self.times) == (other.starts, other.times)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Times({list(zip(self.starts, self.times, strict=True))})"

    def begin(self, number: int, time: int | None) -> None:
        """Note the time of a message and of all after it.

        Args:
            number: number of the message, greater than in the last call.
            time: milliseconds since 1970.
        """
        noted = _UNKNOWN if time is None else time
        times = self.times
        if noted != (times[-1] if times else _UNKNOWN):
            self.starts.append(number)
            times.append(noted)

    def extend(self, number: int, later: "Times", shift: int) -> None:
        """Append the times of at least one later message.

        Args:
            number: number of the first of them.
            later: their times.
            shift: difference of their numbers here and there.
        """
        times, starts = later.times, later.starts
        if not starts or starts[0] + shift > number:
            self.begin(number, None)
        if starts:
            self.begin(starts[0] + shift, None if times[0] == _UNKNOWN else times[0])
            self.starts.extend(map(add, starts[1:], repeat(shift)))
            self.times.extend(times[1:])

    def cut(self, number: int) -> None:
        """Forget the times of all messages before this one."""
        runs = bisect_right(self.starts, number) - 1
        if runs > 0:
            del self.starts[:runs]
            del self.times[:runs]

    def part(self, begin: int, end: int) -> "Times":
        """Return the times of the messages from `begin` up to and without `end`, which are numbered from 0 there."""
        part = Times()
        if begin >= end:
            return part
        first = max(bisect_right(self.starts, begin) - 1, 0)
        last = bisect_left(self.starts, end)
        part.times = self.times[first:last]
        part.starts = array("q", map(sub, self.starts[first:last], repeat(begin)))
        if part.starts and part.starts[0] < 0:
            part.starts[0] = 0
        if part.times and part.times[0] == _UNKNOWN:
            del part.starts[0], part.times[0]
        return part

    def of(self, begin: int, end: int) -> list[int | None]:
        """Return the time of each message from `begin` up to and without `end`."""
        part = self.part(begin, end)
        found: list[int | None] = [None] * (part.starts[0] if part.starts else end - begin)
        for (start, after), time in zip(pairwise([*part.starts, end - begin]), part.times, strict=True):
            found += [None if time == _UNKNOWN else time] * (after - start)
        return found

    def view(self, begin: int, end: int) -> "TimesView":
        """Return the same as `of`, without a step for each message."""
        return TimesView(self.part(begin, end), max(end - begin, 0))

    def copy(self) -> "Times":
        """Return a copy."""
        copied = Times()
        copied.starts, copied.times = self.starts[:], self.times[:]
        return copied

    def encode(self) -> bytes | None:
        """Return the times as JSON text; None if all are unknown.

        That is a list of the first numbers and one of the times. Each time but the first is a difference to the one
        before.
        """
        if not self.starts:
            return None
        # No step of a loop: there may be one run for each message.
        differences = [self.times[0], *map(sub, self.times[1:], self.times)]
        return msgspec.json.encode((self.starts.tolist(), differences))


class TimesView(Sequence[int | None]):
    """The time of each of some messages, which are found when they are asked for."""

    def __init__(self, times: Times, count: int) -> None:
        self._times = times
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int | None]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int | None] | None:
        asked = range(self._count)[index]
        if isinstance(asked, int):
            return self._times.of(asked, asked + 1)[0]
        return self._times.of(asked.start, asked.stop) if asked.step == 1 else [self[at] for at in asked]

    def __iter__(self) -> Iterator[int | None]:
        return iter(self._times.of(0, self._count))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def decode_times(text: object, count: int) -> Times:
    """Return the times of `count` messages, which are numbered from 0; unknown ones if the text is corrupt."""
    times = Times()
    if not isinstance(text, bytes):
        return times
    try:
        starts, differences = msgspec.json.decode(text, type=tuple[list[int], list[int]])
        stored = array("q", accumulate(differences))
        numbers = array("q", starts)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError):
        return times
    fits = len(numbers) == len(stored) > 0 and numbers[0] >= 0 and numbers[-1] < count
    if fits and all(map(lt, numbers, numbers[1:])) and min(stored) >= _UNKNOWN and max(stored) < _LATEST:
        times.starts, times.times = numbers, stored
    return times
