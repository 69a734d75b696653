"""From an address and a token to a stream of messages: what a client does to get in, on every transport.

The token is sent to nobody who has not shown that it is the gateway: over TLS only after the certificate was accepted,
by the system's authorities, by the user's own, or by its pin. Without TLS it is shown to whoever has the address: on
this machine, whoever could bind the port or the socket's path; elsewhere only where the user has asked for that.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import trio
from websockets.uri import WebSocketURI

from acp_gateway import __version__
from acp_gateway.config.addresses import Address
from acp_gateway.errors import (
    AccessError,
    Forbidden,
    GatewayError,
    LinkExpired,
    LinkGone,
    ProtocolError,
    TooFarBehind,
    TrustError,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
    Unreachable,
)
from acp_gateway.printable import printable
from acp_gateway.security.tls import check_pin, client_context
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.sockets import (
    CERTIFICATE_REQUIRED,
    SocketBytes,
    certificate_alert,
    connect_tcp,
    connect_unix,
)
from acp_gateway.transports.streams import ByteStream, MessageStream
from acp_gateway.transports.websocket import CONNECTION_ID, RESUME, Timing, UpgradeRefused, connect_websocket

if TYPE_CHECKING:
    from acp_gateway.client.ssh import SshBytes

_REFUSALS: Final[Sequence[type[AccessError]]] = (
    Unauthorized,
    Forbidden,
    UnknownAgent,
    UnknownSession,
    TooFarBehind,
    LinkGone,
    LinkExpired,
)
"""What a gateway may say, by its number; of those with the same number the first, unless the reason says another."""

_BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of a proxy whose gateway is not there yet, and of one that asks for patience."""

_GATEWAY_DOWN: Final = frozenset({502, 503, 504})
"""Those of a proxy that does not reach its gateway."""

_NOT_FOUND: Final = 404

OTHER_PATH: Final = "there is nothing here; the endpoint is /acp"
"""What a gateway says at another path."""

_SECURE: Final = {"ws": "wss", "tcp": "tcp+tls"}
"""The schemes with TLS that go with those without."""

_ID: Final = re.compile(r"[\x21-\x7e]{1,64}")
"""A connection's id: fit for a header, and for a line of a log."""

_COUNT: Final = re.compile(r"[0-9]{1,15}")
"""A number of messages, as a header has it."""

_LAST_WORDS: Final = 1.0
"""Seconds to wait for what a server said before it left: that came before the news that it has left."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to go and what to show there."""

    address: Address
    agent: str | None
    """None for the gateway's default agent, or the token's only one."""
    token: str | None
    """None for a server that wants none: over a unix socket, through ssh, with a client certificate, or another's."""
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
    command: str | None = None
    """Where this program is on the far machine, for `ssh`; None to look for it."""
    ssh_options: tuple[str, ...] = ()
    """Further options of ssh, each as `Name=value`."""
    cert: Path | None = None
    key: Path | None = None
    """A client certificate and its key, both or neither; for TLS."""
    token_hint: str = ""
    """Why the token may not be accepted, and what helps; for the error that says so."""

    @property
    def wish(self) -> dict[str, str | bool]:
        """What is asked for there, as the parameters of a hello."""
        wish = {"agent": self.agent, "session": self.session, "observe": self.observe, "control": self.control}
        return {name: value for name, value in wish.items() if value is not None and value is not False}

    def __repr__(self) -> str:
        return f"Destination({self.address})"


def explain_silence(address: str) -> str:
    """What it may mean that nothing came back from an address."""
    if address.startswith("ssh://"):
        login = re.sub(r":[0-9]+$", "", address.removeprefix("ssh://").partition("/")[0])
        return (
            f"{address}: ssh logged in, but nothing came back: does a profile there (.bashrc) wait for input? Try: ssh "
            f"{login} acp-gateway --version"
        )
    return f"{address}: no answer; is it the gateway's port, and does no firewall drop connections?"


class Resume(NamedTuple):
    """What is asked of a gateway with a link: a new one that can be resumed, or one that was there before."""

    connection_id: str | None = None
    """None for a new link."""
    received: int = 0
    """How many messages have been received over the link; none over a new one."""

    @property
    def headers(self) -> dict[str, str]:
        """The same for an upgrade."""
        if self.connection_id is None:
            return {RESUME: "0"}
        return {CONNECTION_ID: self.connection_id, RESUME: str(self.received)}

    @property
    def params(self) -> dict[str, str | int]:
        """The same for a hello."""
        return {} if self.connection_id is None else {"connectionId": self.connection_id, "received": self.received}


class Dialed(NamedTuple):
    """A connection to a gateway, and what the gateway says of its link."""

    stream: MessageStream
    """Ready for `initialize`, or for what is missing of a link that goes on."""
    connection_id: str | None
    """What the link is resumed by. Without `received` only a name, or None."""
    received: int | None
    """How many messages of the link the gateway has received; None where it knows nothing of resuming."""


async def dial(destination: Destination, timing: Timing) -> MessageStream:
    """Connect, authenticate, and return a stream that is ready for `initialize`.

    Raises:
        Unreachable: nobody answers, or not now.
        TrustError: the certificate is not the one that was promised, and no token was sent; or the far side does not
            accept the client's.
        AccessError: the gateway itself says no, and would say so again. What a proxy says is never one of these.
        ProtocolError: whoever answers there is no gateway.

    Cancelling closes the connection.
    """
    return (await _dial(destination, timing, None)).stream


async def dial_link(destination: Destination, timing: Timing, resume: Resume) -> Dialed:
    """The same for a link that outlives its connection: ask for a new one, or go on with one that there was.

    Raises what `dial` raises, and where a link can't be resumed:
        TooFarBehind, LinkExpired, LinkGone: the gateway says so.
        ProtocolError: whoever answers there does not say how many messages of this link it has received.

    Cancelling closes the connection. The gateway may have taken up the link then: resuming it again is right.
    """
    return await _dial(destination, timing, resume)


async def _dial(destination: Destination, timing: Timing, resume: Resume | None) -> Dialed:
    address = destination.address
    try:
        stream = await _connect(destination)
    except Unreachable as error:
        # With TLS 1.2 the client's certificate is refused in the handshake.
        _raise_refusal_of_certificate(destination, error)
        raise
    try:
        if destination.pin is not None and address.tls:
            assert isinstance(stream, SocketBytes)
            check_pin(stream.peer_certificate, destination.pin)
        if address.websocket:
            return await _upgrade(stream, destination, timing, resume)
        return await _say_hello(stream, destination, resume)
    except trio.BrokenResourceError as error:
        try:
            _raise_refusal_of_certificate(destination, error)
            if address.tls:
                _raise_refusal_of_certificate(destination, await _last_words(stream))
        finally:
            await stream.aclose()
        hint = (
            ""
            if address.tls or address.scheme not in _SECURE
            else f"; if this port wants TLS, use {_SECURE[address.scheme]}://"
        )
        raise Unreachable(f"{address}: {error}{hint}") from error
    except BaseException:
        await stream.aclose()
        raise


async def _connect(destination: Destination) -> "SocketBytes | SshBytes":
    address = destination.address
    if address.scheme == "ssh":
        # Nobody else's start-up should wait for it.
        from acp_gateway.client.ssh import Way, open_relay

        return await open_relay(Way(address, destination.command, destination.ssh_options))
    if address.scheme == "unix":
        return await connect_unix(address.path)
    context = None
    if address.tls:
        context = client_context(ca=destination.ca, pin=destination.pin, cert=destination.cert, key=destination.key)
    return await connect_tcp(address.host, address.port, context)


async def _last_words(stream: ByteStream) -> trio.BrokenResourceError | None:
    """What reading from a stream ends with that can't be written to: a server may have said why before it left."""
    with trio.move_on_after(_LAST_WORDS):
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError as error:
            return error
    return None


def _raise_refusal_of_certificate(destination: Destination, error: BaseException | None) -> None:
    """Raise `TrustError` where an error comes of what the far side has against the client's certificate."""
    alert = certificate_alert(error)
    if destination.cert is None and alert == CERTIFICATE_REQUIRED:
        raise TrustError(f"{destination.address} wants a client certificate: give --cert and --key") from error
    if destination.cert is None or alert is None:
        return
    raise TrustError(
        f"{destination.address}: the gateway does not accept the client certificate {destination.cert} ({alert}): it "
        f"has to be for clients, in force (`acp-gateway certs show {destination.cert}` says when), and of an authority "
        "in the gateway's client_ca"
    ) from error


async def _upgrade(stream: ByteStream, destination: Destination, timing: Timing, resume: Resume | None) -> Dialed:
    address = destination.address
    query = {name: "1" if value is True else value for name, value in destination.wish.items()}
    headers = {"User-Agent": f"acp-gateway/{__version__}"}
    if destination.token is not None:
        headers["Authorization"] = f"Bearer {destination.token}"
    if resume is not None:
        headers |= resume.headers
    try:
        websocket = await connect_websocket(
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
        if error.mark is None:
            raise _foreign_answer(address, error) from error
        raise _refusal(destination, error.status, error.text, error.mark) from error
    except ProtocolError as error:
        raise ProtocolError(f"{address}: {error}") from error
    answer = {name.lower(): value for name, value in websocket.headers.items()}
    count = answer.get(RESUME.lower())
    received = int(count) if count is not None and _COUNT.fullmatch(count) else count
    return _dialed(websocket, destination, resume, answer.get(CONNECTION_ID.lower()), received)


def _foreign_answer(address: Address, error: UpgradeRefused) -> GatewayError:
    """The error for an HTTP status that is no refusal of a gateway's own."""
    place = f"{address.host}:{address.port}"
    text = printable(error.text)
    if error.status in _GATEWAY_DOWN:
        return Unreachable(
            f"{place} answers, but the gateway behind it does not (HTTP {error.status}: {text}): is `acp-gateway "
            "serve` running there?"
        )
    if error.status in _BUSY:
        return Unreachable(f"{address}: not now ({error.status}): {text}")
    if error.status == _NOT_FOUND and text == OTHER_PATH:
        return ProtocolError(f"there is an acp-gateway at {place}, but not at {address.path}: leave the path out")
    if error.status == _NOT_FOUND:
        return ProtocolError(
            f"{place} has nothing at {address.path} (HTTP 404: {text}); the path of an acp-gateway is normally /acp"
        )
    return ProtocolError(
        f"{address} answered HTTP {error.status} ({text}), but not as an acp-gateway: is a proxy in between, and "
        "is the path /acp?"
    )


async def _say_hello(stream: ByteStream, destination: Destination, resume: Resume | None) -> Dialed:
    lines = LineStream(stream, max_message_size=destination.max_message_size, size_setting="--max-message-size")
    token = {} if destination.token is None else {"token": destination.token}
    link = {} if resume is None else {"resume": resume.params}
    hello = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "_acp-gateway/hello",
        "params": token | destination.wish | link,
    }
    await lines.send(json.dumps(hello).encode())
    text = b""
    try:
        text = await lines.receive()
        reply = json.loads(text)
    except trio.EndOfChannel:
        raise Unreachable(f"{destination.address}: the connection was closed without an answer") from None
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict) or not ("result" in reply or isinstance(reply.get("error"), dict)):
        if text.startswith(b"HTTP/"):
            address = destination.address
            websocket = "wss" if address.tls else "ws"
            raise ProtocolError(
                f"{address}: this port speaks WebSocket: use {websocket}://{address.host}:{address.port}"
            )
        raise ProtocolError(f"{destination.address}: the server there is not an acp-gateway")
    if "result" not in reply:
        raise refusal_by_error(destination, reply["error"])
    result = reply["result"] if isinstance(reply["result"], dict) else {}
    return _dialed(lines, destination, resume, result.get("connectionId"), result.get("received"))


def _dialed(
    stream: MessageStream, destination: Destination, resume: Resume | None, connection_id: object, received: object
) -> Dialed:
    """What a gateway says of a link, each None where it says nothing.

    Raises `ProtocolError` where that is no answer to what it was asked.
    """
    name = connection_id if isinstance(connection_id, str) and _ID.fullmatch(connection_id) else None
    if resume is None or (resume.connection_id is None and received is None):
        return Dialed(stream, name, None)
    where = f"{destination.address}: the answer to a link that can be resumed"
    if type(received) is not int or not 0 <= received < 10**15:
        raise ProtocolError(f"{where} has no number of messages; is a proxy or another server in between?")
    if name is None or resume.connection_id not in (None, name):
        raise ProtocolError(f"{where} is about another link; is a proxy or another server in between?")
    if resume.connection_id is None and received:
        raise ProtocolError(f"{where} says of a new one that {received} messages came over it")
    return Dialed(stream, name, received)


def refusal_by_error(destination: Destination, error: Mapping[str, Any]) -> GatewayError:
    """The error for the JSON-RPC error with which a gateway refuses.

    It is an `AccessError` only where a reason is given, by which a gateway's own refusal is known.
    """
    data = error.get("data")
    reason = data.get("reason") if isinstance(data, dict) else None
    message = error.get("message")
    return _refusal(
        destination,
        error.get("code"),
        message if isinstance(message, str) else "for no reason that is given",
        reason if isinstance(reason, str) else None,
    )


def _refusal(destination: Destination, number: object, text: str, reason: str | None) -> GatewayError:
    """The error for an HTTP status, or for the same number as the code of a JSON-RPC error, and for its reason.

    The reason is what shows that it is the gateway that refuses; None from anybody else.
    """
    text = printable(text)
    if type(number) is not int:
        return ProtocolError(f"{destination.address}: refused without a number: {text}")
    kinds = [kind for kind in _REFUSALS if kind.http_status == number]
    if kinds and reason is not None:
        kind = next((kind for kind in kinds if kind.reason == reason), kinds[0])
        if kind is Unauthorized and destination.cert is not None and destination.token is None:
            text += (
                f"; the client certificate was accepted, but is its subject, which `acp-gateway certs show "
                f"{destination.cert}` prints, in a [certificates.NAME] section there?"
            )
        elif kind is Unauthorized and destination.token_hint:
            text += f"; {destination.token_hint}"
        return kind(f"{destination.address}: {text}")
    if number in _BUSY:
        return Unreachable(f"{destination.address}: not now ({number}): {text}")
    return ProtocolError(f"{destination.address}: refused with {number}: {text}")
