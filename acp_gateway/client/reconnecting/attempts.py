"""Attempts to connect that run beside each other, each with its own connection; one of them resumes the link.

An attempt asks the gateway for the link when it has a connection. From then on it is alone: the gateway gives the link
to the connection that asks last.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import Final

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume, explain_silence
from acp_gateway.errors import GatewayError, Unreachable
from acp_gateway.transports.streams import CloseReason, MessageStream
from acp_gateway.transports.timers import Signal

ATTEMPT_TIMEOUT: Final = 15.0
"""Seconds for one attempt. TLS over a bad mobile network takes five; a route that drops packets never answers."""

ANSWER_TIME: Final = 1.0
"""Seconds for the answer to the first request for the link; twice as many for the next one, and so on."""

MAX_ATTEMPTS: Final = 4
"""Attempts beside each other at most. The first keeps its time, which a slow network needs."""


class Attempt:
    """One attempt. `ask` is called when it is about to ask for the link, and returns the count that it tells."""

    def __init__(self, target: Destination, ask: Callable[["Attempt"], int] | None, now: float) -> None:
        self.target = target
        self.began = now
        self.scope = trio.CancelScope(deadline=now + ATTEMPT_TIMEOUT)
        self.told: int | None = None
        """The number of received messages that the gateway was told; None before that."""
        self.outcome: Dialed | GatewayError | None = None
        self._ask = ask

    def ask(self) -> int:
        """Return the count to tell."""
        assert self._ask is not None
        if self.told is not None:
            # Another address of the gateway was asked with it, and may be the one that answers.
            return self.told
        count = self._ask(self)
        if not self.scope.cancel_called:
            self.told = count
        return count


class Attempts:
    """The attempts of one link. `run` runs them.

    Args:
        dial: connects.
        done: called when an attempt has an outcome.
    """

    def __init__(self, dial: Callable[[Destination, Resume], Awaitable[Dialed]], done: Callable[[], None]) -> None:
        self._dial = dial
        self._call_done = done
        self.running: list[Attempt] = []
        """Attempts without an outcome, the oldest first."""
        self._done: list[Attempt] = []
        # Number of times in a row that the gateway was asked for the link in vain, and the last time.
        self._asks = 0
        self._asked_at = -inf
        self._changed = Signal()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the attempts until cancelled, which closes the connections that were not taken."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                for attempt in self._done:
                    if isinstance(attempt.outcome, Dialed):
                        await close_at_once(attempt.outcome.stream)

    def start(
        self, target: Destination, resume: Resume, ask: Callable[[Attempt], int] | None = None, delay: float = 0.0
    ) -> None:
        """Start an attempt after so many seconds, in place of a later one if there are many.

        `ask` is for a link that is resumed.
        """
        assert self._nursery is not None, "the attempts are not running"
        if len(self.running) >= MAX_ATTEMPTS:
            self._drop(self.running[1])
        attempt = Attempt(target, ask, trio.current_time())
        if ask is not None:
            resume = replace(resume, ask=attempt.ask)
        self.running.append(attempt)
        self._nursery.start_soon(self._make, attempt, resume, delay)

    async def _make(self, attempt: Attempt, resume: Resume, delay: float) -> None:
        outcome: Dialed | GatewayError | None = None
        with attempt.scope:
            if delay:
                await trio.sleep(delay)
                attempt.began = trio.current_time()
            try:
                outcome = await self._dial(attempt.target, resume)
            except GatewayError as error:
                outcome = error
        if attempt not in self.running:
            # It was dropped.
            if isinstance(outcome, Dialed):
                await close_at_once(outcome.stream)
            return
        self.running.remove(attempt)
        attempt.outcome = outcome or Unreachable(explain_silence(str(attempt.target.address)))
        self._done.append(attempt)
        self._changed.notify()
        self._call_done()

    @property
    def asked(self) -> bool:
        """True if one of the attempts has asked for the link, so that the gateway may have dropped its connection."""
        return any(attempt.told is not None for attempt in (*self.running, *self._done))

    @property
    def answer_due(self) -> float:
        """Time until which no other attempt is begun, because it would take the link from one that has asked for it."""
        if all(attempt.told is None for attempt in self.running):
            return -inf
        return self._asked_at + ANSWER_TIME * 2.0 ** min(self._asks, 4)

    def note_ask(self, attempt: Attempt) -> None:
        """Note that an attempt asks for the link, and end the others."""
        self.drop(attempt)
        self._asks, self._asked_at = self._asks + 1, trio.current_time()

    def forget_asks(self) -> None:
        """Count requests for the link from 0 again, unless one is under way: the connection has answered."""
        if not self.asked:
            self._asks = 0

    @property
    def done(self) -> Attempt | None:
        """An attempt with an outcome; None without any."""
        return self._done[0] if self._done else None

    def take(self) -> Attempt | None:
        """Return an attempt with an outcome, each once; None without any."""
        return self._done.pop(0) if self._done else None

    async def wait(self, until: float) -> None:
        """Wait until an attempt has an outcome, or all were dropped, or until this time."""
        with trio.move_on_at(until):
            while self.running and not self._done:
                await self._changed.wait()

    def cut_short(self) -> None:
        """Have the running attempts fail at once, and count requests for the link from 0 again."""
        self._asks = 0
        for attempt in self.running:
            attempt.scope.cancel()

    def drop(self, but: Attempt | None = None) -> None:
        """End all attempts but one without an outcome, and close the connections that were not taken."""
        for attempt in [attempt for attempt in self.running if attempt is not but]:
            self._drop(attempt)
        done, self._done = self._done, []
        for attempt in done:
            if isinstance(attempt.outcome, Dialed) and self._nursery is not None:
                self._nursery.start_soon(close_at_once, attempt.outcome.stream)

    def drop_unasked(self) -> None:
        """End the attempts that have not asked for the link."""
        for attempt in [attempt for attempt in self.running if attempt.told is None]:
            self._drop(attempt)

    def _drop(self, attempt: Attempt) -> None:
        self.running.remove(attempt)
        attempt.scope.cancel()
        self._changed.notify()


async def close_at_once(stream: MessageStream) -> None:
    """Close a connection without ending its link, and without waiting for the peer."""
    with trio.CancelScope() as scope:
        scope.cancel()
        # Not a normal close, which would end the link.
        await stream.aclose(CloseReason.GOING_AWAY, "the connection is abandoned, not the link")
