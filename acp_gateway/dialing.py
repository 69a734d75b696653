"""From an address and a token to a stream of messages: what a client does to get in, on every transport.

The token is sent to nobody who has not shown that it is the gateway: over TLS only after the certificate was accepted,
by the system's authorities, by the user's own, or by its pin.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import trio
from websockets.uri import WebSocketURI

from acp_gateway import __version__
from acp_gateway.addresses import Address
from acp_gateway.errors import (
    AccessError,
    Forbidden,
    GatewayError,
    ProtocolError,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
)
from acp_gateway.tls import check_pin, client_context
from acp_gateway.transports.base import ByteStream, MessageStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import SocketBytes, connect_tcp, connect_unix
from acp_gateway.transports.websocket import Timing, UpgradeRefused, connect_websocket

_REFUSALS: Final[Sequence[type[AccessError]]] = (Unauthorized, Forbidden, UnknownAgent, UnknownSession)
"""What a gateway may say, by its number; of those with the same number the first, unless the reason says another."""

_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of a proxy whose gateway is not there yet, and of one that asks for patience."""


_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Control characters, other ends of lines, marks that turn the direction of a line, and halves of characters."""


def printable(text: str, size: int = 300) -> str:
    """What a stranger says, fit for one line of a terminal: `size` characters at most."""
    return _UNPRINTABLE.sub(" ", text)[:size].strip()


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to go and what to show there."""

    address: Address
    agent: str | None
    """None for the gateway's default agent, or the token's only one."""
    token: str | None
    """None only makes sense over a unix socket."""
    pin: str | None
    ca: Path | None
    max_message_size: int
    """Bytes of one message from the gateway."""
    session: str | None = None
    """The session to join; None to begin with one of its own."""
    observe: bool = False
    """To look only, whatever the token allows."""
    control: bool = False
    """To ask the gateway itself, and no agent."""

    @property
    def wish(self) -> dict[str, str | bool]:
        """What is asked for there, as the parameters of a hello."""
        wish = {"agent": self.agent, "session": self.session, "observe": self.observe, "control": self.control}
        return {name: value for name, value in wish.items() if value is not None and value is not False}

    def __repr__(self) -> str:
        return f"Destination({self.address})"


async def dial(destination: Destination, timing: Timing) -> MessageStream:
    """Connect, authenticate, and return a stream that is ready for `initialize`.

    Raises:
        Unreachable: nobody answers, or not now.
        TrustError: the certificate is not the one that was promised; no token was sent.
        AccessError: the gateway says no, and would say so again.
        ProtocolError: whoever answers there is no gateway.

    Cancelling closes the connection.
    """
    address = destination.address
    stream = await _connect(destination)
    try:
        if destination.pin is not None and address.tls:
            check_pin(stream.peer_certificate, destination.pin)
        if address.websocket:
            return await _upgrade(stream, destination, timing)
        return await _say_hello(stream, destination)
    except trio.BrokenResourceError as error:
        await stream.aclose()
        raise Unreachable(f"{address}: {error}") from error
    except BaseException:
        await stream.aclose()
        raise


async def _connect(destination: Destination) -> SocketBytes:
    address = destination.address
    if address.scheme == "unix":
        return await connect_unix(address.path)
    context = client_context(ca=destination.ca, pin=destination.pin) if address.tls else None
    return await connect_tcp(address.host, address.port, context)


async def _upgrade(stream: ByteStream, destination: Destination, timing: Timing) -> MessageStream:
    address = destination.address
    query = {name: "1" if value is True else value for name, value in destination.wish.items()}
    headers = {"User-Agent": f"acp-gateway/{__version__}"}
    if destination.token is not None:
        headers["Authorization"] = f"Bearer {destination.token}"
    try:
        return await connect_websocket(
            stream,
            WebSocketURI(
                address.tls, address.host, address.port, address.path, urlencode(query, quote_via=quote, safe="")
            ),
            headers,
            max_message_size=destination.max_message_size,
            size_setting="--max-message-size",
            timing=timing,
        )
    except UpgradeRefused as error:
        if error.mark is None and error.status not in _BUSY:
            raise ProtocolError(
                f"{destination.address} answered HTTP {error.status} ({error.text}), but not as an acp-gateway: is a "
                "proxy in between, and is the path /acp?"
            ) from error
        raise _refusal(destination, error.status, error.text, error.mark) from error
    except ProtocolError as error:
        raise ProtocolError(f"{address}: {error}") from error


async def _say_hello(stream: ByteStream, destination: Destination) -> MessageStream:
    lines = LineStream(stream, max_message_size=destination.max_message_size, size_setting="--max-message-size")
    token = {} if destination.token is None else {"token": destination.token}
    hello = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "_acp-gateway/hello",
        "params": token | destination.wish,
    }
    await lines.send(json.dumps(hello).encode())
    try:
        reply = json.loads(await lines.receive())
    except trio.EndOfChannel:
        raise Unreachable(f"{destination.address}: the connection was closed without an answer") from None
    except ValueError:
        reply = None
    if not isinstance(reply, dict) or not ("result" in reply or isinstance(reply.get("error"), dict)):
        raise ProtocolError(f"{destination.address}: whoever answers there is no acp-gateway")
    if "result" not in reply:
        raise refusal_by_error(destination, reply["error"])
    return lines


def refusal_by_error(destination: Destination, error: Mapping[str, Any]) -> GatewayError:
    """The error for the JSON-RPC error with which a gateway refuses."""
    data = error.get("data")
    reason = data.get("reason") if isinstance(data, dict) else None
    return _refusal(destination, error.get("code"), str(error.get("message")), reason)


def _refusal(destination: Destination, number: object, text: str, reason: object) -> GatewayError:
    """The error for an HTTP status, or for the same number as the code of a JSON-RPC error, and for its reason."""
    text = printable(text)
    kinds = [kind for kind in _REFUSALS if kind.http_status == number]
    if kinds:
        kind = next((kind for kind in kinds if kind.reason == reason), kinds[0])
        return kind(f"{destination.address}: {text}")
    if isinstance(number, int) and number in _BUSY:
        return Unreachable(f"{destination.address}: HTTP {number}: {text}")
    return ProtocolError(f"{destination.address}: refused with {number}: {text}")
