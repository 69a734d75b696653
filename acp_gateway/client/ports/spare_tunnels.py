"""Tunnels that are opened ahead, so that a connection of this machine does not wait for one.

Nothing is open behind them at the gateway until one is needed. The gateway is asked first whether it still leads
somewhere: after a change of the network it does not, and what was sent over it might have arrived or not.
"""

import logging
import math
import random
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from acp_gateway.client.uplink import backoff
from acp_gateway.errors import GatewayError, Unreachable
from acp_gateway.transports.carrying import LOST
from acp_gateway.transports.streams import closed_on_error, send_all
from acp_gateway.transports.timers import Signal
from acp_gateway.transports.websocket.tunnel import NEEDED, Tunnel

log = logging.getLogger(__name__)

SPARES: Final = 2
"""Tunnels that are kept open: a page begins with one connection, and more follow its first answer."""

PATIENCE: Final = 2.0
"""Seconds to wait for the gateway's word that a tunnel leads somewhere: the connection may be lost."""

REFILL_PAUSE: Final = 0.1
"""Seconds after which another one is opened for one that was taken: its handshake would delay the first byte there."""

LONGEST_PAUSE: Final = 30.0
"""Maximum seconds between attempts while the gateway can't be reached."""

PING_INTERVAL: Final = 20.0
PING_TIMEOUT: Final = 20.0
"""Seconds of silence before a ping, and for its answer: a lost network ends connections, so that programs retry."""


class _Spare:
    """A tunnel that waits, the scope of the task that watches it, and whether that has ended."""

    def __init__(self, tunnel: Tunnel) -> None:
        self.tunnel = tunnel
        self.scope = trio.CancelScope()
        self.is_taken = False
        self.released = trio.Event()


class SpareTunnels:
    """The tunnels that wait for connections to one port.

    Args:
        open_one: opens another one; may raise `GatewayError`.
    """

    def __init__(self, open_one: Callable[[], Awaitable[Tunnel]]) -> None:
        self._open_one = open_one
        self._ready: list[_Spare] = []
        self._changed = Signal()
        # Tunnels that have ended since one was used: a gateway that is full closes them as soon as they are open.
        self._losses = 0

    async def run(self) -> None:
        """Keep `SPARES` tunnels ready, until cancelled, which closes them."""
        failures = 0
        async with trio.open_nursery() as nursery:
            while True:
                if len(self._ready) >= SPARES:
                    await self._changed.wait()
                    await trio.sleep(REFILL_PAUSE)
                    continue
                try:
                    spare = _Spare(await self._open_one())
                except GatewayError as error:
                    log.debug("no tunnel was opened ahead: %s", error)
                    again = isinstance(error, Unreachable)
                    pause = backoff(failures, LONGEST_PAUSE, random.random())  # noqa: S311
                    with trio.move_on_after(pause if again else math.inf):
                        await self._changed.wait()
                    failures += 1
                else:
                    failures = 0
                    self._ready.append(spare)
                    nursery.start_soon(self._watch, spare)
                    if self._losses:
                        await trio.sleep(backoff(self._losses - 1, LONGEST_PAUSE, random.random()))  # noqa: S311

    async def _watch(self, spare: _Spare) -> None:
        """Read a tunnel until it has ended or is taken."""
        tunnel = spare.tunnel
        try:
            with spare.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tunnel.keep_alive, PING_INTERVAL, PING_TIMEOUT)
                    try:
                        tunnel.put_back(await tunnel.receive_some())
                    except LOST as error:
                        log.debug("a tunnel that was opened ahead has ended: %s", error)
                    nursery.cancel_scope.cancel()
        finally:
            spare.released.set()
            if spare in self._ready:
                self._ready.remove(spare)
                self._losses += not spare.scope.cancelled_caught
                self._changed.notify()
            if not spare.is_taken:
                await tunnel.aclose()

    async def take(self) -> Tunnel | None:
        """Return a tunnel that leads to the port now; None if another one is to be opened. Cancelling closes it."""
        if not self._ready:
            return None
        spare = self._ready.pop()
        older, tunnel = list(self._ready), spare.tunnel
        spare.is_taken = True
        self._changed.notify()
        async with closed_on_error(tunnel):
            try:
                with trio.move_on_after(PATIENCE):
                    await send_all(tunnel, NEEDED)
                    spare.scope.cancel()
                    await spare.released.wait()
                    answer = await tunnel.receive_some()
                    if answer.startswith(NEEDED):
                        tunnel.put_back(answer.removeprefix(NEEDED))
                        self._losses = 0
                        return tunnel
            except LOST as error:
                log.debug("a tunnel that was opened ahead leads nowhere: %s", error)
        await tunnel.aclose()
        # What was opened before it goes the same way.
        for other in older:
            other.scope.cancel()
        return None

    def reached(self) -> None:
        """Note that the gateway has opened a tunnel: spare ones can be opened as well."""
        self._losses = 0
        self._changed.notify()
