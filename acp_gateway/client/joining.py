"""Invitations of a gateway: the line that carries one, and its exchange for a token.

    wss://box:7443/acp#acpgwi_…,sha256:…

The line is the gateway's address, a code for one use within minutes, and the pin of its key where TLS ends there. It
has no character that a shell would take for its own.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from acp_gateway.client.dialing import Destination, explain_silence, open_connection
from acp_gateway.client.http.connections import HttpClientConnection, Request
from acp_gateway.config.addresses import Address, parse_target
from acp_gateway.errors import (
    AccessError,
    GatewayError,
    ProtocolError,
    Unauthorized,
    Unreachable,
    UsageError,
)
from acp_gateway.printable import printable
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import explain_flaw, is_well_formed

JOIN: Final = "/join"
"""Path of the exchange, beside the endpoint."""

ANSWER_SIZE: Final = 65536
"""Maximum bytes of the response."""

TIME_LIMIT: Final = 15.0
"""Seconds for the exchange: the user waits."""

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

    def __str__(self) -> str:
        return f"{self.address}#{self.code}" + (f",{self.pin}" if self.pin else "")


@dataclass(frozen=True, slots=True)
class Joined:
    """The token that an invitation was exchanged for."""

    token: str = field(repr=False)
    token_id: str
    role: str
    session: str | None
    expires: str | None


def parse_invitation(line: str) -> Invitation:
    """Return the invitation of a line, which may stand behind `acp-gateway join`. Raises `UsageError`."""
    words = line.split()
    text = words[-1].strip("'\"") if words else ""
    url, mark, rest = text.partition("#")
    code, comma, pin = rest.partition(",")
    if not mark or not is_well_formed(code, "invitation"):
        whole = "" if not code.startswith("acpgwi_") else ": its code is not whole, so copy the whole line again"
        raise UsageError(f"this is not an invitation as `acp-gateway share` prints it{whole}")
    address = parse_target(url)
    if not address.websocket:
        raise UsageError(f"{address} is not an address at which an invitation can be used")
    if not (address.tls or address.loopback):
        raise UsageError(f"the code would be sent to {address} unencrypted: the address has to begin with wss://")
    return Invitation(address, code, parse_pin(pin) if comma else None)


def join_path(address: Address) -> str:
    """Return the path of the exchange at a gateway whose endpoint has this address."""
    return address.path.rpartition("/")[0] + JOIN


async def join(invitation: Invitation, *, time_limit: float = TIME_LIMIT) -> Joined:
    """Exchange an invitation for a token.

    Raises what `dialing.dial` raises, with `Unauthorized` for a code that is not valid any more. Cancelling closes the
    connection; the code may be used up then.
    """
    address = invitation.address
    destination = Destination(address, None, None, invitation.pin, None, ANSWER_SIZE)
    with trio.move_on_after(time_limit):
        stream = await open_connection(destination)
        try:
            host = f"[{address.host}]" if ":" in address.host else address.host
            http = HttpClientConnection(stream, f"{host}:{address.port}")
            body = json.dumps({"code": invitation.code}).encode()
            request = Request("POST", {"Content-Type": "application/json"}, body)
            head = await http.send(join_path(address), request)
            said = await http.read_all(ANSWER_SIZE)
        except trio.BrokenResourceError as error:
            raise Unreachable(f"{address}: {error}") from error
        finally:
            await stream.aclose()
        return _read(address, head.status, said)
    raise Unreachable(f"{explain_silence(str(address))} (tried for {time_limit:g} s)")


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
