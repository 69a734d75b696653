"""Reaches a gateway by TLS inside another stream of bytes: a tunnel of its door, or a connection that it lends.

A door can't read what passes through its tunnel. The certificate and the pin are the gateway's own, and so is the token
that is sent inside. The door gets a token of its own, which may allow nothing but the tunnel.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, NamedTuple

import trio
from websockets.uri import WebSocketURI

from acp_gateway import __version__
from acp_gateway.client.dialing import (
    OTHER_PATH,
    Destination,
    Via,
    demand_proof,
    foreign_answer,
    open_connection,
    raise_refusal_of_certificate,
    refusal,
)
from acp_gateway.client.reaching.ways import dial_any
from acp_gateway.config.addresses import Address
from acp_gateway.errors import ProtocolError, Unreachable
from acp_gateway.printable import printable
from acp_gateway.transports.streams import ByteStream, closed_on_error
from acp_gateway.transports.websocket.client import UpgradeRefused
from acp_gateway.transports.websocket.tunnel import Tunnel, connect_tunnel

if TYPE_CHECKING:
    from acp_gateway.client.reaching.ways import Turn

_ENDPOINT: Final = "/acp"


class _Opened(NamedTuple):
    tunnel: Tunnel
    address: Address

    async def aclose(self) -> None:
        await self.tunnel.aclose()


async def open_tunnel(via: Via) -> tuple[Tunnel, Address]:
    """Open a tunnel over the first address of the door that works, and return it with that.

    Raises `Unreachable`, an `AccessError` of the door, and `ProtocolError`. Cancelling closes it.
    """
    return await open_tunnel_at(via.door, f"/nodes/{via.node}/tunnel", "tunnels")


async def open_tunnel_at(gateway: Destination, path: str, what: str) -> tuple[Tunnel, Address]:
    """Open a tunnel at a path of a gateway, over its first address that works; return it with that.

    `what` the gateway has to serve there, for the error. Raises as `open_tunnel`, which is one of these.
    """

    async def open_at(place: Destination, turn: "Turn") -> _Opened:
        stream = await open_connection(place)
        async with closed_on_error(stream):
            if place.demands_proof:
                try:
                    await demand_proof(stream, place)
                except trio.BrokenResourceError as error:
                    raise Unreachable(f"{place.address}: {error}") from error
            async with turn():
                return _Opened(await _ask(stream, place, path, what), place.address)

    return await dial_any(gateway, open_at) if gateway.others else await open_at(gateway, nullcontext)


async def _ask(stream: ByteStream, place: Destination, path: str, what: str) -> Tunnel:
    """Ask a gateway for a tunnel over a connection."""
    address = place.address
    headers = {"User-Agent": f"acp-gateway/{__version__}"}
    if place.token is not None:
        headers["Authorization"] = f"Bearer {place.token}"
    uri = WebSocketURI(address.tls, address.host, address.port, f"{address.path.removesuffix(_ENDPOINT)}{path}", "")
    try:
        return await connect_tunnel(stream, uri, headers)
    except UpgradeRefused as error:
        if error.refusal is not None:
            raise refusal(place, error.status, error.text, error.refusal) from error
        if printable(error.text) == OTHER_PATH:
            raise ProtocolError(f"{address}: the gateway there is too old for {what}: update it") from error
        raise foreign_answer(address, error) from error
    except ProtocolError as error:
        raise ProtocolError(f"{address}: {error}") from error
    except trio.BrokenResourceError as error:
        raise_refusal_of_certificate(place, error)
        raise Unreachable(f"{address}: {error}") from error
