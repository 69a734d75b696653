"""The accepting side of a WebSocket: one HTTP request, answered with a WebSocket or with something else.

Apart from `websocket` because the client's start-up does without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from websockets.exceptions import NegotiationError
from websockets.http11 import Request
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from acp_gateway.transports.base import ByteStream, ByteWriter
from acp_gateway.transports.websocket import (
    GOODBYE_TIMEOUT,
    NamesLimit,
    Timing,
    WebSocketStream,
    first_event,
    library_log,
)

SUBPROTOCOL: Final = Subprotocol("acp.v1")
"""The subprotocol that clients offer which can't send headers; their token stands beside it."""

BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""The answer to bytes in which the library finds no HTTP request."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Go on with the upgrade, with these headers in the 101."""

    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer with this status and a line of text instead of upgrading."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class _Server(NamesLimit, ServerProtocol):
    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        # A token may stand among the subprotocols: none but ours is ever echoed.
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
) -> WebSocketStream | None:
    """Answer one HTTP request on a fresh connection: with a WebSocket where `decide` accepts and the request is sound.

    Returns None when something else was answered; the stream is closed then. `decide` sees every HTTP request and
    must check path, origin and token. Bytes are bounded by the library (8 KiB a line, 128 headers); the time is the
    caller's to bound. Raises `BrokenResourceError`. Cancelled, it leaves the stream to the caller.
    """
    protocol = _Server(max_size=max_message_size, logger=library_log)
    request = await first_event(protocol, stream)
    headers: Mapping[str, str] = {}
    if isinstance(request, Request):
        decision = decide(request)
        if isinstance(decision, Accept):
            response = protocol.accept(request)
            if response.status_code == 101:
                headers = decision.headers
        else:
            response = protocol.reject(decision.status, decision.text + "\n")
            headers = decision.headers
        response.headers.update(headers)
        protocol.send_response(response)
    if protocol.state is State.OPEN:
        websocket = WebSocketStream(protocol, stream, timing, dict(headers))
        websocket.flush()
        return websocket
    output = protocol.data_to_send()
    if output == [SEND_EOF]:
        output = [BAD_REQUEST]
    await _send_and_close(stream, b"".join(output))
    return None


async def _send_and_close(stream: ByteStream, data: bytes) -> None:
    """Send a last answer and close once the peer has read it, or does not."""
    writer = ByteWriter(stream)
    try:
        with trio.move_on_after(GOODBYE_TIMEOUT):
            writer.write(data)
            await writer.drain()
            await stream.send_eof()
            while await stream.receive_some():
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await stream.aclose()
