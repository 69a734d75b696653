"""Forwards a port of this machine to one on which a program of an agent listens, at a gateway.

Each connection is a tunnel of its own, opened over the best address that works then: after the network has changed, new
connections work again, and those that were open end as any of TCP does.
"""

import errno
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from acp_gateway.client.control import request
from acp_gateway.client.dialing import Destination, explain_silence
from acp_gateway.client.ports.spare_tunnels import PING_INTERVAL, PING_TIMEOUT, SpareTunnels
from acp_gateway.client.reaching.tunnelling import open_tunnel_at
from acp_gateway.config.addresses import Address
from acp_gateway.errors import CannotListen, GatewayError, ProtocolError, UnknownPort, Unreachable, UsageError
from acp_gateway.gateway.session_api.requests import PORTS
from acp_gateway.printable import printable
from acp_gateway.transports.carrying import carry, finish
from acp_gateway.transports.sockets import SocketBytes, take_socket
from acp_gateway.transports.websocket.tunnel import AHEAD, Tunnel

LOCALHOST: Final = "127.0.0.1"

CONNECTIONS: Final = 256
"""Maximum open connections of one port: a browser opens six to a host and 255 WebSockets."""

OPENING: Final = 32
"""Maximum tunnels that are opened at once, as `handshakes_per_address`: beyond it, the gateway closes idle ones."""

OPEN_TIMEOUT: Final = 15.0
"""Seconds to open a tunnel, in which a browser waits for a page."""

COLUMNS: Final = ("PORT", "PROGRAM", "AGENT", "SESSION", "TITLE")

_ENDPOINT: Final = "/acp"


class Port(NamedTuple):
    """A port of an agent, as its gateway describes it."""

    port: int
    program: str
    """Name of the program that listens; empty if it is not known. It and the texts below are not escaped."""
    agent: str
    sessions: Sequence[tuple[str, str | None]]
    """Ids and titles of the sessions that it may be of."""

    @property
    def row(self) -> tuple[str, ...]:
        """A cell for each of `COLUMNS`, escaped."""
        session, title = self.sessions[0] if self.sessions else ("-", None)
        more = f" and {len(self.sessions) - 1} more" if self.sessions[1:] else ""
        cells = self.program or "-", self.agent, session + more, title or "-"
        return (str(self.port), *map(printable, cells))

    @property
    def as_json(self) -> dict[str, Any]:
        """Its members, as the gateway has them."""
        sessions = [{"sessionId": session, "title": title} for session, title in self.sessions]
        return {"port": self.port, "program": self.program, "agent": self.agent, "sessions": sessions}


def at_node(destination: Destination, node: str) -> Destination:
    """Return a node of a gateway, which passes requests on to it."""

    def there(address: Address) -> Address:
        return replace(address, path=f"{address.path.removesuffix(_ENDPOINT)}/nodes/{node}{_ENDPOINT}")

    place = over_http(destination, "a node is reached")
    return replace(place, address=there(place.address), others=tuple(map(there, place.others)))


def over_http(destination: Destination, what: str) -> Destination:
    """Return a gateway with its addresses for WebSockets alone. Raises `UsageError` if there are none."""
    places = [address for address in destination.addresses if address.websocket]
    if not places:
        raise UsageError(f"{what} over wss:// or ws:// only, which {destination.address} is not")
    return replace(destination, address=places[0], others=tuple(places[1:]))


async def list_ports(destination: Destination, *, time_limit: float, session: str | None = None) -> list[Port]:
    """Return the ports of agents, or of one session, that the token may use.

    `time_limit` and errors are those of `control.request`.
    """
    about = {} if session is None else {"sessionId": session}
    result = await request(destination, PORTS, about, time_limit=time_limit)
    try:
        return [_read_port(each) for each in result["ports"]]
    except (KeyError, TypeError, ValueError):
        raise ProtocolError(f"{destination.address}: the gateway's response is not understood") from None


def _read_port(value: Any) -> Port:
    """Read a port. Raises `KeyError`, `TypeError` and `ValueError`."""
    sessions = [
        (str(one["sessionId"]), None if one["title"] is None else str(one["title"])) for one in value["sessions"]
    ]
    if type(value["port"]) is not int or not 0 < value["port"] < 65536:
        raise ValueError("not a port")
    return Port(value["port"], str(value["program"]), str(value["agentType"]), sessions)


def check_offered(ports: Sequence[Port], port: int, target: str) -> Port:
    """Return the port of this number. Raises `UnknownPort` with the next command."""
    for each in ports:
        if each.port == port:
            return each
    raise UnknownPort(
        f"no program of your agents listens on port {port} at {target}: `acp-gateway forward {target}` lists the ports "
        "on which one does; ports in [agents.NAME] there names others"
    )


def check_forwardable(destination: Destination, port: int) -> None:
    """Raise `UsageError` for a gateway without an address for tunnels, with the command that does it instead."""
    address = destination.address
    if any(each.websocket for each in destination.addresses):
        return
    if address.scheme == "ssh":
        login = f"{address.user}@{address.host}" if address.user else address.host
        raise UsageError(f"{address} is ssh, which forwards itself: ssh -N -L {port}:{LOCALHOST}:{port} {login}")
    over_http(destination, "ports are forwarded")


async def open_port(destination: Destination, port: int, *, ahead: bool = False) -> Tunnel:
    """Open a tunnel to a port; if it is opened ahead, it leads there only after `NEEDED`.

    Raises `Unreachable` without an answer in `OPEN_TIMEOUT`, and what `open_tunnel_at` raises. Cancelling closes it.
    """
    place = over_http(destination, "ports are forwarded")
    with trio.move_on_after(OPEN_TIMEOUT):
        return (await open_tunnel_at(place, f"/ports/{port}{AHEAD if ahead else ''}", "ports"))[0]
    raise Unreachable(f"{explain_silence(str(place.address))} (tried for {OPEN_TIMEOUT:g} s)")


async def listen(local: int, port: int, target: str) -> trio.SocketListener:
    """Listen on a port of this machine, 0 for any free one. Raises `CannotListen` with the next command."""
    try:
        (listener,) = await trio.open_tcp_listeners(local, host=LOCALHOST)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "is taken on this machine"
        elif error.errno == errno.EACCES:
            why = "is for root on this machine"
        else:
            why = f"can't be used on this machine ({error.strerror})"
        raise CannotListen(
            f"port {local} {why}: `acp-gateway forward {target} {port} --local 0` takes a free one"
        ) from error
    return listener


def port_of(listener: trio.SocketListener) -> int:
    """Return the port on which a listener listens."""
    number: int = listener.socket.getsockname()[1]
    return number


async def forward(
    listener: trio.SocketListener,
    destination: Callable[[], Destination],
    port: int,
    report: Callable[[str], None],
) -> None:
    """Carry each connection of a listener to a port at a gateway, until cancelled, which closes all of them.

    Args:
        listener: a listener of this machine.
        destination: returns the gateway, as hosts.toml and the environment are then; may raise `GatewayError`.
        port: the port there.
        report: told in a line why a connection could not be opened.
    """
    opened = trio.CapacityLimiter(CONNECTIONS)
    opening = trio.CapacityLimiter(OPENING)
    spares = SpareTunnels(lambda: open_port(destination(), port, ahead=True))

    async def open_one() -> Tunnel:
        tunnel = await spares.take()
        if tunnel is None:
            async with opening:
                tunnel = await open_port(destination(), port)
            spares.reached()
        return tunnel

    async def serve(stream: trio.SocketStream) -> None:
        local = SocketBytes(take_socket(stream))
        try:
            if opened.available_tokens < 1:
                report(f"port {port} has {CONNECTIONS} connections open already; one more was refused")
                return
            async with opened:
                await _carry(local, open_one, report)
        finally:
            await local.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spares.run)
        await trio.serve_listeners(serve, [listener])


async def _carry(local: SocketBytes, open_one: Callable[[], Awaitable[Tunnel]], report: Callable[[str], None]) -> None:
    """Carry one connection to its end."""
    try:
        tunnel = await open_one()
    except GatewayError as error:
        report(str(error))
        # A program that waits for an answer is told at once.
        local.reset_when_closed(True)
        return
    why = ""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(tunnel.keep_alive, PING_INTERVAL, PING_TIMEOUT))
            why = await carry(tunnel, local, float("inf"), "the program here has closed the connection")
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await finish(tunnel, local, why)
