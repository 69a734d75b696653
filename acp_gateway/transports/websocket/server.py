"""The accepting side of a WebSocket: an HTTP request that asks for an upgrade, and what it becomes.

Apart from `websocket` because the client's start-up does without it.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from websockets.exceptions import NegotiationError
from websockets.http11 import Request as LibraryRequest
from websockets.protocol import SERVER
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.streams import send_all
from acp_gateway.transports.websocket.stream import LibraryProtocol, Timing, WebSocketStream, library_log
from acp_gateway.transports.websocket.tunnel import TUNNEL_FRAME, Tunnel

SUBPROTOCOL: Final = Subprotocol("acp.v1")
"""The subprotocol that clients offer which can't send headers; their token stands beside it."""

VERSION: Final = "13"
"""The one version of the protocol that became a standard (RFC 6455)."""

_ADVICE: Final = ("Upgrade", "Sec-WebSocket-Version")
"""Headers of a refusal that say what to ask for."""


class _Server(LibraryProtocol, ServerProtocol):
    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        # A token may stand among the subprotocols: none but ours is ever echoed.
        if not subprotocols:
            return None
        if SUBPROTOCOL in subprotocols:
            return SUBPROTOCOL
        raise NegotiationError(f"none of the subprotocols is known here; offer {SUBPROTOCOL}")


async def upgrade(
    http: HttpConnection,
    request: Request,
    headers: Mapping[str, str],
    *,
    max_message_size: int,
    timing: Timing,
    binary: bool = False,
) -> WebSocketStream | Response:
    """Answer a request with a WebSocket; return the response that refuses it if the upgrade is not sound.

    The caller has checked host, path, origin and token. `headers` are added to the 101. With `binary`, the client's
    binary messages count as text. No extension is negotiated, so a compressed frame violates the protocol. Raises
    `BrokenResourceError`. Cancelled, it leaves the stream to the caller.
    """
    accepted = await _shake_hands(http, request, headers, max_message_size)
    if isinstance(accepted, Response):
        return accepted
    stream = WebSocketStream(accepted, http.stream, timing, behind=http.detach())
    if binary:
        stream.accept_binary()
    return stream


async def upgrade_to_tunnel(http: HttpConnection, request: Request, headers: Mapping[str, str]) -> Tunnel | Response:
    """Answer a request with a tunnel, as `upgrade` answers with a WebSocket."""
    accepted = await _shake_hands(http, request, headers, TUNNEL_FRAME)
    return accepted if isinstance(accepted, Response) else Tunnel(accepted, http.stream, behind=http.detach())


async def _shake_hands(
    http: HttpConnection, request: Request, headers: Mapping[str, str], max_message_size: int
) -> LibraryProtocol | Response:
    """Answer a request with the 101; return the protocol object for what follows, or the response that refuses it."""
    if request.method != "GET":
        text = "a WebSocket begins with a GET request"
        return Response.of_text(HTTPStatus.METHOD_NOT_ALLOWED, text, {"Allow": "GET"}, close=True)
    if request.version != "1.1":
        text = "a WebSocket begins with a request of HTTP/1.1 (behind nginx: proxy_http_version 1.1)"
        return Response.of_text(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, text, close=True)
    if request.headers.get_all("Sec-WebSocket-Version") not in ([], [VERSION]):
        # RFC 6455, 4.2.2: the library does not name the version.
        text = f"only version {VERSION} of WebSocket is known here"
        return Response.of_text(HTTPStatus.UPGRADE_REQUIRED, text, {"Sec-WebSocket-Version": VERSION}, close=True)
    protocol = _Server(max_size=max_message_size, logger=library_log)
    response = protocol.accept(LibraryRequest(request.path, request.headers))
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        advice = {name: response.headers[name] for name in _ADVICE if name in response.headers}
        return Response.of_text(response.status_code, bytes(response.body or b"").decode().strip(), advice, close=True)
    response.headers.update(headers)
    protocol.send_response(response)
    # For what comes then, a protocol object of its own: the one of the handshake holds on to the request for ever.
    frames = LibraryProtocol(SERVER, max_size=max_message_size, logger=library_log)
    frames.idle = True
    await send_all(http.stream, b"".join(protocol.data_to_send()))
    return frames
