"""Accepts one WebSocket on a stream, as a listener does, with a decision in place of tokens and routes."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from acp_gateway.transports.framing import CLOSE_TIMEOUT
from acp_gateway.transports.http.head import HttpError
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.streams import ByteStream
from acp_gateway.transports.websocket.server import upgrade
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream


@dataclass(frozen=True)
class Accept:
    """Upgrade, with these headers in the 101."""

    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Respond:
    """Respond with this status and a line of text instead."""

    status: int
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


async def accept_websocket(
    stream: ByteStream,
    decide: Callable[[Request], Accept | Respond],
    *,
    max_message_size: int = 1 << 20,
    timing: Timing,
) -> WebSocketStream | None:
    """Return the WebSocket; None if something else was answered, and the stream is closed."""
    http = HttpConnection(stream, CLOSE_TIMEOUT)
    try:
        request = await http.receive_request()
        if request is not None:
            decision = decide(request)
            if isinstance(decision, Accept):
                upgraded = await upgrade(
                    http, request, decision.headers, max_message_size=max_message_size, timing=timing
                )
                if isinstance(upgraded, WebSocketStream):
                    return upgraded
                await http.respond(upgraded)
            else:
                text = Response.of_text(
                    decision.status, decision.text, decision.headers, delay=decision.delay, close=True
                )
                await http.respond(text)
    except HttpError as error:
        with suppress(trio.BrokenResourceError):
            await http.respond(Response.of_text(error.status, str(error), close=True))
    await http.aclose()
    return None
