"""The client's side of the WebSocket handshake: one upgrade request, and the stream after its response."""

from collections.abc import Mapping
from typing import Final

import trio
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response
from websockets.uri import WebSocketURI

from acp_gateway.errors import ProtocolError
from acp_gateway.printable import printable
from acp_gateway.security.token_format import without_token
from acp_gateway.transports.streams import ByteStream, send_all
from acp_gateway.transports.websocket.stream import (
    REFUSAL_HEADER,
    LibraryProtocol,
    Timing,
    WebSocketStream,
    library_log,
)

ANSWER_SIZE: Final = 262_144
"""Maximum bytes of the response to the handshake: a refusal is a line, or the page of a proxy."""

SLICE: Final = 4096
"""Bytes of it after which other tasks get their turn: a page in chunks of one byte takes 5 µs for each of them."""

_SWITCHING: Final = b"HTTP/1.1 101"
_END: Final = b"\r\n\r\n"
"""The beginning of a response that has no body, and the end of its head."""


class UpgradeRefused(ProtocolError):
    """The server answered the upgrade request with another status than 101."""

    def __init__(self, status: int, text: str, headers: Headers) -> None:
        self.status = status
        self.text = text
        self.headers = headers
        """Those of the response."""
        self.refusal = next(iter(headers.get_all(REFUSAL_HEADER)), None)
        """Machine-readable reason of a gateway's own refusal; None from a proxy or another server."""
        super().__init__(f"the server answered HTTP {status} instead of opening a WebSocket: {text}")


class _Client(LibraryProtocol, ClientProtocol):
    pass


async def connect_websocket(
    stream: ByteStream,
    uri: WebSocketURI,
    headers: Mapping[str, str],
    *,
    max_message_size: int,
    size_setting: str = "max_message_size",
    timing: Timing,
) -> WebSocketStream:
    """Open a WebSocket over a connected stream, with these headers in the request.

    A message from the server of more than `max_message_size` bytes ends it, with an error that names `size_setting`.

    Raises `UpgradeRefused` with the server's status, `ProtocolError` if the response is not HTTP, and
    `BrokenResourceError` if the connection is lost. When cancelled or failed, it leaves the stream to the caller.
    """
    protocol, response, behind = await shake_hands(stream, uri, headers, max_message_size)
    protocol.size_setting = size_setting
    return WebSocketStream(protocol, stream, timing, dict(response.headers.raw_items()), behind=behind)


async def shake_hands(
    stream: ByteStream, uri: WebSocketURI, headers: Mapping[str, str], max_message_size: int
) -> tuple[LibraryProtocol, Response, bytes]:
    """Ask for a WebSocket; return its protocol object, the response, and the bytes behind that."""
    protocol = _Client(uri, max_size=max_message_size, logger=library_log)
    request = protocol.connect()
    request.headers.update(headers)
    protocol.send_request(request)
    await send_all(stream, b"".join(protocol.data_to_send()))
    response: object = None
    head, behind = bytearray(), b""
    while response is None and protocol.handshake_exc is None:
        data = await stream.receive_some()
        if data:
            head += data
            if head.startswith(_SWITCHING):
                # Frames after the response stay for the first `receive_batch`.
                behind = bytes(head).partition(_END)[2]
            elif len(head) > ANSWER_SIZE:
                raise ProtocolError(
                    f"the server there answers with more than {ANSWER_SIZE} bytes instead of a WebSocket"
                )
            await _feed(protocol, data[: len(data) - len(behind)])
        else:
            protocol.receive_eof()
        response = next(iter(protocol.events_received()), None)
    error = protocol.handshake_exc
    if error is None:
        assert isinstance(response, Response)
        protocol.idle = True
        return protocol, response, behind
    if isinstance(error, InvalidStatus):
        response = error.response
        raise UpgradeRefused(response.status_code, _first_line(response, headers), response.headers)
    if isinstance(error.__cause__, EOFError):
        raise trio.BrokenResourceError("the server closed the connection during the handshake")
    raise ProtocolError(f"the server there does not speak WebSocket: {error}")


async def _feed(protocol: ClientProtocol, data: bytes) -> None:
    """Parse a part of the response."""
    for start in range(0, len(data), SLICE):
        if start:
            await trio.lowlevel.checkpoint()
        protocol.receive_data(data[start : start + SLICE])


def _first_line(response: Response, headers: Mapping[str, str]) -> str:
    """Return the first line of a refusal's body, without control characters and the token of the request."""
    lines = without_token(bytes(response.body).decode(errors="replace"), headers).strip().splitlines()
    return printable(lines[0] if lines else response.reason_phrase, size=200)
