"""The server's side of the WebSocket handshake: one HTTP request, answered with an upgrade or with another response.

It is a module of its own because the client's start-up does not need it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import trio
from websockets.exceptions import NegotiationError
from websockets.http11 import Request
from websockets.protocol import SERVER, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.streams import ByteStream
from acp_gateway.transports.websocket import LibraryProtocol, Timing, WebSocketStream, library_log, send_all

SUBPROTOCOL: Final = Subprotocol("acp.v1")
"""The subprotocol that a client without own headers offers, beside its token."""

HEAD_SIZE: Final = 65536
"""Maximum bytes of a request. The library limits one line and the number of lines, which together allow a mebibyte; no
client of this program sends as much as one line may hold."""

_END_OF_HEAD: Final = b"\r\n\r\n"

_WHAT_IS_ASKED_FOR: Final = (
    b"this is not understood: a WebSocket begins with a GET request of HTTP/1.1 that has no body"
    b" (behind nginx: proxy_http_version 1.1)\n"
)

BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: %d\r\n%b\r\n%b" % (
    len(_WHAT_IS_ASKED_FOR),
    b"Content-Type: text/plain; charset=utf-8\r\n",
    _WHAT_IS_ASKED_FOR,
)
"""Response to bytes that the library does not parse as an HTTP request."""

_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([!-~]{1,8000}) HTTP/1\.[01]\r?\n")
"""Beginning of a request. The library reads no other method than GET."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Accept the upgrade, with these headers in the response."""

    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer with this status and line of text instead of upgrading."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before the response is sent."""


@dataclass(slots=True)
class _Asked:
    """The first request of a connection."""

    request: Request | None = None
    """The request; None if the library cannot parse it."""
    behind: bytes = b""
    """Bytes after the request."""
    declined: str | None = None
    """Target of a request with another method than GET."""


class _Server(LibraryProtocol, ServerProtocol):
    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        # A token may be among the subprotocols, so no other subprotocol is ever echoed.
        if not subprotocols:
            return None
        if SUBPROTOCOL in subprotocols:
            return SUBPROTOCOL
        raise NegotiationError(f"none of the subprotocols is known here; offer {SUBPROTOCOL}")


async def accept_websocket(
    stream: ByteStream,
    decide: Callable[[Request], Accept | Respond],
    *,
    max_message_size: int,
    timing: Timing,
    decline: Callable[[str], Respond] | None = None,
) -> WebSocketStream | None:
    """Answer one HTTP request on a new connection: upgrade if `decide` accepts and the request is valid.

    `decline` answers requests with another method than GET, by their target; without it, the library does.

    Returns None after another response; the stream is closed then. `decide` gets every HTTP request and must check
    host, path, origin and token. Bytes are bounded (8 KiB a line, 128 headers, `HEAD_SIZE` in all); the caller bounds
    the time. No extension is ever negotiated, so compressed frames violate the protocol. Raises `BrokenResourceError`.
    When cancelled, it leaves the stream to the caller.
    """
    protocol = _Server(max_size=max_message_size, logger=library_log)
    asked = await _read_request(protocol, stream, only_get=decline is not None)
    request, behind = asked.request, asked.behind
    if asked.declined is not None and decline is not None:
        answer = decline(asked.declined)
        response = protocol.reject(answer.status, answer.text + "\n")
        response.headers.update(answer.headers)
        protocol.send_response(response)
    elif request is not None:
        decision = decide(request)
        if isinstance(decision, Accept):
            response = protocol.accept(request)
        else:
            if decision.delay:
                await trio.sleep(decision.delay)
            response = protocol.reject(decision.status, decision.text + "\n")
        if isinstance(decision, Respond) or response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            response.headers.update(decision.headers)
        protocol.send_response(response)
    if protocol.state is not State.OPEN:
        await _answer_and_close(protocol, stream)
        return None
    # Another protocol object for the frames: that of the handshake would keep the request in memory.
    frames = LibraryProtocol(SERVER, max_size=max_message_size, logger=library_log)
    frames.idle = True
    await send_all(stream, b"".join(protocol.data_to_send()))
    return WebSocketStream(frames, stream, timing, behind=behind)


async def _read_request(protocol: _Server, stream: ByteStream, *, only_get: bool) -> _Asked:
    """Read up to the end of the request; with `only_get` and another method, up to the end of its first line.

    The bytes after it are kept back, because the library would parse them as frames and answer them before the request.
    """
    seen = b""
    # The bytes up to the end of the first line.
    beginning = b""
    total = 0
    while protocol.handshake_exc is None:
        data = await stream.receive_some()
        if not data:
            protocol.receive_eof()
            break
        if only_get and b"\n" not in beginning:
            beginning += data
            line = _REQUEST_LINE.match(beginning)
            if line is not None and line[1] != b"GET":
                return _Asked(declined=line[2].decode())
        end = (seen + data).find(_END_OF_HEAD)
        size = len(data) if end < 0 else end + len(_END_OF_HEAD) - len(seen)
        total += size
        if total > HEAD_SIZE:
            text = f"a request must not be larger than {HEAD_SIZE} bytes\n"
            protocol.send_response(protocol.reject(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text))
            break
        seen = (seen + data)[-(len(_END_OF_HEAD) - 1) :]
        protocol.receive_data(data[:size])
        for request in protocol.events_received():
            assert isinstance(request, Request)
            return _Asked(request, data[size:])
    return _Asked()


async def _answer_and_close(protocol: _Server, stream: ByteStream) -> None:
    """Send the last response, and close once the peer has read it or `CLOSE_TIMEOUT` has passed."""
    answer = b"".join(protocol.data_to_send()) or BAD_REQUEST
    try:
        with trio.move_on_after(CLOSE_TIMEOUT):
            await send_all(stream, answer)
            await stream.finish()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await stream.aclose()
