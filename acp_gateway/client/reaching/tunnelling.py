"""Reaches a gateway by TLS inside another stream of bytes: a tunnel of its door, or a connection that it lends.

A door can't read what passes through its tunnel. The certificate and the pin are the gateway's own, and so is the token
that is sent inside. The door gets a token of its own, which may allow nothing but the tunnel.
"""

import ssl
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
from acp_gateway.errors import ProtocolError, TrustError, Unreachable
from acp_gateway.printable import printable
from acp_gateway.security.tls import check_pin, client_context
from acp_gateway.transports.layers import TlsBytes, start_tls_inside
from acp_gateway.transports.sockets import NO_TLS, describe, explain_distrust
from acp_gateway.transports.streams import ByteStream, closed_on_error
from acp_gateway.transports.websocket.client import UpgradeRefused
from acp_gateway.transports.websocket.tunnel import Tunnel, connect_tunnel

if TYPE_CHECKING:
    from acp_gateway.client.reaching.ways import Turn

_ENDPOINT: Final = "/acp"
_HINT: Final = "the door may have answered in its place"


class _Opened(NamedTuple):
    tunnel: Tunnel
    address: Address
    """The door's."""

    async def aclose(self) -> None:
        await self.tunnel.aclose()


async def open_inside(destination: Destination) -> TlsBytes:
    """Open a connection to a gateway through its door, or one that it lends, and verify the gateway.

    Raises `Unreachable`, an `AccessError` of the door, `ProtocolError`, and `TrustError` for a door or another gateway
    that answers in place of this one. Cancelling closes it.
    """
    context = client_context(ca=destination.ca, pin=destination.pin, cert=destination.cert, key=destination.key)
    below: ByteStream
    if destination.via is not None:
        below, door = await _open_tunnel(destination.via)
        place, hint = f"{destination.via.node} through {door.host} port {door.port}", f"; {_HINT}"
    else:
        assert destination.opener is not None, "the caller has looked"
        below = await destination.opener()
        place, hint = f"{destination.address.host}, which lends its connections", ""
    try:
        stream = await start_tls_inside(below, context, server_hostname=destination.address.host)
    except ssl.SSLCertVerificationError as error:
        raise TrustError(f"the certificate of {place} is not trusted: {explain_distrust(error)}{hint}") from error
    except ssl.SSLError as error:
        why = describe(error)
        if error.reason in NO_TLS:
            raise ProtocolError(f"{place} does not speak TLS ({why}){hint}") from error
        raise Unreachable(f"no TLS with {place}: {why}; are bytes changed on the way, as by the door?") from error
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise Unreachable(f"cannot reach {place}: {printable(str(error))}") from error
    if destination.pin is not None:
        async with closed_on_error(stream):
            try:
                check_pin(stream.peer_certificate, destination.pin)
            except TrustError as error:
                raise TrustError(f"{place}: {error}{hint}") from None
    return stream


async def _open_tunnel(via: Via) -> _Opened:
    """Open a tunnel over the first address of the door that works."""

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
