"""Looks at the ports of one session for a client that shows it: when it is open, when a turn ends, and when the agent
offers one. Nothing is asked until then."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports.forwarding import at_node, list_ports
from acp_gateway.config.nodes import SEPARATOR
from acp_gateway.errors import GatewayError
from acp_gateway.terminal.dialogue import Event, Opened, TurnEnded, Updated
from acp_gateway.terminal.port_lines import Offers, Port, node_of

LOOK_TIMEOUT: Final = 10.0
"""Seconds for a look; without an answer, what was known stays."""

LOOK_INTERVAL: Final = 2.0
"""Seconds from one look to the next: an agent may offer ports with each word."""


class SessionPorts:
    """The ports of one session.

    Args:
        ask: returns the ports. Raises `GatewayError`.
        changed: called with the ports when they have changed; there are none at first.
    """

    def __init__(self, ask: Callable[[], Awaitable[list[Port]]], changed: Callable[[list[Port]], None]) -> None:
        self._ask = ask
        self._changed = changed
        self._wanted = trio.Event()
        self._is_open = False
        self._offers = Offers()
        self.known: list[Port] = []
        """The ports as they were told last."""

    def receive(self, events: Sequence[Event]) -> None:
        """Take note of what happens in the session."""
        for event in events:
            offered: list[int] = []
            if isinstance(event, Updated):
                offered = self._offers.receive(event.update)
            elif isinstance(event, TurnEnded):
                offered = self._offers.end()
            self._is_open = self._is_open or isinstance(event, Opened)
            is_new = not {port.number for port in self.known}.issuperset(offered)
            if self._is_open and (is_new or isinstance(event, Opened | TurnEnded)):
                self._wanted.set()

    async def run(self) -> None:
        """Look when it is time, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            found = self.known
            try:
                found = await self._ask()
            except GatewayError:
                pass  # The gateway is older or away, or the token is not for ports.
            if found != self.known:
                self.known = found
                self._changed(found)
            await trio.sleep(LOOK_INTERVAL)


async def ports_of(destination: Destination, session: str) -> list[Port]:
    """Return the ports of a session that the token may use; `NODE/ID` is one of a node. Raises as `ports_there`."""
    node = node_of(session)
    if node:
        return await ports_there(at_node(destination, node), session.removeprefix(f"{node}{SEPARATOR}"))
    return await ports_there(destination, session)


async def ports_there(destination: Destination, session: str) -> list[Port]:
    """Return the ports of a session by the id that its own gateway has for it.

    Over ssh alone nothing is asked, as each look is a login. Raises as `list_ports`.
    """
    if all(address.scheme == "ssh" for address in destination.addresses):
        return []
    found = await list_ports(destination, time_limit=LOOK_TIMEOUT, session=session)
    return [Port(each.port, each.program) for each in found]
