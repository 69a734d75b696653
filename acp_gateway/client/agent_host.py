"""Carries the Agent Host Protocol from a port of this machine to a gateway, for windows of VS Code.

A window can neither send a header nor trust a certificate by its pin. So it connects to loopback, with a token of this
port in the query, and the laptop's own token goes to the gateway in a header, over the best address that works then.

Each connection of a window is one to the gateway. If either is lost, the other is closed: the protocol has its own
`reconnect`, by which a window that dials again loses nothing. To hold its connection until then would need a second way
of resuming, with its own memory at the gateway, and would only hide from the window that it sees an old state.
"""

import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

import trio

from acp_gateway.client.dialing import Destination, dial, explain_silence
from acp_gateway.client.ports import forwarding
from acp_gateway.client.ports.forwarding import CONNECTIONS, LOCALHOST, OPEN_TIMEOUT, over_http, port_of
from acp_gateway.config.addresses import Address
from acp_gateway.errors import AccessError, CannotListen, GatewayError, Unreachable
from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.sockets import SocketBytes, take_socket
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.websocket.server import upgrade
from acp_gateway.transports.websocket.stream import Timing

PARAMETER: Final = "tkn"
"""The parameter of the query in which a window shows its token."""

HEAD_TIMEOUT: Final = 10.0
"""Seconds for a program of this machine to send its request."""

_ENDPOINT: Final = "/acp"
_LOST: Final = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)


def host_of(destination: Destination) -> Destination:
    """Return the agent host of a gateway. Raises `UsageError` if no address is for WebSockets."""

    def there(address: Address) -> Address:
        return replace(address, path=f"{address.path.removesuffix(_ENDPOINT)}/ahp")

    place = over_http(destination, "an agent host is reached")
    return replace(place, address=there(place.address), others=tuple(map(there, place.others)))


async def listen(port: int, target: str) -> trio.SocketListener:
    """Listen on a port of this machine, 0 for any free one. Raises `CannotListen` with the next command."""
    try:
        return await forwarding.listen(port, port, target)
    except CannotListen as error:
        text = f"port {port} is taken on this machine, or for root: `acp-gateway connect {target} --ahp --port 0`"
        raise CannotListen(f"{text} takes a free one") from error


def url_of(listener: trio.SocketListener, secret: str) -> str:
    """Return the URL that a window is given."""
    return f"ws://{LOCALHOST}:{port_of(listener)}/?{PARAMETER}={secret}"


async def serve_windows(
    listener: trio.SocketListener,
    destination: Callable[[], Destination],
    secret: str,
    report: Callable[[str], None],
) -> None:
    """Carry each connection of a listener to a gateway, until cancelled, which closes all of them.

    Args:
        listener: a listener of this machine, on loopback.
        destination: returns the agent host, as hosts.toml and the environment are then; may raise `GatewayError`.
        secret: the token that windows show.
        report: told in a line why a window could not be connected.
    """
    opened = trio.CapacityLimiter(CONNECTIONS)

    async def serve(stream: trio.SocketStream) -> None:
        local = SocketBytes(take_socket(stream))
        try:
            if opened.available_tokens < 1:
                report(f"{CONNECTIONS} windows are connected already; one more was refused")
                return
            async with opened:
                with suppress(*_LOST):
                    await _serve(HttpConnection(local, CLOSE_TIMEOUT), destination, secret, report)
        finally:
            await local.aclose()

    await trio.serve_listeners(serve, [listener])


async def _serve(
    http: HttpConnection, destination: Callable[[], Destination], secret: str, report: Callable[[str], None]
) -> None:
    """Serve one connection to its end. Raises what its stream raises."""
    request = None
    try:
        with trio.move_on_after(HEAD_TIMEOUT):
            request = await http.receive_request()
    except HttpError as error:
        await _refuse(http, error.status, str(error))
    if request is None:
        return
    if not _shows(request, secret):
        text = "not the URL that `acp-gateway connect --ahp` has printed: each start prints another one"
        await _refuse(http, HTTPStatus.FORBIDDEN, text)
        return
    try:
        place = destination()
        gateway = await _dial(place)
    except GatewayError as error:
        report(str(error))
        status = error.http_status if isinstance(error, AccessError) else HTTPStatus.SERVICE_UNAVAILABLE
        await _refuse(http, status, str(error))
        return
    try:
        window = await upgrade(http, request, {}, max_message_size=place.max_message_size, timing=Timing())
        if isinstance(window, Response):
            await http.respond(window)
            await http.aclose()
        else:
            await _carry(window, gateway)
    finally:
        with trio.CancelScope(shield=True):
            await gateway.aclose()


async def _refuse(http: HttpConnection, status: int, text: str) -> None:
    await http.respond(Response.of_text(status, text, close=True))
    await http.aclose()


def _shows(request: Request, secret: str) -> bool:
    """Return whether a request has the token of this port in its query."""
    shown = parse_qs(request.query, keep_blank_values=True).get(PARAMETER, [])
    return len(shown) == 1 and hmac.compare_digest(shown[0].encode(errors="replace"), secret.encode())


async def _dial(place: Destination) -> MaintainedStream:
    """Connect to the gateway. Raises `GatewayError`. Cancelling closes the connection."""
    with trio.move_on_after(OPEN_TIMEOUT):
        return await dial(place, Timing())
    raise Unreachable(f"{explain_silence(str(place.address))} (tried for {OPEN_TIMEOUT:g} s)")


async def _carry(window: MaintainedStream, gateway: MaintainedStream) -> None:
    """Copy messages both ways until one side has ended, and close the window's."""

    async def copy(source: MaintainedStream, sink: MaintainedStream) -> None:
        with suppress(*_LOST):
            while True:
                await sink.send_batch(await source.receive_batch())
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for stream in (window, gateway):
                nursery.start_soon(stream.run)
            nursery.start_soon(copy, window, gateway)
            nursery.start_soon(copy, gateway, window)
    finally:
        with trio.CancelScope(shield=True):
            await window.aclose(CloseReason.GOING_AWAY, "the connection to the gateway was lost: connect again")
