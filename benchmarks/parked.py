"""Connections that boxes lend to a door: each box is a token and a few tunnels that wait, in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio
from websockets.uri import WebSocketURI

from acp_gateway.client.dialing import Destination, open_connection
from acp_gateway.config.addresses import Address
from acp_gateway.nodes.lent.parked import MAX_PARKED, NODE_PIN, NODE_TOKEN, PING_INTERVAL, PING_TIMEOUT
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.websocket.tunnel import connect_tunnel

AT_ONCE = 8
"""Connections that are opened at a time: a door bounds those of one address without a token."""


@dataclass
class Held:
    """Connections that wait at a door."""

    port: int
    cert: Path
    """Certificate of the door."""
    tokens: list[str]
    waiting: int = 0
    """Those that wait now."""

    async def run(self, measure: Callable[[], None]) -> None:
        """Open them, and call `measure` in a thread while they wait."""
        places = trio.Semaphore(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for token in self.tokens:
                told = {"Authorization": f"Bearer {token}", NODE_PIN: f"sha256:{64 * 'a'}", NODE_TOKEN: mint()}
                for _ in range(MAX_PARKED):
                    await places.acquire()
                    nursery.start_soon(self._hold, told, places)
            for _ in range(AT_ONCE):
                await places.acquire()
            await trio.to_thread.run_sync(measure)
            nursery.cancel_scope.cancel()

    async def _hold(self, told: dict[str, str], places: trio.Semaphore) -> None:
        address = Address("wss", "127.0.0.1", self.port, "/acp")
        try:
            stream = await open_connection(Destination(address, None, None, None, self.cert, 0))
            uri = WebSocketURI(True, "127.0.0.1", self.port, "/nodes/lend", "")
            tunnel = await connect_tunnel(stream, uri, told)
        finally:
            places.release()
        self.waiting += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tunnel.keep_alive, PING_INTERVAL, PING_TIMEOUT)
            try:
                # The door takes one of each box, to ask what that has.
                await tunnel.wait_for_data()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            finally:
                self.waiting -= 1
            nursery.cancel_scope.cancel()


def make_tokens(state_dir: Path, count: int) -> list[str]:
    """Make the tokens of so many boxes of a gateway."""
    store = TokenStore(state_dir)
    return [store.create(f"box{i}", f"node box{i}", None, role="node", nodes=[f"box{i}"])[1] for i in range(count)]
