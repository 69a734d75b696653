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

    async def open_at(door: Destination, turn: "Turn") -> _Opened:
        stream = await open_connection(door)
        async with closed_on_error(stream):
            if door.demands_proof:
                try:
                    await demand_proof(stream, door)
                except trio.BrokenResourceError as error:
                    raise Unreachable(f"{door.address}: {error}") from error
            async with turn():
                return _Opened(await _ask(stream, door, via.node), door.address)

    return await dial_any(via.door, open_at) if via.door.others else await open_at(via.door, nullcontext)


async def _ask(stream: ByteStream, door: Destination, node: str) -> Tunnel:
    """Ask a door for a tunnel over a connection."""
    address = door.address
    path = f"{address.path.removesuffix(_ENDPOINT)}/nodes/{node}/tunnel"
    headers = {"User-Agent": f"acp-gateway/{__version__}"}
    if door.token is not None:
        headers["Authorization"] = f"Bearer {door.token}"
    try:
        return await connect_tunnel(stream, WebSocketURI(address.tls, address.host, address.port, path, ""), headers)
    except UpgradeRefused as error:
        if error.refusal is not None:
            raise refusal(door, error.status, error.text, error.refusal) from error
        if printable(error.text) == OTHER_PATH:
            raise ProtocolError(f"{address}: the gateway there is too old for tunnels: update it") from error
        raise foreign_answer(address, error) from error
    except ProtocolError as error:
        raise ProtocolError(f"{address}: {error}") from error
    except trio.BrokenResourceError as error:
        raise_refusal_of_certificate(door, error)
        raise Unreachable(f"{address}: {error}") from error
