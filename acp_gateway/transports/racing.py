"""Tries several ways to one peer, and takes the first that works: Happy Eyeballs (RFC 8305).

Each way starts a moment after the one before, or at once when one has failed. A costly way, such as a login over ssh,
waits longer, and only one of them runs at a time. `Schedule` decides (pure), `race` carries it out.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, Protocol, TypeVar

import trio

from acp_gateway.errors import GatewayError

STAGGER: Final = 0.25
"""Seconds between the starts of two ways: the connection attempt delay of RFC 8305, 5."""

COSTLY_PATIENCE: Final = 1.0
"""Seconds that a costly way waits after the last start of another one: more than four round trips of a mobile network,
in which the others can be ready."""


class Closable(Protocol):
    """The result of a way, which is closed if another one was faster."""

    async def aclose(self) -> None:
        """Close it."""


Result = TypeVar("Result", bound=Closable)
SocketAddress = tuple[Any, ...]
"""A result of `getaddrinfo`, which begins with the family."""


class Schedule:
    """Decides when each way starts. It reads no clock: times are arguments, in seconds.

    Args:
        costly: for each way, in the order of preference, whether it is costly.
        at_once: number of ways at the beginning that start together, except costly ones behind the first.
    """

    def __init__(self, costly: Sequence[bool], at_once: int = 1) -> None:
        first = range(min(1, len(costly)))
        self._first = [*first, *(index for index in range(1, min(at_once, len(costly))) if not costly[index])]
        self._cheap = [index for index, dear in enumerate(costly) if not dear and index not in self._first]
        self._costly = [index for index, dear in enumerate(costly) if dear and index not in self._first]
        self._is_costly = list(costly)
        self._running: set[int] = set()
        self._last_start = 0.0
        # Set when a way has failed and none has started since.
        self._hurries = False

    def next(self, now: float) -> tuple[int, float] | None:
        """Return the next way and the time of its start, which may be past; None if nothing starts before an end."""
        if self._first:
            return self._first[0], now
        if not self._running and (self._cheap or self._costly):
            return min([*self._cheap[:1], *self._costly[:1]]), now
        if self._cheap:
            return self._cheap[0], now if self._hurries else self._last_start + STAGGER
        if self._costly and not any(self._is_costly[index] for index in self._running):
            return self._costly[0], self._last_start + COSTLY_PATIENCE
        return None

    def start(self, index: int, now: float) -> None:
        """Note that a way has started."""
        for waiting in (self._first, self._cheap, self._costly):
            if index in waiting:
                waiting.remove(index)
        self._running.add(index)
        self._last_start, self._hurries = now, False

    def fail(self, index: int) -> None:
        """Note that a way has failed."""
        self._running.discard(index)
        self._hurries = True

    @property
    def is_over(self) -> bool:
        """True if every way has failed."""
        return not (self._first or self._cheap or self._costly or self._running)


async def race(
    ways: Sequence[Callable[[], Awaitable[Result]]],
    schedule: Schedule,
    ends: tuple[type[GatewayError], ...] = (),
) -> Result | list[GatewayError]:
    """Return the result of the first way that works, or the error of each in their order; the others are cancelled.

    `ends` are the errors that every way would meet: the first of them is raised. Cancelling cancels all ways.
    """
    errors: dict[int, GatewayError] = {}
    final: list[GatewayError] = []
    won: list[Result] = []
    changed = trio.Event()

    async def run(index: int) -> None:
        try:
            result = await ways[index]()
        except GatewayError as error:
            errors[index] = error
            schedule.fail(index)
            changed.set()
            if isinstance(error, ends) and not won:
                final.append(error)
                nursery.cancel_scope.cancel()
        else:
            won.append(result)
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            while not schedule.is_over:
                changed = trio.Event()
                due = schedule.next(trio.current_time())
                if due is not None and due[1] <= trio.current_time():
                    schedule.start(due[0], trio.current_time())
                    nursery.start_soon(run, due[0])
                    continue
                with trio.move_on_at(float("inf") if due is None else due[1]):
                    await changed.wait()
    except BaseException:
        await _close(won)
        raise
    await _close(won[1:])
    if won:
        return won[0]
    if final:
        raise final[0]
    return [errors[index] for index in sorted(errors)]


async def _close(results: Sequence[Closable]) -> None:
    with trio.CancelScope(shield=True):
        for result in results:
            await result.aclose()


def interleave(addresses: Sequence[SocketAddress]) -> list[SocketAddress]:
    """Return the addresses of a name with the families in turn, the system's first choice first (RFC 8305, 4)."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    others = [address for address in addresses if address[0] != addresses[0][0]]
    return [address for address in chain.from_iterable(zip_longest(first, others)) if address is not None]


async def resolve(host: str, port: int) -> list[SocketAddress]:
    """Return the family and the socket address of each address of a name, in the order in which to try them.

    Raises `OSError` if it has none, and `UnicodeError` for a text that can't be a name. Cancelling leaves a thread that
    ends by itself.
    """
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return interleave(list(dict.fromkeys((family, address) for family, _, _, _, address in found)))
