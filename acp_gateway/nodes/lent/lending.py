"""Lends connections of this gateway to another one, its door, so that it is reached though no port of it is open.

A few connections are kept parked at the door. When the door sends the first bytes over one, these are a client's: the
connection is served as if a listener had accepted it, and another one is parked at once.
"""

import logging
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import trio
from websockets.uri import WebSocketURI

from acp_gateway import __version__
from acp_gateway.client.dialing import Destination, demand_proof, foreign_answer, open_connection, refusal
from acp_gateway.client.uplink import BACKOFF_MAX, backoff
from acp_gateway.config.nodes import DoorSection
from acp_gateway.errors import Forbidden, GatewayError, ProtocolError, Unauthorized, Unreachable
from acp_gateway.nodes.lent.parked import NODE_PIN, NODE_TOKEN, PING_INTERVAL, PING_TIMEOUT
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import read_token_file
from acp_gateway.transports.carrying import carry
from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.sockets import SocketBytes, describe
from acp_gateway.transports.streams import closed_on_error
from acp_gateway.transports.timers import Signal
from acp_gateway.transports.websocket.client import UpgradeRefused
from acp_gateway.transports.websocket.tunnel import Tunnel, connect_tunnel

log = logging.getLogger(__name__)

PARKED: Final = 4
"""Connections that are kept parked: a page opens a few at once, and each takes a round trip to be replaced."""

REFUSED_PAUSE: Final = 300.0
"""Seconds between two attempts of a machine that the door refuses, by one task alone: only a person changes that."""

ATTEMPT_TIMEOUT: Final = 15.0
"""Seconds for one attempt to reach the door, over a slow network."""

REMOVED: Final = (
    "it does not know this machine any more: `acp-gateway nodes add NAME` there prints a line for `acp-gateway up "
    "--door` here"
)
"""The remedy for a token that is not valid at the door any more."""

_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class Lending:
    """Lends connections to one door.

    Args:
        name: the door's name.
        section: the section of the door.
        pin: the pin of the certificate that is shown to clients inside.
        token: the token that the door shows here.
        serve: serves a connected socket as a listener does, and closes it.
        stall_timeout: seconds after which a side that takes nothing is given up.
    """

    def __init__(
        self,
        name: str,
        section: DoorSection,
        *,
        pin: str,
        token: str,
        serve: Callable[[socket.socket], Awaitable[None]],
        stall_timeout: float,
    ) -> None:
        self.name = name
        self.section = section
        """The section of the door."""
        self._told = {NODE_PIN: pin, NODE_TOKEN: token}
        self._serve = serve
        self._stall_timeout = stall_timeout
        self.parked = 0
        """Connections that are parked now."""
        self.problem: str | None = "not reached yet"
        """Cause that there is none; None while there is one."""
        self._is_refused = False
        # Notified when it may be worth to try again, though the door has refused.
        self._may_try = Signal()
        # Scopes in which connections wait for clients.
        self._waiting: set[trio.CancelScope] = set()

    async def run(self, connections: trio.Nursery) -> None:
        """Keep connections parked until cancelled; serve those that are taken in `connections`."""
        async with trio.open_nursery() as nursery:
            for number in range(PARKED):
                nursery.start_soon(self._keep_one, connections, number == 0)

    def renew(self, pin: str) -> None:
        """Go on with what files have now: try again after a refusal, and park other connections for another pin."""
        self._may_try.notify()
        if pin != self._told[NODE_PIN]:
            self._told[NODE_PIN] = pin
            for scope in self._waiting:
                scope.cancel()

    async def _keep_one(self, connections: trio.Nursery, leads: bool) -> None:  # noqa: FBT001
        failures = 0
        while True:
            while self._is_refused and not leads:
                await self._may_try.wait()
            tunnel = None
            try:
                tunnel = await self._lend_one()
            except (Unauthorized, Forbidden) as error:
                self._is_refused = True
                self._note(
                    f"{REMOVED if isinstance(error, Unauthorized) else error}; or remove [doors.{self.name}] here. "
                    f"The next attempt is in {REFUSED_PAUSE / 60:.0f} minutes, or at a reload"
                )
                if leads:
                    with trio.move_on_after(REFUSED_PAUSE):
                        await self._may_try.wait()
                continue
            except GatewayError as error:
                self._note(str(error))
            except Exception:
                # A bug costs one connection, and must not end the gateway.
                log.exception("the door %s: a bug of the gateway", self.name)
            if tunnel is not None:
                failures = 0
                connections.start_soon(self._serve_client, tunnel)
                continue
            failures += 1
            await trio.sleep(backoff(failures, BACKOFF_MAX, random.random()))  # noqa: S311

    async def _lend_one(self) -> Tunnel | None:
        """Park a connection, and return it once a client's bytes have come; None if it is lost before.

        Raises `GatewayError`.
        """
        tunnel = await self._park()
        if self._is_refused:
            self._is_refused = False
            self._may_try.notify()
        self.parked += 1
        self._note(None)
        taken = False
        try:
            with trio.CancelScope() as scope:
                self._waiting.add(scope)
                taken = await _wait_for_client(tunnel)
        finally:
            self._waiting.discard(scope)
            self.parked -= 1
            if not taken:
                with trio.CancelScope(shield=True):
                    await tunnel.aclose()
        return tunnel if taken else None

    def _note(self, problem: str | None) -> None:
        if problem == self.problem or (problem is not None and self.parked):
            return
        self.problem = problem
        if problem is None:
            log.info("lending connections to the door %s", self.name)
        else:
            log.warning("no connection is lent to the door %s: %s", self.name, problem)

    async def _park(self) -> Tunnel:
        """Open a connection to the door and leave it there. Raises `GatewayError`."""
        section = self.section
        address = section.url
        destination = Destination(
            address=address,
            agent=None,
            token=read_token_file(section.token_file),
            pin=None if section.pin is None else parse_pin(section.pin),
            ca=section.ca,
            max_message_size=0,
        )
        path = f"{address.path.removesuffix('/acp')}/nodes/lend"
        uri = WebSocketURI(address.tls, address.host, address.port, path, "")
        headers = {
            "User-Agent": f"acp-gateway/{__version__}",
            "Authorization": f"Bearer {destination.token}",
            **self._told,
        }
        with trio.move_on_after(ATTEMPT_TIMEOUT):
            try:
                stream = await open_connection(destination)
                async with closed_on_error(stream):
                    if destination.demands_proof:
                        await demand_proof(stream, destination)
                    return await connect_tunnel(stream, uri, headers)
            except UpgradeRefused as error:
                if error.refusal is not None:
                    raise refusal(destination, error.status, error.text, error.refusal) from error
                raise foreign_answer(address, error) from error
            except ProtocolError as error:
                raise ProtocolError(f"{address}: {error}") from error
            except trio.BrokenResourceError as error:
                raise Unreachable(f"{address}: {error}") from error
        raise Unreachable(f"{address}: no answer within {ATTEMPT_TIMEOUT:g} s")

    async def _serve_client(self, tunnel: Tunnel) -> None:
        """Serve a client of the door. Cancelled, it is said goodbye to, in a bounded time."""
        try:
            here, there = socket.socketpair()
        except OSError as error:
            # The system is out of descriptors.
            log.warning("a client of the door %s can't be served: %s", self.name, describe(error))
            with trio.CancelScope(shield=True):
                await tunnel.aclose()
            return
        for sock in (here, there):
            sock.setblocking(False)
        # Shielded, because what the listener says last has to get out.
        carrying = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._carry, tunnel, SocketBytes(here), carrying)
            try:
                await self._serve(there)
            finally:
                carrying.deadline = trio.current_time() + CLOSE_TIMEOUT

    async def _carry(self, tunnel: Tunnel, way: SocketBytes, carrying: trio.CancelScope) -> None:
        try:
            with carrying:
                why = await carry(tunnel, way, self._stall_timeout, "the gateway here has closed the connection")
                await way.aclose()
                if why:
                    await tunnel.refuse(why)
                else:
                    await tunnel.finish()
        except _LOST:
            pass
        finally:
            with trio.CancelScope(shield=True):
                await way.aclose()
                await tunnel.aclose()


async def _wait_for_client(tunnel: Tunnel) -> bool:
    """Wait until a client's first bytes come over a parked connection; False if it is lost before."""
    taken = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tunnel.keep_alive, PING_INTERVAL, PING_TIMEOUT)
        try:
            taken = await tunnel.wait_for_data()
        except _LOST:
            pass
        nursery.cancel_scope.cancel()
    return taken
