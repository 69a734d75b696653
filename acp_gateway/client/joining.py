"""Invitations of a gateway: the line that carries one, and its exchange for a token.

    wss://box:7443/acp#acpgwi_…,sha256:…

The line is the gateway's address, or several with commas between them, a code for one use within minutes, and the pin
of its key where TLS ends there. It has no character that a shell would take for its own.
"""

import json
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import trio

from acp_gateway.client.dialing import Destination, demand_proof, explain_silence, open_connection
from acp_gateway.client.reaching.ways import combined
from acp_gateway.config.addresses import Address, parse_target
from acp_gateway.config.reached import MAX_ADDRESSES
from acp_gateway.errors import AccessError, GatewayError, ProtocolError, Unauthorized, Unreachable, UsageError
from acp_gateway.printable import printable
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import explain_flaw, is_well_formed
from acp_gateway.transports.http.client import HttpClientConnection, Request
from acp_gateway.transports.racing import Schedule, race
from acp_gateway.transports.streams import ByteStream, closed_on_error

JOIN: Final = "/join"
"""Path of the exchange, beside the endpoint."""

ANSWER_SIZE: Final = 65536
"""Maximum bytes of the response."""

TIME_LIMIT: Final = 15.0
"""Seconds for the exchange: the user waits."""

_COMMA: Final = re.compile(r",(?=[a-z+]+://)")
"""A comma before an address; others may be in a path."""

_ID: Final = re.compile("[0-9a-f]{8}")
_OK: Final = 200
_UNAUTHORIZED: Final = 401
_NOT_FOUND: Final = 404
_REFUSED: Final = (403, 429)


@dataclass(frozen=True, slots=True)
class Invitation:
    """An invitation, as its line has it."""

    address: Address
    code: str = field(repr=False)
    pin: str | None = None
    others: tuple[Address, ...] = ()
    """Further addresses of the gateway, best first."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All addresses, best first."""
        return (self.address, *self.others)

    def __str__(self) -> str:
        addresses = ",".join(map(str, self.addresses))
        return f"{addresses}#{self.code}" + (f",{self.pin}" if self.pin else "")


@dataclass(frozen=True, slots=True)
class Joined:
    """The token that an invitation was exchanged for."""

    token: str = field(repr=False)
    token_id: str
    role: str
    session: str | None
    expires: str | None
    address: Address | None = None
    """The address of the invitation that was used."""


def parse_invitation(line: str) -> Invitation:
    """Return the invitation of a line, which may stand behind `acp-gateway join`. Raises `UsageError`."""
    words = line.split()
    text = words[-1].strip("'\"") if words else ""
    if not text:
        raise UsageError("there is no invitation: give the line that `share` or `nodes add` has printed")
    urls, mark, rest = text.partition("#")
    code, comma, pin = rest.partition(",")
    if not mark or not is_well_formed(code, "invitation"):
        raise UsageError(f"this is not an invitation of `acp-gateway share` or `nodes add`{_explain_other(text, code)}")
    addresses = [_parse_address(url) for url in _COMMA.split(urls)]
    if len(addresses) > MAX_ADDRESSES:
        raise UsageError(f"an invitation has at most {MAX_ADDRESSES} addresses")
    return Invitation(addresses[0], code, _parse_pin(pin) if comma else None, tuple(addresses[1:]))


def _parse_pin(text: str) -> str:
    try:
        return parse_pin(text)
    except UsageError:
        raise UsageError("the end of this invitation is missing: copy the whole line again") from None


def _explain_other(text: str, code: str) -> str:
    """Return what a line is that is not an invitation, as the end of a sentence; "" if that is unknown."""
    if code.startswith("acpgwi_"):
        return ": its code is not whole, so copy the whole line again"
    if code.startswith("acpgwp_"):
        return ": it is a link for a browser, so open it in one; `share` without --link makes an invitation"
    if explain_flaw(text) is None:
        return ": it is a token, so save it in a file of mode 600, and name that by --token-file"
    return ""


def _parse_address(url: str) -> Address:
    address = parse_target(url)
    if not address.websocket:
        raise UsageError(f"{address} is not an address at which an invitation can be used")
    if not (address.tls or address.loopback):
        raise UsageError(f"the code would be sent to {address} unencrypted: the address has to begin with wss://")
    return address


def join_path(address: Address) -> str:
    """Return the path of the exchange at a gateway whose endpoint has this address."""
    return address.path.rpartition("/")[0] + JOIN


async def join(invitation: Invitation, *, time_limit: float = TIME_LIMIT) -> Joined:
    """Exchange an invitation for a token.

    Raises what `dialing.dial` raises, with `Unauthorized` for a code that is not valid any more. Cancelling closes the
    connection; the code may be used up then.
    """
    connection: _Connection | None = None
    with trio.move_on_after(time_limit):
        connection = await _connect(invitation)
        address = connection.address
        try:
            host = f"[{address.host}]" if ":" in address.host else address.host
            http = HttpClientConnection(connection.stream, f"{host}:{address.port}")
            body = json.dumps({"code": invitation.code}).encode()
            request = Request("POST", {"Content-Type": "application/json"}, body)
            head = await http.send(join_path(address), request)
            said = await http.read_all(ANSWER_SIZE)
        except trio.BrokenResourceError as error:
            raise Unreachable(f"{address}: {error}") from error
        finally:
            await connection.aclose()
        return replace(_read(address, head.status, said), address=address)
    silent = invitation.address if connection is None else connection.address
    raise Unreachable(f"{explain_silence(str(silent))} (tried for {time_limit:g} s)")


@dataclass(frozen=True, slots=True)
class _Connection:
    """A connection over one of an invitation's addresses."""

    address: Address
    stream: ByteStream

    async def aclose(self) -> None:
        await self.stream.aclose()


async def _connect(invitation: Invitation) -> _Connection:
    """Connect over the first address that works, and verify the server by its certificate or a proof that it knows the
    code. Raises as `combined`."""

    async def connect(address: Address) -> _Connection:
        destination = Destination(address, None, invitation.code, invitation.pin, None, ANSWER_SIZE).at(address)
        stream = await open_connection(destination)
        async with closed_on_error(stream):
            try:
                if not address.tls:
                    await demand_proof(stream, destination)
            except trio.BrokenResourceError as error:
                raise Unreachable(f"{address}: {error}") from error
        return _Connection(address, stream)

    addresses = invitation.addresses
    if len(addresses) == 1:
        return await connect(addresses[0])
    ways = [partial(connect, address) for address in addresses]
    outcome = await race(ways, Schedule([False] * len(ways)))
    if isinstance(outcome, list):
        raise combined(list(zip(addresses, outcome, strict=True)))
    return outcome


def _read(address: Address, status: int, body: bytes) -> Joined:
    if status != _OK:
        raise _refusal(address, status, printable(body[:1000].decode(errors="replace")))
    try:
        said: Any = json.loads(body)
        joined = Joined(said["token"], said["tokenId"], said["role"], said["session"], said["expires"])
        texts = (joined.session, joined.expires)
        right = (
            explain_flaw(joined.token) is None
            and _ID.fullmatch(joined.token_id) is not None
            and isinstance(joined.role, str)
            and all(text is None or isinstance(text, str) for text in texts)
        )
    except (ValueError, RecursionError, LookupError, TypeError):
        right = False
    if not right:
        raise ProtocolError(f"{address}: the response is not understood; does `acp-gateway --version` print the same?")
    return joined


def _refusal(address: Address, status: int, text: str) -> GatewayError:
    if status == _UNAUTHORIZED:
        return Unauthorized(f"{address}: {text}")
    if status in _REFUSED:
        return AccessError(f"{address}: {text}")
    if status == _NOT_FOUND:
        return ProtocolError(f"{address}: there is no acp-gateway that knows invitations (HTTP 404: {text})")
    return Unreachable(f"{address}: HTTP {status}: {text}")
