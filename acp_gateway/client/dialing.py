"""Connect to a gateway and authenticate, over any transport.

Over TLS the token is sent only after the certificate was verified: by the system's authorities, by the user's own, or
by its pin. Without TLS a gateway proves first that it knows the token (`security/proof.py`), and the token goes to
another machine only with `--insecure-plaintext`. A unix socket is trusted, and so is ssh, whose far end is one.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import trio
from websockets.uri import WebSocketURI

from acp_gateway import __version__
from acp_gateway.config.addresses import Address
from acp_gateway.errors import (
    BUSY,
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
    UnknownPort,
    UnknownSession,
    Unreachable,
)
from acp_gateway.printable import printable
from acp_gateway.protocol.methods import HELLO
from acp_gateway.protocol.size_limit import SizeLimit, read_size_limit
from acp_gateway.protocol.text.json_text import INVALID_PARAMS
from acp_gateway.security.proof import CHALLENGE, PROOF, Challenge
from acp_gateway.security.token_format import explain_flaw
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.parts import NO_PART, PartSum, read_part_sum
from acp_gateway.transports.sockets import (
    CERTIFICATE_REQUIRED,
    NO_TLS,
    SocketBytes,
    certificate_alert,
    connect_tcp,
    connect_unix,
    describe,
    explain_distrust,
)
from acp_gateway.transports.streams import ByteStream, closed_on_error
from acp_gateway.transports.websocket.client import UpgradeRefused, connect_websocket
from acp_gateway.transports.websocket.stream import CONNECTION_ID, LIMIT, PART, PROBES, RESUME, Timing

if TYPE_CHECKING:
    from acp_gateway.client.http.cookies import CookieJar
    from acp_gateway.client.reaching.ways import Turn, WayMemory
    from acp_gateway.client.ssh import SshBytes
    from acp_gateway.transports.layers import TlsBytes

log = logging.getLogger(__name__)

_REFUSALS: Final[Sequence[type[AccessError]]] = (
    Unauthorized,
    Forbidden,
    UnknownAgent,
    UnknownSession,
    UnknownPort,
    TooFarBehind,
    LinkGone,
    LinkExpired,
)
"""Refusals of a gateway, looked up by status, then by reason. The first with the status is the default."""

_GATEWAY_DOWN: Final = frozenset({502, 503, 504})
"""HTTP statuses of a proxy that does not reach its gateway."""

_NOT_FOUND: Final = 404

OTHER_PATH: Final = "there is nothing here; the endpoint is /acp"
"""Text of a gateway's 404 response."""

SPEAKS_TLS: Final = "This port speaks TLS"
"""Beginning of a gateway's response to HTTP without TLS where it wants TLS."""

_SECURE: Final = {"ws": "wss", "http": "https", "tcp": "tcp+tls"}
"""The TLS scheme for each plaintext scheme."""

_ID: Final = re.compile(r"[\x21-\x7e]{1,64}")
"""A connection id: safe in a header and in a log line."""

_COUNT: Final = re.compile(r"[0-9]{1,15}")
"""A message count in a header."""

_HINT: Final = "; the door may have answered in its place"

_ALERT_TIMEOUT: Final = 1.0
"""Seconds to wait for a TLS alert after a write has failed: the server sent it before it closed."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A gateway's address, and the parameters and credentials of a connection to it."""

    address: Address
    agent: str | None
    """None for the gateway's default agent, or the token's only one."""
    token: str | None
    """None where none is needed: unix sockets, ssh, client certificates, other ACP servers."""
    pin: str | None
    ca: Path | None
    max_message_size: int
    """Maximum bytes of one message from the gateway."""
    session: str | None = None
    """The session to join; None to start without one."""
    observe: bool = False
    """Read only, even if the token allows more."""
    control: bool = False
    """Open a control connection, which has no agent."""
    command: str | None = None
    """Path of this program on the remote machine, for `ssh`; None to search for it."""
    ssh_options: tuple[str, ...] = ()
    """Additional ssh options, each as `Name=value`."""
    cert: Path | None = None
    key: Path | None = None
    """A client certificate and its key for TLS, both or neither."""
    cookies: "CookieJar | None" = None
    """The cookies of servers that are not gateways, which outlive a connection; None to forget them with it."""
    origin: tuple[tuple[str, str], ...] = ()
    """Headers by which a gateway tells that a connection comes through it, and for whom; for WebSockets."""
    server: str = "`acp-gateway serve`"
    """Name of what should answer there, for errors."""
    token_hint: str = ""
    """The likeliest cause of a refused token and its remedy, added to that error."""
    others: tuple[Address, ...] = ()
    """Further addresses of the gateway, best first; `address` is better."""
    memory: "WayMemory | None" = None
    """Remembers which of several addresses was used; None to start with the best each time."""
    opener: Callable[[], Awaitable[ByteStream]] | None = None
    """Opens the stream of bytes to a server that lends its connections, over which TLS is done; None to connect."""
    via: "Via | None" = None
    """The door to go through; None to connect to the address itself."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All addresses, best first."""
        return (self.address, *self.others)

    def at(self, address: Address) -> "Destination":
        """Return the destination with this address only, without what is for TLS if it has none."""
        only = replace(self, address=address, others=(), memory=None)
        return only if address.tls else replace(only, pin=None, ca=None, cert=None, key=None)

    @property
    def demands_proof(self) -> bool:
        """True if the peer has to prove first that it knows the token: without TLS, for a token of gateways."""
        plain = self.address.scheme in _SECURE
        return plain and self.token is not None and explain_flaw(self.token) is None

    @property
    def connect_params(self) -> dict[str, str | bool]:
        """The requested agent, session and role, as the parameters of a hello."""
        params = {"agent": self.agent, "session": self.session, "observe": self.observe, "control": self.control}
        return {name: value for name, value in params.items() if value is not None and value is not False}

    def __repr__(self) -> str:
        return f"Destination({self.address})"


class Via(NamedTuple):
    """A gateway through whose tunnel another one is reached."""

    door: Destination
    node: str
    """The name of the other gateway at the door."""
    open: "Callable[[Via], Awaitable[tuple[ByteStream, Address]]]"
    """Opens the tunnel; returns its stream of bytes, over which TLS is done, and the address of the door."""


def explain_silence(address: str) -> str:
    """Return the error text for an address that did not answer in time, with the likeliest cause."""
    if address.startswith("ssh://"):
        login = re.sub(r":[0-9]+$", "", address.removeprefix("ssh://").partition("/")[0])
        return (
            f"{address}: ssh logged in, but nothing came back: does a profile there (.bashrc) wait for input? Try: ssh "
            f"{login} acp-gateway --version"
        )
    return f"{address}: no answer; is it the gateway's port, and does no firewall drop connections?"


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume parameters: a request for a new resumable link, or for the continuation of one."""

    connection_id: str | None = None
    """None for a new link."""
    received: int = 0
    """Number of messages received over the link so far."""
    ask: Callable[[], int] | None = field(default=None, compare=False)
    """Called right before the gateway is asked, and returns the number again, for a link that has a connection still.
    From then on, the gateway may drop that connection."""
    tell_part: Callable[[], PartSum] = field(default=lambda: NO_PART, compare=False)
    """Called after it, and returns the part of the next message that was received."""
    part: PartSum = NO_PART
    """That part."""

    async def asked(self) -> "Resume":
        """Return the parameters that the gateway is to be asked with at this moment, without a checkpoint after it."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.ask is None:
            return self
        resume = replace(self, received=self.ask(), part=self.tell_part())
        # No request is needed if the present connection was found to have answered.
        await trio.lowlevel.checkpoint_if_cancelled()
        return resume

    @property
    def headers(self) -> dict[str, str]:
        """The parameters as headers of a WebSocket upgrade."""
        if self.connection_id is None:
            return {RESUME: "0"}
        part = {PART: str(self.part)} if self.part.size else {}
        return {CONNECTION_ID: self.connection_id, RESUME: str(self.received), **part}

    @property
    def params(self) -> dict[str, str | int]:
        """The parameters as the `resume` member of a hello."""
        if self.connection_id is None:
            return {}
        part = {"part": str(self.part)} if self.part.size else {}
        return {"connectionId": self.connection_id, "received": self.received, **part}


class Dialed(NamedTuple):
    """A connection to a gateway, and the state of its link there."""

    stream: MaintainedStream
    """Ready for `initialize`, or for the messages that a resumed link has missed."""
    connection_id: str | None
    """The id that resumes the link. If `received` is None, it is only a name or None."""
    received: int | None
    """Number of messages of the link that the gateway has received; None if it does not resume links."""
    probes: bool = False
    """True if the gateway answers probes."""
    limit: SizeLimit | None = None
    """Maximum size of a message to the gateway, where it tells that."""
    address: Address | None = None
    """The address, if the gateway has several."""
    part: PartSum | None = None
    """Part of the next message of the link that the gateway has kept; None if it does not understand parts."""

    async def aclose(self) -> None:
        """Close the connection at once, without ending its link."""
        await self.stream.abort()


async def dial(destination: Destination, timing: Timing) -> MaintainedStream:
    """Connect, authenticate, and return a stream that is ready for `initialize`.

    Of several addresses, the first that the gateway accepts is used, see `client.reaching.ways`. If none is, the error
    has a line for each.

    Raises:
        Unreachable: there is no answer, or a temporary refusal.
        TrustError: the certificate is not the expected one, and no token was sent; or the server rejects the client's
            certificate.
        AccessError: the gateway itself refuses, and would refuse again. A proxy's refusal never raises it.
        ProtocolError: the server is not a gateway.

    Cancelling closes the connection.
    """
    return (await _dial(destination, timing, None)).stream


async def dial_link(destination: Destination, timing: Timing, resume: Resume) -> Dialed:
    """Connect like `dial`, and request a new resumable link or resume an existing one.

    Raises what `dial` raises, and for a link that can't be resumed:
        TooFarBehind, LinkExpired, LinkGone: the gateway refuses it.
        ProtocolError: the response lacks the number of messages that the gateway has received over this link.

    Cancelling closes the connection. The gateway may have resumed the link by then; it can be resumed again.
    """
    return await _dial(destination, timing, resume)


async def settle(destination: Destination) -> Destination:
    """Return the destination with the one of its addresses that a connection uses now.

    Of several, it connects to find out. Raises what `dial` raises. Cancelling closes the connection.
    """
    if not destination.others:
        return destination
    dialed = await _dial(destination, Timing(), None)
    await dialed.aclose()
    return destination.at(dialed.address or destination.address)


async def _dial(destination: Destination, timing: Timing, resume: Resume | None) -> Dialed:
    if not destination.others:
        return await _dial_one(destination, timing, resume, nullcontext)
    # Imported here to keep start-up fast for gateways with one address.
    from acp_gateway.client.reaching.ways import dial_any

    async def dial_way(way: Destination, turn: "Turn") -> Dialed:
        return (await _dial_one(way, timing, resume, turn))._replace(address=way.address)

    return await dial_any(destination, dial_way)


async def _dial_one(destination: Destination, timing: Timing, resume: Resume | None, turn: "Turn") -> Dialed:
    """Connect to the one address of a destination, and ask the gateway within a turn."""
    address = destination.address
    try:
        stream = await open_connection(destination)
    except Unreachable as error:
        # With TLS 1.2 the client's certificate is refused in the handshake.
        raise_refusal_of_certificate(destination, error)
        raise
    try:
        if destination.demands_proof:
            await demand_proof(stream, destination)
        # A request for a link that arrives after a later one would take the link from that. So the system is not to
        # send it again once it was given up.
        stream.reset_when_closed(resume is not None and resume.connection_id is not None)
        async with turn():
            if address.websocket:
                dialed = await upgrade(stream, destination, timing, resume)
            else:
                dialed = await _say_hello(stream, destination, resume)
        stream.reset_when_closed(False)
        return dialed
    except trio.BrokenResourceError as error:
        try:
            raise_refusal_of_certificate(destination, error)
            if address.tls:
                raise_refusal_of_certificate(destination, await _read_error(stream))
        finally:
            await stream.aclose()
        hint = (
            ""
            if address.tls or address.scheme not in _SECURE
            else f"; if this port wants TLS, use {_SECURE[address.scheme]}://"
        )
        raise Unreachable(f"{address}: {error}{hint}") from error
    except BaseException as error:
        if isinstance(error, GatewayError):
            # The request has been answered.
            stream.reset_when_closed(False)
        await stream.aclose()
        raise


async def open_connection(destination: Destination) -> "SocketBytes | SshBytes | TlsBytes":
    """Open a connection, and verify the server if it shows a certificate."""
    address = destination.address
    if destination.via is not None or destination.opener is not None:
        return await _open_inside(destination)
    if address.scheme == "ssh":
        from acp_gateway.client.ssh import SshTarget, open_relay

        return await open_relay(SshTarget(address, destination.command, destination.ssh_options))
    if address.scheme == "unix":
        return await connect_unix(address.path)
    if not address.tls:
        return await connect_tcp(address.host, address.port, None, destination.server)
    from acp_gateway.security.tls import check_pin, client_context

    context = client_context(ca=destination.ca, pin=destination.pin, cert=destination.cert, key=destination.key)
    stream = await connect_tcp(address.host, address.port, context, destination.server)
    if destination.pin is not None:
        async with closed_on_error(stream):
            check_pin(stream.peer_certificate, destination.pin)
    return stream


async def _open_inside(destination: Destination) -> "TlsBytes":
    """Open a connection to a gateway through its door, or one that it lends, and verify the gateway.

    Raises `Unreachable`, an `AccessError` of the door, `ProtocolError`, and `TrustError` for a door or another gateway
    that answers in place of this one. Cancelling closes it.
    """
    # Imported here to keep start-up fast for the other ways.
    import ssl

    from acp_gateway.security.tls import check_pin, client_context
    from acp_gateway.transports.layers import start_tls_inside

    context = client_context(ca=destination.ca, pin=destination.pin, cert=destination.cert, key=destination.key)
    below: ByteStream
    if destination.via is not None:
        below, door = await destination.via.open(destination.via)
        place, hint = f"{destination.via.node} through {door.host} port {door.port}", _HINT
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


async def demand_proof(stream: ByteStream, destination: Destination) -> None:
    """Have the peer prove over a new connection that it knows the token, which may be sent over this connection then.

    Raises `ProtocolError` without a proof, as for a peer that speaks something else: a link that was there before goes
    on trying, a first one does not, since its token may just be wrong.
    """
    address = destination.address
    assert destination.token is not None
    challenge = Challenge(destination.token)
    if address.websocket:
        proof = await _challenge_websocket(stream, destination, challenge.text)
    else:
        reply = await _ask_hello(_lines(stream, destination), destination, {"challenge": challenge.text})
        proof = reply["result"].get("proof") if isinstance(reply.get("result"), dict) else None
    if not challenge.is_met(proof, "" if stream.route is None else stream.route.peer[0]):
        hint = "; write 127.0.0.1 in place of localhost" if address.host == "localhost" else ""
        raise ProtocolError(
            f"{address} did not prove that it knows this token, which was not sent: another program may listen there, "
            "the token may be revoked, or the gateway older than this client; "
            f"{destination.token_hint or '`acp-gateway status` there tells'}{hint}"
        )


async def _challenge_websocket(stream: ByteStream, destination: Destination, challenge: str) -> str | None:
    """Return the proof in the refusal of a WebSocket without a token; None if there is none."""
    address = destination.address
    uri = WebSocketURI(address.tls, address.host, address.port, address.path, "")
    headers = {"User-Agent": f"acp-gateway/{__version__}", CHALLENGE: challenge}
    try:
        await connect_websocket(stream, uri, headers, max_message_size=destination.max_message_size, timing=Timing())
    except UpgradeRefused as error:
        if error.status == Unauthorized.http_status:
            return next(iter(error.headers.get_all(PROOF)), None)
        if error.refusal is not None:
            # Not an `AccessError`: anyone may have sent it.
            raise refusal(destination, error.status, error.text, None) from error
        raise foreign_answer(address, error) from error
    except ProtocolError as error:
        raise ProtocolError(f"{address}: {error}") from error
    return None


async def _read_error(stream: ByteStream) -> trio.BrokenResourceError | None:
    """Return the error that reading ends with after a write has failed: it may be a TLS alert with the cause."""
    with trio.move_on_after(_ALERT_TIMEOUT):
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError as error:
            return error
    return None


def raise_refusal_of_certificate(destination: Destination, error: BaseException | None) -> None:
    """Raise `TrustError` if an error was caused by the server rejecting the client's certificate."""
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


async def upgrade(stream: ByteStream, destination: Destination, timing: Timing, resume: Resume | None) -> Dialed:
    """Open a WebSocket over a connection, and ask for a link. Raises as `dial_link`, and what the stream raises."""
    address = destination.address
    params = {name: "1" if value is True else value for name, value in destination.connect_params.items()}
    query = urlencode(params, quote_via=quote, safe="")
    headers = {"User-Agent": f"acp-gateway/{__version__}"}
    if destination.token is not None:
        headers["Authorization"] = f"Bearer {destination.token}"
    headers |= dict(destination.origin)
    if resume is not None:
        resume = await resume.asked()
    try:
        websocket = await connect_websocket(
            stream,
            WebSocketURI(address.tls, address.host, address.port, address.path, query),
            headers | (resume.headers if resume is not None else {}),
            max_message_size=destination.max_message_size,
            size_setting="--max-message-size",
            timing=timing,
        )
    except UpgradeRefused as error:
        if error.refusal is not None:
            raise refusal(destination, error.status, error.text, error.refusal) from error
        new_link = resume is not None and resume.connection_id is None
        if destination.demands_proof or not new_link or not may_speak_http(address, error):
            # A link is that of a gateway, and so is a proof: what answers now is a proxy, or a portal.
            raise foreign_answer(address, error) from error
        await stream.aclose()
        log.info("%s does not open a WebSocket (HTTP %d): using Streamable HTTP", address, error.status)
        return Dialed(speak_http(destination, query, headers), None, None)
    except ProtocolError as error:
        raise ProtocolError(f"{address}: {error}") from error
    answer = {name.lower(): value for name, value in websocket.headers.items()}
    count = answer.get(RESUME.lower())
    received = int(count) if count is not None and _COUNT.fullmatch(count) else count
    dialed = _dialed(websocket, destination, resume, answer.get(CONNECTION_ID.lower()), received)
    return _with_features(dialed, PROBES.lower() in answer, answer.get(LIMIT.lower()), answer.get(PART.lower()))


def may_speak_http(address: Address, error: UpgradeRefused) -> bool:
    """Return whether the response to an upgrade may be that of a server of Streamable HTTP."""
    return address.may_lack_websocket and error.status not in BUSY and printable(error.text) != OTHER_PATH


def speak_http(destination: Destination, query: str, headers: Mapping[str, str]) -> MaintainedStream:
    """Return a stream to a server of Streamable HTTP, which connects when it runs; `query` has no question mark."""
    # Imported here to keep start-up fast for WebSockets.
    from acp_gateway.client.http.connections import Endpoint
    from acp_gateway.client.http.stream import HttpClientStream

    if destination.session is not None or destination.observe:
        raise ProtocolError(f"{destination.address} is not an acp-gateway: --attach and --observe are not for it")
    return HttpClientStream(
        Endpoint.at(destination.address, query, headers),
        partial(open_connection, destination),
        max_message_size=destination.max_message_size,
        size_setting="--max-message-size",
        cookies=destination.cookies,
    )


def foreign_answer(address: Address, error: UpgradeRefused) -> GatewayError:
    """Return the error for an HTTP response that did not come from a gateway's own refusal."""
    place = f"{address.host}:{address.port}"
    text = printable(error.text)
    if error.status in _GATEWAY_DOWN:
        return Unreachable(
            f"{place} answers, but the gateway behind it does not (HTTP {error.status}: {text}): is `acp-gateway "
            "serve` running there?"
        )
    if error.status in BUSY:
        return Unreachable(f"{address}: not now ({error.status}): {text}")
    if text.startswith(SPEAKS_TLS):
        return ProtocolError(f"{place} wants TLS: use wss://{place}, or https://")
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
    lines = _lines(stream, destination)
    params: dict[str, object] = {**destination.connect_params}
    if destination.token is not None:
        params["token"] = destination.token
    if resume is not None:
        resume = await resume.asked()
        params["resume"] = resume.params
    reply = await _ask_hello(lines, destination, params)
    if "result" not in reply:
        raise refusal_by_error(destination, reply["error"])
    result = reply["result"] if isinstance(reply["result"], dict) else {}
    dialed = _dialed(lines, destination, resume, result.get("connectionId"), result.get("received"))
    return _with_features(dialed, result.get("probe") is True, result.get("limit"), result.get("part"))


def _lines(stream: ByteStream, destination: Destination) -> LineStream:
    lines = LineStream(stream, max_message_size=destination.max_message_size, size_setting="--max-message-size")
    # A gateway ends each line: one without an end was cut off.
    lines.accepts_unterminated_line = False
    return lines


async def _ask_hello(lines: LineStream, destination: Destination, params: Mapping[str, object]) -> dict[str, Any]:
    """Send a hello and return its response, which has a `result`, or an `error` that is an object.

    Raises `Unreachable` without a response, and `ProtocolError` for what is not one.
    """
    hello = {"jsonrpc": "2.0", "id": 0, "method": HELLO, "params": params}
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
    return reply


def _with_features(dialed: Dialed, probes: bool, limit: object, part: object) -> Dialed:  # noqa: FBT001
    """Return a connection with what the gateway says of its links, if it resumes them."""
    if dialed.received is None:
        return dialed
    return dialed._replace(probes=probes, limit=read_size_limit(limit), part=read_part_sum(part))


def _dialed(
    stream: MaintainedStream, destination: Destination, resume: Resume | None, connection_id: object, received: object
) -> Dialed:
    """Validate the connection id and message count of a gateway's response; either may be absent.

    Raises `ProtocolError` if they do not match the request.
    """
    name = connection_id if isinstance(connection_id, str) and _ID.fullmatch(connection_id) else None
    if resume is None or (resume.connection_id is None and received is None):
        return Dialed(stream, name, None)
    where = f"{destination.address}: the response for a resumable link"
    if type(received) is not int or not 0 <= received < 10**15:
        raise ProtocolError(f"{where} has no message count; is a proxy or another server in between?")
    if name is None or resume.connection_id not in (None, name):
        raise ProtocolError(f"{where} names another link; is a proxy or another server in between?")
    if resume.connection_id is None and received:
        raise ProtocolError(f"{where} counts {received} messages on a new link")
    return Dialed(stream, name, received)


def refusal_by_error(destination: Destination, error: Mapping[str, Any]) -> GatewayError:
    """Return the exception for a JSON-RPC error with which a gateway refuses.

    It is an `AccessError` only if the error has a reason, which marks a refusal by the gateway itself.
    """
    data = error.get("data")
    reason = data.get("reason") if isinstance(data, dict) else None
    number, message = error.get("code"), error.get("message")
    if number == INVALID_PARAMS:
        # The session API has one code for all that does not exist.
        number = next((kind.http_status for kind in _REFUSALS if kind.reason == reason), number)
    return refusal(
        destination,
        number,
        message if isinstance(message, str) else "without a reason",
        reason if isinstance(reason, str) else None,
    )


def refusal(destination: Destination, number: object, text: str, reason: str | None) -> GatewayError:
    """Return the exception for an HTTP status or a JSON-RPC error code, and its reason.

    The reason shows that the gateway itself refuses; it is None for a proxy or another server.
    """
    text = printable(text)
    if type(number) is not int:
        return ProtocolError(f"{destination.address}: refused without a status: {text}")
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
    if number in BUSY:
        return Unreachable(f"{destination.address}: not now ({number}): {text}")
    return ProtocolError(f"{destination.address}: refused with {number}: {text}")
